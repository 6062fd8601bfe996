"""Time series as cases: which steps, fields of earlier steps, numbered files, trajectories."""

from __future__ import annotations

from pathlib import Path

import meshio
import numpy as np
import pytest
import torch
from cases import square, tiny_model
from tolerances import ROUNDING, difference

from opformer import (
    Domain,
    Layout,
    MeshDataset,
    MeshError,
    Surrogate,
    evaluate,
    fit,
    load,
    read_mesh,
)
from opformer.cases import series_of
from opformer.cli import main
from opformer.mesh import read_times, write_mesh, write_series

TIMES = (0.0, 0.1, 0.4, 1.0)
TIGHT = ROUNDING[torch.float64]


def snapshot(t: float, scale: float = 1.0, n: int = 4) -> meshio.Mesh:
    """u = (x + scale) (1 + t), k = y, on the square, and c = x at the centroids."""
    mesh = square(n)
    x, y, _ = mesh.points.T
    mesh.point_data = {"u": (x + scale) * (1 + t), "k": y}
    mesh.cell_data = {"c": [x[mesh.cells[0].data].mean(axis=1) * (1 + t)]}
    return mesh


def write_run(path: Path, scale: float = 1.0, times=TIMES, n: int = 4) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_series(path, [snapshot(t, scale, n) for t in times], times)
    return path


def write_numbered(folder: Path, name: str, scale: float = 1.0, numbers=(1, 5, 10)) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for k in numbers:
        write_mesh(folder / f"{name}_{k}.vtu", snapshot(k, scale))


def dataset(files, **options):
    return MeshDataset(files, **({"outputs": ["u"], "parts": (), "progress": False} | options))


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path / "run.pvd")


# ---- which steps


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (":", [0, 1, 2, 3]),
        ("1:", [1, 2, 3]),
        ("::2", [0, 2]),
        ("-2:", [2, 3]),
        ("::-1", [3, 2, 1, 0]),
        ("2", [2]),
        ("-1", [3]),
    ],
)
def test_a_range_of_steps(run, steps, expected):
    data = dataset(run, parameters=["time"], steps=steps)
    assert [case.steps[0].step for case in data.cases] == expected
    assert [s.parameters.item() for s in data] == [TIMES[k] for k in expected]
    again = MeshDataset.from_layout(run, data.layout, progress=False)
    assert [case.steps[0].step for case in again.cases] == expected


@pytest.mark.parametrize("steps", ["a:b", "1:2:0", "1:2:3:4", ""])
def test_steps_that_are_none(run, steps):
    with pytest.raises(ValueError, match=rf"steps must be like .*got '{steps}'"):
        dataset(run, steps=steps)


def test_a_range_without_steps(run):
    with pytest.raises(MeshError, match=r"run\.pvd: none of its 4 steps are in steps '9:'"):
        dataset(run, steps="9:")


def test_a_single_mesh_has_no_steps_to_choose(tmp_path):
    write_mesh(tmp_path / "one.vtu", snapshot(0.0))
    assert len(dataset(tmp_path, steps="3:")) == 1


# ---- fields of other steps


@pytest.mark.parametrize("cache", [True, False])
def test_the_field_at_the_first_step_as_input(run, cache):
    data = dataset(run, inputs=["first:u", "k"], steps="1:", cache=cache)
    start = snapshot(TIMES[0]).point_data  # of the series, whatever steps of it are taken
    for t, sample in zip(TIMES[1:], data, strict=True):
        assert difference(sample.fields, np.c_[start["u"], start["k"]]) < TIGHT
        assert difference(sample.outputs[:, 0], snapshot(t).point_data["u"]) < TIGHT


def test_the_field_at_the_step_before_as_input(run):
    """The first step has none before it, and is no case; a stride is one back, too."""
    for steps, taken, back in ((":", [1, 2, 3], 1), ("1:", [1, 2, 3], 1), ("::2", [2], 2)):
        data = dataset(run, inputs=["previous:u"], steps=steps)
        assert [case.steps[0].step for case in data.cases] == taken
        for k, sample in zip(taken, data, strict=True):
            before = snapshot(TIMES[k - back]).point_data["u"]
            assert difference(sample.fields[:, 0], before) < TIGHT


