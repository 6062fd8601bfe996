"""Polyhedra and Lagrange cells in files: read by VTK and meshio, and written back as they came."""

from __future__ import annotations

from math import sqrt

import meshio
import numpy as np
import pytest
from reading import boundary_weights, measure, refusal

from opformer._lagrange import LAGRANGE, lagrange_nodes
from opformer._polyhedra import Polyhedra
from opformer.errors import MeshError
from opformer.mesh import blocks, read_mesh, write_mesh
from opformer.mesh.merge import merge
from opformer.mesh.vtk_cells import cells_from_vtk, swapped_edges
from opformer.quadrature import cell_report, cell_weights

pyvista = pytest.importorskip("pyvista", reason="the files are read or written with pyvista")

CODES = dict(zip(LAGRANGE, [68, 69, 70, 71, 72, 73], strict=True))

# A cube, a polyhedral pentagonal prism beside it, a pyramid on the cube, a polyhedral tetrahedron.
CUBE = np.array([[x, y, z] for z in (0, 1) for x, y in ((0, 0), (1, 0), (1, 1), (0, 1))], float)
MORE = [[2, 0, 0], [2, 1, 0], [2, 0, 1], [2, 1, 1], [3, 0.5, 0], [3, 0.5, 1], [0.5, 0.5, 2]]
POINTS = np.vstack([CUBE, MORE])
PRISM = [
    *([1, 2, 9, 12, 8], [5, 10, 13, 11, 6]),
    *([1, 8, 10, 5], [8, 12, 13, 10], [12, 9, 11, 13], [9, 2, 6, 11], [2, 1, 5, 6]),
]
TETRA = [[5, 10, 14], [10, 6, 14], [6, 5, 14], [5, 6, 10]]
MEASURES = [1, 1.5, 1 / 3, 1 / 6]


def stream(faces):
    """VTK's list of numbers for a polyhedron."""
    flat = [len(faces), *(number for face in faces for number in (len(face), *face))]
    return [len(flat), *flat]


def mixed():
    """VTK's grid of all four cells, with fields."""
    cells = [8, *range(8), *stream(PRISM), 5, 4, 5, 6, 7, 14, *stream(TETRA)]
    grid = pyvista.UnstructuredGrid(np.array(cells), [12, 42, 14, 42], POINTS)
    grid.cell_data["k"] = np.arange(4.0)
    grid.point_data["x"] = POINTS[:, 0]
    return grid


def check_mixed(mesh):
    kinds = ["hexahedron", "polyhedron", "pyramid", "polyhedron"]
    assert [block.type for block in mesh.cells] == kinds
    np.testing.assert_allclose(cell_weights(mesh.points, blocks(mesh))[1], MEASURES, rtol=1e-13)
    np.testing.assert_array_equal(np.concatenate(mesh.cell_data["k"]), np.arange(4))
    np.testing.assert_array_equal(mesh.point_data["x"], mesh.points[:, 0])
    assert [face.tolist() for face in mesh.cells[1].data[0]] == PRISM
    assert cell_report(mesh.points, blocks(mesh)).inverted == 0
    assert "polyhedron" in repr(mesh)


# --- polyhedra ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.vtu", "a.vtk", "a.vtm", "a.vtkhdf"])
def test_polyhedra_beside_other_cells_by_vtk(name, tmp_path):
    grid = pyvista.MultiBlock([mixed()]) if name == "a.vtm" else mixed()
    grid.save(tmp_path / name)
    mesh = read_mesh(tmp_path / name)
    check_mixed(mesh)
    # The bottom, three walls and the lids of the prism; what the cells share does not count.
    slanted = 3 * sqrt(1.25) / 2  # three free sides of the pyramid
    sides = sqrt(1.25)
    exact = 1 + 3 + 1.5 + 2 + 2 * sides + slanted
    tetra = [np.linalg.norm(np.cross(b - a, c - a)) / 2 for a, b, c in POINTS[[[5, 10, 14]]]]
    tetra += [np.linalg.norm(np.cross(b - a, c - a)) / 2 for a, b, c in POINTS[[[10, 6, 14]]]]
    exact += sum(tetra) + 1.5 + 0.5  # the lid of the prism has five corners, the tetrahedron three
    assert boundary_weights(mesh).sum() == pytest.approx(exact, rel=1e-12)


