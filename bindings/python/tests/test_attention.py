# SPDX-License-Identifier: MIT
"""attention() against float64, option by option."""
import numpy as np
import pytest

import attn
import reference
from reference import agree

RULES = {
    "plain": {},
    "scale": {"scale": 0.3},
    "top_left": {"causal": "top_left"},
    "bottom_right": {"causal": "bottom_right"},
    "window": {"window": (3, 1)},
    "window_left": {"window": (4, -1), "causal": "bottom_right"},
    "chunk": {"chunk": 4, "causal": "top_left"},
    "softcap": {"softcap": 2.0},
    "alibi": {"alibi": [0.5, 0.25, 0.125, 0.0625]},
    "sinks": {"sinks": [0.5, -1.0, 2.0, float("-inf")]},
    "kv_lens": {"kv_lens": [3, 13]},
    "kv_range": {"kv_starts": [2, 0], "kv_lens": [9, 0], "causal": "bottom_right"},
    "positions": {"positions": [2, 7], "causal": "bottom_right"},
}


@pytest.mark.parametrize("engine", ["blas", "vector"])
@pytest.mark.parametrize("name", RULES)
def test_rules(draw, name, engine):
    q, k, v = draw(2, 4, 9, 8), draw(2, 2, 13, 8), draw(2, 2, 13, 6)
    out, weights, lse, tolerance = reference.attention(q, k, v, **RULES[name])
    got = attn.attention(q, k, v, engine=engine, return_weights=True, return_lse=True,
                         **RULES[name])
    agree(got[0], out, tolerance)
    agree(got[1], weights, tolerance)
    agree(got[2], lse, tolerance)
    alone = attn.attention(q, k, v, engine=engine, **RULES[name])
    np.testing.assert_array_equal(alone, got[0])


@pytest.mark.parametrize("shape", [(2, 4, 9, 13), (1, 4, 9, 13), (2, 1, 9, 13), (1, 1, 9, 1),
                                   (9, 13), (4, 1, 13), (13,), ()])
@pytest.mark.parametrize("kind", ["bool", "float", "bias"])
def test_masks_broadcast(draw, shape, kind):
    q, k, v = draw(2, 4, 9, 8), draw(2, 4, 13, 8), draw(2, 4, 13, 8)
    numbers = draw(*shape)
    if kind == "bool":
        options = {"mask": np.asarray(numbers > -0.5)}
    elif kind == "float":
        options = {"mask": np.asarray(np.where(numbers < -0.5, -np.inf, numbers), np.float32)}
    else:
        options = {"bias": np.asarray(numbers, np.float32), "mask": draw(9, 13) > 0}
    out, _, _, tolerance = reference.attention(q, k, v, **options)
    agree(attn.attention(q, k, v, **options), out, tolerance)


def test_mask_views(draw):
    """Any strides, without a copy of the mask's meaning."""
    q, k, v = draw(1, 2, 9, 8), draw(1, 2, 13, 8), draw(1, 2, 13, 8)
    off_grid = np.zeros((9, 13), [("a", np.int8), ("x", np.float32)])["x"]
    off_grid[:] = draw(9, 13)
    for mask in (off_grid, (draw(13, 9) > 0).T, (draw(9, 26) > 0)[:, ::-2], draw(13, 9).T,
                 np.broadcast_to(draw(9, 1), (9, 13))):
        out, _, _, tolerance = reference.attention(q, k, v, mask=mask)
        agree(attn.attention(q, k, v, mask=mask), out, tolerance)


def test_segments(draw):
    q, k, v = draw(2, 2, 6, 8), draw(2, 2, 6, 8), draw(2, 2, 6, 8)
    ids = np.array([[0, 0, 1, 1, 1, 2], [5, 5, 5, 5, 7, 9]])
    out, _, _, tolerance = reference.attention(q, k, v, segments=(ids, ids))
    agree(attn.attention(q, k, v, segments=ids), out, tolerance)
    other = np.array([[0, 1, 1, 1, 2, 2], [5, 5, 6, 6, 9, 9]], np.int32)
    out, _, _, tolerance = reference.attention(q, k, v, segments=(ids, other))
    agree(attn.attention(q, k, v, segments=(ids, other)), out, tolerance)


