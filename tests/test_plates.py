"""The demo's data: exact areas, valid meshes, the order of the solver, determinism."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import meshio
import numpy as np
import pytest
from scipy.interpolate import LinearNDInterpolator

pytest.importorskip("skfem", reason="needs the extra 'data'")
EXAMPLES = Path(__file__).parents[1] / "examples"
sys.path.insert(0, str(EXAMPLES))

import plates  # noqa: E402

SQUARE = plates.Plate(1.0, 1.2, np.empty((0, 2)), np.empty((0, 2, 2)))
FIELDS = ["conductivity", "source", "temperature"]


def mesh(seed, nodes, grading=1.0):
    problem = plates.case(seed)
    size = partial(problem.size, grading=grading)
    return plates.plate_mesh(problem.plate, size, nodes=nodes, seed=seed)


def areas(x, triangles):
    (a, b), (c, d) = np.moveaxis(x[triangles[:, 1:]] - x[triangles[:, :1]], 0, -1)
    return (a * d - b * c) / 2


def smallest_angle(x, triangles):
    to_next = np.roll(x[triangles], -1, axis=1) - x[triangles]
    to_last = np.roll(x[triangles], 1, axis=1) - x[triangles]
    cosine = (to_next * to_last).sum(-1) / np.linalg.norm(to_next, axis=-1)
    return np.degrees(np.arccos((cosine / np.linalg.norm(to_last, axis=-1)).max()))


def boundary_edges(triangles):
    edges = np.sort(np.concatenate([triangles[:, :2], triangles[:, 1:], triangles[:, ::2]]), axis=1)
    edges, count = np.unique(edges, axis=0, return_counts=True)
    assert count.max() <= 2
    return edges[count == 1]


@pytest.mark.parametrize("grading", [0.0, 1.0, -0.7])
@pytest.mark.parametrize("nodes", [200, 650])
def test_mesh_is_valid(nodes, grading):
    for seed in range(6):
        x, triangles = mesh(seed, nodes, grading)
        assert len(x) == nodes
        assert np.array_equal(np.unique(triangles), np.arange(nodes)), "orphan nodes"
        assert areas(x, triangles).min() > 0
        assert smallest_angle(x, triangles) > 15
        plate = plates.case(seed).plate
        rim = boundary_edges(triangles)
        assert np.abs(plate.depth(x[np.unique(rim)])).max() < 1e-12
        assert np.delete(plate.depth(x), np.unique(rim)).min() > 0
        assert all((np.linalg.norm(x - corner, axis=1) == 0).any() for corner in plate.corners)
        assert len(triangles) == 2 * nodes - len(rim) - 2 + 2 * len(plate.centers)


def test_area_converges_to_that_of_the_plate():
    for seed in range(4):
        exact = plates.case(seed).plate.area
        coarse, fine = (areas(*mesh(seed, nodes)).sum() - exact for nodes in (400, 1600))
        assert 0 < coarse < 3e-3 * exact  # a polygon in an ellipse is too small
        assert np.log2(coarse / fine) == pytest.approx(2.0, abs=0.3)  # h / 2


def test_grading_spreads_the_areas():
    spread = {
        grading: np.median([np.ptp(np.log(areas(*mesh(seed, 650, grading)))) for seed in range(5)])
        for grading in (0.0, 1.0)
    }
    assert spread[0.0] < np.log(4)
    assert np.log(30) < spread[1.0] < np.log(100)


def test_edge_length_follows_the_size():
    problem = plates.case(1)
    x, triangles = mesh(1, 1500)
    size = problem.size(x[triangles].mean(axis=1), 1.0)
    relative = areas(x, triangles) / size**2
    assert np.std(relative) < 0.2 * np.mean(relative)


@pytest.mark.parametrize("nodes", [0, 40])
def test_too_few_nodes(nodes):
    with pytest.raises(ValueError, match=f"nodes must be at least .* got {nodes}"):
        mesh(4, nodes)


def test_solver_has_the_order_of_quadratic_elements():
    """T = sin(pi x/2) cos(pi y/1.2) meets all boundary conditions; k = exp(x y)."""
    a, b = np.pi / 2, np.pi / 1.2

    def exact(x):
        return np.sin(a * x[..., 0]) * np.cos(b * x[..., 1])

    def source(x):
        s, t = x[..., 0], x[..., 1]
        flux = t * a * np.cos(a * s) * np.cos(b * t) - s * b * np.sin(a * s) * np.sin(b * t)
        return np.exp(s * t) * ((a**2 + b**2) * exact(x) - flux)

    problem = SimpleNamespace(conductivity=lambda x: np.exp(x.prod(axis=-1)), source=source)
    errors = []
    for nodes in (100, 400, 1600):
        x, triangles = plates.plate_mesh(SQUARE, lambda x: 1 + x[:, 0], nodes=nodes)
        error = plates.solve(x, triangles, problem) - exact(x)
        corners = np.repeat(areas(x, triangles) / 3, 3)
        errors.append(np.sqrt(np.bincount(triangles.ravel(), corners) @ error**2))
    assert errors[-1] < 1e-6
    assert np.log2(errors[0] / errors[2]) / 2 > 2.8


def test_heat_leaves_by_the_left_edge_only():
    """With k = 1, T = x - x^2/2 on any plate without holes, whose source is then 1."""
    x, triangles = plates.plate_mesh(SQUARE, lambda x: np.ones(len(x)), nodes=80)
    one = SimpleNamespace(
        conductivity=lambda x: np.ones(x.shape[:-1]), source=lambda x: 0 * x[..., 0] + 1
    )
    s = x[:, 0]
    np.testing.assert_allclose(plates.solve(x, triangles, one), s - s**2 / 2, atol=1e-13)


def test_finer_meshes_of_a_case_agree():
    """The difference bounds the error that a surrogate can claim over a range of meshes."""
    for seed in (1, 9):  # four holes each
        problem = plates.case(seed)
        fine, x = mesh(seed, 4000), mesh(seed, 400)
        expected = LinearNDInterpolator(fine[0], plates.solve(*fine, problem))(x[0])
        inside = np.isfinite(expected)
        assert inside.mean() > 0.9
        difference = (plates.solve(*x, problem) - expected)[inside]
        assert np.linalg.norm(difference) < 4e-3 * np.linalg.norm(expected[inside])


def test_conductivity_has_contrast_and_temperature_is_positive():
    for seed in range(6):
        problem = plates.case(seed)
        x, triangles = mesh(seed, 400)
        k = problem.conductivity(x)
        assert 1.5 < k.max() / k.min() < 7
        left = x[:, 0] == 0
        temperature = plates.solve(x, triangles, problem)
        assert np.abs(temperature[left]).max() == 0
        assert temperature[~left].min() > 0


def test_files_depend_on_the_seed_alone(tmp_path):
    paths = plates.write(tmp_path / "one", [3, 7], nodes=(200, 300))
    again = plates.write(tmp_path / "two", [7, 3], nodes=(200, 300), workers=2)
    assert [path.name for path in paths] == ["plate_0003.vtu", "plate_0007.vtu"]
    assert [path.read_bytes() for path in paths] == [path.read_bytes() for path in again[::-1]]
    assert paths[0].read_bytes() != paths[1].read_bytes()
    finer = meshio.read(plates.write(tmp_path / "fine", [3], nodes=(900, 900))[0])
    coarse = meshio.read(paths[0])
    assert len(finer.points) == 900
    assert 200 <= len(coarse.points) <= 300
    assert sorted(coarse.point_data) == FIELDS
    assert (coarse.points[:, 2] == 0).all()
    assert all(np.isfinite(values).all() for values in coarse.point_data.values())
    k = plates.case(3).conductivity(coarse.points[:, :2])
    np.testing.assert_array_equal(coarse.point_data["conductivity"], k)
