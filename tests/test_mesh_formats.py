"""Formats that VTK reads and meshio does not, and files that list others."""

from __future__ import annotations

import multiprocessing
import os
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import meshio
import numpy as np
import pytest
from reading import boundary_weights, measure, refusal

from opformer._cells import reference_cell
from opformer.errors import MeshError
from opformer.mesh import is_mesh_file, mesh_files, read_mesh
from opformer.mesh import vtk as reader
from opformer.mesh.vtk_cells import cells_from_vtk

needs_vtk = pytest.mark.skipif(
    reader.find_spec("pyvista") is None, reason="pyvista is not installed"
)

SQUARE = np.array([[0.0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0]])
RIGHT, UP = np.eye(3)[:2]
CUBE = np.array([[x, y, z] for z in (0.0, 1.0) for x, y in ((0, 0), (1, 0), (1, 1), (0, 1))])


def grid(points, cells):
    """VTK's unstructured grid of cells (type, nodes)."""
    pyvista = pytest.importorskip("pyvista", reason="the file is written with pyvista")
    flat = np.concatenate([[len(nodes), *nodes] for _, nodes in cells])
    types = np.array([code for code, _ in cells], np.uint8)
    return pyvista.UnstructuredGrid(flat, types, np.array(points, float))


def image(*shape: int):
    """Cells of size 1 × 1/2 × 2 with a point field of x, a cell field of numbers and a vector."""
    pyvista = pytest.importorskip("pyvista", reason="the file is written with pyvista")
    data = pyvista.ImageData(dimensions=np.array(shape) + 1, spacing=(1, 0.5, 2), origin=(3, 0, 0))
    data.point_data["x"] = data.points[:, 0].copy()
    data.cell_data["k"] = np.arange(data.n_cells, dtype=np.int32)
    data.point_data["v"] = data.points.astype(np.float32).copy()
    return data


def write_vtk(data, path: Path, **options) -> Path:
    """Write with VTK's own writer for XML, which has more options than pyvista."""
    from vtkmodules import vtkIOXML

    kind = {".vtu": "UnstructuredGrid", ".vtp": "PolyData"}[path.suffix]
    writer = getattr(vtkIOXML, f"vtkXML{kind}Writer")()
    writer.SetFileName(str(path))
    writer.SetInputData(data)
    for name, value in options.items():
        getattr(writer, f"Set{name}")(*value)
    assert writer.Write()
    return path


def check_image(mesh: meshio.Mesh, data) -> None:
    """The mesh is the image, cell by cell."""
    np.testing.assert_allclose(mesh.points, data.points)
    np.testing.assert_array_equal(mesh.point_data["x"], data.points[:, 0])
    np.testing.assert_array_equal(mesh.point_data["v"], data.points)
    np.testing.assert_array_equal(np.concatenate(mesh.cell_data["k"]), np.arange(data.n_cells))
    centers = np.concatenate([mesh.points[block.data].mean(axis=1) for block in mesh.cells])
    np.testing.assert_allclose(centers, data.cell_centers().points)


# --- what meshio does not read --------------------------------------------------------------------


@needs_vtk
@pytest.mark.parametrize("cast", ["", "rectilinear", "structured", "unstructured"])
@pytest.mark.parametrize("binary", [True, False])
def test_grids_of_every_kind_and_format_are_the_same_mesh(cast, binary, tmp_path):
    data = image(3, 4, 2)
    name = f"cast_to_{cast}_grid"
    extension = {"": "vti", "rectilinear": "vtr", "structured": "vts", "unstructured": "vtu"}[cast]
    source = getattr(data, name)() if cast else data
    for path in (tmp_path / f"a.{extension}", tmp_path / "a.vtk"):
        source.save(path, binary=binary)
        mesh = read_mesh(path)
        assert is_mesh_file(path)
        assert [(block.type, len(block)) for block in mesh.cells] == [("hexahedron", 24)]
        assert measure(mesh) == pytest.approx(24)
        check_image(mesh, data)


