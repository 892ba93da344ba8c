# SPDX-License-Identifier: MIT
"""The declarations against the header, how the library is found, and life in one process."""
import concurrent.futures
import copy
import ctypes
import gc
import os
import pathlib
import pickle
import re
import subprocess
import sys
import weakref

import numpy as np
import pytest

import attn
from attn import _lib

ROOT = pathlib.Path(__file__).resolve().parents[3]
HEADER = (ROOT / "include" / "attn.h").read_text()


def test_every_function_is_declared():
    lines = (ROOT / "tests" / "abi" / "symbols.txt").read_text().split()
    assert {line.split("@@")[0] for line in lines} == set(_lib.PROTOTYPES)
    newest = max(tuple(map(int, line.split("ATTN_")[1].split("."))) for line in lines)
    assert newest == _lib.NEEDED
    for name in _lib.PROTOTYPES:
        assert getattr(attn.lib, name).argtypes is not None
    assert type(attn.lib) is ctypes.CDLL  # which gives up Python's lock; PyDLL does not


C_TYPES = {"int32_t": ctypes.c_int32, "attn_status": ctypes.c_int32, "int64_t": ctypes.c_int64,
           "double": ctypes.c_double, "size_t": ctypes.c_size_t, "void": None}


def c_type(text, result=False):
    text = re.sub(r"\bconst\b", "", text).strip()
    if result and "*" in text:
        return ctypes.c_char_p
    return ctypes.c_void_p if "*" in text or "[" in text else C_TYPES[text.split()[0]]


def test_types_are_those_of_the_header():
    code = re.sub(r"/\*.*?\*/", "", HEADER, flags=re.S)
    found = re.findall(r"ATTN_API\s+([\w \*]+?)\s*\b(attn_\w+)\(([^)]*)\);", code)
    prototypes = {name: (c_type(result + " *" if "*" in result else result, True),
                         [c_type(a) for a in arguments.split(",")] if arguments != "void" else [])
                  for result, name, arguments in found}
    assert prototypes == _lib.PROTOTYPES


def test_numbers_are_those_of_the_header():
    numbers = {name: int(value, 0) for name, value in
               re.findall(r"^\s*(?:enum \{ )?(ATTN_\w+) = (-?\w+)", HEADER, flags=re.M)}
    numbers.update((name, int(value)) for name, value in
                   re.findall(r"(ATTN_\w+) = (\d+)[,} ]", HEADER))
    for prefix, table in (("CAUSAL", _lib.CAUSAL), ("LAYOUT", _lib.LAYOUT),
                          ("ENGINE", _lib.ENGINE), ("STAGE", _lib.STAGE)):
        theirs = {v for k, v in numbers.items() if k.startswith(f"ATTN_{prefix}_")}
        assert set(table.values()) == theirs
        for word, value in table.items():
            assert numbers[f"ATTN_{prefix}_{(word or 'none').upper()}"] == value
    for word, value in _lib.WEIGHT.items():
        assert numbers["ATTN_W_" + word.upper()] == value
    for word, value in _lib.ORDER.items():
        assert numbers["ATTN_" + word.upper()] == value
    for name in ("Q", "K", "V", "OUT", "I32", "I64", "MEAN_HEADS"):
        assert numbers["ATTN_" + name] == getattr(_lib, name)
    statuses = {v: k for k, v in numbers.items() if v < 0}
    for status, kind in attn._errors._CLASSES.items():
        assert kind.__doc__.startswith(statuses.pop(status))
    assert not statuses


def test_statuses_are_exceptions():
    for status, cause in ((-1, ValueError), (-2, MemoryError), (-3, OverflowError),
                          (-5, NotImplementedError), (-99, attn.AttnError)):
        with pytest.raises(cause) as raised:
            attn._errors.check(status, "why")
        assert isinstance(raised.value, attn.AttnError) and raised.value.status == status
        assert "why" in str(raised.value)
    with pytest.raises(attn.BlasError, match="BLAS: "):
        attn._errors.check(-6)


