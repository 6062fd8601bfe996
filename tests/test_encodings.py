"""Encodings against their formulas, written as loops, and the hooks by which they enter."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from tolerances import GRADIENT, ROUNDING, difference
from torch import nn

from opformer import Attention, Domain, _fused, kernel_integral, stack
from opformer.encodings import (
    Compose,
    Coordinates,
    DisplacementBias,
    DistanceBias,
    ExponentialDecay,
    FadingMemory,
    FourierFeatures,
    GaussianBias,
    LocalFrameBias,
    PositionalEncoding,
    PowerLaw,
    Profile,
    RadialBasis,
    RadialNetwork,
    Rotary,
    Sinusoidal,
)
from opformer.encodings.base import SYMMETRIES
from opformer.encodings.distance import distances
from opformer.model import default_encoding

TIGHT = ROUNDING[torch.float64]
TIGHT_GRADIENT = GRADIENT[torch.float64]
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


both_directions = pytest.mark.parametrize("directions", ["random", "axes"])


@every_dim
@both_directions
@torch.no_grad()
def test_rotary_by_loops(dim, directions):
    encoding = Rotary(dim, HEADS, 6, directions=directions)
    at, x = domain(5, dim), torch.randn(HEADS, 5, 6)
    expected = torch.zeros_like(x)
    for h, t, j in product(range(HEADS), range(5), range(3)):
        angle = sum(float(encoding.wave[h, j, a] * at.points[t, a]) for a in range(dim))
        turned = complex(x[h, t, j], x[h, t, j + 3]) * complex(math.cos(angle), math.sin(angle))
        expected[h, t, j], expected[h, t, j + 3] = turned.real, turned.imag
    assert difference(encoding.rotate(x, at), expected) < TIGHT


@every_dim
@both_directions
@torch.no_grad()
def test_rotary_sees_offsets(dim, directions):
    encoding = Rotary(dim, HEADS, 8, directions=directions)
    target, source = domain(4, dim), domain(6, dim)
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


@pytest.mark.parametrize("pairs", [3, 6, 7])
def test_rotary_along_the_axes(pairs):
    """Each axis has all the scales, from the longest on; the shortest may be of some alone."""
    options = {"wavelengths": (0.5, 8.0), "directions": "axes"}
    wave = Rotary(3, 2, 2 * pairs, **options).wave.detach()
    scales = math.ceil(pairs / 3)
    for h, j in product(range(2), range(pairs)):
        scale = (j // 3) / (scales - 1) if scales > 1 else 0
        expected = torch.zeros(3)
        expected[j % 3] = 2 * math.pi / (8 * (0.5 / 8) ** scale)
        assert difference(wave[h, j], expected) < 1e-6  # made in float32 by whoever likes


@both_directions
def test_rotary_heads_are_fitted_apart(directions):
    assert Rotary(2, 3, 8, directions=directions).wave.is_contiguous()


@every_dim
@both_directions
@torch.no_grad()
def test_rotary_distances_can_be_read_off(dim, directions):
    """Of equal contents the score is a sum of cosines of the offset, at any distance."""
    encoding = Rotary(dim, 1, 12, directions=directions)
    target, source, wave = domain(4, dim), domain(5, dim), encoding.wave[0]
    ones = [torch.ones(1, n, 6) * torch.tensor(0.5).sqrt() for n in (4, 5)]
    ones = [torch.cat([x, x], -1) for x in ones]
    score = encoding.rotate(ones[0], target) @ encoding.rotate(ones[1], source).mT
    for t, s in product(range(4), range(5)):
        offset = source.points[s] - target.points[t]
        expected = sum(math.cos(float(wave[j] @ offset)) for j in range(6))
        assert float(score[0, t, s]) == pytest.approx(expected, abs=TIGHT)


# Gaussian


def gaussian(encoding, target, source, tokens):
    """-γ_t |A (x_s - x_t) - u_t|², as in the class's docstring, by loops."""
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
        stretch = torch.eye(dim)
        if encoding.log_stretch is not None:
            values, axes = torch.linalg.eigh(encoding.log_stretch[h] + encoding.log_stretch[h].T)
            stretch = sum(v.exp() * torch.outer(a, a) for v, a in zip(values, axes.T, strict=True))
        for s in range(source.size):
            offset = stretch @ (source.points[s] - target.points[t]) - shift
            out[h, t, s] = -gamma * float(offset @ offset)
    return out