@needs_vtk
@pytest.mark.parametrize(
    ("shape", "kind", "size"), [((3, 4, 0), "quad", 6), ((5, 0, 0), "line", 5)]
)
def test_flat_images_are_quads_and_lines(shape, kind, size, tmp_path):
    data = image(*shape)
    data.save(tmp_path / "a.vti")
    mesh = read_mesh(tmp_path / "a.vti")
    assert [block.type for block in mesh.cells] == [kind]
    assert measure(mesh) == pytest.approx(size)
    check_image(mesh, data)


@needs_vtk
def test_hidden_cells_do_not_count(tmp_path):
    data = image(3, 1, 1).cast_to_structured_grid()
    data.hide_cells([1], inplace=True)
    data.save(tmp_path / "a.vts")
    mesh = read_mesh(tmp_path / "a.vts")
    assert np.concatenate(mesh.cell_data["k"]).tolist() == [0, 2]
    assert measure(mesh) == pytest.approx(2)


@needs_vtk
@pytest.mark.parametrize("name", ["a.vtp", "a.vtk", "A.VTP"])
def test_surfaces_keep_points_lines_polygons_and_strips_in_order(name, tmp_path):
    pyvista = pytest.importorskip("pyvista")
    data = pyvista.PolyData(
        np.array([[0.0, 0, 0], [1, 0, 0], [0, 1, 0], [1, 1, 0], [0, 2, 0], [1, 2, 0], [2, 0, 0]]),
        verts=[1, 0],
        lines=[3, 0, 1, 3],
        faces=[3, 1, 6, 3],
        strips=[6, 0, 1, 2, 3, 4, 5],
    )
    data.cell_data["k"] = [1.0, 2, 3, 4]
    data.save(tmp_path / "a.vtk" if name == "a.vtk" else tmp_path / "a.vtp")
    if name == "A.VTP":
        (tmp_path / "a.vtp").rename(tmp_path / name)
    mesh = read_mesh(tmp_path / name)
    assert [b.type for b in mesh.cells] == ["vertex", "line", "triangle", "triangle"]
    assert mesh.cells[1].data.tolist() == [[0, 1], [1, 3]]
    assert [part.tolist() for part in mesh.cell_data["k"]] == [[1], [2, 2], [3], [4] * 4]
    assert measure(mesh) == pytest.approx(2.5)
    corners = mesh.points[mesh.cells[3].data]
    normals = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])[:, 2]
    np.testing.assert_array_equal(normals, 1)  # all face the same way


@needs_vtk
@pytest.mark.parametrize("compressor", ["LZ4", "LZMA", "ZLib"])
def test_compressed_files_are_read(compressor, tmp_path):
    data = image(2, 2, 2)
    source = data.cast_to_unstructured_grid()
    codes = {"ZLib": 1, "LZ4": 2, "LZMA": 3}
    path = write_vtk(source, tmp_path / "a.vtu", CompressorType=(codes[compressor],))
    assert f"vtk{compressor}DataCompressor" in path.read_bytes().decode(errors="replace")
    check_image(read_mesh(path), data)


ENCODINGS = [(0, 0, 0, "32", "Little")] + [
    (mode, encode, compressor, size, order)
    for mode, encode in ((1, 0), (2, 0), (2, 1))
    for compressor in range(4)
    for size in ("32", "64")
    for order in ("Little", "Big")
]


