"""Parameters from a table, and given by hand: which is taken, and what is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from cases import tiny_model, write_folder, write_square

from opformer import MeshDataset, MeshError, evaluate, fit, read_mesh
from opformer.cli import main

LOADS = {"case_00.vtu": {"load": 1.5}, "case_01": {"load": "-2e0"}, "case_02.vtu": {"load": 3}}


@pytest.fixture
def folder(tmp_path):
    return write_folder(tmp_path / "data", cases=3)


def dataset(files, **options):
    defaults = {"outputs": ["g"], "parameters": ["load"], "progress": False}
    return MeshDataset(files, **(defaults | options))


def write_csv(path, *lines):
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def write_json(path, rows=LOADS):
    path.write_text(json.dumps(rows), encoding="utf-8")
    return path


def loads(data):
    return [sample.parameters.tolist() for sample in data]


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("where", ["beside", "elsewhere"])
@pytest.mark.parametrize("kind", ["csv", "json"])
def test_a_table(folder, tmp_path, kind, where, cached):
    path = (folder if where == "beside" else tmp_path) / f"cases.{kind}"
    if kind == "csv":
        write_csv(path, "file, load,comment", "case_02,3,c", "case_00.vtu, 1.5 ,a", "case_01,-2,b")
    else:
        write_json(path)
    table = {} if where == "beside" else {"parameters_file": path}
    data = dataset(folder, cache=cached, **table)
    assert data.layout.parameters == {"load": 1}
    assert loads(data) == [[1.5], [-2.0], [3.0]]
    assert loads(MeshDataset.from_layout(folder, data.layout, cache=cached, **table)) == loads(data)


def test_what_the_file_holds_comes_first(folder):
    write_csv(folder / "cases.csv", "file,speed,load", *(f"case_0{i},99,{i}" for i in range(3)))
    data = dataset(folder, parameters=["load", "speed"])
    assert [load for load, _ in loads(data)] == [0, 1, 2]
    assert [speed for _, speed in loads(data)] == pytest.approx([1, 4 / 3, 5 / 3])


def test_each_folder_has_its_own(folder, tmp_path):
    other = write_folder(tmp_path / "other", cases=1)
    write_json(folder / "cases.json")
    write_json(other / "cases.json", {"case_00": {"load": 7}})
    assert loads(dataset([folder, other])) == [[1.5], [-2.0], [3.0], [7.0]]
    with pytest.raises(
        MeshError, match=r"2 files are called case_00\.vtu; put a cases\.csv beside"
    ):
        dataset([folder, other], parameters_file=folder / "cases.json")


def test_a_table_that_is_not_needed_is_not_read(folder):
    (folder / "cases.csv").write_text("these are my cases\n")
    assert len(dataset(folder, parameters=["speed"])) == 3


TABLES = {
    "no row": (["file,load", "case_00,1", "case_01,2"], r"no row 'case_02\.vtu', for .*'load'"),
    "no column": (["file,a,b", "case_00,1,2"], r"row 'case_00\.vtu' has no column 'load'; .* a, b"),
    "text": (["file,load", "case_00,fast"], r"row 'case_00\.vtu', column 'load': .* got 'fast'"),
    "empty": (["file,load", "case_00,"], r"row 'case_00\.vtu', column 'load': .* got ''"),
    "infinite": (["file,load", "case_00,inf"], r"column 'load': expected a number, got 'inf'"),
    "short": (["file,load", "case_00"], "row 'case_00' has 1 of 2 columns"),
    "twice": (["file,load", "case_00,1", "case_00,2"], "row 'case_00' is there twice"),
    "columns": (["file,load,load", "case_00,1,2"], "a column is there twice"),
    "header": (["file;load", "case_00;1"], r"first column must be .* \['file;load'\]"),
    "nothing": ([], "first column must be called 'file' or 'case'"),
}


@pytest.mark.parametrize("case", TABLES)
def test_refused(folder, case):
    lines, message = TABLES[case]
    write_csv(folder / "cases.csv", *lines)
    with pytest.raises(MeshError, match=rf"cases\.csv: .*{message}"):
        dataset(folder)


@pytest.mark.parametrize("text", ["[1, 2]", '{"case_00": 1}', "{", ""])
def test_json_that_is_no_table(folder, text):
    (folder / "cases.json").write_text(text)
    with pytest.raises(MeshError, match=r"cases\.json: not a table of parameters"):
        dataset(folder)


def test_a_json_entry_that_is_no_number(folder):
    write_json(folder / "cases.json", {"case_00": {"load": [1, 2]}})
    with pytest.raises(MeshError, match=r"column 'load': expected a number, got \[1, 2\]"):
        dataset(folder)


def test_a_given_table_must_be_there(folder, tmp_path):
    for names in (["load"], ["speed"]):
        with pytest.raises(MeshError, match=r"no\.csv: not a table of parameters"):
            dataset(folder, parameters=names, parameters_file=tmp_path / "no.csv")
    with pytest.raises(MeshError, match=r"e\.csv: the table has no rows"):
        dataset(folder, parameters_file=write_csv(tmp_path / "e.csv", "file,load"))


def test_no_table(folder):
    with pytest.raises(MeshError, match=r"no field 'load'; .*numbers of the file or a table: "):
        dataset(folder)


# ---- given for a prediction


@pytest.fixture
def surrogate(folder):
    write_json(folder / "cases.json")
    data = dataset(folder, parameters=["load", "speed"])
    model = tiny_model(2, data.in_channels, 1, parameter_channels=2)
    return fit(model, data, validation=0.4, epochs=1, progress=False)


def predicted(surrogate, path, **options):
    return torch.from_numpy(surrogate.predict(path, **options).point_data["g_predicted"])


def test_values_given_for_a_prediction(surrogate, folder):
    """The given values give what the table gives; others give something else."""
    path = folder / "case_01.vtu"
    sample = MeshDataset.from_layout(folder, surrogate.layout, progress=False)[1]
    expected = surrogate(sample)[: sample.size].detach()
    got = predicted(surrogate, path, parameters={"load": -2.0})
    assert got.equal(expected)
    assert not got.equal(predicted(surrogate, path, parameters={"load": -1.0}))
    faster = predicted(surrogate, path, parameters={"load": -2.0, "speed": [2.0]})
    assert not got.equal(faster), "a given value overrides that of the mesh"
    write_square(folder.parent / "faster.vtu", 4 / 3, 5, 2, speed=np.full(36, 2.0))
    assert faster.equal(predicted(surrogate, folder.parent / "faster.vtu", parameters={"load": -2}))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "there is no field 'load'"),
        ({"load": 1, "laod": 2}, r"unknown parameters \['laod'\]; the surrogate has load, speed"),
        ({"load": [1, 2]}, r"parameter 'load' must have 1 component\(s\), got 2"),
        ({"load": float("nan")}, r"parameter 'load' must be finite, got \[nan\]"),
    ],
)
def test_values_that_do_not_fit(surrogate, folder, given, message):
    with pytest.raises(ValueError, match=message):
        surrogate.predict(folder / "case_00.vtu", parameters=given)


def test_evaluation_finds_the_table_of_its_folder(surrogate, folder):
    assert len(evaluate(surrogate, folder, progress=False).cases) == 3
    (folder / "cases.json").unlink()
    with pytest.raises(MeshError, match="no field 'load'"):
        evaluate(surrogate, folder, progress=False)


def test_the_command_line(folder, tmp_path, capsys):
    table = write_json(tmp_path / "loads.json")
    small = ["--epochs", "1", "--channels", "8", "--heads", "2", "--layers", "1"]
    run, case = str(tmp_path / "run"), str(folder / "case_00.vtu")
    status = main(
        ["fit", str(folder), "--outputs", "g", "--parameters", "load", "--out", run, *small,
         "--parameters-file", str(table), "--validation", "0.4"]
    )  # fmt: skip
    assert status == 0
    out = tmp_path / "out.vtu"
    assert main(["predict", run, case, "-o", str(out), "--parameter", "load=2"]) == 0
    assert "g_predicted" in read_mesh(out).point_data
    capsys.readouterr()
    assert main(["predict", run, case, "-o", str(out), "--overwrite"]) == 2
    assert "there is no field 'load'" in capsys.readouterr().err
    for text in ("load", "load=", "load=fast", "load=1,"):
        with pytest.raises(SystemExit):
            main(["predict", run, case, "-o", str(out), "--parameter", text])
        assert "must be NAME=NUMBER" in capsys.readouterr().err