def test_layouts_and_ranks(draw):
    q, k, v = draw(2, 4, 9, 8), draw(2, 2, 13, 8), draw(2, 2, 13, 6)
    out = attn.attention(q, k, v)
    swapped = [np.ascontiguousarray(a.swapaxes(1, 2)) for a in (q, k, v)]
    got, weights, lse = attn.attention(*swapped, layout="blhd", return_weights=True,
                                       return_lse=True)
    np.testing.assert_array_equal(got.swapaxes(1, 2), out)
    assert weights.shape == (2, 4, 9, 13) and lse.shape == (2, 4, 9)
    three = attn.attention(q[0], k[0], v[0], return_weights="mean", return_lse=True)
    np.testing.assert_array_equal(three[0], out[0])
    assert three[1].shape == (9, 13) and three[2].shape == (4, 9)
    np.testing.assert_array_equal(
        attn.attention(*(a[0] for a in swapped), layout="blhd").swapaxes(0, 1), out[0])
    for layout in ("bhld", "blhd"):
        one = attn.attention(q[0, 0], k[0, 0], v[0, 0], layout=layout, return_weights=True,
                             return_lse=True)
        agree(one[0], out[0, 0].astype(float), 1e-5)
        assert one[1].shape == (9, 13) and one[2].shape == (9,)
        mean = attn.attention(q[0, 0], k[0, 0], v[0, 0], layout=layout, return_weights="mean")[1]
        np.testing.assert_array_equal(mean, one[1])


@pytest.mark.parametrize("layout", ["bhld", "blhd"])
def test_views_are_read_in_place(draw, layout, monkeypatch):
    """Strides that libattn can read cost no copy, and give what packed copies give."""
    base = draw(3, 40, 3, 6, 24)
    views = [base[::2, 3:20, n, ::2, 2:18] for n in range(3)]  # (B, L, H, D)
    views = [views[0], np.broadcast_to(views[1][:1], views[1].shape), views[2][::-1]]
    if layout == "bhld":
        views = [a.swapaxes(1, 2) for a in views]
    wanted = attn.attention(*(a.copy() for a in views), layout=layout)
    monkeypatch.setattr(attn._arrays, "copied", None)
    room = np.full((5, *wanted.shape[1:-1], 20), 7, np.float32)
    out = room[1:5:2, ..., 2:18]
    assert attn.attention(*views, layout=layout, out=out) is out
    np.testing.assert_array_equal(out, wanted)
    assert (room[::2] == 7).all() and (room[1::2, ..., :2] == 7).all()
    assert (room[1::2, ..., 18:] == 7).all()


def test_other_views_are_copied(draw):
    q, k, v = draw(2, 4, 9, 8), draw(2, 4, 9, 8), draw(2, 4, 9, 8)
    wanted = attn.attention(q, k, v)
    odd = np.frombuffer(b"\0" + k.tobytes(), np.uint8)[1:].view(np.float32).reshape(k.shape)
    assert not odd.flags.aligned
    records = np.zeros(q.shape, [("a", np.int8), ("x", np.float32)])
    records["x"] = q
    for views in ((np.asfortranarray(q), k, v), (q, k[:, :, ::-1][:, :, ::-1], v),
                  (q, odd, v), (records["x"], k, v),
                  (q, k, np.repeat(v, 2, axis=-1)[..., ::2])):
        np.testing.assert_array_equal(attn.attention(*views), wanted)
    backwards = k[:, :, ::-1], v[:, :, ::-1]
    agree(attn.attention(q, *backwards), wanted.astype(float), 1e-5)
    same_key = np.broadcast_to(k[:, :, :1], k.shape)
    np.testing.assert_array_equal(attn.attention(q, same_key, v),
                                  attn.attention(q, same_key.copy(), v))
    same_key = np.broadcast_to(k[:, :1], k.shape)  # as (B, L, H, D)
    np.testing.assert_array_equal(attn.attention(q, same_key, v, layout="blhd"),
                                  attn.attention(q, same_key.copy(), v, layout="blhd"))