@pytest.mark.parametrize("status", [*attn._errors._CLASSES, -99])
def test_exceptions_are_copied_and_pickled(status):
    """As multiprocessing does with what a worker raises."""
    with pytest.raises(attn.AttnError) as raised:
        attn._errors.check(status, "why")
    error = raised.value
    error.note = ["a note"]
    twins = [copy.copy(error), copy.deepcopy(error)]
    twins += [pickle.loads(pickle.dumps(error, protocol))
              for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]
    for twin in twins:
        assert type(twin) is type(error) and twin.status == status
        assert str(twin) == str(error) and twin.args == error.args and twin.note == error.note


def test_version():
    numbers = re.findall(r"#define ATTN_VERSION_(?:MAJOR|MINOR|PATCH) +(\d+)", HEADER)
    assert attn.__version__ == ".".join(numbers)


def fake(version, without=()):
    library = type("Library", (), {})()
    for name in _lib.PROTOTYPES:
        if name not in without:
            setattr(library, name, lambda: version)
    return library


def test_other_versions_are_refused():
    _lib._declare(fake(b"0.1.7"), "it")
    _lib._declare(fake(b"0.2.0"), "it")
    for library, text in ((fake(b"0.0.9"), "it is libattn 0.0.9; this package needs 0.1"),
                          (fake(b"1.0.0"), "it is libattn 1.0.0"),
                          (fake(b"0.1.0", ["attn_run", "attn_merge"]), "lacks attn_run, attn_merge"),
                          (fake(b"0.1.0", ["attn_version"]), "it is not libattn")):
        with pytest.raises(ImportError, match=text):
            _lib._declare(library, "it")


def run(code, **environment):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300,
                          env={**os.environ, **environment})
    return done.returncode, done.stdout, done.stderr


def test_the_variable_comes_first():
    code, _, err = run("import attn", ATTN_LIBRARY="/nonexistent/libattn.so.0")
    assert code != 0 and "ATTN_LIBRARY" in err and "/nonexistent/libattn.so.0" in err


NUMPY = """
import numpy as np
a = np.arange(300 * 300, dtype=np.float32).reshape(300, 300) % 7 - 3
exact = (a.astype(np.int64) @ a.astype(np.int64)).astype(np.float32)
def product():
    assert np.array_equal(a @ a, exact)
    assert np.array_equal(np.linalg.qr(a.astype(float))[0].shape, (300, 300))
"""
# The library alone, before anything has imported NumPy.
ALONE = """
import ctypes, importlib.util, sys
spec = importlib.util.spec_from_file_location("alone", {file!r})
alone = importlib.util.module_from_spec(spec)
spec.loader.exec_module(alone)
floats = ctypes.c_float * (2 * 300 * 64)
q, out = floats(*((n * 37 % 101) / 50 - 1 for n in range(2 * 300 * 64))), floats()
op = ctypes.c_void_p()
def attend():
    assert alone.lib.attn_op_create(ctypes.byref(op), 2, 2, 64, 64) == 0
    assert alone.lib.attn_run(op, 1, 300, 300, q, q, q, out) == 0
    return bytes(out)
first = attend()
assert "numpy" not in sys.modules
"""
TOGETHER = """
product()
import attn
array = np.frombuffer(q, np.float32).reshape(1, 2, 300, 64)
assert attn.attention(array, array, array).tobytes() == first == attend()
product()
print("done")
"""


@pytest.mark.parametrize("first", ["numpy", "libattn"])
def test_beside_numpy_in_one_process(first):
    alone = ALONE.format(file=_lib.__file__)
    if first == "numpy":
        code = NUMPY + "product()\n" + alone.replace('"numpy" not in', '"numpy" in') + TOGETHER
    else:
        code = alone + NUMPY + TOGETHER
    assert run(code) == (0, "done\n", "")


