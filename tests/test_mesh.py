"""Reading mesh files: right, or refused in one line that names the file."""

from __future__ import annotations

import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import meshio
import numpy as np
import pytest
from reading import measure, refusal
from realdata import DATA, needs_data

from opformer._cells import reference_cell
from opformer.errors import MeshError
from opformer.mesh import (
    blocks,
    flat_axes,
    inspect_mesh,
    is_mesh_file,
    read_field,
    read_mesh,
    top_cells,
)

SQUARE = np.array([[0.0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0]])
TRIANGLES = np.array([[0, 1, 2], [0, 2, 3]])


def square(**fields) -> meshio.Mesh:
    return meshio.Mesh(SQUARE.copy(), [("triangle", TRIANGLES.copy())], **fields)


def array(name: str, kind: str, data, components: int = 0) -> str:
    text = " ".join(map(str, np.ravel(data)))
    shape = f' NumberOfComponents="{components}"' if components else ""
    return f'<DataArray type="{kind}" Name="{name}" format="ascii"{shape}>{text}</DataArray>'


def piece(points, cells, types, fields: str = "") -> str:
    sizes = [len(cell) for cell in cells]
    flat = [node for cell in cells for node in cell]
    return (
        f'<Piece NumberOfPoints="{len(points)}" NumberOfCells="{len(cells)}">'
        f"<Points>{array('Points', 'Float64', points, 3)}</Points>"
        f"<Cells>{array('connectivity', 'Int64', flat)}"
        f"{array('offsets', 'Int64', np.cumsum(sizes))}"
        f"{array('types', 'UInt8', types)}</Cells>{fields}</Piece>"
    )


def vtu(path: Path, *pieces: str) -> Path:
    head = '<VTKFile type="UnstructuredGrid" version="0.1" byte_order="LittleEndian">'
    body = f"<UnstructuredGrid>{''.join(pieces)}</UnstructuredGrid>"
    path.write_text(f'<?xml version="1.0"?>\n{head}{body}</VTKFile>\n')
    return path


def vtk(path: Path, body: str) -> Path:
    path.write_text(f"# vtk DataFile Version 3.0\nby hand\nASCII\n{body}")
    return path


LEGACY = (
    "DATASET UNSTRUCTURED_GRID\nPOINTS 4 float\n0 0 0 1 0 0 1 1 0 0 1 0\n"
    "CELLS 2 8\n3 0 1 2\n3 0 2 3\nCELL_TYPES 2\n5\n5\n"
)


@pytest.fixture
def without_vtk(monkeypatch):
    """As if the extra that reads with VTK were not installed."""
    monkeypatch.setitem(sys.modules, "pyvista", None)


# --- damaged files --------------------------------------------------------------------------------


def half_vtu(path: Path) -> Path:
    meshio.write(path, square())
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return path


def hello_vtk(path: Path) -> Path:
    path.write_text("hello\n")
    return path


def empty(path: Path) -> Path:
    path.write_bytes(b"")
    return path


BROKEN = [(half_vtu, "a.vtu"), (hello_vtk, "a.vtk"), (empty, "b.vtu"), (empty, "c.msh")]


@pytest.mark.parametrize(("spoil", "name"), BROKEN)
def test_a_damaged_file_is_refused_in_one_line_and_prints_nothing(spoil, name, tmp_path, capfd):
    message = refusal(spoil(tmp_path / name))
    assert "empty" in message or f"cannot be read as {name[-3:].replace('msh', 'gmsh')}" in message
    assert capfd.readouterr() == ("", "")


def test_a_loop_over_files_survives_the_damaged_ones(tmp_path):
    paths = [spoil(tmp_path / name) for spoil, name in BROKEN]
    good = tmp_path / "good.vtu"
    meshio.write(good, square())
    read = []
    for path in [*paths, good]:
        try:
            read.append(read_mesh(path))
        except MeshError:
            continue
    assert [measure(mesh) for mesh in read] == [pytest.approx(1)]


class Areas:
    """A data set, as torch sees it, of areas; NaN stands for a file that was refused."""

    def __init__(self, paths):
        self.paths = paths

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        try:
            return measure(read_mesh(self.paths[index]))
        except MeshError:
            return float("nan")


