"""Formats that meshio reads alone: what it would lose or misunderstand is added or refused."""

from __future__ import annotations

import sys
from pathlib import Path

import meshio
import numpy as np
import pytest
from reading import measure, refusal

from opformer.mesh import is_mesh_file, read_mesh

CORNERS = np.array([[0.0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0]])
TRIANGLES = np.array([[0, 1, 2], [0, 2, 3]])


def write(path: Path, content: str) -> Path:
    path.write_text(content)
    return path


# --- Nastran --------------------------------------------------------------------------------------

NASTRAN = """$ by hand
BEGIN BULK
GRID,10,,0.,0.,0.
GRID,20,,1.,0.,0.
GRID    30              1.      1.      0.
GRID*   40                              0.              1.
*       0.
CTRIA3,1,1,10,20,30
CTRIA3  2       1       10      30      40
ENDDATA
"""


def test_a_nastran_file_in_free_and_fixed_fields(tmp_path):
    mesh = read_mesh(write(tmp_path / "a.bdf", NASTRAN))
    np.testing.assert_array_equal(mesh.points, CORNERS)
    np.testing.assert_array_equal(mesh.cells[0].data, TRIANGLES)
    assert measure(mesh) == pytest.approx(1)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("CTRIA3  2       1       10  ", "CTRIA3* 2               1               10  ", "CTRIA3*"),
        ("CTRIA3,1", "CTRIAX,1", "CTRIAX is not supported: write the mesh with plain cards"),
        ("CTRIA3,1", "ctria3,1", "2 cells announced, 1 found"),
        ("ENDDATA", "INCLUDE 'more.bdf'\nENDDATA", "INCLUDE is not supported"),
        ("GRID,20,,", "GRID,20,7,", "coordinate system of their own"),
        ("GRID    30              1.", "GRID    30      7       1.", "coordinate system"),
    ],
)
def test_cards_and_coordinates_that_meshio_would_pass_over(old, new, words, tmp_path):
    assert old in NASTRAN
    assert words in refusal(write(tmp_path / "a.bdf", NASTRAN.replace(old, new)))


# --- FLAC3D, Netgen: named sets -------------------------------------------------------------------

FLAC3D = """* GRIDPOINTS
G 1 0. 0. 0.
G 2 1. 0. 0.
G 3 0. 1. 0.
G 4 0. 0. 1.
G 5 1. 1. 0.
G 6 1. 0. 1.
* ZONES
Z T4 1 1 2 3 4
Z W6 2 1 2 4 3 5 6
Z T4 3 2 3 4 5
ZGROUP "rock" SLOT 1
3 2
"""


def test_groups_of_zones_are_sets_in_every_block(tmp_path):
    mesh = read_mesh(write(tmp_path / "a.f3grid", FLAC3D))
    assert [block.type for block in mesh.cells] == ["tetra", "wedge", "tetra"]
    masks = [part.tolist() for part in mesh.cell_data["zone:rock:1"]]
    assert masks == [[0], [1], [1]]


def test_a_binary_grid_and_a_huge_number_of_a_zone_are_refused(tmp_path):
    path = write(tmp_path / "a.f3grid", FLAC3D.replace("Z T4 3", "Z T4 4000000000"))
    assert "a number above 10000000" in refusal(path)
    tetra = meshio.Mesh(np.vstack([np.zeros(3), np.eye(3)]), [("tetra", np.arange(4)[None])])
    meshio.flac3d.write(path, tetra, binary=True)
    assert "save the grid as text" in refusal(path)


NETGEN = """mesh3d
dimension
2
geomtype
0
surfaceelements
2
1 1 0 0 3 1 2 3
1 2 0 0 3 1 3 4
edgesegmentsgi2
1
5 0 1 2 -1 -1 0 0 1 0 1 0
points
4
0 0 0
1 0 0
1 1 0
0 1 0
materials
2
1 copper
2 iron
bcnames
1
5 inlet
endmesh
"""


