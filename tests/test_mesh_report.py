"""What is said about one mesh: every finding once, with its number, and what it means."""

from __future__ import annotations

import json
import math
from collections import Counter

import meshio
import numpy as np
import pytest
from realdata import DATA, needs_data

from opformer._cells import cell_integrals, node_count
from opformer._facets import corner_count
from opformer.mesh import inspect_mesh, write_mesh
from opformer.mesh.field_report import FieldReport
from opformer.mesh.fields import blocks, top_cells
from opformer.quadrature import TOPOLOGICAL_DIMENSION, block_facets, lumping, node_weights

SQUARE = np.array([[0.0, 0], [1, 0], [1, 1], [0, 1]])
TRIANGLES = [("triangle", np.array([[0, 1, 2], [0, 2, 3]]))]


def square(points=SQUARE, cells=TRIANGLES, **data):
    return meshio.Mesh(np.array(points, dtype=float), cells, **data)


def grid(n=9):
    """A unit square of (n - 1)² squares, with z = 0."""
    x = np.linspace(0, 1, n)
    points = np.stack([*np.meshgrid(x, x, indexing="ij"), np.zeros((n, n))], -1).reshape(-1, 3)
    k = np.arange(n * n).reshape(n, n)
    cells = np.stack([k[:-1, :-1], k[1:, :-1], k[1:, 1:], k[:-1, 1:]], -1).reshape(-1, 4)
    return meshio.Mesh(points, [("quad", cells)])


def field(mesh, name) -> FieldReport:
    (found,) = [f for f in inspect_mesh(mesh).fields if f.name == name]
    return found


def lines(report, label):
    return [line[12:] for line in str(report).splitlines() if line.startswith(f"{label:12}")]


# --- geometry -------------------------------------------------------------------------------------


def test_a_sound_mesh_in_figures():
    report = inspect_mesh(square([[0, 0], [3, 0], [3, 2], [0, 2]], point_data={"p": np.arange(4)}))
    assert (report.points, report.cells, report.unit) == (4, {"triangle": 2}, "area")
    assert report.measure == pytest.approx(6)
    assert report.geometry.boundary == pytest.approx(10)
    assert (report.geometry.lower, report.geometry.upper) == ([0, 0], [3, 2])
    assert report.geometry.extent == 3
    assert (report.spread, report.geometry.cell_spread) == (pytest.approx(2), pytest.approx(1))
    assert (report.weightless, report.first_weightless) == (0, None)
    assert (report.problems, report.remarks, report.notes) == ([], {}, {})
    assert report.verdict == "ready to fit"
    assert lines(report, "boundary") == ["length 10"]
    assert lines(report, "extent") == ["x from 0 to 3, y from 0 to 2"]


@pytest.mark.parametrize(
    ("points", "cells", "unit", "boundary"),
    [
        ([[0.0], [1], [3]], ("line", [[0, 1], [1, 2]]), "length", "2 end points"),
        (SQUARE, ("line", [[0, 1], [1, 2], [2, 3], [3, 0]]), "length", "none"),
        (SQUARE, ("vertex", [[0], [1], [2], [3]]), "count", None),
        (np.r_[[[0.0] * 3], np.eye(3)], ("tetra", [[0, 1, 2, 3]]), "volume", "area 2.36603"),
        (np.r_[[[0.0] * 3], np.eye(3)],
         ("triangle", [[0, 2, 1], [0, 1, 3], [0, 3, 2], [1, 2, 3]]), "area", "none"),
    ],
)  # fmt: skip
def test_the_unit_and_the_boundary_of_each_dimension(points, cells, unit, boundary):
    report = inspect_mesh(square(points, [(cells[0], np.array(cells[1]))]))
    assert report.unit == unit
    assert lines(report, "boundary") == ([] if boundary is None else [boundary])
    assert not report.remarks, "a cloud of vertices is no mesh in parts"


def test_inverted_cells_are_a_note_not_a_fault():
    cells = [("triangle", np.array([[0, 1, 2], [0, 3, 2]]))]
    report = inspect_mesh(square(cells=cells, point_data={"p": np.arange(4)}))
    assert (report.quality.inverted, report.quality.first_inverted) == (1, 1)
    assert report.verdict == "ready to fit"
    (note,) = lines(report, "note")
    assert note.startswith("1 inverted cells (first 1): ")
    assert "harmless" in note


