"""The command, end to end; what is wrong on the user's side is one line and status 2."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from cases import write_folder, write_square

from opformer import _prediction, cli, load, plotting, read_mesh
from opformer.cli import main

MESHES = Path(__file__).parents[1] / "meshes"
FIT = ["--inputs", "f", "--outputs", "g", "--epochs", "2", "--channels", "8", "--heads", "2"]


@pytest.fixture(autouse=True)
def _float32():
    """As on the command line."""
    torch.set_default_dtype(torch.float32)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with data, finer data, and a run."""
    place = tmp_path_factory.mktemp("cli")
    write_folder(place / "data", cases=6)
    write_folder(place / "fine", cases=2, n=(9,))
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    assert main(["fit", f"{place}/data", *FIT, "--layers", "1", "--out", f"{place}/run"]) == 0
    torch.set_default_dtype(default)
    return place


@pytest.fixture
def run(capsys):
    """Run a command: its status, the lines of its output and of its errors."""

    def run(*arguments):
        capsys.readouterr()
        status = main([str(a) for a in arguments])
        out, err = capsys.readouterr()
        return status, out.splitlines(), err.splitlines()

    return run


# ---- the four commands


def test_fit(place, run, tmp_path):
    status, out, err = run(
        "fit", place / "data", *FIT, "--layers", 1, "--parameters", "speed", "--seed", 3,
        "--batch-size", 2, "--samples-per-mesh", 20, "--validation", place / "fine",
        "--out", tmp_path / "new" / "run",
    )  # fmt: skip
    assert (status, err) == (0, [])
    assert out[:2] == [
        "6 cases, 25 points in the first, 2 coordinates",
        "note: axis z is flat in all 6 files and is left out",
    ]
    with open(tmp_path / "new" / "run" / "history.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert out[2:4] == [
        "  ".join(f"{name} {float(value):.4g}" for name, value in row.items()) for row in rows
    ]
    assert [line.split()[:2] for line in out[2:4]] == [["epoch", "1"], ["epoch", "2"]]
    assert out[4].startswith("best validation error 0.")
    assert out[4].endswith(" of 2")
    assert out[5:] == [f"wrote best.pt, last.pt and history.* to {tmp_path / 'new' / 'run'}"]
    files = {f.name for f in (tmp_path / "new" / "run").iterdir()}
    assert files == {"best.pt", "last.pt", "history.csv", "history.png"}
    surrogate = load(tmp_path / "new" / "run")
    assert surrogate.layout.parameters == {"speed": 1}
    assert (surrogate.model.channels, surrogate.model.heads, surrogate.model.layers) == (8, 2, 1)
    assert surrogate.layout.parts
    assert surrogate.model.in_channels == 2


def test_fit_with_files_at_cells_and_the_boundary_off(place, run, tmp_path):
    files = sorted((place / "data").iterdir())[:3]
    status, out, err = run(
        "fit", *files, *FIT, "--layers", 1, "--at", "cells", "--no-boundary", "--validation", 0.4,
        "--out", tmp_path,
    )  # fmt: skip
    assert (status, err) == (0, [])
    assert out[0].startswith("3 cases, 32 cells in the first")
    assert "note: field 'g' is moved to the cells by the measure" in out
    surrogate = load(tmp_path)
    assert surrogate.layout.at == "cells"
    assert not surrogate.layout.parts
    assert surrogate.model.in_channels == 1


def test_a_run_is_not_overwritten_in_silence(place, run, tmp_path):
    """Known before the data are read; with --overwrite it is replaced."""
    fit = ["fit", place / "data", *FIT, "--layers", 1, "--out", tmp_path]
    assert run(*fit)[0] == 0
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for arguments in (fit, ["fit", tmp_path / "nowhere", *FIT, "--out", tmp_path]):
        assert run(*arguments) == (
            2,
            [],
            [
                f"opformer fit: {tmp_path} holds a run already: "
                "--resume goes on with it, --overwrite replaces it"
            ],
        )
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    status, _, err = run(*fit, "--overwrite", "--seed", 5)
    assert (status, err) == (0, [])
    assert (tmp_path / "best.pt").read_bytes() != before["best.pt"]