@needs_vtk
@pytest.mark.parametrize(("mode", "encode", "compressor", "size", "order"), ENCODINGS)
def test_vtu_in_every_encoding(mode, encode, compressor, size, order, tmp_path):
    """Text, inline base64, appended raw or base64; none, zlib, LZ4, LZMA; headers; byte order."""
    data = image(2, 2, 2).cast_to_unstructured_grid()
    for kind in ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8"):
        data.point_data[kind] = (np.arange(27) * 4.7).astype(kind)
        data.cell_data[kind] = (np.arange(8) * 15.7).astype(kind)
    data.field_data["Re"] = [100.0]
    options = {f"HeaderTypeToUInt{size}": (), f"ByteOrderTo{order}Endian": ()}
    options |= {"DataMode": (mode,), "EncodeAppendedData": (encode,)}
    path = write_vtk(data, tmp_path / "a.vtu", CompressorType=(compressor,), **options)
    mesh = read_mesh(path)
    check_image(mesh, data)
    for name, values in data.point_data.items():
        np.testing.assert_array_equal(mesh.point_data[name], values)
        assert mesh.point_data[name].dtype == values.dtype
    for name, values in data.cell_data.items():
        np.testing.assert_array_equal(np.concatenate(mesh.cell_data[name]), values)
    assert mesh.field_data["Re"].tolist() == [100]


@needs_vtk
@pytest.mark.parametrize("version", [42, 51])
@pytest.mark.parametrize("binary", [1, 2])
def test_legacy_files_of_vtk_with_every_kind_of_number(version, binary, tmp_path):
    """With names and texts, METADATA, vtktypeint64, fields of the whole file, in either version."""
    from vtkmodules import vtkIOLegacy

    data = image(2, 2, 2).cast_to_unstructured_grid()
    for kind in ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"):
        data.point_data[f"as {kind}"] = (np.arange(27) * 4.7).astype(kind)
    data.point_data["six"] = np.arange(27 * 6.0).reshape(27, 6)
    data.point_data.active_normals_name = "v"
    data.field_data["TimeValue"] = [0.25]
    data.field_data["title"] = ["hello world"]
    writer = vtkIOLegacy.vtkUnstructuredGridWriter()
    writer.SetFileName(str(tmp_path / "a.vtk"))
    writer.SetInputData(data)
    writer.SetFileType(binary)
    writer.SetFileVersion(version)
    assert writer.Write()
    mesh = read_mesh(tmp_path / "a.vtk")
    check_image(mesh, data)
    assert mesh.point_data.keys() == {*data.point_data.keys()}
    for name, values in data.point_data.items():
        np.testing.assert_array_equal(mesh.point_data[name], values)
    assert mesh.field_data["time"].tolist() == [0.25]


def raw_pieces(path: Path, *pieces: list[tuple[str, np.ndarray]]) -> Path:
    """VTU in pieces of triangles, all numbers in raw bytes after the XML."""
    text, raw = "", b""
    for points, cells, values in pieces:
        arrays = [points, cells, 3 * np.arange(1, len(cells) + 1), np.full(len(cells), 5), values]
        tags = []
        for name, data in zip(["P", "connectivity", "offsets", "types", "p"], arrays, strict=True):
            kind = "Float64" if name in "Pp" else "Int64"
            tags.append(
                f'<DataArray type="{kind}" Name="{name}" format="appended" offset="{len(raw)}" '
                f'NumberOfComponents="{3 if name == "P" else 1}"/>'
            )
            content = np.asarray(data, "<f8" if kind == "Float64" else "<i8").tobytes()
            raw += np.uint32(len(content)).astype("<u4").tobytes() + content
        text += (
            f'<Piece NumberOfPoints="{len(points)}" NumberOfCells="{len(cells)}">'
            f"<Points>{tags[0]}</Points><Cells>{''.join(tags[1:4])}</Cells>"
            f"<PointData>{tags[4]}</PointData></Piece>"
        )
    path.write_bytes(
        f'<VTKFile type="UnstructuredGrid" version="0.1" byte_order="LittleEndian">'
        f"<UnstructuredGrid>{text}</UnstructuredGrid>"
        '<AppendedData encoding="raw">\n_'.encode()
        + raw
        + b"</AppendedData></VTKFile>"
    )
    return path


