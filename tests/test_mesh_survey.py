"""A folder of mesh files: its table, what differs, what is odd, and a command that does run."""

from __future__ import annotations

import json
import math
import shlex
import shutil
import warnings
from pathlib import Path

import meshio
import numpy as np
import pytest
from realdata import DATA, needs_data
from scipy.spatial import Delaunay

from opformer import MeshDataset
from opformer.cli import build_parser
from opformer.errors import MeshError
from opformer.mesh import (
    FolderReport,
    MeshReport,
    inspect_mesh,
    inspect_path,
    survey_folder,
    write_mesh,
    write_series,
)


def case(k=0, *, n=9, size=1.0):
    """A square with a temperature, a load on its left, a material, a speed, and gravity."""
    x = np.linspace(0, size, n)
    points = np.stack([*np.meshgrid(x, x, indexing="ij"), np.zeros((n, n))], -1).reshape(-1, 3)
    i = np.arange(n * n).reshape(n, n)
    cells = np.stack([i[:-1, :-1], i[1:, :-1], i[1:, 1:], i[:-1, 1:]], -1).reshape(-1, 4)
    at = points / size
    return meshio.Mesh(
        points,
        [("quad", cells)],
        point_data={
            "T": 300 + (1 + k) * np.sin(at[:, 0] + 2 * at[:, 1]),
            "load": np.where(at[:, :1] == 0, [[1.0 + k, 0.5]], 0),
        },
        cell_data={
            "E": [np.where(np.arange(len(cells)) % 3, 1.0 + k, 9.0)],
            "speed": [np.full(len(cells), 20.0 + k)],
            "g": [np.full(len(cells), 9.81)],
        },
    )


def write(folder, meshes):
    """Write the meshes as case_00.vtu, case_01.vtu, …; or under their names."""
    folder.mkdir(exist_ok=True)
    if not isinstance(meshes, dict):
        meshes = {f"case_{k:02d}.vtu": mesh for k, mesh in enumerate(meshes)}
    for name, mesh in meshes.items():
        write_mesh(folder / name, mesh)
    return folder


@pytest.fixture
def sound(tmp_path):
    return write(tmp_path / "sound", [case(k) for k in range(6)])


def survey(folder, meshes) -> FolderReport:
    return survey_folder(write(folder / "data", meshes))


def table(report):
    return str(report).split("\n\n")[1].splitlines()


def section(report, title):
    (found,) = [p for p in str(report).split("\n\n") if p.startswith(f"{title}\n")] or [""]
    return [line.strip() for line in found.splitlines()[1:]]


def runs(report):
    """The command of the report, run as far as its data set."""
    program, *arguments = shlex.split(report.proposal.command)
    options = build_parser().parse_args(arguments)
    assert program == "opformer"
    return MeshDataset(
        options.data[0],
        inputs=options.inputs,
        outputs=options.outputs,
        parameters=options.parameters,
        weights=options.weights,
        progress=False,
    )


# --- a folder that is as it should be -------------------------------------------------------------


def test_a_sound_folder(sound):
    report = survey_folder(sound)
    assert [c.file for c in report.cases] == [f"case_{k:02d}.vtu" for k in range(6)]
    assert report.meshes == 1
    assert (report.differences, report.oddities, report.copies) == ([], [], [])
    assert (report.unreadable, report.messages) == ({}, [])
    assert report.verdict == "ready to fit"
    text = str(report)
    assert text.startswith(f"{sound}: 6 mesh files, one mesh for all\n")
    assert "dimension 2 of the cells, 3 of the points, axis z is flat" in text
    assert table(report)[0].split() == ["file", "points", "cells", "area"]
    assert table(report)[1:] == [f"case_{k:02d}.vtu  81      64     1" for k in range(6)]


