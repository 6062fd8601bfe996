"""The causal mask as a Volterra operator: by time and not by index, with weights, on any grid.

Every promise is tested twice: for nodes of a time grid, whose last cell is cut, and for atoms.
"""

from __future__ import annotations

import json
import math
from copy import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from cases import line
from test_attention import DistanceBias
from test_integral import WEIGHTS, every_path, weights_of
from tolerances import GRADIENT, ROUNDING, difference

from opformer import Attention, Decoder, Domain, Encoder, OperatorTransformer, stack
from opformer.causal import Past
from opformer.config import build, describe
from opformer.encodings import (
    Compose,
    Coordinates,
    FadingMemory,
    GaussianBias,
    LocalFrameBias,
    PositionalEncoding,
    Rotary,
)
from opformer.integral import kernel_integral
from opformer.testing import check_model, observed_order
from opformer.transformer import DecoderBlock, EncoderBlock

TIGHT = ROUNDING[torch.float64]
H, N, M, E, R = 2, 5, 7, 4, 3
C = 24
# Targets and sources out of order, some at one time, one target before every source.
TARGETS = torch.tensor([0.5, -3.0, 0.2, 1.0, 0.5])
SOURCES = torch.tensor([0.5, 0.9, -0.3, 2.0, 0.2, 0.5, -1.0])


# The operator


every_measure = pytest.mark.parametrize("atoms", [False, True], ids=["cells", "atoms"])


def share(time, times, weights):
    """Of the last live time before ``time``: which, and what part of its cell lies before."""
    live = sorted({s.item() for s, w in zip(times, weights, strict=True) if w > 0})
    heard = [s for s in live if s <= time]
    if not heard:
        return -math.inf, 1.0
    last, later = heard[-1], [s for s in live if s > time]
    if len(heard) == 1:
        return last, 1.0
    cell = ((later[0] if later else last) - heard[-2]) / 2  # the last one's is a half cell
    return last, ((last - heard[-2]) / 2 + float(time) - last) / cell


def ending(source, time, atoms):
    """The domain that ends at a time: its points, with what is left of their weights."""
    times = source.points[:, 1]
    keep = times <= time
    weights = source.weights.clone()
    if not atoms:
        last, part = share(time, times, weights)
        weights[times == last] *= part
    return replace(source, weights=weights).take(keep), keep


def volterra(q, k, v, w, t, s, factors, bias, atoms):
    """Target by target, a sum over the sources that are not later."""
    rows, given = [], w
    for i in range(len(t)):
        past = [j for j in range(len(s)) if s[j] <= t[i] and w[j] > 0]
        if not atoms:
            last, part = share(t[i], s, given)
            w = torch.where(s == last, given * part, given)
        if not past:
            rows.append(torch.zeros_like(v[..., 0, :]))
            continue
        p = torch.stack(
            [
                (q[..., i, :] * k[..., j, :]).sum(-1) / math.sqrt(E)
                + (factors[0][..., i, :] * factors[1][..., j, :]).sum(-1)
                + bias[..., i, j]
                for j in past
            ]
        )
        a = torch.stack([w[j] for j in past])[:, None, None] * (p - p.amax(0)).exp()
        rows.append(sum(a[i, ..., None] * v[..., j, :] for i, j in enumerate(past)))
        rows[-1] = rows[-1] / a.sum(0)[..., None]
    return torch.stack(rows, -2)


def operands(dtype=torch.float64):
    shapes = [(2, H, N, E), (2, H, M, E), (2, H, M, 3), (2, H, N, R), (2, H, M, R), (H, N, M)]
    return [torch.randn(*shape).to(dtype).requires_grad_() for shape in shapes]


