"""Points of one place become one, and values come back."""

from __future__ import annotations

import meshio
import numpy as np
import pytest
from cases import square
from reading import boundary_weights

from opformer import MeshError
from opformer._polyhedra import Polyhedra
from opformer.mesh import blocks, inspect_mesh, merge_points, read_mesh
from opformer.quadrature import cell_report, node_weights


def torn(mesh: meshio.Mesh) -> tuple[meshio.Mesh, np.ndarray]:
    """Each cell with points of its own, and the old point of each new one."""
    old = np.concatenate([block.data.ravel() for block in mesh.cells])
    ends = np.cumsum([block.data.size for block in mesh.cells])
    numbers = np.split(np.arange(len(old)), ends[:-1])
    cells = [
        (block.type, ids.reshape(block.data.shape))
        for block, ids in zip(mesh.cells, numbers, strict=True)
    ]
    return meshio.Mesh(mesh.points[old], cells), old


@pytest.mark.parametrize("grade", [1.0, 3.0])
def test_a_torn_square_is_sewn(grade):
    mesh = square(6, grade, shift=0.3)
    pieces, old = torn(mesh)
    assert boundary_weights(pieces).sum() > 10
    merged, index = merge_points(pieces)
    assert len(merged.points) == len(mesh.points)
    assert boundary_weights(merged).sum() == pytest.approx(4, rel=1e-12)
    np.testing.assert_array_equal(merged.points[index], pieces.points)
    # The same cells, under other numbers of the same points.
    np.testing.assert_array_equal(
        merged.points[merged.cells[0].data], mesh.points[mesh.cells[0].data]
    )
    weights = node_weights(merged.points, blocks(merged))
    assert weights.sum() == pytest.approx(1, rel=1e-12)
    np.testing.assert_allclose(
        weights[index], node_weights(mesh.points, blocks(mesh))[old], rtol=1e-12
    )


def test_points_keep_the_order_of_their_first_occurrence():
    x = np.array([[3.0], [1.0], [3.0], [2.0], [1.0], [0.0]])
    mesh = meshio.Mesh(x, [("line", np.array([[0, 1], [2, 3], [4, 5]]))])
    merged, index = merge_points(mesh)
    assert merged.points.ravel().tolist() == [3, 1, 2, 0]
    assert index.tolist() == [0, 1, 0, 2, 1, 3]
    assert merged.cells[0].data.tolist() == [[0, 1], [0, 2], [1, 3]]
    assert mesh.cells[0].data.tolist() == [[0, 1], [2, 3], [4, 5]]  # the mesh given is untouched


def test_a_mesh_without_duplicates_is_itself():
    mesh = square(3)
    merged, index = merge_points(mesh)
    assert merged is mesh
    assert index.tolist() == list(range(16))


def test_equal_means_every_bit_but_the_sign_of_zero():
    near = np.nextafter(1.0, 2.0)
    points = np.array([[0.0, 1.0], [-0.0, 1.0], [0.0, near]])
    mesh = meshio.Mesh(points, [("triangle", np.array([[0, 1, 2]]))])
    assert merge_points(mesh)[1].tolist() == [0, 0, 1]
    assert merge_points(mesh, 1.0)[1].tolist() == [0, 0, 0]


def test_the_tolerance_is_a_part_of_the_extent_and_chains():
    x = 1e6 + 200 * np.array([0, 0.009, 0.018, 0.5, 1.0, 0.5])
    lines = np.array([[0, 3], [1, 2], [5, 4]])
    mesh = meshio.Mesh(x[:, None], [("line", lines)])
    assert merge_points(mesh)[1].tolist() == [0, 1, 2, 3, 4, 3]
    assert merge_points(mesh, 0.0089)[1].tolist() == [0, 1, 2, 3, 4, 3]
    merged, index = merge_points(mesh, 0.0091)
    assert index.tolist() == [0, 0, 0, 1, 2, 1]  # 0 and 2 are farther apart, and one by way of 1
    assert merged.points.ravel().tolist() == x[[0, 3, 4]].tolist()
    assert merged.cells[0].data.tolist() == [[0, 1], [0, 0], [1, 2]]  # all cells are still there
    assert cell_report(merged.points, blocks(merged)).degenerate == 1


def seam() -> meshio.Mesh:
    """Two lines that meet in x = 1 with points of their own, of lengths 1 and 3."""
    return meshio.Mesh([[0.0], [1.0], [1.0], [4.0]], [("line", np.array([[0, 1], [2, 3]]))])