def test_a_cell_field_of_the_first_step(run):
    data = dataset(run, inputs=["first:c"], at="cells")
    for sample in data:
        assert difference(sample.fields[:, 0], snapshot(0.0).cell_data["c"][0]) < TIGHT


def test_no_earlier_step(tmp_path, run):
    write_mesh(tmp_path / "one.vtu", snapshot(0.0))
    with pytest.raises(MeshError, match=r"one\.vtu.*'first:u' needs a time series.*no first step"):
        dataset(tmp_path / "one.vtu", inputs=["first:u"])
    with pytest.raises(MeshError, match=r"run\.pvd step 0.*no field 'w' in the first step"):
        dataset(run, inputs=["first:w"])


def test_an_earlier_step_on_another_mesh(tmp_path):
    write_series(tmp_path / "run.pvd", [snapshot(0.0, n=3), snapshot(1.0, n=4)], [0, 1])
    with pytest.raises(MeshError, match=r"step 1.*the first step has other cells"):
        dataset(tmp_path / "run.pvd", inputs=["first:u"])


def test_no_field_is_input_and_output(run):
    with pytest.raises(ValueError, match=r"\['u'\] cannot be inputs and outputs.*first:NAME"):
        dataset(run, inputs=["u"])


# ---- numbered files


def test_numbered_files_are_steps_only_where_it_is_said(tmp_path):
    write_numbered(tmp_path, "wave")
    write_numbered(tmp_path, "other", 2.0, (3, 4))
    assert len(dataset(tmp_path)) == 5
    data = dataset(tmp_path, numbered=True, inputs=["first:u"], parameters=["time"])
    names = [case.name for case in data.cases]
    assert names == ["other_3.vtu", "other_4.vtu", "wave_1.vtu", "wave_5.vtu", "wave_10.vtu"]
    assert [s.parameters.item() for s in data] == [3, 4, 1, 5, 10]
    first = snapshot(1).point_data["u"]
    assert difference(data[4].fields[:, 0], first) < TIGHT


def test_a_numbered_file_that_tells_its_time(tmp_path):
    for k, t in ((1, 0.25), (2, 0.5)):
        mesh = snapshot(t)
        arrays = {"points": mesh.points, "cells_triangle": mesh.cells[0].data}
        np.savez(tmp_path / f"flow{k}.npz", **arrays, u=mesh.point_data["u"], parameter_time=t)
    data = dataset(tmp_path, numbered=True, parameters=["time"])
    assert [s.parameters.item() for s in data] == [0.25, 0.5]


def test_names_without_a_number_are_alone(tmp_path):
    files = [tmp_path / name for name in ("a.vtu", "b_2.vtu", "b-1.vtu", "7.vtu")]
    for file in files:
        write_mesh(file, snapshot(0.0))
    series = series_of(files, Layout(numbered=True))
    assert [[step.path.name for step in steps] for steps in series] == [
        ["a.vtu"], ["b-1.vtu", "b_2.vtu"], ["7.vtu"]
    ]  # fmt: skip


# ---- trajectories


def test_a_trajectory_is_one_case_in_space_and_time(run):
    data = dataset(run, inputs=["first:u"], trajectory=True)
    assert len(data) == 1
    assert (data.dim, data.layout.velocity) == (3, pytest.approx(1.0))  # extent 1, duration 1
    sample, n = data[0], 25
    weights = np.array([0.05, 0.2, 0.45, 0.3])
    assert float(sample.source.total) == pytest.approx(1.0, rel=TIGHT)
    for k, (t, tau) in enumerate(zip(TIMES, weights, strict=True)):
        rows = slice(k * n, (k + 1) * n)
        mesh = snapshot(t)
        assert difference(sample.source.points[rows], np.c_[mesh.points[:, :2], np.full(n, t)]) == 0
        assert float(sample.source.weights[rows].sum()) == pytest.approx(tau, rel=TIGHT)
        assert difference(sample.outputs[rows, 0], mesh.point_data["u"]) < TIGHT
        assert difference(sample.fields[rows, 0], snapshot(0.0).point_data["u"]) < TIGHT
    # ∫∫ (x + 1)(1 + t) dx dt = 3/2 · 3/2, and both rules are exact for linear functions
    assert sample.domain.integrate(sample.outputs).item() == pytest.approx(2.25, rel=TIGHT)