GAUSSIANS = {
    "fixed": {},
    "width": {"channels": CHANNELS, "shift": False},
    "width and centre": {"channels": CHANNELS},
    "anisotropic": {"anisotropic": True},
    "anisotropic, width and centre": {"channels": CHANNELS, "anisotropic": True},
}
every_gaussian = pytest.mark.parametrize("options", GAUSSIANS.values(), ids=GAUSSIANS)


def make_gaussian(dim, **options):
    """One whose matrices are not the identity, as they are at first."""
    encoding = GaussianBias(dim, HEADS, **options)
    if encoding.log_stretch is not None:
        nn.init.normal_(encoding.log_stretch, std=0.3)
    return encoding


@every_dim
@every_gaussian
@torch.no_grad()
def test_gaussian_factors(dim, options):
    encoding = make_gaussian(dim, **options, lengths=(0.3, 1.5))
    target, source, tokens = domain(5, dim), domain(7, dim), 3 * torch.randn(5, CHANNELS)
    fq, fk = encoding.factors(target, source, tokens)
    assert fq.shape == (HEADS, 5, dim + 2)
    assert fk.shape == (HEADS, 7, dim + 2)
    assert difference(bias((fq, fk)), gaussian(encoding, target, source, tokens)) < TIGHT


@every_gaussian
@torch.no_grad()
def test_gaussian_of_a_batch_is_a_loop(options):
    encoding = make_gaussian(2, **options)
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
    encoding = make_gaussian(2, **options)
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


@every_dim
@torch.no_grad()
def test_anisotropic_gaussian(dim):
    """Isotropic at first; along an eigenvector of A the length is ℓ over its eigenvalue."""
    encoding, plain = GaussianBias(dim, HEADS, anisotropic=True), GaussianBias(dim, HEADS)
    target, source, tokens = domain(5, dim), domain(7, dim), torch.randn(5, CHANNELS)
    factors = [e.factors(target, source, tokens) for e in (encoding, plain)]
    assert difference(*map(bias, factors)) < TIGHT
    assert factors[0][0].shape == factors[1][0].shape, "it costs no more channels"
    encoding = make_gaussian(dim, anisotropic=True)
    values, axes = torch.linalg.eigh(encoding.log_stretch[0] + encoding.log_stretch[0].T)
    for value, axis in zip(values, axes.T, strict=True):
        length = (encoding.log_length[0] - value).exp()
        at = Domain(torch.stack([torch.zeros(dim), length * axis]), torch.ones(2))
        got = bias(encoding.factors(at, at, torch.zeros(2, 1)))[0, 0]
        assert difference(got, [0, -0.5]) < TIGHT


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


# Memory


@pytest.mark.parametrize(("dim", "axis"), [(1, -1), (2, -1), (3, 0)])
@pytest.mark.parametrize("channels", [None, CHANNELS])
@torch.no_grad()
def test_memory_fades_with_the_time_that_has_passed(dim, axis, channels):
    encoding = FadingMemory(HEADS, channels, axis=axis, lengths=(0.1, 2.0))
    assert (
        difference(encoding.log_length.exp(), torch.linspace(-2.302585, 0.693147, HEADS).exp())
        < 1e-6
    )
    target, source, tokens = domain(5, dim), domain(7, dim), torch.randn(5, CHANNELS)
    lag = target.points[:, None, axis] - source.points[:, axis]
    length = encoding.log_length.exp().expand(5, HEADS)
    if channels:
        change = encoding.change(tokens) / math.log(20)
        length = length * (-math.log(20) * change.tanh()).exp()
    got = bias(encoding.factors(target, source, tokens))
    assert difference(got, -lag / length.T[:, :, None]) < TIGHT


@torch.no_grad()
def test_memory_far_from_the_origin_of_time():
    encoding, target, source = FadingMemory(HEADS).float(), domain(5, 1), domain(7, 1)
    lag = target.points - source.points.T
    late = [Domain(1e6 + d.points, d.weights) for d in (target, source)]
    got = bias(encoding.factors(*late, torch.zeros(5, 1, dtype=torch.float32)))
    assert difference(got, -lag / encoding.log_length.exp()[:, None, None]) < 1e-5


