# SPDX-License-Identifier: MIT
"""PyTorch: scaled_dot_product_attention (flash attention on the CPU), and forms that are faster
where they apply."""
import os
import shutil

import torch
import torch.nn.functional as F

from cases import pack_items
from measure import Run, Skip

# For good: entering it in each call would be timed.
torch.inference_mode().__enter__()


def versions():
    return {"torch": torch.__version__}


def set_threads(threads):
    torch.set_num_threads(threads)


def _tensors(data):
    return [torch.from_numpy(getattr(data, name)) for name in "qkv"]


def _returning(call, case, shape=None, finish=lambda out: out.numpy()):
    """A run whose result torch allocates anew each time."""
    nbytes = 4 * case.B * case.L * (case.E or case.Hq * case.D)

    def result():
        out = finish(call())
        return out.reshape(shape or out.shape)
    return Run(call=call, owned=nbytes, result=result)


def _sdpa(case, data, threads):
    if case.group == "varlen" or case.layer:
        raise Skip("torch-loop, torch-mha and torch-prepacked do this")
    q, k, v = _tensors(data)
    masked = case.lengths or case.window
    mask = torch.from_numpy(data.mask()) if masked else None
    causal = case.causal and not masked
    return _returning(lambda: F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=causal, enable_gqa=case.grouped), case)


def _folded(case, data, threads):
    """The queries of a group as more queries of one head: without a rule it is the same."""
    if not case.grouped or case.causal:
        raise Skip("for grouped heads without a causal rule")
    q, k, v = _tensors(data)
    q = q.view(1, case.Hk, -1, case.D)
    return _returning(lambda: F.scaled_dot_product_attention(q, k, v), case, data.q.shape)


def _loop(case, data, threads):
    if case.group != "varlen":
        raise Skip("for items without padding")
    items = [[torch.from_numpy(a) for a in item]
             for item in zip(*(data.items(name) for name in "qkv"))]
    return _returning(lambda: [F.scaled_dot_product_attention(*item) for item in items], case,
                      (case.B, case.Hq, case.L, case.D),
                      lambda outs: pack_items(case, [o.numpy() for o in outs]))


def _flex(case, data, threads):
    """flex_attention, compiled: it skips the blocks that a window hides."""
    if not case.window:
        raise Skip("for windows")
    if not shutil.which(os.environ.get("CXX", "g++")):
        raise Skip("torch.compile needs a C++ compiler")
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    torch._inductor.config.compile_threads = 1
    L, W = case.L, case.window
    blocks = create_block_mask(lambda b, h, i, j: (j <= i) & (i - j < W), None, None, L, L,
                               device="cpu")
    q, k, v = _tensors(data)
    torch._dynamo.reset()
    compiled = torch.compile(flex_attention, dynamic=False)
    return _returning(lambda: compiled(q, k, v, block_mask=blocks), case)


# ------------------------------------------------------------------ the layer

def _joined(data):
    """Weights as torch keeps them, (out, in): Q, K and V in one, and the output's."""
    w = [torch.from_numpy(a).t() for a in data.weights]
    b = [torch.from_numpy(a) for a in data.biases]
    return (torch.cat(w[:3]).contiguous(), torch.cat(b[:3]), w[3].contiguous(), b[3])


def _mha(case, data, threads):
    """nn.MultiheadAttention, its fast path."""
    if not case.layer:
        raise Skip("for the layer")
    module = torch.nn.MultiheadAttention(case.E, case.Hq, batch_first=True).eval()
    module.requires_grad_(False)
    w, b, w_out, b_out = _joined(data)
    module.in_proj_weight.copy_(w)
    module.in_proj_bias.copy_(b)
    module.out_proj.weight.copy_(w_out)
    module.out_proj.bias.copy_(b_out)
    x = torch.from_numpy(data.x)
    return _returning(lambda: module(x, x, x, need_weights=False)[0], case)


def _prepacked(case, data, threads):
    """Weights reordered for oneDNN before, as torch.compile does with frozen weights."""
    if not case.layer:
        raise Skip("for the layer")
    ops = torch.ops.mkldnn
    if not torch.backends.mkldnn.is_available() or not hasattr(ops, "_reorder_linear_weight"):
        raise Skip("this build of torch has no oneDNN")
    w, b, w_out, b_out = _joined(data)
    w, w_out = (ops._reorder_linear_weight(m, case.L) for m in (w, w_out))
    x = torch.from_numpy(data.x)
    L, E, H, D = case.L, case.E, case.Hq, case.D

    def call():
        joined = ops._linear_pointwise(x, w, b, "none", [], "")
        q, k, v = joined.view(1, L, 3, H, D).permute(2, 0, 3, 1, 4).unbind(0)
        heads = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(1, L, E)
        return ops._linear_pointwise(heads, w_out, b_out, "none", [], "")
    return _returning(call, case)


FORMS = {"torch": _sdpa, "torch-folded": _folded, "torch-loop": _loop, "torch-flex": _flex,
         "torch-mha": _mha, "torch-prepacked": _prepacked}