@pytest.mark.parametrize("cache", [True, False])
def test_the_boundary_of_a_trajectory(run, cache):
    """Its points come after all nodes of all steps, under σ dt."""
    data = dataset(run, trajectory=True, parts=("boundary",), cache=cache)
    sample = data[0]
    assert sample.on_parts.tolist() == [False] * 100 + [True] * 64
    assert float(sample.inside.total) == pytest.approx(1.0, rel=TIGHT)
    length = data.layout.parts["boundary"]
    assert length == pytest.approx(1 / 4, rel=TIGHT)
    on = sample.source.weights[sample.on_parts].sum()
    assert float(on) == pytest.approx(4 * length, rel=TIGHT)


def test_time_is_made_as_long_as_the_domain(tmp_path):
    write_run(tmp_path / "a.pvd", times=(0.0, 100.0))
    write_run(tmp_path / "b.pvd", times=(100.0, 200.0))
    data = dataset(tmp_path, trajectory=True)
    assert data.layout.velocity == pytest.approx(1 / 200)
    assert [s.source.points[:, 2].max().item() for s in data] == pytest.approx([0.5, 1.0])


def test_what_is_no_trajectory(tmp_path, run):
    write_mesh(tmp_path / "one.vtu", snapshot(0.0))
    with pytest.raises(MeshError, match=r"one\.vtu.*needs a time, and the file tells none"):
        dataset(tmp_path / "one.vtu", trajectory=True)
    with pytest.raises(MeshError, match=r"trajectories need times that differ"):
        dataset(run, trajectory=True, steps="1")
    with pytest.raises(MeshError, match=r"run\.pvd.*two times or more that ascend"):
        dataset(run, trajectory=True, steps="::-1")
    with pytest.raises(MeshError, match=r"run\.pvd.*a parameter changes along the trajectory"):
        dataset(run, trajectory=True, parameters=["time"])


# ---- fitted, evaluated, predicted


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for i in range(4):
        write_run(folder / f"run{i}.pvd", 1 + i / 2)
    return folder


@pytest.fixture(scope="module")
def trajectory(runs, tmp_path_factory):
    data = MeshDataset(
        runs, inputs=["first:u"], outputs=["u"], trajectory=True, steps=":3", progress=False
    )
    model = tiny_model(data.dim, data.in_channels, data.out_channels)
    out = tmp_path_factory.mktemp("fit")
    fit(model, data, out=out, validation=0.25, epochs=2, samples_per_mesh=40, progress=False)
    return load(out)


def test_a_trajectory_predicted_is_a_list_of_meshes(trajectory, runs):
    found = trajectory.predict(runs / "run1.pvd")
    assert [mesh.field_data["time"].item() for mesh in found] == list(TIMES[:3])
    sample = MeshDataset.from_layout(runs / "run1.pvd", trajectory.layout, progress=False)[0]
    with torch.no_grad():
        y = trajectory(sample)[: sample.size].reshape(3, 25)
    for mesh, t, row in zip(found, TIMES, y, strict=False):
        assert difference(mesh.point_data["u_predicted"][:, 0], row) < TIGHT
        truth = snapshot(t, 1.5).point_data["u"]
        assert difference(mesh.point_data["u_error"][:, 0], row.numpy() - truth) < 1e-11


def test_a_trajectory_read_between_its_times(trajectory, runs):
    """A target is (x, t), in the units of the files; its own nodes give the values there."""
    path = runs / "run1.pvd"
    mesh = trajectory.predict(path, chunk=7)[1]
    points = torch.from_numpy(np.c_[mesh.points[:, :2], np.full(25, TIMES[1])])
    values = trajectory.predict(path, target=points)
    # In float32, where the inputs are read off their neighbours.
    assert difference(values, mesh.point_data["u_predicted"]) < ROUNDING[torch.float32]
    between = trajectory.predict(path, target=points + torch.tensor([0, 0, 0.05]))
    assert 0 < difference(between, values) < 1
    with pytest.raises(ValueError, match="coordinates x, y, t, got 2"):
        trajectory.predict(path, target=points[:, :2])