# Dense: functions of the distance

PROFILES = {
    "exponential": lambda: ExponentialDecay(HEADS, lengths=(0.2, 0.7)),
    "power": lambda: PowerLaw(HEADS, length=0.3, powers=(1.0, 3.0)),
    "basis": lambda: RadialBasis(HEADS, centers=5, reach=1.5),
    "network": lambda: RadialNetwork(HEADS, hidden=6),
}
every_profile = pytest.mark.parametrize("name", PROFILES)


def silu(x):
    return x / (1 + math.exp(-x))


def network(layers, inputs, h):
    """W_2 silu(W_1 x + b_1) by loops."""
    first, _, last = layers
    hidden = [
        silu(sum(float(w) * float(x) for w, x in zip(row, inputs, strict=True)) + float(b))
        for row, b in zip(first.weight, first.bias, strict=True)
    ]
    return sum(float(w) * y for w, y in zip(last.weight[h], hidden, strict=True))


def radial(profile, h, r):
    """The profiles as in their docstrings; h counts the heads."""
    match profile:
        case ExponentialDecay():
            return -r / [0.2, 0.7][h]
        case PowerLaw():
            return math.log((1 + (r / 0.3) ** 2) ** (-[1.0, 3.0][h] / 2))
        case RadialBasis():
            centers, width = np.linspace(0, 1.5, 5), 1.5 / 4
            bumps = np.exp(-((r - centers) ** 2) / (2 * width**2))
            return float(profile.amplitude[h] @ torch.from_numpy(bumps))
        case RadialNetwork():
            return network(profile.layers, [r], h)


@every_dim
@every_profile
@torch.no_grad()
def test_distance_bias_by_loops(dim, name):
    encoding, target, source = DistanceBias(PROFILES[name]()), domain(4, dim), domain(6, dim)
    got = encoding.bias(target, source)
    assert got.shape == (HEADS, 4, 6)
    for h, t, s in product(range(HEADS), range(4), range(6)):
        r = math.dist(target.points[t].tolist(), source.points[s].tolist())
        expected = radial(encoding.profile, h, r)
        assert float(got[h, t, s]) == pytest.approx(expected, abs=1e-7)  # made in float32


@every_profile
def test_distance_bias_is_symmetric(name):
    at = domain(6, 3)
    b = DistanceBias(PROFILES[name]()).bias(at, at)
    assert torch.equal(b, b.mT)


@every_dim
def test_distances(dim):
    """Not by the expanded square, which loses half the digits: close points, far from zero."""
    near = torch.rand(5, dim)
    expected = [[1e-6 * math.dist(a, b) for b in near.tolist()] for a in near.tolist()]
    at = Domain(1e-6 * near, torch.ones(5))
    assert difference(distances(at, at), expected) < TIGHT
    moved = Domain(1e-6 * near + 1, torch.ones(5))
    assert difference(distances(moved, moved), expected) < 1e-9  # eps / 1e-6
    assert (
        distances(at.to(dtype=torch.bfloat16), at.to(dtype=torch.bfloat16)).dtype == torch.float32
    )


def test_the_gradient_of_a_distance_is_zero_at_zero():
    points = torch.tensor([[0.0, 0.0], [3.0, 4.0]], requires_grad=True)
    at = Domain(points, torch.ones(2))
    assert difference(distances(at, at), [[0, 5], [5, 0]]) == 0
    distances(at, Domain(points.detach(), torch.ones(2))).sum().backward()
    assert difference(points.grad, [[-0.6, -0.8], [0.6, 0.8]]) < TIGHT


@pytest.mark.parametrize("name", ["exponential", "power"])
@torch.no_grad()
def test_kernels_decay_to_any_distance(name):
    """Monotone and finite, from the trained extent to 1e6 of it; so nothing far away is heard."""
    r = torch.logspace(-3, 6, 200)[None]
    log_kernel = PROFILES[name]()(r)
    assert (log_kernel.diff(dim=-1) < 0).all()
    assert log_kernel.isfinite().all()
    assert (log_kernel[..., -1].exp() < 1e-4).all()


