"""The causal mask as a Volterra operator: by time and not by index, with weights, on any grid."""

from __future__ import annotations

import json
import math
from copy import copy

import pytest
import torch
import torch.nn.functional as F
from cases import line
from test_attention import DistanceBias
from test_integral import WEIGHTS, every_path, weights_of
from tolerances import GRADIENT, ROUNDING, difference

from opformer import Attention, Decoder, Domain, Encoder, OperatorTransformer, stack
from opformer.config import build, describe
from opformer.encodings import Compose, Coordinates, GaussianBias, PositionalEncoding, Rotary
from opformer.integral import causal_bias, kernel_integral
from opformer.testing import check_model, observed_order
from opformer.transformer import DecoderBlock, EncoderBlock

TIGHT = ROUNDING[torch.float64]
H, N, M, E, R = 2, 5, 7, 4, 3
C = 24
# Targets and sources out of order, some at one time, one target before every source.
TARGETS = torch.tensor([0.5, -3.0, 0.2, 1.0, 0.5])
SOURCES = torch.tensor([0.5, 0.9, -0.3, 2.0, 0.2, 0.5, -1.0])


# The operator


def volterra(q, k, v, w, t, s, factors, bias):
    """Target by target, a sum over the sources that are not later."""
    rows = []
    for i in range(len(t)):
        past = [j for j in range(len(s)) if s[j] <= t[i] and w[j] > 0]
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
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_the_definition_and_its_gradients(path, weights, dtype):
    x, w = operands(dtype), weights_of(weights)
    q, k, v, fq, fk, bias = x
    t, s = TARGETS.to(dtype), SOURCES.to(dtype)
    y = path(
        q,
        k,
        v,
        w,
        factors=(fq, fk),
        bias=lambda rows: causal_bias(t[rows], s, bias[..., rows, :]),
    )
    exact = [t.detach().double().requires_grad_() for t in x]
    w = torch.ones(M) if w is None else w
    expected = volterra(*exact[:3], w, TARGETS, SOURCES, exact[3:5], exact[5])
    g = torch.randn_like(expected)
    assert (y[..., 1, :] == 0).all()  # the target before every source
    assert difference(y, expected) < ROUNDING[dtype]
    gradients = torch.autograd.grad(y, x, g.to(dtype))
    for got, want in zip(gradients, torch.autograd.grad(expected, exact, g), strict=True):
        assert difference(got, want) < GRADIENT[dtype]


@every_path
def test_a_bias_is_not_read_where_the_source_is_later(path):
    """A kernel of t - s need not be defined for s > t: here a root of it, NaN there."""
    q, k, v, *_ = operands()
    lag = TARGETS[:, None] - SOURCES
    bias = (-lag.sqrt()).expand(H, N, M).clone().requires_grad_()
    y = path(
        q,
        k,
        v,
        weights_of("graded"),
        bias=lambda rows: causal_bias(TARGETS[rows], SOURCES, bias[..., rows, :]),
    )
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
    by_time = kernel_integral(q, k, v, bias=lambda rows: causal_bias(t[rows], t))
    assert difference(by_time, plain) < TIGHT
    order = torch.randperm(M)
    shuffled = (x[..., order, :] for x in (q, k, v))
    t = t[order]
    y = kernel_integral(*shuffled, bias=lambda rows: causal_bias(t[rows], t))
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
        keep = past(source, target.points[i, 1])
        at = target.take(slice(i, i + 1))
        rows.append(plain(x[i : i + 1], at, memory[keep], source.take(keep)))
    return torch.cat(rows)


@every_encoding
@pytest.mark.parametrize("chunk", [None, 2])
def test_attention_is_that_over_the_past(name, chunk):
    attention = Attention(C, H, encoding=encodings()[name], causal_axis=1)
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
def test_the_model_is_that_of_a_domain_that_ends_now(options):
    """Positions and weights of later points do not matter either, up to rounding."""
    net, source, u = make(**options), domain(30), torch.randn(30, 2)
    y = net(source, u)
    for time in source.points[:, 1].unique():
        keep = past(source, time)
        assert difference(net(source.take(keep), u[keep]), y[keep]) < TIGHT


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


def test_the_option_reaches_every_attention():
    stacks = [k(2, C, H, causal_axis=1) for k in (Encoder, Decoder)]
    blocks = [k(C, H, causal_axis=1) for k in (EncoderBlock, DecoderBlock)]
    for module in (*stacks, *blocks, make(decoder_layers=2)):
        axes = [m.causal_axis for m in module.modules() if isinstance(m, Attention)]
        assert axes
        assert set(axes) == {1}
    assert make(causal_axis=None).encoder.blocks[0].attention.causal_axis is None


def test_described_and_built_again():
    for module in (make(), make(causal_axis=None), Attention(C, H, causal_axis=-1)):
        again = build(json.loads(json.dumps(describe(module))))
        assert again.causal_axis == module.causal_axis
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


def memory_operator(rate):
    """Attention that is nothing but the kernel: no scores, values as they are."""
    attention = Attention(2, 1, encoding=Fading(rate), causal_axis=0)
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


@every_rate
@every_grid
def test_second_order_where_no_cell_is_cut(rate, grade):
    """Sources at the centres of the time steps, targets at their ends."""
    errors = []
    for grid in grids(grade):
        t = grid.points
        steps = Domain((t[1:] + t[:-1]) / 2, (t[1:] - t[:-1])[:, 0])
        ends = grid.take(slice(1, None))
        y = memory_operator(rate)(signal(ends.points), ends, signal(steps.points), steps)
        errors.append(difference(y, memory(rate, ends.points)))
    assert errors[-1] < 1e-4
    observed_order([1 / n for n in SIZES], errors, at_least=1.8)


@every_rate
@every_grid
def test_first_order_at_the_nodes_and_why(rate, grade):
    r"""A node's cell reaches half a step beyond its own time, and counts as a whole.

    With β = α(t,t) h₊/2, h₊ the step after t, the result is (y + β v)/(1 + β) + O(h²): y to first
    order, since v(t) - y(t) is not zero. At the last node nothing reaches beyond.
    """
    errors, rest, last = [], [], []
    for grid in grids(grade):
        t, x = grid.points, signal(grid.points)
        y = memory_operator(rate)(x, grid)
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
