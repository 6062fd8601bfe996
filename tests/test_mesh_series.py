"""Time series of every kind: their times, their steps, the time of a step."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from xml.etree import ElementTree

import meshio
import numpy as np
import pytest
from reading import boundary_weights, measure, refusal

from opformer.errors import MeshError
from opformer.mesh import blocks, read_mesh, read_times
from opformer.mesh import vtk as reader
from opformer.quadrature import cell_report

needs_vtk = pytest.mark.skipif(
    reader.find_spec("pyvista") is None, reason="pyvista is not installed"
)

TIMES = [0.0, 0.5, 2.0]
SQUARE = np.array([[0.0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0]])
TRIANGLES = np.array([[0, 1, 2], [0, 2, 3]])
RIGHT = np.array([1.0, 0, 0])
# Two cubes in a row along x.
BAR = np.array([[x, y, z] for z in (0, 1) for y in (0, 1) for x in (0, 1, 2)])
CUBES = [[0, 1, 4, 3, 6, 7, 10, 9], [1, 2, 5, 4, 7, 8, 11, 10]]


def square(time: float) -> meshio.Mesh:
    """A square whose fields are the time, times one and two on the cells."""
    return meshio.Mesh(
        SQUARE,
        [("triangle", TRIANGLES)],
        point_data={"u": np.full(4, time)},
        cell_data={"k": [np.array([1.0, 2.0]) * time]},
    )


def pvd(folder: Path) -> Path:
    entries = ""
    for k, time in enumerate(TIMES):
        meshio.write(folder / f"step_{k}.vtu", square(time))
        entries += f'<DataSet timestep="{time}" part="0" file="step_{k}.vtu"/>'
    path = folder / "a.pvd"
    path.write_text(f'<VTKFile type="Collection"><Collection>{entries}</Collection></VTKFile>')
    return path


def listed(folder: Path) -> Path:
    pvd(folder)
    files = [{"name": f"step_{k}.vtu", "time": time} for k, time in enumerate(TIMES)]
    path = folder / "a.vtu.series"
    path.write_text(json.dumps({"file-series-version": "1.0", "files": files}))
    return path


def xdmf(folder: Path) -> Path:
    path = folder / "a.xdmf"
    with meshio.xdmf.TimeSeriesWriter(path, data_format="XML") as writer:
        writer.write_points_cells(SQUARE, [("triangle", TRIANGLES)])
        for time in TIMES:
            mesh = square(time)
            writer.write_data(time, point_data=mesh.point_data, cell_data=mesh.cell_data)
    return path


def vtkhdf(folder: Path) -> Path:
    """A transient unstructured grid: one geometry, fields one step after the other."""
    h5py = pytest.importorskip("h5py", reason="the file is written with h5py")
    pytest.importorskip("pyvista", reason="the file is read with pyvista")
    n = len(TIMES)
    path = folder / "a.vtkhdf"
    with h5py.File(path, "w") as file:
        root = file.create_group("VTKHDF")
        root.attrs["Version"] = (2, 0)
        root.attrs.create(
            "Type", np.bytes_("UnstructuredGrid"), dtype=h5py.string_dtype("ascii", 16)
        )
        for name, data in {
            "NumberOfPoints": [4],
            "NumberOfCells": [2],
            "NumberOfConnectivityIds": [6],
            "Points": SQUARE,
            "Connectivity": TRIANGLES.ravel(),
            "Offsets": [0, 3, 6],
            "Types": np.array([5, 5], np.uint8),
            "PointData/u": np.repeat(TIMES, 4),
            "CellData/k": np.outer(TIMES, [1, 2]).ravel(),
        }.items():
            root[name] = np.asarray(data)
        steps = root.create_group("Steps")
        steps.attrs["NSteps"] = n
        zeros = np.zeros(n, int)
        for name, data in {
            "Values": TIMES,
            "PartOffsets": zeros,
            "NumberOfParts": np.ones(n, int),
            "PointOffsets": zeros,
            "CellOffsets": zeros[:, None],
            "ConnectivityIdOffsets": zeros[:, None],
            "PointDataOffsets/u": 4 * np.arange(n),
            "CellDataOffsets/k": 2 * np.arange(n),
        }.items():
            steps[name] = np.asarray(data)
    return path


def ensight(folder: Path) -> Path:
    """EnSight Gold: a part of triangles, written by hand."""
    pytest.importorskip("pyvista", reason="the file is read with pyvista")
    column = "".join(f"{x:12.5e}\n" for x in SQUARE.T.ravel())
    nodes = "".join("".join(f"{n + 1:10d}" for n in row) + "\n" for row in TRIANGLES)
    (folder / "a.geo").write_text(
        "by hand\nby hand\nnode id assign\nelement id assign\npart\n         1\nplate\n"
        f"coordinates\n         4\n{column}tria3\n         2\n{nodes}"
    )
    for k, time in enumerate(TIMES):
        u, values = (f"{time:12.5e}\n" * 4), "".join(f"{i * time:12.5e}\n" for i in (1, 2))
        (folder / f"u{k}").write_text(f"u\npart\n         1\ncoordinates\n{u}")
        (folder / f"k{k}").write_text(f"k\npart\n         1\ntria3\n{values}")
    path = folder / "a.case"
    path.write_text(
        "FORMAT\ntype: ensight gold\nGEOMETRY\nmodel: a.geo\n"
        "VARIABLE\nscalar per node: 1 u u*\nscalar per element: 1 k k*\n"
        f"TIME\ntime set: 1\nnumber of steps: {len(TIMES)}\nfilename start number: 0\n"
        f"filename increment: 1\ntime values: {' '.join(map(str, TIMES))}\n"
    )
    return path


ALL = [pvd, listed, xdmf, vtkhdf, ensight]
every_kind = pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)


@every_kind
def test_steps_are_selected_by_number_from_both_ends(kind, tmp_path):
    path = kind(tmp_path)
    assert read_times(path) == TIMES
    for step in (0, 1, 2, -1, -3, np.int64(1)):
        mesh = read_mesh(path, step=step)
        time = TIMES[step]
        np.testing.assert_allclose(mesh.points, SQUARE)
        np.testing.assert_array_equal(mesh.point_data["u"], np.full(4, time))
        np.testing.assert_array_equal(mesh.cell_data["k"][0], [time, 2 * time])
        np.testing.assert_array_equal(mesh.field_data["time"], [time])
        assert measure(mesh) == pytest.approx(1)


@every_kind
@pytest.mark.parametrize("step", [None, 3, -4])
def test_without_a_step_there_is_a_list_of_times(kind, step, tmp_path):
    message = refusal(kind(tmp_path), step=step)
    assert "a time series of 3 steps, t = 0.0, 0.5, 2.0: choose one with step=0 to" in message
    assert message.endswith(f"step=2, got step={step}")


@every_kind
def test_a_series_of_one_step_is_a_mesh(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(f"{__name__}.TIMES", [0.25])
    path = kind(tmp_path)
    times = read_times(path)
    assert times == ([] if kind is vtkhdf else TIMES)  # VTK gives no time there
    for options in ({}, {"step": 0}, {"step": -1}) if times else ({},):
        mesh = read_mesh(path, **options)
        np.testing.assert_array_equal(mesh.point_data["u"], np.full(4, 0.25))
        assert times == mesh.field_data.get("time", np.array([])).tolist()


@pytest.mark.parametrize("step", [1.0, "0"])
def test_a_step_is_an_integer(step, tmp_path):
    with pytest.raises(TypeError, match="integer"):
        read_mesh(pvd(tmp_path), step=step)


def test_long_lists_of_times_are_cut(tmp_path, monkeypatch):
    monkeypatch.setattr(f"{__name__}.TIMES", [float(k) for k in range(50)])
    message = refusal(xdmf(tmp_path))
    assert "50 steps, t = 0.0, 1.0, " in message
    assert "19.0, …, 49.0: choose" in message


def test_a_file_that_is_no_series_has_no_times(tmp_path):
    meshio.write(tmp_path / "a.vtu", square(1))
    assert read_times(tmp_path / "a.vtu") == []
    message = refusal(tmp_path / "a.vtu", step=0)
    formats = "XDMF, PVD, .series, OpenFOAM, EnSight, VTKHDF, CGNS, Exodus"
    assert f"only {formats} files hold time series" in message


@pytest.mark.parametrize("name", ["a.pvd", "a.series", "a.xdmf", "a.foam", "a.vtkhdf", "a.case"])
@pytest.mark.parametrize("content", ["hello", "<a/>", "{}", '{"files": [{}]}'])
def test_damaged_series_are_refused_in_one_line(name, content, tmp_path, capfd):
    path = tmp_path / name
    path.write_text(content)
    for options in ({}, {"step": 0}):
        refusal(path, **options)
    if name not in ("a.xdmf", "a.case"):  # whose times are not to be seen
        with pytest.raises(MeshError, match=name):
            read_times(path)
    assert capfd.readouterr() == ("", "")


# --- lists of files -------------------------------------------------------------------------------


def test_parts_of_a_step_are_joined(tmp_path):
    meshio.write(tmp_path / "0.vtu", square(1))
    other = square(1)
    other.points = SQUARE + RIGHT
    meshio.write(tmp_path / "1.vtu", other)
    entries = "".join(
        f'<DataSet timestep="{time}" part="{part}" file="{part}.vtu"/>'
        for time in (1, 2)
        for part in (0, 1)
    )
    path = tmp_path / "a.pvd"
    path.write_text(f"<VTKFile><Collection>{entries}</Collection></VTKFile>")
    assert read_times(path) == [1, 2]
    mesh = read_mesh(path, step=1)
    assert (measure(mesh), len(mesh.points)) == (pytest.approx(2), 6)
    np.testing.assert_array_equal(mesh.point_data["u"], np.ones(6))


def test_a_list_of_itself_and_of_missing_files_is_refused(tmp_path):
    path = tmp_path / "a.pvd"
    path.write_text('<VTKFile><Collection><DataSet file="a.pvd"/></Collection></VTKFile>')
    refusal(path)
    path.write_text('<VTKFile><Collection><DataSet file="b.vtu"/></Collection></VTKFile>')
    assert "b.vtu: there is no such file" in refusal(path)


# --- XDMF -----------------------------------------------------------------------------------------


def test_a_series_for_each_field_is_one_series(tmp_path):
    """As dolfinx and FEniCS write them."""
    path = xdmf(tmp_path)
    tree = ElementTree.parse(path)
    other = deepcopy(tree.find("Domain/Grid[@CollectionType='Temporal']"))
    for field in other.iter("Attribute"):
        field.set("Name", {"u": "v", "k": "l"}[field.get("Name")])
    tree.find("Domain").append(other)
    tree.write(path)
    assert read_times(path) == TIMES
    mesh = read_mesh(path, step=2)
    for name in "uv":
        np.testing.assert_array_equal(mesh.point_data[name], np.full(4, 2.0))
    for name in "kl":
        np.testing.assert_array_equal(mesh.cell_data[name][0], [2, 4])
    path.write_text(path.read_text().replace('Time Value="2.0"', 'Time Value="3.0"', 1))
    assert "do not have the same times" in refusal(path, step=0)


# --- OpenFOAM -------------------------------------------------------------------------------------

FACES = {  # patch, or none inside
    None: [[1, 4, 10, 7]],
    "inlet": [[0, 6, 9, 3]],
    "outlet": [[2, 5, 11, 8]],
    "walls": [
        *([0, 3, 4, 1], [6, 7, 10, 9], [0, 1, 7, 6], [3, 9, 10, 4]),
        *([1, 4, 5, 2], [7, 8, 11, 10], [1, 2, 8, 7], [4, 10, 11, 5]),
    ],
}


def foam_file(path: Path, kind: str, body: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    head = f"version 2.0; format ascii; class {kind}; object {path.name};"
    path.write_text(f"FoamFile {{ {head} }}\n{body}\n")


def foam_list(rows) -> str:
    items = "\n".join(f"({' '.join(map(str, row))})" for row in rows)
    return f"{len(rows)}\n(\n{items}\n)"


def openfoam(folder: Path, faces=FACES) -> Path:
    """A case of two cubes with pressure (cell number + 1) times the time."""
    mesh = folder / "constant/polyMesh"
    flat = [face for patch in faces.values() for face in patch]
    owner = [0, 0, 1, *([0] * 4), *([1] * 4)]
    foam_file(mesh / "points", "vectorField", foam_list(BAR))
    foam_file(
        mesh / "faces",
        "faceList",
        f"{len(flat)}\n(\n" + "\n".join(f"{len(f)}({' '.join(map(str, f))})" for f in flat) + "\n)",
    )
    foam_file(
        mesh / "owner", "labelList", f"{len(owner)}\n(\n" + "\n".join(map(str, owner)) + "\n)"
    )
    foam_file(mesh / "neighbour", "labelList", "1\n(\n1\n)")
    patches, start = "", 1
    for name in [name for name in faces if name]:
        n = len(faces[name])
        patches += f"{name} {{ type patch; nFaces {n}; startFace {start}; }}\n"
        start += n
    foam_file(mesh / "boundary", "polyBoundaryMesh", f"{len(faces) - 1}\n(\n{patches})")
    for time in TIMES:
        values = f"nonuniform List<scalar> 2\n(\n{time}\n{2 * time}\n);"
        sides = "".join(f"{name} {{ type zeroGradient; }}\n" for name in faces if name)
        foam_file(
            folder / f"{time:g}/p",
            "volScalarField",
            f"dimensions [0 2 -2 0 0 0 0];\ninternalField {values}\nboundaryField {{ {sides} }}",
        )
    foam_file(
        folder / "system/controlDict",
        "dictionary",
        "startFrom startTime; startTime 0; endTime 2; deltaT 0.5; writeControl timeStep;"
        "writeInterval 1;",
    )
    path = folder / "case.foam"
    path.write_text("")
    return path


@needs_vtk
def test_an_openfoam_case_has_its_times_patches_and_fields(tmp_path):
    path = openfoam(tmp_path)
    assert read_times(path) == TIMES
    assert "t = 0.0, 0.5, 2.0" in refusal(path)
    for step, time in enumerate(TIMES):
        mesh = read_mesh(path, step=step)
        assert measure(mesh) == pytest.approx(2)
        assert len(mesh.points) == len(BAR)  # the patches share the points
        assert (mesh.cells[0].type, len(mesh.cells[0])) == ("hexahedron", 2)
        np.testing.assert_allclose(mesh.cell_data["p"][0], [time, 2 * time])
        assert mesh.field_data["time"].tolist() == [time]
        for patch, faces in list(FACES.items())[1:]:
            mask = np.concatenate(mesh.cell_data[patch]) == 1
            assert mask.sum() == len(faces)
            if patch == "outlet":
                np.testing.assert_allclose(np.concatenate(mesh.cell_data["p"])[mask], [2 * time])


@needs_vtk
def test_an_openfoam_case_of_polyhedra_keeps_its_cells(tmp_path):
    """VTK can cut polyhedra into tetrahedra; then cells and fields were no longer the solver's."""
    corner = [[0, 6, 9], [0, 9, 3]]  # the inlet in two triangles
    path = openfoam(tmp_path, FACES | {"inlet": corner})
    owner = tmp_path / "constant/polyMesh/owner"
    owner.write_text(owner.read_text().replace("11\n(\n0\n0\n", "12\n(\n0\n0\n0\n"))
    mesh = read_mesh(path, step=1)
    assert [block.type for block in mesh.cells[:2]] == ["polyhedron", "hexahedron"]
    np.testing.assert_allclose(np.concatenate(mesh.cell_data["p"][:2]), [0.5, 1])
    assert measure(mesh) == pytest.approx(2)
    assert boundary_weights(mesh).sum() == pytest.approx(10)
    assert cell_report(mesh.points, blocks(mesh)).inverted == 0