def test_degenerate_cells_and_points_without_weight():
    points = [*SQUARE, [2, 0], [7, 7]]
    cells = [("triangle", np.array([[0, 1, 4], [0, 1, 2], [0, 2, 3]]))]
    report = inspect_mesh(square(points, cells))
    assert (report.weightless, report.first_weightless) == (2, 4)  # in a flat cell, in no cell
    assert report.geometry.upper == [1, 1], "a point of no weight is no part of the extent"
    assert "1 degenerate cells (first 0)" in report.remarks
    assert "1 points in no cell (first 5)" in report.remarks
    assert lines(report, "weights")[0].endswith("2 points of weight 0 (first 4)")
    assert "; have a look: 1 degenerate cells (first 0), " in report.verdict


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_points_that_coincide_and_points_that_nearly_do(scale):
    points = scale * np.array([*SQUARE, [1, 0], [1, 1 + 1e-11], [1 + 1e-7, 1]])
    cells = [("triangle", np.array([[0, 1, 2], [0, 5, 3], [0, 4, 6]]))]
    report = inspect_mesh(square(points, cells))
    assert (report.quality.duplicates, report.quality.first_duplicate) == (1, 4)
    assert report.geometry.near_duplicates == 2  # points 2 and 5; 6 is far enough
    assert report.geometry.first_near_duplicate == 2
    assert "1 duplicate points (first 4)" in report.remarks
    assert "2 nearly duplicate points (first 2)" in report.remarks


def test_three_triangles_on_one_edge():
    """In a plane they overlap, which is a fault; in space a surface may branch."""
    cells = [("triangle", np.array([[1, 2, 0], [2, 1, 3], [1, 2, 4]]))]
    flat = inspect_mesh(square([*SQUARE, [2, 2]], cells))
    text = "1 facets of more than two cells (first [1, 2])"
    assert flat.geometry.crowded_facets == 1
    assert "overlap" in flat.remarks[text]
    still_flat = np.c_[[*SQUARE, [2, 2]], np.zeros(5)]
    assert text in inspect_mesh(square(still_flat, cells)).remarks
    space = np.c_[[*SQUARE, [2, 2]], [0, 0, 0, 0, 1]]
    branching = inspect_mesh(square(space, cells))
    assert text not in branching.remarks
    assert "branches" in branching.notes[text]


def test_a_shared_face_of_solids_and_a_junction_of_lines():
    points = [[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, -1], [1, 1, 1]]
    tetra = np.array([[0, 1, 2, 3], [0, 2, 1, 4], [0, 1, 2, 5]])
    solid = inspect_mesh(square(points, [("tetra", tetra)]))
    assert solid.geometry.first_crowded_facet == [0, 1, 2]
    star = inspect_mesh(square(points[:4], [("line", np.array([[0, 1], [0, 2], [0, 3]]))]))
    assert star.geometry.first_crowded_facet == [0]
    assert "1 facets of more than two cells (first [0])" in star.notes


def test_a_collapsed_side_is_no_facet():
    """Two sides of each of these quads have shrunk to point 1: nothing is shared by four cells."""
    quads = np.array([[0, 1, 1, 2], [2, 1, 1, 3], [3, 1, 1, 4], [4, 1, 1, 5]])
    points = [[0, 0], [1, -1], [1, 0], [2, 0], [3, 0], [4, 0]]
    assert inspect_mesh(square(points, [("quad", quads)])).geometry.crowded_facets == 0


def test_parts_by_size_with_their_first_cells():
    points = np.concatenate([SQUARE + np.array([3 * k, 0]) for k in range(3)])
    cells = [("quad", np.array([[0, 1, 2, 3]])),
             ("triangle", np.array([[4, 5, 6], [4, 6, 7], [8, 9, 10]]))]  # fmt: skip
    report = inspect_mesh(square(points, cells))
    assert (report.geometry.parts, report.geometry.first_of_parts) == ([2, 1, 1], [1, 0, 3])
    meaning = report.remarks["3 parts that share no point"]
    assert meaning.startswith("of 2, 1, 1 cells, beginning at cells 1, 0, 3")
    assert inspect_mesh(grid()).geometry.parts == [64]


def test_many_parts_are_cut_short():
    points = np.concatenate([SQUARE[:3] + np.array([3 * k, 0]) for k in range(9)])
    report = inspect_mesh(square(points, [("triangle", np.arange(27).reshape(9, 3))]))
    assert "of 1, 1, 1, 1, 1 and 4 more cells" in report.remarks["9 parts that share no point"]


@pytest.mark.parametrize(
    ("points", "what"),
    [
        (SQUARE + 1e5, "the mesh lies 1.41e+05 times its size from the origin"),
        (1e-5 * SQUARE, "the mesh is only 1e-05 large"),
        (SQUARE * [1, 1e-7], None),
        (SQUARE, None),
    ],
)
def test_far_away_and_tiny(points, what):
    assert [*inspect_mesh(square(points)).remarks] == ([what] if what else [])


