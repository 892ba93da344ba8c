# SPDX-License-Identifier: MIT
"""What is refused: never wrong numbers, and the arguments stay as they were."""
import numpy as np
import pytest

import attn


class Tensor:
    """Something that offers DLPack, on a device of our choice."""

    def __init__(self, array, device=1):
        self.array, self.device = array, device

    def __dlpack_device__(self):
        return self.device, 0

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)


class Protocol:
    """Something that offers the array protocol only."""

    def __init__(self, array):
        self.array = array
        self.__array_interface__ = array.__array_interface__


def test_dlpack_and_array_protocol(draw):
    q, k = draw(1, 2, 3, 8), draw(1, 2, 5, 8)
    wanted = attn.attention(q, k, k)
    for wrap in (Tensor, Protocol):
        np.testing.assert_array_equal(attn.attention(wrap(q), wrap(k), k), wanted)
    out = np.zeros_like(q)
    target = Tensor(out)
    if np.lib.NumpyVersion(np.__version__) >= "2.1.0":
        assert attn.attention(q, k, k, out=target) is target
        np.testing.assert_array_equal(out, wanted)
    else:  # what comes by DLPack cannot be written
        with pytest.raises(ValueError, match="read-only"):
            attn.attention(q, k, k, out=target)
    mask = draw(3, 5) > 0
    np.testing.assert_array_equal(attn.attention(q, k, k, mask=Tensor(mask)),
                                  attn.attention(q, k, k, mask=mask))
    np.testing.assert_array_equal(attn.attention(q, k, k, kv_lens=Tensor(np.array([3]))),
                                  attn.attention(q, k, k, kv_lens=3))


@pytest.mark.parametrize("slot", ["q", "k", "v", "out"])
@pytest.mark.parametrize("change, error, text", [
    (lambda a: a.astype(np.float64), TypeError, "must be float32, not float64"),
    (lambda a: a.astype(np.float16), TypeError, "must be float32, not float16"),
    (lambda a: a.astype(np.int32), TypeError, "must be float32, not int32"),
    (lambda a: a.astype(">f4"), TypeError, "byte order"),
    (lambda a: a.tolist(), TypeError, "not list"),
    (lambda a: np.ma.masked_array(a), TypeError, "masked array"),
    (lambda a: Tensor(a, 2), TypeError, "not in the memory of the CPU"),
    (lambda a: Tensor(a.astype(np.float64)), TypeError, "must be float32, not float64"),
    (lambda a: a[0, 0, 0], ValueError, "shape|axes"),
    (lambda a: a[None], ValueError, "shape|axes"),
    (lambda a: np.concatenate([a, a], 1)[:, :3], ValueError, "heads|shape"),
])
def test_wrong_arrays(draw, slot, change, error, text):
    arrays = {"q": draw(2, 2, 4, 8), "k": draw(2, 2, 4, 8), "v": draw(2, 2, 4, 8),
              "out": np.full((2, 2, 4, 8), 7, np.float32)}
    out = arrays["out"]
    arrays[slot] = change(arrays[slot])
    with pytest.raises(error, match=text) as raised:
        attn.attention(arrays["q"], arrays["k"], arrays["v"], out=arrays["out"])
    assert (out == 7).all(), "nothing is written"
    assert error is ValueError or slot in str(raised.value)


@pytest.mark.parametrize("k, v", [((2, 2, 5, 8), (2, 2, 4, 8)), ((2, 2, 5, 8), (1, 2, 5, 8)),
                                  ((1, 2, 5, 8), (1, 2, 5, 8)), ((2, 2, 5, 7), (2, 2, 5, 8)),
                                  ((2, 2, 5, 8), (2, 1, 5, 8)), ((2, 0, 5, 8), (2, 0, 5, 8)),
                                  ((2, 3, 5, 8), (2, 3, 5, 8)), ((2, 2, 5, 0), (2, 2, 5, 8))])
def test_shapes_that_do_not_fit(draw, k, v):
    with pytest.raises(ValueError):
        attn.attention(draw(2, 2, 4, 8), draw(*k), draw(*v))


def read_only(a):
    a.flags.writeable = False
    return a


@pytest.mark.parametrize("make", [
    read_only,
    lambda a: np.broadcast_to(a[:1], a.shape),
    lambda a: np.asfortranarray(a),
    lambda a: a[:, :, ::-1],
    lambda a: np.repeat(a, 2, -1)[..., ::2],
    lambda a: a[::-1],
    lambda a: np.lib.stride_tricks.as_strided(a, strides=(32, 32, 32, 4)),
    lambda a: np.lib.stride_tricks.as_strided(a, strides=(256, 0, 32, 4)),
])
def test_out_that_cannot_be_written(draw, make):
    q = draw(2, 2, 4, 8)
    out = np.zeros((2, 2, 4, 8), np.float32)
    with pytest.raises(ValueError):
        attn.attention(q, q, q, out=make(out))
    assert (out == 0).all()


def test_out_that_is_an_input(draw):
    q, k, v = draw(2, 2, 4, 8), draw(2, 2, 4, 8), draw(2, 2, 4, 8)
    for out in (q, k, v):
        before = out.copy()
        with pytest.raises(attn.InvalidError, match="overlap"):
            attn.attention(q, k, v, out=out)
        np.testing.assert_array_equal(out, before)