def test_polyhedra_are_written_and_come_back(tmp_path):
    mixed().save(tmp_path / "a.vtu")
    mesh = read_mesh(tmp_path / "a.vtu")
    new = np.arange(4) ** 2.0
    write_mesh(tmp_path / "b.vtu", mesh, cell_data={"new": new})
    again = read_mesh(tmp_path / "b.vtu")
    check_mixed(again)
    np.testing.assert_array_equal(np.concatenate(again.cell_data["new"]), new)
    there = pyvista.read(tmp_path / "b.vtu")
    assert there.celltypes.tolist() == [12, 42, 14, 42]
    np.testing.assert_allclose(there.compute_cell_sizes()["Volume"], MEASURES, rtol=1e-6)


def test_many_polyhedra_in_a_row_keep_their_order(tmp_path):
    """Of several sizes, which meshio alone would regroup."""
    cells = [PRISM, TETRA, PRISM, TETRA]
    k = np.arange(4.0)
    mesh = meshio.Mesh(POINTS, [("polyhedron8", cells)], cell_data={"k": [k]})
    write_mesh(tmp_path / "a.vtu", mesh)
    found = read_mesh(tmp_path / "a.vtu")
    assert [[f.tolist() for f in cell] for cell in found.cells[0].data] == cells
    np.testing.assert_array_equal(found.cell_data["k"][0], k)


@pytest.mark.parametrize("name", ["b.vtk", "b.xdmf"])
def test_polyhedra_and_lagrange_cells_are_written_as_vtu_only(name, tmp_path):
    cubic = lagrange_nodes("tetra", 3)
    for points, kind, cells in (
        (POINTS, "polyhedron", [PRISM]),
        (cubic, "VTK_LAGRANGE_TETRAHEDRON", [range(20)]),
    ):
        mesh = meshio.Mesh(points, [(kind, cells)])
        with pytest.raises(MeshError, match=rf"{kind} cannot be written as .*write .vtu"):
            write_mesh(tmp_path / name, mesh)
    assert not list(tmp_path.iterdir())


def test_pieces_of_polyhedra_are_joined_at_their_seam():
    far = CUBE + np.array([1, 0, 0])
    cube = [[0, 4, 7, 3], [1, 2, 6, 5], [0, 1, 5, 4], [3, 7, 6, 2], [0, 3, 2, 1], [4, 5, 6, 7]]
    pieces = [meshio.Mesh(x, [("polyhedron", Polyhedra.of([cube]))]) for x in (CUBE, far)]
    mesh = merge(pieces)
    assert (len(mesh.points), measure(mesh)) == (12, pytest.approx(2))
    assert boundary_weights(mesh).sum() == pytest.approx(10)


def test_ghosts_among_polyhedra_go(tmp_path):
    grid = mixed()
    grid.cell_data["vtkGhostType"] = np.array([1, 0, 0, 1], np.uint8)
    grid.save(tmp_path / "a.vtu")
    mesh = read_mesh(tmp_path / "a.vtu")
    assert [block.type for block in mesh.cells] == ["polyhedron", "pyramid"]
    assert measure(mesh) == pytest.approx(1.5 + 1 / 3)
    assert len(mesh.points) == 13  # two corners of the cube were the ghosts' alone


def test_damaged_polyhedra_are_refused(tmp_path):
    with pytest.raises(MeshError, match="polyhedra without faces"):
        cells_from_vtk(np.array([42]), np.array([0, 4]), np.arange(4))
    bad = meshio.Mesh(POINTS, [("polyhedron", [TETRA, [[0, 1, 99], *TETRA[1:]]])])
    with pytest.raises(MeshError, match=r"cell 1 \(polyhedron\) refers to point 99"):
        write_mesh(tmp_path / "a.vtu", bad)
    grid = pyvista.UnstructuredGrid(np.array(stream(TETRA[:3])), [42], POINTS)
    grid.save(tmp_path / "b.vtu")
    mesh = read_mesh(tmp_path / "b.vtu")
    with pytest.raises(MeshError, match="at least 4 faces"):
        measure(mesh)