def test_damaged_files_are_refused_inside_a_data_loader_worker(tmp_path):
    torch_data = pytest.importorskip("torch.utils.data")
    good = tmp_path / "good.vtu"
    meshio.write(good, square())
    paths = [*(spoil(tmp_path / name) for spoil, name in BROKEN), good]
    loader = torch_data.DataLoader(
        Areas(paths), batch_size=None, num_workers=1, multiprocessing_context="fork"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns of forking beside threads
        areas = [float(area) for area in loader]
    np.testing.assert_allclose(areas, [np.nan] * len(BROKEN) + [1.0])


@pytest.mark.usefixtures("without_vtk")
def test_threads_do_not_mix_up_their_messages(tmp_path, capfd):
    strip = vtu(tmp_path / "strip.vtu", piece(SQUARE, [[0, 1, 3, 2]], [6]))
    good = tmp_path / "good.vtu"
    meshio.write(good, square())
    gate = threading.Barrier(4)

    def read(path):
        gate.wait()
        for _ in range(20):
            if path == good:
                assert measure(read_mesh(path)) == pytest.approx(1)
            else:
                assert "type 6 (triangle strip)" in refusal(path)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(read, [strip, good, strip, good]))
    assert capfd.readouterr() == ("", "")


def test_meshio_still_prints_for_others(tmp_path, capfd):
    meshio.vtu.read(vtu(tmp_path / "a.vtu", piece(SQUARE, [[0, 1, 3, 2], [0, 1, 2]], [6, 5])))
    assert "cannot handle" in capfd.readouterr().err


def test_what_meshio_says_about_a_good_file_becomes_a_warning(tmp_path, monkeypatch, capfd):
    def talkative(path):
        meshio._common.warn("something odd")
        return square()

    monkeypatch.setitem(meshio._helpers.reader_map, "stl", talkative)
    (tmp_path / "a.stl").write_text("solid\nendsolid")
    with pytest.warns(UserWarning, match="a.stl: something odd"):
        read_mesh(tmp_path / "a.stl")
    assert capfd.readouterr() == ("", "")


def test_a_reader_that_exits_the_process_is_refused(tmp_path, monkeypatch):
    monkeypatch.setitem(meshio._helpers.reader_map, "stl", lambda path: sys.exit(1))
    (tmp_path / "a.stl").write_text("solid")
    assert "cannot be read as stl" in refusal(tmp_path / "a.stl")