def test_a_trajectory_from_meshes_in_memory(trajectory, runs):
    expected = trajectory.predict(runs / "run1.pvd")
    meshes = [read_mesh(runs / "run1.pvd", step=k) for k in range(3)]
    for mesh in meshes:
        mesh.point_data["first:u"] = meshes[0].point_data["u"]
    for a, b in zip(trajectory.predict(meshes), expected, strict=True):
        assert difference(a.point_data["u_predicted"], b.point_data["u_predicted"]) < TIGHT


def test_a_trajectory_evaluated(trajectory, runs):
    case = evaluate(trajectory, runs / "run1.pvd", progress=False).cases[0]
    assert case.nodes == 75
    found = trajectory.predict(runs / "run1.pvd")
    # L² in space and time: the trapezoidal rule over the steps of that in space
    tau = np.array([0.05, 0.2, 0.15])
    sample = MeshDataset.from_layout(runs / "run1.pvd", trajectory.layout, progress=False)[0]
    w = sample.source.weights[:25].numpy() / tau[0]
    squares = [
        [w @ np.ravel(values) ** 2 for values in (mesh.point_data["u_error"], mesh.point_data["u"])]
        for mesh in found
    ]
    error, size = tau @ np.array(squares)
    assert case.relative_l2 == pytest.approx(np.sqrt(error / size), rel=1e-10)


def test_a_causal_trajectory_does_not_look_ahead(runs, tmp_path):
    """From files to files: what changes at the last step changes nothing before it."""
    arguments = [
        "fit", runs, "--inputs", "k", "--outputs", "u", "--trajectory", "--causal", "--epochs", 2,
        "--channels", 8, "--heads", 2, "--layers", 2, "--validation", 0.25, "--out", tmp_path / "r",
    ]  # fmt: skip
    assert main([str(a) for a in arguments]) == 0
    surrogate = load(tmp_path / "r")
    assert surrogate.model.causal_axis == 2
    before = surrogate.predict(runs / "run1.pvd")
    meshes = [read_mesh(runs / "run1.pvd", step=k) for k in range(len(TIMES))]
    meshes[-1].point_data["k"] = meshes[-1].point_data["k"] + 5
    for k, mesh in enumerate(surrogate.predict(meshes)):
        same = np.array_equal(mesh.point_data["u_predicted"], before[k].point_data["u_predicted"])
        assert same == (k < len(TIMES) - 1)
    assert np.isfinite(evaluate(surrogate, runs / "run1.pvd", progress=False).cases[0].relative_l2)
    for chunk in (None, 7):
        with pytest.raises(ValueError, match=r"read at its own points only.* would look ahead"):
            surrogate.predict(runs / "run1.pvd", target=torch.rand(5, 3), chunk=chunk)
    # With a decoder a target brings no field.
    model = tiny_model(3, 2, 1, causal_axis=2, decoder_layers=1)
    free = Surrogate(model, surrogate.standardizer, surrogate.layout)
    assert free.predict(runs / "run1.pvd", target=torch.rand(5, 3).double()).shape == (5, 1)


def test_a_causal_trajectory_step_after_step(tmp_path):
    """In physical units: each snapshot as it arrives, and what the whole series gives."""
    for i in range(3):
        write_run(tmp_path / "runs" / f"run{i}.pvd", 1 + i / 2)
    data = dataset(tmp_path / "runs", inputs=["k"], trajectory=True)
    model = tiny_model(data.dim, data.in_channels, data.out_channels, causal_axis=2)
    fit(model, data, out=tmp_path / "fit", validation=1 / 3, epochs=2, progress=False)
    surrogate = load(tmp_path / "fit").double()
    place = Domain.from_mesh(square(4))
    k, state = place.points[:, 1:2], None
    for i, mesh in enumerate(surrogate.predict(tmp_path / "runs" / "run1.pvd")):
        times = torch.tensor(TIMES[: i + 1])
        steps = Domain.from_points(times, rule="interval").weights
        points = [torch.cat([place.points[:, :2], torch.full((25, 1), t)], 1) for t in times]
        so_far = Domain(torch.cat(points), (steps[:, None] * place.weights).flatten())
        y, state = surrogate.step(so_far, k, state=state)
        assert difference(y, mesh.point_data["u_predicted"]) < TIGHT
    with pytest.raises(ValueError, match="source must have the coordinates x, y, t, got 2"):
        surrogate.step(Domain(place.points[:, :2], place.weights), k)