def test_fields_over_all_files(sound):
    fields = {f.name: f for f in survey_folder(sound).fields}
    assert {name: f.kind for name, f in fields.items()} == {
        "T": "varying",
        "load": "boundary",
        "E": "label",
        "speed": "parameter",
        "g": "fixed",
    }
    speed, load = fields["speed"], fields["load"]
    assert (speed.minimum, speed.maximum, speed.files, speed.components) == (20, 25, 6, [1])
    assert (load.location, load.minimum, load.maximum, load.components) == ("points", 0, 6, [2])
    # The values 20, …, 25: the median deviation from the median 22.5 is 1.5.
    assert speed.variation == pytest.approx(1.5 / 22.5)


def test_the_command_runs(sound):
    report = survey_folder(sound)
    assert report.proposal.command == (
        f"opformer fit {sound} --inputs load E --outputs T --parameters speed --out run"
    )
    data = runs(report)
    assert len(data) == 6
    assert data.layout.part_inputs == ["load"]
    assert section(report, "to fit")[0] == report.proposal.command
    assert "g is left out: the same in all files." in section(report, "to fit")


def test_names_with_spaces_survive_the_shell(tmp_path):
    folder = write(tmp_path / "my data", [case(k) for k in range(2)])
    for path in folder.iterdir():
        mesh = meshio.read(path)
        mesh.point_data = {"wall shear": mesh.point_data["T"]}
        mesh.write(path)
    assert runs(survey_folder(folder)).layout.outputs == {"wall shear": 1}


def test_of_several_the_output_is_what_changes_most(tmp_path):
    """And the text says that this is a guess, and between what."""
    meshes = [case(k) for k in range(4)]
    for k, mesh in enumerate(meshes):
        x = mesh.points[:, 0]
        mesh.cell_data = {}
        mesh.point_data = {
            "a": 5 + (1 + 0.01 * k) * x,
            "b": (1 + k) * np.exp(x),
            "c": 7 + 0.1 * k * x,
        }
    report = survey(tmp_path, meshes)
    assert (report.proposal.outputs, report.proposal.inputs) == (["b"], ["a", "c"])
    text = "\n".join(section(report, "to fit"))
    assert "b stands under --outputs because it changes most" in text
    assert "Of a, b, c: put what you want to predict under --outputs" in text
    assert len(runs(report)) == 4


def test_geometry_alone_is_an_input(tmp_path):
    meshes = [case(k, size=1 + k) for k in range(2)]
    for mesh in meshes:
        mesh.cell_data = {}
        del mesh.point_data["load"]
    report = survey(tmp_path, meshes)
    assert "--inputs" not in report.proposal.command
    assert "--parameters" not in report.proposal.command
    assert runs(report).layout.outputs == {"T": 1}


def test_nothing_to_predict(tmp_path):
    meshes = [case(k) for k in range(2)]
    for mesh in meshes:
        mesh.point_data, mesh.cell_data = {}, {"speed": mesh.cell_data["speed"]}
    report = survey(tmp_path, meshes)
    assert report.proposal.command == ""
    assert report.verdict == "not ready: there is no field to predict"
    assert section(report, "to fit") == ["no command: there is no field to predict."]


def test_one_file_is_not_enough(tmp_path):
    assert "at least, one of them to validate" in survey(tmp_path, [case()]).verdict


# --- what differs ---------------------------------------------------------------------------------


def test_a_missing_field(tmp_path):
    meshes = [case(k) for k in range(5)]
    del meshes[3].point_data["load"]
    report = survey(tmp_path, meshes)
    assert report.differences == [
        "field load: at points in 4 files, missing in 1 (first case_03.vtu)"
    ]
    assert report.proposal.set_aside == {
        "case_03.vtu": "field load is missing, NaN or of another shape"
    }
    assert report.verdict == "not ready: 1 file to mend or move away (see 'to fit')"
    with pytest.raises(MeshError, match=r"case_03\.vtu"):
        runs(report)
    (tmp_path / "data" / "case_03.vtu").unlink()
    assert len(runs(report)) == 4, "the command runs once the file is away"