@pytest.mark.parametrize("name", ["last.pt", "best.pt"])
def test_a_part_of_a_run_counts_as_one(place, run, tmp_path, name):
    (tmp_path / name).write_bytes(b"")
    assert run("fit", place / "data", *FIT, "--out", tmp_path)[0] == 2
    assert (tmp_path / name).read_bytes() == b""


def test_resume(place, run, tmp_path, monkeypatch):
    """An interrupted run ends like one that is not; then there is nothing more to do."""
    fit = ["fit", place / "data", *FIT, "--layers", 1, "--samples-per-mesh", 20, "--out"]
    whole = run(*fit, tmp_path / "whole")[1]

    def interrupt(row):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(cli, "_print_epoch", interrupt)
        assert run(*fit, tmp_path / "parts")[0] == 130
    status, out, err = run(*fit, tmp_path / "parts", "--resume")
    assert (status, err) == (0, [])
    epochs = [line for line in out if line.startswith("epoch")]
    assert [line.split()[:2] for line in epochs] == [["epoch", "2"]]
    assert out[-2] == whole[-2]
    a, b = (load(tmp_path / name / "last.pt").state_dict() for name in ("whole", "parts"))
    assert all(torch.equal(a[name], b[name]) for name in a)
    status, out, err = run(*fit, tmp_path / "parts", "--resume")
    assert (status, err) == (0, [])
    assert not [line for line in out if line.startswith("epoch")]
    assert out[-2] == whole[-2]


def test_what_cannot_be_resumed(place, run, tmp_path):
    """Nothing there: known before the data are read. Other options: named."""
    status, out, err = run("fit", tmp_path / "nowhere", *FIT, "--out", tmp_path, "--resume")
    assert (status, out) == (2, [])
    assert err == [f"opformer fit: {tmp_path / 'last.pt'}: no such checkpoint"]
    status, _, err = run(
        "fit", place / "data", *FIT, "--layers", 2, "--seed", 7, "--out", place / "run", "--resume"
    )
    assert status == 2
    assert err == [
        f"opformer fit: {place / 'run' / 'last.pt'} cannot be resumed: "
        "seed was 0, now 7; the model was another"
    ]


def test_fit_on_two_folders(place, run, tmp_path):
    """And a file."""
    data = [place / "data", place / "fine", place / "data" / "case_00.vtu"]
    status, out, err = run("fit", *data, *FIT, "--layers", 1, "--out", tmp_path)
    assert (status, err) == (0, [])
    assert out[0].startswith("9 cases, 25 points in the first")


def test_what_fit_takes_by_default(place, run, tmp_path, monkeypatch):
    taken = {}

    def fit(model, data, **options):
        taken.update(options, boundary=bool(data.layout.parts))
        raise ValueError("enough")

    monkeypatch.setattr(cli, "fit", fit)
    assert run("fit", place / "data", "--outputs", "g", "--out", tmp_path)[0] == 2
    assert (taken["batch_size"], taken["epochs"], taken["boundary"]) == (4, 100, True)


def test_the_same_seed_gives_the_same_surrogate(place, run, tmp_path):
    for name in ("a", "b"):
        run("fit", place / "data", *FIT, "--layers", 1, "--out", tmp_path / name)
    a, b = (load(tmp_path / name).state_dict() for name in ("a", "b"))
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_evaluate(place, run, tmp_path):
    status, out, err = run(
        "evaluate", place / "run", place / "data", place / "fine", "--out", tmp_path / "new"
    )
    assert (status, err) == (0, [])
    assert out[0].split() == ["data", "cases", "nodes", "g", "ratio", "no", "weights"]
    assert out[-1] == f"wrote evaluation.* to {tmp_path / 'new'}"
    written = json.loads((tmp_path / "new" / "evaluation.json").read_text())
    first, second = written["datasets"]
    assert (first["path"], first["cases"]) == (str(place / "data"), 6)
    assert (second["nodes_mean"], second["cases"]) == (100, 2)
    assert 0 < first["fields"]["g"]["relative_l2"] < 2
    with open(tmp_path / "new" / "evaluation.csv", newline="") as file:
        assert len(list(csv.DictReader(file))) == 8
    assert (tmp_path / "new" / "evaluation.png").read_bytes()[:4] == b"\x89PNG"


