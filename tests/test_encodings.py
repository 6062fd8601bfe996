"""Encodings against their formulas, written as loops, and the hooks by which they enter."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
import torch
from tolerances import ROUNDING, difference
from torch import nn

from opformer import Domain
from opformer.encodings import (
    Compose,
    Coordinates,
    FourierFeatures,
    GaussianBias,
    PositionalEncoding,
    Rotary,
    Sinusoidal,
)
from opformer.encodings.base import SYMMETRIES
from opformer.model import default_encoding

TIGHT = ROUNDING[torch.float64]
HEADS, CHANNELS = 2, 24
every_dim = pytest.mark.parametrize("dim", [1, 2, 3])


def domain(n, dim, *batch, dtype=torch.float64):
    return Domain((2 * torch.rand(*batch, n, dim) - 1).to(dtype), torch.rand(*batch, n))


def bias(factors):
    return factors[0] @ factors[1].mT


# Absolute


def test_sinusoidal_is_that_of_2017():
    """PE(pos, 2i) = sin(pos / 10000^(2i/c)), PE(pos, 2i + 1) = cos of the same."""
    table = Sinusoidal(1, 16).table(torch.arange(50.0)[:, None])
    for pos, i in product(range(50), range(8)):
        angle = pos / 10000 ** (2 * i / 16)
        assert table[pos, 2 * i].item() == pytest.approx(math.sin(angle), abs=TIGHT)
        assert table[pos, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=TIGHT)


@every_dim
def test_sinusoidal_by_loops(dim):
    encoding, points = Sinusoidal(dim, 24, unit=0.1, base=500.0), torch.randn(7, dim)
    c = 24 // dim
    expected = np.zeros((7, 24))
    for t, axis, j in product(range(7), range(dim), range(c // 2)):
        angle = points[t, axis].item() / (0.1 * 500 ** (2 * j / c))
        expected[t, axis * c + 2 * j : axis * c + 2 * j + 2] = math.sin(angle), math.cos(angle)
    assert difference(encoding.table(points), expected) < TIGHT
    features = torch.randn(7, 24)
    embedded = encoding.embed(features, Domain(points, torch.ones(7)))
    assert difference(embedded, features + torch.as_tensor(expected)) < TIGHT


def test_sinusoidal_distances_can_be_read_off():
    """<p(t), p(s)> = sum_j cos((t - s) / λ_j), also far beyond any trained extent."""
    encoding, unit = Sinusoidal(1, 16, unit=0.3), 0.3
    wavelengths = [unit * 10000 ** (2 * j / 16) for j in range(8)]
    for shift in (0.0, 1e4):
        t, s = shift + torch.randn(5, 1), shift + torch.randn(6, 1)
        expected = [[sum(math.cos((a - b) / x) for x in wavelengths) for b in s] for a in t]
        product_ = encoding.table(t) @ encoding.table(s).T
        assert difference(product_, expected) < 1e-10  # eps · 1e4 / λ_0


def test_sinusoidal_is_unambiguous():
    table = Sinusoidal(1, 16).table(torch.arange(1000.0)[:, None])
    assert torch.pdist(table).min() > 0.1


@torch.no_grad()
def test_coordinates():
    encoding, at, features = Coordinates(2, 5), domain(4, 2), torch.randn(4, 5)
    expected = [
        [sum(encoding.linear.weight[c, a] * x[a] for a in range(2)) for c in range(5)]
        for x in at.points
    ]
    expected = torch.tensor(expected)
    assert difference(encoding.embed(features, at), features + expected) < TIGHT


@every_dim
@torch.no_grad()
def test_fourier_features(dim):
    encoding, at = FourierFeatures(dim, 6, frequencies=4, length=0.5), domain(5, dim)
    weight = encoding.linear.weight
    for t, channel in product(range(5), range(6)):
        value = 0.0
        for j in range(4):
            angle = sum(float(at.points[t, a] * encoding.wave[a, j]) for a in range(dim))
            value += float(weight[channel, j]) * math.sin(angle)
            value += float(weight[channel, 4 + j]) * math.cos(angle)
        got = encoding.embed(torch.zeros(5, 6), at)[t, channel]
        assert float(got) == pytest.approx(math.sqrt(2) * value, abs=TIGHT)


def test_fourier_frequencies():
    """Normal with deviation 1/length; fitted only on request."""
    encoding = FourierFeatures(3, 8, frequencies=20000, length=0.25)
    assert float(encoding.wave.detach().std()) == pytest.approx(4, rel=0.02)
    assert not encoding.wave.requires_grad
    assert FourierFeatures(3, 8, learnable=True).wave.requires_grad


# Rotary


@every_dim
@torch.no_grad()
def test_rotary_by_loops(dim):
    encoding, at, x = Rotary(dim, HEADS, 6), domain(5, dim), torch.randn(HEADS, 5, 6)
    expected = torch.zeros_like(x)
    for h, t, j in product(range(HEADS), range(5), range(3)):
        angle = sum(float(encoding.wave[h, j, a] * at.points[t, a]) for a in range(dim))
        turned = complex(x[h, t, j], x[h, t, j + 3]) * complex(math.cos(angle), math.sin(angle))
        expected[h, t, j], expected[h, t, j + 3] = turned.real, turned.imag
    assert difference(encoding.rotate(x, at), expected) < TIGHT


@every_dim
@torch.no_grad()
def test_rotary_sees_offsets(dim):
    encoding, target, source = Rotary(dim, HEADS, 8), domain(4, dim), domain(6, dim)
    q, k = torch.randn(HEADS, 4, 8), torch.randn(HEADS, 6, 8)

    def scores(shift):
        moved = [Domain(d.points + shift, d.weights) for d in (target, source)]
        return encoding.rotate(q, moved[0]) @ encoding.rotate(k, moved[1]).mT

    assert difference(scores(torch.randn(dim)), scores(0)) < TIGHT
    for t, s in product(range(4), range(6)):
        offset = Domain((source.points[s] - target.points[t])[None], torch.ones(1))
        relative = (q[:, t] * encoding.rotate(k[:, [s]], offset)[:, 0]).sum(-1)
        assert difference(relative, scores(0)[:, t, s]) < TIGHT
    assert difference(encoding.rotate(q, target).norm(dim=-1), q.norm(dim=-1)) < TIGHT


def test_rotary_wavelengths():
    wave = Rotary(3, 5, 12, wavelengths=(0.5, 8.0)).wave.detach()
    lengths = 2 * math.pi / wave.norm(dim=-1)
    expected = [8 * (0.5 / 8) ** (j / 5) for j in range(6)]
    assert difference(lengths, [expected] * 5) < 1e-6  # made in float32 by whoever likes
    assert (wave.flatten(0, 1) @ wave.flatten(0, 1).T).fill_diagonal_(0).abs().max() > 0
    assert not Rotary(3, 5, 12, learnable=False).wave.requires_grad


# Gaussian


def gaussian(encoding, target, source, tokens):
    """-γ_t |x_s - x_t - u_t|², as in the class's docstring, by loops."""
    heads, dim = encoding.heads, encoding.dim
    out = torch.zeros(heads, target.size, source.size)
    for h, t in product(range(heads), range(target.size)):
        length = math.exp(float(encoding.log_length[h]))
        gamma, shift = 1 / (2 * length**2), torch.zeros(dim)
        if encoding.width is not None:
            change = encoding.width.weight[h] @ tokens[t] + encoding.width.bias[h]
            gamma *= math.exp(math.log(20) * math.tanh(float(change) / math.log(20)))
        if encoding.center is not None:
            rows = encoding.center.weight[h * dim : (h + 1) * dim]
            shift = rows @ tokens[t] * length
        for s in range(source.size):
            offset = source.points[s] - target.points[t] - shift
            out[h, t, s] = -gamma * float(offset @ offset)
    return out