def test_components_and_location(tmp_path):
    meshes = [case(k) for k in range(5)]
    meshes[1].point_data["load"] = np.c_[meshes[1].point_data["load"], np.zeros(81)]
    meshes[2].point_data["speed"] = np.full(81, 22.0)
    del meshes[2].cell_data["speed"]
    report = survey(tmp_path, meshes)
    assert report.differences == [
        "field speed: at cells in 4 files, at points in 1 (first case_02.vtu)",
        "field load: 2 component(s) in 4 files, 3 component(s) in 1 (first case_01.vtu)",
    ]
    (load,) = [f for f in report.fields if f.name == "load"]
    assert (load.components, load.bad_files) == ([2, 3], ["case_01.vtu"])
    assert [*report.proposal.set_aside] == ["case_01.vtu"], "a field may be at another location"
    (tmp_path / "data" / "case_01.vtu").unlink()
    assert runs(report).layout.parameters == {"speed": 1}


def test_cells_dimensions_and_flat_axes(tmp_path):
    meshes = [case(k) for k in range(6)]
    quads = meshes[1].cells[0].data
    triangles = np.concatenate([quads[:, [0, 1, 2]], quads[:, [0, 2, 3]]])
    meshes[1] = meshio.Mesh(meshes[1].points, [("triangle", triangles)], meshes[1].point_data)
    meshes[2].points = meshes[2].points[:, :2]
    meshes[3].points[:, 2] = meshes[3].points[:, 0]
    line = np.stack([np.arange(80), np.arange(1, 81)], 1)
    meshes[4] = meshio.Mesh(meshes[4].points, [("line", line)], meshes[4].point_data)
    write(tmp_path / "data", {f"{k}.vtk": mesh for k, mesh in enumerate(meshes)})
    # VTK and VTU have three coordinates, always.
    meshio.write(tmp_path / "data" / "2.xdmf", meshes[2], data_format="XML")
    (tmp_path / "data" / "2.vtk").unlink()
    report = survey_folder(tmp_path / "data")
    found = {line.split(":")[0]: line for line in report.differences}
    assert found["coordinates"] == "coordinates: 3 in 5 files, 2 in 1 (first 2.xdmf)"
    assert found["dimension of the cells"].endswith("2 in 5 files, 1 in 1 (first 4.vtk)")
    assert found["cell types"] == (
        "cell types: quad in 4 files, triangle in 1 (first 1.vtk), line in 1 (first 4.vtk)"
    )
    assert found["flat axes"] == "flat axes: z in 4 files, none in 2 (first 2.xdmf)"
    assert report.proposal.set_aside["2.xdmf"] == "2 coordinates, most files have 3"


def test_a_closed_surface_among_others_and_a_parameter_that_varies(tmp_path):
    closed = meshio.read(Path(__file__).parents[1] / "meshes" / "sphere.vtu")
    closed.point_data, closed.cell_data = {"speed": np.arange(66.0)}, {}
    open_ = [case(k) for k in range(3)]
    for mesh in open_:
        mesh.point_data, mesh.cell_data = {"speed": np.full(81, 20.0)}, {}
    lines = survey(tmp_path, [*open_, closed]).differences
    assert "boundary: some in 3 files, none in 1 (first case_03.vtu)" in lines
    assert "field speed: constant in 3 files, varying in 1 (first case_03.vtu)" in lines


# --- what is odd ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("factor", "hint"), [(1000, True), (1e-3, True), (40, False)])
def test_a_file_in_another_unit(tmp_path, factor, hint):
    report = survey(tmp_path, [case(k, size=factor if k == 2 else 1) for k in range(6)])
    times = f"{factor} times" if factor > 1 else "1/1000 of"
    text = f"extent in case_02.vtu is {factor:.4g}, {times} the median 1"
    (line,) = [line for line in report.oddities if line.startswith("extent")]
    assert line == text + ("; is one in mm, the other in m?" if hint else "")
    assert not [line for line in report.oddities if line.startswith("measure")], "said once"
    assert report.verdict.startswith("ready to fit; have a look: ")


def test_twenty_times_larger_is_no_other_unit(tmp_path):
    report = survey(tmp_path, [case(k, size=20 if k == 2 else 1) for k in range(6)])
    assert not [line for line in report.oddities if "times the median" in line]
    assert [line for line in report.oddities if line.startswith("measure in case_02.vtu is 400")]