@needs_vtk
def test_pieces_with_raw_appended_data_are_read_and_joined(tmp_path):
    cells = np.array([[0, 1, 2], [0, 2, 3]])
    right = SQUARE + RIGHT
    pieces = [(SQUARE, cells, SQUARE[:, 0]), (right, cells, right[:, 0])]
    mesh = read_mesh(raw_pieces(tmp_path / "a.vtu", *pieces))
    assert measure(mesh) == pytest.approx(2)
    np.testing.assert_array_equal(mesh.points, [*SQUARE, [2, 0, 0], [2, 1, 0]])
    np.testing.assert_array_equal(mesh.point_data["p"], mesh.points[:, 0])
    assert boundary_weights(mesh).sum() == pytest.approx(6)  # the seam does not count


@needs_vtk
def test_names_and_field_data_are_kept(tmp_path):
    data = image(1, 1, 0)
    data.point_data["wall shear (µ)"] = np.arange(4.0)
    data.field_data["Reynolds"] = np.array([100.0])
    data.field_data["TimeValue"] = np.array([0.25])
    data.save(tmp_path / "a.vti")
    mesh = read_mesh(tmp_path / "a.vti")
    np.testing.assert_array_equal(mesh.point_data["wall shear (µ)"], np.arange(4.0))
    assert mesh.field_data["Reynolds"].tolist() == [100.0]
    assert mesh.field_data["time"].tolist() == [0.25]
    data.cast_to_unstructured_grid().save(tmp_path / "a.vtu")
    assert read_mesh(tmp_path / "a.vtu").field_data["time"].tolist() == [0.25]


# --- cells ----------------------------------------------------------------------------------------


@needs_vtk
@pytest.mark.parametrize(
    ("code", "nodes", "kind", "size"),
    [
        (8, [0, 1, 3, 2], "quad", 1),
        (11, [0, 1, 3, 2, 4, 5, 7, 6], "hexahedron", 1),
        (13, [0, 2, 1, 4, 6, 5], "wedge", 0.5),
        (7, [0, 1, 2, 3], "polygon", 1),
        (2, [0, 1, 2], "vertex", 3),
        (4, [0, 1, 2, 6], "line", 3),
    ],
)
def test_cells_become_those_we_know(code, nodes, kind, size, tmp_path):
    data = grid(CUBE, [(code, nodes)])
    data.save(tmp_path / "a.vtu")
    mesh = read_mesh(tmp_path / "a.vtu")
    assert {block.type for block in mesh.cells} == {kind}
    assert measure(mesh) == pytest.approx(size)


@needs_vtk
@pytest.mark.parametrize(
    ("cell", "code", "kind"),
    [
        ("LagrangeCurve", 68, "line3"),
        ("LagrangeTriangle", 69, "triangle"),
        ("LagrangeTriangle", 69, "triangle6"),
        ("LagrangeQuadrilateral", 70, "quad9"),
        ("LagrangeTetra", 71, "tetra10"),
        ("LagrangeHexahedron", 72, "hexahedron"),
        ("LagrangeHexahedron", 72, "hexahedron27"),
        ("LagrangeWedge", 73, "wedge"),
        ("LagrangeWedge", 73, "wedge18"),
    ],
)
def test_lagrange_cells_of_order_1_and_2_have_their_nodes_where_vtk_has_them(
    cell, code, kind, tmp_path
):
    from vtkmodules import vtkCommonDataModel

    nodes = reference_cell(kind).nodes
    n, k = nodes.shape
    template = getattr(vtkCommonDataModel, f"vtk{cell}")()
    template.GetPointIds().SetNumberOfIds(n)
    template.GetPoints().SetNumberOfPoints(n)
    if hasattr(template, "SetUniformOrderFromNumPoints"):
        template.SetUniformOrderFromNumPoints(n)
    template.Initialize()
    flat = template.GetParametricCoords()
    points = np.array([flat[i] for i in range(3 * n)]).reshape(n, 3)
    data = grid(points, [(code, range(n)), (code, range(n))])
    data.cell_data["k"] = [1.0, 2.0]
    data.save(tmp_path / "a.vtu")
    mesh = read_mesh(tmp_path / "a.vtu")
    assert [(block.type, len(block)) for block in mesh.cells] == [(kind, 2)]
    np.testing.assert_array_equal(mesh.points[mesh.cells[0].data[1]][:, :k], nodes)
    assert mesh.cell_data["k"][0].tolist() == [1, 2]