def test_steps_predicted_one_by_one(runs):
    data = MeshDataset(runs, inputs=["previous:u"], outputs=["u"], progress=False)
    model = tiny_model(data.dim, data.in_channels, data.out_channels)
    surrogate = fit(model, data, epochs=1, progress=False)
    found = surrogate.predict(runs / "run0.pvd")
    assert [mesh.field_data["time"].item() for mesh in found] == list(TIMES[1:])
    assert set(found[0].point_data) == {"u", "k", "u_predicted", "u_error"}
    one = read_mesh(runs / "run0.pvd", step=2)
    one.point_data["previous:u"] = read_mesh(runs / "run0.pvd", step=1).point_data["u"]
    alone = surrogate.predict(one).point_data["u_predicted"]
    assert difference(alone, found[1].point_data["u_predicted"]) < TIGHT
    with pytest.raises(ValueError, match="target needs one case, got a time series of 3 steps"):
        surrogate.predict(runs / "run0.pvd", target=torch.rand(3, 2))


# ---- written


def test_a_series_is_written_and_read(tmp_path):
    path = write_run(tmp_path / "out.pvd")
    assert read_times(path) == list(TIMES)
    for k, t in enumerate(TIMES):
        mesh, expected = read_mesh(path, step=k), snapshot(t)
        assert np.array_equal(mesh.points, expected.points)
        assert np.array_equal(mesh.cells[0].data, expected.cells[0].data)
        assert np.array_equal(mesh.point_data["u"], expected.point_data["u"])
    assert len(dataset(tmp_path)) == len(TIMES)  # its members are no cases of their own


def test_a_series_that_cannot_be_written(tmp_path):
    with pytest.raises(MeshError, match=r"out\.vtu: a time series is written as \.pvd"):
        write_series(tmp_path / "out.vtu", [snapshot(0.0)], [0.0])
    with pytest.raises(MeshError, match="1 meshes for 2 times"):
        write_series(tmp_path / "out.pvd", [snapshot(0.0)], [0.0, 1.0])
    with pytest.raises(MeshError, match=r"the folder .*no does not exist"):
        write_series(tmp_path / "no" / "out.pvd", [snapshot(0.0)], [0.0])
    assert not list(tmp_path.iterdir())


# ---- what must not be lost in silence


def test_a_step_that_numbers_its_nodes_otherwise(tmp_path):
    turned = snapshot(1.0)
    order = np.random.default_rng(0).permutation(25)
    turned.points, turned.point_data["u"] = turned.points[order], turned.point_data["u"][order]
    turned.cells[0].data = np.argsort(order)[turned.cells[0].data]
    write_series(tmp_path / "run.pvd", [snapshot(0.0), turned], [0, 1])
    with pytest.raises(MeshError, match=r"step 1.*the previous step has other cells"):
        dataset(tmp_path / "run.pvd", inputs=["previous:u"])


def test_each_numbered_file_has_its_row(tmp_path):
    """Of the table, or that of its first file; a column of times comes before the numbers."""
    write_numbered(tmp_path, "wave")
    (tmp_path / "cases.csv").write_text("file,mu,time\nwave_1,0,.1\nwave_5,10,.2\nwave_10,20,.3\n")
    options = {"numbered": True, "parameters": ["mu", "time"]}
    found = [s.parameters.tolist() for s in dataset(tmp_path, **options)]
    assert found == [[0, 0.1], [10, 0.2], [20, 0.3]]
    with pytest.raises(MeshError, match="a parameter changes along the trajectory"):
        dataset(tmp_path, numbered=True, parameters=["mu"], trajectory=True)
    data = dataset(tmp_path, numbered=True, trajectory=True)
    assert data[0].source.points[:, 2].unique().numpy() == pytest.approx(np.array([0.5, 1, 1.5]))
    (tmp_path / "cases.csv").write_text("file,mu\nwave_1,3\n")
    found = [s.parameters.tolist() for s in dataset(tmp_path, **options)]
    assert found == [[3, 1], [3, 5], [3, 10]]
    data = dataset(tmp_path, numbered=True, parameters=["mu"], inputs=["previous:u"])
    assert [s.parameters.tolist() for s in data] == [[3], [3]]