@pytest.mark.parametrize("extension", ["vtu", "vtk", "xdmf"])
def test_a_truncated_or_altered_file_is_read_or_refused(extension, tmp_path):
    path = tmp_path / f"a.{extension}"
    options = {"data_format": "XML"} if extension == "xdmf" else {}
    fields = {"point_data": {"p": np.arange(4.0)}, "cell_data": {"k": [np.array([1.0, 2.0])]}}
    meshio.write(path, square(**fields), **options)
    data = path.read_bytes()
    rng = np.random.default_rng(0)
    cut = [data[: len(data) * k // 20] for k in range(20)]
    altered = []
    for position in rng.integers(len(data), size=60):
        other = bytearray(data)
        other[position] ^= 1 << rng.integers(8)
        altered.append(bytes(other))
    outcomes = set()
    for content in [*cut, *altered]:
        path.write_bytes(content)
        try:
            mesh = read_mesh(path)
        except MeshError:
            outcomes.add("refused")
        else:
            assert np.isfinite(mesh.points).all()
            assert all(cells.max() < len(mesh.points) for _, cells in blocks(mesh))
            outcomes.add("read")
    assert outcomes == {"read", "refused"}


# --- names of files -------------------------------------------------------------------------------


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    assert "no such file" in refusal(tmp_path / "a.vtu")
    (tmp_path / "b.vtu").mkdir()
    assert "no such file" in refusal(tmp_path / "b.vtu")


@pytest.mark.parametrize("name", ["a.hdf", "a.step", "a", "a.wkt", "a.mdpa"])
def test_an_unknown_extension_lists_the_known_ones(name, tmp_path):
    (tmp_path / name).write_text("x")
    message = refusal(tmp_path / name)
    assert "not supported" in message
    assert all(extension in message for extension in (".vtu", ".vtk", ".xdmf", ".msh", ".inp"))
    assert not is_mesh_file(tmp_path / name)


def test_capitals_spaces_accents_and_strings_are_fine(tmp_path):
    folder = tmp_path / "dossier é"
    folder.mkdir()
    for path in (folder / "M.VTU", folder / "a b.1.Vtk"):
        meshio.write(path, square(), file_format=path.suffix[1:].lower())
        assert measure(read_mesh(str(path))) == pytest.approx(1)
        assert measure(read_mesh(path)) == pytest.approx(1)
        assert is_mesh_file(path)


# --- what is in them ------------------------------------------------------------------------------


def test_big_endian_files_come_in_native_order(tmp_path):
    fields = {
        "point_data": {"p": np.arange(4.0), "v": np.arange(12.0).reshape(4, 3)},
        "cell_data": {"k": [np.array([7, 8])]},
    }
    path = tmp_path / "a.vtk"
    meshio.write(path, square(**fields))
    assert not meshio.vtk.read(path).points.dtype.isnative  # else this test shows nothing
    mesh = read_mesh(path)
    arrays = [mesh.points, mesh.cells[0].data, *mesh.point_data.values(), mesh.cell_data["k"][0]]
    assert all(a.dtype.isnative for a in arrays)
    assert (mesh.points.dtype, mesh.cells[0].data.dtype) == (np.float64, np.int64)
    np.testing.assert_array_equal(mesh.points, SQUARE)
    np.testing.assert_array_equal(mesh.cells[0].data, TRIANGLES)
    np.testing.assert_array_equal(mesh.point_data["v"], np.arange(12.0).reshape(4, 3))
    np.testing.assert_array_equal(mesh.cell_data["k"][0], [7, 8])


def test_one_number_per_row_is_one_axis_whatever_the_section(tmp_path):
    head = "DATASET UNSTRUCTURED_GRID\nPOINTS 3 float\n0 0 0 1 0 0 0 1 0\nCELLS 1 4\n3 0 1 2\n"
    data = "CELL_TYPES 1\n5\nPOINT_DATA 3\nSCALARS p float\nLOOKUP_TABLE default\n1 2 3\n"
    path = vtk(tmp_path / "a.vtk", head + data + "FIELD f 1\nq 1 3 float\n4 5 6\n")
    mesh = read_mesh(path)
    np.testing.assert_array_equal(mesh.point_data["p"], [1, 2, 3])
    np.testing.assert_array_equal(mesh.point_data["q"], [4, 5, 6])
    column = square(
        point_data={"p": np.ones((4, 1))}, cell_data={"k": [np.ones((2, 1), np.float32)]}
    )
    for name in ("b.vtu", "b.vtk"):
        meshio.write(tmp_path / name, column)
        mesh = read_mesh(tmp_path / name)
        assert mesh.point_data["p"].shape == (4,)
        assert mesh.cell_data["k"][0].shape == (2,)


def test_all_pieces_of_a_vtu_are_read(tmp_path):
    def half(shift, value):
        fields = (
            f"<PointData>{array('p', 'Float64', np.full(4, value))}</PointData>"
            f"<CellData>{array('k', 'Int32', [value, value + 1])}</CellData>"
        )
        return piece(SQUARE + np.array([shift, 0, 0]), TRIANGLES, [5, 5], fields)

    mesh = read_mesh(vtu(tmp_path / "a.vtu", half(0, 1), piece([], [], []), half(1, 5)))
    assert measure(mesh) == pytest.approx(2)
    assert len(mesh.points) == 8
    np.testing.assert_array_equal(
        np.concatenate([b.data for b in mesh.cells]), [*TRIANGLES, *(TRIANGLES + 4)]
    )
    np.testing.assert_array_equal(mesh.point_data["p"], [1] * 4 + [5] * 4)
    np.testing.assert_array_equal(np.concatenate(mesh.cell_data["k"]), [1, 2, 5, 6])


def test_pieces_that_do_not_fit_together_are_refused(tmp_path):
    plain = piece(SQUARE, TRIANGLES, [5, 5])
    field = f"<PointData>{array('p', 'Float64', np.ones(4))}</PointData>"
    ghost = f"<CellData>{array('vtkGhostType', 'UInt8', [0, 1])}</CellData>"
    path = vtu(tmp_path / "a.vtu", plain, piece(SQUARE, TRIANGLES, [5, 5], field))
    assert "same fields" in refusal(path)
    path = vtu(path, *[piece(SQUARE + shift, TRIANGLES, [5, 5], ghost) for shift in (0, 2)])
    assert measure(read_mesh(path)) == pytest.approx(1)  # the ghost cell of each does not count
    path = vtu(path, piece(SQUARE, [[0, 1, 4]], [5]), plain)  # 4 is a point of the second piece
    assert "[0, 1, 4]" in refusal(path)


@pytest.mark.usefixtures("without_vtk")
def test_pieces_with_raw_data_are_refused(tmp_path):
    path = vtu(
        tmp_path / "a.vtu", piece(SQUARE, TRIANGLES, [5, 5]), piece(SQUARE, TRIANGLES, [5, 5])
    )
    raw = b'<AppendedData encoding="raw">\n_\x01\x02<&\xff</AppendedData></VTKFile>'
    path.write_bytes(path.read_bytes().replace(b"</VTKFile>", raw))
    assert "several pieces" in refusal(path)


def test_raw_appended_data_is_read(tmp_path):
    arrays = [SQUARE, TRIANGLES, np.array([3, 6]), np.array([5, 5])]
    dtypes = ["<f8", "<i8", "<i8", "u1"]
    raw, offsets = b"", []
    for values, dtype in zip(arrays, dtypes, strict=True):
        data = values.astype(dtype).tobytes()
        offsets.append(len(raw))
        raw += np.uint32(len(data)).astype("<u4").tobytes() + data
    names = ["Points", "connectivity", "offsets", "types"]
    kinds = ["Float64", "Int64", "Int64", "UInt8"]
    more = ['NumberOfComponents="3"', "", "", ""]
    tags = [
        f'<DataArray type="{kind}" Name="{name}" format="appended" offset="{offset}" {rest}/>'
        for name, kind, offset, rest in zip(names, kinds, offsets, more, strict=True)
    ]
    body = (
        f'<Piece NumberOfPoints="4" NumberOfCells="2"><Points>{tags[0]}</Points>'
        f"<Cells>{''.join(tags[1:])}</Cells></Piece>"
    )
    path = vtu(tmp_path / "a.vtu", body)
    appended = b'<AppendedData encoding="raw">\n_' + raw + b"\n</AppendedData></VTKFile>"
    path.write_bytes(path.read_bytes().replace(b"</VTKFile>", appended))
    mesh = read_mesh(path)
    np.testing.assert_array_equal(mesh.points, SQUARE)
    assert measure(mesh) == pytest.approx(1)


@pytest.mark.parametrize(
    ("cells", "code", "name"),
    [
        ([[0, 1, 3, 2]], 6, "type 6 (triangle strip)"),
        ([[0, 1, 2]], 4, "type 4 (polyline)"),
        ([[0, 1, 2, 0, 1]], 69, "VTK_LAGRANGE_TRIANGLE cells with 5 nodes"),
        ([[0, 1, 3, 2]], 8, "pixel"),
    ],
)
@pytest.mark.usefixtures("without_vtk")
def test_cells_without_a_weight_rule_are_refused_by_name(cells, code, name, tmp_path, capfd):
    path = vtu(tmp_path / "a.vtu", piece(SQUARE, [*cells, *TRIANGLES], [code, 5, 5]))
    assert name in refusal(path)
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("without_vtk")
def test_voxels_and_pixels_and_polydata_in_legacy_files_are_refused(tmp_path):
    corners = "0 0 0 1 0 0 0 1 0 1 1 0 0 0 1 1 0 1 0 1 1 1 1 1"
    points = f"DATASET UNSTRUCTURED_GRID\nPOINTS 8 float\n{corners}\n"
    voxel = vtk(tmp_path / "a.vtk", points + "CELLS 1 9\n8 0 1 2 3 4 5 6 7\nCELL_TYPES 1\n11\n")
    assert "cannot handle" in refusal(voxel)
    pixel = vtk(tmp_path / "b.vtk", points + "CELLS 1 5\n4 0 1 2 3\nCELL_TYPES 1\n8\n")
    assert "cannot handle" in refusal(pixel)
    surface = "DATASET POLYDATA\nPOINTS 3 float\n0 0 0 1 0 0 0 1 0\nPOLYGONS 1 4\n3 0 1 2\n"
    assert "POLYDATA" in refusal(vtk(tmp_path / "c.vtk", surface))


def test_legacy_structured_points_have_their_volume(tmp_path):
    grid = "DATASET STRUCTURED_POINTS\nDIMENSIONS 3 4 2\nORIGIN 0 0 0\nSPACING 1 0.5 2\n"
    mesh = read_mesh(vtk(tmp_path / "a.vtk", grid))
    assert measure(mesh) == pytest.approx(2 * 1.5 * 2)
    assert len(mesh.cells[0]) == 6


def test_polygons_of_several_sizes_are_read(tmp_path):
    points = [[0, 0, 0], [2, 0, 0], [2, 1, 0], [1, 2, 0], [0, 1, 0], [3, 0, 0]]
    path = vtu(tmp_path / "a.vtu", piece(points, [[0, 1, 2, 3, 4], [1, 5, 2]], [7, 7]))
    assert measure(read_mesh(path)) == pytest.approx(3 + 0.5)


@pytest.mark.usefixtures("without_vtk")
def test_legacy_polygons_with_cell_data_are_refused_instead_of_losing_it(tmp_path):
    head = "DATASET UNSTRUCTURED_GRID\nPOINTS 4 float\n0 0 0 1 0 0 1 1 0 0 1 0\n"
    cells = "CELLS 1 5\n4 0 1 2 3\nCELL_TYPES 1\n7\n"
    assert measure(read_mesh(vtk(tmp_path / "a.vtk", head + cells))) == pytest.approx(1)
    data = "CELL_DATA 1\nSCALARS k float\nLOOKUP_TABLE default\n1\n"
    assert "cell data" in refusal(vtk(tmp_path / "b.vtk", head + cells + data))


def test_a_point_that_does_not_exist_is_named_with_its_cell(tmp_path):
    path = vtu(tmp_path / "a.vtu", piece(SQUARE, [*TRIANGLES, [0, 1, 99]], [5, 5, 5]))
    message = refusal(path)
    assert "cell 2 (triangle)" in message
    assert "[0, 1, 99]" in message
    negative = vtu(path, piece(SQUARE, [[0, 1, -1]], [5]))
    assert "cell 0 (triangle)" in refusal(negative)


def test_points_without_cells_and_points_at_nan_are_refused(tmp_path):
    path = tmp_path / "a.ply"
    meshio.write(path, square())
    text = "ply\nformat ascii 1.0\nelement vertex 1\nproperty float x\nproperty float y\n"
    path.write_text(text + "property float z\nend_header\n0 0 0\n")
    assert "no cells" in refusal(path)
    points = SQUARE.copy()
    points[2, 0] = np.nan
    assert "the first is point 2" in refusal(
        vtu(tmp_path / "b.vtu", piece(points, TRIANGLES, [5, 5]))
    )


def test_interleaved_blocks_keep_every_cell_with_its_data(tmp_path):
    points = [[0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0], [2, 0, 0], [2, 1, 0], [3, 0, 0]]
    cells = [[0, 1, 3], [1, 4, 5, 2], [4, 6, 5]]
    data = f"<CellData>{array('k', 'Float64', [1, 3, 2])}</CellData>"
    mesh = read_mesh(vtu(tmp_path / "a.vtu", piece(points, cells, [5, 9, 5], data)))
    assert [block.type for block in mesh.cells] == ["triangle", "quad", "triangle"]
    assert [part.tolist() for part in mesh.cell_data["k"]] == [[1], [3], [2]]
    assert measure(mesh) == pytest.approx(0.5 + 1 + 0.5)


def test_lines_and_triangles_with_cell_data_only_are_read_and_moved_to_the_points(tmp_path):
    cells = [("line", np.array([[0, 1], [1, 2]])), ("triangle", TRIANGLES)]
    given = meshio.Mesh(SQUARE, cells, cell_data={"k": [np.array([7.0, 8]), np.array([1.0, 3])]})
    meshio.write(tmp_path / "a.vtu", given)
    mesh = read_mesh(tmp_path / "a.vtu")
    assert [part.tolist() for part in mesh.cell_data["k"]] == [[7, 8], [1, 3]]
    np.testing.assert_array_equal(read_field(mesh, "k", "cells").ravel(), [1, 3])
    np.testing.assert_allclose(read_field(mesh, "k", "points").ravel(), [2, 1, 2, 3])


@pytest.mark.parametrize(
    ("kind", "code", "size"), [("wedge15", 26, 1 / 2), ("pyramid13", 27, 1 / 3)]
)
@pytest.mark.usefixtures("without_vtk")
def test_quadratic_cells_whose_dimension_meshio_has_forgotten(kind, code, size, tmp_path):
    nodes = reference_cell(kind).nodes
    mesh = read_mesh(vtu(tmp_path / "a.vtu", piece(nodes, [range(len(nodes))], [code])))
    assert [block.type for block in mesh.cells] == [kind]
    assert measure(mesh) == pytest.approx(size)


def test_points_so_far_away_that_volumes_overflow_are_refused(tmp_path):
    points = SQUARE.copy()
    points[3, 1] = -1e200
    path = vtu(tmp_path / "a.vtu", piece(points, TRIANGLES, [5, 5]))
    assert "1 points are over 1e+40 away, the first is 3" in refusal(path)


def test_only_cells_of_the_top_dimension_carry_measure(tmp_path):
    cells = [
        ("vertex", np.array([[0]])),
        ("line", np.array([[0, 1], [1, 2]])),
        ("triangle", TRIANGLES),
    ]
    meshio.write(tmp_path / "a.vtu", meshio.Mesh(SQUARE, cells))
    mesh = read_mesh(tmp_path / "a.vtu")
    assert measure(mesh) == pytest.approx(1)
    assert [kind for kind, _ in top_cells(mesh)] == ["triangle"]


def test_a_field_of_the_wrong_length_is_refused(tmp_path):
    data = f"<PointData>{array('p', 'Float64', np.ones(3))}</PointData>"
    assert "p" in refusal(vtu(tmp_path / "a.vtu", piece(SQUARE, TRIANGLES, [5, 5], data)))


@pytest.mark.parametrize("count", [1, 3])
def test_cell_data_of_more_or_fewer_cells_are_refused(count, tmp_path):
    data = f"<CellData>{array('k', 'Float64', np.ones(count))}</CellData>"
    message = refusal(vtu(tmp_path / "a.vtu", piece(SQUARE, TRIANGLES, [5, 5], data)))
    assert f"field 'k' has [{count}] rows for 4 points, 2 cells" in message
    legacy = f"CELL_DATA {count}\nSCALARS k float\nLOOKUP_TABLE default\n{'1 ' * count}\n"
    assert "cell" in refusal(vtk(tmp_path / "a.vtk", LEGACY + legacy))


def test_two_fields_of_one_name_are_refused(tmp_path):
    p, q = (array("p", "Float64", np.full(4, value)) for value in (1.0, 2.0))
    both = f"<PointData>{p}{q}</PointData>"
    path = vtu(tmp_path / "a.vtu", piece(SQUARE, TRIANGLES, [5, 5], both))
    assert "there are two fields 'p'" in refusal(path)
    scalars = "SCALARS p float\nLOOKUP_TABLE default\n1 2 3 4\n"
    for other in (scalars, "FIELD f 1\np 1 4 float\n5 6 7 8\n"):
        path = vtk(tmp_path / "a.vtk", f"{LEGACY}POINT_DATA 4\n{scalars}{other}")
        assert "there are two fields 'p'" in refusal(path)
    cells = "CELL_DATA 2\nSCALARS p float\nLOOKUP_TABLE default\n5 6\n"
    mesh = read_mesh(vtk(path, f"{LEGACY}POINT_DATA 4\n{scalars}{cells}"))  # elsewhere, it may
    assert mesh.point_data["p"].tolist() == [1, 2, 3, 4]
    assert mesh.cell_data["p"][0].tolist() == [5, 6]


@pytest.mark.usefixtures("without_vtk")
@pytest.mark.parametrize("where", [0, 1])
def test_numbers_of_the_whole_file_in_a_legacy_file(where, tmp_path):
    facts = "FIELD FieldData 2\nTimeValue 1 1 double\n0.5\nRe 1 1 double\n100\n"
    first, rest = LEGACY.split("\n", 1)
    text = f"{first}\n{facts}{rest}" if where == 0 else LEGACY + facts
    mesh = read_mesh(vtk(tmp_path / "a.vtk", text))
    assert mesh.field_data["time"].tolist() == [0.5]
    assert mesh.field_data["Re"].tolist() == [100]


def test_a_field_that_meshio_would_skip_is_refused(tmp_path, capfd):
    data = f"<PointData>{array('velocity', 'Float64', np.ones(7), 2)}</PointData>"
    path = vtu(tmp_path / "a.vtu", piece(SQUARE, TRIANGLES, [5, 5], data))
    assert "'velocity'" in refusal(path)
    assert capfd.readouterr() == ("", "")


# --- other formats --------------------------------------------------------------------------------


def test_gmsh_41_without_physical_groups_loads(tmp_path):
    path = tmp_path / "a.msh"
    path.write_text(
        "$MeshFormat\n4.1 0 8\n$EndMeshFormat\n"
        "$Entities\n0 1 1 0\n1 0 0 0 1 0 0 0 0\n1 0 0 0 1 1 0 0 1 1\n$EndEntities\n"
        "$Nodes\n1 4 1 4\n2 1 0 4\n1\n2\n3\n4\n0 0 0\n1 0 0\n1 1 0\n0 1 0\n$EndNodes\n"
        "$Elements\n2 3 1 3\n1 1 1 1\n1 1 2\n2 1 2 2\n2 1 2 3\n3 1 3 4\n$EndElements\n"
    )
    mesh = read_mesh(path)
    assert [block.type for block in mesh.cells] == ["line", "triangle"]
    assert measure(mesh) == pytest.approx(1)


ABAQUS = """*NODE
10, 0., 0.
20, 1., 0.
30, 1., 1.
35, 9., 9.
40, 0., 1.
*ELEMENT, TYPE=CPS3
1, 10, 20, 30
2, 10, 30, 40
*NSET, NSET=left
10, 40
*ELSET, ELSET=upper
2
"""


def test_an_element_set_of_quads_in_mixed_case_is_kept(tmp_path):
    path = tmp_path / "a.inp"
    nodes = "*Node\n1, 0., 0.\n2, 1., 0.\n3, 1., 1.\n4, 0., 1.\n5, 2., 0.\n6, 2., 1.\n"
    elements = "*Element, type=CPS4\n1, 1, 2, 3, 4\n2, 2, 5, 6, 3\n"
    path.write_text(f"{nodes}{elements}*Elset, elset=right\n2\n")
    mesh = read_mesh(path)
    assert measure(mesh) == pytest.approx(2)
    assert {name.lower(): parts[0].tolist() for name, parts in mesh.cell_data.items()} == {
        "right": [0, 1]
    }


def test_a_flat_gmsh_file_has_two_dimensions_and_its_area(tmp_path):
    path = tmp_path / "a.msh"
    meshio.write(path, square(), file_format="gmsh")
    mesh = read_mesh(path)
    assert mesh.points.shape == (4, 3)
    assert flat_axes(mesh.points) == [2]
    assert measure(mesh) == pytest.approx(1)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("a.su2", "4 cells announced, 2 found"),
        ("a.vol", "there is no endmesh"),
        ("a.stl", "there is no endsolid"),
    ],
)
def test_a_file_without_its_last_cells_or_its_end_is_refused(name, words, tmp_path):
    text = {
        "a.su2": "NDIME= 2\nNPOIN= 4\n0 0\n1 0\n1 1\n0 1\nNELEM= 4\n5 0 1 2\n5 0 2 3\n",
        "a.vol": "mesh3d\ndimension\n2\nsurfaceelements\n1\n1 1 1 0 3 1 2 3\n"
        "points\n3\n0 0 0\n1 0 0\n0 1 0\n",
        "a.stl": "solid\nfacet normal 0 0 1\nouter loop\nvertex 0 0 0\nvertex 1 0 0\n"
        "vertex 0 1 0\nendloop\nendfacet\n",
    }
    (tmp_path / name).write_text(text[name])
    assert words in refusal(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.msh", "(0 ansys\n"),
        ("a.msh", "(10 (1 1 4 1 3)\n"),
        ("a.ply", "ply\n"),
        ("a.bdf", "$ nastran\n"),
    ],
)
def test_what_meshio_would_wait_for_is_refused(name, text, tmp_path):
    (tmp_path / name).write_text(text)
    assert "cannot be read as" in refusal(tmp_path / name)