GAUSSIANS = {
    "fixed": {},
    "width": {"channels": CHANNELS, "shift": False},
    "width and centre": {"channels": CHANNELS},
}
every_gaussian = pytest.mark.parametrize("options", GAUSSIANS.values(), ids=GAUSSIANS)


@every_dim
@every_gaussian
@torch.no_grad()
def test_gaussian_factors(dim, options):
    encoding = GaussianBias(dim, HEADS, **options, lengths=(0.3, 1.5))
    target, source, tokens = domain(5, dim), domain(7, dim), 3 * torch.randn(5, CHANNELS)
    fq, fk = encoding.factors(target, source, tokens)
    assert fq.shape == (HEADS, 5, dim + 2)
    assert fk.shape == (HEADS, 7, dim + 2)
    assert difference(bias((fq, fk)), gaussian(encoding, target, source, tokens)) < TIGHT


@every_gaussian
@torch.no_grad()
def test_gaussian_of_a_batch_is_a_loop(options):
    encoding = GaussianBias(2, HEADS, **options)
    target, source, tokens = domain(5, 2, 3), domain(7, 2, 3), torch.randn(3, 5, CHANNELS)
    got = bias(encoding.factors(target, source, tokens))
    for i in range(3):
        one = (Domain(d.points[i], d.weights[i]) for d in (target, source))
        assert difference(got[i], bias(encoding.factors(*one, tokens[i]))) < TIGHT