def test_materials_and_boundaries_of_netgen_are_sets(tmp_path):
    mesh = read_mesh(write(tmp_path / "a.vol", NETGEN))
    assert [block.type for block in mesh.cells] == ["triangle", "line"]
    assert [part.tolist() for part in mesh.cell_data["copper"]] == [[1, 0], [0]]
    assert [part.tolist() for part in mesh.cell_data["iron"]] == [[0, 1], [0]]
    assert [part.tolist() for part in mesh.cell_data["inlet"]] == [[0, 0], [1]]


def test_sets_of_permas_and_a_file_without_its_end_are_refused(tmp_path):
    path = tmp_path / "a.post"
    meshio.permas.write(path, meshio.Mesh(CORNERS, [("triangle", TRIANGLES)]))
    text = path.read_text()
    assert measure(read_mesh(path)) == pytest.approx(1)
    with_set = text.replace("$END", "$NSET NAME = left\n1 4\n$END", 1)
    assert "sets of nodes and elements are not supported" in refusal(write(path, with_set))
    assert "there is no $fin" in refusal(write(path, text.replace("$FIN", "")))


# --- PLY, OFF, TetGen, DOLFIN, Medit, Ansys, XDMF -------------------------------------------------

PLY = """ply
format ascii 1.0
element vertex 4
property double x
property double y
property double z
property uchar red
element face 2
property list uchar int vertex_index
end_header
0 0 0 200
1 0 0 100
1 1 0 0
0 1 0 255
3 0 1 2
3 0 2 3
"""


def binary_ply() -> bytes:
    """The same, its numbers in bytes."""
    vertices = np.zeros(4, [("x", "<f8", 3), ("red", "u1")])
    vertices["x"], vertices["red"] = CORNERS, [200, 100, 0, 255]
    faces = np.zeros(2, [("n", "u1"), ("nodes", "<i4", 3)])
    faces["n"], faces["nodes"] = 3, TRIANGLES
    header = PLY.partition("end_header\n")[0].replace("ascii", "binary_little_endian")
    return header.encode() + b"end_header\n" + vertices.tobytes() + faces.tobytes()


@pytest.mark.parametrize("content", [PLY.encode(), binary_ply()], ids=["text", "binary"])
def test_faces_of_ply_may_have_either_name_and_bytes_no_sign(content, tmp_path):
    path = tmp_path / "a.ply"
    path.write_bytes(content)
    mesh = read_mesh(path)
    assert measure(mesh) == pytest.approx(1)
    assert mesh.point_data["red"].tolist() == [200, 100, 0, 255]
    path.write_bytes(content.replace(b"face 2", b"face 2000000000"))
    assert "a count in it is wrong" in refusal(path)


def test_data_of_faces_in_a_binary_ply_are_refused(tmp_path):
    path = tmp_path / "a.ply"
    path.write_bytes(binary_ply().replace(b"vertex_index\n", b"vertex_index\nproperty uchar k\n"))
    assert "save it as text" in refusal(path)


def test_an_off_file_is_read_or_refused_at_its_end(tmp_path):
    text = "OFF\n# by hand\n\n4 2 0\n0 0 0\n1 0 0\n1 1 0\n0 1 0\n3 0 1 2\n3 0 2 3\n"
    path = write(tmp_path / "a.off", text)
    assert measure(read_mesh(path)) == pytest.approx(1)
    assert "there are no numbers" in refusal(write(path, "OFF\n# by hand\n"))
    assert "triangular" in refusal(write(path, text.replace("3 0 2 3", "4 0 1 2 3")))