FIELDS = {
    "agreed": ([0.1, 0.2, 0.2, 0.3], [0.1, 0.2, 0.3]),
    "jump": ([5.0, 1.0, 2.0, 6.0], [5, (0.5 * 1 + 1.5 * 2) / 2, 6]),
    "vector": ([[1, 0], [1.0, 4], [1, 8], [2, 2]], [[1, 0], [1, 7], [2, 2]]),
    "not a number twice": ([0.0, np.nan, np.nan, 1], [0, np.nan, 1]),
    "not a number once": ([0.0, np.nan, 2, 1], [0, np.nan, 1]),
    "a set": ([0, 0, 1, 1], [0, 1, 1]),
    "a mask": ([True, True, False, False], [True, True, False]),
    "numbers": ([7, 9, 4, 3], [7, 9, 3]),
}


@pytest.mark.parametrize("name", FIELDS)
def test_point_fields(name):
    given, expected = FIELDS[name]
    mesh = seam()
    mesh.point_data["f"] = np.array(given)
    field = merge_points(mesh)[0].point_data["f"]
    assert field.dtype == mesh.point_data["f"].dtype
    np.testing.assert_allclose(field, expected, rtol=1e-15, equal_nan=True)


def test_a_value_that_is_shared_keeps_all_bits_and_integrals_are_kept():
    pieces, old = torn(square(5, 2.0))
    f = np.random.default_rng(0).random(36).astype(np.float32)
    jump = np.random.default_rng(1).random(len(old))
    pieces.point_data = {"f": f[old], "jump": jump}
    merged, index = merge_points(pieces)
    np.testing.assert_array_equal(merged.point_data["f"][index], f[old])
    before, after = (node_weights(m.points, blocks(m)) for m in (pieces, merged))
    assert after @ merged.point_data["jump"] == pytest.approx(before @ jump, rel=1e-12)


def test_copies_without_weight_count_only_among_themselves():
    mesh = seam()
    mesh.points = np.vstack([mesh.points, [[1.0], [9.0], [9.0]]])
    mesh.point_data["f"] = np.array([0.0, 1, 1, 0, np.nan, 2, 4])
    assert merge_points(mesh)[0].point_data["f"].tolist() == [0, 1, 0, 3]


def test_everything_else_is_kept():
    mesh = seam()
    mesh.cells.append(meshio.CellBlock("vertex", np.array([[2]])))
    mesh.cell_data = {"c": [np.array([1.0, 2.0]), np.array([3.0])]}
    mesh.field_data = {"time": 3.0}
    mesh.point_sets = {"middle": np.array([1, 2])}
    mesh.cell_sets = {"left": [np.array([0]), None]}
    merged, _ = merge_points(mesh)
    assert [part.tolist() for part in merged.cell_data["c"]] == [[1, 2], [3]]
    assert merged.cells[1].data.tolist() == [[1]]
    assert merged.field_data == {"time": 3.0}
    assert merged.point_sets["middle"].tolist() == [1]
    assert merged.cell_sets == mesh.cell_sets


def test_polyhedra():
    tetra = [[0, 2, 1], [0, 1, 3], [1, 2, 3], [2, 0, 3]]
    other = [[4, 5, 6], [4, 7, 5], [5, 7, 6], [6, 7, 4]]
    corner = np.vstack([np.zeros((1, 3)), np.eye(3)])
    mirrored = corner * [1, 1, -1]
    mesh = meshio.Mesh(
        np.vstack([corner, mirrored]), [("polyhedron", Polyhedra.of([tetra, other]))]
    )
    merged, index = merge_points(mesh)
    assert index.tolist() == [0, 1, 2, 3, 0, 1, 2, 4]
    assert [face.tolist() for face in merged.cells[0].data[1]] == [
        [0, 1, 2], [0, 4, 1], [1, 4, 2], [2, 4, 0],
    ]  # fmt: skip
    assert node_weights(merged.points, blocks(merged)).sum() == pytest.approx(1 / 3)


@pytest.mark.parametrize("tolerance", [-1e-9, np.nan, np.inf])
def test_tolerances_that_are_none(tolerance):
    with pytest.raises(MeshError, match="tolerance must be a part of the extent"):
        merge_points(seam(), tolerance)


def test_a_file_of_pieces(tmp_path):
    pieces, _ = torn(square(4))
    pieces.write(tmp_path / "a.vtu")
    mesh = read_mesh(tmp_path / "a.vtu")
    assert len(inspect_mesh(mesh).geometry.parts) == 32
    report = inspect_mesh(merge_points(mesh)[0])
    assert len(report.geometry.parts) == 1
    assert report.quality.duplicates == 0
    assert report.geometry.boundary == pytest.approx(4)


def test_marks_that_are_floats_stay_marks():
    points = np.array([[0.0, 0], [1, 0], [0, 1], [1, 0], [1, 1], [0, 1]])
    cells = [("triangle", np.array([[0, 1, 2], [3, 4, 5]]))]
    right = np.array([0.0, 0, 0, 1, 1, 0])
    merged, _ = merge_points(meshio.Mesh(points, cells, point_data={"right": right}))
    assert merged.point_data["right"].tolist() == [0, 1, 0, 1]
