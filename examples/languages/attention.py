# SPDX-License-Identifier: MIT
"""Multi-head self-attention in Python: 4 tokens of width 8, 2 heads of 4."""
import attn
import numpy as np

L, E, HEADS = 4, 8, 2


def fill(rows, columns, seed):
    """Eighths between -5/8 and 5/8: the same floats in every language."""
    n = np.arange(1, rows * columns + 1)
    return ((n * seed % 11 - 5) / 8).astype(np.float32).reshape(rows, columns)


mha = attn.MultiHeadAttention(E, HEADS)
w_q, w_k, w_v, w_o = (fill(E, E, seed) for seed in (2, 3, 4, 5))
mha.set_weights(w_q, None, w_k, None, w_v, None, w_o, None, order="in_out")
for row in mha(fill(L, E, 7)):
    print(" ".join(f"{y:9.6f}" for y in row))