@needs_vtk
@pytest.mark.parametrize(
    ("code", "n", "words"),
    [
        (69, 5, "VTK_LAGRANGE_TRIANGLE cells with 5 nodes are not supported"),
        (41, 4, "VTK type 41"),
        (33, 24, "VTK type 33 (hexahedron24)"),
        (15, 10, "VTK type 15"),
        (69, 78, "VTK_LAGRANGE_TRIANGLE cells with 78 nodes"),
    ],
)
def test_cells_without_a_weight_rule_are_named(code, n, words, tmp_path):
    points = np.random.default_rng(0).random((n, 3))
    grid(points, [(code, range(n))]).save(tmp_path / "a.vtu")
    assert words in refusal(tmp_path / "a.vtu")


def test_cells_keep_their_order_and_split_ones_their_source():
    types = np.array([5, 8, 0, 6, 5, 5, 7, 7])
    cells = [[0, 1, 2], [0, 1, 2, 3], [], [4, 5, 6, 7], [1, 2, 3], [2, 3, 4], [0, 1, 2], range(5)]
    sizes = [len(cell) for cell in cells]
    found, sources = cells_from_vtk(
        types, np.cumsum([0, *sizes]), np.concatenate(cells).astype(int)
    )
    assert [(name, nodes.tolist()) for name, nodes in found] == [
        ("triangle", [[0, 1, 2]]),
        ("quad", [[0, 1, 3, 2]]),
        ("triangle", [[4, 5, 6], [5, 7, 6]]),
        ("triangle", [[1, 2, 3], [2, 3, 4]]),
        ("polygon", [[0, 1, 2]]),
        ("polygon", [[0, 1, 2, 3, 4]]),
    ]
    assert [source.tolist() for source in sources] == [[0], [1], [3, 3], [4, 5], [6], [7]]


def test_cells_that_do_not_fit_their_nodes_are_refused():
    with pytest.raises(MeshError, match="'quad' with 5 nodes"):
        cells_from_vtk(np.array([9]), np.array([0, 5]), np.arange(5))
    for offsets in ([0, 4], [0, 3, 3], [3, 0]):
        with pytest.raises(MeshError, match="do not fit"):
            cells_from_vtk(np.array([5]), np.array(offsets), np.arange(3))


# --- several meshes in one ------------------------------------------------------------------------


def parallel(folder: Path, *pieces, name: str = "a.pvtu") -> Path:
    """A .pvtu that lists the files of its pieces."""
    extension = f".{name.rpartition('.')[2][1:]}"
    entries = ""
    for k, piece in enumerate(pieces):
        file = folder / f"{name.partition('.')[0]}_{k}{extension}"
        piece.save(file)
        entries += f'<Piece Source="{file.name}"/>'
    kind = {".vtu": "PUnstructuredGrid", ".vtp": "PPolyData"}[extension]
    path = folder / name
    path.write_text(f'<VTKFile type="{kind}" version="0.1"><{kind}>{entries}</{kind}></VTKFile>')
    return path


def half(shift: float, ghosts=(0, 0)):
    data = grid(SQUARE + shift * RIGHT, [(5, [0, 1, 2]), (5, [0, 2, 3])])
    data.point_data["x"] = data.points[:, 0].copy()
    data.point_data["vtkGhostType"] = np.array([0, 0, 1, 1], np.uint8)
    data.cell_data["k"] = np.array([shift, shift + 0.5])
    data.cell_data["vtkGhostType"] = np.array(ghosts, np.uint8)
    return data