def test_a_field_in_another_unit(tmp_path):
    meshes = [case(k) for k in range(6)]
    meshes[4].point_data["T"] *= 1000
    (line,) = survey(tmp_path, meshes).oddities
    assert line.startswith("rms of field T in case_04.vtu is 3.0")
    assert line.endswith("; another unit, kilo or milli?")


def test_an_outlier_in_one_file(tmp_path):
    meshes = [case(k) for k in range(6)]
    meshes[1].point_data["T"][40] = 1500
    (line,) = survey(tmp_path, meshes).oddities
    # Largest values 300 + (1 + k) s with s = max sin = 0.9975…, but 1500 in file 1.
    s = np.sin(np.add.outer(np.linspace(0, 1, 9), 2 * np.linspace(0, 1, 9))).max()
    x = np.array([300 + (1 + k) * s for k in range(6)])
    x[1] = 1500
    median = np.median(x)
    z = (1500 - median) / (1.4826 * np.median(np.abs(x - median)))
    assert line == (
        f"largest |T| in case_01.vtu is 1500, far from the median {median:.4g} "
        f"(robust z-score {z:.2g})"
    )


def test_two_groups_are_no_outliers(tmp_path):
    """Three files of ten at twice the value: a parameter, not a mistake; one of ten is named."""
    meshes = [case(0) for _ in range(10)]
    for mesh in meshes[:3]:
        mesh.cell_data["speed"][0][:] = 40.0
    assert not survey(tmp_path, meshes).oddities
    (line,) = survey(tmp_path / "data", [meshes[0], *meshes[3:], meshes[3]]).oddities
    assert line == (
        "largest |speed| in case_00.vtu is 40, far from the median 20 (robust z-score 1e+03)"
    )


def test_round_off_is_neither_a_copy_nor_an_extreme(tmp_path):
    report = survey(tmp_path, [case(0, size=size) for size in (1, 1 + 1e-10)])
    assert (report.copies, report.meshes) == ([], 2)
    assert "least area" not in str(report)


def test_nan_in_some_files(tmp_path):
    meshes = [case(k) for k in range(5)]
    meshes[1].point_data["T"][[7, 9]] = np.nan
    meshes[3].point_data["T"][0] = np.inf
    report = survey(tmp_path, meshes)
    (line,) = report.oddities
    first = "field T is NaN or infinite at 2 of the points of case_01.vtu (first 7)"
    assert line == f"{first}, and in 1 more files"
    assert [*report.proposal.set_aside] == ["case_01.vtu", "case_03.vtu"]


def test_a_field_that_is_bad_in_most_files_is_left_out(tmp_path):
    meshes = [case(k) for k in range(4)]
    for mesh in meshes[:2]:
        mesh.cell_data["E"][0][5] = np.nan
    report = survey(tmp_path, meshes)
    assert not report.proposal.set_aside
    assert report.proposal.left_out["E"] == (
        "missing, not a number or of another shape in 2 of 4 files"
    )
    assert "E" not in runs(report).layout.inputs


def test_zero_in_some_files_and_remarks_of_single_files(tmp_path):
    meshes = [case(k) for k in range(8)]
    meshes[2].point_data["T"] *= 0
    for mesh in meshes[1:]:
        mesh.points = np.concatenate([mesh.points, [[0.5, 0.5, 0]]])
        mesh.point_data = {
            name: np.append(f, f[-1:], axis=0) for name, f in mesh.point_data.items()
        }
    lines = survey(tmp_path, meshes).oddities
    assert "field T is zero everywhere in case_02.vtu" in lines
    own = [line for line in lines if "points in no cell" in line]
    assert own[0] == "case_01.vtu: 1 points in no cell (first 81), 1 duplicate points (first 81)"
    assert len(own) == 5
    assert lines[-1] == "… 2 more files with remarks of their own"


# --- files ----------------------------------------------------------------------------------------


