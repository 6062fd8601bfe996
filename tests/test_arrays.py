"""Meshes as arrays in .npz files, and data on grids that no file holds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from cases import square, tiny_model, write_square
from realdata import DATA, needs_data

from opformer import (
    Domain,
    MeshDataset,
    MeshError,
    Sample,
    Surrogate,
    evaluate,
    fit,
    grid,
    read_mesh,
    write_mesh,
)
from opformer.mesh import mesh_files

POINTS = np.array([[0, 0], [1, 0], [1, 1], [0, 1], [2, 0], [2, 1.0]])
TRIANGLES = np.array([[0, 1, 2], [0, 2, 3]])
QUADS = np.array([[1, 4, 5, 2]])
MESH = {"points": POINTS, "cells_triangle": TRIANGLES, "cells_quad": QUADS}
# As many points as cells: an annulus of one layer.
RING = {
    "points": np.array([[0, 0], [3, 0], [0, 3], [1, 1], [1.5, 0.8], [0.8, 1.5]]),
    "cells_triangle": np.array(
        [[0, 1, 3], [1, 4, 3], [1, 2, 4], [2, 5, 4], [2, 0, 5], [0, 3, 5]], np.int32
    ),
}


def save(path, **arrays):
    np.savez(path, **arrays)
    return path


# ---- .npz files


def test_a_mesh_of_arrays(tmp_path):
    u, k = np.arange(12.0).reshape(6, 2), np.arange(3, dtype=np.float32)
    path = save(tmp_path / "a.npz", **MESH, u=u, k=k, parameter_Re=100, parameter_v=[1.0, 2.0])
    mesh = read_mesh(path)
    assert mesh.points.tolist() == POINTS.tolist()
    assert [(b.type, b.data.tolist()) for b in mesh.cells] == [
        ("triangle", TRIANGLES.tolist()),
        ("quad", QUADS.tolist()),
    ]
    assert mesh.point_data["u"].tolist() == u.tolist()
    assert [part.tolist() for part in mesh.cell_data["k"]] == [[0, 1], [2]]
    assert set(mesh.field_data) == {"Re", "v"}


def test_the_sample_is_that_of_the_file_with_the_same_mesh(tmp_path):
    mesh = write_square(tmp_path / "mesh" / "a.vtu", 1.5)
    fields = {name: mesh.point_data[name] for name in ("f", "v")} | {"c": mesh.cell_data["c"][0]}
    (tmp_path / "arrays").mkdir()
    save(
        tmp_path / "arrays" / "a.npz",
        points=mesh.points,
        cells_triangle=mesh.cells[0].data,
        parameter_speed=1.5,
        **fields,
    )
    names = {"inputs": ["v", "c"], "outputs": ["f"], "parameters": ["speed"], "progress": False}
    expected, got = (MeshDataset(tmp_path / folder, **names) for folder in ("mesh", "arrays"))
    assert got.layout == expected.layout
    for name in ("fields", "outputs", "parameters"):
        torch.testing.assert_close(
            getattr(got[0], name), getattr(expected[0], name), rtol=0, atol=0
        )
    assert got[0].source.weights.equal(expected[0].source.weights)


def test_points_without_cells_are_vertices(tmp_path):
    u, w = np.arange(6.0)[::-1], np.array([0, 1, 2, 3, 4, 5], np.float32)
    mesh = read_mesh(save(tmp_path / "a.npz", points=POINTS, u=u, weights=w, parameter_Re=9.0))
    assert mesh.points.tolist() == POINTS.tolist()
    assert [(b.type, b.data.tolist()) for b in mesh.cells] == [("vertex", [[k] for k in range(6)])]
    assert {name: f.tolist() for name, f in mesh.point_data.items()} == {
        "u": [5, 4, 3, 2, 1, 0],
        "weights": [0, 1, 2, 3, 4, 5],
    }
    assert not mesh.cell_data
    assert mesh.field_data["Re"] == 9
    assert Domain.from_mesh(mesh).weights.tolist() == [1] * 6  # a count, until somebody says more


def test_explicit_vertices_are_cells(tmp_path):
    arrays = {"points": POINTS, "cells_vertex": np.array([[4], [2]]), "u": np.zeros(2)}
    assert "u" in read_mesh(save(tmp_path / "a.npz", **arrays)).cell_data
    with pytest.raises(MeshError, match="cells and an array 'weights'"):
        read_mesh(save(tmp_path / "b.npz", **arrays, weights=np.ones(6)))


def test_equal_numbers_of_points_and_cells(tmp_path):
    with pytest.raises(
        MeshError, match=r"'u' fits the points and the cells, 6 of each.*cell_data_u"
    ):
        read_mesh(save(tmp_path / "a.npz", **RING, u=np.zeros(6)))
    fields = {"point_data_u": np.arange(6.0), "cell_data_u": -np.arange(6.0)}
    mesh = read_mesh(save(tmp_path / "b.npz", **RING, **fields))
    assert mesh.point_data["u"].tolist() == [0, 1, 2, 3, 4, 5]
    assert mesh.cell_data["u"][0].tolist() == [0, -1, -2, -3, -4, -5]


WITHOUT = {"points": POINTS}
REFUSED = {
    "no points": ({"u": np.zeros(3)}, "no array 'points'; there are u"),
    "negative weights": (
        WITHOUT | {"weights": np.array([1, 0, -1, -2, 1, 1])},
        r"weights must be finite and not negative, got -1 at point 2 \(2 such",
    ),
    "NaN among the weights": (
        WITHOUT | {"point_data_weights": np.array([0.0, np.nan, 1, 1, 1, 1])},
        "weights must be finite and not negative, got nan at point 1",
    ),
    "too few weights": (
        WITHOUT | {"weights": np.ones(5)},
        r"'weights' has shape \(5,\).* 6 points",
    ),
    "weights of columns": (WITHOUT | {"weights": np.ones((6, 2))}, r"shape \(6,\), got \(6, 2\)"),
    "a field of no cells": (WITHOUT | {"cell_data_u": np.ones(6)}, "'cell_data_u' .* 0 cells"),
    "an empty field": (WITHOUT | {"u": np.zeros(0)}, r"'u' has shape \(0,\).* 6 points or 0 cells"),
    "points on a line": ({"points": np.zeros(6)}, r"points must have shape \(n, 1\).*got \(6,\)"),
    "one number": ({"points": np.zeros(())}, r"points must have shape \(n, 1\).*got \(\)"),
    "no point": ({"points": np.zeros((0, 2))}, r"points must have shape .*got \(0, 2\)"),
    "weights and cells": (MESH | {"weights": np.ones(6)}, "cells and an array 'weights'"),
    "rows": (MESH | {"u": np.zeros(5)}, r"'u' has shape \(5,\).* 6 points or 3 cells"),
    "a number": (MESH | {"Re": 3.0}, r"'Re' has shape \(\).*parameter_NAME"),
    "a wrong place": (MESH | {"cell_data_u": np.zeros(6)}, r"'cell_data_u' has shape \(6,\)"),
    "a table": (MESH | {"parameter_a": np.zeros((2, 2))}, r"parameter_a must be a number or a row"),
    "text": (MESH | {"u": np.array(list("abcdef"))}, "'u' must hold real numbers, got <U1"),
    "complex": (MESH | {"u": np.zeros(6, complex)}, "'u' must hold real numbers, got complex128"),
    "twice": (MESH | {"u": np.zeros(6), "point_data_u": np.ones(6)}, "another 'u' in the same"),
    "cell type": (WITHOUT | {"cells_blob": TRIANGLES}, "cell type 'blob' is not supported"),
    "node count": (
        WITHOUT | {"cells_quad": TRIANGLES},
        r"cells_quad .* \(k, 4\), got int64 \(2, 3",
    ),
    "floats": (WITHOUT | {"cells_triangle": TRIANGLES * 1.0}, "must be integers .* got float64"),
    "from 1": (
        WITHOUT | {"cells_triangle": TRIANGLES + 3},
        r"cell 1 \(triangle\) refers to points",
    ),
    "flat points": ({"points": np.zeros(6), "cells_triangle": TRIANGLES}, "points must have shape"),
    "NaN": (MESH | {"points": POINTS * np.nan}, "6 points are not finite"),
    "pickled": (MESH | {"u": np.array([{}] * 6, dtype=object)}, "damaged.*allow_pickle=False"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(tmp_path, case):
    arrays, message = REFUSED[case]
    with pytest.raises(MeshError, match=rf"a\.npz: cannot be read as npz: .*{message}"):
        read_mesh(save(tmp_path / "a.npz", **arrays))


def test_damaged_files(tmp_path):
    whole = save(tmp_path / "whole.npz", **MESH).read_bytes()
    path = tmp_path / "a.npz"
    flipped = bytearray(whole)
    flipped[200] ^= 0xFF  # in the coordinates
    for content in (
        whole[:-40],
        whole[: len(whole) // 2],
        bytes(flipped),
        b"no archive",
        whole[:4],
    ):
        path.write_bytes(content)
        with pytest.raises(MeshError, match=r"a\.npz: cannot be read as npz: the file is damaged"):
            read_mesh(path)
    with open(path, "wb") as file:
        np.save(file, POINTS)
    with pytest.raises(MeshError, match=r"a\.npz: .*damaged or of another format"):
        read_mesh(path)


def test_a_parameter_must_be_finite(tmp_path):
    path = save(tmp_path / "a.npz", **MESH, u=np.zeros(6), parameter_Re=np.inf)
    with pytest.raises(MeshError, match=r"a\.npz: parameter 'Re' must be finite, got \[inf\]"):
        MeshDataset(path, outputs=["u"], parameters=["Re"], progress=False)


def test_a_folder_of_arrays_end_to_end(tmp_path):
    for i, n in enumerate((3, 4, 5)):
        mesh = square(n)
        x, y, _ = mesh.points.T
        save(
            tmp_path / f"{i}.npz", points=mesh.points[:, :2], cells_triangle=mesh.cells[0].data,
            f=x + i, g=x * y,
        )  # fmt: skip
    assert [path.name for path in mesh_files(tmp_path)] == ["0.npz", "1.npz", "2.npz"]
    data = MeshDataset(tmp_path, inputs=["f"], outputs=["g"], progress=False)
    surrogate = fit(
        tiny_model(2, data.in_channels, 1), data, validation=0.4, epochs=1, progress=False
    )
    assert len(evaluate(surrogate, tmp_path, progress=False).cases) == 3
    write_mesh(tmp_path / "out.vtu", surrogate.predict(tmp_path / "1.npz"))
    assert len(read_mesh(tmp_path / "out.vtu").point_data["g_predicted"]) == 25


# ---- grids


GRADED = torch.tensor([0.0, 0.1, 0.5, 2.0], dtype=torch.float64)


def test_nodes_integrate_multilinear_functions_exactly():
    domain = grid(GRADED, GRADED + 1, np.array([0, 3]))
    assert domain.points.shape == (32, 3)
    x, y, z = domain.points.T
    f = (1 + 2 * x) * (3 - y) * (z + 1)
    # Over [0, 2], [1, 3] and [0, 3]: 6, 2 and 7.5.
    assert domain.integrate(f).item() == pytest.approx(6 * 2 * 7.5, rel=1e-14)
    assert domain.total.item() == pytest.approx(12, rel=1e-14)


def test_nodes_weigh_what_the_mesh_of_the_grid_says():
    mesh = square(5, grade=2.0)
    t = np.linspace(0, 1, 6)
    domain = grid(t**2, t)
    assert np.allclose(domain.points, mesh.points[:, :2], rtol=0, atol=1e-15)
    quads = np.array([[i, i + 6, i + 7, i + 1] for i in range(30) if i % 6 < 5])
    of_mesh = Domain.from_mesh(type(mesh)(mesh.points, [("quad", quads)]))
    torch.testing.assert_close(domain.weights, of_mesh.weights, rtol=1e-13, atol=0)


def test_cells_have_their_volume_at_their_centre():
    domain = grid(GRADED, [0.0, 2.0, 3.0], cells=True)
    assert domain.points[:2].tolist() == [[0.05, 1.0], [0.05, 2.5]]
    expected = torch.outer(GRADED.diff(), torch.tensor([2.0, 1.0], dtype=torch.float64))
    torch.testing.assert_close(domain.weights, expected.flatten(), rtol=1e-15, atol=0)
    x, y = domain.points.T
    assert domain.integrate(x * y).item() == pytest.approx(2 * 4.5, rel=1e-14)


@pytest.mark.parametrize(("cells", "factor"), [(False, 2), (True, -1)])
def test_second_order(cells, factor):
    """The errors of ∫ eˣ are h²/12 and −h²/24 times the difference of the derivatives."""
    errors = []
    for n in (16, 32):
        domain = grid(torch.linspace(0, 1, n + 1, dtype=torch.float64), cells=cells)
        errors.append(domain.integrate(domain.points[:, 0].exp()).item() - np.expm1(1))
    assert errors[1] == pytest.approx(factor * np.expm1(1) / 24 / 32**2, rel=1e-3)
    assert errors[0] / errors[1] == pytest.approx(4, rel=1e-2)


def test_one_axis_is_the_rule_of_the_line():
    expected = Domain.from_points(GRADED, rule="interval")
    torch.testing.assert_close(grid(GRADED).weights, expected.weights, rtol=1e-14, atol=0)


@pytest.mark.parametrize("axis", [[0.0], [[0.0, 1.0]], 3.0])
def test_axes_that_are_none(axis):
    with pytest.raises(ValueError, match="axis 1 must be a row of two ascending numbers"):
        grid([0.0, 1.0], axis)


@pytest.mark.parametrize(
    ("entry", "got"), [(0.0, "1 and 0"), (1.0, "1 and 1"), (np.nan, "1 and n")]
)
def test_axes_that_do_not_ascend(entry, got):
    with pytest.raises(ValueError, match=f"axis 1 must ascend: entries 2 and 3 are {got}"):
        grid([0.0, 1.0], [0.0, 0.5, 1.0, entry])


@pytest.mark.parametrize("late", [1e6, 1.7e9])
def test_lists_keep_their_digits(late):
    """Also where torch would read them in its default type."""
    torch.set_default_dtype(torch.float32)
    domain = grid([late, late + 0.1, late + 0.4])
    torch.testing.assert_close(
        domain.weights, torch.tensor([0.05, 0.2, 0.15]).double(), rtol=0, atol=1e-6
    )


def test_no_axes():
    with pytest.raises(ValueError, match="at least, got none"):
        grid()


def darcy():
    data = torch.load(DATA / "darcy" / "darcy_train_16.pt", weights_only=True)
    x = torch.linspace(0, 1, 16, dtype=torch.float64)
    domain = grid(x, x)
    k, u = (data[name][:24].double().reshape(24, -1, 1) for name in ("x", "y"))
    return [
        Sample(domain, a, outputs=b, name=f"{i}") for i, (a, b) in enumerate(zip(k, u, strict=True))
    ]


@needs_data
def test_darcy_flow_on_a_grid():
    if not (DATA / "darcy" / "darcy_train_16.pt").is_file():
        pytest.skip("no darcy/darcy_train_16.pt beside the other data")
    samples = darcy()
    history = []
    surrogate = fit(
        tiny_model(2, 1, 1), samples[:20], validation=samples[20:], epochs=2,
        report=history.append, progress=False,
    )  # fmt: skip
    assert isinstance(surrogate, Surrogate)
    assert len(history) == 2
    errors = [case.relative_l2 for case in evaluate(surrogate, samples[20:], progress=False).cases]
    assert len(errors) == 4
    assert all(0 < error < 1.5 for error in errors)
