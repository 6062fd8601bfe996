"""What each discrete part of a transformer means on a domain: a statement a test, against analysis.

The causal mask has tests of its own (test_causal.py), and so have the demands on positional
encodings (test_encodings.py).
"""

from __future__ import annotations

import math
from copy import deepcopy

import meshio
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from cases import line, square
from scipy.integrate import quad_vec, solve_ivp
from tolerances import ROUNDING, difference
from torch import nn

from opformer import Attention, Domain, Encoder, kernel_integral
from opformer.encodings import Coordinates, Rotary, Sinusoidal
from opformer.grids import grid
from opformer.steps import attention_weights, similarity, weighted_mean
from opformer.testing import observed_order
from opformer.transformer import EncoderBlock

TIGHT = ROUNDING[torch.float64]
C, HEADS, N, M = 24, 3, 6, 9
GRADE = 1.5  # nodes crowd towards x = 0: cells are narrower there without bound


# Softmax attention is a normalised kernel integral, and log w is the measure


def query(t):
    """Smooth functions, (..., d) to (..., 3): a kernel that varies by up to e^10."""
    return 2 * torch.stack([(2 * t.sum(-1)).sin(), (3 * t[..., 0]).cos(), t[..., -1] + 1], -1)


def key(s):
    return 2 * torch.stack([(3 * s[..., 0]).sin(), s.sum(-1), (2 * s[..., -1]).cos()], -1)


def value(s):
    return torch.stack([(5 * s[..., 0]).sin(), 1 + s.sum(-1).square()], -1)


def integral(f, dim):
    """The integral of f over the unit interval or square, by scipy's adaptive quadrature."""

    def along(*coordinates):
        if len(coordinates) == dim:
            return f(torch.tensor(coordinates)).numpy()
        return quad_vec(lambda x: along(*coordinates, x), 0, 1, epsrel=1e-10)[0]

    return torch.from_numpy(along())


def normalised(q, key, value, dim, point, density):
    """∫ e^p v dμ / ∫ e^p dμ for queries (n, e); dμ is density(ξ) dξ at point(ξ), ξ in the cube."""

    def parts(at):
        s = point(at)
        e = density(at) * (q @ key(s) / math.sqrt(q.shape[-1])).exp()
        return torch.cat([e[:, None] * value(s), e[:, None]], -1)

    whole = integral(parts, dim)
    return whole[:, :-1] / whole[:, -1:]


def same(at):
    return at


def even(at):
    return 1.0


def graded(at):
    """Where a node that is numbered evenly lies."""
    return torch.cat([at[:1] ** GRADE, at[1:]])


def triangles(n):
    mesh = Domain.from_mesh(square(n, GRADE))
    return Domain(mesh.points[:, :2], mesh.weights)


def ticks(n, grade=1.0):
    return np.linspace(0, 1, n + 1) ** grade


MESHES = {
    "line": (1, lambda n: line(n + 1, GRADE), (32, 64, 128, 256)),
    "grid": (2, lambda n: grid(ticks(n, GRADE), ticks(n)), (16, 32, 64)),
    "triangles": (2, triangles, (16, 32, 64)),
}
every_mesh = pytest.mark.parametrize(("dim", "mesh", "sizes"), MESHES.values(), ids=MESHES)


def attend(t, source, weights, bias=None):
    """Attention of one head at the targets, (n, 2)."""
    q, k, v = (x[None] for x in (query(t), key(source.points), value(source.points)))
    return kernel_integral(q, k, v, weights, bias=bias)[0]


@every_mesh
def test_attention_converges_to_the_integral(dim, mesh, sizes):
    """With log w to that over the domain, in second order.

    Without it to the integral under the density of the nodes, another one: in first order, since a
    node at an end has half a cell and counts as much as any other.
    """
    t = torch.rand(5, dim)
    own = normalised(query(t), key, value, dim, same, even)
    nodal = normalised(query(t), key, value, dim, graded, even)
    gap = difference(nodal, own)
    assert gap > 0.04
    domains, h = [mesh(n) for n in sizes], [1 / n for n in sizes]
    weighted = [attend(t, at, at.weights) for at in domains]
    plain = [attend(t, at, None) for at in domains]
    to_own = [difference(y, own) for y in weighted]
    assert 1.8 < observed_order(h, to_own) < 2.2
    assert to_own[-1] < 20 * h[-1] ** 2
    to_nodal = [difference(y, nodal) for y in plain]
    assert 0.8 < observed_order(h, to_nodal) < 1.3
    assert to_nodal[-1] < gap / 5
    assert all(difference(y, own) > gap / 2 for y in plain)