def test_tetgen_is_read_from_its_elements(tmp_path):
    nodes = "# by hand\n4 3 1 1\n1 0 0 0 7.5 0\n2 1 0 0 8 1\n3 0 1 0 9 1\n4 0 0 1 10 1\n"
    write(tmp_path / "a.node", nodes)
    path = write(tmp_path / "a.ele", "1 4 1\n1 1 2 3 4 5\n")
    mesh = read_mesh(path)
    assert measure(mesh) == pytest.approx(1 / 6)
    assert mesh.point_data["tetgen:attr1"].tolist() == [7.5, 8, 9, 10]
    assert mesh.cell_data["tetgen:ref"][0].tolist() == [5]
    assert not is_mesh_file(tmp_path / "a.node")  # else each mesh of a folder would come twice
    write(tmp_path / "a.node", "# nothing\n")
    assert "there are no numbers" in refusal(path)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('<vertex index="3"', '<vertex index="2"'),
        ('<vertex index="3"', '<vertexx index="3"'),
        ('<vertices size="4"', '<vertices size="5"'),
        ('<vertices size="4"', '<vertices size="4000000000"'),
        ('<triangle index="1"', '<triangle index="0"'),
    ],
)
def test_what_meshio_would_leave_as_it_lies_in_memory_is_refused(old, new, tmp_path):
    path = tmp_path / "a.xml"
    meshio.dolfin.write(path, meshio.Mesh(CORNERS[:, :2], [("triangle", TRIANGLES)]))
    assert measure(read_mesh(path)) == pytest.approx(1)
    assert old in path.read_text()
    message = refusal(write(path, path.read_text().replace(old, new)))
    assert "not numbered from 0" in message or "something else among" in message


def test_what_medit_marks_in_the_geometry_does_not_matter_and_the_end_does(tmp_path):
    text = (
        "MeshVersionFormatted 2\nDimension 2\nVertices\n4\n0 0 1\n1 0 1\n1 1 1\n0 1 1\n"
        "Edges\n1\n1 2 5\nTriangles\n2\n1 2 3 1\n1 3 4 1\nRidges\n1\n1\nEnd\n"
    )
    path = write(tmp_path / "a.mesh", text)
    with pytest.warns(UserWarning, match="Ridges"):
        assert measure(read_mesh(path)) == pytest.approx(1)
    assert "there is no end" in refusal(write(path, text.partition("Triangles")[0]))


def test_cells_given_by_their_faces_are_refused_with_advice(tmp_path):
    text = (
        '(0 "two triangles of Fluent")\n(2 2)\n(10 (0 1 4 0 2))\n(12 (0 1 2 0))\n(13 (0 1 5 0))\n'
        "(10 (1 1 4 1 2)(\n0 0\n1 0\n1 1\n0 1\n))\n(12 (2 1 2 1 1))\n"
        "(13 (3 1 1 2 2)(\n1 3 1 2\n))\n(13 (4 2 5 3 2)(\n1 2 1 0\n2 3 1 0\n3 4 2 0\n4 1 2 0\n))\n"
    )
    message = refusal(write(tmp_path / "a.msh", text))
    assert "cannot be read as ansys: the cells are given by their faces" in message
    assert "export the case" in message


def test_binary_data_of_another_byte_order_is_refused(tmp_path):
    pytest.importorskip("h5py")
    path = tmp_path / "a.xdmf"
    meshio.write(path, meshio.Mesh(CORNERS, [("triangle", TRIANGLES)]), data_format="Binary")
    assert measure(read_mesh(path)) == pytest.approx(1)
    text = path.read_text().replace('Format="Binary"', 'Format="Binary" Endian="Big"')
    assert "save it as HDF5" in refusal(write(path, text))


def test_colours_of_a_legacy_file_are_read_by_vtk_or_not_at_all(tmp_path, monkeypatch):
    pytest.importorskip("pyvista")
    path = write(
        tmp_path / "a.vtk",
        "# vtk DataFile Version 3.0\nby hand\nASCII\nDATASET UNSTRUCTURED_GRID\nPOINTS 3 float\n"
        "0 0 0 1 0 0 0 1 0\nCELLS 1 4\n3 0 1 2\nCELL_TYPES 1\n5\n"
        "POINT_DATA 3\nCOLOR_SCALARS c 3\n0 1 0 0.2 0.4 0.6 1 1 1\n",
    )
    colours = [[0, 255, 0], [51, 102, 153], [255, 255, 255]]
    assert read_mesh(path).point_data["c"].tolist() == colours
    monkeypatch.setitem(sys.modules, "pyvista", None)
    assert "meshio drops COLOR_SCALARS" in refusal(path)
