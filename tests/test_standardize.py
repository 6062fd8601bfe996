"""Scales are integrals over the training set: those of numpy, the same on any mesh and batch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from cases import line, on_edge, smoothed, square
from tolerances import difference

from opformer import Domain, MeshDataset, Sample, Standardizer, collate
from opformer.config import build, describe

MESHES = Path(__file__).parents[1] / "meshes"


def random_sample(n, seed, offset=0.0):
    """Points in a box of 1 x 3, uneven weights, two inputs, a parameter, an output."""
    g = torch.Generator().manual_seed(seed)
    exact = {"generator": g, "dtype": torch.float64}
    points = torch.rand(n, 2, **exact) * torch.tensor([1.0, 3.0]) + offset
    domain = Domain(points, 10 ** (3 * torch.rand(n, **exact)))
    fields = torch.randn(n, 2, **exact) * torch.tensor([1.0, 1e3]) + 5
    outputs = torch.randn(n, 1, **exact) - 2
    return Sample(domain, fields, torch.randn(1, **exact), outputs=outputs, name=f"{seed}")


SAMPLES = [random_sample(n, seed) for seed, n in enumerate((20, 5, 40))]


def weighted(values, weights):
    mean = np.average(values, axis=0, weights=weights)
    return mean, np.sqrt(np.average((values - mean) ** 2, axis=0, weights=weights))


def states(a, b):
    return [difference(a.state_dict()[name], b.state_dict()[name]) for name in a.state_dict()]


def test_the_statistics_are_those_of_numpy():
    scale = Standardizer.fit(SAMPLES)
    weights = np.concatenate([s.source.weights for s in SAMPLES])
    for name in ("fields", "outputs"):
        mean, std = weighted(np.concatenate([getattr(s, name) for s in SAMPLES]), weights)
        assert difference(getattr(scale, f"{name}_mean"), mean) < 1e-14
        assert difference(getattr(scale, f"{name}_std"), std) < 1e-14
    p = np.stack([s.parameters for s in SAMPLES])  # each case counts once
    assert difference(scale.parameters_mean, p.mean(axis=0)) < 1e-14
    assert difference(scale.parameters_std, p.std(axis=0)) < 1e-14


def test_coordinates_get_one_factor():
    scale = Standardizer.fit(SAMPLES)
    points = torch.cat([s.source.points for s in SAMPLES])
    low, high = points.amin(0), points.amax(0)
    assert difference(scale.center, (low + high) / 2) < 1e-15
    assert difference(scale.length, (high - low)[1] / 2) < 1e-15
    scaled = torch.cat([scale.scale_domain(s.source).points for s in SAMPLES])
    assert difference(scaled[:, 1].amax(), 1.0) < 1e-15
    assert difference(scaled[:, 1].amin(), -1.0) < 1e-15
    assert scaled[:, 0].abs().amax() < 0.5
    assert torch.equal(scale.scale_domain(SAMPLES[0].source).weights, SAMPLES[0].source.weights)


def test_order_and_grouping_do_not_matter():
    whole = Standardizer.fit(SAMPLES)
    assert max(states(whole, Standardizer.fit(SAMPLES[::-1]))) < 1e-14
    one = SAMPLES[2]
    halves = [
        Sample(one.source.take(part), one.fields[part], one.parameters, outputs=one.outputs[part])
        for part in (slice(0, 13), slice(13, None))
    ]
    split, joined = Standardizer.fit(halves), Standardizer.fit([one])
    assert max(states(split, joined)) < 1e-14


def test_points_of_measure_zero_do_not_count():
    """Padding and orphan nodes: neither their place nor their values, NaN too."""
    one = SAMPLES[0]
    far = Domain(
        torch.cat([one.source.points, torch.full((3, 2), 1e6)]),
        torch.cat([one.source.weights, torch.zeros(3)]),
    )
    fields, outputs = (
        torch.cat([x, torch.full((3, x.shape[1]), torch.nan)]) for x in (one.fields, one.outputs)
    )
    padded = replace(one, source=far, fields=fields, outputs=outputs)
    assert max(states(Standardizer.fit([padded]), Standardizer.fit([one]))) == 0


def test_the_boundary_counts_for_inputs_alone():
    one = SAMPLES[0]
    boundary = torch.arange(20) >= 15
    scale = Standardizer.fit([replace(one, part=boundary.long())])
    assert max(states(scale, Standardizer.fit([one]))[:4]) == 0
    inner = Sample(
        one.source.take(slice(15)), one.fields[:15], one.parameters, outputs=one.outputs[:15]
    )
    expected = Standardizer.fit([inner])
    assert difference(scale.outputs_mean, expected.outputs_mean) < 1e-15
    assert difference(scale.outputs_std, expected.outputs_std) < 1e-15


@pytest.mark.parametrize("n", [4, 9])
def test_a_boundary_and_its_channel(tmp_path, n):
    """Derived: ℓ|Γ| = |Ω|, so what is 0 in Ω and 1 on Γ has mean and deviation 1/2 on any mesh."""
    mesh = square(n, grade=2.0)
    x = mesh.points[:, 0]
    mesh.point_data = {"load": np.where(on_edge(mesh), 3.0, 0.0), "x": x, "u": x}
    mesh.write(tmp_path / "a.vtu")
    data = MeshDataset(tmp_path, inputs=["load", "x"], outputs=["u"], progress=False)
    assert data.layout.part_inputs == ["load"]
    scale, sample = Standardizer.fit(data), data[0]
    mean, std = weighted(sample.fields.numpy(), sample.source.weights)
    assert difference(scale.fields_mean, mean) < 1e-14
    assert difference(scale.fields_std, std) < 1e-14
    assert difference(scale.fields_mean, [1.5, 0.5, 0.5]) < 1e-14
    assert difference(scale.fields_std[[0, 2]], [1.5, 0.5]) < 1e-14
    expected = torch.where(sample.on_parts, 1.0, -1.0)
    assert difference(scale.scale_fields(sample.fields)[:, 2], expected) < 1e-13
    own = weighted(x[:, None], sample.source.weights[: sample.size])  # outputs: on Ω alone
    assert difference(torch.stack([scale.outputs_mean, scale.outputs_std]), np.stack(own)) < 1e-14


def test_a_channel_that_marks_no_boundary():
    """It is constant, and stays zero; a mesh with a boundary is told apart all the same."""
    data = MeshDataset(MESHES / "sphere.vtu", outputs=["u"], progress=False)
    scale = Standardizer.fit(data)
    assert (scale.fields_mean.tolist(), scale.fields_std.tolist()) == ([0.0], [1.0])
    assert not scale.scale_fields(data[0].fields).any()
    assert scale.scale_fields(torch.ones(1, 1)) == 1


def test_another_target_is_in_the_box_and_in_the_statistics():
    one = SAMPLES[0]
    target = Domain(torch.tensor([[7.0, 7.0], [8.0, 9.0]]), torch.tensor([1.0, 3.0]))
    scale = Standardizer.fit([replace(one, target=target, outputs=torch.tensor([[0.0], [4.0]]))])
    assert difference(scale.outputs_mean, [3.0]) < 1e-15
    assert difference(scale.outputs_std, [3**0.5]) < 1e-15
    assert scale.scale_domain(target).points.amax() == 1.0


def test_a_finer_mesh_of_the_same_functions_has_the_same_scales():
    """Graded ones too, at order 2; the plain mean over the nodes is far off."""
    coarse, fine, finer = (
        Standardizer.fit([smoothed(line(n, 3.0), seed) for seed in range(3)])
        for n in (33, 65, 1025)
    )
    for name in ("fields_mean", "fields_std", "outputs_mean", "outputs_std"):
        first, second = (difference(getattr(s, name), getattr(finer, name)) for s in (coarse, fine))
        assert second < 0.01
        assert second < first / 3
    nodes = torch.cat([smoothed(line(1025, 3.0), seed).fields for seed in range(3)])
    assert difference(nodes.std(0), finer.fields_std) > 0.05


def test_constant_channels_keep_their_unit():
    one = SAMPLES[0]
    fields = torch.stack([torch.full((20,), 0.1), torch.zeros(20)], 1)
    scale = Standardizer.fit([replace(one, fields=fields), replace(one, fields=fields)])
    assert scale.fields_std.tolist() == [1.0, 1.0]
    assert scale.scale_fields(fields).abs().max() < 1e-15
    assert scale.parameters_std.tolist() == [1.0]


def test_no_digits_cancel_far_away():
    """Coordinates about 1e7 and a pressure of 1e8 with a deviation of 1."""
    near, far = random_sample(50, 7), random_sample(50, 7, offset=1e7)
    a, b = Standardizer.fit([near]), Standardizer.fit([far])
    assert difference(b.scale_domain(far.source).points, a.scale_domain(near.source).points) < 1e-8
    shifted = [replace(s, outputs=s.outputs + 1e8) for s in SAMPLES]
    std = Standardizer.fit(shifted).outputs_std
    assert difference(std, Standardizer.fit(SAMPLES).outputs_std) < 1e-7


def test_there_and_back():
    scale = Standardizer.fit(SAMPLES)
    y = SAMPLES[1].outputs
    assert (
        difference(scale.unscale_outputs((y - scale.outputs_mean) / scale.outputs_std), y) < 1e-15
    )
    f = torch.cat([scale.scale_fields(s.fields) for s in SAMPLES])
    domain = Domain(torch.zeros(len(f), 1), torch.cat([s.source.weights for s in SAMPLES]))
    assert domain.mean(f).abs().max() < 1e-14
    assert difference(domain.mean(f.square()), torch.ones(2)) < 1e-14
    batch = collate(SAMPLES)
    assert torch.equal(
        scale.scale_parameters(batch.parameters)[1], scale.scale_parameters(SAMPLES[1].parameters)
    )


def test_saved_and_restored():
    scale = Standardizer.fit(SAMPLES)
    again = build(describe(scale))
    assert again.state_dict().keys() == scale.state_dict().keys()
    again.load_state_dict(scale.state_dict())
    assert max(states(again, scale)) == 0
    assert {x.dtype for x in scale.state_dict().values()} == {torch.float64}
    fresh = Standardizer(2, 2, 1, 1)
    assert torch.equal(fresh.scale_fields(SAMPLES[0].fields), SAMPLES[0].fields)
    assert torch.equal(fresh.scale_domain(SAMPLES[0].source).points, SAMPLES[0].source.points)


def test_one_point_has_no_extent():
    scale = Standardizer.fit(
        [
            Sample(
                Domain(torch.ones(1, 2), torch.ones(1)),
                torch.ones(1, 1),
                torch.zeros(0),
                outputs=torch.ones(1, 1),
            )
        ]
    )
    assert scale.length == 1


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([], "at least one sample"),
        ([replace(SAMPLES[0], outputs=None)], "sample '0' has no outputs"),
        ([replace(SAMPLES[0], outputs=torch.zeros(20, 0))], "sample '0' has no outputs"),
        (
            [replace(SAMPLES[0], source=replace(SAMPLES[0].source, weights=torch.zeros(20)))],
            "sample '0' has measure zero",
        ),
    ],
)
def test_refused(samples, message):
    with pytest.raises(ValueError, match=message):
        Standardizer.fit(samples)
