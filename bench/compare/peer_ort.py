# SPDX-License-Identifier: MIT
"""ONNX Runtime: the standard's Attention operator and ONNX Runtime's own, bound to the arrays so
that nothing is copied in or out. Thread pools spin as they do by default (see README.md)."""
import functools

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from cases import pack_items
from measure import Run, Skip

MICROSOFT = "com.microsoft"
TYPES = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.int32): TensorProto.INT32,
         np.dtype(np.int64): TensorProto.INT64, np.dtype(np.bool_): TensorProto.BOOL}


def versions():
    return {"onnxruntime": ort.__version__}


def set_threads(threads):
    """Nothing: each session has its own."""


# ------------------------------------------------------------------ sessions

def _session(nodes, inputs, outputs, threads, opset=23, constants=()):
    """inputs: name -> (type, shape); outputs: name -> shape; constants: name -> array."""
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info(n, t, s) for n, (t, s) in inputs.items()],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in outputs.items()],
        initializer=[numpy_helper.from_array(a, n) for n, a in dict(constants).items()])
    model = helper.make_model(graph, ir_version=11, opset_imports=[
        helper.make_opsetid("", opset), helper.make_opsetid(MICROSOFT, 1)])
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return ort.InferenceSession(model.SerializeToString(), options,
                                providers=["CPUExecutionProvider"])


def _bind(session, inputs, outputs):
    """A call of the session on these arrays; what is given as OrtValue is bound as it is."""
    binding = session.io_binding()
    kept = [v if isinstance(v, ort.OrtValue) else ort.OrtValue.ortvalue_from_numpy(v)
            for v in inputs.values()]
    for name, value in zip(inputs, kept):
        binding.bind_ortvalue_input(name, value)
    for name, value in outputs.items():
        if isinstance(value, ort.OrtValue):
            binding.bind_ortvalue_output(name, value)
        else:
            binding.bind_output(name, "cpu", 0, np.float32, value.shape, value.ctypes.data)
    return functools.partial(session.run_with_iobinding, binding), kept


def _run(nodes, inputs, out, result, threads, **more):
    described = {n: (TYPES[a.dtype], a.shape) for n, a in inputs.items()}
    session = _session(nodes, described, {"out": out.shape}, threads, **more)
    call, kept = _bind(session, inputs, {"out": out})
    return Run(call=call, result=result, keep=(kept, inputs))


def _heads_of(rows, case):
    """(B, L, H * D) as (B, H, L, D)."""
    return rows.reshape(case.B, case.L, case.Hq, case.D).transpose(0, 2, 1, 3)


# --------------------------------------------------------- the standard's operator

def _attention(case, data, threads, folded=False):
    if folded and (not case.grouped or case.causal):
        raise Skip("for grouped heads without a causal rule")
    if case.layer:
        return _layer(case, data, threads, "Attention")
    if case.group == "varlen":
        raise Skip("ort-loop does this")
    inputs = {"q": data.q, "k": data.k, "v": data.v}
    if folded:
        inputs["q"] = data.q.reshape(1, case.Hk, -1, case.D)
    out = data.out("heads", inputs["q"].shape)
    names, opset = list("qkv"), 23
    if case.lengths:
        names, opset = [*"qkv", "", "", "", "n"], 24
        inputs["n"] = np.array(case.lengths, np.int64)
    elif case.window:
        names.append("m")
        inputs["m"] = data.visible()
    causal = int(case.causal and not case.window)
    node = helper.make_node("Attention", names, ["out"], is_causal=causal)
    return _run([node], inputs, out, lambda: out.reshape(data.q.shape), threads, opset=opset)


def _loop(case, data, threads):
    """Items without padding, one call each, of one session with a free length."""
    if case.group != "varlen":
        raise Skip("for items without padding")
    shape = (1, case.Hq, "n", case.D)
    session = _session([helper.make_node("Attention", list("qkv"), ["out"])],
                       dict.fromkeys("qkv", (TensorProto.FLOAT, shape)), {"out": shape}, threads)
    outs = [data.out(("item", b), (1, case.Hq, n, case.D)) for b, n in enumerate(case.lengths)]
    items = zip(*(data.items(name) for name in "qkv"), outs)
    calls, kept = zip(*(_bind(session, {"q": q, "k": k, "v": v}, {"out": o})
                        for q, k, v, o in items))
    return Run(call=lambda: [call() for call in calls], result=lambda: pack_items(case, outs),
               keep=kept)