def test_cells_of_very_different_size():
    points = [[0, 0], [1, 0], [0, 1], [-1e-4, 0], [0, -1e-4]]
    report = inspect_mesh(square(points, [("triangle", np.array([[0, 1, 2], [0, 3, 4]]))]))
    assert report.geometry.cell_spread == pytest.approx(1e8)
    assert [*report.remarks] == ["cells differ in area by 1e+08"]


def test_flat_axes_and_lower_cells_are_notes():
    mesh = grid()
    mesh.cells.append(meshio.CellBlock("line", np.array([[0, 1]])))
    notes = inspect_mesh(mesh).notes
    assert [*notes] == ["line cells do not count", "axis z is flat"]
    assert lines(inspect_mesh(mesh), "dimension") == [
        "2 of the cells, 3 of the points, axis z is flat"
    ]


def test_the_time_of_the_file():
    mesh = square(field_data={"TimeValue": np.array([0.25])})
    assert inspect_mesh(mesh).time == 0.25
    assert lines(inspect_mesh(mesh), "time") == ["0.25"]
    assert inspect_mesh(square()).time is None


# --- fields ---------------------------------------------------------------------------------------


def test_the_mean_is_under_the_measure():
    """∫ x = 1/2 over the square; cells of area 1 and 2 weigh so."""
    assert field(square(point_data={"p": SQUARE}), "p").mean == pytest.approx([0.5, 0.5])
    points = [[0, 0], [1, 0], [1, 2], [0, 2], [2, 2]]
    cells = [("line", np.array([[0, 1]])), ("quad", np.array([[0, 1, 2, 3]])),
             ("triangle", np.array([[1, 4, 2]]))]  # fmt: skip
    data = {"c": [np.array([99.0]), np.array([1.0]), np.array([4.0])]}
    c = field(square(points, cells, cell_data=data), "c")
    assert c.mean == pytest.approx([(2 * 1 + 1 * 4) / 3])
    assert c.rms == pytest.approx(math.sqrt((2 * 1 + 1 * 16) / 3))
    assert (c.minimum, c.maximum) == (1, 4), "a cell of lower dimension does not count"
    assert "1 component, from 1 to 4, mean 2" in str(c)


@pytest.mark.parametrize("scale", [1e-200, 1.0, 1e200])
def test_the_rms_neither_overflows_nor_underflows(scale):
    assert field(square(point_data={"p": np.full(4, scale)}), "p").rms == pytest.approx(scale)


def test_nan_is_counted_and_placed():
    p = np.array([1.0, np.nan, 3, np.inf])
    report = inspect_mesh(square(point_data={"p": p}))
    (found,) = report.fields
    assert (found.not_finite, found.first_not_finite) == (2, 1)
    assert (found.minimum, found.maximum) == (1, 3)
    assert found.mean == pytest.approx([2])  # of points 0 and 2, which weigh the same
    assert "NaN or infinite at 2 of the points (first 1)" in str(found)
    assert report.verdict.startswith("not ready: field 'p' is NaN or infinite at 2 points")


def test_nan_where_nothing_is_measured_is_no_problem():
    points = [*SQUARE, [9, 9]]
    report = inspect_mesh(square(points, point_data={"p": np.array([1, 2, 3, 4, np.nan])}))
    assert report.fields[0].first_not_finite == 4
    assert not report.problems


def test_a_field_that_is_nowhere_finite():
    found = field(square(point_data={"p": np.full(4, np.nan)}), "p")
    assert found.not_finite == 4
    assert all(math.isnan(x) for x in (found.minimum, found.maximum, found.rms, *found.mean))
    assert found.kind == ""


def test_kinds_of_fields():
    mesh = grid()
    x, n = mesh.points[:, 0], len(mesh.points)
    edge = (mesh.points[:, :2] % 1 == 0).any(axis=1)
    mesh.point_data = {
        "speed": np.full(n, 20.0),
        "rounded": 20 * (1 + 1e-8 * x),
        "nearly": 20 * (1 + 1e-4 * x),
        "zero": np.zeros((n, 2)),
        "load": np.where(edge, np.random.default_rng(0).random(n), 0)[:, None] * [1, 0],
        "plane": np.c_[x, mesh.points[:, 1], np.zeros(n)],
        "u": np.sin(7 * x + mesh.points[:, 1]),
        "x": x,
    }
    mesh.cell_data = {
        "inside": [(np.arange(64) < 10).astype(np.uint8)],
        "label": [np.arange(64) % 3],
        "young": [np.where(np.arange(64) % 2, 1.5, 70.0)],
    }
    kinds = {f.name: f.kind for f in inspect_mesh(mesh).fields}
    assert kinds == {
        "speed": "constant: fit it under --parameters",
        "rounded": "constant: fit it under --parameters",
        "nearly": "",
        "zero": "zero everywhere",
        "load": "zero off the boundary: acts on the boundary only",
        "plane": "",
        "u": "",
        "x": "",  # 9 values, but on a grid of 9 × 9 that is no label
        "inside": "only 0 and 1: marks a part",
        "label": "only 3 whole numbers: a material or a label",
        "young": "only 2 different values: a material or a label",
    }
    assert field(mesh, "plane").zero_components == [2]
    assert "component 3 of 3 is zero everywhere" in str(field(mesh, "plane"))
    assert field(mesh, "zero").zero_components == []
    assert field(mesh, "label").whole
    assert not field(mesh, "young").whole