@torch.no_grad()
def test_a_radial_basis_fades_beyond_its_reach():
    profile = RadialBasis(HEADS, centers=8, reach=2.0)
    assert profile(torch.tensor([[4.0, 1e3, 1e6]])).abs().max() < 1e-9
    assert profile(torch.linspace(0, 2, 9)[None]).abs().max() > 0.1


def test_lengths_and_powers():
    assert difference(ExponentialDecay(3, lengths=(0.1, 10)).log_length.exp(), [0.1, 1, 10]) < 1e-6
    assert difference(PowerLaw(3, powers=(1, 4)).log_power.exp(), [1, 2, 4]) < 1e-6
    assert difference(PowerLaw(1, powers=(1, 4)).log_power.exp(), [2]) < 1e-6


class Ring(Profile):
    """Whatever lies at a distance of one, without a parameter or a word on its memory."""

    heads = HEADS

    def forward(self, r):
        return -(r - 1).square().unsqueeze(-3).expand(*r.shape[:-2], HEADS, *r.shape[-2:])


def test_a_profile_of_ones_own():
    encoding, at = DistanceBias(Ring()), domain(6, 2, 3)
    expected = -(torch.cdist(at.points, at.points) - 1).square()
    assert difference(encoding.bias(at, at)[:, 1], expected) < 1e-7  # cdist's own digits
    assert encoding.pair_channels == 1


# Dense: functions of the displacement


@every_dim
@torch.no_grad()
def test_displacement_bias_by_loops(dim):
    encoding, target, source = (
        DisplacementBias(dim, HEADS, hidden=5),
        domain(4, dim),
        domain(6, dim),
    )
    got = encoding.bias(target, source)
    assert got.shape == (HEADS, 4, 6)
    for h, t, s in product(range(HEADS), range(4), range(6)):
        expected = network(encoding.layers, source.points[s] - target.points[t], h)
        assert float(got[h, t, s]) == pytest.approx(expected, abs=TIGHT)


def frame(target, source, length):
    """The four numbers of each pair, by loops over the points, with the determinant of NumPy."""
    x, w = source.points.numpy() / length, source.weights.numpy()
    d = x.shape[1]
    out = np.zeros((target.size, source.size, 4))
    for t, y in enumerate(target.points.numpy() / length):
        share = np.array([w[s] * math.exp(-((x[s] - y) ** 2).sum() / 2) for s in range(len(x))])
        share /= share.sum()
        mean = sum(share[s] * (x[s] - y) for s in range(len(x)))
        centred = [x[s] - y - mean for s in range(len(x))]
        covariance = sum(share[s] * np.outer(c, c) for s, c in enumerate(centred))
        for s in range(len(x)):
            xi = x[s] - y
            columns = [mean, covariance @ mean, xi] if d == 3 else [mean, xi]
            det = np.linalg.det(np.stack(columns, 1))
            out[t, s] = xi @ xi, mean @ xi, xi @ covariance @ xi, det
    return torch.from_numpy(out)


@pytest.mark.parametrize("dim", [2, 3])
@torch.no_grad()
def test_local_frame_bias_by_loops(dim):
    encoding = LocalFrameBias(dim, HEADS, length=0.7, hidden=5)
    target, source = domain(4, dim), domain(6, dim)
    invariants = frame(target, source, 0.7)
    assert difference(encoding.invariants(target, source), invariants) < TIGHT
    got = encoding.bias(target, source)
    assert got.shape == (HEADS, 4, 6)
    for h, t, s in product(range(HEADS), range(4), range(6)):
        expected = network(encoding.layers, invariants[t, s], h)
        assert float(got[h, t, s]) == pytest.approx(expected, abs=TIGHT)


@pytest.mark.parametrize("dim", [2, 3])
@torch.no_grad()
def test_a_mirror_turns_the_sign_of_the_determinant_alone(dim):
    encoding, target, source = LocalFrameBias(dim, HEADS), domain(4, dim), domain(6, dim)
    mirror = torch.linalg.qr(torch.randn(dim, dim))[0]
    mirror[:, 0] *= -torch.linalg.det(mirror).sign()
    moved = [Domain(d.points @ mirror.T + 2, d.weights) for d in (target, source)]
    before, after = encoding.invariants(target, source), encoding.invariants(*moved)
    assert difference(after, before * torch.tensor([1.0, 1, 1, -1])) < 1e-10
    assert before[..., 3].abs().max() > 1e-3


