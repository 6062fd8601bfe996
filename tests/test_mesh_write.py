"""Writing meshes: what is written is read again, or nothing is written."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import meshio
import numpy as np
import pytest
from realdata import DATA, needs_data

from opformer.errors import MeshError
from opformer.mesh import check_writable, read_mesh, write_mesh

SUFFIXES = (".vtu", ".vtk", ".xdmf")
POINTS = np.array([[0.0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0], [2, 0, 1 / 3], [9, 9, 9]])
CELLS = [
    ("triangle", np.array([[0, 1, 2]])),
    ("quad", np.array([[1, 4, 2, 3]])),
    ("triangle", np.array([[0, 2, 3], [3, 2, 4]])),
]


def mesh() -> meshio.Mesh:
    return meshio.Mesh(
        POINTS.copy(),
        CELLS,
        point_data={"p": np.arange(6.0) / 3, "v": np.arange(18.0).reshape(6, 3) / 7},
        cell_data={"k": [np.array([1]), np.array([3]), np.array([2, 5])]},
    )


def assert_nothing_but(folder: Path, *names: str) -> None:
    assert sorted(path.name for path in folder.iterdir()) == sorted(names)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_what_is_read_and_written_with_a_prediction_comes_back_unchanged(suffix, tmp_path, capfd):
    first, second = tmp_path / f"a{suffix}", tmp_path / f"b{suffix}"
    write_mesh(first, mesh())
    original = read_mesh(first)
    prediction, flux = original.point_data["p"].copy(), np.arange(12.0).reshape(4, 3) / 9
    write_mesh(second, original, point_data={"p_hat": prediction}, cell_data={"flux": flux})
    back = read_mesh(second)
    np.testing.assert_array_equal(back.points, POINTS)
    assert [block.type for block in back.cells] == ["triangle", "quad", "triangle"]
    for block, (_, cells) in zip(back.cells, CELLS, strict=True):
        np.testing.assert_array_equal(block.data, cells)
    for name, data in mesh().point_data.items():
        np.testing.assert_array_equal(back.point_data[name], data)
    np.testing.assert_array_equal(back.point_data["p_hat"], prediction)
    assert [part.tolist() for part in back.cell_data["k"]] == [[1], [3], [2, 5]]
    np.testing.assert_array_equal(np.concatenate(back.cell_data["flux"]), flux)
    assert_nothing_but(tmp_path, first.name, second.name)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    "dtype", ["bool", "i1", "u2", "i8", "f2", "f4", "f8", ">f8", np.longdouble], ids=str
)
def test_numbers_of_every_kind_keep_their_values(suffix, dtype, tmp_path):
    values = (np.arange(6) / 3).astype(dtype)
    write_mesh(tmp_path / f"a{suffix}", mesh(), point_data={"x": values})
    back = read_mesh(tmp_path / f"a{suffix}").point_data["x"]
    np.testing.assert_array_equal(back, values.astype(np.float64))


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("name", ["wall shear", 'a<b & "c"', "Größe", "50%20", "a'b>c"])
def test_names_with_unusual_characters_come_back(suffix, name, tmp_path):
    path = tmp_path / f"a{suffix}"
    write_mesh(path, mesh(), point_data={name: np.ones(6)}, cell_data={name: np.ones(4)})
    back = read_mesh(path)
    assert name in back.point_data
    assert name in back.cell_data


def test_a_legacy_file_spells_a_space_as_vtk_does(tmp_path):
    write_mesh(tmp_path / "a.vtk", mesh(), point_data={"wall shear": np.ones(6)})
    assert b"\nwall%20shear 1 6 double\n" in (tmp_path / "a.vtk").read_bytes()


@pytest.mark.parametrize("name", ["", "a\nb", "a\x00"])
def test_names_that_cannot_be_written_are_refused(name, tmp_path):
    with pytest.raises(MeshError, match="cannot be the name of a field"):
        write_mesh(tmp_path / "a.vtu", mesh(), point_data={name: np.ones(6)})
    assert_nothing_but(tmp_path)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_new_vector_of_two_components_gets_a_third(suffix, tmp_path):
    v = np.arange(12.0).reshape(6, 2)
    path = tmp_path / f"a{suffix}"
    write_mesh(path, mesh(), point_data={"u": v}, cell_data={"w": v[:4]})
    back = read_mesh(path)
    np.testing.assert_array_equal(back.point_data["u"], np.column_stack([v, np.zeros(6)]))
    np.testing.assert_array_equal(
        np.concatenate(back.cell_data["w"]), np.column_stack([v[:4], np.zeros(4)])
    )


@pytest.mark.parametrize(("suffix", "components"), [(".vtu", 2), (".xdmf", 2), (".vtk", 3)])
def test_an_original_vector_of_two_components_keeps_them_but_in_vtk(suffix, components, tmp_path):
    original = mesh()
    original.point_data["u"] = np.ones((6, 2))
    write_mesh(tmp_path / f"a{suffix}", original)
    assert read_mesh(tmp_path / f"a{suffix}").point_data["u"].shape == (6, components)
    assert original.point_data["u"].shape == (6, 2)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_tensor_becomes_a_row_row_after_row(suffix, tmp_path):
    stress = np.arange(54.0).reshape(6, 3, 3)
    write_mesh(tmp_path / f"a{suffix}", mesh(), point_data={"s": stress})
    back = read_mesh(tmp_path / f"a{suffix}").point_data["s"]
    np.testing.assert_array_equal(back, stress.reshape(6, 9))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_column_of_columns_is_one_number_per_row(suffix, tmp_path):
    write_mesh(tmp_path / f"a{suffix}", mesh(), point_data={"s": np.arange(6.0).reshape(6, 1, 1)})
    assert read_mesh(tmp_path / f"a{suffix}").point_data["s"].tolist() == [*range(6)]


def test_blocks_of_a_cell_field_have_one_shape(tmp_path):
    parts = [np.ones((1, 2)), np.ones((1, 3)), np.ones((2, 2))]
    with pytest.raises(MeshError, match="cell field 'w' has shapes"):
        write_mesh(tmp_path / "a.vtu", mesh(), cell_data={"w": parts})
    assert_nothing_but(tmp_path)


def test_a_name_that_hides_cells_is_refused(tmp_path):
    with pytest.raises(MeshError, match="'vtkGhostType' cannot be the name of a field"):
        write_mesh(tmp_path / "a.vtu", mesh(), cell_data={"vtkGhostType": np.ones(4)})
    assert_nothing_but(tmp_path)


def test_numbers_of_the_whole_file_are_kept_in_vtu(tmp_path):
    given = mesh()
    given.field_data = {"time": np.array([1 / 3]), "Re & Ma": np.array([100.0, 0.3])}
    for path in (tmp_path / "a.vtu", tmp_path / "b.vtu"):
        write_mesh(path, given)
        given = read_mesh(path)
        assert given.field_data["time"].tolist() == [1 / 3]
        assert given.field_data["Re & Ma"].tolist() == [100, 0.3]
    assert given.point_data.keys() == mesh().point_data.keys()


@pytest.mark.parametrize("source", SUFFIXES)
@pytest.mark.parametrize("target", SUFFIXES)
def test_a_mesh_goes_from_any_format_to_any_other(source, target, tmp_path):
    write_mesh(tmp_path / f"a{source}", mesh())
    write_mesh(tmp_path / f"b{target}", read_mesh(tmp_path / f"a{source}"))
    back = read_mesh(tmp_path / f"b{target}")
    np.testing.assert_array_equal(back.points, POINTS)
    assert [(b.type, b.data.tolist()) for b in back.cells] == [(t, c.tolist()) for t, c in CELLS]
    for name, data in mesh().point_data.items():
        np.testing.assert_array_equal(back.point_data[name], data)
    assert [part.tolist() for part in back.cell_data["k"]] == [[1], [3], [2, 5]]


def test_xdmf_refuses_what_it_has_no_word_for(tmp_path):
    with pytest.raises(MeshError, match=r"'q' has 4 components.*write \.vtu"):
        write_mesh(tmp_path / "a.xdmf", mesh(), point_data={"q": np.ones((6, 4))})
    with_vertex = meshio.Mesh(POINTS, [("vertex", np.array([[0]])), *CELLS])
    with pytest.raises(MeshError, match=r"cannot be written as \.xdmf"):
        write_mesh(tmp_path / "a.xdmf", with_vertex)
    assert_nothing_but(tmp_path)
    for suffix in (".vtu", ".vtk"):
        write_mesh(tmp_path / f"a{suffix}", with_vertex, point_data={"q": np.ones((6, 4))})
        assert len(read_mesh(tmp_path / f"a{suffix}").cells) == 4


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("dim", [1, 2])
def test_points_get_three_coordinates(suffix, dim, tmp_path):
    points = np.arange(4.0 * dim).reshape(4, dim)
    lines = meshio.Mesh(points, [("line", np.array([[0, 1], [1, 2], [2, 3]]))])
    write_mesh(tmp_path / f"a{suffix}", lines)
    back = read_mesh(tmp_path / f"a{suffix}").points
    np.testing.assert_array_equal(back, np.pad(points, ((0, 0), (0, 3 - dim))))


@pytest.mark.parametrize("bad", [np.ones(6, complex), np.array(list("abcdef")), np.ones((6, 0))])
def test_what_is_no_real_number_is_refused(bad, tmp_path):
    with pytest.raises(MeshError, match="'x' must hold real numbers"):
        write_mesh(tmp_path / "a.vtu", mesh(), point_data={"x": bad})
    assert_nothing_but(tmp_path)


def test_a_taken_name_is_refused_and_the_file_stays(tmp_path):
    path = tmp_path / "a.vtu"
    write_mesh(path, mesh())
    before = path.read_bytes()
    with pytest.raises(MeshError, match=r"a\.vtu: .*\['p'\]"):
        write_mesh(path, mesh(), point_data={"p": np.zeros(6)})
    assert path.read_bytes() == before
    write_mesh(path, mesh(), point_data={"p": np.zeros(6)}, overwrite=True)
    assert read_mesh(path).point_data["p"].max() == 0


def test_nan_in_fields_is_written_as_it_is(tmp_path):
    values = np.array([1.0, np.nan, np.inf, -np.inf, 0, 1])
    for suffix in SUFFIXES:
        write_mesh(tmp_path / f"a{suffix}", mesh(), point_data={"x": values})
        np.testing.assert_array_equal(read_mesh(tmp_path / f"a{suffix}").point_data["x"], values)


def test_the_mesh_given_stays_as_it_is(tmp_path):
    given, twin = mesh(), mesh()
    given.point_data["u"] = twin.point_data["u"] = np.ones((6, 2))
    given.points = given.points.astype(">f8")
    for suffix in SUFFIXES:
        write_mesh(tmp_path / f"a{suffix}", given, cell_data={"c": np.ones(4)})
    assert given.points.dtype == ">f8"
    assert given.point_data.keys() == twin.point_data.keys()
    assert given.point_data["u"].shape == (6, 2)
    assert given.cell_data.keys() == {"k"}


def test_named_sets_are_written_as_fields(tmp_path):
    given = mesh()
    given.point_sets = {"inlet": np.array([0, 3])}
    given.cell_sets = {"body": [np.array([0]), None, np.array([1])]}
    write_mesh(tmp_path / "a.vtu", given)
    back = read_mesh(tmp_path / "a.vtu")
    np.testing.assert_array_equal(back.point_data["inlet"], [1, 0, 0, 1, 0, 0])
    assert [part.tolist() for part in back.cell_data["body"]] == [[1], [0], [0, 1]]


# --- refused before any work ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "extension",
    [
        "msh",
        "inp",
        "stl",
        "obj",
        "off",
        "bdf",
        "mesh",
        "vol",
        "xml",
        "su2",
        "ply",
        "vtp",
        "avs",
        "tec",
        "dat",
        "",
    ],
)
def test_formats_that_lose_fields_are_refused(extension, tmp_path):
    for refuse in (check_writable, lambda path: write_mesh(path, mesh())):
        with pytest.raises(MeshError, match=r"cannot be written; .*\.vtu, \.vtk, \.xdmf"):
            refuse(tmp_path / f"a.{extension}")
    assert_nothing_but(tmp_path)


def test_names_that_can_be_written_pass(tmp_path):
    for name in ("a.vtu", "a b.VTK", "é.1.xdmf"):
        assert check_writable(str(tmp_path / name)) == tmp_path / name
    write_mesh(tmp_path / "A.VTU", mesh())
    assert len(read_mesh(tmp_path / "A.VTU").points) == 6


def test_folders_and_missing_folders_are_refused(tmp_path):
    (tmp_path / "b.vtu").mkdir()
    for path in (tmp_path / "b.vtu", tmp_path / "nowhere" / "a.vtu"):
        with pytest.raises(MeshError, match="folder"):
            check_writable(path)


def test_a_protected_folder_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(MeshError, match="write-protected"):
        check_writable(tmp_path / "a.vtu")


def test_xdmf_without_h5py_is_refused_with_what_to_install(tmp_path, monkeypatch):
    assert importlib.util.find_spec("h5py")  # else the next lines show nothing
    check_writable(tmp_path / "a.xdmf")
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(MeshError, match=r"pip install 'opformer\[hdf5\]'"):
        check_writable(tmp_path / "a.xdmf")


# --- whole or not at all --------------------------------------------------------------------------


@pytest.mark.parametrize("failure", [OSError("disk full"), SystemExit(1), KeyboardInterrupt()])
def test_a_failure_while_writing_leaves_the_old_file_alone(failure, tmp_path, monkeypatch):
    path = tmp_path / "a.vtu"
    write_mesh(path, mesh())
    before = path.read_bytes()

    def fail(filename, *args, **options):
        Path(filename).write_text("half of")
        raise failure

    monkeypatch.setattr(meshio, "write", fail)
    expected = KeyboardInterrupt if isinstance(failure, KeyboardInterrupt) else MeshError
    with pytest.raises(expected):
        write_mesh(path, mesh())
    assert path.read_bytes() == before
    assert_nothing_but(tmp_path, "a.vtu")


def test_a_file_that_says_something_else_than_it_should_is_not_kept(tmp_path, monkeypatch):
    honest = meshio.write

    def forgetful(filename, mesh, **options):
        mesh.point_data.pop("p")
        honest(filename, mesh, **options)

    monkeypatch.setattr(meshio, "write", forgetful)
    with pytest.raises(MeshError, match="point field 'p' would not be read back"):
        write_mesh(tmp_path / "a.vtu", mesh())
    assert_nothing_but(tmp_path)


@needs_data
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_real_mesh_keeps_its_order_and_its_fields(suffix, tmp_path):
    original = read_mesh(DATA / "elastic_block" / "test" / "case_400.vtu")
    prediction = np.asarray(original.point_data["u"], dtype=np.float64)
    path = tmp_path / f"a{suffix}"
    write_mesh(path, original, point_data={"u_hat": prediction})
    back = read_mesh(path)
    np.testing.assert_array_equal(back.points, original.points)
    np.testing.assert_array_equal(back.cells[0].data, original.cells[0].data)
    np.testing.assert_array_equal(back.point_data["u"][:, :2], original.point_data["u"])
    np.testing.assert_array_equal(back.point_data["u_hat"][:, :2], prediction)
    np.testing.assert_array_equal(back.cell_data["young"][0], original.cell_data["young"][0])
