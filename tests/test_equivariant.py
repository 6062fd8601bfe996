"""Models of vectors and tensors: exact symmetry, the contracts, and the formulas of their parts."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from cases import square
from tolerances import BFLOAT16, ROUNDING, difference

from opformer import (
    Domain,
    EquivariantTransformer,
    FrameAveraging,
    Layout,
    MeshDataset,
    OperatorTransformer,
    RandomPoses,
    Sample,
    Standardizer,
    Surrogate,
    fit,
    load,
    stack,
    write_mesh,
)
from opformer.augment import move
from opformer.config import build, describe
from opformer.equivariant import EquivariantAttention, TokenNorm, Tokens, VectorMix
from opformer.frames import principal_axes
from opformer.motions import channels_of, random_rotation, split, turn
from opformer.testing import ContractError, check_equivariance, check_model

TIGHT = ROUNDING[torch.float64]
INPUTS, OUTPUTS = ["scalar", "vector", "vector"], ["vector", "scalar", "tensor"]


def size(kinds, dim):
    return sum(channels_of(kind, dim) for kind in kinds)


def equivariant(dim, **options):
    small = {"channels": 16, "vectors": 8, "layers": 2, "parameter_channels": 1}
    return EquivariantTransformer(dim, INPUTS, OUTPUTS, **(small | options))


def framed(dim, **options):
    model = OperatorTransformer(
        dim, size(INPUTS, dim), size(OUTPUTS, dim), parameter_channels=1, channels=16, layers=1
    )
    return FrameAveraging(model, INPUTS, OUTPUTS, **options)


# ---- motions


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_random_rotations_are_rotations(dim):
    generator = torch.Generator().manual_seed(0)
    hands = set()
    for _ in range(20):
        q = random_rotation(dim, generator=generator)
        assert difference(q @ q.T, torch.eye(dim)) < TIGHT
        assert torch.linalg.det(q) == pytest.approx(1)
        mirror = random_rotation(dim, reflections=True, generator=generator)
        hands.add(round(float(torch.linalg.det(mirror))))
    assert hands == {1, -1}


def test_random_rotations_are_uniform():
    """The mean of a turned vector is zero, that of its outer product I/d (Haar measure)."""
    generator = torch.Generator().manual_seed(0)
    turned = torch.stack([random_rotation(3, generator=generator)[:, 0] for _ in range(4000)])
    assert turned.mean(0).abs().max() < 5 / math.sqrt(3 * 4000)
    assert difference(turned.T @ turned / 4000, torch.eye(3) / 3) < 0.1


@pytest.mark.parametrize("dim", [2, 3])
def test_fields_turn_as_they_should(dim):
    generator = torch.Generator().manual_seed(0)
    q = random_rotation(dim, reflections=True, generator=generator)
    s, a, b = (torch.randn(5, n, generator=generator).double() for n in (1, dim, dim))
    outer = (a.unsqueeze(-1) * b.unsqueeze(-2)).flatten(-2)
    got = turn(torch.cat([s, a, outer], 1), ["scalar", "vector", "tensor"], q)
    qa, qb = a @ q.T, b @ q.T
    expected = torch.cat([s, qa, (qa.unsqueeze(-1) * qb.unsqueeze(-2)).flatten(-2)], 1)
    assert difference(got, expected) < TIGHT


def test_kinds_that_do_not_fit():
    with pytest.raises(ValueError, match=r"\['vector'\] are 2 channels, got \(5, 3\)"):
        list(split(torch.zeros(5, 3), ["vector"], 2))


# ---- the whole models


@pytest.mark.parametrize("make", [equivariant, framed])
@pytest.mark.parametrize("dim", [2, 3])
@pytest.mark.parametrize("reflections", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_symmetry_is_exact(make, dim, reflections, dtype):
    model = make(dim, reflections=reflections)
    assert model.symmetry == ("E(d)" if reflections else "SE(d)")
    residuals = check_equivariance(model, dtype=dtype)
    assert max(residuals.values()) < {torch.float64: 1e-12, torch.float32: 1e-5}[dtype]
    assert ("reflection" in residuals) == reflections


@pytest.mark.parametrize("dim", [2, 3])
def test_mirror_images_are_told_apart_only_where_asked(dim):
    model = equivariant(dim, reflections=False)
    with pytest.raises(ContractError, match="reflection"):
        check_equivariance(model, symmetry="E(d)")


def test_a_frame_by_the_physics():
    for reflections in (True, False):
        check_equivariance(framed(2, along=[1], reflections=reflections))
        check_equivariance(framed(3, along=[1, 0], reflections=reflections))
    for dim, along in ((2, [2]), (3, [0]), (3, [0, 1, 1])):
        with pytest.raises(ValueError, match=f"along must be {dim - 1} of the 2 input vectors"):
            framed(dim, along=along)


def test_vectors_that_give_no_frame_are_reported():
    model = framed(3, along=[0, 1])
    domain, p = Domain(torch.rand(9, 3), torch.rand(9)), torch.zeros(1)
    fields = torch.cat([torch.ones(9, 1), torch.ones(9, 3), 2 * torch.ones(9, 3)], 1)
    with pytest.warns(UserWarning, match="vanish in the mean, or are parallel"):
        y = model(domain, fields, None, p)
    assert y.isfinite().all()
    swirl = torch.cat([torch.ones(9, 1), torch.rand(9, 2) - 0.5, torch.rand(9, 2)], 1)
    plane = Domain(torch.rand(9, 2), torch.ones(9))
    swirl[:, 1:3] -= plane.mean(swirl[:, 1:3])
    with pytest.warns(UserWarning, match="vanish in the mean"):
        framed(2, along=[0])(plane, swirl, None, p)


def test_a_plain_model_is_caught():
    class Plain(OperatorTransformer):
        symmetry, kinds = "SE(d)", (["vector"], ["vector"])

    with pytest.raises(ContractError, match="C10 symmetry"):
        check_equivariance(Plain(2, 2, 2, channels=16, layers=1))


@pytest.mark.parametrize("dim", [2, 3])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_contracts_hold(dim, dtype):
    check_model(equivariant(dim), dtype=dtype, symmetry="translation")


@pytest.mark.parametrize("reflections", [True, False])
def test_the_contracts_hold_without_mirrors(reflections):
    model = EquivariantTransformer(
        3, ["vector"], ["scalar"], channels=16, vectors=4, layers=1, reflections=reflections
    )
    check_model(model, symmetry="translation")


def test_geometry_alone_is_an_input():
    """Without input fields vectors arise from where the others are."""
    model = EquivariantTransformer(2, [], ["vector"], channels=16, vectors=4, layers=2).double()
    residuals = check_equivariance(model)
    assert max(residuals.values()) < 1e-12
    domain = Domain(torch.rand(20, 2), torch.rand(20))
    assert model(domain).abs().max() > 1e-3


def test_in_half_precision_the_residual_is_that_of_rounding():
    torch.manual_seed(0)
    model = equivariant(3, parameter_channels=0).float()
    domain = Domain(2 * torch.rand(40, 3).float() - 1, torch.rand(40))
    f, q = torch.randn(40, size(INPUTS, 3)).float(), random_rotation(3)
    turned = Domain(domain.points @ q.float().T, domain.weights)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        y = turn(model(domain, f).float(), OUTPUTS, q)
        moved = model(turned, turn(f, INPUTS, q)).float()
    assert difference(moved, y) < 2 * BFLOAT16


def test_described_and_built_again():
    model = equivariant(2, reflections=False, lengths=(0.2, 1.0))
    again = build(describe(model))
    again.load_state_dict(model.state_dict())
    domain = Domain(torch.rand(9, 2), torch.rand(9))
    f, p = torch.randn(9, 5), torch.randn(1)
    assert torch.equal(model(domain, f, None, p), again(domain, f, None, p))
    frames = framed(2)
    assert build(describe(frames)).along == []


@pytest.mark.parametrize(
    ("dim", "inputs", "outputs", "message"),
    [
        (1, ["scalar"], ["scalar"], "need 2 or 3 coordinates, got dim=1"),
        (2, ["tensor"], ["scalar"], "inputs must be a list of scalar, vector, got"),
        (2, ["scalar"], ["spinor"], "outputs must be a list of scalar, vector, tensor, got"),
        (2, "vector", ["scalar"], "inputs must be a list"),
    ],
)
def test_kinds_that_there_are_not(dim, inputs, outputs, message):
    with pytest.raises(ValueError, match=message):
        EquivariantTransformer(dim, inputs, outputs)


def test_widths_that_do_not_fit():
    with pytest.raises(ValueError, match="multiples of heads, got 16, 6 and 4"):
        equivariant(2, vectors=6)


# ---- parts


def test_attention_is_the_dense_formula():
    """One head: the integral written out, with the Gaussian, the drift and all maps."""
    torch.manual_seed(0)
    tokens = Tokens(4, 2, 3)
    attention = EquivariantAttention(tokens, 1).double()
    n, m = 5, 7
    x, memory = (torch.randn(k, tokens.width, dtype=torch.float64) for k in (n, m))
    target = Domain(torch.randn(n, 3, dtype=torch.float64), torch.zeros(n))
    source = Domain(torch.randn(m, 3, dtype=torch.float64), torch.rand(m))
    (s, v), (sm, vm) = tokens.split(x), tokens.split(memory)
    logits = attention.query(s) @ attention.key(sm).T
    q, k = attention.query_vectors(v), attention.key_vectors(vm)
    logits = (logits + torch.einsum("npd,mpd->nm", q, k)) / math.sqrt(4 + 2 * 3)
    length = attention.log_length.exp()
    bound = math.log(20.0)
    gamma = (bound * torch.tanh(attention.width(s) / bound)).exp() / (2 * length**2)
    shift = attention.center(v)[:, 0] * length
    offset = source.points[None] - target.points[:, None] - shift[:, None]
    logits = logits - gamma * offset.square().sum(-1)
    alpha = torch.softmax(logits + source.weights.log(), -1)
    drift = (alpha @ source.points - target.points)[:, None] / length
    scalars = torch.cat([alpha @ attention.value(sm), _bounded(drift)], -1)
    vectors = torch.cat(
        [torch.einsum("nm,mpd->npd", alpha, attention.value_vectors(vm)), drift], -2
    )
    expected = tokens.join(attention.out(scalars), attention.out_vectors(vectors))
    assert difference(attention(x, target, attention.key_values(memory, source)), expected) < TIGHT


def _bounded(drift):
    square = drift.square().sum(-1)
    return square / (1 + square)


def test_vectors_over_the_root_mean_square_of_their_lengths():
    tokens = Tokens(3, 4, 2)
    norm = TokenNorm(tokens).double()
    x = 5 * torch.randn(6, tokens.width, dtype=torch.float64)
    vectors = tokens.split(norm(x))[1]
    assert difference(vectors.square().sum(-1).mean(-1), torch.ones(6)) < 1e-5
    assert tokens.split(norm(torch.zeros(1, tokens.width).double()))[1].abs().max() == 0


def test_a_quarter_turn_in_the_plane():
    mix = VectorMix(1, 1, 2, reflections=False)
    with torch.no_grad():
        mix.linear.weight.copy_(torch.tensor([[0.0, 1.0]]))
    assert mix(torch.tensor([[[3.0, 1.0]]])).tolist() == [[[-1.0, 3.0]]]


def test_tensors_are_symmetric():
    model = EquivariantTransformer(3, ["vector"], ["tensor"], channels=16, vectors=4, layers=1)
    y = model(Domain(torch.rand(9, 3), torch.rand(9)), torch.randn(9, 3)).unflatten(-1, (3, 3))
    assert torch.equal(y, y.mT)
    assert y.abs().max() > 0


# ---- frames


def test_principal_axes_of_an_ellipse():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4000, 2, generator=generator).double() * torch.tensor([3.0, 1.0])
    q = random_rotation(2, generator=generator)
    axes = principal_axes(Domain(x @ q.T + 100, torch.ones(4000)))
    assert abs(float(axes[:, 0] @ q[:, 0])) == pytest.approx(1, abs=1e-3)


def test_axes_that_tell_no_direction_are_reported():
    corners = torch.tensor([[0.0, 0], [1, 0], [1, 1], [0, 1]])
    with pytest.warns(UserWarning, match="axes of nearly equal length"):
        principal_axes(Domain(corners, torch.ones(4)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        principal_axes(Domain(corners * torch.tensor([2.0, 1.0]), torch.ones(4)))


def test_frames_in_a_batch_are_those_of_each_case():
    torch.manual_seed(0)
    model = framed(2, reflections=False).double()
    domains = [Domain(torch.rand(n, 2).double(), torch.rand(n)) for n in (6, 9)]
    fields = [torch.randn(n, 5, dtype=torch.float64) for n in (6, 9)]
    p = torch.zeros(2, 1).double()
    padded = torch.stack([torch.cat([fields[0], torch.full((3, 5), torch.nan)]), fields[1]])
    both = model(stack(domains), padded, None, p)
    for row, domain, f in zip(both, domains, fields, strict=True):
        assert difference(row[: domain.size], model(domain, f, None, p[0])) < TIGHT


def test_channels_that_are_not_those_of_the_model():
    with pytest.raises(ValueError, match=r"inputs \['vector'\] are 2 channels, the model has 3"):
        FrameAveraging(OperatorTransformer(2, 3, 2, channels=16), ["vector"], ["vector"])


def test_a_causal_model_has_no_frames():
    with pytest.raises(ValueError, match="look ahead in time"):
        FrameAveraging(
            OperatorTransformer(2, 2, 2, channels=16, causal_axis=1), ["vector"], ["vector"]
        )


# ---- from files to a surrogate


@pytest.fixture
def folder(tmp_path):
    """A vector field f and a scalar h, and g = (x² + y²) f."""
    for i in range(4):
        mesh = square(4 + i % 2, shift=i / 4)
        x, y, _ = mesh.points.T
        f = torch.stack([torch.from_numpy(a) for a in (x + i, y * 0 + 1, 0 * x)], 1)
        g = f * torch.from_numpy(x**2 + y**2)[:, None]
        data = {"f": f.numpy(), "g": g.numpy(), "h": x * y}
        write_mesh(tmp_path / f"{i}.vtu", mesh, point_data=data)
    return tmp_path


def test_kinds_of_a_layout(folder):
    data = MeshDataset(folder, inputs=["f", "h"], outputs=["g"], progress=False)
    assert data.layout.kinds == (["vector", "scalar", "scalar", "scalar"], ["vector", "scalar"])
    solid = Layout(inputs={"u": 3, "s": 9, "p": 1}, outputs={"v": 3}, axes=[0, 1, 2])
    assert solid.kinds == (["vector", "tensor", "scalar"], ["vector"])
    heat = Layout(inputs={"heat:3": 3, "heat:8": 8}, axes=[0, 1, 2])
    assert heat.kinds == (["scalar"] * 11, [])
    with pytest.raises(ValueError, match="field 'c' has 5 components, which make no scalar"):
        Layout(inputs={"c": 5}, axes=[0, 1]).kinds  # noqa: B018


def test_scales_that_single_out_no_direction():
    generator = torch.Generator().manual_seed(0)
    samples = []
    for i in range(3):
        f = torch.randn(30, 3, generator=generator).double() * torch.tensor([1.0, 9.0, 3.0]) + i
        y = torch.randn(30, 4, generator=generator).double() + torch.tensor([5.0, 0, 0, 1.0])
        source = Domain(torch.rand(30, 2, generator=generator).double(), torch.ones(30))
        samples.append(Sample(source, f, outputs=y))
    kinds = {"inputs": ["vector", "scalar"], "outputs": ["tensor"]}
    scale = Standardizer.fit(samples, **kinds)
    f = torch.cat([s.fields for s in samples])
    assert scale.fields_mean[:2].tolist() == [0.0, 0.0]
    rms = f[:, :2].square().mean().sqrt()
    assert difference(scale.fields_std[:2], rms.expand(2)) < TIGHT
    assert float(scale.fields_mean[2]) == pytest.approx(float(f[:, 2].mean()))
    mean = scale.outputs_mean.unflatten(0, (2, 2))
    y = torch.cat([s.outputs for s in samples])
    trace = (y[:, 0].mean() + y[:, 3].mean()) / 2
    assert difference(mean, trace * torch.eye(2)) < TIGHT
    q = random_rotation(2, reflections=True)
    turned = Standardizer.fit([move(s, q, **kinds) for s in samples], **kinds)
    for name in ("fields_mean", "fields_std", "outputs_mean", "outputs_std"):
        assert difference(getattr(turned, name), getattr(scale, name)) < TIGHT


@pytest.mark.parametrize("unit", [1.0, 1e-3])
def test_a_component_that_is_always_zero_has_no_scale_of_its_own(unit):
    u = unit * torch.linspace(1, 2, 20, dtype=torch.float64)[:, None]
    sample = Sample(Domain(torch.rand(20, 2).double(), torch.ones(20)), torch.cat([u, 0 * u], 1),
                    outputs=u)  # fmt: skip
    scale = Standardizer.fit([sample], inputs=["vector"], outputs=["scalar"])
    assert difference(scale.fields_std, (u.square().mean() / 2).sqrt().expand(2)) < TIGHT


def test_time_is_no_direction(folder):
    with pytest.raises(ValueError, match="time is no direction of the space"):
        Layout(inputs={"u": 2}, axes=[0, 1], velocity=1.0).kinds  # noqa: B018


def test_a_fitted_surrogate_turns_exactly(folder, tmp_path):
    data = MeshDataset(folder, inputs=["f", "h"], outputs=["g"], progress=False)
    inputs, outputs = data.layout.kinds
    torch.manual_seed(0)
    model = EquivariantTransformer(2, inputs, outputs, channels=16, vectors=8, layers=2)
    fit(model, data, out=tmp_path / "run", epochs=2, validation=0.25, progress=False)
    surrogate = load(tmp_path / "run")
    surrogate = Surrogate(surrogate.model.double(), surrogate.standardizer, surrogate.layout)
    sample = data[1]
    for reflections in (False, True):
        q = random_rotation(2, reflections=reflections)
        moved = move(sample, q, torch.tensor([3.0, -7.0]), inputs=inputs, outputs=outputs)
        with torch.no_grad():
            y, z = surrogate(sample), surrogate(moved)
        assert difference(z, turn(y, outputs, q)) < TIGHT


def test_random_poses(folder):
    data = MeshDataset(folder, inputs=["f", "h"], outputs=["g"], progress=False)
    inputs, outputs = data.layout.kinds
    poses = RandomPoses(data, inputs, outputs)
    assert len(poses) == 4
    assert poses.layout is data.layout
    torch.manual_seed(0)
    one, two = poses[0], poses[0]
    assert difference(one.source.points, two.source.points) > 0.1
    for sample in (one, two):
        center = sample.source.mean(sample.source.points)
        assert difference(center, data[0].source.mean(data[0].source.points)) < TIGHT
        lengths = sample.outputs[:, :2].norm(dim=1)
        assert difference(lengths, data[0].outputs[:, :2].norm(dim=1)) < TIGHT
        assert torch.equal(sample.fields[:, 3:], data[0].fields[:, 3:])
    model = OperatorTransformer(2, data.in_channels, data.out_channels, channels=8, layers=1)
    surrogate = fit(model, poses, validation=data, epochs=1, progress=False)
    assert surrogate.layout is data.layout
