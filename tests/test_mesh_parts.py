"""Parts of a mesh: exact measures, by cells and by nodes, from a file's groups, and refusals."""

from __future__ import annotations

import meshio
import numpy as np
import pytest
import torch
from cases import on_edge, square
from reading import boundary_weights
from tolerances import ROUNDING, difference

from opformer.errors import MeshError
from opformer.mesh import (
    part_cells,
    part_names,
    part_weights,
    read_mesh,
    with_fields,
)

GROUPS = """$MeshFormat
2.2 0 8
$EndMeshFormat
$PhysicalNames
4
1 1 "inlet"
1 2 "wall"
2 3 "fluid"
2 4 "inclusion"
$EndPhysicalNames
$Nodes
6
1 0 0 0
2 2 0 0
3 3 0 0
4 0 1 0
5 2 1 0
6 3 1 0
$EndNodes
$Elements
10
1 1 2 1 1 1 4
2 1 2 2 2 1 2
3 1 2 2 2 2 3
4 1 2 2 2 3 6
5 1 2 2 2 6 5
6 1 2 2 2 5 4
7 2 2 3 3 1 2 5
8 2 2 3 3 1 5 4
9 2 2 4 4 2 3 6
10 2 2 4 4 2 6 5
$EndElements
"""


@pytest.fixture
def channel(tmp_path) -> meshio.Mesh:
    """[0, 3] x [0, 1]: an inlet of length 1, walls for the rest, and the last third apart."""
    path = tmp_path / "channel.msh"
    path.write_text(GROUPS)
    return read_mesh(path)


def marked(mesh: meshio.Mesh, **points: np.ndarray) -> meshio.Mesh:
    return with_fields(mesh, point_data={name: m.astype(np.uint8) for name, m in points.items()})


def equal(got: np.ndarray, expected: np.ndarray) -> bool:
    return difference(got, expected) <= ROUNDING[torch.float64]


# --- marked cells ---------------------------------------------------------------------------------


def test_physical_groups_of_a_file_are_parts_of_exact_measure(channel):
    assert part_names(channel) == ["boundary", "inlet", "wall", "fluid", "inclusion"]
    x, y = channel.points[:, :2].T
    assert equal(part_weights(channel, "inlet"), np.where(x == 0, 0.5, 0))
    assert equal(part_weights(channel, "wall"), np.choose(x.astype(int), [1, 0, 1.5, 1]))
    assert equal(part_weights(channel, "fluid").sum(), 2.0)
    assert equal(part_weights(channel, "fluid")[x == 3], np.zeros(2))
    assert equal(part_weights(channel, "inclusion").sum(), 1.0)
    assert [kind for kind, _ in part_cells(channel, "inclusion")] == ["triangle"]
    assert equal(part_weights(channel, "fluid") @ y, 1.0)  # linear functions are exact


def test_parts_sum_to_the_boundary_and_to_the_whole(channel):
    edge = part_weights(channel, "inlet") + part_weights(channel, "wall")
    assert equal(edge, part_weights(channel, "boundary"))
    assert equal(part_weights(channel, "boundary"), boundary_weights(channel))
    whole = part_weights(channel, "fluid") + part_weights(channel, "inclusion")
    assert equal(whole.sum(), 3.0)


def test_of_marked_cells_those_of_the_highest_dimension_are_the_part(channel):
    both = [np.ones(len(block), dtype=int) for block in channel.cells]
    mesh = with_fields(channel, cell_data={"all": both})
    assert {kind for kind, _ in part_cells(mesh, "all")} == {"triangle"}
    assert equal(part_weights(mesh, "all").sum(), 3.0)


def test_nan_marks_nothing(channel):
    """As it does where a field knows the top cells only."""
    mesh = with_fields(channel, cell_data={"right": np.array([0.0, 0, 1, 1])})
    assert equal(part_weights(mesh, "right"), part_weights(mesh, "inclusion"))
    nothing = [np.full(len(block), np.nan) for block in channel.cells]
    assert "unknown" not in part_names(with_fields(channel, cell_data={"unknown": nothing}))