def test_a_parallel_file_is_joined_at_the_seams(tmp_path):
    mesh = read_mesh(parallel(tmp_path, half(0), half(1)))
    assert measure(mesh) == pytest.approx(2)
    assert len(mesh.points) == 6
    assert boundary_weights(mesh).sum() == pytest.approx(6)
    np.testing.assert_array_equal(mesh.point_data["x"], mesh.points[:, 0])
    assert np.concatenate(mesh.cell_data["k"]).tolist() == [0, 0.5, 1, 1.5]
    assert "vtkGhostType" not in {*mesh.point_data, *mesh.cell_data}


def test_ghost_cells_and_their_points_are_not_counted_twice(tmp_path):
    mesh = read_mesh(parallel(tmp_path, half(0, ghosts=(0, 1)), half(0, ghosts=(1, 0))))
    assert measure(mesh) == pytest.approx(1)
    assert len(mesh.points) == 4
    assert np.concatenate(mesh.cell_data["k"]).tolist() == [0, 0.5]
    alone = read_mesh(tmp_path / "a_0.vtu")
    assert measure(alone) == pytest.approx(0.5)
    assert alone.points.tolist() == SQUARE[:3].tolist()  # point 3 belongs to the ghost alone


def test_empty_pieces_are_left_out(tmp_path):
    nothing = half(0).extract_cells([])
    mesh = read_mesh(parallel(tmp_path, nothing, half(0)))
    assert measure(mesh) == pytest.approx(1)


@needs_vtk
def test_parallel_surfaces_and_images_are_read(tmp_path):
    pyvista = pytest.importorskip("pyvista")
    surfaces = [pyvista.PolyData(SQUARE + k * RIGHT, faces=[4, 0, 1, 2, 3]) for k in (0, 1)]
    mesh = read_mesh(parallel(tmp_path, *surfaces, name="a.pvtp"))
    assert (measure(mesh), len(mesh.points)) == (pytest.approx(2), 6)
    from vtkmodules.vtkIOParallelXML import vtkXMLPImageDataWriter

    data = image(4, 2, 1)
    writer = vtkXMLPImageDataWriter()
    writer.SetFileName(str(tmp_path / "b.pvti"))
    writer.SetInputData(data)
    writer.SetNumberOfPieces(1)
    writer.Write()
    check_image(read_mesh(tmp_path / "b.pvti"), data)


def test_a_missing_or_damaged_piece_is_named(tmp_path):
    path = parallel(tmp_path, half(0), half(1))
    (tmp_path / "a_1.vtu").write_text("hello")
    assert "a_1.vtu: cannot be read as vtu" in refusal(path)
    (tmp_path / "a_1.vtu").unlink()
    assert "a_1.vtu: there is no such file" in refusal(path)


def test_pieces_of_different_fields_are_refused(tmp_path):
    other = half(1)
    del other.point_data["x"]
    assert "same fields" in refusal(parallel(tmp_path, half(0), other))


def test_coincident_points_of_one_piece_stay_apart(tmp_path):
    """A crack is a crack; and values that differ keep points of two pieces apart too."""
    points = np.array([*SQUARE, *(SQUARE + RIGHT)])
    quads = [(9, [0, 1, 2, 3]), (9, [4, 5, 6, 7])]
    cracked = grid(points, quads)
    cracked.save(tmp_path / "whole.vtu")
    assert len(read_mesh(tmp_path / "whole.vtu").points) == 8
    mesh = read_mesh(parallel(tmp_path, cracked, grid(SQUARE + UP, quads[:1])))
    assert len(mesh.points) == 8 + 2
    jump = half(1)
    jump.point_data["x"] += 1
    assert len(read_mesh(parallel(tmp_path, half(0), jump)).points) == 8