@every_gaussian
@torch.no_grad()
def test_gaussian_far_from_the_origin(options):
    """At 1e6 float64 keeps what its coordinates keep: steps of 1e-10, so 1e-9 of an offset.

    float32 coordinates are 0.06 apart there: the products are no worse than that, whatever the
    tokens' dtype is, and float64 coordinates of float32 tokens lose nothing.
    """
    encoding = GaussianBias(2, HEADS, **options)
    target, source, tokens = domain(5, 2), domain(7, 2), torch.randn(5, CHANNELS)
    near = gaussian(encoding, target, source, tokens)
    far = [Domain(d.points + 1e6, d.weights) for d in (target, source)]
    assert difference(bias(encoding.factors(*far, tokens)), near) < 1e-8
    encoding = encoding.float()
    factors = encoding.factors(*far, tokens.float())
    assert factors[0].dtype == factors[1].dtype == torch.float32
    assert difference(bias(factors), near) < 1e-5
    rounded = [d.to(dtype=torch.float32) for d in far]
    exact = gaussian(encoding.double(), *(d.to(dtype=torch.float64) for d in rounded), tokens)
    assert difference(bias(encoding.float().factors(*rounded, tokens.float())), exact) < 1e-5


def test_gaussian_lengths():
    encoding = GaussianBias(2, 3, lengths=(0.1, 10.0))
    assert difference(encoding.log_length.exp(), [0.1, 1, 10]) < 1e-6
    assert difference(GaussianBias(2, 1, lengths=(0.1, 10.0)).log_length.exp(), [1]) < 1e-6


@torch.no_grad()
def test_gaussian_width_is_bounded():
    encoding = GaussianBias(2, HEADS, CHANNELS, shift=False)
    at, tokens = domain(5, 2), 1e6 * torch.randn(5, CHANNELS)
    gamma = -encoding.factors(at, at, tokens)[0][..., 2]
    change = gamma * 2 * encoding.log_length.exp()[:, None] ** 2
    assert change.max() == pytest.approx(20)
    assert change.min() == pytest.approx(1 / 20)


@torch.no_grad()
def test_gaussian_sees_no_padding():
    """Its origin is the mean under the measure: points of none do not move it."""
    encoding, target, source = GaussianBias(2, HEADS), domain(5, 2), domain(7, 2)
    padded = Domain(
        torch.cat([source.points, torch.full((2, 2), 1e12)]),
        torch.cat([source.weights, torch.zeros(2)]),
    )
    tokens = torch.randn(5, CHANNELS)
    got = bias(encoding.factors(target, padded, tokens))[..., :7]
    assert difference(got, bias(encoding.factors(target, source, tokens))) < TIGHT


# Half precision