def test_evaluate_writes_into_the_run(place, run):
    for path in (place / "run", place / "run" / "last.pt"):
        status, out, _ = run("evaluate", path, place / "fine", "--no-ablation")
        assert status == 0
        assert "weights" not in out[0]
        assert out[-1] == f"wrote evaluation.* to {place / 'run'}"
    assert (place / "run" / "evaluation.json").is_file()


def test_predict(place, run, tmp_path):
    path, out_path = place / "fine" / "case_00.vtu", tmp_path / "out.vtu"
    status, out, err = run("predict", place / "run", path, "-o", out_path, "--chunk", 30)
    assert (status, err) == (0, [])
    assert out == [
        f"wrote {out_path}: point fields f, g, v, speed, g_predicted, g_error; cell fields c"
    ]
    got, expected = read_mesh(out_path), load(place / "run").predict(path)
    assert (got.points == expected.points).all()
    assert np.allclose(
        got.point_data["g_predicted"], expected.point_data["g_predicted"][:, 0], rtol=1e-4
    )
    assert (got.point_data["g"] == read_mesh(path).point_data["g"]).all()


def test_inspect(run):
    status, out, err = run("inspect", MESHES / "graded.vtu", MESHES / "tetra.vtu")
    assert (status, err) == (0, [])
    assert out[0] == str(MESHES / "graded.vtu")
    assert str(MESHES / "tetra.vtu") in out


def test_inspect_a_folder(place, run):
    status, out, err = run("inspect", place / "data", MESHES / "tetra.vtu")
    assert (status, err) == (0, [])
    assert out[0].startswith(f"{place / 'data'}: 6 mesh files")
    assert str(MESHES / "tetra.vtu") in out