def test_a_density_may_stand_in_the_kernel_or_in_the_weights():
    """A change of variables, x = ξ^1.5: log w = log dx/dξ + log dξ."""
    t, n = torch.rand(5, 1), 256
    xi = grid(ticks(n))
    at = Domain(xi.points**GRADE, xi.weights)
    log_density = (GRADE * xi.points[:, 0] ** (GRADE - 1)).log()
    y = attend(t, at, xi.weights, bias=log_density.expand(1, 5, -1))
    own = normalised(query(t), key, value, 1, same, even)
    assert difference(y, own) < 20 / n**2


# Padding is measure zero


def test_padding_is_measure_zero():
    """Points that are not there, a mask of -inf, and weights of zero are one thing."""
    x, points, w = torch.randn(M, C), torch.rand(M, 2), torch.rand(M) + 0.1
    attention = Attention(C, HEADS, encoding=Rotary(2, HEADS, C // HEADS))
    junk = torch.tensor([torch.nan, torch.inf, -torch.inf, 1e300])[:, None].expand(4, C)
    padded = Domain(torch.cat([points, torch.rand(4, 2)]), torch.cat([w, torch.zeros(4)]))
    y = attention(torch.cat([x, junk]), padded)[:M]
    assert difference(y, attention(x, Domain(points, w))) < TIGHT

    q, k, v = torch.randn(HEADS, N, 4), torch.randn(HEADS, M, 4), torch.randn(HEADS, M, 4)
    pad = torch.arange(M) >= 6
    mask = torch.zeros(M).masked_fill(pad, -torch.inf)
    masked = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    assert difference(kernel_integral(q, k[:, ~pad], v[:, ~pad]), masked) < TIGHT
    k, v = (x.masked_fill(pad[:, None], torch.nan) for x in (k, v))
    assert difference(kernel_integral(q, k, v, (~pad).double()), masked) < TIGHT


def test_a_point_fades_with_its_measure():
    """y = (Z y₀ + ε e^p v) / (Z + ε e^p), with y₀ and Z = ∫ e^p dμ those without the point."""
    w = torch.rand(M) + 0.1
    q, k, v = torch.randn(1, N, 4), torch.randn(1, M + 1, 4), torch.randn(1, M + 1, 2)
    e = (q @ k.mT / 2).exp()[0]
    z, y0 = e[:, :M] @ w, kernel_integral(q, k[:, :M], v[:, :M], w)[0]
    for epsilon in (0.0, 1e-6, 1e-3, 1.0, 1e3):
        y = kernel_integral(q, k, v, torch.cat([w, torch.tensor([epsilon])]))[0]
        own = epsilon * e[:, M]
        expected = (z[:, None] * y0 + own[:, None] * v[0, M]) / (z + own)[:, None]
        assert difference(y, expected) < TIGHT


# Cross-attention is an integral over another domain


def tokens(x):
    """C smooth functions of a place in space (..., d), of one, two or three coordinates."""
    waves = torch.linspace(0.3, 1.4, C)
    return 2 * torch.cos(waves * x.sum(-1, keepdim=True) + waves.flip(0) * 3 * x[..., :1])


def arc(n):
    """Half a circle, from a chain of chords that crowd towards one end; length is the measure."""
    angle = np.pi * ticks(n, GRADE)
    chords = np.c_[np.arange(n), np.arange(1, n + 1)]
    points = np.c_[np.cos(angle), np.sin(angle)]
    return Domain.from_mesh(meshio.Mesh(points, [("line", chords)]))


def on_the_arc(at):
    return torch.cat([(torch.pi * at).cos(), (torch.pi * at).sin()])


def sheet(n):
    """The surface z = x² over the unit square, in triangles; area is the measure."""
    mesh = square(n, GRADE)
    mesh.points[:, 2] = mesh.points[:, 0] ** 2
    return Domain.from_mesh(mesh)


def on_the_sheet(at):
    return torch.cat([at, at[:1] ** 2])


SOURCES = {
    "arc": (1, arc, (32, 64, 128, 256), on_the_arc, lambda at: torch.pi),
    "sheet": (2, sheet, (8, 16, 32), on_the_sheet, lambda at: (1 + 4 * at[0] ** 2).sqrt()),
}


@torch.no_grad()
@pytest.mark.parametrize(
    ("dim", "mesh", "sizes", "point", "density"), SOURCES.values(), ids=SOURCES
)
def test_cross_attention_is_an_integral_over_another_domain(dim, mesh, sizes, point, density):
    """Targets off the source: all heads, with the map of the output, in second order."""
    attention = Attention(C, HEADS, qk_norm=False)
    target = Domain(torch.rand(4, dim + 1) + 1.2, torch.zeros(4))
    x = tokens(target.points)
    heads = []
    for q, k, v, _ in slices_of(attention):
        own = normalised(
            q(x), lambda s, k=k: k(tokens(s)), lambda s, v=v: v(tokens(s)), dim, point, density
        )
        heads.append(own)
    exact = torch.cat(heads, -1) @ attention.out.weight.T + attention.out.bias
    sources = [mesh(n) for n in sizes]
    errors = [difference(attention(x, target, tokens(s.points), s), exact) for s in sources]
    h = [1 / n for n in sizes]
    assert 1.8 < observed_order(h, errors) < 2.2
    assert errors[-1] < 10 * h[-1] ** 2
    plain = [
        difference(attention(x, target, tokens(s.points), s.uniform()), exact) for s in sources
    ]
    assert min(plain) > 10 * errors[-1]


# Heads are several kernels


def slices_of(attention):
    """Each head's W^Q, W^K and W^V, d_model × d_k, and its rows of W^O, as the articles write it.

    The bias of a map goes with its slice.
    """

    def affine(layer, columns):
        w, b = layer.weight.T[:, columns], layer.bias
        return lambda x: x @ w + (0 if b is None else b[columns])

    d_k = attention.channels // attention.heads
    for i in range(attention.heads):
        head = slice(i * d_k, (i + 1) * d_k)
        maps = [affine(layer, head) for layer in (attention.query, attention.key, attention.value)]
        yield *maps, attention.out.weight.T[head]


@torch.no_grad()
@pytest.mark.parametrize("heads", [1, 3, 8])
def test_heads_are_kernels_side_by_side(heads):
    """[y_1, ..., y_h] W^O, and so the sum of y_i W^O_i over the rows that belong to each."""
    attention = Attention(C, heads, qk_norm=False)
    target, source = (Domain(torch.rand(n, 2), torch.rand(n) + 0.1) for n in (N, M))
    x, memory = torch.randn(N, C), torch.randn(M, C)
    y, parts, kernels, rows = attention(x, target, memory, source), [], [], []
    for q, k, v, w_o in slices_of(attention):
        assert q(x).shape == (N, C // heads)
        kernels.append(attention_weights(similarity(q(x), k(memory)), source.weights))
        parts.append(weighted_mean(kernels[-1], v(memory)))
        rows.append(parts[-1] @ w_o)
    out = attention.out
    assert difference(y, torch.cat(parts, -1) @ out.weight.T + out.bias) < TIGHT
    assert difference(y, sum(rows) + out.bias) < TIGHT
    # They are different kernels, each a density under the measure.
    for i, (a, alpha) in enumerate(
        zip(kernels, attention.kernel(x, target, memory, source), strict=True)
    ):
        assert difference(alpha * source.weights, a) < TIGHT
        assert difference(source.integrate((a / source.weights).T), torch.ones(N)) < TIGHT
        assert all(difference(a, b) > 0.01 for b in kernels[:i])


def test_several_kernels_have_the_parameters_of_one():
    counts = [
        sum(p.numel() for p in Attention(C, heads, qk_norm=False).parameters())
        for heads in (1, 2, 3, 8, C)
    ]
    assert counts == [4 * C * C + 3 * C] * 5  # W^Q, W^K, W^V, W^O; keys have no bias


# The residual is a base state plus an interaction correction


def scaled(block, factor):
    """Both corrections of the block times a factor: their last maps are linear."""
    block = deepcopy(block)
    with torch.no_grad():
        for layer in (block.attention.out, block.feed_forward[2]):
            layer.weight *= factor
            layer.bias *= factor
    return block


def of_a_block():
    return torch.randn(M, C), Domain(torch.rand(M, 2), torch.rand(M) + 0.1)


def test_without_corrections_the_state_stays():
    """Bit for bit in Pre-LN; Post-LN has no such path: it is the norm of the norm."""
    x, at = of_a_block()
    assert torch.equal(scaled(EncoderBlock(C, HEADS), 0)(x, at), x)
    post = scaled(EncoderBlock(C, HEADS, norm_first=False), 0)
    twice = F.layer_norm(F.layer_norm(x, [C]), [C])
    assert difference(post(x, at), twice) < TIGHT
    assert difference(post(x, at), x) > 0.1


def flow(block, at):
    """The right side of dx/dτ = A(LN x) + FFN(LN x)."""

    def velocity(x):
        heard = block.attention(block.attention_norm(x), at)
        return heard + block.feed_forward(block.feed_forward_norm(x))

    return velocity


@torch.no_grad()
def test_the_correction_is_linear_in_the_step():
    x, at = of_a_block()
    block = EncoderBlock(C, HEADS)
    velocity, epsilons, errors = flow(block, at)(x), (0.1, 0.05, 0.025, 0.0125), []
    for epsilon in epsilons:
        errors.append(difference((scaled(block, epsilon)(x, at) - x) / epsilon, velocity))
    # The feed-forward hears the attention's correction, whence the term of second order.
    assert 0.9 < observed_order(epsilons, errors) < 1.1
    block.feed_forward = nn.Sequential(nn.Identity(), nn.Identity(), nn.Linear(C, C))
    nn.init.zeros_(block.feed_forward[2].weight)
    nn.init.zeros_(block.feed_forward[2].bias)
    velocity = flow(block, at)(x)
    for epsilon in (*epsilons, 3.0, -1.0):
        assert difference(scaled(block, epsilon)(x, at) - x, epsilon * velocity) < TIGHT


@torch.no_grad()
def test_a_stack_is_euler_s_method():
    """L blocks of one set of parameters with corrections of 1/L: order 1 towards the flow."""
    x, at = of_a_block()
    block = EncoderBlock(C, HEADS)
    velocity = flow(block, at)

    def rate(_, y):
        return velocity(torch.from_numpy(y).view(M, C)).flatten().numpy()

    solution = solve_ivp(rate, (0, 1), x.flatten().numpy(), "DOP853", rtol=1e-10, atol=1e-10)
    end = torch.from_numpy(solution.y[:, -1]).view(M, C)
    assert difference(x, end) > 0.1
    depths = (4, 8, 16, 32, 64)
    stacks = [Encoder.of([scaled(block, 1 / depth)] * depth, nn.Identity()) for depth in depths]
    errors = [difference(stack(x, at), end) for stack in stacks]
    assert 0.9 < observed_order([1 / depth for depth in depths], errors) < 1.1
    assert errors[-1] < 0.1 / depths[-1]  # a block too few is 0.2 / L or more


# Layer norm


@torch.no_grad()
def test_layer_norm_divides_by_the_root():
    """(x - m) / √(σ² + ε) γ + β, of tokens so small that ε counts; not by σ² + ε."""
    norm = EncoderBlock(C, HEADS).attention_norm
    norm.weight += torch.randn(C)
    norm.bias += torch.randn(C)
    scales = torch.tensor([1e-6, 1e-4, 1e-3, 1e-2, 1.0, 1e3])[:, None]
    x = scales * (torch.randn(6, C) + 2)
    m = x.mean(-1, keepdim=True)
    variance = (x - m).square().mean(-1, keepdim=True)
    expected = (x - m) / (variance + norm.eps).sqrt() * norm.weight + norm.bias
    assert difference(norm(x), expected) < TIGHT
    # Each token by itself, so a finer mesh changes nothing.
    assert difference(norm(x[2]), expected[2]) < TIGHT


@pytest.mark.parametrize("norm_first", [True, False], ids=["pre-LN", "post-LN"])
def test_a_token_of_equal_features_stays_finite(norm_first):
    """σ = 0: the norm is β, and its gradient is bounded by γ / √ε."""
    block, (x, at) = EncoderBlock(C, HEADS, norm_first=norm_first), of_a_block()
    x[2], x[3] = 7.0, 0.0
    x.requires_grad_()
    normed = block.attention_norm(x)
    assert torch.equal(normed[2:4], block.attention_norm.bias.expand(2, C))
    (gradient,) = torch.autograd.grad(normed.sum(), x, retain_graph=True)
    assert gradient.isfinite().all()
    (steep,) = torch.autograd.grad(normed[2, 0], x)
    assert steep[2].norm() <= 1 / math.sqrt(block.attention_norm.eps)
    y = block(x, at)
    assert y.isfinite().all()
    assert torch.autograd.grad(y.square().sum(), x)[0].isfinite().all()


# Pre-LN and Post-LN


def untrained(depth, norm_first, start, seed):
    """An encoder at the start of training, 64 points that count alike, and normalised tokens."""
    torch.manual_seed(seed)
    at = Domain(torch.rand(64, 2), torch.ones(64))
    encoder = Encoder(depth, 32, 4, norm_first=norm_first, activation="relu")
    for block in encoder.blocks:
        start(block)
    return encoder, at, F.layer_norm(torch.randn(64, 32), [32])


def gradients(depth, norm_first, start, seed):
    """Sizes of three gradients: before the first block, after the last, and of its last map.

    The first two are of a loss that tells points apart: its gradient has mean zero over them. The
    third is of one whose gradient is random.
    """
    encoder, at, x = untrained(depth, norm_first, start, seed)
    x.requires_grad_()
    last = Encoder.of(encoder.blocks, nn.Identity())(x, at)
    y, g = encoder.norm(last), torch.randn(64, 32)
    apart = torch.autograd.grad(y, [x, last], g - g.mean(0), retain_graph=True)
    own = torch.autograd.grad(y, encoder.blocks[-1].feed_forward[2].weight, g)
    return [float(d.norm()) for d in (*apart, *own)]


def deaf(block):
    """Corrections that are random vectors of unit variance, and hear nothing."""
    for layer in (block.attention.out, block.feed_forward[2]):
        nn.init.zeros_(layer.weight)
        nn.init.normal_(layer.bias)


def xavier(block):
    """As torch's ``nn.Transformer`` starts: each correction is about as large as the state."""
    for p in block.parameters():
        if p.ndim > 1:
            nn.init.xavier_uniform_(p)


def linear(block):
    """As torch's linear layers start, and so the blocks here: about a tenth of that variance."""


DEPTHS = (4, 8, 16, 32)


def by_depth(norm_first, start, seeds):
    """Geometric means over the seeds: the ratio of first and last gradient, and the third."""
    sizes = [[gradients(depth, norm_first, start, s) for s in range(seeds)] for depth in DEPTHS]
    first, last, own = torch.tensor(sizes).log().mean(1).T
    return (first - last).exp(), own.exp()


def test_the_path_of_the_gradient():
    """Where corrections send nothing back Pre-LN hands the gradient on, and Post-LN halves it.

    A block has two norms of a state and a correction of variance one each: 1/√2 for each norm.
    """
    kept, _ = by_depth(True, deaf, 1)
    assert difference(kept, torch.ones(4)) < TIGHT
    lost, _ = by_depth(False, deaf, 4)
    a_block = (lost[-1] / lost[0]).log2() / (DEPTHS[-1] - DEPTHS[0])
    # Off by a few per cent: variances are those of 32 random numbers, of which a norm takes one.
    assert -1.1 < a_block < -0.9


@pytest.mark.parametrize(("start", "factor"), [(xavier, 100), (linear, 1.5)])
def test_pre_ln_keeps_the_gradient_and_post_ln_loses_it_with_depth(start, factor):
    """Measured, as the mean over six random models.

    Pre-LN: what arrives at the first block is not less than what left the last, nor more than about
    √L times as much, since the l-th correction hears a state of size √l.

    Post-LN: it decays with depth, by up to 1/√2 a block. A mean over many points sends little back
    to each of them, while the norm divides by what the mean has added: what would tell the points
    apart is lost on the way. From 4 to 32 blocks 0.7 to 0.0005 of it is left, with the smaller maps
    0.93 to 0.26; the standard errors are factors of 1.6 and 1.2.
    """
    kept, _ = by_depth(True, start, 6)
    lost, _ = by_depth(False, start, 6)
    assert (kept > 1).all()
    assert (kept < 2 * torch.tensor(DEPTHS).sqrt()).all()
    assert (lost < 1).all()
    assert (lost.diff() < 0).all()
    assert lost[-1] < lost[0] / factor


@torch.no_grad()
def test_post_ln_forgets_where_it_is():
    """Its state tends to a constant over the domain; the residual of Pre-LN keeps some of it."""
    shares = {}
    for norm_first in (True, False):
        encoder, at, x = untrained(24, norm_first, xavier, 0)
        y = encoder(x, at)
        shares[norm_first] = float((y - y.mean(0)).square().sum() / y.square().sum())
    assert shares[True] > 0.05
    assert shares[False] < 1e-3


def test_at_the_last_block_it_is_the_other_way_about():
    """There the gradient does not depend on the depth in Post-LN, and in Pre-LN falls as 1/√L.

    Xiong et al., arXiv:2002.04745, theorem 1.
    """
    slopes = [
        observed_order(DEPTHS, by_depth(norm_first, xavier, 6)[1].tolist())
        for norm_first in (True, False)
    ]
    assert -0.75 < slopes[0] < -0.35
    assert -0.15 < slopes[1] < 0.15


# Permutations, and what positions add


@torch.no_grad()
@pytest.mark.parametrize("norm_first", [True, False], ids=["pre-LN", "post-LN"])
def test_without_positions_an_encoder_sees_a_set(norm_first):
    """It commutes with permutations of the tokens, wherever the points are."""
    encoder, (x, at) = Encoder(3, C, HEADS, norm_first=norm_first), of_a_block()
    order = torch.randperm(M)
    y = encoder(x, at)
    shuffled = Domain(torch.rand(M, 2), at.weights[order])
    assert difference(encoder(x[order], shuffled), y[order]) < TIGHT
    # The measure goes with the tokens: without it they are other ones.
    assert difference(encoder(x[order], at), y[order]) > 1e-3


@torch.no_grad()
@pytest.mark.parametrize(
    "make",
    [lambda: Sinusoidal(2, C, unit=0.1), lambda: Coordinates(2, C)],
    ids=["sinusoidal", "coordinates"],
)
def test_positions_make_a_function_of_a_set(make):
    """Tokens at other places give something else; numbering the places anew does not."""
    encoder, encoding, (x, at) = Encoder(3, C, HEADS), make(), of_a_block()
    at, order = at.uniform(), torch.randperm(M)
    y = encoder(encoding.embed(x, at), at)
    moved = encoder(encoding.embed(x[order], at), at)
    assert difference(moved, y[order]) > 0.01
    numbered = at.take(order)
    assert difference(encoder(encoding.embed(x[order], numbered), numbered), y[order]) < TIGHT


# The scale of the scores


WIDTHS = (4, 16, 64, 256, 1024)


def scores(d_k, n, m):
    """Of queries and keys with channels of mean 0 and variance 1."""
    return similarity(torch.randn(n, d_k), torch.randn(m, d_k))


@pytest.mark.parametrize("d_k", WIDTHS)
def test_scores_have_variance_one_for_any_width(d_k):
    q, k = torch.randn(2, 4000, 1, d_k)
    p = similarity(q, k)
    # The variance of 4000 independent scores is off by 0.03 or less (4th moment 3 + 6/d_k).
    assert p.square().mean().item() == pytest.approx(1, abs=0.15)
    assert p.mean().item() == pytest.approx(0, abs=0.1)


def entropy(a):
    return -torch.special.xlogy(a, a).sum(-1).mean().item()


def test_the_scale_keeps_the_softmax_from_saturating():
    """Of scores of variance one the entropy is log m - 1/2, for any width.

    Without the scale the variance is d_k, and the softmax chooses one source.
    """
    n, m = 64, 512
    p = {d_k: scores(d_k, n, m) for d_k in WIDTHS}
    for x in p.values():
        assert entropy(attention_weights(x)) == pytest.approx(math.log(m) - 0.5, abs=0.1)
    unscaled = [entropy(attention_weights(x * math.sqrt(d_k))) for d_k, x in p.items()]
    assert (np.diff(unscaled) < 0).all()
    assert unscaled[0] > 0.5 * math.log(m)
    assert unscaled[-1] < 0.05 * math.log(m)


# The sinusoidal encoding is a function of place


def test_a_step_rotates_each_pair():
    """p(t + δ) = R(δ/λ_j) p(t) pair by pair, for any real step, at any t."""
    encoding, t = Sinusoidal(1, 16, unit=0.3), 20 * torch.rand(7, 1)
    wavelengths = torch.tensor([0.3 * 10000 ** (2 * j / 16) for j in range(8)])
    for step in (0.01, 1.0, -math.pi):
        c, s = (step / wavelengths).cos(), (step / wavelengths).sin()
        sine, cosine = encoding.table(t).unflatten(-1, (8, 2)).unbind(-1)
        turned = torch.stack([c * sine + s * cosine, c * cosine - s * sine], -1).flatten(-2)
        assert difference(encoding.table(t + step), turned) < TIGHT


def test_position_and_value_convert_into_each_other():
    """The slowest pair tells the place within half its turn: 10000^(14/16) π = 9934 here."""
    t = 9900 * torch.rand(50, 1)
    sine, cosine = Sinusoidal(1, 16).table(t)[:, -2:].unbind(-1)
    assert difference(torch.atan2(sine, cosine) * 10000 ** (14 / 16), t[:, 0]) < TIGHT