@needs_vtk
def test_named_blocks_become_indicators(tmp_path):
    pyvista = pytest.importorskip("pyvista")
    fluid, solid = half(0), half(1)
    wall = pyvista.PolyData(SQUARE[:2], lines=[2, 0, 1])
    fluid.cell_data["U"] = [1.0, 2.0]
    blocks_ = pyvista.MultiBlock({"fluid": fluid, "solid": solid, "wall": wall, "none": None})
    blocks_.save(tmp_path / "a.vtm")
    mesh = read_mesh(tmp_path / "a.vtm")
    data = {name: np.concatenate(parts).tolist() for name, parts in mesh.cell_data.items()}
    assert data["fluid"] == [1, 1, 0, 0, 0]
    assert data["solid"] == [0, 0, 1, 1, 0]
    assert data["wall"] == [0, 0, 0, 0, 1]
    np.testing.assert_array_equal(data["U"], [1, 2, np.nan, np.nan, np.nan])
    assert "none" not in data
    assert measure(mesh) == pytest.approx(2)
    assert len(mesh.points) == 6
    np.testing.assert_array_equal(mesh.point_data["x"], mesh.points[:, 0])  # wall has none
    assert [block.type for block in mesh.cells] == ["triangle", "triangle", "line"]


def test_a_folder_lists_every_mesh_once(tmp_path):
    parallel(tmp_path, half(0), half(1))
    half(0).save(tmp_path / "b.vtu")
    (tmp_path / ".hidden.vtu").write_text("")
    (tmp_path / "notes.txt").write_text("")
    (tmp_path / "c.pvd").write_text(
        '<VTKFile><Collection><DataSet timestep="0" file="b.vtu"/></Collection></VTKFile>'
    )
    assert mesh_files(tmp_path) == [tmp_path / "a.pvtu", tmp_path / "c.pvd"]


# --- what goes wrong ------------------------------------------------------------------------------

NAMES = ["a.vtp", "a.vti", "a.vts", "a.vtr", "a.vtm", "a.vtkhdf", "a.foam", "a.case", "a.pvti"]
NAMES += ["a.e", "a.exo", "a.ex2", "a.cgns"]