def test_as_a_module(place, tmp_path):
    """In a process of its own, errors included; no bars where nobody watches."""

    def call(*arguments):
        return subprocess.run(
            [sys.executable, "-W", "error", "-m", "opformer", *map(str, arguments)],
            capture_output=True,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            check=False,
        )

    done = call("fit", place / "data", *FIT, "--layers", 1, "--out", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    wrong = call("predict", tmp_path, tmp_path / "no.vtu", "-o", tmp_path / "out.vtu")
    assert wrong.returncode == 2
    assert wrong.stdout == ""
    assert wrong.stderr == f"opformer predict: {tmp_path / 'no.vtu'}: there is no such file\n"


# ---- help


@pytest.mark.parametrize(
    ("command", "example"),
    [
        ("inspect", "opformer inspect plate.vtu"),
        ("fit", "opformer fit DATA --inputs conductivity --outputs temperature --out RUN"),
        ("evaluate", "opformer evaluate RUN TEST TEST_FINE"),
        ("predict", "opformer predict RUN new.vtu -o prediction.vtu"),
    ],
)
def test_help_has_an_example_that_parses(command, example, capsys):
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert f"example:\n  {example}\n" in capsys.readouterr().out
    options = cli.build_parser().parse_args(example.split()[1:])
    assert options.command == command


def test_help_lists_the_commands(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    out = capsys.readouterr().out
    assert all(name in out for name in ("inspect", "fit", "evaluate", "predict"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fit", "x", "--outputs", "u"], "the following arguments are required: --out"),
        (
            ["fit", "x", *FIT, "--out", "r", "--epochs", "0"],
            "must be a whole number, at least 1, got 0",
        ),
        (
            ["fit", "x", *FIT, "--out", "r", "--layers", "two"],
            "must be a whole number, at least 1, got two",
        ),
        (["evaluate", "r", "x", "--device", "abacus"], "abacus cannot be used here"),
        (["fit", "x", *FIT, "--out", "r", "--resume", "--overwrite"], "not allowed with argument"),
        ([], "required: COMMAND"),
    ],
)
def test_wrong_arguments(arguments, message, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_a_device_error_is_one_line(monkeypatch, capsys):
    """What torch appends to it, a stack of C++ for instance, is left out."""

    def fail(*_, **__):
        raise RuntimeError("no kernel image\nException raised from here\nframe #0")

    monkeypatch.setattr(torch, "empty", fail)
    with pytest.raises(SystemExit):
        main(["evaluate", "r", "x", "--device", "cuda:9"])
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.endswith("cuda:9 cannot be used here (no kernel image)")


# ---- what can go wrong


@pytest.fixture
def broken(tmp_path):
    """Folders of one mesh, a.vtu: damaged, with NaN, without the field, and bent out of plane."""
    write_square(tmp_path / "nan" / "a.vtu", 1.0, f=np.full(25, np.nan))
    mesh = write_square(tmp_path / "without" / "a.vtu", 1.0)
    bent = write_square(tmp_path / "bent" / "a.vtu", 1.0)
    del mesh.point_data["f"]
    mesh.write(tmp_path / "without" / "a.vtu")
    bent.points[0, 2] = 1
    bent.write(tmp_path / "bent" / "a.vtu")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "a.vtu").write_text("<VTKFile")
    return tmp_path


# Arguments, where {place} holds data and a run, and {tmp} what `broken` makes; part of the message.
WRONG = [
    ("inspect {tmp}/no.vtu", "no.vtu: there is no such file"),
    ("inspect {tmp}/no.txt", "'.txt' is not supported"),
    ("inspect {tmp}/damaged/a.vtu", "a.vtu: cannot be read as vtu"),
    ("fit {tmp}/nowhere -i f -o g", "nowhere: no such file or folder"),
    ("fit {tmp} -i f -o g", "no mesh files in this folder"),
    ("fit {place}/data -i k -o g", "case_00.vtu: there is no field 'k'; point fields: ['f', 'g'"),
    ("fit {tmp}/damaged -i f -o g", "a.vtu: cannot be read as vtu"),
    ("fit {tmp}/nan -i f -o g", "a.vtu: field 'f' is NaN"),
    ("fit {place}/data -i f -o g --parameters f", "parameter 'f' must be"),
    ("fit {place}/data/case_00.vtu -i f -o g", "validation=0.1 of 1 case(s) leaves none"),
    ("fit {place}/data -i f -o g --heads 5", "channels must be a multiple of heads"),
    ("fit {place}/data -i f -o g --out {place}/run", "run holds a run already"),
    ("fit {place}/data -i f -o g --validation {tmp}/no", "no: no such file or folder"),
    ("fit {place}/data -i f -o g --out {place}/data/case_00.vtu", "is a file: --out is the folder"),
    ("evaluate {tmp} {place}/fine", "best.pt: no such checkpoint"),
    (
        "evaluate {place}/data/case_00.vtu {place}/fine",
        "case_00.vtu: not a checkpoint",
    ),
    ("evaluate {place}/run {tmp}/no --out {tmp}", "no: no such file or folder"),
    ("evaluate {place}/run {tmp}/without --out {tmp}", "a.vtu: there is no field 'f'"),
    ("predict {place}/run {place}/fine/case_00.vtu -o {tmp}/out.stl", ".stl cannot be written"),
    ("predict {place}/run {place}/fine/case_00.vtu -o {tmp}/no/out.vtu", "does not exist"),
    ("predict {tmp}/no {place}/fine/case_00.vtu -o {tmp}/out.vtu", "no: no such checkpoint"),
    ("predict {place}/run {tmp}/without/a.vtu -o {tmp}/out.vtu", "there is no field 'f'"),
    ("predict {place}/run {tmp}/bent/a.vtu -o {tmp}/out.vtu", "axis z was flat in the training"),
    ("predict {place}/run {tmp}/damaged/a.vtu -o {tmp}/out.vtu", "a.vtu: cannot be read as vtu"),
]


@pytest.mark.parametrize(("command", "message"), WRONG, ids=[c for c, _ in WRONG])
def test_one_line_and_status_2(command, message, place, run, broken):
    names = {"-i": "--inputs", "-o": "--outputs"} if command.startswith("fit") else {}
    arguments = [names.get(word, word).format(place=place, tmp=broken) for word in command.split()]
    if command.startswith("fit") and "--out" not in arguments:
        arguments += ["--out", f"{broken}/run"]
    status, out, err = run(*arguments)
    assert status == 2
    assert len(err) == 1, err
    assert err[0].startswith(f"opformer {arguments[0]}: ")
    assert message in err[0]
    assert not [line for line in out if line.startswith("wrote")]
    assert not list(broken.glob("**/out.*"))
    assert not list(broken.glob("**/best.pt"))


def test_the_output_is_judged_before_the_work(place, run, tmp_path, monkeypatch):
    monkeypatch.setattr(_prediction, "load", lambda path: pytest.fail("loaded before that"))
    status, _, err = run("predict", place / "run", "a.vtu", "-o", tmp_path / "out.obj")
    assert status == 2
    assert ".obj cannot be written" in err[0]


def test_a_prediction_does_not_replace_its_input(place, run, tmp_path):
    mesh = tmp_path / "a.vtu"
    mesh.write_bytes((place / "fine" / "case_00.vtu").read_bytes())
    before = mesh.read_bytes()
    status, _, err = run("predict", place / "run", mesh, "-o", tmp_path / "." / "a.vtu")
    assert status == 2
    assert "a.vtu is the input itself" in err[0]
    assert mesh.read_bytes() == before


def test_training_that_diverges(place, run, tmp_path, monkeypatch):
    def diverge(*args, **kwargs):
        raise FloatingPointError("the loss is nan in epoch 1 (a.vtu); lower the learning rate")

    monkeypatch.setattr(cli, "fit", diverge)
    status, _, err = run("fit", place / "data", *FIT, "--out", tmp_path)
    assert (status, err) == (
        2,
        ["opformer fit: the loss is nan in epoch 1 (a.vtu); lower the learning rate"],
    )


def test_a_bug_keeps_its_traceback(monkeypatch):
    def broken(path, progress):
        raise ZeroDivisionError

    monkeypatch.setattr(cli, "inspect_path", broken)
    with pytest.raises(ZeroDivisionError):
        main(["inspect", "a.vtu"])


def test_interrupted(run, monkeypatch):
    def interrupt(path, progress):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "inspect_path", interrupt)
    assert run("inspect", "a.vtu") == (130, [], ["opformer inspect: interrupted"])


def test_without_matplotlib_a_note(place, run, tmp_path, monkeypatch):
    """Long work does not fail for want of a picture."""
    monkeypatch.setattr(plotting, "available", lambda: False)
    status, out, err = run("evaluate", place / "run", place / "fine", "--out", tmp_path)
    assert (status, err) == (0, [])
    assert "no picture: pip install 'opformer[plot]' draws evaluation.png" in out
    assert {f.name for f in tmp_path.iterdir()} == {"evaluation.json", "evaluation.csv"}
    status, out, err = run("fit", place / "data", *FIT, "--layers", 1, "--out", tmp_path / "r")
    assert (status, err) == (0, [])
    assert not (tmp_path / "r" / "history.png").exists()


def test_bars_on_a_terminal(place, run, tmp_path, monkeypatch):
    monkeypatch.setattr(cli, "watched", lambda: True)
    status, out, err = run("fit", place / "data", *FIT, "--layers", 1, "--out", tmp_path)
    assert status == 0
    assert any("fitting" in line for line in err)
    assert not any(line.startswith("epoch") for line in out)


def test_the_installed_command_is_this_one():
    from importlib.metadata import entry_points

    found = [e for e in entry_points(group="console_scripts") if e.name == "opformer"]
    if not found:
        pytest.skip("the package is not installed")
    assert found[0].value == "opformer.cli:main"
    assert Path(cli.__file__).name == "cli.py"


def test_predict_a_folder(place, run, tmp_path):
    out = tmp_path / "predictions"
    status, printed, err = run("predict", place / "run", place / "fine", "-o", out)
    assert (status, err) == (0, [])
    names = [path.name for path in sorted((place / "fine").iterdir())]
    assert [path.name for path in sorted(out.iterdir())] == names
    assert printed == [f"wrote {len(names)} file(s) to {out}"]
    assert "g_error" in read_mesh(out / names[0]).point_data
    status, _, err = run("predict", place / "run", place / "fine", "-o", out)
    assert (status, "--overwrite replaces it" in err[0]) == (2, True)
    status, _, err = run("predict", place / "run", place / "fine", "-o", tmp_path / "x.vtu")
    assert "give it alone, and a folder for -o" in err[0]


def test_files_that_are_trained_on_and_validated_with_are_said(place, run, tmp_path):
    _, out, _ = run(
        "fit", place / "data", *FIT, "--layers", 1, "--out", tmp_path / "run",
        "--validation", place / "data",
    )  # fmt: skip
    assert "note: 6 file(s) are trained on and validated with" in out


def test_warnings_are_lines(place, run, tmp_path, monkeypatch):
    def inspect(path, **_):
        warnings.warn(f"{path}: something of it is not read", stacklevel=1)
        return "a page"

    monkeypatch.setattr(cli, "inspect_path", inspect)
    status, out, err = run("inspect", "a.inp")
    assert (status, out, err) == (0, ["a page"], ["warning: a.inp: something of it is not read"])


def test_fit_a_causal_model(place, run, tmp_path):
    """A coordinate of the meshes is time; here y."""
    out = tmp_path / "run"
    small = ["--epochs", 1, "--channels", 8, "--heads", 2, "--layers", 1]
    status, _, err = run("fit", place / "data", *FIT, *small, "--causal", "y", "--out", out)
    assert (status, err) == (0, [])
    surrogate = load(out)
    assert surrogate.model.causal_axis == 1
    assert not surrogate.layout.parts  # the end of time is no boundary


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--causal"], "--causal t: the coordinates are x, y (t is that of a --trajectory)"),
        (["--causal", "z"], "--causal z: the coordinates are x, y"),
        (["--causal", "x", "--equivariant"], "--causal is not for --equivariant models"),
        (["--causal", "x", "--at", "cells"], "--causal x needs the outputs at the nodes"),
        (["--causal", "x", "--parts", "boundary"], "--causal x: the boundary of the meshes holds"),
    ],
)
def test_what_is_not_causal(place, run, tmp_path, options, message):
    status, _, err = run("fit", place / "data", *FIT, *options, "--out", tmp_path / "run")
    assert status == 2
    assert message in err[0]


def test_fit_an_equivariant_model(place, run, tmp_path):
    arguments = ["fit", place / "data", "--inputs", "f", "v", "--outputs", "g", "--equivariant"]
    small = ["--epochs", 1, "--channels", 8, "--heads", 2, "--layers", 1, "--validation", 0.4]
    status, _, err = run(*arguments, *small, "--out", tmp_path / "run")
    assert (status, err) == (0, [])
    model = load(tmp_path / "run").model
    assert model.symmetry == "E(d)"
    assert model.kinds == (["scalar", "vector", "scalar"], ["scalar"])
    status, _, err = run("predict", tmp_path / "run", place / "fine" / "case_00.vtu", "-o",
                         tmp_path / "out.vtu")  # fmt: skip
    assert (status, err) == (0, [])