@pytest.mark.parametrize("dim", [2, 3])
@torch.no_grad()
def test_a_frame_fades_where_all_sides_look_the_same(dim):
    """The corners of a cube, seen from its centre and from close to it: no axis jumps."""
    encoding = LocalFrameBias(dim, HEADS, length=1.0)
    corners = torch.tensor(list(product([-1.0, 1.0], repeat=dim)))
    source = Domain(corners, torch.ones(len(corners)))
    near = torch.stack([torch.zeros(dim), torch.full((dim,), 1e-6), torch.full((dim,), -1e-6)])
    numbers = encoding.invariants(Domain(near, torch.ones(3)), source)
    assert numbers[0, :, [1, 3]].abs().max() < TIGHT
    assert difference(numbers[1:], numbers[:1].expand(2, -1, -1)) < 1e-5


# Dense: what they share

DENSE = {
    **{name: lambda d, make=make: DistanceBias(make()) for name, make in PROFILES.items()},
    "displacement": lambda d: DisplacementBias(d, HEADS, hidden=6),
    "local frame": lambda d: LocalFrameBias(d, HEADS, hidden=6),
}
every_dense = pytest.mark.parametrize("make", DENSE.values(), ids=DENSE)


@every_dense
@torch.no_grad()
def test_a_dense_bias_of_a_ragged_batch_is_a_loop(make):
    encoding = make(2)
    targets, sources = ([domain(n, 2) for n in sizes] for sizes in ((5, 3), (4, 7)))
    got = encoding.bias(stack(targets), stack(sources))
    for i, (t, s) in enumerate(zip(targets, sources, strict=True)):
        assert difference(got[i, :, : t.size, : s.size], encoding.bias(t, s)) < TIGHT


@every_dense
@torch.no_grad()
def test_a_dense_bias_in_float32(make):
    encoding, target, source = make(2).float(), domain(5, 2), domain(7, 2)
    single = [d.to(dtype=torch.float32) for d in (target, source)]
    got = encoding.bias(*single)
    assert got.dtype == torch.float32
    double = [d.to(dtype=torch.float64) for d in single]
    assert difference(got, encoding.double().bias(*double)) < ROUNDING[torch.float32]


@every_dense
def test_gradients_of_a_dense_bias(make):
    """Of the positions of both sides, and of all parameters, against finite differences."""
    encoding, (t, s), weights = make(2), (torch.rand(3, 2), torch.rand(4, 2)), torch.rand(4)
    names, values = zip(*encoding.named_parameters(), strict=True)

    def b(t, s, *values):
        target, source = Domain(t, torch.zeros(3)), Domain(s, weights)
        parameters = dict(zip(names, values, strict=True))
        return torch.func.functional_call(Read(encoding), parameters, (target, source))

    inputs = [x.detach().clone().requires_grad_() for x in (t, s, *values)]
    assert torch.autograd.gradcheck(b, inputs)
    gradients = torch.autograd.grad(b(*inputs).square().sum(), inputs)
    assert all(g.abs().max() > 0 for g in gradients), "or the parameters were not these"


class Read(nn.Module):
    """The bias of an encoding as the call of a module, which is what functional_call takes."""

    def __init__(self, encoding):
        super().__init__()
        for name, part in encoding.named_children():
            self.add_module(name, part)
        object.__setattr__(self, "encoding", encoding)

    def forward(self, target, source):
        return self.encoding.bias(target, source)


def test_networks_begin_steep():
    """Four times torch's range, so that a narrow kernel is not far away."""
    for layers, channels in (
        (DisplacementBias(3, HEADS, hidden=999).layers, 3),
        (LocalFrameBias(2, HEADS, hidden=999).layers, 4),
        (RadialNetwork(HEADS, hidden=999).layers, 1),
    ):
        for parameter in layers[0].parameters():
            steepest = float(parameter.detach().abs().max()) * math.sqrt(channels)
            assert steepest == pytest.approx(4, rel=0.02)
        assert layers[2].weight.detach().abs().max() <= 1 / math.sqrt(999)