def test_without_points_inside_nothing_is_of_the_boundary():
    assert not field(square(point_data={"p": np.arange(4)}), "p").boundary_only


# --- the fast ways, against the definitions -------------------------------------------------------

MIXTURES = [
    *[[kind] for kind in TOPOLOGICAL_DIMENSION if "VTK" not in kind and kind != "polyhedron"],
    ["line", "line3"],
    ["triangle", "quad", "polygon"],
    ["triangle6", "quad8", "quad9", "triangle7", "vertex"],
    ["tetra", "hexahedron", "wedge", "pyramid", "triangle"],
    ["tetra10", "hexahedron20", "wedge15", "pyramid13", "line"],
]


def random_mesh(kinds, seed, count=12):
    """Cells at random on few points, some of them twice, so that everything happens."""
    rng = np.random.default_rng(seed)
    k = max(TOPOLOGICAL_DIMENSION[kind] for kind in kinds)
    dim = rng.integers(max(k, 1), 4)
    points = rng.integers(0, 4, (40, dim)) + rng.choice([0.0, 1e-11], (40, dim))
    cells = []
    for kind in kinds:
        size = 5 if kind == "polygon" else node_count(kind)
        cells.append((kind, rng.integers(0, 36, (count, size))))
        cells.append((kind, rng.permuted(cells[-1][1][: count // 2], axis=1)))
    return meshio.Mesh(points.astype(float), [cells[k] for k in rng.permutation(len(cells))])


def one_by_one(mesh):
    """Type, nodes and the integrals of each top cell, alone."""
    for kind, nodes in top_cells(mesh):
        for row in nodes:
            x = mesh.points[row]
            yield kind, row, x, cell_integrals(kind, (x - x[0])[None])


def connected(cells):
    """Numbers of the cells of each part, the largest first."""
    parts = []
    for number, nodes in enumerate(cells):
        touched = [part for part in parts if part[1] & set(nodes)]
        parts = [part for part in parts if part not in touched]
        numbers = {number}.union(*(part[0] for part in touched))
        parts.append((numbers, set(nodes).union(*(part[1] for part in touched))))
    return sorted(([*numbers] for numbers, _ in parts), key=lambda part: (-len(part), min(part)))


@pytest.mark.parametrize("kinds", MIXTURES, ids="+".join)
@pytest.mark.parametrize("seed", range(3))
def test_every_figure_by_its_definition(kinds, seed):
    mesh = random_mesh(kinds, seed)
    n, report = len(mesh.points), inspect_mesh(mesh)
    cells = list(one_by_one(mesh))
    weights, measures = np.zeros(n), np.array([c[3][0].sum() for c in cells])
    for _, nodes, _, (shares, _, _) in cells:
        np.add.at(weights, nodes, shares[0])
    assert report.measure == pytest.approx(measures.sum(), rel=1e-12)
    np.testing.assert_allclose(node_weights(mesh.points, blocks(mesh)), weights, atol=1e-12)
    matrix = lumping(mesh.points, blocks(mesh))
    np.testing.assert_allclose(matrix.sum(axis=1), weights, atol=1e-12)
    np.testing.assert_allclose(matrix.sum(axis=0), measures, atol=1e-12)
    column = np.zeros(n)
    np.add.at(column, cells[-1][1], cells[-1][3][0][0])
    np.testing.assert_allclose(matrix.toarray()[:, -1], column, atol=1e-12)
    positive = matrix.sum(axis=1)[matrix.sum(axis=1) > 0]  # rounding decides what is just above 0
    assert report.spread == pytest.approx(positive.max() / positive.min())
    assert report.weightless == n - len(positive)

    q, k = report.quality, report.intrinsic
    size = np.array([np.ptp(x, axis=0).max() for _, _, x, _ in cells])
    degenerate = measures <= 1e-15 * size**k
    assert q.degenerate == degenerate.sum()
    inverted = [
        o.size == 1 and o.item() < 0 and not flat
        for (_, _, _, (_, _, o)), flat in zip(cells, degenerate, strict=True)
    ]
    assert q.inverted == sum(inverted)
    assert q.first_inverted == (inverted.index(True) if any(inverted) else None)
    used = np.unique(np.concatenate([nodes for _, nodes, _, _ in cells]))
    assert q.orphans == n - len(used)
    copies = [i for i in range(n) if (mesh.points[:i] == mesh.points[i]).all(axis=1).any()]
    assert (q.duplicates, q.first_duplicate) == (len(copies), copies[0] if copies else None)

    g = report.geometry
    parts = connected([nodes.tolist() for _, nodes, _, _ in cells])
    assert g.parts == [len(part) for part in parts]
    assert g.first_of_parts == [min(part) for part in parts]
    sets = Counter(
        frozenset(side[: corner_count(kind, len(side))])
        for block in top_cells(mesh)
        for kind, sides in block_facets(*block)
        for side in sides.tolist()
    )
    crowded = {side for side, times in sets.items() if times > 2 and len(side) >= k}
    assert g.crowded_facets == len(crowded)
    assert frozenset(g.first_crowded_facet) in (crowded or {frozenset()})
    distance = np.linalg.norm(mesh.points[:, None] - mesh.points, axis=-1)
    near = ((distance > 0) & (distance < 1e-9 * g.extent)).any(axis=1)
    unique = np.delete(np.arange(n), copies)
    assert g.near_duplicates == near[unique].sum()


def test_the_first_crowded_facet_is_the_first_in_the_file():
    base, apices = [0, 1, 2], [3, 4, 5]
    tetra = np.array([[*base, apex] for apex in apices])
    floor = np.arange(6, 10)
    hexahedra = np.array([[*floor, *range(k, k + 4)] for k in (10, 14, 18)])
    points = np.random.default_rng(0).random((22, 3))
    for cells, first in (
        ([("tetra", tetra), ("hexahedron", hexahedra)], base),
        ([("hexahedron", hexahedra), ("tetra", tetra)], floor.tolist()),
    ):
        geometry = inspect_mesh(square(points, cells)).geometry
        assert (geometry.crowded_facets, geometry.first_crowded_facet) == (2, first)


def test_a_field_of_many_values_that_begins_with_few():
    values = np.zeros(5000)
    values[-100:] = np.arange(100)
    points = np.linspace(0, 1, 5000)[:, None]
    cells = [("line", np.column_stack([np.arange(4999), np.arange(1, 5000)]))]
    assert field(square(points, cells, point_data={"p": values}), "p").levels == 0
    assert field(square(points, cells, point_data={"p": values % 32}), "p").levels == 32


# --- the whole ------------------------------------------------------------------------------------


def test_as_plain_data(tmp_path):
    mesh = square(point_data={"p": np.array([1.0, np.nan, 3, 4]), "t": np.array(list("abcd"))})
    report = inspect_mesh(mesh)
    data = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert data["verdict"] == report.verdict
    assert data["measure"] == pytest.approx(1)
    assert [f["name"] for f in data["fields"]] == ["p", "t"]
    assert data["fields"][1]["minimum"] is None
    assert data["geometry"]["parts"] == [2]
    assert "not a field of numbers" in str(report)
    assert "'t' must hold real numbers" in report.verdict


def test_a_file_says_its_name(tmp_path):
    write_mesh(tmp_path / "a.vtu", grid())
    report = inspect_mesh(tmp_path / "a.vtu")
    assert str(report).splitlines()[0] == report.source == str(tmp_path / "a.vtu")
    assert report.verdict == "geometry alone, no field to fit"


@needs_data
def test_real_meshes_in_figures():
    block = inspect_mesh(DATA / "elastic_block" / "train" / "case_000.vtu")
    assert (block.measure, block.geometry.boundary) == (pytest.approx(1), pytest.approx(4))
    assert {f.name: f.kind.partition(":")[0] for f in block.fields} == {
        "u": "",
        "traction": "zero off the boundary",
        "young": "only 9 different values",
    }
    assert "harmless" in " ".join(block.notes.values())  # half of the triangles run clockwise
    holed = inspect_mesh(DATA / "holed_poisson" / "train" / "case_000.vtu")
    assert (holed.measure, holed.geometry.boundary) == (pytest.approx(0.91), pytest.approx(5.2))
    assert [block.verdict, holed.verdict] == ["ready to fit"] * 2