@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_packed_sequences(draw, kind):
    lengths_q, lengths_k = [3, 0, 5], [4, 2, 5]
    cu_q, cu_k = (np.cumsum([0, *n]).astype(kind) for n in (lengths_q, lengths_k))
    q, k, v = draw(10, 4, 8), draw(11, 2, 8), draw(11, 2, 8)  # q has 2 tokens too many
    out = np.full((10, 4, 8), 7, np.float32)
    got, lse = attn.attention(q, k, v, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, out=out,
                              causal="bottom_right", return_lse=True)
    assert got is out and lse.shape == (4, 10) and (out[8:] == 7).all()
    for n in range(3):
        rows, keys = slice(*cu_q[n:n + 2]), slice(*cu_k[n:n + 2])
        item = [a.swapaxes(0, 1)[None] for a in (q[rows], k[keys], v[keys])]
        wanted, _, wanted_lse, tolerance = reference.attention(*item, causal="bottom_right")
        agree(out[rows].swapaxes(0, 1)[None], wanted, tolerance)
        agree(lse[:, rows][None], wanted_lse, tolerance)
    # views: tokens of a joined projection
    joined = draw(11, 8, 24)
    views = [joined[:10, :4, :8], joined[:, 4:6, 8:16], joined[:, 6:8, 16:]]
    np.testing.assert_array_equal(
        attn.attention(*views, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k)[:8],
        attn.attention(*(a.copy() for a in views), cu_seqlens_q=cu_q, cu_seqlens_k=cu_k)[:8])
    # one side packed
    padded = draw(3, 2, 6, 8), draw(3, 2, 6, 8)
    got = attn.attention(q, *padded, cu_seqlens_q=cu_q, kv_lens=[6, 1, 2])
    for n in range(3):
        rows = slice(*cu_q[n:n + 2])
        item = q[rows].swapaxes(0, 1)[None], padded[0][n:n + 1], padded[1][n:n + 1]
        wanted, _, _, tolerance = reference.attention(*item, kv_lens=[[6, 1, 2][n]])
        agree(got[rows].swapaxes(0, 1)[None], wanted, tolerance)


@pytest.mark.parametrize("seen, given, error", [
    ({"causal": True}, {"causal": 1}, ValueError),
    ({"causal": True}, {"causal": np.True_}, ValueError),
    ({"causal": False}, {"causal": 0.0}, ValueError),
    ({"window": (2, 1)}, {"window": (2.0, 1)}, TypeError),
    ({"window": (2, 1)}, {"window": (2, 1 + 0j)}, TypeError),
    ({"chunk": 2}, {"chunk": 2.0}, TypeError),
    ({"softcap": 2.0}, {"softcap": 2 + 0j}, TypeError),
    ({"threads": 1}, {"threads": 1.0}, TypeError)])
@pytest.mark.parametrize("mask", [None, np.ones((6, 6), bool)])
def test_what_is_refused_does_not_depend_on_earlier_calls(draw, seen, given, error, mask):
    """Equal keys of a cache need not be equally right."""
    q = draw(1, 2, 6, 8)
    for first in ({}, seen):
        attn.clear_cache()
        attn.attention(q, q, q, mask=mask, **first)
        with pytest.raises(error):
            attn.attention(q, q, q, mask=mask, **given)
        with pytest.raises(error):
            attn.MultiHeadAttention(16, 2, **given)


def test_causal_true_only_where_it_is_clear(draw):
    q, k = draw(1, 2, 5, 8), draw(1, 2, 7, 8)
    np.testing.assert_array_equal(attn.attention(q, q, q, causal=True),
                                  attn.attention(q, q, q, causal="top_left"))
    np.testing.assert_array_equal(attn.attention(q, k, k, causal=True, positions=2),
                                  attn.attention(q, k, k, causal="bottom_right"))
    tokens, cu = draw(5, 2, 8), [0, 2, 5]
    attn.attention(tokens, tokens, tokens, causal=True, cu_seqlens_q=cu, cu_seqlens_k=cu)
    for arguments, options in (((q, k, k), {}), ((q, q, q), {"kv_lens": 3}),
                               ((tokens,) * 3, {"cu_seqlens_q": cu, "cu_seqlens_k": [0, 3, 5]})):
        with pytest.raises(ValueError, match="two meanings"):
            attn.attention(*arguments, causal=True, **options)


