"""The steps of attention: each against loops over numbers, together against the fused integral."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from test_integral import DTYPES, WEIGHTS, inputs, weights_of
from tolerances import GRADIENT, ROUNDING, difference
from torch import nn

from opformer import Attention, Domain, kernel_integral, stack
from opformer.causal import Past
from opformer.steps import SelfAttention, attention_weights, similarity, weighted_mean

TIGHT, LOOSE = ROUNDING[torch.float64], GRADIENT[torch.float64]
N, M, C = 5, 7, 12
MASKS = ("none", "bias", "padding", "causal", "dead row")


def steps(q, k, v, weights=None, *, bias=None):
    """The three in a row, with an axis of heads as the fused integral has it."""
    p = similarity(q, k)
    p = p if bias is None else p + bias
    return weighted_mean(attention_weights(p, None if weights is None else weights[None, :]), v)


def mask(kind, n=N, m=M):
    """M, or any other bias: 0 where a target hears a source and -inf where it does not."""
    keep = torch.ones(n, m, dtype=torch.bool)
    match kind:
        case "none":
            return None
        case "bias":
            return torch.randn(n, m)
        case "padding":
            keep[:, 2::4] = False
        case "causal":  # by time: neither targets nor sources are in order
            s = 3 * torch.rand(m)
            keep = s <= s.min() + torch.rand(n)[:, None]
        case "dead row":
            keep[2] = False
    return torch.zeros(n, m).masked_fill(~keep, -torch.inf)


# Step by step


def test_similarity():
    q, k = torch.randn(2, N, 3), torch.randn(2, M, 3)
    p = similarity(q, k)
    assert p.shape == (2, N, M)
    for b, t, s in ((0, 0, 0), (1, 4, 6), (1, 2, 5)):
        products = [float(x * y) for x, y in zip(q[b, t], k[b, s], strict=True)]
        assert p[b, t, s].item() == pytest.approx(sum(products) / math.sqrt(3), rel=TIGHT)


@pytest.mark.parametrize("weights", WEIGHTS)
def test_attention_weights(weights):
    p, w = torch.randn(2, N, M), weights_of(weights)
    p[1, 3, 2] = -torch.inf
    a = attention_weights(p, w)
    assert difference(a.sum(-1), torch.ones(2, N)) < TIGHT
    for b in range(2):
        for t in range(N):
            share = [math.exp(p[b, t, s]) * (1 if w is None else w[s]) for s in range(M)]
            assert difference(a[b, t], torch.tensor(share) / sum(share)) < TIGHT


def test_weights_of_a_batch():
    """One measure for each sample, or one for all of them."""
    p, w = torch.randn(3, N, M), weights_of("nulls", 3)
    each = torch.stack([attention_weights(p[b], w[b]) for b in range(3)])
    assert difference(attention_weights(p, w), each) < TIGHT
    shared = torch.stack([attention_weights(p[b], w[0]) for b in range(3)])
    assert difference(attention_weights(p, w[0]), shared) < TIGHT


@pytest.mark.parametrize("unit", [1e-300, 1e-30, 1e30, 1e300])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_only_ratios_of_weights_count(unit, dtype):
    """Also where a float32 does not hold the weights."""
    p, w = torch.randn(N, M).to(dtype), weights_of("graded")
    a = attention_weights(p, unit * w)
    assert a.dtype == dtype
    assert difference(a, attention_weights(p, w)) < ROUNDING[dtype]


@pytest.mark.parametrize("kind", ["masked", "no measure", "both", "no sources"])
def test_a_row_without_a_live_source_is_zero(kind):
    """Not NaN, and with a finite gradient; the other rows do not notice."""
    m = 0 if kind == "no sources" else M
    p, v = torch.randn(N, m).requires_grad_(), torch.randn(m, 3).requires_grad_()
    w, bias = weights_of("graded")[:m], torch.zeros(N, m)
    if kind == "masked":
        bias[2] = -torch.inf
    elif kind == "no measure":
        w = 0 * w
    elif kind == "both":  # together they leave nothing
        w[:3], bias[2, 3:] = 0, -torch.inf
    a = attention_weights(p + bias, w)
    y = weighted_mean(a, v)
    dead = torch.ones(N, dtype=torch.bool)
    if kind in ("masked", "both"):
        dead = torch.arange(N) == 2
    assert (a[dead] == 0).all()
    assert (y[dead] == 0).all()
    assert difference(a[~dead].sum(-1), torch.ones(int((~dead).sum()))) < TIGHT
    gradients = torch.autograd.grad(y.square().sum(), [p, v])
    assert all(g.isfinite().all() for g in gradients)
    assert (gradients[0][dead] == 0).all()


def test_weighted_mean():
    a, v = attention_weights(torch.randn(2, N, M)), torch.randn(2, M, 3)
    y = weighted_mean(a, v)
    for b, t in ((0, 0), (1, 4)):
        assert difference(y[b, t], sum(a[b, t, s] * v[b, s] for s in range(M))) < TIGHT
    assert (y <= v.max(1, keepdim=True).values).all()  # a mean leaves no range of values
    assert (y >= v.min(1, keepdim=True).values).all()


def test_no_gradient_to_the_weights():
    w = weights_of("graded").requires_grad_()
    p = torch.randn(N, M).requires_grad_()
    attention_weights(p, w).square().sum().backward()
    assert w.grad is None


@pytest.mark.parametrize("shape", [(M - 1,), (1,), (N, M), (3, M)])
def test_weights_that_do_not_fit_are_refused(shape):
    message = r"weights must be \(2, 7\) or broadcast to it, got"
    with pytest.raises(ValueError, match=message):
        attention_weights(torch.zeros(2, N, M), torch.ones(shape))


# Together


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_steps_are_the_integral(weights, kind, dtype):
    """Outputs and gradients, of the bias too."""
    x, w = inputs(factors=False, bias=False, dtype=dtype), weights_of(weights)
    bias = mask(kind)
    if bias is not None:
        x["bias"] = bias.to(dtype).requires_grad_()
    q, k, v, bias = (x.get(name) for name in ("q", "k", "v", "bias"))
    y, whole = steps(q, k, v, w, bias=bias), kernel_integral(q, k, v, w, bias=bias)
    assert difference(y, whole) < ROUNDING[dtype]
    g = torch.randn_like(y)
    want = torch.autograd.grad(whole, list(x.values()), g)
    for got, expected in zip(torch.autograd.grad(y, list(x.values()), g), want, strict=True):
        assert difference(got, expected) < GRADIENT[dtype]


@pytest.mark.parametrize("kind", ["none", "bias", "padding", "causal"])
def test_the_steps_are_torch_s_own(kind):
    q, k, v = torch.randn(2, N, 4), torch.randn(2, M, 4), torch.randn(2, M, 4)
    bias = mask(kind)
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    assert difference(steps(q, k, v, bias=bias), expected) < TIGHT


# Self-attention


def domain(n=N, null=0):
    w = 10 ** (2 * torch.rand(n) - 2)
    w[n - null :] = 0
    return Domain(torch.randn(n, 1), w)


def causal(at):
    """M by time."""
    t = at.points[..., 0]
    return torch.zeros(at.size, at.size).masked_fill(t > t[:, None], -torch.inf)


def test_the_article_s_example():
    """(sequence, d_model) without a batch axis; three matrices and nothing else."""
    attention, x = SelfAttention(8), torch.randn(4, 8)
    matrices = [attention.query.weight.T, attention.key.weight.T, attention.value.weight.T]
    assert [p.shape for p in attention.parameters()] == [(8, 8)] * 3
    q, k, v = (x @ w for w in matrices)
    rows = []
    for i in range(4):
        e = [math.exp((q[i] @ k[j]).item() / math.sqrt(8)) for j in range(4)]
        rows.append(sum(e[j] * v[j] for j in range(4)) / sum(e))
    assert difference(attention(x), torch.stack(rows)) < TIGHT


def one_head(single, **options):
    """The library's attention with the same maps, no biases, and no map of the output."""
    whole = Attention(C, 1, qk_norm=False, **options)
    with torch.no_grad():
        for name in ("query", "key", "value"):
            getattr(whole, name).weight.copy_(getattr(single, name).weight)
        for layer in (whole.query, whole.value, whole.out):
            layer.bias.zero_()
        whole.out.weight.copy_(torch.eye(C))
    return whole