def test_copies(tmp_path):
    meshes = [case(k) for k in range(4)]
    folder = write(tmp_path / "data", {f"{k}.vtu": mesh for k, mesh in enumerate(meshes)})
    shutil.copy(folder / "1.vtu", folder / "a.vtu")
    meshio.vtu.write(folder / "b.vtu", meshes[2], compression=None)
    report = survey_folder(folder)
    assert report.copies == [
        "1.vtu, a.vtu hold the same mesh and fields, byte for byte",
        "2.vtu, b.vtu hold the same mesh and fields",
    ]
    assert report.meshes == 1
    assert "2 under 'copies'" in report.verdict


def test_each_file_has_a_mesh_of_its_own(tmp_path):
    report = survey(tmp_path, [case(k, size=1 + k / 10) for k in range(3)])
    assert "3 mesh files, each with a mesh of its own" in str(report)
    two = survey(tmp_path / "data", [case(0), case(1), case(2, size=2)])
    assert "3 mesh files, 2 different meshes" in str(two)


def test_files_that_cannot_be_read(sound):
    (sound / "case_02.vtu").write_text("<VTKFile")
    (sound / "notes.txt").write_text("not a mesh")
    report = survey_folder(sound)
    assert len(report.cases) == 5
    assert [*report.unreadable] == ["case_02.vtu"]
    (line,) = section(report, "cannot be read")
    assert line.startswith("case_02.vtu: cannot be read as vtu")
    assert "5 mesh files, one mesh for all; 1 cannot be read" in str(report)
    assert report.verdict.startswith("not ready: 1 file to mend or move away")
    assert [*report.proposal.set_aside] == ["case_02.vtu"]


def test_no_file_can_be_read(tmp_path):
    (tmp_path / "a.vtu").write_text("<VTKFile")
    report = survey_folder(tmp_path)
    assert not report.cases
    assert report.verdict.startswith("not ready: 1 file to mend")
    assert "a.vtu: cannot be read" in str(report)


def test_cells_without_measure(tmp_path):
    meshes = [case(k) for k in range(3)]
    meshes[1].points[:, 1] = 0
    report = survey(tmp_path, meshes)
    assert report.proposal.set_aside["case_01.vtu"] == "the cells have no measure"


def test_what_is_said_while_reading_is_kept(sound, monkeypatch):
    def talking(path, step):
        warnings.warn(f"{path}: a field was skipped", stacklevel=1)
        return meshio.read(path)

    monkeypatch.setattr("opformer.mesh.survey.read_mesh", talking)
    report = survey_folder(sound)
    assert report.messages[0] == "case_00.vtu: a field was skipped"
    assert section(report, "messages") == report.messages