def test_scores_at_each_stage(draw):
    q, k = draw(1, 2, 4, 8), draw(1, 2, 6, 8)
    exact = 8 ** -0.5 * q.astype(float) @ k.astype(float).swapaxes(2, 3)
    raw, capped, masked = (attn.attention(q, k, k, softcap=1.5, causal="top_left",
                                          return_scores=stage)[1]
                           for stage in ("raw", "capped", "masked"))
    capped_exact = 1.5 * np.tanh(exact / 1.5)
    tolerance = 12 * 2.0 ** -24 * 20  # 10 roundings and tanh's, of sums of products below 20
    agree(raw, exact, tolerance)
    agree(capped, capped_exact, tolerance)
    agree(masked, np.where(np.tri(4, 6, dtype=bool), capped_exact, -np.inf), tolerance)
    _, mean, weights = (*attn.attention(q, k, k, return_weights="mean"),
                        attn.attention(q, k, k, return_weights=True)[1])
    agree(mean, weights.mean(1).astype(float), 4 * 2.0 ** -24)


def test_nothing_to_see(draw):
    q, k = draw(2, 2, 3, 8), draw(2, 2, 5, 8)
    out, weights, lse = attn.attention(q, k, k, kv_lens=[0, 5], return_weights=True,
                                       return_lse=True)
    assert (out[0] == 0).all() and (weights[0] == 0).all() and (lse[0] == -np.inf).all()
    assert (out[1] != 0).all()
    assert (attn.attention(q, k[:, :, :0], k[:, :, :0]) == 0).all()
    assert attn.attention(q[:0], k[:0], k[:0]).shape == (0, 2, 3, 8)
    assert attn.attention(q[:, :, :0], k, k).shape == (2, 2, 0, 8)


def test_nan_stays_in_its_row(draw):
    q, k = draw(1, 1, 3, 8), draw(1, 1, 5, 8)
    q[0, 0, 1, 0] = k[0, 0, 4, 0] = np.nan
    out = attn.attention(q, k, k, kv_lens=4)
    assert np.isnan(out[0, 0, 1]).all() and np.isfinite(out[0, 0, [0, 2]]).all()


def test_decoding_with_a_cache(draw):
    """Token by token, in views and with lengths, as all at once."""
    q, k, v = draw(2, 4, 6, 8), draw(2, 2, 6, 8), draw(2, 2, 6, 8)
    wanted, _, _, tolerance = reference.attention(q, k, v, causal="top_left")
    cache = np.full((2, 2, 2, 16, 8), np.nan, np.float32)
    for n in range(6):
        cache[0, :, :, n], cache[1, :, :, n] = k[:, :, n], v[:, :, n]
        step = q[:, :, n:n + 1]
        views = attn.attention(step, cache[0][:, :, :n + 1], cache[1][:, :, :n + 1])
        lengths = attn.attention(step, *cache, kv_lens=n + 1, causal="bottom_right")
        agree(views, wanted[:, :, n:n + 1], tolerance)
        agree(lengths, wanted[:, :, n:n + 1], tolerance)


def test_merge(draw):
    q, k, v = draw(2, 4, 5, 8), draw(2, 4, 9, 8), draw(2, 4, 9, 6)
    sinks = [0.5, -1.0, 2.0, 0.0]
    wanted, _, wanted_lse, tolerance = reference.attention(q, k, v)
    parts = [attn.attention(q, k[:, :, a:b], v[:, :, a:b], return_lse=True)
             for a, b in ((0, 4), (4, 9))]
    (out, lse), part = parts
    attn.merge(out, lse, *part)
    merged = 1e-4 + 2.0 ** -23 * np.abs(wanted_lse).max()  # attn_merge() promises this
    agree(out, wanted, tolerance + merged * np.abs(v).max())
    agree(lse, wanted_lse, tolerance + merged)
    attn.merge_sinks(out, lse, sinks)
    with_sinks, _, _, tolerance = reference.attention(q, k, v, sinks=sinks)
    agree(out, with_sinks, tolerance + merged * np.abs(v).max())


def test_alibi_slopes(draw):
    np.testing.assert_array_equal(attn.alibi_slopes(4), np.float32([0.25, 2**-4, 2**-6, 2**-8]))
    q = draw(1, 4, 5, 8)
    np.testing.assert_array_equal(attn.attention(q, q, q, alibi=True),
                                  attn.attention(q, q, q, alibi=attn.alibi_slopes(4)))
