"""The contracts catch liars: for each promise something that breaks it, and is named for it."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
import torch
from test_contracts import CHANNELS, HEADS, DistanceBias
from torch import nn

from opformer import OperatorTransformer, kernel_integral
from opformer.encodings import Compose, Coordinates, GaussianBias, PositionalEncoding, Rotary
from opformer.testing import (
    ContractError,
    check_encoding,
    check_model,
    check_operator,
    observed_order,
)


def caught(contract):
    return pytest.raises(ContractError, match=re.escape(contract))


def softmax_integral(q, k, v, weights, dim=-1):
    p = q @ k.mT / math.sqrt(q.shape[-1]) + weights.log()[..., None, None, :]
    return torch.nan_to_num(p.softmax(dim)) @ v


# Operators


def plain(q, k, v, weights):
    return kernel_integral(q, k, v)


def present(q, k, v, weights):
    """A mask where there should be a measure."""
    return kernel_integral(q, k, v, (weights > 0).double())


def poisoned(q, k, v, weights):
    """0 · NaN is NaN."""
    return softmax_integral(q, k, v, weights.to(q.dtype))


def over_targets(q, k, v, weights):
    v = v.masked_fill(weights[..., None, :, None] == 0, 0)
    k = k.masked_fill(weights[..., None, :, None] == 0, 0)
    return softmax_integral(q, k, v, weights.to(q.dtype), dim=-2)


def by_position(q, k, v, weights):
    """The order of the sources matters."""
    v = v * torch.arange(1.0, 1 + v.shape[-2], dtype=v.dtype)[:, None] / v.shape[-2]
    return kernel_integral(q, k, v, weights)


def by_row(q, k, v, weights):
    y = kernel_integral(q, k, v, weights)
    return y * torch.arange(1.0, 1 + y.shape[-2], dtype=y.dtype)[:, None]


def with_floor(q, k, v, weights):
    """An epsilon that knows no unit."""
    return kernel_integral(q, k, v, weights + 1e-6 * (weights > 0))


def not_normalised(q, k, v, weights):
    total = weights.sum(-1)[..., None, None, None]
    return kernel_integral(q, k, v, weights) * (total / (1 + total)).to(v.dtype)


def across_the_batch(q, k, v, weights):
    y = kernel_integral(q, k, v, weights)
    return y + 1e-9 * y.mean(0, keepdim=True) if y.ndim > 3 else y


def hotter(q, k, v, weights):
    return kernel_integral(2 * q, k, v, weights)


def almost_plain(q, k, v, weights):
    """Right to rounding, by another route: C5 asks for the same bits."""
    w = weights * torch.linspace(1, 1 + 1e-15, weights.shape[-1])
    return kernel_integral(q, k, v, w)


def not_of_constants(q, k, v, weights):
    """Off where all values are integers."""
    y = kernel_integral(q, k, v, weights)
    return y + 1e-3 * (v == v.floor()).all()


def nan_when_dead(q, k, v, weights):
    y = kernel_integral(q, k, v, weights)
    return y / (weights.sum(-1) > 0)[..., None, None, None]


def average_when_dead(q, k, v, weights):
    dead = (weights == 0).all(-1, keepdim=True)
    return kernel_integral(q, k, v, torch.where(dead, 1, weights))


def loose_chunks(q, k, v, weights, *, chunk=None):
    """Softmax over each chunk of sources, then the mean."""
    if chunk is None:
        return kernel_integral(q, k, v, weights)
    parts = [slice(i, i + chunk) for i in range(0, k.shape[-2], chunk)]
    parts = [kernel_integral(q, k[..., s, :], v[..., s, :], weights[..., s]) for s in parts]
    return torch.stack(parts).mean(0)


@pytest.mark.parametrize(
    ("operator", "contract"),
    [
        (plain, "C1 split"),
        (present, "C1 split"),
        (over_targets, "C1 split"),
        (by_position, "C1 split"),
        (poisoned, "C2 null (features of nan)"),
        (nan_when_dead, "C2 null: all weights zero"),
        (average_when_dead, "C2 null (all weights zero)"),
        (by_row, "C3 permute (targets)"),
        (with_floor, "C1 split"),
        (not_normalised, "C4 scale"),
        (across_the_batch, "C6 batch"),
        (hotter, "C5 uniform"),
        (almost_plain, "C5 uniform"),
        (not_of_constants, "C7 constant"),
        (loose_chunks, "C8 chunk (chunk=3)"),
    ],
)
def test_operators(operator, contract):
    with caught(contract):
        check_operator(operator)


def test_a_written_out_softmax_is_right_but_not_bit_for_bit():
    def dense(q, k, v, weights):
        null = weights[..., None, :, None] == 0
        k, v = k.masked_fill(null, 0), v.masked_fill(null, 0)
        return softmax_integral(q, k, v, weights)

    check_operator(dense, exact=False)
    with caught("C5 uniform"):
        check_operator(dense)


# Encodings


class Claims(PositionalEncoding):
    """Another encoding under another flag."""

    def __init__(self, encoding, symmetry):
        super().__init__()
        self.encoding, self.symmetry = encoding, symmetry

    def embed(self, features, domain):
        return self.encoding.embed(features, domain)

    def rotate(self, x, domain):
        return self.encoding.rotate(x, domain)

    def factors(self, target, source, tokens):
        return self.encoding.factors(target, source, tokens)


class Turning(PositionalEncoding):
    """Distances under a cross: invariant under shifts and mirrors of an axis, not under turns."""

    symmetry = "translation"

    def bias(self, target, source):
        offset = target.points[..., :, None, :] - source.points[..., None, :, :]
        return -offset.abs().sum(-1)[..., None, :, :]


class Winding(PositionalEncoding):
    """Which side of the line from target to the centre of mass: turns keep it, mirrors do not."""

    def __init__(self, symmetry="SE(d)"):
        super().__init__()
        self.symmetry = symmetry

    def bias(self, target, source):
        centre = source.mean(source.points)[..., None, :]
        a, b = (target.points - centre)[..., :, None, :], (source.points - centre)[..., None, :, :]
        return (a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0])[..., None, :, :]


class StartsAtZero(PositionalEncoding):
    """Breaks what it promises as soon as it learns: at the start its map is zero."""

    symmetry = "E(d)"

    def __init__(self, channels):
        super().__init__()
        self.channels = channels
        self.linear = nn.Linear(2, channels, bias=False)
        nn.init.zeros_(self.linear.weight)

    def embed(self, features, domain):
        return features + self.linear(domain.points)


class Counting(PositionalEncoding):
    """The number of a point in its list."""

    def embed(self, features, domain):
        return features + torch.arange(domain.size).to(features)[:, None] / domain.size


class Centred(PositionalEncoding):
    """A centre that is no integral: copies of a point pull it."""

    symmetry = "E(d)"

    def factors(self, target, source, tokens):
        offset = source.points - source.points.mean(-2, keepdim=True)
        far = offset.square().sum(-1, keepdim=True).unsqueeze(-3)
        return -torch.ones_like(target.points[..., None, :, :1]), far


class Sharp(DistanceBias):
    """A root without a gradient at zero."""

    def bias(self, target, source):
        offset = target.points[..., :, None, :] - source.points[..., None, :, :]
        return -self.slope[:, None, None] * offset.square().sum(-1).sqrt()[..., None, :, :]


class Idle(GaussianBias):
    def __init__(self, dim, heads):
        super().__init__(dim, heads)
        self.unused = nn.Parameter(torch.ones(3))


class Cancelling(GaussianBias):
    """A constant of each head: the softmax cancels it, its gradient is rounding."""

    def __init__(self, dim, heads):
        super().__init__(dim, heads)
        self.level = nn.Parameter(torch.ones(heads))

    def bias(self, target, source):
        return self.level[:, None, None]


class Random(PositionalEncoding):
    """Another one each time."""

    def embed(self, features, domain):
        return features + 1e-9 * torch.randn_like(features)


class Neighbourly(PositionalEncoding):
    """Centred in the whole batch, where each sample has a centre of its own."""

    symmetry = "E(d)"

    def bias(self, target, source):
        w, axes = source.weights.unsqueeze(-1), tuple(range(source.points.ndim - 1))
        total = w.sum(axes)
        centre = (w * source.points).sum(axes) / torch.where(total > 0, total, 1)
        return -(source.points - centre).square().sum(-1)[..., None, None, :]


class OneBias(DistanceBias):
    """One for each head, in the wrong place."""

    def bias(self, target, source):
        return super().bias(target, source).movedim(-3, -1)


class Unbatched(DistanceBias):
    """Right for one sample alone."""

    def bias(self, target, source):
        b = super().bias(target, source)
        return b if b.ndim == 3 else b[0][:, None, None]


class HalfAFactor(GaussianBias):
    def factors(self, target, source, tokens):
        fq, fk = super().factors(target, source, tokens)
        return fq, fk[..., :-1]


class WideFactor(GaussianBias):
    """One row for all targets, where there must be one for each."""

    def factors(self, target, source, tokens):
        fq, fk = super().factors(target, source, tokens)
        return fq[..., :1, :], fk


class OneFactor(GaussianBias):
    def factors(self, target, source, tokens):
        return super().factors(target, source, tokens)[0]


class Wider(PositionalEncoding):
    """Coordinates joined to the tokens, of which there are more channels then."""

    def embed(self, features, domain):
        return torch.cat([features, domain.points.to(features.dtype)], -1)


class Slimmer(PositionalEncoding):
    def rotate(self, x, domain):
        return x[..., 1:] + domain.points[..., :1].unsqueeze(-3)


class Doubling(PositionalEncoding):
    """float64 at all events, as from a table of NumPy."""

    def embed(self, features, domain):
        return features + domain.points[..., :1].double()


class Cancelled(GaussianBias):
    """Great channels that cancel: their product alone is right, beside the scores it is noise."""

    def factors(self, target, source, tokens):
        fq, fk = super().factors(target, source, tokens)
        great = 1e7 * torch.ones_like(fq[..., :1]), torch.ones_like(fk[..., :1])
        return torch.cat([fq, great[0], -great[0]], -1), torch.cat([fk, great[1], great[1]], -1)


class Coarse(DistanceBias):
    """A guard that is no small number in float32."""

    def bias(self, target, source):
        offset = target.points[..., :, None, :] - source.points[..., None, :, :]
        guard = torch.finfo(offset.dtype).eps ** 0.25
        square = offset.square().sum(-1)[..., None, :, :] + guard
        return -self.slope[:, None, None] * square.sqrt()


class Nameless(DistanceBias):
    def __init__(self, heads, steep):
        super().__init__(heads)
        self.sharpness = steep

    def bias(self, target, source):
        return self.sharpness * super().bias(target, source)


class Renamed(DistanceBias):
    """Stores another thing under the name of an argument: built again it is twice as steep."""

    def __init__(self, heads, steep):
        super().__init__(heads)
        self.steep = 2 * steep

    def bias(self, target, source):
        return self.steep * super().bias(target, source)


class Forgetful(DistanceBias):
    """Stores the default."""

    def __init__(self, heads, steep=1.0):
        super().__init__(heads)
        self.factor, self.steep = steep, 1.0

    def bias(self, target, source):
        return self.factor * super().bias(target, source)


class Unsaved(PositionalEncoding):
    """Waves that are drawn once, and are neither a parameter nor a buffer."""

    def __init__(self, channels):
        super().__init__()
        self.channels = channels
        self.wave = torch.randn(2, channels).tolist()

    def embed(self, features, domain):
        return features + (domain.points @ domain.points.new_tensor(self.wave)).sin()


class Unloadable(PositionalEncoding):
    """A buffer whose size its arguments do not tell."""

    def __init__(self):
        super().__init__()
        self.register_buffer("wave", torch.randn(2, 1, int(torch.randint(2, 10**9, ())) % 97 + 1))

    def embed(self, features, domain):
        return features + (domain.points @ self.wave[:, 0]).sin().sum(-1, keepdim=True)


def local_class():
    class Local(DistanceBias):
        pass

    return Local(HEADS)


@pytest.mark.parametrize(
    ("encoding", "contract"),
    [
        # What the hooks return,
        (Random(), "determinism (two calls)"),
        (Neighbourly(), "C6 batch"),
        (OneBias(HEADS), "bias: expected shape (..., h, n, m) = (2, 23, 23), got (23, 23, 2)"),
        (
            Unbatched(HEADS),
            "bias: expected shape (..., h, n, m) = (2, 2, 23, 23), got (2, 1, 1, 23",
        ),
        (HalfAFactor(2, HEADS), "factors: expected a pair of shapes [(2, 23, 4), (2, 23, 4)], got"),
        (OneFactor(2, HEADS), "factors: expected a pair of shapes"),
        (WideFactor(2, HEADS), "factors: expected a pair of shapes"),
        (Wider(), "embed: expected what it was given, (23, 24)"),
        (Slimmer(), "rotate: expected what it was given, (2, 23, 12)"),
        (Cancelled(2, HEADS), "factors (against their product as a bias)"),
        # in another precision,
        (Doubling(), "embed: expected what it was given, (23, 24) in torch.float32, got"),
        (Coarse(HEADS), "bias (float32 against float64)"),
        # and what is left of it when it was saved.
        (Nameless(HEADS, 2.0), "Nameless must store its argument 'steep' under that name"),
        (Renamed(HEADS, 2.0), "argument 'steep' is 4.0 at first and 8.0 when built again"),
        (Forgetful(HEADS, 2.0), "describe, build, load_state_dict (bias)"),
        (Unsaved(CHANNELS), "describe, build, load_state_dict (embed)"),
        (Unloadable(), "describe, build, load_state_dict: Error(s) in loading state_dict"),
        (local_class(), "Local must be defined at the top of a module to be saved"),
        # In a composition as well.
        (Compose(Rotary(2, HEADS, 12), Renamed(HEADS, 2.0)), "argument 'encodings'"),
        (Compose(GaussianBias(2, HEADS), Random()), "determinism (two calls)"),
    ],
    ids=lambda x: None if isinstance(x, str) else type(x).__name__,
)
def test_hooks(encoding, contract):
    with caught(contract):
        check_encoding(encoding, dim=2, heads=HEADS, channels=CHANNELS)


@pytest.mark.parametrize(
    ("encoding", "contract"),
    [
        # More than there is,
        (Claims(Coordinates(2, CHANNELS), "translation"), "C10 symmetry (translation declared"),
        (Claims(Rotary(2, HEADS, 12), "SE(d)"), "C10 symmetry (SE(d) declared, rotation)"),
        (Claims(Rotary(2, HEADS, 12), "E(d)"), "C10 symmetry (E(d) declared, rotation)"),
        (Claims(GaussianBias(2, HEADS, CHANNELS), "E(d)"), "C10 symmetry (E(d) declared"),
        (Winding("E(d)"), "C10 symmetry (E(d) declared, reflection)"),
        (StartsAtZero(CHANNELS), "C10 symmetry (E(d) declared, translation)"),
        # and less.
        (Claims(GaussianBias(2, HEADS), "none"), "C10 symmetry: 'none' is declared"),
        (Claims(Rotary(2, HEADS, 12), "none"), "'none' is declared, but translation changes"),
        (Claims(GaussianBias(2, HEADS), "translation"), "is declared, but rotation changes"),
        (Claims(GaussianBias(2, HEADS), "SE(d)"), "is declared, but reflection changes"),
        (Winding("translation"), "'translation' is declared, but rotation changes nothing"),
        (Claims(Rotary(2, HEADS, 12), "SE(3)"), "C10 symmetry: must be one of"),
        # Other contracts.
        (Counting(), "C8 chunk, C11 target"),
        (Centred(), "C1 split"),
        (Sharp(HEADS), "C2 null: gradients at coincident points"),
        (Idle(2, HEADS), "C12 alive: the largest gradient of encoding.unused is 0"),
        (Cancelling(2, HEADS), "C12 alive: the largest gradient of encoding.level"),
    ],
    ids=lambda x: None if isinstance(x, str) else type(x).__name__,
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_encodings(encoding, contract, dtype):
    with caught(contract):
        check_encoding(encoding, dim=2, heads=HEADS, channels=CHANNELS, dtype=dtype)


@pytest.mark.parametrize("encoding", [Turning(), Winding()], ids=["Turning", "Winding"])
def test_honest_encodings(encoding):
    check_encoding(encoding, dim=2, heads=HEADS, channels=CHANNELS)


def test_what_is_drawn_anew_is_lost_whatever_the_seed():
    torch.manual_seed(0)
    encoding = Unsaved(CHANNELS)
    torch.manual_seed(0)
    with caught("describe, build, load_state_dict (embed)"):
        check_encoding(encoding, dim=2, heads=HEADS, channels=CHANNELS)


def test_a_check_leaves_the_encoding_and_the_seed_alone():
    encoding = GaussianBias(2, HEADS, CHANNELS)
    before = [p.clone() for p in encoding.parameters()]
    state = torch.get_rng_state()
    check_encoding(encoding, dim=2, heads=HEADS, channels=CHANNELS)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(p, q) for p, q in zip(encoding.parameters(), before, strict=True))
    assert all(p.grad is None for p in encoding.parameters())


# Models


class Model(OperatorTransformer):
    def __init__(self, encoding=None):
        super().__init__(2, 2, 3, channels=CHANNELS, heads=HEADS, layers=2, encoding=encoding)


class Dead(Model):
    def __init__(self):
        super().__init__()
        self.unused = nn.Linear(3, 3)


class KeyBias(Model):
    """What the softmax cancels, without norm or rotation; its gradient is rounding."""

    def __init__(self):
        super().__init__(Coordinates(2, CHANNELS))
        self.encoder.blocks[0].attention.key = nn.Linear(CHANNELS, CHANNELS)
        for block in self.encoder.blocks:
            block.attention.key_norm = nn.Identity()


class Skipped(Model):
    """A block that is computed, and lost."""

    def __init__(self):
        super().__init__()
        self.encoder.blocks[1].requires_grad_(False)
        self.encoder.blocks[1].forward = lambda x, *_: x


class TalkingTargets(Model):
    def _decode(self, state, target, fields):
        y = super()._decode(state, target, fields)
        return y + 0.1 * y.mean(-2, keepdim=True)


class BatchNormed(Model):
    """Statistics of the batch, as a batch norm that forgot to be in evaluation mode."""

    def forward(self, *args, **options):
        y = super().forward(*args, **options)
        return y - y.mean(0, keepdim=True) if y.ndim > 2 else y


class PointNormed(Model):
    """Statistics over the points, without a measure."""

    def _read_fields(self, domain, fields):
        fields = super()._read_fields(domain, fields)
        return fields - fields.mean(-2, keepdim=True)


class MaxPooled(Model):
    """A largest value is no integral: padding can hold it."""

    def encode(self, source, fields=None, parameters=None):
        state = super().encode(source, fields, parameters)
        first, *others = state.key_values
        pooled = first.value.amax(-2, keepdim=True)
        first = replace(first, value=first.value + 0.1 * pooled)
        return replace(state, key_values=[first, *others])


class Uniform(Model):
    def encode(self, source, fields=None, parameters=None):
        return super().encode(source.uniform(), fields, parameters)


class Hidden(Model):
    """Coordinates by the back door."""

    def __init__(self):
        super().__init__(GaussianBias(2, HEADS))

    def _decode(self, state, target, fields):
        return super()._decode(state, target, fields) + target.points[..., :1]


class TwoFaced(Model):
    """At its own nodes another function than at targets there."""

    def forward(self, source, fields=None, target=None, parameters=None, **options):
        y = super().forward(source, fields, target, parameters, **options)
        return y if target is None else 2 * y


class Foreseeing(Model):
    """Causal by its word alone: its attention hears all times."""

    def __init__(self):
        super().__init__()
        self.causal_axis = 1


class Spread(GaussianBias):
    """Its lengths are those of the whole source: they know how long it will last."""

    def factors(self, target, source, tokens):
        x = source.points
        size = source.mean((x - source.mean(x)[..., None, :]).square().sum(-1)).sqrt()
        fq, fk = super().factors(target, source, tokens)
        return fq / size, fk


class Measured(Model):
    def __init__(self):
        super().__init__(Spread(2, HEADS))
        self.causal_axis = 1
        for block in self.encoder.blocks:
            block.attention.causal_axis = 1


class Restless(Model):
    """Saved, and not what it was."""

    def __init__(self):
        super().__init__()
        self.level = torch.rand(()).item()

    def forward(self, *args, **options):
        return super().forward(*args, **options) + self.level


MODELS = {
    Dead: "C12 alive: the largest gradient of unused",
    KeyBias: "C12 alive: the largest gradient of encoder.blocks.0.attention.key.bias",
    Skipped: "C12 alive: changing encoder.blocks.1 changes nothing",
    TalkingTargets: "C8 chunk, C11 target",
    BatchNormed: "C6 batch",
    PointNormed: "C8 chunk, C11 target",
    MaxPooled: "C2 null",
    Uniform: "C1 split",
    Hidden: "C10 symmetry (E(d) declared, rotation)",
    TwoFaced: "C11 target (the source's own points)",
    Restless: "describe, build",
    Foreseeing: "C13 causal (fields)",
    Measured: "C13 causal (domain)",
}


@pytest.mark.parametrize(
    ("model", "contract"), MODELS.items(), ids=lambda x: getattr(x, "__name__", "")
)
def test_models(model, contract):
    with caught(contract):
        check_model(model())


def test_a_check_leaves_the_model_alone():
    model = Model().train()
    before = {name: p.clone() for name, p in model.state_dict().items()}
    check_model(model)
    assert model.training
    assert all(torch.equal(p, before[name]) for name, p in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


def test_a_symmetry_can_be_asked_for():
    """Less than the encoding's is fine, more is caught."""
    model = Model(Compose(Rotary(2, HEADS, 12)))
    check_model(model, symmetry="none")
    with caught("C10 symmetry (E(d) declared, rotation)"):
        check_model(model, symmetry="E(d)")


def test_messages_say_how_much_and_for_what():
    with pytest.raises(ContractError) as error:
        check_operator(plain)
    amount, case = (
        r"relative difference \S+, allowed 1e-12",
        r"23 sources, 23 targets, d = 2, torch",
    )
    assert re.fullmatch(rf"C1 split: {amount} \({case}\.float64\)", str(error.value))


# Orders


def test_observed_order():
    h = [0.4, 0.2, 0.1, 0.05]
    for order in (0.5, 1, 2, 4):
        assert observed_order(h, [3 * x**order for x in h]) == pytest.approx(order)
    with caught("C9 consistency: observed order 1.00, expected at least 1.8"):
        observed_order(h, h, at_least=1.8)
    with caught("C9 consistency: observed order nan"):
        observed_order(h, [0.1, math.nan, 0.1, 0.1], at_least=1.8)
    assert observed_order(h, h, at_least=0.99) == pytest.approx(1)
