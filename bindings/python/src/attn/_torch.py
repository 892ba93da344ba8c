# SPDX-License-Identifier: MIT
"""What a torch.nn.MultiheadAttention holds, without importing torch."""
from __future__ import annotations

from ._arrays import as_array


def torch_weights(module) -> tuple[dict, list]:
    """(arguments of MultiHeadAttention, arguments of its set_weights())."""
    for name in ("embed_dim", "num_heads", "kdim", "vdim", "batch_first", "out_proj"):
        if not hasattr(module, name):
            raise TypeError(f"{type(module).__name__} is no torch.nn.MultiheadAttention: "
                            f"it has no {name}")
    if module.bias_k is not None or module.bias_v is not None:
        raise ValueError("add_bias_kv=True cannot be had here: it adds a key to each item")
    if module.add_zero_attn:
        raise ValueError("add_zero_attn=True cannot be had here: it adds a key to each item")
    if module.training and module.dropout > 0:
        raise ValueError("there is no dropout here: call eval() of the module first")
    width = module.embed_dim
    if module.in_proj_weight is not None:  # all rows of Q, then of K, then of V
        joined = _array(module.in_proj_weight, "in_proj_weight")
        matrices = [joined[n * width:(n + 1) * width] for n in range(3)]
    else:
        matrices = [_array(getattr(module, name), name) for name in
                    ("q_proj_weight", "k_proj_weight", "v_proj_weight")]
    biases = [None] * 3
    if module.in_proj_bias is not None:
        joined = _array(module.in_proj_bias, "in_proj_bias")
        biases = [joined[n * width:(n + 1) * width] for n in range(3)]
    out = module.out_proj
    weights = [array for pair in zip(matrices, biases) for array in pair]
    weights += [_array(out.weight, "out_proj.weight"),
                None if out.bias is None else _array(out.bias, "out_proj.bias")]
    settings = {"embed_dim": width, "num_heads": module.num_heads, "kdim": module.kdim,
                "vdim": module.vdim, "batch_first": module.batch_first}
    return settings, weights


def _array(parameter, name: str):
    return as_array(parameter.detach(), name)