def test_without_vtk_the_refusal_says_what_to_install(tmp_path, monkeypatch):
    mesh = meshio.Mesh(POINTS, [("polyhedron", [PRISM])])
    write_mesh(tmp_path / "a.vtu", mesh)
    monkeypatch.setattr("opformer.mesh.vtk.find_spec", lambda _: None)
    assert "pip install 'opformer[vtk]'" in refusal(tmp_path / "a.vtu")


# --- Lagrange cells -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", LAGRANGE)
@pytest.mark.parametrize("order", [3, 4])
def test_lagrange_cells_by_vtk_and_back(kind, order, tmp_path):
    nodes = lagrange_nodes(LAGRANGE[kind], order)
    n, k = nodes.shape
    points = np.pad(
        nodes + 0.02 * np.random.default_rng(0).random(nodes.shape), ((0, 0), (0, 3 - k))
    )
    pyvista.UnstructuredGrid([n, *range(n)], [CODES[kind]], points).save(tmp_path / "a.vtu")
    mesh = read_mesh(tmp_path / "a.vtu")
    ((found, cells),) = blocks(mesh)
    assert found == kind
    np.testing.assert_array_equal(cells, [range(n)])
    write_mesh(tmp_path / "b.vtu", mesh, cell_data={"c": np.ones(1)})
    ((again, same),) = blocks(read_mesh(tmp_path / "b.vtu"))
    assert again == kind
    np.testing.assert_array_equal(same, cells)
    there = pyvista.read(tmp_path / "b.vtu")
    np.testing.assert_array_equal(there.cells[1:], range(n))
    assert measure(mesh) == pytest.approx(measure(read_mesh(tmp_path / "b.vtu")), rel=1e-14)


@pytest.mark.parametrize("version", ["4.2", "5.1"])
@pytest.mark.parametrize("order", [2, 3])
def test_lagrange_hexahedra_of_legacy_files(order, version, tmp_path):
    nodes = lagrange_nodes("hexahedron", order)
    n, numbers = len(nodes), " ".join(map(str, range(len(nodes))))
    cells = {
        "4.2": f"CELLS 1 {n + 1}\n{n} {numbers}\n",
        "5.1": f"CELLS 2 {n}\nOFFSETS vtktypeint64\n0 {n}\nCONNECTIVITY vtktypeint64\n{numbers}\n",
    }
    (tmp_path / "a.vtk").write_text(
        f"# vtk DataFile Version {version}\nx\nASCII\nDATASET UNSTRUCTURED_GRID\n"
        f"POINTS {n} double\n{' '.join(map(str, nodes.ravel()))}\n{cells[version]}"
        "CELL_TYPES 1\n72\n"
    )
    ((kind, found),) = blocks(read_mesh(tmp_path / "a.vtk"))
    assert kind == {2: "hexahedron27", 3: "VTK_LAGRANGE_HEXAHEDRON"}[order]
    np.testing.assert_array_equal(found[0], pyvista.read(tmp_path / "a.vtk").cells[1:])
    assert np.array_equal(found[0], range(n)) == (version == "5.1")


def test_vtk_and_meshio_agree_on_the_edges_of_a_lagrange_hexahedron(tmp_path):
    """VTU of version 0.1 numbers two of them the other way round, and meshio does not know."""
    nodes = lagrange_nodes("hexahedron", 3)
    mesh = meshio.Mesh(nodes, [("VTK_LAGRANGE_HEXAHEDRON", [range(64)])])
    meshio.write(tmp_path / "old.vtu", mesh, file_format="vtu")
    ((_, cells),) = blocks(read_mesh(tmp_path / "old.vtu"))
    np.testing.assert_array_equal(cells[0], pyvista.read(tmp_path / "old.vtu").cells[1:])
    assert not np.array_equal(cells, [range(64)])
    np.testing.assert_array_equal(swapped_edges(swapped_edges(mesh)).cells[0].data, [range(64)])