def test_threads_give_what_one_gives(draw):
    """Ops, args and one layer shared by 8 threads, with products of NumPy in between."""
    def job(n):
        length = 3 + n % 5 * 20
        q, k = arrays[0][:, :, :length], arrays[1]
        a = attn.attention(q, k, k, causal="bottom_right", kv_lens=100 - n % 7, threads=1 + n % 3)
        b, weights = attn.attention(q, k, k, bias=bias[:length], return_weights=True)
        c = mha(x[:, :length], alibi=True, kv_lens=length)
        return a, b, weights, c, square @ square

    arrays, bias, x, square = draw(2, 1, 4, 100, 16), draw(100, 100), draw(2, 100, 32), \
        draw(200, 200)
    mha = attn.MultiHeadAttention(32, 4).set_weights(
        *(draw(*shape) for shape in ((32, 32), (32,)) * 4))
    alone = [job(n) for n in range(64)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        together = list(pool.map(job, range(64)))
    for one, other in zip(alone, together):
        for a, b in zip(one[:-1], other[:-1]):
            np.testing.assert_array_equal(a, b)


def test_same_bits_as_the_c_call(draw):
    q, k, v, out = draw(2, 4, 9, 16), draw(2, 2, 9, 16), draw(2, 2, 9, 16), draw(2, 4, 9, 16)
    op = ctypes.c_void_p()
    assert attn.lib.attn_op_create(ctypes.byref(op), 4, 2, 16, 16) == 0
    assert attn.lib.attn_op_set_causal(op, 1) == 0
    status = attn.lib.attn_run(op, 2, 9, 9, *(a.ctypes.data for a in (q, k, v, out)))
    attn.lib.attn_op_destroy(op)
    assert status == 0
    np.testing.assert_array_equal(attn.attention(q, k, v, causal=True), out)


def test_nothing_is_kept(draw):
    """Inputs and outputs go when their last user does."""
    arrays = [draw(1, 2, 4, 8), np.asfortranarray(draw(1, 2, 4, 8)), np.tri(4, dtype=bool)]
    arrays += attn.attention(arrays[0], arrays[1], arrays[1], mask=arrays[2], return_weights=True,
                             return_lse=True)
    arrays.append(attn.attention(arrays[0], arrays[0], arrays[0]))
    with pytest.raises(ValueError):
        attn.attention(arrays[0], arrays[1], arrays[1], kv_lens=9, mask=arrays[2])
    left = [weakref.ref(a) for a in arrays]
    del arrays
    gc.collect()
    assert [ref() for ref in left] == [None] * 7
    attn.clear_cache()
    q = draw(1, 2, 4, 8)
    np.testing.assert_array_equal(attn.attention(q, q, q), attn.attention(q, q, q))


def test_copies_live_as_long_as_they_are_borrowed(draw):
    sizes = attn._op.Sizes(2, 1, 1, 4, 4, 8, 8)
    with attn._args.borrowed_args() as args:
        args.segments(np.zeros((2, 4), np.int64), (2, 4), (2, 4))
        args.mask(np.ones((4, 4), bool), "mask", sizes)
        weights = args.scores("weights", sizes)
        assert len(args.kept) == 4 and args.kept[0].dtype == np.int32
        assert args.kept[3] is weights
    assert not args.kept and args is attn._args._idle[-1]


def test_explain_and_blas_info(draw):
    q = draw(1, 2, 4, 8)
    assert "path: " in attn.explain(q, q, q, causal=True)
    assert "key range" in attn.explain(q, q, q, kv_lens=9)
    assert "BLAS: " in attn.blas_info()
    with pytest.raises(TypeError, match="no argument is_causal"):
        attn.explain(q, q, q, is_causal=True)


def test_plot_weights(draw, tmp_path, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "Agg")
    pytest.importorskip("matplotlib")
    axes = attn.plot_weights(np.eye(2, 3, dtype=np.float32), ["a", "b"], ["x", "y", "z"], title="t")
    axes.figure.savefig(tmp_path / "weights.svg")
    assert [t.get_text() for t in axes.get_xticklabels()] == ["x", "y", "z"]
    assert [t.get_text() for t in axes.get_yticklabels()] == ["a", "b"]
    assert axes.get_title() == "t" and axes.images[0].get_array()[1, 1] == 1
    with pytest.raises(ValueError, match=r"\(queries, keys\) = \(2, 2\)"):
        attn.plot_weights(np.eye(2, 3), ["a", "b"])


def test_readme(tmp_path):
    """The code of README.md, as it stands there."""
    pytest.importorskip("matplotlib")
    text = (pathlib.Path(__file__).parents[1] / "README.md").read_text()
    code = "\n".join(re.findall(r"^```python\n(.*?)^```", text, flags=re.S | re.M))
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True,
                          text=True, timeout=300, env={**os.environ, "MPLBACKEND": "Agg"})
    assert done.returncode == 0, done.stderr
    assert "path: " in done.stdout and (tmp_path / "weights.svg").stat().st_size > 1000