@every_dense
def test_finite_gradients_where_points_coincide(make):
    points = domain(5, 2).points.repeat(2, 1).requires_grad_()
    at = Domain(points, torch.rand(10))
    make(2).bias(at, at).square().sum().backward()
    assert points.grad.isfinite().all()


@every_dense
@torch.no_grad()
def test_a_dense_bias_in_an_attention(make):
    """Added to the scores, with the weights, whatever the chunks, beside other encodings."""
    dense, gaussian = make(2), GaussianBias(2, HEADS)
    attention = Attention(CHANNELS, HEADS, encoding=Compose(dense, gaussian), qk_norm=False)
    target, source = domain(5, 2), domain(7, 2)
    tokens, memory = torch.randn(5, CHANNELS), torch.randn(7, CHANNELS)
    split = attention._split
    b = dense.bias(target, source) + bias(gaussian.factors(target, source, tokens))
    p = split(attention.query(tokens)) @ split(attention.key(memory)).mT
    p = (p / math.sqrt(CHANNELS // HEADS) + b + source.weights.log()).softmax(-1)
    expected = attention.out((p @ split(attention.value(memory))).transpose(0, 1).flatten(1))
    for chunk in (None, 2):
        assert difference(attention(tokens, target, memory, source, chunk=chunk), expected) < TIGHT


WIDE = {
    "displacement": lambda: DisplacementBias(2, HEADS, hidden=64),
    "local frame": lambda: LocalFrameBias(2, HEADS, hidden=64),
    "network": lambda: DistanceBias(RadialNetwork(HEADS, hidden=64)),
    "together": lambda: Compose(DisplacementBias(2, HEADS, hidden=32), WIDE["half"]()),
    "half": lambda: DistanceBias(RadialNetwork(HEADS, hidden=32)),
}


@pytest.mark.parametrize("name", ["displacement", "local frame", "network", "together"])
def test_memory_of_a_dense_network_is_bounded(name, monkeypatch):
    """What a network holds for each pair counts, for a sample and for a batch, backward too."""
    attention = Attention(CHANNELS, HEADS, encoding=WIDE[name]())
    entries = 64 * 60 * 10
    held = []
    for module in attention.encoding.modules():
        if isinstance(module, nn.SiLU):
            module.register_forward_hook(lambda *call: held.append(call[-1].numel()))
    for batch in ((), (3,)):
        at, tokens = domain(60, 2, *batch), torch.randn(*batch, 60, CHANNELS)
        whole = attention(tokens, at)
        expected = torch.autograd.grad(whole.square().sum(), list(attention.parameters()))
        assert max(held) > entries, "in one piece, or this test says nothing"
        held.clear()
        with monkeypatch.context() as patch:
            patch.setattr(_fused, "BIAS_ENTRIES", entries)
            y = attention(tokens, at)
            gradients = torch.autograd.grad(y.square().sum(), list(attention.parameters()))
        parts = 2 if name == "together" else 1
        assert max(held) <= entries / parts
        assert len(held) >= parts * 2 * 6 * math.prod(batch), "forward, and again backward"
        held.clear()
        assert difference(y, whole) < TIGHT
        for got, want in zip(gradients, expected, strict=True):
            assert difference(got, want) < TIGHT_GRADIENT


# The classical demands


EVERY = {
    "coordinates": lambda: Coordinates(2, CHANNELS),
    "sinusoidal": lambda: Sinusoidal(2, CHANNELS, unit=0.1),
    "fourier": lambda: FourierFeatures(2, CHANNELS),
    "rotary": lambda: Rotary(2, HEADS, CHANNELS // HEADS),
    "rotary, axes": lambda: Rotary(2, HEADS, CHANNELS // HEADS, directions="axes"),
    "gaussian": lambda: GaussianBias(2, HEADS, CHANNELS),
    "gaussian, anisotropic": lambda: GaussianBias(2, HEADS, CHANNELS, anisotropic=True),
    # One sees one coordinate.
    "memory": lambda: Compose(*(FadingMemory(HEADS, CHANNELS, axis=axis) for axis in (0, 1))),
    **{name: lambda make=make: make(2) for name, make in DENSE.items()},
}


def kernel(encoding, target, source, contents=None):
    """Scores of equal contents at the targets and the sources, (h, n, m)."""
    one = torch.linspace(-1, 1, CHANNELS) if contents is None else contents
    tokens = [
        encoding.embed(one.expand(d.size, -1), d).unflatten(-1, (HEADS, -1)).transpose(0, 1)
        for d in (target, source)
    ]
    score = encoding.rotate(tokens[0], target) @ encoding.rotate(tokens[1], source).mT
    factors = encoding.factors(target, source, one.expand(target.size, -1))
    for term in (None if factors is None else bias(factors), encoding.bias(target, source)):
        score = score if term is None else score + term
    return score


@pytest.mark.parametrize("make", EVERY.values(), ids=EVERY)
@torch.no_grad()
def test_demand_deterministic(make):
    encoding, target, source = make(), domain(5, 2), domain(7, 2)
    again = kernel(encoding, target, source)
    assert torch.equal(kernel(encoding, target, source), again)


@pytest.mark.parametrize("make", EVERY.values(), ids=EVERY)
@torch.no_grad()
def test_demand_unambiguous(make):
    """Seen from three targets, no two points of a grid are at the same place."""
    steps = torch.linspace(-1, 1, 9)
    grid = torch.cartesian_prod(steps, steps)
    source = Domain(grid, 0.1 + torch.rand(81))
    target = Domain(torch.tensor([[0.13, 0.21], [-0.63, 0.47], [0.72, -0.55]]), torch.zeros(3))
    views = kernel(make(), target, source).flatten(0, 1).T  # (m, h n)
    assert torch.pdist(views).min() > 1e-4


@pytest.mark.parametrize("make", EVERY.values(), ids=EVERY)
@torch.no_grad()
def test_demand_extrapolates(make):
    """A hundred times the trained extent: finite, and as symmetric as it is near by."""
    encoding = make()
    target, source = ((100 * d.points, d.weights) for d in (domain(5, 2), domain(7, 2)))
    far = [Domain(*target), Domain(*source)]
    scores = kernel(encoding, *far)
    assert scores.isfinite().all()
    if encoding.symmetry != "none":
        turn = torch.eye(2)
        if encoding.symmetry != "translation":
            turn = torch.tensor([[0.6, -0.8], [0.8, 0.6]])
        moved = [Domain(d.points @ turn.T + 300, d.weights) for d in far]
        assert difference(kernel(encoding, *moved), scores) < 1e-10
    attention = Attention(CHANNELS, HEADS, encoding=encoding)
    assert attention(torch.randn(7, CHANNELS), far[1]).isfinite().all()


@pytest.mark.parametrize(
    "make",
    [
        lambda: Coordinates(2, CHANNELS),
        lambda: Sinusoidal(2, CHANNELS, unit=0.1),
        lambda: FourierFeatures(2, CHANNELS),
    ],
    ids=["coordinates", "sinusoidal", "fourier"],
)
@torch.no_grad()
def test_demand_the_score_expands(make):
    """(x + p)_t W (x + p)_s: content and content, content and position, position and position."""
    encoding, attention = make(), Attention(CHANNELS, HEADS, qk_norm=False)
    target, source = domain(5, 2), domain(7, 2)
    x, y = torch.randn(5, CHANNELS), torch.randn(7, CHANNELS)
    p, q = (encoding.embed(torch.zeros_like(a), d) for a, d in ((x, target), (y, source)))
    split, content = attention._split, attention.query.bias
    query = [split(attention.query(x)), split(attention.query(p) - content)]  # its bias is content
    key = [split(attention.key(a)) for a in (y, q)]
    terms = {(i, j): query[i] @ key[j].mT for i, j in product(range(2), range(2))}
    positional = sum(terms[ij] for ij in ((0, 1), (1, 0), (1, 1))) / math.sqrt(CHANNELS // HEADS)
    value = split(attention.value(y + q))
    w = source.weights
    expanded = kernel_integral(query[0], key[0], value, w, bias=positional)
    expanded = attention.out(expanded.transpose(0, 1).flatten(1))
    whole = attention(encoding.embed(x, target), target, encoding.embed(y, source), source)
    assert difference(whole, expanded) < TIGHT


@every_dim
def test_sinusoidal_distances_in_any_dimension(dim):
    """A sum over the axes too: Σ_a Σ_j cos((t_a - s_a) / λ_j)."""
    encoding, c = Sinusoidal(dim, 24, unit=0.3), 24 // dim
    t, s = torch.randn(4, dim), torch.randn(5, dim)
    wavelengths = [0.3 * 10000 ** (2 * j / c) for j in range(c // 2)]
    expected = [
        [
            sum(math.cos((a - b) / x) for a, b in zip(p, q, strict=True) for x in wavelengths)
            for q in s
        ]
        for p in t
    ]
    assert difference(encoding.table(t) @ encoding.table(s).T, expected) < TIGHT


# Half precision


@pytest.mark.parametrize(
    "encoding",
    [
        Coordinates(2, CHANNELS),
        FourierFeatures(2, CHANNELS),
        Sinusoidal(2, CHANNELS, unit=0.01),
        Rotary(2, HEADS, CHANNELS // HEADS, wavelengths=(0.01, 1.0)),
        GaussianBias(2, HEADS, CHANNELS, lengths=(0.01, 0.1)),
        GaussianBias(2, HEADS, lengths=(0.01, 0.1), anisotropic=True),
        FadingMemory(HEADS, CHANNELS, lengths=(0.01, 0.1)),
        DisplacementBias(2, HEADS),
        LocalFrameBias(2, HEADS, length=0.01),
        DistanceBias(ExponentialDecay(HEADS, lengths=(0.01, 0.1))),
        DistanceBias(PowerLaw(HEADS, length=0.01)),
        DistanceBias(RadialBasis(HEADS, reach=0.01)),
        DistanceBias(RadialNetwork(HEADS)),
    ],
    ids=lambda e: type(getattr(e, "profile", e)).__name__,
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
        if (dense := encoding.bias(at, at)) is not None:
            yield dense

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
        (DistanceBias(PowerLaw(2)), {"bias"}),
        (DisplacementBias(2, 2), {"bias"}),
        (LocalFrameBias(2, 2), {"bias"}),
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
        (GaussianBias(2, 2, anisotropic=True), "translation"),
        (GaussianBias(1, 2, anisotropic=True), "E(d)"),
        (FadingMemory(2), "translation"),
        (DistanceBias(PowerLaw(2)), "E(d)"),
        (DisplacementBias(2, 2), "translation"),
        (LocalFrameBias(2, 2), "SE(d)"),
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
        (lambda: Rotary(2, 2, 4, directions="x"), "directions must be .* got 'x'"),
        (lambda: Rotary(3, 2, 4, directions="axes"), "3 axes need 6 channels .* got 4"),
        (lambda: RadialBasis(2, centers=1), "centers must be at least 2, got 1"),
        (lambda: LocalFrameBias(1, 2), "2 or 3 coordinates, got 1"),
    ],
)
def test_refuses(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# Saving


def test_an_encoding_of_ones_own_is_saved_from_a_module(tmp_path):
    """As docs/extending.md has it: another process loads it from a module, not from __main__."""
    page = (Path(__file__).parents[1] / "docs" / "extending.md").read_text(encoding="utf-8")
    code = re.search(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)[1]
    (tmp_path / "decay.py").write_text(code, encoding="utf-8")
    saving = """
import torch
from opformer import Layout, OperatorTransformer, Standardizer, Surrogate
options = {"channels": 8, "heads": 2, "layers": 1, "encoding": Decay(2, length=0.25)}
model = OperatorTransformer(1, 1, 1, **options)
layout = Layout(inputs={"f": 1}, outputs={"u": 1}, axes=[0])
Surrogate(model, Standardizer(1, 1, 0, 1), layout).save("own.pt")
"""
    loading = """
from opformer import load
encoding = load("own.pt").model.encoding
assert type(encoding).__module__ == "decay" and encoding.length == 0.25
"""

    def run(script):
        command = [sys.executable, "-c", script]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    for before in ("from decay import Decay", code):
        assert run(f"{before}\n{saving}").returncode == 0
        other = run(f"import decay\n{loading}")
        if before == code:
            assert "class '__main__:Decay' is not known" in other.stderr
        else:
            assert other.returncode == 0, other.stderr