def test_read_only_inputs(draw):
    q, k = draw(2, 2, 4, 8), draw(2, 2, 4, 8)
    wanted = attn.attention(q, k, k)
    np.testing.assert_array_equal(attn.attention(read_only(q), read_only(k), k), wanted)


@pytest.mark.parametrize("options, error, text", [
    ({"mask": np.ones((4, 4), np.uint8)}, TypeError, "bool .*or float32"),
    ({"mask": np.ones((4, 4))}, TypeError, "not float64"),
    ({"mask": [[True] * 4] * 4}, TypeError, "not list"),
    ({"mask": np.ones((4, 3), bool)}, ValueError, "broadcast"),
    ({"mask": np.ones((3, 2, 4, 4), bool)}, ValueError, "broadcast"),
    ({"mask": np.ones((1, 1, 2, 4, 4), bool)}, ValueError, "broadcast"),
    ({"bias": np.ones((4, 4), bool)}, TypeError, "bias must be float32"),
    ({"bias": np.ones((4, 4), np.float32), "mask": np.ones((4, 4), np.float32)}, ValueError,
     "must be bool"),
    ({"causal": "left"}, ValueError, "'top_left', 'bottom_right'"),
    ({"causal": None}, ValueError, "causal must be one of"),
    ({"scale": "big"}, ValueError, "could not convert"),
    ({"scale": float("inf")}, ValueError, "scale = inf"),
    ({"window": 4}, TypeError, "iterable"),
    ({"window": (1.5, 2)}, TypeError, "must be an integer"),
    ({"window": (-2, 2)}, ValueError, "window = "),
    ({"chunk": -1}, ValueError, "chunk = -1"),
    ({"chunk": 2 ** 64 + 4}, ValueError, "does not fit in 64 bits"),
    ({"softcap": -1.0}, ValueError, "softcap = -1.0"),
    ({"layout": "hbld"}, ValueError, "'bhld', 'blhd'"),
    ({"engine": "gpu"}, ValueError, "'blas', 'vector'"),
    ({"threads": -1}, ValueError, "threads = -1"),
    ({"threads": 2 ** 32 + 1}, ValueError, "does not fit in 32 bits"),
    ({"alibi": [0.5]}, ValueError, r"alibi must have the shape \(2,\)"),
    ({"alibi": [0.5, float("inf")]}, ValueError, "alibi"),
    ({"sinks": [0.5, 1, 2]}, ValueError, r"sinks must have the shape \(2,\)"),
    ({"sinks": ["a", "b"]}, TypeError, "sinks must hold numbers"),
    ({"kv_lens": [1, 2, 3]}, ValueError, r"kv_lens must have the shape \(2,\)"),
    ({"kv_lens": [1.0, 2.0]}, TypeError, "kv_lens must hold integers"),
    ({"kv_lens": [1, 5]}, ValueError, "key range"),
    ({"kv_starts": [3, 3], "kv_lens": [1, 4]}, ValueError, "key range"),
    ({"positions": np.zeros(2, np.uint64)}, TypeError, "64 bits with a sign"),
    ({"segments": np.zeros((2, 3), int)}, ValueError, r"shape \(2, 4\)"),
    ({"segments": np.full((2, 4), 2 ** 40)}, ValueError, "32 bits"),
    ({"cu_seqlens_q": [0, 2, 4]}, ValueError, "packed"),
    ({"return_weights": "max"}, ValueError, "return_weights"),
    ({"return_scores": "weights"}, ValueError, "return_weights"),
    ({"return_scores": "final"}, ValueError, "return_scores must be one of"),
])
def test_wrong_options(draw, options, error, text):
    q = draw(2, 2, 4, 8)
    out = np.full_like(q, 7)
    with pytest.raises(error, match=text):
        attn.attention(q, q, q, out=out, **options)
    assert (out == 7).all(), "nothing is written"


@pytest.mark.parametrize("offsets, text", [
    ([], "at least one|integers"), ([0, 2, 9], "offset"), ([0, 3, 2], "offsets_q"),
    ([0.0, 4.0], "integers"), ([[0, 4]], "one axis")])
def test_wrong_offsets(draw, offsets, text):
    q = draw(4, 2, 8)
    with pytest.raises((TypeError, ValueError), match=text):
        attn.attention(q, q, q, cu_seqlens_q=offsets, cu_seqlens_k=offsets)


def test_masks_of_packed_sequences_are_refused(draw):
    q = draw(4, 2, 8)
    with pytest.raises(attn.UnsupportedError) as raised:
        attn.attention(q, q, q, cu_seqlens_q=[0, 4], cu_seqlens_k=[0, 4],
                       mask=np.ones((4, 4), bool))
    assert isinstance(raised.value, NotImplementedError) and raised.value.status == -5


def test_arguments_after_an_error(draw):
    """Nothing of a refused call reaches the next one."""
    q = draw(2, 2, 4, 8)
    wanted = attn.attention(q, q, q, causal="top_left", kv_lens=4)
    with pytest.raises(ValueError):
        attn.attention(q, q, q, mask=np.zeros((4, 4), bool), kv_lens=9, return_lse=True)
    np.testing.assert_array_equal(attn.attention(q, q, q, causal="top_left", kv_lens=4), wanted)