@every_path
@every_measure
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("ordered", [False, True], ids=["", "in order"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_the_definition_and_its_gradients(path, atoms, weights, ordered, dtype):
    x, w = operands(dtype), weights_of(weights)
    q, k, v, fq, fk, bias = x
    t, s = TARGETS.to(dtype), (SOURCES.sort().values if ordered else SOURCES).to(dtype)
    measure = torch.ones(M) if w is None else w
    past = Past(t, s, measure, atoms=atoms)
    y = path(q, k, v, w, factors=(fq, fk), bias=lambda rows: bias[..., rows, :], past=past)
    exact = [x.detach().double().requires_grad_() for x in x]
    expected = volterra(*exact[:3], measure, TARGETS, s.double(), exact[3:5], exact[5], atoms)
    g = torch.randn_like(expected)
    assert (y[..., 1, :] == 0).all()  # the target before every source
    assert difference(y, expected) < ROUNDING[dtype]
    gradients = torch.autograd.grad(y, x, g.to(dtype))
    for got, want in zip(gradients, torch.autograd.grad(expected, exact, g), strict=True):
        assert difference(got, want) < GRADIENT[dtype]


@pytest.mark.parametrize("encoding", [None, DistanceBias(1)], ids=["", "dense"])
def test_later_sources_are_not_read(encoding, monkeypatch):
    """Where they lie in the order of time: about half of all pairs."""
    pairs, plain = [], F.scaled_dot_product_attention

    def counted(q, k, v, **options):
        pairs.append(q.shape[-2] * k.shape[-2])
        return plain(q, k, v, **options)

    monkeypatch.setattr("opformer._fused.F.scaled_dot_product_attention", counted)
    attention, n = Attention(8, 1, encoding=encoding, causal_axis=0), 1500
    order = torch.randperm(n)
    grid, x = line(n), torch.randn(n, 8)
    y = attention(x, grid)
    assert 0.5 < sum(pairs) / n**2 < 0.6
    pairs.clear()
    assert difference(attention(x[order], grid.take(order)), y[order]) < TIGHT
    assert sum(pairs) == n**2


@every_measure
def test_a_mask_that_is_made_again(atoms, monkeypatch):
    """A large mask is not kept for the backward pass; values and gradients are the same."""
    x, w = operands()[:3], weights_of("nulls")
    past, g = Past(TARGETS, SOURCES, w, atoms=atoms), torch.randn(2, H, N, 3)
    found = []
    for entries in (2**22, 0):
        monkeypatch.setattr("opformer._fused.MASK_ENTRIES", entries)
        y = kernel_integral(*x, w, past=past)
        found.append([y, *torch.autograd.grad(y, x, g)])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@every_path
def test_a_bias_is_not_read_where_the_source_is_later(path):
    """A kernel of t - s need not be defined for s > t: here a root of it, NaN there."""
    q, k, v, *_ = operands()
    lag = TARGETS[:, None] - SOURCES
    bias = (-lag.sqrt()).expand(H, N, M).clone().requires_grad_()
    y = path(q, k, v, weights_of("graded"), bias=bias, past=Past(TARGETS, SOURCES))
    assert y.isfinite().all()
    (gradient,) = torch.autograd.grad(y.square().sum(), bias)
    assert gradient.isfinite().all()
    assert (gradient[:, lag < 0] == 0).all()
    assert (gradient[:, 3] != 0).any()


def test_in_order_it_is_the_mask_by_index():
    """With increasing times and equal weights: torch's own ``is_causal``."""
    q, k, v = torch.randn(3, 2, H, M, E)
    t = torch.rand(M).add(0.01).cumsum(0)
    plain = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    by_time = kernel_integral(q, k, v, past=Past(t, t))
    assert difference(by_time, plain) < TIGHT
    order = torch.randperm(M)
    shuffled = (x[..., order, :] for x in (q, k, v))
    t = t[order]
    y = kernel_integral(*shuffled, past=Past(t, t))
    assert difference(y, plain[..., order, :]) < TIGHT


# Attention


def encodings():
    return {
        "none": None,
        "rotary": Rotary(2, H, C // H),
        "gaussian": GaussianBias(2, H, C),
        "dense": DistanceBias(H),
        "all": Compose(Rotary(2, H, C // H), GaussianBias(2, H, C), DistanceBias(H)),
    }


every_encoding = pytest.mark.parametrize("name", encodings())


def domain(n, *batch, null=0):
    """Space and time, (x, t), with times that several points share."""
    x, t = 2 * torch.rand(*batch, n) - 1, torch.randint(-4, 5, (*batch, n)) / 4
    weights = 10 ** (2 * torch.rand(*batch, n) - 2)
    weights[..., n - null :] = 0
    return Domain(torch.stack([x, t], -1), weights)


def past(at, t):
    return at.points[..., 1] <= t


def over_the_past(attention, x, target, memory, source):
    """Without a mask: each target by itself, with a domain that ends at its time."""
    plain = copy(attention)  # the same parameters
    plain.causal_axis = None
    rows = []
    for i in range(target.size):
        so_far, keep = ending(source, target.points[i, 1], attention.atoms)
        rows.append(plain(x[i : i + 1], target.take(slice(i, i + 1)), memory[keep], so_far))
    return torch.cat(rows)


@every_encoding
@every_measure
@pytest.mark.parametrize("chunk", [None, 2])
def test_attention_is_that_over_the_past(name, atoms, chunk):
    attention = Attention(C, H, encoding=encodings()[name], causal_axis=1, atoms=atoms)
    target, source = domain(9), domain(11, null=2)
    target.points[4, 1] = -2  # before every source
    x, memory = torch.randn(9, C).requires_grad_(), torch.randn(11, C).requires_grad_()
    y = attention(x, target, memory, source, chunk=chunk)
    expected = over_the_past(attention, x, target, memory, source)
    assert difference(y, expected) < TIGHT
    assert torch.equal(y[4], attention.out.bias)
    inputs, g = [x, memory, *attention.parameters()], torch.randn_like(y)
    for got, want in zip(
        torch.autograd.grad(y, inputs, g), torch.autograd.grad(expected, inputs, g), strict=True
    ):
        assert difference(got, want) < GRADIENT[torch.float64]


@every_encoding
def test_a_ragged_batch_is_a_loop(name):
    attention = Attention(C, H, encoding=encodings()[name], causal_axis=-1)
    sources, target = [domain(11), domain(6)], domain(5, 2)
    memory, x = torch.randn(2, 11, C), torch.randn(2, 5, C)
    memory[1, 6:] = math.nan
    y = attention(x, target, memory, stack(sources))
    own = attention(memory, stack(sources))
    for i, source in enumerate(sources):
        tokens, at = memory[i, : source.size], Domain(target.points[i], target.weights[i])
        assert difference(y[i], attention(x[i], at, tokens, source)) < TIGHT
        assert difference(own[i, : source.size], attention(tokens, source)) < TIGHT


@every_encoding
def test_the_order_of_the_points_is_no_order(name):
    attention, at = Attention(C, H, encoding=encodings()[name], causal_axis=1), domain(11)
    x, order = torch.randn(11, C), torch.randperm(11)
    y = attention(x, at)
    assert difference(attention(x[order], at.take(order)), y[order]) < TIGHT


@every_encoding
def test_a_split_point(name):
    """Also at its own time, and copies apart in the array."""
    attention, at = Attention(C, H, encoding=encodings()[name], causal_axis=1), domain(11)
    x = torch.randn(11, C)
    copies = torch.cat([torch.arange(11), torch.tensor([4, 4])])
    shares = torch.ones(13).masked_fill(copies == 4, 1 / 3)
    split = Domain(at.points[copies], at.weights[copies] * shares)
    y = attention(x, at)
    assert difference(attention(x[copies], split), y[copies]) < TIGHT


# Under autocast the norm of the queries is not fused, and torch says so once.
unfused = pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")


@unfused
@every_encoding
@pytest.mark.parametrize("carried", [False, True], ids=["mask", "channels"])
@pytest.mark.parametrize("kind", ["float64", "float32", "autocast"])
@pytest.mark.parametrize("weights", ["graded", "equal", "no past measure"])
def test_no_source_in_the_past(name, carried, kind, weights):
    """What is left is the bias of the output; gradients are finite, by whatever path."""
    dtype = torch.float64 if kind == "float64" else torch.float32
    attention = Attention(C, H, encoding=encodings()[name], causal_axis=1).to(dtype)
    target, source = domain(5).to(dtype=dtype), domain(7).to(dtype=dtype)
    target.points[2, 1] = -2
    if weights == "equal":
        source = source.uniform()
    elif weights == "no past measure":
        source.points[3, 1], source.weights[3] = -3, 0
    x, memory = torch.randn(2, 7, C).to(dtype).requires_grad_()
    with pytest.MonkeyPatch.context() as patch:
        if carried:
            patch.setattr("opformer._fused._needs_channels", lambda q: True)
        with torch.autocast("cpu", torch.bfloat16, enabled=kind == "autocast"):
            y = attention(x[:5], target, memory, source)
            y.double().square().sum().backward()
    bias = attention.out.bias.to(y.dtype)
    assert torch.equal(y[2], bias)
    assert not torch.equal(y[0], bias)
    assert y.isfinite().all()
    assert all(p.grad.isfinite().all() for p in attention.parameters())


@unfused
@every_encoding
@pytest.mark.parametrize("kind", ["float64", "float32", "autocast"])
@pytest.mark.parametrize("carried", [False, True], ids=["mask", "channels"])
def test_the_future_of_the_values_is_not_heard(name, kind, carried):
    """Bit for bit, in more than one block of the fused kernel; nor is there a gradient."""
    dtype, n = torch.float64 if kind == "float64" else torch.float32, 700
    attention = Attention(C, H, encoding=encodings()[name], causal_axis=1).to(dtype)
    at, x = domain(n).to(dtype=dtype), torch.randn(n, C).to(dtype).requires_grad_()
    early = past(at, 0.0)
    changed = torch.where(early[:, None], x, 100 * torch.randn(n, C)).to(dtype)
    with pytest.MonkeyPatch.context() as patch:
        if carried:
            patch.setattr("opformer._fused._needs_channels", lambda q: True)
        with torch.autocast("cpu", torch.bfloat16, enabled=kind == "autocast"):
            y, other = attention(x, at), attention(changed, at)
            (gradient,) = torch.autograd.grad(y[early].double().sum(), x)
    assert torch.equal(other[early], y[early])
    assert not (other[~early] == y[~early]).all(-1).any()
    assert (gradient[~early] == 0).all()
    assert (gradient[early] != 0).any(-1).all()


@pytest.mark.parametrize("axis", ["t", 1.0, True])
def test_an_axis_that_is_no_number_is_refused(axis):
    with pytest.raises(ValueError, match="must be the number of a coordinate, got"):
        Attention(C, H, causal_axis=axis)


@pytest.mark.parametrize("axis", ["t", 2, -3])
def test_a_model_knows_its_axes(axis):
    with pytest.raises(ValueError, match=f"causal_axis must be one of 2 coordinates, got {axis!r}"):
        make(causal_axis=axis)


def test_a_bad_axis_is_refused():
    for axis in (2, -3):
        with pytest.raises(ValueError, match=rf"one of 2 coordinates, got {axis} for points \(7,"):
            Attention(C, H, causal_axis=axis)(torch.randn(7, C), domain(7))


# Blocks and the whole model

VARIANTS = {
    "default": {},
    "dense": {"encoding": Compose(Coordinates(2, C), DistanceBias(H))},
    "post-LN": {"norm_first": False},
    "decoder": {"decoder_layers": 2},
    "post-LN decoder": {"norm_first": False, "decoder_layers": 1},
    "swiglu": {"activation": "swiglu", "qk_norm": False},
}
every_variant = pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)


def make(**options):
    options = {"channels": C, "heads": H, "layers": 3, "causal_axis": 1} | options
    return OperatorTransformer(2, 2, 3, **options).eval()


@every_variant
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_the_model_does_not_see_the_future_of_its_fields(options, dtype):
    """Bit for bit, at its own points and at targets."""
    net, source, target = make(**options).to(dtype), domain(60), domain(9)
    u, v = torch.randn(60, 2), torch.randn(9, 2)
    early = past(source, 0.0)
    changed = torch.where(early[:, None], u, 100 * torch.randn(60, 2))
    assert torch.equal(net(source, changed)[early], net(source, u)[early])
    assert not torch.equal(net(source, changed), net(source, u))
    early = past(target, 0.0)
    later = torch.where(early[:, None], v, 100 * torch.randn(9, 2))
    y, other = (
        net(source, u, target, target_fields=v),
        net(source, changed, target, target_fields=later),
    )
    assert torch.equal(other[early], y[early])
    assert not (other[~early] == y[~early]).any()
    assert not torch.equal(net(source, u + 1, target, target_fields=v)[early], y[early])


@every_variant
@every_measure
def test_the_model_is_that_of_a_domain_that_ends_now(options, atoms):
    """Positions and weights of later points do not matter either, up to rounding."""
    net, source, u = make(**options, atoms=atoms), domain(30), torch.randn(30, 2)
    y = net(source, u)
    for time in source.points[:, 1].unique():
        so_far, keep = ending(source, time, atoms)
        assert difference(net(so_far, u[keep]), y[keep]) < TIGHT


@every_variant
def test_the_model_without_a_mask_is_another(options):
    source, u = domain(30), torch.randn(30, 2)
    net, free = make(**options), make(**options | {"causal_axis": None})
    free.load_state_dict(net.state_dict())
    last = source.points[:, 1] == source.points[:, 1].max()
    assert difference(net(source, u), free(source, u)) > 1e-3
    assert (net(source, u) != free(source, u))[~last].any(-1).all()


@every_variant
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_the_contracts_hold(options, dtype):
    check_model(make(**options), dtype=dtype)


def test_translations_are_left():
    encoding = Compose(Rotary(2, H, C // H), GaussianBias(2, H))
    check_model(make(encoding=encoding), symmetry="translation")


def test_the_options_reach_every_attention():
    stacks = [k(2, C, H, causal_axis=1, atoms=True) for k in (Encoder, Decoder)]
    blocks = [k(C, H, causal_axis=1, atoms=True) for k in (EncoderBlock, DecoderBlock)]
    for module in (*stacks, *blocks, make(decoder_layers=2, atoms=True)):
        options = [(m.causal_axis, m.atoms) for m in module.modules() if isinstance(m, Attention)]
        assert options
        assert set(options) == {(1, True)}
    assert make(causal_axis=None).encoder.blocks[0].attention.causal_axis is None


def test_described_and_built_again():
    attention = Attention(C, H, causal_axis=-1, atoms=True)
    for module in (make(), make(atoms=True), make(causal_axis=None), attention):
        again = build(json.loads(json.dumps(describe(module))))
        assert again.causal_axis == module.causal_axis
        assert again.atoms == module.atoms
    net, source, u = make(decoder_layers=1), domain(9), torch.randn(9, 2)
    again = build(describe(net)).eval()
    again.load_state_dict(net.state_dict())
    assert torch.equal(again(source, u), net(source, u))
    config = describe(net)
    del config["arguments"]["causal_axis"]  # as older files are
    assert build(config).causal_axis is None


def test_nothing_is_interpolated_from_the_future():
    source, u, target = domain(9), torch.randn(9, 2), domain(4)
    with pytest.raises(ValueError, match="look ahead: give them at the targets as target_fields"):
        make()(source, u, target)
    assert make()(source, u, target, target_fields=torch.zeros(4, 2)).shape == (4, 3)
    assert make(decoder_layers=1)(source, u, target).shape == (4, 3)
    geometry = OperatorTransformer(2, 0, 1, channels=C, heads=H, layers=1, causal_axis=1)
    assert geometry(source, target=target).shape == (4, 1)


# Convergence to the integral up to t


class Fading(PositionalEncoding):
    """The kernel exp(-rate (t - s)); the softmax cancels the part of t."""

    def __init__(self, rate):
        super().__init__()
        self.rate = rate

    def factors(self, target, source, tokens):
        return torch.full((1, target.size, 1), self.rate), source.points[None]


def memory_operator(rate, *, atoms=False):
    """Attention that is nothing but the kernel: no scores, values as they are."""
    attention = Attention(2, 1, encoding=Fading(rate), causal_axis=0, atoms=atoms)
    with torch.no_grad():
        for p in attention.parameters():
            p.zero_()
        attention.value.weight.copy_(torch.eye(2))
        attention.out.weight.copy_(torch.eye(2))
    return attention


def signal(t):
    return torch.cat([(3 * t).cos(), t], -1)


def memory(rate, t):
    """The exact integral of kernel times signal up to t, over that of the kernel; (n, 2)."""
    if not rate:
        return torch.cat([(3 * t).sin() / (3 * t), t / 2], -1)
    e = (rate * t).exp()
    total = (e - 1) / rate
    cosine = (e * (rate * (3 * t).cos() + 3 * (3 * t).sin()) - rate) / (rate**2 + 9)
    return torch.cat([cosine / total, (e * (rate * t - 1) + 1) / rate**2 / total], -1)


SIZES = (80, 160, 320, 640)
every_rate = pytest.mark.parametrize("rate", [0.0, 2.0])
every_grid = pytest.mark.parametrize("grade", [1.0, 1.5])


def grids(grade):
    return [line(n, grade, jitter=0.8, seed=n) for n in SIZES]


def rms(error):
    """Over many targets: where the worst one lies in its step is chance."""
    return error.square().mean().sqrt().item()


@every_rate
@every_grid
def test_second_order_where_no_cell_is_cut(rate, grade):
    """Sources at the centres of the time steps, each an atom; targets at the ends of the steps."""
    errors = []
    for grid in grids(grade):
        t = grid.points
        steps = Domain((t[1:] + t[:-1]) / 2, (t[1:] - t[:-1])[:, 0])
        ends = grid.take(slice(1, None))
        net = memory_operator(rate, atoms=True)
        y = net(signal(ends.points), ends, signal(steps.points), steps)
        errors.append(difference(y, memory(rate, ends.points)))
    assert errors[-1] < 1e-4
    observed_order([1 / n for n in SIZES], errors, at_least=1.8)


@every_rate
@every_grid
def test_second_order_at_nodes_whose_cell_is_cut(rate, grade):
    errors = []
    for grid in grids(grade):
        t = grid.points
        y = memory_operator(rate)(signal(t), grid)
        assert difference(y[0], signal(t)[0]) < TIGHT  # nothing but itself
        errors.append(difference(y[1:], memory(rate, t[1:])))
    assert errors[-1] < 1e-4
    observed_order([1 / n for n in SIZES], errors, at_least=1.8)


@every_rate
@every_grid
def test_second_order_between_the_nodes(rate, grade):
    """A target anywhere: the last cell is cut where the target is."""
    errors = []
    for grid in grids(grade):
        t = torch.linspace(0.013, 0.987, 61)[:, None]
        target = Domain(t, torch.zeros(61))
        y = memory_operator(rate)(signal(t), target, signal(grid.points), grid)
        errors.append(rms(y - memory(rate, t)))
    observed_order([1 / n for n in SIZES], errors, at_least=1.8)


@every_rate
@every_grid
def test_an_output_does_not_know_the_grid_that_follows(rate, grade):
    """Nor its weights: the trapezoidal rule on the grid so far."""
    grid = line(40, grade, jitter=0.8)
    y = memory_operator(rate)(signal(grid.points), grid)
    for n in range(1, 40):
        t = grid.points[: n + 1]
        so_far = Domain.from_points(t, rule="interval")
        assert difference(memory_operator(rate)(signal(t), so_far)[-1], y[n]) < TIGHT


@every_rate
def test_nor_does_a_target_between_the_nodes(rate):
    """It holds the last value, whether the grid goes on or not."""
    grid, target = line(40, 1.5, jitter=0.8), Domain(torch.tensor([[0.47]]), torch.zeros(1))
    n = int((grid.points < 0.47).sum())
    so_far = Domain.from_points(grid.points[:n], rule="interval")
    x = signal(target.points)
    y = memory_operator(rate)(x, target, signal(grid.points), grid)
    assert difference(memory_operator(rate)(x, target, signal(so_far.points), so_far), y) < TIGHT


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_times_that_differ_by_rounding_are_one(dtype):
    """Layers of a mesh in space and time, whose nodes were counted in other ways."""
    net, whole, u = make().to(dtype), space_time(12)(12), torch.randn(36, 2).to(dtype)
    y = net(whole, u)
    jitter = 3 * torch.finfo(dtype).eps * (torch.rand(36) - 0.5)
    points = whole.points * torch.stack([torch.ones(36), 1 + jitter], -1)
    assert difference(net(replace(whole, points=points), u), y) < ROUNDING[dtype]


@every_measure
def test_what_is_not_heard_settles_no_times(atoms):
    """A target, or a point of measure zero, at a huge time makes no other times equal."""
    net, source, u = make(atoms=atoms).float(), space_time(12)(12), torch.randn(36, 2)
    y = net(source, u)
    late = torch.tensor([[0.5, 1e9]])
    null = Domain(torch.cat([source.points, late]), torch.cat([source.weights, torch.zeros(1)]))
    heard = net(null, torch.cat([u, torch.zeros(1, 2)]))[:36]
    assert difference(heard, y) < ROUNDING[torch.float32]
    asked = Domain(torch.cat([source.points[5:6], late]), torch.zeros(2))
    z = net(source, u, asked, target_fields=torch.cat([u[5:6], u[:1]]))
    assert difference(z[:1], y[5:6]) < ROUNDING[torch.float32]


@every_rate
@every_grid
def test_first_order_of_atoms_and_why(rate, grade):
    r"""A node's cell reaches half a step beyond its own time, and counts as a whole.

    With β = α(t,t) h₊/2, h₊ the step after t, the result is (y + β v)/(1 + β) + O(h²): y to first
    order, since v(t) - y(t) is not zero. At the last node nothing reaches beyond.
    """
    errors, rest, last = [], [], []
    for grid in grids(grade):
        t, x = grid.points, signal(grid.points)
        y = memory_operator(rate, atoms=True)(x, grid)
        assert difference(y[0], x[0]) < TIGHT  # nothing but itself
        inner, at = slice(1, -1), t[1:-1]
        exact, alpha = memory(rate, at), rate / (1 - (-rate * at).exp()) if rate else 1 / at
        beta = alpha * (t[2:] - at) / 2
        errors.append(difference(y[inner], exact))
        rest.append(difference(y[inner], (exact + beta * x[inner]) / (1 + beta)))
        last.append(difference(y[-1], memory(rate, t[-1:])[0]))
    h = [1 / n for n in SIZES]
    assert 0.85 < observed_order(h, errors) < 1.15
    observed_order(h, rest, at_least=1.8)
    observed_order(h, last, at_least=1.8)


@every_rate
def test_without_weights_another_measure(rate):
    """Equal weights on a graded grid converge to no integral over time."""
    grid = line(320, 1.5, jitter=0.8)
    late = grid.points[:, 0] > 0.2
    x, net = signal(grid.points), memory_operator(rate)
    exact = memory(rate, grid.points[late])
    assert difference(net(x, grid)[late], exact) < 0.02
    assert difference(net(x, grid.uniform())[late], exact) > 0.1


# Deep models: observed order, and step after step


def random_grids(n, grade):
    return [line(n, grade, jitter=0.8, seed=seed) for seed in range(4)]


def motion(t):
    return torch.cat([(3 * t).cos(), (2 * t).sin()], -1)


@pytest.mark.parametrize("options", [{}, {"decoder_layers": 1}], ids=["", "decoder"])
def test_a_deep_model_converges_with_order_two(options):
    """Contract C9 for a causal model, on graded grids with random steps."""
    net = OperatorTransformer(1, 2, 2, channels=C, heads=H, layers=3, causal_axis=0, **options)
    # Some steps after the start: within the first ones a rectangle is much of the past.
    fine, t = line(4001), torch.linspace(0.1, 1, 50)[:, None]
    target = Domain(t, torch.zeros(50))

    def at(grid):
        with torch.no_grad():
            return net(grid, motion(grid.points), target, target_fields=motion(t))

    reference = at(fine)
    for grade in (1.0, 1.5):
        errors = [
            rms(torch.stack([at(grid) - reference for grid in random_grids(n, grade)]))
            for n in SIZES
        ]
        observed_order([1 / n for n in SIZES], errors, at_least=1.8)


def space_time(steps, seed=0, n=3):
    """n places with an area each, at random times; the weight of a node is area × step."""
    generator = torch.Generator().manual_seed(seed)
    t = torch.rand(steps, generator=generator).add(0.05).cumsum(0)
    x, area = torch.rand(n, generator=generator), torch.rand(n, generator=generator)

    def so_far(k):
        step = Domain.from_points(t[:k], rule="interval").weights if k > 1 else torch.ones(1)
        points = torch.stack([x.expand(k, n), t[:k, None].expand(k, n)], -1)
        return Domain(points.flatten(0, 1), (step[:, None] * area).flatten())

    return so_far


STEPS = {"one by one": range(1, 13), "several": (4, 5, 9, 12), "at once": (12,)}


@every_variant
@pytest.mark.parametrize("stops", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("batch", [(), (2,)], ids=["", "batch"])
def test_step_after_step_is_the_parallel_form(options, stops, batch):
    """Keys and values are kept; the grid, with its weights, grows."""
    # The encoding of a variant was made before tests were in float64.
    net, so_far, u = make(**options).double(), space_time(12), torch.randn(*batch, 36, 2)
    whole = so_far(12)
    y = net(replicated(whole, batch), u)
    state, said, heard = None, [], 0
    for k in stops:
        source = replicated(so_far(k), batch)
        out, state = net.step(source, u[..., heard : 3 * k, :], state=state)
        assert out.shape == (*batch, 3 * k - heard, 3)
        said.append(out)
        heard = 3 * k
    assert difference(torch.cat(said, -2), y) < TIGHT
    # And the state is that of all at once: for targets anywhere.
    target, v = domain(5, *batch), torch.randn(*batch, 5, 2)
    v = None if net.decoder_layers else v
    once = net.decode(net.encode(replicated(whole, batch), u), target, v)
    assert difference(net.decode(state, target, v), once) < TIGHT


def replicated(at, batch):
    return Domain(at.points.expand(*batch, -1, -1), at.weights.expand(*batch, -1))


def test_steps_of_atoms_keep_their_weights():
    net, u = make(atoms=True), torch.randn(36, 2)
    whole = space_time(12)(12)
    y, state, said = net(whole, u), None, []
    for k in range(0, 36, 3):
        out, state = net.step(whole.take(slice(k + 3)), u[k : k + 3], state=state)
        said.append(out)
    assert difference(torch.cat(said), y) < TIGHT


def test_parameters_come_with_the_first_step():
    net = make(parameter_channels=2)
    so_far, u, p = space_time(4), torch.randn(12, 2), torch.randn(2)
    y, state = net(so_far(4), u, parameters=p), None
    for k in range(4):
        given = p if state is None else None
        out, state = net.step(so_far(k + 1), u[3 * k : 3 * k + 3], given, state=state)
        assert difference(out, y[3 * k : 3 * k + 3]) < TIGHT


def test_gradients_flow_through_the_steps():
    net, so_far, u = make(), space_time(5), torch.randn(15, 2).requires_grad_()
    g = torch.randn(15, 3)
    (whole,) = torch.autograd.grad(net(so_far(5), u), u, g)
    state, said = None, []
    for k in range(5):
        out, state = net.step(so_far(k + 1), u[3 * k : 3 * k + 3], state=state)
        said.append(out)
    (stepwise,) = torch.autograd.grad(torch.cat(said), u, g)
    assert difference(stepwise, whole) < GRADIENT[torch.float64]


def test_bad_steps_are_refused():
    so_far, u = space_time(4), torch.randn(12, 2)
    _, state = make().step(so_far(2), u[:6])
    with pytest.raises(ValueError, match="only a model with a causal_axis takes step after step"):
        make(causal_axis=None).step(so_far(3), u[6:9])
    moved = so_far(3)
    moved.points[0, 0] += 1
    for wrong in (moved, so_far(1)):
        with pytest.raises(ValueError, match="must begin with the 6 points so far, as they were"):
            make().step(wrong, u[6:9], state=state)
    late = so_far(3)
    late.points[-1, 1] = late.points[3, 1]
    with pytest.raises(ValueError, match="new points must be later than all so far along coord"):
        make().step(late, u[6:9], state=state)
    with pytest.raises(ValueError, match="fields must have shape"):
        make().step(so_far(3), u[:9], state=state)
    net = make(parameter_channels=1)
    _, first = net.step(so_far(2), u[:6], torch.ones(1))
    with pytest.raises(ValueError, match="parameters are those of the first step, got others"):
        net.step(so_far(3), u[6:9], torch.zeros(1), state=first)
    heavier = replace(so_far(3), weights=2 * so_far(3).weights)
    _, state = make(atoms=True).step(so_far(3).take(slice(6)), u[:6])
    with pytest.raises(ValueError, match="atoms keep their weights"):
        make(atoms=True).step(heavier, u[6:9], state=state)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_known_yet_is_no_number(bad):
    """It would be in all sums, times zero. A point without data has measure zero."""
    net, so_far, u = make(), space_time(4), torch.randn(12, 2)
    hole = u.clone()
    hole[5] = bad
    with pytest.raises(ValueError, match=r"fields must be finite .* entry \(5, 0\) is not"):
        net(so_far(4), hole)
    with pytest.raises(ValueError, match=r"fields must be finite .* entry \(2, 0\) is not"):
        net.step(so_far(2), hole[3:6], state=net.step(so_far(1), u[:3])[1])
    source = so_far(4)
    source.weights[5] = 0
    known = torch.arange(12) != 5
    expected = net(source.take(known), u[known])
    assert difference(net(source, hole)[known], expected) < TIGHT


@pytest.mark.parametrize("atoms", [False, True])
def test_a_past_of_other_points_is_refused(atoms):
    q, k, v, *_ = operands()
    past = Past(TARGETS[:4], SOURCES, None if atoms else torch.ones(M))
    with pytest.raises(ValueError, match=r"past.target must be \(2, 5\) or broadcast to it, got"):
        kernel_integral(q, k, v, past=past)
    with pytest.raises(ValueError, match=r"past.source must be \(2, 7\) or broadcast to it, got"):
        kernel_integral(q, k, v, past=Past(TARGETS, SOURCES[:6]))


def test_what_looks_at_all_sources_is_refused():
    encoding = Compose(Rotary(2, H, C // H), LocalFrameBias(2, H))
    with pytest.raises(ValueError, match="it is not pairwise"):
        Attention(C, H, encoding=encoding, causal_axis=1)


def test_steps_of_a_ragged_batch():
    """A sample that has ended gets padding, of any time, that is not heard."""
    net, u = make(), torch.randn(2, 12, 2)
    long, short = space_time(4)(4), space_time(3, seed=1)(3)
    y, _ = net.step(stack([long, short]), u)
    first = stack([space_time(4)(3), short])
    a, state = net.step(first, u[:, :9])
    b, _ = net.step(stack([long, short]), u[:, 9:], state=state)
    assert difference(a, y[:, :9]) < TIGHT
    assert difference(b[0], y[0, 9:]) < TIGHT


def test_no_times_at_all():
    empty = Domain(torch.zeros(0, 2), torch.zeros(0))
    some = Domain(torch.zeros(3, 2), torch.zeros(3))
    for atoms in (False, True):
        net = make(atoms=atoms)
        assert net(empty, torch.zeros(0, 2), some, target_fields=torch.ones(3, 2)).shape == (3, 3)
        assert net(some, torch.ones(3, 2), empty, target_fields=torch.zeros(0, 2)).shape == (0, 3)
    assert make()(empty, torch.zeros(0, 2)).shape == (0, 3)
    assert make(atoms=True)(empty, torch.zeros(0, 2)).shape == (0, 3)


def test_late_times_lose_no_digits():
    """A causal model that sees offsets alone counts from its first point, before it casts."""
    encoding = Compose(Rotary(2, H, C // H), GaussianBias(2, H), FadingMemory(H))
    net, source, u = make(encoding=encoding).float(), space_time(12)(12), torch.randn(36, 2)
    late = replace(source, points=source.points + torch.tensor([0.0, 1e6]))
    y = net(source, u)
    assert difference(net(late, u), y) < ROUNDING[torch.float32]
    order = torch.randperm(36)
    assert difference(net(late.take(order), u[order]), y[order]) < ROUNDING[torch.float32]
    state = None
    for k in range(0, 36, 3):
        # Ones: of the whole grid, so that a step has the weights of the whole.
        so_far = ending(late, late.points[k, 1], False)[0]
        out, state = net.step(so_far, u[k : k + 3], state=state)
        assert difference(out, y[k : k + 3]) < 10 * ROUNDING[torch.float32]


def test_times_that_fall_together_are_told():
    """Absolute coordinates are not counted from the first point."""
    net, source = make().float(), space_time(4)(4)
    late = replace(source, points=source.points + torch.tensor([0.0, 1e9]))
    message = r"times fall together in torch.float32 \(3 steps are lost"
    with pytest.warns(UserWarning, match=message):
        net(late, torch.randn(12, 2))


# The kernels, to be looked at


@every_encoding
@pytest.mark.parametrize("kind", ["plain", "cells", "atoms"])
def test_the_kernels_are_densities_that_give_the_result(name, kind):
    axis = None if kind == "plain" else 1
    attention = Attention(C, H, encoding=encodings()[name], causal_axis=axis, atoms=kind == "atoms")
    target, source = domain(9), domain(11, null=2)
    target.points[4, 1] = -2  # before every source
    x, tokens = torch.randn(9, C), torch.randn(11, C)
    alpha = attention.kernel(x, target, tokens, source)
    assert alpha.shape == (H, 9, 11)
    assert (alpha[..., source.null] == 0).all()
    total = torch.ones(H, 9)
    if axis is not None:
        total[:, 4] = 0
        assert (alpha[:, target.points[:, None, 1] < source.points[:, 1]] == 0).all()
    assert difference(alpha @ source.weights, total) < TIGHT
    v = attention.key_values(tokens, source).value
    y = attention.out((alpha @ (source.weights[:, None] * v)).transpose(0, 1).flatten(1))
    assert difference(attention(x, target, tokens, source), y) < TIGHT
    own = attention.kernel(tokens, source)
    assert torch.equal(own, attention.kernel(tokens, source, tokens, source))