@pytest.mark.parametrize(
    "encoding",
    [
        Coordinates(2, CHANNELS),
        FourierFeatures(2, CHANNELS),
        Sinusoidal(2, CHANNELS, unit=0.01),
        Rotary(2, HEADS, CHANNELS // HEADS, wavelengths=(0.01, 1.0)),
        GaussianBias(2, HEADS, CHANNELS, lengths=(0.01, 0.1)),
    ],
    ids=lambda e: type(e).__name__,
)
@torch.no_grad()
def test_autocast_does_not_round_positions(encoding):
    """Positions 1e-3 apart at 1: one number in bfloat16. What comes out may be rounded once."""
    encoding = encoding.float()
    points = 1 + 1e-3 * torch.arange(8.0)[:, None] * torch.ones(2)
    at = Domain(points.float(), torch.ones(8))
    tokens = torch.zeros(8, CHANNELS, dtype=torch.float32)
    heads = torch.ones(HEADS, 8, CHANNELS // HEADS, dtype=torch.float32)

    def outputs():
        yield encoding.embed(tokens, at)
        yield encoding.rotate(heads, at)
        if (factors := encoding.factors(at, at, tokens)) is not None:
            yield bias(tuple(f.double() for f in factors))

    exact = list(outputs())
    with torch.autocast("cpu", torch.bfloat16):
        for got, want in zip(outputs(), exact, strict=True):
            assert difference(got, want) < 1e-5


# Composition and hooks


class Shear(PositionalEncoding):
    """A dense bias and an embedding: the sum of the coordinates, for a test."""

    symmetry = "none"

    def embed(self, features, domain):
        return features + domain.points.sum(-1, keepdim=True)

    def bias(self, target, source):
        return (target.points.sum(-1)[..., :, None] - source.points[..., None, :, 0])[
            ..., None, :, :
        ]


def test_the_base_class_does_nothing():
    encoding, at = PositionalEncoding(), domain(4, 2)
    x, tokens = torch.randn(HEADS, 4, 6), torch.randn(4, CHANNELS)
    assert encoding.embed(tokens, at) is tokens
    assert encoding.rotate(x, at) is x
    assert encoding.factors(at, at, tokens) is None
    assert encoding.bias(at, at) is None
    assert (encoding.hooks, encoding.symmetry) == (frozenset(), "none")


@pytest.mark.parametrize(
    ("encoding", "hooks"),
    [
        (Coordinates(2, 8), {"embed"}),
        (Sinusoidal(2, 8), {"embed"}),
        (FourierFeatures(2, 8), {"embed"}),
        (Rotary(2, 2, 4), {"rotate"}),
        (GaussianBias(2, 2), {"factors"}),
        (Shear(), {"embed", "bias"}),
        (Compose(), set()),
        (default_encoding(2, 8, 2), {"embed", "rotate", "factors"}),
        (Compose(Compose(Shear()), Rotary(2, 2, 4)), {"embed", "bias", "rotate"}),
    ],
    ids=lambda x: type(x).__name__,
)
def test_hooks(encoding, hooks):
    assert encoding.hooks == hooks


def names(encoding):
    return [
        type(e).__name__
        for e in encoding.modules()
        if not isinstance(e, Compose | nn.ModuleList) and isinstance(e, PositionalEncoding)
    ]


def test_only():
    """Nested compositions are taken apart too, so that no copy holds what it does not use."""
    encoding = Compose(Compose(Coordinates(2, 8), Rotary(2, 2, 4)), GaussianBias(2, 2), Shear())
    assert names(encoding.only("embed")) == ["Coordinates", "Shear"]
    assert names(encoding.only("rotate")) == ["Rotary"]
    assert names(encoding.only("factors", "bias")) == ["GaussianBias", "Shear"]
    assert names(Compose().only("embed")) == []
    rotary = Rotary(2, 2, 4)
    assert rotary.only("rotate", "bias") is rotary
    assert names(rotary.only("embed")) == []


@torch.no_grad()
def test_composition_adds_up():
    one, two = GaussianBias(2, HEADS, CHANNELS), GaussianBias(2, HEADS)
    first, second = Rotary(2, HEADS, 6), Rotary(2, HEADS, 6)
    absolute, shear = Coordinates(2, CHANNELS), Shear()
    encoding = Compose(one, Compose(first, absolute), shear, two, second, shear)
    target, source = domain(5, 2, 3), domain(7, 2, 3)
    tokens, x = torch.randn(3, 5, CHANNELS), torch.randn(3, HEADS, 5, 6)
    parts = [bias(e.factors(target, source, tokens)) for e in (one, two)]
    assert difference(bias(encoding.factors(target, source, tokens)), sum(parts)) < TIGHT
    turned = second.rotate(first.rotate(x, target), target)
    assert difference(encoding.rotate(x, target), turned) < TIGHT
    assert difference(encoding.bias(target, source), 2 * shear.bias(target, source)) < TIGHT
    embedded = absolute.embed(tokens, target) + 2 * target.points.sum(-1, keepdim=True)
    assert difference(encoding.embed(tokens, target), embedded) < TIGHT
    empty = Compose()
    assert empty.factors(target, source, tokens) is None
    assert empty.bias(target, source) is None


class Declared(PositionalEncoding):
    def __init__(self, symmetry):
        super().__init__()
        self.symmetry = symmetry


@pytest.mark.parametrize("one", SYMMETRIES)
@pytest.mark.parametrize("two", SYMMETRIES)
def test_the_symmetry_of_a_composition_is_the_smaller_one(one, two):
    smaller = SYMMETRIES[min(SYMMETRIES.index(one), SYMMETRIES.index(two))]
    assert Compose(Declared(one), Declared(two)).symmetry == smaller
    assert Compose(Compose(Declared(one)), Declared("E(d)")).symmetry == one


@pytest.mark.parametrize(
    ("encoding", "symmetry"),
    [
        (Compose(), "E(d)"),
        (Coordinates(2, 8), "none"),
        (Sinusoidal(2, 8), "none"),
        (FourierFeatures(2, 8), "none"),
        (Rotary(2, 2, 4), "translation"),
        (GaussianBias(2, 2), "E(d)"),
        (GaussianBias(2, 2, 8, shift=False), "E(d)"),
        (GaussianBias(2, 2, 8), "translation"),
        (Compose(Rotary(2, 2, 4), GaussianBias(2, 2)), "translation"),
        (default_encoding(2, 8, 2), "none"),
    ],
    ids=lambda x: x if isinstance(x, str) else type(x).__name__,
)
def test_symmetries(encoding, symmetry):
    assert encoding.symmetry == symmetry


# Refusals


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Sinusoidal(2, 10), r"multiple of 2·dim = 4, got 10"),
        (lambda: Sinusoidal(3, 16), r"multiple of 2·dim = 6, got 16"),
        (lambda: Rotary(2, 2, 5), "must be even, got 5"),
    ],
)
def test_refuses(make, message):
    with pytest.raises(ValueError, match=message):
        make()