def maps(module):
    return [module.query.weight, module.key.weight, module.value.weight]


@pytest.mark.parametrize("null", [0, 2])
@pytest.mark.parametrize("batch", [(), (3,)], ids=["", "batch"])
def test_it_is_one_head_of_attention(null, batch):
    single = SelfAttention(C)
    whole = one_head(single)
    at, x = domain(null=null), torch.randn(*batch, N, C)
    if batch:
        at = stack([domain(N - b) for b in range(3)])
    x.requires_grad_()
    y, expected = single(x, at), whole(x, at)
    assert difference(y, expected) < TIGHT
    g = torch.randn_like(y)
    want = torch.autograd.grad(expected, [x, *maps(whole)], g)
    for a, b in zip(torch.autograd.grad(y, [x, *maps(single)], g), want, strict=True):
        assert difference(a, b) < LOOSE
    with torch.no_grad():
        silent = single(x.masked_fill(at.null[..., None], torch.nan), at)
    assert torch.equal(silent[~at.null], y[~at.null])


@pytest.mark.parametrize("batch", [(), (3,)], ids=["", "batch"])
@pytest.mark.parametrize("masked", [False, True], ids=["", "causal"])
def test_it_is_torch_s_own(batch, masked):
    """The map of attention too, which torch hands out."""
    single, theirs = SelfAttention(C), nn.MultiheadAttention(C, 1, bias=False, batch_first=True)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat(maps(single)))
        theirs.out_proj.weight.copy_(torch.eye(C))
    x = torch.randn(*batch, N, C).requires_grad_()
    m = torch.zeros(N, N).masked_fill(torch.ones(N, N).triu(1).bool(), -torch.inf)
    m = m if masked else None
    y, (expected, parts) = single(x, mask=m), theirs(x, x, x, attn_mask=m)
    assert difference(y, expected) < TIGHT
    p = similarity(single.query(x), single.key(x))
    assert difference(attention_weights(p if m is None else p + m), parts) < TIGHT
    g = torch.randn_like(y)
    got = torch.autograd.grad(y, [x, *maps(single)], g)
    want = torch.autograd.grad(expected, [x, theirs.in_proj_weight], g)
    assert difference(got[0], want[0]) < LOOSE
    assert difference(torch.cat(got[1:]), want[1]) < LOOSE


