"""Attention: heads of the kernel integral between linear maps, from a source to a target."""

from __future__ import annotations

import math

import pytest
import torch
from tolerances import GRADIENT, ROUNDING, difference

from opformer import Attention, Domain, stack
from opformer.encodings import Compose, Coordinates, GaussianBias, PositionalEncoding, Rotary

TIGHT = ROUNDING[torch.float64]
C, HEADS, N, M = 24, 2, 5, 7


class DistanceBias(PositionalEncoding):
    """A dense bias, -|x_t - x_s| times a slope of each head."""

    symmetry = "E(d)"

    def __init__(self, heads):
        super().__init__()
        self.heads = heads
        self.slope = torch.nn.Parameter(torch.arange(1.0, heads + 1))
        self.asked = []

    def bias(self, target, source):
        self.asked.append(target.size)
        offset = target.points[..., :, None, :] - source.points[..., None, :, :]
        return (
            -self.slope[:, None, None] * offset.square().sum(-1).add(1e-12).sqrt()[..., None, :, :]
        )


def encodings():
    return {
        "none": None,
        "rotary": Rotary(2, HEADS, C // HEADS),
        "gaussian": GaussianBias(2, HEADS, C),
        "dense": DistanceBias(HEADS),
        "all": Compose(
            Coordinates(2, C),
            Rotary(2, HEADS, C // HEADS),
            GaussianBias(2, HEADS, C),
            DistanceBias(HEADS),
        ),
    }


every_encoding = pytest.mark.parametrize("name", encodings())
every_norm = pytest.mark.parametrize("qk_norm", [True, False], ids=["qk_norm", ""])


def domain(n, *batch, null=0):
    weights = 10 ** (2 * torch.rand(*batch, n) - 2)
    weights[..., n - null :] = 0
    return Domain(2 * torch.rand(*batch, n, 2) - 1, weights)


def written_out(attention, x, target, memory, source):
    """Head by head, with dense exponents."""
    encoding, e = attention.encoding, C // HEADS
    tokens, memory = x, source.zero_null(memory)
    q, k, v = attention.query(x), attention.key(memory), attention.value(memory)
    heads = [t.unflatten(-1, (HEADS, e)).transpose(-3, -2) for t in (q, k, v)]
    if attention.qk_norm:
        for i, norm in enumerate((attention.query_norm, attention.key_norm)):
            rms = heads[i].square().mean(-1, keepdim=True).add(torch.finfo(x.dtype).eps).sqrt()
            heads[i] = heads[i] / rms * norm.weight
    q, k = encoding.rotate(heads[0], target), encoding.rotate(heads[1], source)
    p = q @ k.mT / math.sqrt(e)
    if (factors := encoding.factors(target, source, tokens)) is not None:
        p = p + factors[0] @ factors[1].mT
    if (bias := encoding.bias(target, source)) is not None:
        p = p + bias
    a = source.weights[..., None, None, :] * torch.exp(p - p.amax(-1, keepdim=True))
    y = (a / a.sum(-1, keepdim=True)) @ heads[2]
    return attention.out(torch.cat(list(y.unbind(-3)), -1))


@every_encoding
@every_norm
@pytest.mark.parametrize("batch", [(), (3,)])
def test_cross_attention_written_out(name, qk_norm, batch):
    attention = Attention(C, HEADS, encoding=encodings()[name], qk_norm=qk_norm)
    target, source = domain(N, *batch), domain(M, *batch, null=2)
    x, memory = torch.randn(*batch, N, C), torch.randn(*batch, M, C)
    x.requires_grad_(), memory.requires_grad_()
    inputs = [x, memory, *(p for n, p in attention.named_parameters() if "linear" not in n)]
    y = attention(x, target, memory, source)
    expected = written_out(attention, x, target, memory, source)
    assert difference(y, expected) < TIGHT
    g = torch.randn_like(y)
    for got, want in zip(
        torch.autograd.grad(y, inputs, g), torch.autograd.grad(expected, inputs, g), strict=True
    ):
        assert difference(got, want) < GRADIENT[torch.float64]


@every_encoding
def test_self_attention_is_that_of_a_domain_with_itself(name):
    attention, at = Attention(C, HEADS, encoding=encodings()[name]), domain(M, null=2)
    x = torch.randn(M, C)
    assert torch.equal(attention(x, at), attention(x, at, x, at))


@every_encoding
@pytest.mark.parametrize("chunk", [1, 2, 5, 99])
def test_chunks(name, chunk):
    attention = Attention(C, HEADS, encoding=encodings()[name])
    target, source = domain(N, 3), domain(M, 3)
    x, memory = torch.randn(3, N, C), torch.randn(3, M, C)
    whole = attention(x, target, memory, source)
    assert difference(attention(x, target, memory, source, chunk=chunk), whole) < TIGHT


def test_a_dense_bias_is_made_by_chunks():
    encoding = DistanceBias(HEADS)
    attention, at = Attention(C, HEADS, encoding=encoding), domain(M)
    with torch.no_grad():
        attention(torch.randn(M, C), at, chunk=3)
    assert encoding.asked == [3, 3, 1]


@every_encoding
@every_norm
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_null_memory_is_not_read(name, qk_norm, value):
    """Nor does it reach the gradient of any parameter."""
    attention = Attention(C, HEADS, encoding=encodings()[name], qk_norm=qk_norm)
    target, source = domain(N), domain(M, null=2)
    x, memory = torch.randn(N, C), torch.randn(M, C)
    bad = memory.clone()
    bad[-2:] = value
    outcomes = []
    for given in (memory, bad):
        attention.zero_grad()
        y = attention(x, target, given, source)
        y.square().sum().backward()
        outcomes.append([y, *(p.grad for p in attention.parameters() if p.grad is not None)])
    for clean, dirty in zip(*outcomes, strict=True):
        assert torch.equal(clean, dirty)


def test_no_measure_leaves_the_bias_of_the_output():
    attention, source = Attention(C, HEADS, encoding=encodings()["all"]), domain(M, null=M)
    y = attention(torch.randn(N, C), domain(N), torch.full((M, C), math.nan), source)
    assert difference(y, attention.out.bias.expand(N, -1)) < TIGHT


def test_equal_tokens_give_the_mean():
    """Without position, equal keys: the mean of the values under the measure."""
    attention, source = Attention(C, HEADS), domain(M)
    torch.nn.init.zeros_(attention.key.weight)
    memory = torch.randn(M, C)
    y = attention(torch.randn(N, C), domain(N), memory, source)
    mean = attention.out(attention.value(source.mean(memory)))
    assert difference(y, mean.expand(N, -1)) < TIGHT


def test_queries_do_not_see_their_own_weights():
    attention = Attention(C, HEADS, encoding=encodings()["all"])
    target, source, x, memory = domain(N), domain(M), torch.randn(N, C), torch.randn(M, C)
    nothing = Domain(target.points, torch.zeros(N))
    y = attention(x, target, memory, source)
    assert torch.equal(attention(x, nothing, memory, source), y)


def test_a_padded_batch_is_a_loop():
    attention = Attention(C, HEADS, encoding=encodings()["all"])
    domains = [domain(M), domain(N)]
    memories = [torch.randn(M, C), torch.randn(N, C)]
    padded = torch.cat([memories[1], torch.full((M - N, C), math.nan)])
    x, targets = torch.randn(2, 4, C), domain(4, 2)
    y = attention(x, targets, torch.stack([memories[0], padded]), stack(domains))
    for i in range(2):
        target = Domain(targets.points[i], targets.weights[i])
        assert difference(y[i], attention(x[i], target, memories[i], domains[i])) < TIGHT


@every_encoding
def test_every_parameter_is_alive(name):
    attention = Attention(C, HEADS, encoding=encodings()[name])
    (attention(torch.randn(M, C), domain(M)) * torch.randn(M, C)).sum().backward()
    dead = [n for n, p in attention.named_parameters() if p.grad is None or not p.grad.any()]
    # The embedding acts before, on the tokens.
    assert dead == (["encoding.encodings.0.linear.weight"] if name == "all" else [])


def test_there_is_no_key_bias():
    """It would cancel in the softmax, so its gradient is rounding."""
    assert Attention(C, HEADS).key.bias is None


def test_refuses():
    with pytest.raises(ValueError, match="multiple of heads, got 10 and 4"):
        Attention(10, 4)
    attention, at, x = Attention(C, HEADS), domain(N), torch.randn(N, C)
    with pytest.raises(ValueError, match="belong together"):
        attention(x, at, x)
    with pytest.raises(ValueError, match="belong together"):
        attention(x, at, source=at)
    with pytest.raises(ValueError, match=r"axes \(5,\), got \(4, 24\)"):
        attention(x, at, x[:4], at)
