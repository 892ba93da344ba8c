# SPDX-License-Identifier: MIT
"""MultiHeadAttention against float64."""
import numpy as np
import pytest

import attn
import reference
from reference import U, agree
from test_arrays import Tensor


class Weights:
    """Weights (E_in, N) and biases of a layer, and what it computes in float64."""

    def __init__(self, draw, E=12, Hq=3, Hk=3, kdim=12, vdim=12, Dk=4, Dv=4, E_out=12):
        self.Hq, self.Hk, self.Dk, self.Dv = Hq, Hk, Dk, Dv
        shapes = ((E, Hq * Dk), (kdim, Hk * Dk), (vdim, Hk * Dv), (Hq * Dv, E_out))
        self.arrays = [a for n, m in shapes for a in (draw(n, m), draw(m))]

    def heads(self, x, n, count, width):
        """(B, H, L, D), and how far float32 may be: a sum of E_in products and a bias."""
        w, b = (a.astype(float) for a in self.arrays[2 * n:2 * n + 2])
        y, size = x.astype(float) @ w + b, np.abs(x).astype(float) @ np.abs(w) + np.abs(b)
        split = y.reshape(*y.shape[:2], count, width).swapaxes(1, 2)
        return split, (w.shape[0] + 2) * U * size.max()

    def attend(self, x, k, v, **rules):
        """(output, tolerance)."""
        q, error_q = self.heads(x, 0, self.Hq, self.Dk)
        k, error_k = self.heads(k, 1, self.Hk, self.Dk)
        v, error_v = self.heads(v, 2, self.Hk, self.Dv)
        out, _, _, tolerance = reference.attention(q, k, v, **rules)
        # Errors of q and k move scores, and these the weights: twice, relatively.
        scores = self.Dk ** 0.5 * (error_q * np.abs(k).max() + error_k * np.abs(q).max())
        tolerance = tolerance + error_v + 2 * scores * np.abs(v).max()
        joined = out.swapaxes(1, 2).reshape(*x.shape[:2], -1)
        w, b = (a.astype(float) for a in self.arrays[6:])
        size = np.abs(joined) @ np.abs(w) + np.abs(b)
        spread = np.abs(w).sum(0).max()
        return joined @ w + b, tolerance * spread + (w.shape[0] + 2) * U * size.max()

    def put(self, mha, order="in_out"):
        arrays = [a.T if order == "out_in" and a.ndim == 2 else a for a in self.arrays]
        return mha.set_weights(*arrays, order=order)


@pytest.mark.parametrize("order", ["in_out", "out_in"])
@pytest.mark.parametrize("engine", ["blas", "vector"])
def test_self_attention(draw, order, engine):
    weights, x = Weights(draw), draw(2, 7, 12)
    mha = weights.put(attn.MultiHeadAttention(12, 3, causal=True, engine=engine), order)
    wanted, tolerance = weights.attend(x, x, x, causal="top_left")
    out = np.empty_like(x)
    assert mha(x, out=out) is out
    agree(out, wanted, tolerance)
    np.testing.assert_array_equal(mha(x[0]), mha(x[:1])[0])
    np.testing.assert_array_equal(mha(x.repeat(2, -1)[..., ::2]), out)
    np.testing.assert_array_equal(mha(Tensor(x)), out)
    np.testing.assert_array_equal(mha(Tensor(x), Tensor(x), Tensor(x)), mha(x, x, x.copy()))


def test_cross_grouped_other_widths(draw):
    weights = Weights(draw, E=12, Hq=4, Hk=2, kdim=10, vdim=10, Dk=5, Dv=3, E_out=6)
    mha = weights.put(attn.MultiHeadAttention(12, 4, num_kv_heads=2, kdim=10, vdim=10, head_dim=5,
                                              value_dim=3, out_dim=6))
    x, kv, mask = draw(2, 7, 12), draw(2, 9, 10), draw(7, 9) > -0.5
    wanted, tolerance = weights.attend(x, kv, kv, mask=mask)
    agree(mha(x, kv, mask=mask), wanted, tolerance)
    out, A, lse = mha(x, kv, mask=mask, return_weights=True, return_lse=True)
    assert out.shape == (2, 7, 6) and A.shape == (2, 4, 7, 9) and lse.shape == (2, 4, 7)
    agree(A.sum(-1), np.ones((2, 4, 7)), 9 * U)
    one = mha(x[0], kv[0], mask=mask, return_weights="mean", return_lse=True)
    assert [a.shape for a in one] == [(7, 6), (7, 9), (4, 7)]
    with pytest.raises(ValueError, match="width 10: give a key|query must be|key must be"):
        mha(x)