def test_abaqus_numbers_with_gaps_and_an_unused_node(tmp_path):
    path = tmp_path / "a.inp"
    path.write_text(ABAQUS)
    mesh = read_mesh(path)
    np.testing.assert_array_equal(mesh.cells[0].data, [[0, 1, 2], [0, 2, 4]])
    assert inspect_mesh(mesh).quality.first_orphan == 3
    assert measure(mesh) == pytest.approx(1)


def test_named_sets_become_fields_of_zeros_and_ones(tmp_path):
    path = tmp_path / "a.inp"
    path.write_text(ABAQUS)
    mesh = read_mesh(path)
    np.testing.assert_array_equal(mesh.point_data["left"], [1, 0, 0, 0, 1])
    np.testing.assert_array_equal(mesh.cell_data["upper"][0], [0, 1])


def test_a_set_made_of_others_does_not_take_in_what_comes_after_it(tmp_path):
    path = tmp_path / "a.inp"
    path.write_text(ABAQUS + "*ELSET, ELSET=all\nupper\n*ELEMENT, TYPE=CPS3\n3, 20, 30, 40\n")
    masks = {
        name: [part.tolist() for part in parts] for name, parts in read_mesh(path).cell_data.items()
    }
    assert masks == {"upper": [[0, 1], [0]], "all": [[0, 1], [0]]}