def test_a_file_without_a_case_is_named(tmp_path):
    write_run(tmp_path / "long.pvd")
    write_run(tmp_path / "short.pvd", times=(0.0, 1.0))
    with pytest.raises(MeshError, match=r"short\.pvd: none of its 2 steps are in steps '3:'"):
        dataset(tmp_path, steps="3:")
    write_mesh(tmp_path / "alone.vtu", snapshot(0.0))
    with pytest.raises(MeshError, match=r"alone\.vtu: there is no step before it"):
        dataset(tmp_path, inputs=["previous:u"])


def test_two_files_of_one_number(tmp_path):
    for name in ("a_1", "a_01"):
        write_mesh(tmp_path / f"{name}.vtu", snapshot(0.0))
    with pytest.raises(MeshError, match=r"a_01\.vtu, a_1\.vtu have one number, 1"):
        dataset(tmp_path, numbered=True)


def test_no_step_to_predict_from(runs):
    data = MeshDataset(runs, inputs=["previous:u"], outputs=["u"], progress=False)
    model = tiny_model(data.dim, data.in_channels, data.out_channels)
    surrogate = fit(model, data, epochs=1, progress=False)
    (member,) = [path for path in runs.iterdir() if path.name == "run0_0002.vtu"]
    with pytest.raises(MeshError, match=r"run0_0002\.vtu: there is no step before it"):
        surrogate.predict(member)
    with pytest.raises(ValueError, match="expected meshes, or the paths of their files"):
        surrogate.predict([member, snapshot(0.0)])


def test_a_repeated_time_is_refused(tmp_path, run):
    text = run.read_text()
    again = '<DataSet timestep="0.0" file="run_0001.vtu" /></Collection>'
    run.write_text(text.replace("</Collection>", again))
    with pytest.raises(MeshError, match=r"run\.pvd: .*time 0 is there twice as part 0"):
        dataset(run)
    run.write_text(text.replace("</Collection>", again.replace("file=", 'part="1" file=')))
    assert sum(map(len, read_mesh(run, step=0).cells)) == 64


@pytest.mark.parametrize("listed", [True, False])
def test_predict_writes_over_nothing(runs, tmp_path, capsys, listed):
    """Neither over what it reads, nor, unasked, over what is there."""
    folder = tmp_path / "data"
    write_run(folder / "wave.pvd")
    data = MeshDataset(folder, outputs=["u"], progress=False)
    model = tiny_model(data.dim, data.in_channels, data.out_channels)
    fit(model, data, out=tmp_path / "run", epochs=1, progress=False)
    before = [path.read_bytes() for path in sorted(folder.iterdir())]
    meshes = ["wave.pvd"] if listed else [f"wave_000{k}.vtu" for k in range(4)]
    arguments = ["predict", str(tmp_path / "run"), *(str(folder / name) for name in meshes)]
    if not listed:
        (folder / "wave.pvd").unlink()
        before = before[1:]
    for more in ([], ["--overwrite"]):
        assert main([*arguments, "-o", str(folder / "wave.pvd"), *more]) == 2
        assert "is the input itself" in capsys.readouterr().err
    assert [path.read_bytes() for path in sorted(folder.iterdir())] == before
    out = tmp_path / "out.pvd"
    assert main([*arguments, "-o", str(out)]) == 0
    assert read_times(out) == (list(TIMES) if listed else [0, 1, 2, 3])
    out.unlink()
    assert main([*arguments, "-o", str(out)]) == 2
    assert "out_0000.vtu is there already: --overwrite" in capsys.readouterr().err
    assert main([*arguments, "-o", str(out), "--overwrite"]) == 0
    assert main([*arguments, "-o", str(tmp_path / "out.vtu")]) == 2
    assert "a time series is written as .pvd" in capsys.readouterr().err
    single = [arguments[0], arguments[1], str(folder / "wave_0001.vtu")]
    assert main([*single, "-o", str(tmp_path / "single.pvd")]) == 2
    assert ".pvd is for a time series" in capsys.readouterr().err