def test_values_of_their_own(draw):
    weights = Weights(draw, kdim=10, vdim=8)
    mha = weights.put(attn.MultiHeadAttention(12, 3, kdim=10, vdim=8))
    x, key, value = draw(2, 7, 12), draw(2, 9, 10), draw(2, 9, 8)
    wanted, tolerance = weights.attend(x, key, value, kv_lens=[4, 9])
    out, A = mha(x, key, value, kv_lens=[4, 9], return_weights=True)
    agree(out, wanted, tolerance)
    assert (A[0, ..., 4:] == 0).all()
    one, A = mha(x[1], key[1], value[1], return_weights=True)
    agree(one, wanted[1], tolerance)  # not the same bits: sgemm of half the rows
    assert A.shape == (3, 7, 9)
    weights = Weights(draw)
    mha = weights.put(attn.MultiHeadAttention(12, 3))
    key, value = draw(2, 9, 12), draw(2, 9, 12)
    wanted, tolerance = weights.attend(x, key, value)
    agree(mha(x, key, value), wanted, tolerance)


def test_without_output_projection(draw):
    weights, x = Weights(draw), draw(2, 7, 12)
    mha = attn.MultiHeadAttention(12, 3)
    with pytest.raises(attn.StateError):
        mha(x)
    mha.set_weights(*weights.arrays[:6], order="in_out")
    heads = [weights.heads(x, n, 3, 4)[0] for n in range(3)]
    wanted = reference.attention(*heads)[0].swapaxes(1, 2).reshape(2, 7, 12)
    weights.arrays[6:] = np.eye(12, dtype=np.float32), np.zeros(12, np.float32)
    _, tolerance = weights.attend(x, x, x)
    agree(mha(x), wanted, tolerance)
    agree(mha(x, x, x.copy()), wanted, tolerance)


def test_decoding_with_a_cache(draw):
    """Prefill and single steps, projected straight into the cache."""
    weights, x = Weights(draw, Hq=4, Hk=2, Dk=3, Dv=3), draw(2, 8, 12)
    mha = weights.put(attn.MultiHeadAttention(12, 4, num_kv_heads=2, causal="bottom_right"))
    wanted, tolerance = weights.attend(x, x, x, causal="top_left")
    k_cache, v_cache = np.full((2, 2, 2, 16, 3), np.nan, np.float32)
    for begin, end in ((0, 5), (5, 6), (6, 7), (7, 8)):
        new = x[:, begin:end]
        mha.project("k", new, out=k_cache[:, :, begin:end])
        mha.project("v", new, out=v_cache[:, :, begin:end])
        agree(mha.attend(new, k_cache, v_cache, kv_lens=end), wanted[:, begin:end], tolerance)
    assert np.isnan(k_cache[:, :, 8:]).all()


def test_packed_sequences(draw):
    weights, x, kv = Weights(draw), draw(9, 12), draw(7, 12)
    mha = weights.put(attn.MultiHeadAttention(12, 3))
    cu, cu_k = [0, 4, 9], [0, 2, 7]
    alone, cross = mha(x, cu_seqlens_q=cu, cu_seqlens_k=cu), \
        mha(x, kv, cu_seqlens_q=cu, cu_seqlens_k=cu_k)
    for n in range(2):
        rows, keys = x[None, cu[n]:cu[n + 1]], kv[None, cu_k[n]:cu_k[n + 1]]
        agree(alone[None, cu[n]:cu[n + 1]], *weights.attend(rows, rows, rows))
        agree(cross[None, cu[n]:cu[n + 1]], *weights.attend(rows, keys, keys))