# --------------------------------------------------- ONNX Runtime's own operators

def _mha(case, data, threads):
    if case.layer:
        return _layer(case, data, threads, "MultiHeadAttention")
    if case.grouped or case.window or case.group == "varlen":
        raise Skip("ort-attention, ort-gqa or ort-loop does this")
    # Keys and values by heads: so the operator has nothing to transpose.
    inputs = {"q": data.rows("q"), "k": data.k, "v": data.v}
    names = list("qkv")
    if case.lengths:
        names += ["", "n"]
        inputs["n"] = np.array(case.lengths, np.int32)
    out = data.out("rows", (case.B, case.L, case.Hq * case.D))
    node = helper.make_node("MultiHeadAttention", names, ["out"], domain=MICROSOFT,
                            num_heads=case.Hq, unidirectional=int(case.causal))
    return _run([node], inputs, out, lambda: _heads_of(out, case), threads)


def _gqa(case, data, threads):
    """GroupQueryAttention, the operator of language models: causal; new keys go into a cache,
    which is bound as its input and its output, so that it is not copied."""
    if case.layer or case.lengths or not (case.causal or case.decode):
        raise Skip("for causal prefill and decoding")
    past, heads = case.K - case.L, {"num_heads": case.Hq, "kv_num_heads": case.Hk}
    if case.window:
        heads["local_window_size"] = case.window
    # The last of the keys are the new ones; the cache has them already, and gets them again.
    new = {n: data.copy(("new", n), getattr(data, n)[:, :, past:].transpose(0, 2, 1, 3))
           for n in "kv"}
    inputs = {"q": data.rows("q"),
              **{n: a.reshape(1, case.L, case.Hk * case.D) for n, a in new.items()},
              "seqlens": np.array([case.K - 1], np.int32), "total": np.array([case.K], np.int32)}
    cache = {n: ort.OrtValue.ortvalue_from_numpy(data.copy(("cache", n), getattr(data, n)))
             for n in "kv"}
    out = data.out("rows", (1, case.L, case.Hq * case.D))
    node = helper.make_node(
        "GroupQueryAttention", ["q", "k", "v", "past_k", "past_v", "seqlens", "total"],
        ["out", "present_k", "present_v"], domain=MICROSOFT, **heads)
    described = {n: (TYPES[a.dtype], a.shape) for n, a in inputs.items()}
    described |= {f"past_{n}": (TensorProto.FLOAT, data.k.shape) for n in "kv"}
    session = _session([node], described, {"out": out.shape, "present_k": data.k.shape,
                                           "present_v": data.v.shape}, threads)
    call, kept = _bind(session, inputs | {f"past_{n}": v for n, v in cache.items()},
                       {"out": out} | {f"present_{n}": v for n, v in cache.items()})
    return Run(call=call, result=lambda: _heads_of(out, case), keep=(kept, inputs))


# ------------------------------------------------------------------ the layer

def _layer(case, data, threads, operator):
    """Weights are constants of the graph: the session packs them once."""
    constants = {"w": np.concatenate(data.weights[:3], 1), "b": np.concatenate(data.biases[:3]),
                 "w_out": data.weights[3], "b_out": data.biases[3]}
    node = helper.make_node
    if operator == "Attention":
        nodes = [node("Attention", ["x", "w", "b"], ["heads"], domain=MICROSOFT,
                      num_heads=case.Hq)]
    else:
        nodes = [node("MatMul", ["x", "w"], ["xw"]), node("Add", ["xw", "b"], ["qkv"]),
                 node("Split", ["qkv"], list("qkv"), axis=2, num_outputs=3),
                 node("MultiHeadAttention", ["q", "k", "v"], ["heads"], domain=MICROSOFT,
                      num_heads=case.Hq)]
    nodes += [node("MatMul", ["heads", "w_out"], ["y"]), node("Add", ["y", "b_out"], ["out"])]
    out = data.out("layer", data.x.shape)
    return _run(nodes, {"x": data.x}, out, lambda: out, threads, constants=constants)


FORMS = {"ort-attention": _attention,
         "ort-attention-folded": functools.partial(_attention, folded=True),
         "ort-mha": _mha, "ort-gqa": _gqa, "ort-loop": _loop}