# --- XDMF -----------------------------------------------------------------------------------------


@pytest.fixture
def series(tmp_path) -> Path:
    path = tmp_path / "a.xdmf"
    with meshio.xdmf.TimeSeriesWriter(path, data_format="XML") as writer:
        writer.write_points_cells(SQUARE, [("triangle", TRIANGLES)])
        for step in range(3):
            u, k = np.full(4, 1.0 * step), [np.array([1.0, 2.0]) * step]
            writer.write_data(0.5 * step, point_data={"u": u}, cell_data={"k": k})
    return path


def test_the_steps_of_a_time_series_are_selected_by_number(series):
    for step in range(3):
        mesh = read_mesh(series, step=step)
        np.testing.assert_array_equal(mesh.point_data["u"], np.full(4, step))
        np.testing.assert_array_equal(mesh.cell_data["k"][0], [step, 2 * step])
        assert measure(mesh) == pytest.approx(1)


@pytest.mark.parametrize("step", [None, 3, -4])
def test_a_time_series_without_a_step_lists_its_times(series, step):
    message = refusal(series, step=step)
    assert "3 steps, t = 0.0, 0.5, 1.0" in message
    assert "step=0 to step=2" in message


def test_a_series_with_a_mesh_in_every_step_takes_that_of_the_step(tmp_path):
    def item(data, kind, shape):
        text = " ".join(map(str, np.ravel(data)))
        return (
            f'<DataItem DataType="{kind}" Precision="8" Dimensions="{shape}" Format="XML">'
            f"{text}</DataItem>"
        )

    grids = "".join(
        f'<Grid GridType="Uniform"><Time Value="{step}"/>'
        f'<Topology TopologyType="Triangle">{item(TRIANGLES, "Int", "2 3")}</Topology>'
        f'<Geometry GeometryType="XYZ">{item(SQUARE * step, "Float", "4 3")}</Geometry></Grid>'
        for step in (1, 2)
    )
    path = tmp_path / "a.xdmf"
    path.write_text(
        f'<Xdmf Version="3.0"><Domain><Grid GridType="Collection" CollectionType="Temporal">'
        f"{grids}</Grid></Domain></Xdmf>"
    )
    assert [measure(read_mesh(path, step=s)) for s in (0, 1)] == pytest.approx([1, 4])


def test_a_step_of_what_is_no_time_series_is_refused(tmp_path):
    meshio.write(tmp_path / "a.xdmf", square(), data_format="XML")
    assert "no time series" in refusal(tmp_path / "a.xdmf", step=0)
    meshio.write(tmp_path / "a.vtu", square())
    assert "only XDMF" in refusal(tmp_path / "a.vtu", step=0)


def test_xdmf_without_h5py_says_what_to_install(tmp_path, monkeypatch):
    meshio.write(tmp_path / "a.xdmf", square(), data_format="XML")
    monkeypatch.setitem(sys.modules, "h5py", None)
    assert "pip install 'opformer[hdf5]'" in refusal(tmp_path / "a.xdmf")


@needs_data
@pytest.mark.parametrize(
    "folder", ["airfoil/test_coarse", "elastic_block/test", "holed_poisson/test"]
)
def test_real_files_are_read(folder):
    for path in sorted((DATA / folder).iterdir())[:3]:
        report = inspect_mesh(path)
        assert (report.ambient, report.intrinsic, report.flat) == (3, 2, [2])
        assert report.quality.degenerate == report.weightless == 0
        assert report.verdict.startswith("ready to fit")
