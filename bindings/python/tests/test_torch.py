# SPDX-License-Identifier: MIT
"""Against PyTorch, and with its tensors."""
import numpy as np
import pytest

import attn
import reference
from reference import agree

torch = pytest.importorskip("torch")
F = torch.nn.functional


def both_errors(q, k, v, **rules):
    """How far two computations in float32 may be apart."""
    return 2 * reference.attention(*(a.numpy() for a in (q, k, v)), **rules)[3]


@pytest.mark.parametrize("options, rules", [
    ({}, {}), ({"is_causal": True}, {"causal": "top_left"}), ({"scale": 0.2}, {"scale": 0.2})])
@pytest.mark.parametrize("heads", [4, 2])
def test_scaled_dot_product_attention(draw, options, rules, heads):
    q, k, v = (torch.from_numpy(draw(2, h, 11, 8)) for h in (4, heads, heads))
    theirs = F.scaled_dot_product_attention(q, k, v, enable_gqa=heads != 4, **options)
    ours = attn.attention(q, k, v, **rules)
    assert isinstance(ours, np.ndarray)
    agree(ours, theirs.numpy().astype(float), both_errors(q, k, v, **rules))


def test_masks_have_the_same_meaning(draw):
    q, k = torch.from_numpy(draw(2, 4, 5, 8)), torch.from_numpy(draw(2, 4, 9, 8))
    for mask in (torch.from_numpy(draw(2, 1, 5, 9)) > -1, torch.from_numpy(draw(5, 9))):
        theirs = F.scaled_dot_product_attention(q, k, k, attn_mask=mask)
        agree(attn.attention(q, k, k, mask=mask), theirs.numpy().astype(float),
              both_errors(q, k, k, mask=mask.numpy()))


def test_tensors_are_shared(draw, monkeypatch):
    q = torch.from_numpy(draw(2, 5, 4, 8)).transpose(1, 2)
    out = torch.zeros(2, 4, 5, 8)
    wanted = attn.attention(q.contiguous(), q.contiguous(), q.contiguous())
    monkeypatch.setattr(attn._arrays, "copied", None)
    assert attn.attention(q, q, q, out=out) is out
    np.testing.assert_array_equal(out.numpy(), wanted)


@pytest.mark.parametrize("change, text", [
    (lambda t: t.double(), "float32, not float64"),
    (lambda t: t.half(), "float32, not float16"),
    (lambda t: t.bfloat16(), "k cannot be shared|k must be float32"),
    (lambda t: t.requires_grad_(), "grad"),
    (lambda t: t.to("meta"), "k cannot be shared|CPU"),
    (lambda t: t.to_sparse(), "k cannot be shared"),
])
def test_other_tensors_are_refused(draw, change, text):
    q = draw(2, 4, 5, 8)
    with pytest.raises(TypeError, match=text):
        attn.attention(q, change(torch.from_numpy(q.copy())), q)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("kdim, vdim", [(16, 16), (10, 10), (10, 6)])
def test_from_torch(draw, bias, batch_first, kdim, vdim):
    torch.manual_seed(3)
    module = torch.nn.MultiheadAttention(16, 4, bias=bias, kdim=kdim, vdim=vdim,
                                         batch_first=batch_first)
    if bias:
        torch.nn.init.normal_(module.in_proj_bias)
    mha = attn.MultiHeadAttention.from_torch(module)
    shape = (lambda n: (2, n)) if batch_first else (lambda n: (n, 2))
    inputs = [torch.from_numpy(draw(*shape(n), e)) for n, e in ((5, 16), (7, kdim), (7, vdim))]
    ignored = torch.from_numpy(draw(5, 7)) > 1  # of True = ignore
    with torch.no_grad():
        out, weights = module(*inputs, attn_mask=ignored, average_attn_weights=False)
        mean = module(*inputs, attn_mask=ignored)[1]
    ours = mha(*inputs, mask=~ignored, return_weights=True)
    # Sums of at most 16 products of numbers of size 1 to 4, three times one after the other.
    tolerance = 3 * 16 * 2.0 ** -24 * 16
    agree(ours[0], out.numpy().astype(float), tolerance)
    agree(ours[1], weights.numpy().astype(float), tolerance)
    agree(mha(*inputs, mask=~ignored, return_weights="mean")[1], mean.numpy().astype(float),
          tolerance)


def test_from_torch_self_attention(draw):
    module = torch.nn.MultiheadAttention(16, 4, batch_first=True)
    x = torch.from_numpy(draw(2, 5, 16))
    with torch.no_grad():
        wanted = module(x, x, x, need_weights=False)[0]
    agree(attn.MultiHeadAttention.from_torch(module, engine="vector")(x),
          wanted.numpy().astype(float), 3 * 16 * 2.0 ** -24 * 16)


@pytest.mark.parametrize("module, error, text", [
    (lambda: torch.nn.MultiheadAttention(16, 4, add_bias_kv=True), ValueError, "add_bias_kv"),
    (lambda: torch.nn.MultiheadAttention(16, 4, add_zero_attn=True), ValueError, "add_zero_attn"),
    (lambda: torch.nn.MultiheadAttention(16, 4, dropout=0.1), ValueError, "eval"),
    (lambda: torch.nn.MultiheadAttention(16, 4).double(), TypeError, "float32, not float64"),
    (lambda: torch.nn.MultiheadAttention(16, 4, device="meta"), TypeError, "in_proj_weight"),
    (lambda: torch.nn.Linear(16, 4), TypeError, "no torch.nn.MultiheadAttention"),
])
def test_modules_that_are_refused(module, error, text):
    with pytest.raises(error, match=text):
        attn.MultiHeadAttention.from_torch(module())