@pytest.mark.parametrize("atoms", [False, True], ids=["cells", "atoms"])
def test_masked_it_is_one_head_over_the_past(atoms):
    """The mask may also hold the log of a share: of the cell of time that a target cuts."""
    single, at = SelfAttention(C), domain()
    t, x = at.points[:, 0], torch.randn(N, C)
    past = Past(t, t, None if atoms else at.weights).restrict(None, slice(None), slice(None))
    whole = one_head(single, causal_axis=0, atoms=atoms)
    assert difference(single(x, at, mask=past.squeeze(-3)), whole(x, at)) < TIGHT
    assert torch.equal(past.squeeze(-3), causal(at)) == atoms


@pytest.mark.parametrize("null", [0, 2])
def test_masked_it_is_the_mean_over_the_past(null):
    """Token by token: the same head on a domain that ends at its time."""
    single, at, x = SelfAttention(C), domain(null=null), torch.randn(N, C)
    y = single(x, at, mask=causal(at))
    for i, t in enumerate(at.points[:, 0]):
        past = (at.points[:, 0] <= t) & ~at.null
        if at.null[i] or not past.any():
            continue
        index = int((past.nonzero()[:, 0] == i).nonzero()[0, 0])
        assert difference(y[i], single(x[past], at.take(past))[index]) < TIGHT


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf])
def test_weights_that_are_none_are_refused(bad):
    w = torch.ones(7).index_fill(0, torch.tensor([3]), bad)
    with pytest.raises(ValueError, match=r"finite and not negative, entry \[3\] is not"):
        attention_weights(torch.zeros(5, 7), w)