def test_length_first(draw):
    weights, x, kv = Weights(draw), draw(2, 7, 12), draw(2, 9, 12)
    first = weights.put(attn.MultiHeadAttention(12, 3))
    mha = weights.put(attn.MultiHeadAttention(12, 3, batch_first=False))
    swapped = x.swapaxes(0, 1).copy(), kv.swapaxes(0, 1).copy()
    np.testing.assert_array_equal(mha(swapped[0]).swapaxes(0, 1), first(x))
    out, A = mha(*swapped, return_weights=True, out=np.empty((7, 2, 12), np.float32))
    np.testing.assert_array_equal(out.swapaxes(0, 1), first(x, kv))
    assert A.shape == (2, 3, 7, 9)
    np.testing.assert_array_equal(mha(*swapped, swapped[1].copy()).swapaxes(0, 1),
                                  first(x, kv, kv.copy()))
    np.testing.assert_array_equal(mha(x[0]), first(x[0]))


def test_weights_in_larger_arrays(draw):
    weights, x = Weights(draw), draw(2, 7, 12)
    wanted = weights.put(attn.MultiHeadAttention(12, 3))(x)
    weights.arrays = [np.pad(a, 3)[tuple(slice(3, 3 + n) for n in a.shape)] for a in weights.arrays]
    for order in ("in_out", "out_in"):
        np.testing.assert_array_equal(weights.put(attn.MultiHeadAttention(12, 3), order)(x), wanted)


def test_weights_are_copied(draw):
    weights, x = Weights(draw), draw(2, 7, 12)
    mha = weights.put(attn.MultiHeadAttention(12, 3))
    wanted = mha(x)
    for a in weights.arrays:
        a[:] = np.nan
    np.testing.assert_array_equal(mha(x), wanted)


def test_wrong_arguments(draw):
    for arguments in ((10, 3), (12, 0), (12, 5)):
        with pytest.raises(ValueError, match="num_heads"):
            attn.MultiHeadAttention(*arguments)
    with pytest.raises(ValueError, match="multiple"):
        attn.MultiHeadAttention(12, 3, num_kv_heads=2)
    weights, x = Weights(draw), draw(2, 7, 12)
    mha = weights.put(attn.MultiHeadAttention(12, 3))
    arrays = weights.arrays
    for n, wrong, error in ((0, draw(11, 12), ValueError), (0, None, ValueError),
                            (1, draw(11), ValueError), (2, arrays[2].astype(float), TypeError),
                            (7, arrays[7].astype(">f4"), TypeError)):
        with pytest.raises(error, match=f"[wb]_{'qqkkvvoo'[n]}"):
            mha.set_weights(*arrays[:n], wrong, *arrays[n + 1:], order="in_out")
    with pytest.raises(ValueError, match="'in_out', 'out_in'"):
        mha.set_weights(*arrays, order="io")
    for call, text in ((lambda: mha(draw(2, 7, 11)), "query must be"),
                       (lambda: mha(x, draw(1, 7, 12)), "same batch"),
                       (lambda: mha(x, draw(2, 7, 12), draw(2, 6, 12)), "k and v must"),
                       (lambda: mha(x, out=np.empty((2, 7, 11), np.float32)), "out must have"),
                       (lambda: mha(x, out=x), "overlap"),
                       (lambda: mha(x, kv_lens=8), "key range"),
                       (lambda: mha(x, mask=draw(7, 6) > 0), "broadcast"),
                       (lambda: mha.project("x", x), "'q', 'k', 'v', 'o'"),
                       (lambda: mha.project("q", x, out=draw(2, 7, 12)), "out must have")):
        with pytest.raises(ValueError, match=text):
            call()
    with pytest.raises(TypeError, match="no such argument: causal"):
        mha(x, causal=True)
    causal = weights.put(attn.MultiHeadAttention(12, 3, causal=True))
    with pytest.raises(ValueError, match="two meanings"):
        causal(x, draw(2, 9, 12))