def test_wrong_folders(tmp_path, sound):
    with pytest.raises(MeshError, match="no such folder"):
        survey_folder(tmp_path / "nowhere")
    with pytest.raises(MeshError, match="no mesh files in this folder, but in its folders sound"):
        survey_folder(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(MeshError, match=r"no mesh files in this folder$"):
        survey_folder(tmp_path / "empty")


def test_the_table_of_many_files_is_short(tmp_path):
    """First four, last three, and the extremes where they stand."""
    meshes = [case(0, n=3) for _ in range(40)]
    meshes[10], meshes[20] = case(0, n=5), case(0, n=2)
    meshes[30] = case(0, n=3, size=2)
    rows = table(survey(tmp_path, meshes))
    assert [row.split()[0] for row in rows] == [
        "file", *(f"case_{k:02d}.vtu" for k in range(4)), "…", "case_10.vtu", "…", "case_20.vtu",
        "…", "case_30.vtu", "…", *(f"case_{k}.vtu" for k in (37, 38, 39)),
    ]  # fmt: skip
    marked = {row.split()[0]: row.split("  ")[-1].strip() for row in rows if "st " in row}
    assert marked == {
        "case_00.vtu": "least area",
        "case_10.vtu": "most points",
        "case_20.vtu": "least points",
        "case_30.vtu": "most area",
    }
    assert [row for row in rows if row.startswith("…")] == [
        "… 6 more",
        *["… 9 more"] * 2,
        "… 6 more",
    ]


def test_the_time_is_a_column(sound, monkeypatch):
    def timed(path, step):
        mesh = meshio.read(path)
        k = int(path.stem[-2:])
        mesh.field_data = {"TimeValue": np.array([0.25 * k])} if k else {}
        return mesh

    monkeypatch.setattr("opformer.mesh.survey.read_mesh", timed)
    report = survey_folder(sound)
    assert table(report)[0].split() == ["file", "points", "cells", "area", "time"]
    assert [row.split()[4:] for row in table(report)[1:4]] == [[], ["0.25"], ["0.5"]]
    assert report.differences == ["time: given in 5 files, none in 1 (first case_00.vtu)"]


def test_one_mesh_in_memory_at_a_time(sound, monkeypatch):
    import gc
    import weakref

    alive: list[weakref.ref] = []

    def counted(path, step):
        gc.collect()
        assert not [mesh for mesh in alive if mesh() is not None]
        mesh = meshio.read(path)
        alive.append(weakref.ref(mesh))
        return mesh

    monkeypatch.setattr("opformer.mesh.survey.read_mesh", counted)
    survey_folder(sound)
    assert len(alive) == 6


def test_the_bar_is_for_those_who_ask(sound, capsys):
    survey_folder(sound)
    assert capsys.readouterr().err == ""
    survey_folder(sound, progress=True)
    assert "inspecting" in capsys.readouterr().err


def test_as_plain_data(sound):
    path = sound / "case_01.vtu"
    mesh = meshio.read(path)
    mesh.point_data["T"][:] = np.nan
    mesh.write(path)
    report = survey_folder(sound)
    data = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert data["verdict"] == report.verdict
    assert data["proposal"]["command"] == report.proposal.command
    assert data["cases"][1]["report"]["fields"][0]["maximum"] is None
    assert data["cases"][0]["report"]["verdict"] == "ready to fit"
    assert math.isclose(data["fields"][0]["minimum"], 300)


@pytest.fixture
def series(tmp_path):
    """A series of three steps in XDMF; the first has no pressure yet."""
    path, mesh = tmp_path / "steps" / "a.xdmf", case()
    path.parent.mkdir()
    with meshio.xdmf.TimeSeriesWriter(path, data_format="XML") as writer:
        writer.write_points_cells(mesh.points, mesh.cells)
        for k, time in enumerate([0, 0.5, 2]):
            data = {"T": (1 + k) * mesh.point_data["T"], "p": mesh.points[:, 0] + k}
            writer.write_data(time, point_data={name: data[name] for name in (["T", "p"][: 1 + k])})
    return path


def test_the_steps_of_a_series_are_cases(series):
    report = inspect_path(series)
    assert [(c.file, c.report.time) for c in report.cases] == [
        ("a.xdmf step 0", 0),
        ("a.xdmf step 1", 0.5),
        ("a.xdmf step 2", 2),
    ]
    assert [row.split()[-1] for row in table(report)] == ["time", "0", "0.5", "2"]
    assert report.differences == [
        "field p: at points in 2 files, missing in 1 (first a.xdmf step 0)"
    ]
    assert report.proposal.set_aside == {
        "a.xdmf step 0": "field p is missing, NaN or of another shape"
    }


def test_a_series_among_files(series, tmp_path):
    write(series.parent, [case(k) for k in range(2)])
    report = survey_folder(series.parent)
    assert [c.step for c in report.cases] == [0, 1, 2, None, None]
    assert "time: given in 3 files, none in 2 (first case_00.vtu)" in report.differences


def test_what_a_list_of_files_refers_to_is_no_case_of_its_own(sound):
    entries = "".join(f'<DataSet timestep="{k}" file="case_0{k}.vtu"/>' for k in range(3))
    (sound / "all.pvd").write_text(
        f'<VTKFile type="Collection"><Collection>{entries}</Collection></VTKFile>'
    )
    files = [c.file for c in survey_folder(sound).cases]
    assert files == [f"all.pvd step {k}" for k in range(3)] + [f"case_0{k}.vtu" for k in (3, 4, 5)]


def test_a_path_is_a_file_or_a_folder(sound):
    assert isinstance(inspect_path(sound), FolderReport)
    one = inspect_path(str(sound / "case_03.vtu"))
    assert isinstance(one, MeshReport)
    assert str(one) == str(inspect_mesh(sound / "case_03.vtu"))
    with pytest.raises(MeshError, match="there is no such file"):
        inspect_path(sound / "no.vtu")


# --- real folders ---------------------------------------------------------------------------------

REAL = {
    "airfoil/train_coarse": "--inputs U nut wall_distance --outputs p --parameters U_inf",
    "elastic_block/train": "--inputs traction young --outputs u",
    "holed_poisson/train": "--outputs u",
}


@needs_data
@pytest.mark.parametrize("folder", REAL)
def test_real_folders(folder, tmp_path):
    """Ready, nothing odd, and the command runs."""
    for path in sorted((DATA / folder).iterdir())[:10]:
        shutil.copy(path, tmp_path)
    report = survey_folder(tmp_path)
    assert (report.differences, report.oddities, report.copies) == ([], [], [])
    assert report.verdict == "ready to fit"
    assert report.proposal.command == f"opformer fit {tmp_path} {REAL[folder]} --out run"
    assert report.meshes == (1 if folder.startswith("elastic") else 10)
    assert len(runs(report)) == 10


@needs_data
def test_a_folder_of_folders():
    with pytest.raises(MeshError, match="in its folders test_coarse, test_fine, train_coarse"):
        inspect_path(DATA / "airfoil")


def test_a_path_that_is_not_there(tmp_path):
    with pytest.raises(MeshError, match="plates: no such file or folder"):
        inspect_path(tmp_path / "plates")


# ---- what the proposal knows beyond the fields


def test_parts_are_listed_and_no_fields_of_a_fit(tmp_path):
    for k in range(3):
        mesh = case(k)
        edge = np.flatnonzero(mesh.points[:, 0] == 0)[: 5 + k]
        lines = np.c_[edge[:-1], edge[1:]]
        cells = mesh.cells[0].data
        marks = {"wall": [np.zeros(len(cells), int), np.ones(len(lines), int)]}
        more = {name: [parts[0], np.zeros(len(lines))] for name, parts in mesh.cell_data.items()}
        meshio.Mesh(
            mesh.points,
            [("quad", cells), ("line", lines)],
            point_data=mesh.point_data,
            cell_data={**more, **marks},
        ).write(tmp_path / f"{k}.vtu")
    report = survey_folder(tmp_path)
    assert section(report, "parts") == ["wall: length 0.5 to 0.75, in all files; see --parts"]
    assert report.proposal.left_out["wall"] == "it marks a part"
    assert report.cases[2].report.parts == {"wall": (1, pytest.approx(0.75))}
    data = MeshDataset(tmp_path, outputs=["T"], parts=["wall"], progress=False)
    assert int(data[0].on_parts.sum()) == 5


def test_a_field_that_is_the_same_in_all_files_is_left_out(tmp_path):
    meshes = [case(k) for k in range(3)]
    for mesh in meshes:
        mesh.point_data["same"] = np.sin(mesh.points[:, 0])
    report = survey(tmp_path, meshes)
    assert report.proposal.left_out["same"] == "the same in all files"
    assert "same" not in report.proposal.inputs


def test_columns_of_a_table_are_parameters(tmp_path):
    folder = write(tmp_path / "data", [case(k) for k in range(3)])
    names = sorted(path.name for path in folder.iterdir())
    rows = "".join(f"{name},{k},wide\n" for k, name in enumerate(names))
    (folder / "cases.csv").write_text("file,angle,kind\n" + rows)
    report = survey_folder(folder)
    assert report.proposal.parameters[-1] == "angle"
    assert "angle" in runs(report).layout.parameters
    (folder / "cases.csv").write_text("name,angle\n")
    assert any("not a table of parameters" in text for text in survey_folder(folder).messages)


def test_a_series_is_proposed_with_its_first_step_and_time(tmp_path):
    for name in ("a", "b"):
        steps = [case(k) for k in range(3)]
        for k, mesh in enumerate(steps):
            mesh.point_data = {"T": np.exp(mesh.points[:, 0] * (k + 1))}
            mesh.cell_data = {}
        write_series(tmp_path / f"{name}.pvd", steps, [0.0, 0.5, 1.0])
    report = survey_folder(tmp_path)
    assert "first:T --outputs T --parameters time" in report.proposal.command
    assert report.verdict.startswith("ready to fit")
    assert "--trajectory" in str(report)
    data = runs(report)
    assert (len(data), data.layout.inputs) == (6, {"first:T": 1})
    alone = inspect_path(tmp_path / "a.pvd")
    assert alone.verdict.startswith("ready to fit")


@pytest.mark.parametrize("own", [True, False])
def test_points_without_cells_are_proposed_with_a_rule(tmp_path, own):
    for k in range(3):
        x = np.random.default_rng(k).random((40, 2))
        more = {"weights": np.random.default_rng(k).random(40)} if own else {}
        np.savez(tmp_path / f"{k}.npz", points=x, f=x[:, 0], g=(k + 1) * x[:, 0] ** 2, **more)
    report = survey_folder(tmp_path)
    assert ("--weights voronoi" in report.proposal.command) != own
    assert ("knn:2" in str(report)) != own
    data = runs(report)
    assert data.layout.outputs == {"g": 1}
    assert "weights" not in data.layout.inputs


def test_a_closed_surface_of_points_is_proposed_with_its_dimension(tmp_path):
    for k in range(2):
        x = np.random.default_rng(k).normal(size=(200, 3))
        x /= np.linalg.norm(x, axis=1)[:, None]
        np.savez(tmp_path / f"{k}.npz", points=x, g=(k + 1) * x[:, 0])
    report = survey_folder(tmp_path)
    assert "--weights knn:2" in report.proposal.command
    total = runs(report)[0].source.total
    assert float(total) == pytest.approx(4 * np.pi, rel=0.15)  # of 200 random points


def test_polyhedra_of_several_forms_are_told_apart(tmp_path):
    """Cells of which each has another number of faces: their digest is that of their arrays."""
    pytest.importorskip("pyvista")
    tetra = [[0, 2, 1], [0, 1, 3], [1, 2, 3], [2, 0, 3]]
    wedge = [[0, 2, 1], [3, 4, 5], [0, 1, 4, 3], [1, 2, 5, 4], [2, 0, 3, 5]]
    points = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 0, 1], [0, 1, 1.0]])
    for k, faces in enumerate((tetra, wedge)):
        used = points[: 4 if k == 0 else 6]
        mesh = meshio.Mesh(used, [("polyhedron", [faces])], point_data={"T": used[:, 0] + k})
        write_mesh(tmp_path / f"{k}.vtu", mesh)
    report = survey_folder(tmp_path)
    assert (report.unreadable, report.meshes, len(report.cases)) == ({}, 2, 2)


def test_numbers_of_the_files_are_shown_and_proposed(tmp_path):
    for k in range(3):
        x = np.random.default_rng(k).random((40, 2))
        cells = Delaunay(x).simplices
        arrays = {"points": x, "cells_triangle": cells, "f": (k + 1) * x[:, 0]}
        arrays |= {"parameter_Re": 100.0 * k, "parameter_g": 9.81, "parameter_U": [1.0, k]}
        np.savez(tmp_path / f"{k}.npz", **arrays)
    report = survey_folder(tmp_path)
    assert report.proposal.parameters == ["Re", "U"]  # g is the same everywhere
    assert runs(report).layout.parameters == {"Re": 1, "U": 2}
    assert "number      Re = 200: see --parameters" in str(report.cases[2].report)


def test_names_that_differ_by_a_number_may_be_steps(tmp_path):
    folder = write(tmp_path / "data", [case(k) for k in range(3)])
    assert "--numbered" in str(survey_folder(folder))
    write_mesh(folder / "case_99.vtu", case(1, n=7))
    assert "--numbered" not in str(survey_folder(folder))
