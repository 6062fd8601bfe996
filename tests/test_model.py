"""The operator: one trained function, read at its own nodes and anywhere else."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from tolerances import ROUNDING, difference

from opformer import Domain, EquivariantTransformer, OperatorTransformer, stack
from opformer.encodings import Compose, Coordinates, GaussianBias, Rotary
from opformer.transformer import FeedForward

TIGHT = ROUNDING[torch.float64]
N, M = 6, 11
VARIANTS = {
    "default": {},
    "decoder": {"decoder_layers": 2},
    "post-LN": {"norm_first": False},
    "post-LN decoder": {"norm_first": False, "decoder_layers": 1},
    "no layers": {"layers": 0},
    "swiglu": {"activation": "swiglu", "decoder_layers": 1},
}
every_variant = pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)


def make(**options):
    options = {"dim": 2, "in_channels": 2, "out_channels": 3, "channels": 24, "layers": 2} | options
    return OperatorTransformer(**options).eval()


def domain(n, *batch, null=0):
    weights = torch.rand(*batch, n) + 0.1
    weights[..., n - null :] = 0
    return Domain(2 * torch.rand(*batch, n, 2) - 1, weights)


def targets(n, *batch):
    return Domain(2 * torch.rand(*batch, n, 2) - 1, torch.zeros(*batch, n))


@every_variant
@pytest.mark.parametrize("batch", [(), (3,)])
@pytest.mark.parametrize("parameters", [0, 2])
@pytest.mark.parametrize("fields", [0, 2])
def test_shapes(options, batch, parameters, fields):
    model = make(in_channels=fields, parameter_channels=parameters, **options)
    source, u = domain(M, *batch), torch.randn(*batch, M, fields)
    p = torch.randn(*batch, parameters)
    assert model(source, u, None, p).shape == (*batch, M, 3)
    assert model(source, u, targets(N, *batch), p).shape == (*batch, N, 3)
    if not fields and not parameters:
        assert torch.equal(model(source), model(source, u, None, p))


@every_variant
def test_the_source_as_a_target(options):
    model, source, u = make(**options), domain(M), torch.randn(M, 2)
    whole = model(source, u)
    assert difference(model(source, u, source, target_fields=u), whole) < TIGHT
    # Without fields at the targets they are interpolated, which is exact on the nodes.
    assert difference(model(source, u, source), whole) < TIGHT
    rows = torch.tensor([3, 0, 9])
    assert difference(model(source, u, source.take(rows)), whole[rows]) < TIGHT


@every_variant
@pytest.mark.parametrize("given", [False, True])
def test_a_target_does_not_see_the_others(options, given):
    model, source, u, target = make(**options), domain(M), torch.randn(M, 2), targets(N)
    v = torch.randn(N, 2) if given else None
    state = model.encode(source, u)
    whole = model.decode(state, target, v)
    assert torch.equal(whole, model(source, u, target, target_fields=v))
    for chunk in (1, 2, 4, 6, 99):
        assert difference(model.decode(state, target, v, chunk=chunk), whole) < TIGHT
    for i in range(N):
        one = model.decode(state, target.take(slice(i, i + 1)), None if v is None else v[[i]])
        assert difference(one[0], whole[i]) < TIGHT


@every_variant
def test_a_padded_batch_is_a_loop(options):
    model = make(parameter_channels=1, **options)
    sources, inputs = [domain(M), domain(M - 4)], [torch.randn(M, 2), torch.randn(M - 4, 2)]
    padded = torch.cat([inputs[1], torch.full((4, 2), math.nan)])
    u, p = torch.stack([inputs[0], padded]), torch.randn(2, 1)
    target = targets(N, 2)
    own, elsewhere = model(stack(sources), u, None, p), model(stack(sources), u, target, p)
    for i, (source, f) in enumerate(zip(sources, inputs, strict=True)):
        assert difference(own[i, : source.size], model(source, f, None, p[i])) < TIGHT
        at = Domain(target.points[i], target.weights[i])
        assert difference(elsewhere[i], model(source, f, at, p[i])) < TIGHT


@every_variant
def test_orphans_are_targets_and_do_not_speak(options):
    """A node of weight zero gets a value, with or without an input there, and changes none."""
    model, source, u = make(**options), domain(M, null=2), torch.randn(M, 2)
    alive = model(source.take(slice(M - 2)), u[:-2])
    for value in (1e3, math.nan, math.inf):
        filled = u.clone()
        filled[-2:] = value
        filled.requires_grad_()
        y = model(source, filled)
        assert difference(y[:-2], alive) < TIGHT
        assert y.isfinite().all()
        model.zero_grad()
        y[:-2].square().sum().backward()
        assert all(p.grad.isfinite().all() for p in model.parameters())
        assert filled.grad.isfinite().all()


def test_no_measure_at_all():
    model = make()
    y = model(domain(M, null=M), torch.full((M, 2), math.nan))
    y.sum().backward()
    assert y.isfinite().all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@every_variant
def test_inputs_and_parameters_matter_everywhere(options):
    model, source, u = make(parameter_channels=1, **options), domain(M), torch.randn(M, 2)
    p, target = torch.randn(1), targets(N)
    y = model(source, u, target, p)
    assert ((model(source, u, target, p + 1) - y).abs() > 1e-6).all()
    if options.get("layers") != 0:
        bumped = u.clone()
        bumped[3] += 1
        assert (
            (
                model(source, bumped, target, p, target_fields=torch.zeros(N, 2))
                - model(source, u, target, p, target_fields=torch.zeros(N, 2))
            ).abs()
            > 1e-9
        ).all()


def test_fields_at_the_targets_are_interpolated():
    model, source, u, target = make(), domain(M, null=2), torch.randn(M, 2), targets(N)
    v = source.interpolate(u, target.points)
    assert torch.equal(model(source, u, target), model(source, u, target, target_fields=v))


def test_weights_matter():
    model, source, u = make(), domain(M), torch.randn(M, 2)
    assert difference(model(source.uniform(), u), model(source, u)) > 1e-3
    scaled = Domain(source.points, 1e-12 * source.weights)
    assert difference(model(scaled, u), model(source, u)) < TIGHT


def test_the_weights_of_a_target_are_not_read():
    model, source, u, target = make(), domain(M), torch.randn(M, 2), targets(N)
    heavy = Domain(target.points, torch.rand(N))
    assert torch.equal(model(source, u, heavy), model(source, u, target))


def test_symmetry_is_that_of_the_encoding():
    def moved(at):
        turn = torch.tensor([[0.6, -0.8], [0.8, 0.6]])
        return Domain(at.points @ turn.T + torch.tensor([3.0, -2.0]), at.weights)

    source, u, target = domain(M), torch.randn(M, 2), targets(N)
    model = make(encoding=GaussianBias(2, 4, 24, shift=False))
    y = model(source, u, target)
    assert difference(model(moved(source), u, moved(target)), y) < 1e-10
    model = make()
    assert difference(model(moved(source), u, moved(target)), model(source, u, target)) > 1e-3


def test_the_activation_is_that_of_all_feed_forwards():
    model = make(activation="relu", decoder_layers=1)
    feeds = [m for m in model.modules() if isinstance(m, FeedForward)]
    assert len(feeds) == 2 + 2 + 1  # of two lifts, of the blocks
    assert all(isinstance(feed[1], torch.nn.ReLU) for feed in feeds)


def test_encoding_once_is_enough():
    """`decode` runs no block over the source, and the state holds what it reads."""
    model, source, u = make(), domain(M), torch.randn(M, 2)
    state, calls = model.encode(source, u), []
    for block in model.encoder.blocks:
        block.register_forward_hook(lambda _, args, __: calls.append(args[0].shape[-2]))
    model.decode(state, targets(N))
    assert calls == [N, N]


def test_dtype():
    """float64 domains and fields into a float32 model: its dtype comes out."""
    model, source, u = make().float(), domain(M, null=2), torch.randn(M, 2)
    y = model(source, u)
    assert y.dtype == torch.float32
    assert difference(y, model.double()(source, u)) < ROUNDING[torch.float32]


def test_no_targets():
    model, source = make(), domain(M)
    assert model(source, torch.randn(M, 2), targets(0)).shape == (0, 3)


def test_the_given_encoding_is_copied():
    encoding = Compose(Coordinates(2, 24), Rotary(2, 4, 6))
    model = make(encoding=encoding)
    own = {p.data_ptr() for p in model.parameters()}
    assert own.isdisjoint(p.data_ptr() for p in encoding.parameters())
    assert model.encoding is encoding
    assert not any(name.startswith("encoding.") for name in model.state_dict())


def test_positions_enter_through_the_encoding_alone():
    model, u = make(encoding=Compose()), torch.randn(M, 2)
    source = domain(M)
    elsewhere = Domain(torch.rand(M, 2), source.weights)
    assert torch.equal(model(source, u), model(elsewhere, u))


SOURCE, U = domain(M), torch.randn(M, 2)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"source": Domain(torch.rand(M, 3), torch.rand(M))}, r"2 coordinates, got points \(11, 3"),
        ({"target": Domain(torch.rand(N, 1), torch.rand(N))}, r"2 coordinates, got points \(6, 1"),
        ({"fields": None}, r"in_channels\) = \(11, 2\), got \(11, 0\)"),
        ({"fields": U[:5]}, r"\(11, 2\), got \(5, 2\)"),
        ({"fields": U[:, :1]}, r"\(11, 2\), got \(11, 1\)"),
        ({"parameters": torch.zeros(1)}, r"parameters must have shape \(0,\), got \(1,\)"),
        ({"target": SOURCE, "target_fields": U[:6]}, r"\(11, 2\), got \(6, 2\)"),
    ],
)
def test_refuses(given, message):
    with pytest.raises(ValueError, match=message):
        make()(**{"source": SOURCE, "fields": U} | given)


def test_refuses_missing_parameters():
    with pytest.raises(ValueError, match=r"parameters must have shape \(2,\), got \(0,\)"):
        make(parameter_channels=2)(SOURCE, U)


def test_refuses_chunks_of_nothing():
    model = make()
    for chunk in (0, -1):
        with pytest.raises(ValueError, match="at least 1 point"):
            model.decode(model.encode(SOURCE, U), targets(N), chunk=chunk)


def test_a_target_is_points_alone():
    model = OperatorTransformer(2, 1, 1, channels=8, heads=2, layers=1)
    source = Domain(torch.rand(6, 2), torch.rand(6))
    points, fields = torch.rand(3, 2), torch.rand(6, 1)
    expected = model(source, fields, Domain(points, torch.zeros(3)))
    assert torch.equal(model(source, fields, points), expected)


def test_a_target_of_another_batch_is_refused():
    model = OperatorTransformer(2, 0, 1, channels=8, heads=2, layers=1)
    source = Domain(torch.rand(6, 2), torch.rand(6))
    with pytest.raises(ValueError, match=r"target must have the batch axes \(\) of the source"):
        model(source, target=torch.rand(4, 3, 2))


@pytest.mark.parametrize(
    "model",
    [
        OperatorTransformer(
            2,
            1,
            2,
            channels=16,
            layers=2,
            encoding=Compose(Rotary(2, 4, 4), GaussianBias(2, 4, 16)),
        ),
        EquivariantTransformer(2, ["scalar"], ["vector"], channels=16, vectors=8, layers=2),
    ],
    ids=["translation-invariant", "equivariant"],
)
def test_far_from_the_origin_no_digits_are_lost(model):
    """In float32 a body of size 1 at 10⁶ has 16 places left; its offsets are taken in float64."""
    generator = torch.Generator().manual_seed(0)
    near = Domain(torch.rand(30, 2, generator=generator).double(), torch.rand(30))
    far = replace(near, points=near.points + 1e6)
    f = torch.randn(30, 1, generator=generator)
    model = model.float()
    with torch.no_grad():
        y, z = model(near, f), model(far, f)
        at, there = (model(d, f, d.points[:5] + 0.01) for d in (near, far))
    assert difference(z, y) < ROUNDING[torch.float32]
    assert difference(there, at) < ROUNDING[torch.float32]