def test_a_part_that_is_empty_has_no_measure(channel):
    none = [np.zeros(len(block), dtype=bool) for block in channel.cells]
    mesh = marked(with_fields(channel, cell_data={"outlet": none}), top=np.zeros(6, dtype=bool))
    for name in ("outlet", "top"):
        assert name in part_names(mesh)
        assert part_cells(mesh, name) == []
        np.testing.assert_array_equal(part_weights(mesh, name), np.zeros(6))


def test_a_set_called_boundary_is_the_part_of_that_name(channel):
    marks = channel.cell_data["inlet"]
    mesh = with_fields(channel, cell_data={"boundary": marks})
    assert equal(part_weights(mesh, "boundary"), part_weights(channel, "inlet"))
    assert part_names(mesh).count("boundary") == 1


def test_a_surface_that_is_closed_has_an_empty_boundary():
    tetra = meshio.Mesh(
        np.vstack([np.zeros(3), np.eye(3)]),
        [("triangle", np.array([[0, 2, 1], [0, 1, 3], [1, 2, 3], [2, 0, 3]]))],
    )
    assert part_names(tetra) == []
    np.testing.assert_array_equal(part_weights(tetra, "boundary"), np.zeros(4))


# --- marked nodes ---------------------------------------------------------------------------------


def test_nodes_of_the_boundary_are_the_facets_between_them():
    mesh = square(4)
    x, y, _ = mesh.points.T
    mesh = marked(mesh, left=x == 0, edge=on_edge(mesh), corner=(x == 0) | (y == 0))
    half = np.where((y == 0) | (y == 1), 0.125, 0.25)
    assert equal(part_weights(mesh, "left"), np.where(x == 0, half, 0))
    assert equal(part_weights(mesh, "edge"), boundary_weights(mesh))
    assert equal(part_weights(mesh, "corner").sum(), 2.0)


def test_of_quadratic_facets_the_corners_count():
    points = np.array([[0, 0], [1, 0], [0, 1], [0.5, 0], [0.5, 0.5], [0, 0.5]])
    cells = [("triangle6", np.arange(6)[None])]
    mesh = marked(meshio.Mesh(points, cells), bottom=np.isin(np.arange(6), (0, 1)))
    assert equal(part_weights(mesh, "bottom"), np.array([1, 1, 0, 4, 0, 0]) / 6)


def test_nodes_inside_make_up_cells():
    mesh = square(4)
    x, y, _ = mesh.points.T
    middle = (np.abs(x - 0.5) < 0.3) & (np.abs(y - 0.5) < 0.3)
    mesh = marked(mesh, all=x >= 0, middle=middle, lower=y <= 0.5)
    assert equal(part_weights(mesh, "all").sum(), 1.0)
    assert equal(part_weights(mesh, "middle").sum(), 0.25)
    assert equal(part_weights(mesh, "lower").sum(), 0.5)


def test_one_cell_whose_nodes_are_all_on_the_boundary_is_its_facets():
    """Marked nodes say nothing else: the corner of a wall may hold all nodes of a cell."""
    mesh = meshio.Mesh(np.eye(3)[:, :2], [("triangle", np.array([[0, 1, 2]]))])
    assert equal(part_weights(marked(mesh, all=np.ones(3)), "all").sum(), 2 + np.sqrt(2))


def test_nodes_that_make_up_nothing_are_refused():
    mesh = square(4)
    x = mesh.points[:, 0]
    with pytest.raises(MeshError, match=r"part 'line' marks 5 nodes, but no facet.*mark the cells"):
        part_cells(marked(mesh, line=x == 0.5), "line")


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", [part_cells, part_weights])
def test_an_unknown_part_is_refused_with_those_there_are(channel, function):
    with pytest.raises(MeshError, match=r"no part 'outlet'; parts are \['boundary', 'inlet', "):
        function(channel, "outlet")


def test_other_fields_are_no_parts(channel):
    tags = [np.full(len(block), 1 + k) for k, block in enumerate(channel.cells)]
    data = {"u": np.linspace(0, 1, 6), "pair": np.ones((6, 2)), "text": np.array(list("abcdef"))}
    mesh = with_fields(channel, point_data=data, cell_data={"region": tags})
    assert part_names(mesh) == part_names(channel)
    for name in ("u", "pair", "region", "text"):
        with pytest.raises(MeshError, match=f"field '{name}' is no part.*parts are"):
            part_cells(mesh, name)