@pytest.mark.parametrize("name", NAMES)
def test_without_pyvista_the_extra_is_named(name, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyvista", None)
    (tmp_path / name).write_text("x")
    assert "pip install 'opformer[vtk]'" in refusal(tmp_path / name)
    assert is_mesh_file(tmp_path / name)


@pytest.mark.parametrize("code", [6, 8])
def test_without_pyvista_cells_are_refused_by_meshio_and_the_extra_is_named(
    code, tmp_path, monkeypatch
):
    grid(CUBE, [(code, [0, 1, 3, 2])]).save(tmp_path / "a.vtu")
    monkeypatch.setitem(sys.modules, "pyvista", None)
    message = refusal(tmp_path / "a.vtu")
    assert message.endswith("pip install 'opformer[vtk]'")
    assert {6: "type 6 (triangle strip)", 8: "pixel"}[code] in message


@needs_vtk
@pytest.mark.parametrize("name", [*NAMES, "a.pvtu", "a.pvtp", "a.pvd", "a.series"])
@pytest.mark.parametrize("content", ["hello", "", "<VTKFile/>", "{}"])
def test_files_that_are_none_are_refused_and_nothing_is_printed(name, content, tmp_path, capfd):
    (tmp_path / name).write_text(content)
    refusal(tmp_path / name)
    assert capfd.readouterr() == ("", "")


@needs_vtk
@pytest.mark.parametrize("name", ["a.vti", "a.vtu", "a.vtk", "b.vtk", "a.vtkhdf"])
def test_a_truncated_file_is_refused_or_lacks_whole_fields(name, tmp_path, capfd):
    """No number from nowhere, and no crash, which the legacy ones cause in VTK."""
    data = image(2, 2, 2)
    casts = {
        "a.vtk": data.cast_to_structured_grid,
        "a.vtu": data.cast_to_unstructured_grid,
        "a.vtkhdf": data.cast_to_unstructured_grid,
    }
    path = tmp_path / name
    casts.get(name, data.copy)().save(path)
    content = path.read_bytes()
    refused = 0
    for cut in np.linspace(1, len(content) - 10, 25).astype(int):
        path.write_bytes(content[:cut])
        try:
            mesh = read_mesh(path)
        except MeshError:
            refused += 1
        else:
            np.testing.assert_allclose(mesh.points, data.points)
            for field, values in mesh.point_data.items():
                np.testing.assert_array_equal(values, data.point_data[field])
            for field, (values,) in mesh.cell_data.items():
                np.testing.assert_array_equal(values, data.cell_data[field])
    assert refused > 10
    assert capfd.readouterr() == ("", "")


@needs_vtk
def test_the_first_file_of_a_process_is_no_exception(tmp_path):
    """pyvista changes where VTK's errors go when it is imported."""
    data = image(1, 1, 1).cast_to_structured_grid()
    data.save(tmp_path / "a.vtk", binary=False)
    reader._close()
    check_image(read_mesh(tmp_path / "a.vtk"), data)
    text = (tmp_path / "a.vtk").read_text()
    (tmp_path / "a.vtk").write_text(text[:-20])
    reader._close()
    refusal(tmp_path / "a.vtk")


@needs_vtk
def test_a_number_that_is_none_is_refused(tmp_path):
    """VTK stops at it without a word and leaves the rest of the field as it was in memory."""
    head = "# vtk DataFile Version 3.0\nby hand\nASCII\nDATASET POLYDATA\nPOINTS 3 float\n"
    body = "0 0 0 1 0 0 0 1 0\nPOLYGONS 1 4\n3 0 1 2\nPOINT_DATA 3\nSCALARS p float\n"
    path = tmp_path / "a.vtk"
    path.write_text(f"{head}{body}LOOKUP_TABLE default\n1 2 3\n")
    assert read_mesh(path).point_data["p"].tolist() == [1, 2, 3]
    for values in ("1 2", "1 x 3", "1"):
        path.write_text(f"{head}{body}LOOKUP_TABLE default\n{values}\n")
        message = refusal(path)
        assert "ends early, or holds" in message or "Error reading ascii data" in message


@needs_vtk
def test_a_point_that_does_not_exist_is_named(tmp_path):
    head = "# vtk DataFile Version 3.0\nby hand\nASCII\nDATASET POLYDATA\nPOINTS 3 float\n"
    path = tmp_path / "a.vtk"
    path.write_text(f"{head}0 0 0 1 0 0 0 1 0\nPOLYGONS 1 4\n3 0 1 99\n")
    assert "refers to points [0, 1, 99]" in refusal(path)


@needs_vtk
def test_a_crash_and_a_hang_are_refused_and_the_next_file_is_read(tmp_path, monkeypatch):
    data = image(1, 1, 1)
    data.save(tmp_path / "a.vti")
    program = tmp_path / "program.py"
    for code in ("import os; os.abort()", "import time; time.sleep(60)", "print('hello')"):
        program.write_text(code)
        with monkeypatch.context() as changed:
            reader._close()
            changed.setattr(reader, "_PROGRAM", program)
            changed.setattr(reader, "_PATIENCE", 0.5)
            assert "VTK crashes on it, or takes more than 0.5 seconds" in refusal(
                tmp_path / "a.vti"
            )
    check_image(read_mesh(tmp_path / "a.vti"), data)


@needs_vtk
def test_threads_take_turns(tmp_path):
    for k in range(1, 5):
        image(k, 1, 1).save(tmp_path / f"{k}.vti")
    with ThreadPoolExecutor(4) as pool:
        meshes = pool.map(read_mesh, [tmp_path / f"{k}.vti" for k in range(1, 5)] * 3)
        assert [len(mesh.cells[0]) for mesh in meshes] == [1, 2, 3, 4] * 3


@needs_vtk
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system does not fork")
def test_a_forked_process_reads_with_a_process_of_its_own(tmp_path):
    path = tmp_path / "a.vti"
    image(2, 1, 1).save(path)
    before = read_mesh(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns of forking beside threads
        with multiprocessing.get_context("fork").Pool(1) as pool:
            (inside,) = pool.map(read_mesh, [path])
    for mesh in (before, inside, read_mesh(path)):
        check_image(mesh, image(2, 1, 1))
