# SPDX-License-Identifier: MIT
"""OpenVINO: the ScaledDotProductAttention operator in a model of its own, compiled for latency in
float32; inputs and output are the arrays themselves."""
import functools

import numpy as np
import openvino as ov
import openvino.opset13 as ops
from openvino import Type
from openvino._pyopenvino import InferRequest

from cases import pack_items
from measure import Run, Skip


def versions():
    return {"openvino": ov.__version__.split("-")[0]}


def set_threads(threads):
    """Nothing: each compiled model has its own."""


# ------------------------------------------------------------------ models

@functools.cache
def _core():
    return ov.Core()


def _compile(outputs, parameters, threads, sinks=()):
    model = ov.Model([ops.result(o) for o in outputs], list(sinks), parameters)
    # Threads are not pinned: pinning would move the others' caller to one core too.
    return _core().compile_model(model, "CPU", {
        "PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": 1, "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32",
        "ENABLE_CPU_PINNING": False})


def _request(compiled, inputs, out):
    """(call, request): inputs and output bound without a copy; they must be kept alive."""
    request = compiled.create_infer_request()
    for i, array in enumerate(inputs):
        request.set_input_tensor(i, ov.Tensor(array, shared_memory=True))
    request.set_output_tensor(0, ov.Tensor(out, shared_memory=True))
    # The Python class would look at inputs and copy outputs; its base only infers.
    return functools.partial(InferRequest.infer, request, {}, True, False), request


def _parameter(array):
    return ops.parameter(list(array.shape), Type(array.dtype))


def _run(node, parameters, inputs, out, result, threads):
    call, request = _request(_compile([node], parameters, threads), inputs, out)
    return Run(call=call, result=result, keep=(request, inputs))


def _number(*values):
    return ops.constant(np.array(values, np.int64))


def _repeat(node, case):
    """(1, Hk, L, D) -> (1, Hq, L, D): each key/value head for its group, as exported models say
    it and the plugin looks for it."""
    group = case.Hq // case.Hk
    length = ops.gather(ops.shape_of(node), _number(2, 3), ops.constant(np.array(0, np.int32)))
    wide = ops.broadcast(ops.unsqueeze(node, _number(2)),
                         ops.concat([_number(1, case.Hk, group), length], 0),
                         broadcast_spec="BIDIRECTIONAL")
    return ops.reshape(wide, _number(0, case.Hq, -1, case.D), True)


# ------------------------------------------------------------------ forms

def _sdpa(case, data, threads):
    if case.layer:
        return _layer(case, data, threads)
    if case.group == "varlen":
        raise Skip("openvino-loop does this")
    inputs = [data.q, data.k, data.v]
    masked = case.lengths or case.window
    if masked:
        inputs.append(data.mask())
    parameters = [_parameter(a) for a in inputs]
    nodes = list(parameters)
    if case.grouped:
        nodes[1:3] = [_repeat(n, case) for n in nodes[1:3]]
    node = ops.scaled_dot_product_attention(*nodes, causal=case.causal and not masked)
    out = data.out("heads", data.q.shape)
    return _run(node, parameters, inputs, out, lambda: out, threads)


def _folded(case, data, threads):
    if not case.grouped or case.causal:
        raise Skip("for grouped heads without a causal rule")
    inputs = [data.q.reshape(1, case.Hk, -1, case.D), data.k, data.v]
    parameters = [_parameter(a) for a in inputs]
    out = data.out("heads", inputs[0].shape)
    return _run(ops.scaled_dot_product_attention(*parameters), parameters, inputs, out,
                lambda: out.reshape(data.q.shape), threads)


def _loop(case, data, threads):
    """Items without padding, one call each, of a model for each length."""
    if case.group != "varlen":
        raise Skip("for items without padding")
    calls, kept, outs = [], [], []
    for b, item in enumerate(zip(*(data.items(name) for name in "qkv"))):
        outs.append(data.out(("item", b), item[0].shape))
        parameters = [_parameter(a) for a in item]
        compiled = _compile([ops.scaled_dot_product_attention(*parameters)], parameters, threads)
        call, request = _request(compiled, item, outs[-1])
        calls.append(call)
        kept.append((request, item))
    return Run(call=lambda: [call() for call in calls], result=lambda: pack_items(case, outs),
               keep=tuple(kept))


def _cache(case, data, threads):
    """Decoding as OpenVINO's language models do: keys and values are the model's state, to which
    each call adds one. Before each visit the state is all but the last two of the keys: the
    untimed call adds one, and the timed one the last."""
    if not case.decode:
        raise Skip("for decoding")
    parameters = [ops.parameter([1, H, -1, case.D], Type.f32)
                  for H in (case.Hq, case.Hk, case.Hk)]
    beams = ops.parameter([-1], Type.i32)
    nodes, sinks = [parameters[0]], []
    for name, new in zip("kv", parameters[1:]):
        empty = ops.constant(np.zeros((1, case.Hk, 0, case.D), np.float32))
        old = ops.read_value(empty, name, Type.f32, ov.PartialShape([-1, case.Hk, -1, case.D]))
        old = ops.gather(old, beams, ops.constant(np.array(0, np.int32)))
        joined = ops.concat([old, new], 2)
        sinks.append(ops.assign(joined, name))
        nodes.append(_repeat(joined, case) if case.grouped else joined)
    compiled = _compile([ops.scaled_dot_product_attention(*nodes)], [*parameters, beams], threads,
                        sinks)
    out = data.out("heads", data.q.shape)
    steps = [{n: data.copy((n, t), getattr(data, n)[:, :, t:t + 1]) for n in "kv"}
             for t in (case.K - 2, case.K - 1)]
    first = {n: data.copy(("first", n), getattr(data, n)[:, :, :case.K - 2]) for n in "kv"}
    beam = np.zeros(1, np.int32)
    infer, request = _request(compiled, [data.q, *steps[0].values(), beam], out)
    tensors = [[ov.Tensor(a, shared_memory=True) for a in step.values()] for step in steps]

    def use(step):
        for i, tensor in enumerate(tensors[step], 1):
            request.set_input_tensor(i, tensor)

    def prepare():
        request.reset_state()
        for state in request.query_state():
            state.state = ov.Tensor(first[state.name], shared_memory=True)
        use(0)

    def between():
        use(1)
    return Run(call=infer, result=lambda: out, prepare=prepare, between=between, calls=1,
               owned=case.kv_bytes(), keep=(request, steps, tensors, beam))


def _layer(case, data, threads):
    """Weights are constants of the model: compiling packs them."""
    L, E, H, D = case.L, case.E, case.Hq, case.D

    def project(node, weight, bias):
        return ops.add(ops.matmul(node, ops.constant(weight), False, False), ops.constant(bias))

    x = _parameter(data.x)
    heads = [ops.transpose(ops.reshape(project(x, w, b), _number(1, L, H, D), False),
                           _number(0, 2, 1, 3))
             for w, b in zip(data.weights[:3], data.biases[:3])]
    joined = ops.reshape(ops.transpose(ops.scaled_dot_product_attention(*heads),
                                       _number(0, 2, 1, 3)), _number(1, L, E), False)
    out = data.out("layer", data.x.shape)
    return _run(project(joined, data.weights[3], data.biases[3]), [x], [data.x], out, lambda: out,
                threads)


FORMS = {"openvino": _sdpa, "openvino-folded": _folded, "openvino-loop": _loop,
         "openvino-cache": _cache}
