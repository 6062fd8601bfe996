"""Fitting: it learns, it repeats itself bit for bit, and what it leaves on disk is true."""

from __future__ import annotations

import csv
from dataclasses import replace

import numpy as np
import pytest
import torch
from cases import line, smoothed, tiny_model, write_folder, write_square
from tolerances import difference
from torch.utils.data import ConcatDataset, Subset

from opformer import (
    Layout,
    MeshDataset,
    Sample,
    Standardizer,
    Surrogate,
    _run,
    collate,
    evaluate,
    fit,
    load,
    plotting,
    read_mesh,
)
from opformer.checkpoint import load_checkpoint
from opformer.evaluation import relative_l2
from opformer.mesh import write_series
from opformer.training import _hold_out, loss

SIZES = (9, 14, 11, 17, 12, 10, 15, 13)


def waves(count=8, first=0):
    return [smoothed(line(n, 1.5), first + seed) for seed, n in enumerate(SIZES[:count])]


def quick(train, model=None, **options):
    """A fit of seconds; the model starts alike each time."""
    if model is None:
        torch.manual_seed(1)
        model = tiny_model(1, 1, 1)
    defaults = {"epochs": 2, "batch_size": 3, "progress": False}
    return fit(model, train, **(defaults | options))


def weights(surrogate):
    return torch.cat([p.detach().flatten() for p in surrogate.parameters()])


def history(out):
    with open(out / "history.csv", newline="") as file:
        return [{k: float(v) for k, v in row.items()} for row in csv.DictReader(file)]


# ---- learning


def test_it_learns(tmp_path):
    surrogate = quick(waves(), epochs=15, learning_rate=2e-2, out=tmp_path)
    rows = history(tmp_path)
    assert rows[-1]["train"] < 0.4 * rows[0]["train"]
    assert not surrogate.training
    assert [row["epoch"] for row in rows] == list(range(1, 16))
    rates = [row["learning_rate"] for row in rows]
    assert max(rates) == pytest.approx(2e-2, rel=0.2)
    assert rates[-1] < rates[0] < 2e-2


def test_the_loss_is_the_metric_in_physical_units():
    samples = waves(4)
    layout = Layout(outputs={"u": 1})
    surrogate = Surrogate(tiny_model(1, 1, 1), Standardizer.fit(samples), layout)
    cases = evaluate(surrogate, samples, progress=False).cases
    mean = np.mean([case.relative_l2 for case in cases])
    assert difference(loss(surrogate, collate(samples)), mean) < 1e-12


def test_the_loss_is_the_mean_over_fields_and_cases():
    """The same whatever batches the cases come in."""
    samples = [
        replace(s, outputs=torch.cat([s.outputs, 9 * s.fields, s.fields], 1)) for s in waves(4)
    ]
    layout = Layout(outputs={"u": 1, "v": 2})
    surrogate = Surrogate(tiny_model(1, 1, 3), Standardizer.fit(samples), layout)
    together = loss(surrogate, collate(samples))
    single = torch.stack([loss(surrogate, collate([s])) for s in samples])
    assert difference(together, single.mean()) < 1e-12
    errors = [case.relative_l2 for case in evaluate(surrogate, samples, progress=False).cases]
    assert difference(together, np.mean(errors)) < 1e-12


def test_gradients_do_not_depend_on_the_padding():
    samples = waves(2)
    surrogate = Surrogate(tiny_model(1, 1, 1), Standardizer.fit(samples), Layout(outputs={"u": 1}))
    gradients = []
    for batch in (samples[:1], samples):
        surrogate.zero_grad()
        error, _ = relative_l2(surrogate(kept := collate(batch)), kept.outputs, kept.domain)
        error[0].backward()
        gradients.append(torch.cat([p.grad.flatten() for p in surrogate.parameters()]))
    assert difference(gradients[1], gradients[0]) < 1e-11


def test_gradients_are_clipped(monkeypatch):
    norms = []
    step = torch.optim.AdamW.step

    def watched(self, *args, **kwargs):
        grads = [p.grad for group in self.param_groups for p in group["params"]]
        norms.append(torch.cat([g.flatten() for g in grads]).norm().item())
        return step(self, *args, **kwargs)

    monkeypatch.setattr(torch.optim.AdamW, "step", watched)
    quick(waves(), clip=1e-3)
    assert norms
    assert max(norms) <= 1e-3 * (1 + 1e-6)
    norms.clear()
    quick(waves(), clip=1e9)
    assert max(norms) > 1e-2


@pytest.mark.parametrize(("epochs", "batch_size"), [(1, 8), (1, 4), (5, 4), (10, 8), (11, 8)])
def test_any_number_of_steps(epochs, batch_size, tmp_path):
    """One step in all, and ten, where a tenth of the steps minus one is nothing to divide by."""
    surrogate = quick(
        waves(), epochs=epochs, batch_size=batch_size, out=tmp_path, validation=waves(1, 50)
    )
    assert weights(surrogate).isfinite().all()
    assert len(history(tmp_path)) == epochs


# ---- repetition


def test_the_same_seed_is_the_same_fit_bit_for_bit():
    a, b, c = (weights(quick(waves(), samples_per_mesh=8, seed=seed)) for seed in (3, 3, 4))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


def test_the_global_random_state_is_left_alone():
    train, model = waves(), tiny_model(1, 1, 1)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    quick(train, model, samples_per_mesh=8)
    assert torch.equal(torch.rand(3), expected)


def test_the_global_random_state_does_not_count():
    results = []
    for state in (1, 2):
        torch.manual_seed(1)
        model = tiny_model(1, 1, 1)
        torch.manual_seed(state)
        results.append(weights(quick(waves(), model)))
    assert torch.equal(*results)


# ---- hold-out


def seen_names(monkeypatch):
    """Names of the cases that are trained on, and of those validated, as they come."""
    train, validated = set(), set()
    errors = _run._errors

    def watched(surrogate, batch):
        (train if surrogate.training else validated).update(batch.name.split(","))
        return errors(surrogate, batch)

    monkeypatch.setattr(_run, "_errors", watched)
    return train, validated


@pytest.mark.parametrize(("share", "held"), [(0.1, 1), (0.25, 2), (0.5, 4)])
def test_a_share_is_held_out(monkeypatch, share, held):
    chosen = []
    for seed in (0, 0, 1, 2):
        train, validated = seen_names(monkeypatch)
        quick(waves(), validation=share, seed=seed)
        assert not train & validated
        assert len(validated) == held
        assert len(train | validated) == 8
        chosen.append(validated)
    assert chosen[0] == chosen[1]
    assert len({frozenset(names) for names in chosen}) > 1


def test_scales_are_those_of_the_training_part():
    samples = waves()
    order = torch.randperm(8, generator=torch.Generator().manual_seed(0)).tolist()
    surrogate = quick(samples, validation=0.25, seed=0)
    expected = Standardizer.fit(samples[i] for i in order[2:])
    assert difference(surrogate.standardizer.outputs_std, expected.outputs_std) < 1e-14
    assert difference(surrogate.standardizer.fields_mean, expected.fields_mean) < 1e-13


def test_other_data_to_validate_on(monkeypatch, tmp_path):
    train, validated = seen_names(monkeypatch)
    surrogate = quick(waves(4), validation=waves(2, first=70), out=tmp_path)
    assert train == {f"wave {i}" for i in range(4)}
    assert validated == {"wave 70", "wave 71"}
    best = min(row["validation"] for row in history(tmp_path))
    errors = [case.relative_l2 for case in evaluate(surrogate, waves(2, 70), progress=False).cases]
    assert difference(np.mean(errors), best) < 1e-12


def test_samples_per_mesh(monkeypatch):
    """New points at every step, with the measure of all; smaller meshes stay whole."""
    seen = []
    step = _run.loss

    def watched(surrogate, batch):
        seen.append(batch)
        return step(surrogate, batch)

    monkeypatch.setattr(_run, "loss", watched)
    quick(waves(4), samples_per_mesh=11, validation=waves(1, 50), batch_size=1, epochs=3)
    sizes = {batch.name: batch.source.size for batch in seen}
    assert sizes == {"wave 0": 9, "wave 1": 11, "wave 2": 11, "wave 3": 11}
    for batch in seen:
        assert difference(batch.source.total, [1.0]) < 1e-12
    of_one = [batch.source.points for batch in seen if batch.name == "wave 3"]
    assert not torch.equal(of_one[0], of_one[1])


# ---- what is written


def with_known_errors(monkeypatch, errors):
    """Let the epochs have these validation errors; the states they were taken of are returned."""
    states = []

    def validate(run, data):
        states.append(weights(run.surrogate))
        return {"u": errors[len(states) - 1]}

    monkeypatch.setattr(_run.Run, "_validate", validate)
    return states


def test_best_is_the_best_epoch_and_last_the_last(tmp_path, monkeypatch):
    """With errors that are known, so that the best epoch is not the last."""
    errors = [0.5, 0.3, 0.4, 0.6]
    states = with_known_errors(monkeypatch, errors)
    surrogate = quick(waves(), epochs=4, out=tmp_path)
    assert torch.equal(weights(surrogate), states[1])
    assert torch.equal(weights(load(tmp_path)), states[1])
    assert torch.equal(weights(load(tmp_path / "last.pt")), states[3])
    assert not torch.equal(states[1], states[3])
    assert [row["validation"] for row in history(tmp_path)] == errors
    best, last = (load_checkpoint(tmp_path / f"{name}.pt") for name in ("best", "last"))
    assert (best["epoch"], best["best"]) == (2, 0.3)
    assert (last["epoch"], last["best"]) == (4, 0.3)


def test_last_holds_all_that_goes_on(tmp_path):
    quick(waves(), epochs=3, out=tmp_path)
    last = load_checkpoint(tmp_path / "last.pt")
    assert last["history"] == history(tmp_path)
    assert last["optimizer"]["state"][0]["step"] == 3 * 3
    assert last["schedule"]["last_epoch"] == 3 * 3
    assert last["random"].dtype == torch.uint8
    files = {f.name for f in tmp_path.iterdir()}
    assert files == {"best.pt", "last.pt", "history.csv", "history.png"}


def test_the_surrogate_is_the_file(tmp_path):
    surrogate = quick(waves(), out=tmp_path / "deep" / "run")
    again = load(tmp_path / "deep" / "run")
    sample = smoothed(line(30), 99)
    with torch.no_grad():
        assert torch.equal(again(sample), surrogate(sample))


def test_errors_by_field(tmp_path):
    samples = [replace(s, outputs=torch.cat([s.outputs, s.fields], 1)) for s in waves()]
    layout = Layout(inputs={"f": 1}, outputs={"u": 1, "f": 1}, axes=[0])
    torch.manual_seed(1)
    surrogate = quick(samples, tiny_model(1, 1, 2), layout=layout, out=tmp_path)
    row = history(tmp_path)[-1]
    assert row["validation"] == pytest.approx(
        (row["validation u"] + row["validation f"]) / 2, rel=1e-14
    )
    assert surrogate.layout is layout


def test_no_picture_without_matplotlib(tmp_path, monkeypatch):
    monkeypatch.setattr(plotting, "available", lambda: False)
    quick(waves(), out=tmp_path)
    assert {f.name for f in tmp_path.iterdir()} == {"best.pt", "last.pt", "history.csv"}


def test_a_bar_only_where_wanted(capsys):
    quick(waves())
    assert capsys.readouterr() == ("", "")
    quick(waves(), progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert "validation=" in err
    assert "best=" in err


def test_each_epoch_is_reported(tmp_path):
    """With its row of the history, once it is on disk."""
    rows = []

    def report(row):
        assert history(tmp_path)[-1] == row
        rows.append(row)

    quick(waves(), epochs=3, out=tmp_path, report=report)
    assert rows == history(tmp_path)
    assert [row["epoch"] for row in rows] == [1, 2, 3]


# ---- resumption


def after(epoch):
    """A report that interrupts the fit when that epoch is on disk."""

    def report(row):
        if row["epoch"] == epoch:
            raise KeyboardInterrupt

    return report


FOUR = {"epochs": 4, "samples_per_mesh": 8, "seed": 3, "learning_rate": 2e-2}


def interrupted(out, epoch=2, **options):
    with pytest.raises(KeyboardInterrupt):
        quick(waves(), out=out, report=after(epoch), **(FOUR | options))


def rows(out):
    """The history without the clock."""
    return [{k: v for k, v in row.items() if k != "seconds"} for row in history(out)]


@pytest.mark.parametrize("epoch", [1, 2, 3])
def test_four_epochs_are_two_and_two(tmp_path, epoch):
    """Bit for bit, from any epoch, into a model and a random state that are others."""
    whole = quick(waves(), out=tmp_path / "whole", **FOUR)
    interrupted(tmp_path / "parts", epoch)
    torch.manual_seed(99)
    other = tiny_model(1, 1, 1)
    reported = []
    resumed = quick(
        waves(), other, out=tmp_path / "parts", resume=True, report=reported.append, **FOUR
    )
    assert [row["epoch"] for row in reported] == list(range(epoch + 1, 5))
    assert torch.equal(weights(resumed), weights(whole))
    assert rows(tmp_path / "parts") == rows(tmp_path / "whole")
    last, expected = (load_checkpoint(tmp_path / run / "last.pt") for run in ("parts", "whole"))
    for name, value in expected["model"]["state"].items():
        assert torch.equal(last["model"]["state"][name], value)
    for key, moments in expected["optimizer"]["state"].items():
        for name, value in moments.items():
            assert torch.equal(last["optimizer"]["state"][key][name], value)
    assert last["schedule"] == expected["schedule"]
    assert torch.equal(last["random"], expected["random"])


def test_the_best_may_be_from_before_the_interruption(tmp_path, monkeypatch):
    states = with_known_errors(monkeypatch, [0.3, 0.5, 0.4, 0.6])
    interrupted(tmp_path)
    surrogate = quick(waves(), out=tmp_path, resume=True, **FOUR)
    assert len(states) == 4
    assert torch.equal(weights(surrogate), states[0])
    assert torch.equal(weights(load(tmp_path)), states[0])
    best, last = (load_checkpoint(tmp_path / f"{name}.pt") for name in ("best", "last"))
    assert (best["epoch"], best["best"], last["epoch"], last["best"]) == (1, 0.3, 4, 0.3)


def test_cut_off_between_the_two_files(tmp_path, monkeypatch):
    """``best.pt`` is an epoch ahead of ``last.pt``; that epoch is repeated."""
    quick(waves(), out=tmp_path / "whole", **FOUR)
    save = Surrogate.save

    def cut(surrogate, path, **more):
        if path.name == "last.pt" and more["epoch"] == 3:
            raise KeyboardInterrupt
        save(surrogate, path, **more)

    monkeypatch.setattr(Surrogate, "save", cut)
    monkeypatch.setattr(_run.Run, "_validate", lambda run, data: {"u": 1 / (1 + len(run.history))})
    with pytest.raises(KeyboardInterrupt):
        quick(waves(), out=tmp_path / "parts", **FOUR)
    monkeypatch.undo()
    best, last = (load_checkpoint(tmp_path / "parts" / f"{name}.pt") for name in ("best", "last"))
    assert (best["epoch"], last["epoch"]) == (3, 2)
    quick(waves(), out=tmp_path / "parts", resume=True, **FOUR)
    last = load(tmp_path / "parts" / "last.pt")
    assert torch.equal(weights(last), weights(load(tmp_path / "whole" / "last.pt")))


def test_a_complete_run_is_returned_as_it_is(tmp_path):
    surrogate = quick(waves(), out=tmp_path, **FOUR)
    before = {name: (tmp_path / name).read_bytes() for name in ("best.pt", "last.pt")}
    torch.manual_seed(99)
    again = quick(
        waves(), tiny_model(1, 1, 1), out=tmp_path, resume=True, report=pytest.fail, **FOUR
    )
    assert torch.equal(weights(again), weights(surrogate))
    assert not again.training
    assert before == {name: (tmp_path / name).read_bytes() for name in before}


def test_a_resumed_fit_leaves_the_global_random_state(tmp_path):
    interrupted(tmp_path)
    torch.manual_seed(5)
    expected = torch.rand(3)
    model = tiny_model(1, 1, 1)
    torch.manual_seed(5)
    quick(waves(), model, out=tmp_path, resume=True, **FOUR)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epochs": 6}, "epochs was 4, now 6"),
        ({"batch_size": 2}, "batch_size was 3, now 2"),
        ({"learning_rate": 1e-3}, "learning_rate was 0.02, now 0.001"),
        ({"weight_decay": 0.0}, "weight_decay was 0.0001, now 0.0"),
        ({"clip": 2}, "clip was 1.0, now 2.0"),
        ({"samples_per_mesh": None}, "samples_per_mesh was 8, now None"),
        ({"seed": 4}, "seed was 3, now 4"),
        ({"validation": 0.25}, "cases was 7, now 6; validation_cases was 1, now 2"),
        ({"layout": Layout(inputs={"f": 1}, outputs={"u": 1}, axes=[0])}, "the layout of the fi"),
        ({"model": tiny_model(1, 1, 1, layers=2)}, "the model was another"),
    ],
)
def test_only_the_same_fit_is_resumed(tmp_path, change, message):
    interrupted(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ValueError, match=rf"last\.pt cannot be resumed: {message}"):
        quick(waves(), **(FOUR | {"out": tmp_path, "resume": True} | change))
    assert before == {path.name: path.read_bytes() for path in tmp_path.iterdir()}


def test_the_order_of_the_fields_counts(tmp_path):
    samples = [replace(s, fields=torch.cat([s.fields, s.fields**2], 1)) for s in waves()]
    a, b = (Layout(inputs=dict.fromkeys(names, 1), outputs={"u": 1}) for names in ("fg", "gf"))
    options = FOUR | {"out": tmp_path}
    with pytest.raises(KeyboardInterrupt):
        quick(samples, tiny_model(1, 2, 1), layout=a, report=after(1), **options)
    with pytest.raises(ValueError, match="the layout of the fields was another"):
        quick(samples, tiny_model(1, 2, 1), layout=b, resume=True, **options)


def test_nothing_to_resume(tmp_path):
    with pytest.raises(ValueError, match=r"run.last\.pt: no such checkpoint"):
        quick(waves(), out=tmp_path / "run", resume=True)
    assert not (tmp_path / "run").exists()
    with pytest.raises(ValueError, match="resume needs out"):
        quick(waves(), resume=True)
    surrogate = quick(waves(), out=tmp_path)
    surrogate.save(tmp_path / "last.pt")
    with pytest.raises(ValueError, match=r"not the state of a fit, \['best', 'epoch', 'hist"):
        quick(waves(), out=tmp_path, resume=True)


def test_numbers_of_numpy(tmp_path):
    """A sweep over them leaves files that can be read, and resumed."""
    options = {"epochs": np.int64(2), "learning_rate": np.float64(1e-3), "seed": np.int64(1)}
    with pytest.raises(KeyboardInterrupt):
        quick(waves(), out=tmp_path, report=after(1), batch_size=np.int32(3), **options)
    plan = load_checkpoint(tmp_path / "last.pt")["plan"]
    assert {type(value) for value in plan.values()} == {int, float, type(None)}
    quick(waves(), out=tmp_path, epochs=2, learning_rate=1e-3, seed=1, resume=True)
    assert len(history(tmp_path)) == 2


# ---- data sets


def test_a_mesh_data_set_with_parameters_and_a_part_of_it(tmp_path):
    data = MeshDataset(
        write_folder(tmp_path, cases=6),
        inputs=["f"],
        outputs=["g"],
        parameters=["speed"],
        progress=False,
    )
    assert data.layout.parts
    model = tiny_model(2, data.in_channels, 1, parameter_channels=1)
    assert quick(data, model).layout is data.layout
    surrogate = quick(Subset(data, [0, 1, 2]), model, validation=Subset(data, [4]))
    assert surrogate.layout is data.layout
    mesh = read_mesh(data.files[5])
    fast = surrogate.predict(mesh).point_data["g_predicted"]
    mesh.point_data["speed"] = np.ones(len(mesh.points))
    assert difference(surrogate.predict(mesh).point_data["g_predicted"], fast) > 1e-6


def test_a_part_of_a_part(tmp_path):
    data = MeshDataset(write_folder(tmp_path, cases=4), outputs=["g"], progress=False)
    part = Subset(Subset(data, [0, 1, 3]), [0, 2])
    surrogate = quick(part, tiny_model(2, 1, 1), validation=Subset(Subset(data, [2]), [0]))
    assert surrogate.layout is data.layout


def test_data_of_another_layout(tmp_path):
    """The same fields on the same nodes, in another order or with another length of boundary."""
    folder = write_folder(tmp_path / "a", cases=3)
    data = MeshDataset(folder, inputs=["f", "speed"], outputs=["g"], progress=False)
    options = {"inputs": ["speed", "f"], "outputs": ["g"], "progress": False}
    swapped = MeshDataset(folder, **options)
    model = tiny_model(2, 3, 1)
    for validation in (swapped, Subset(swapped, [0])):
        with pytest.raises(
            ValueError, match=r"validation has another .* MeshDataset\.from_layout\(files, layout\)"
        ):
            quick(data, model, validation=validation)
    with pytest.raises(ValueError, match="train has another layout"):
        quick(data, model, layout=swapped.layout)
    right = MeshDataset.from_layout(folder, data.layout, progress=False)
    assert quick(data, model, validation=right).layout is data.layout


def test_bare_samples_with_a_boundary_need_a_layout(tmp_path):
    data = MeshDataset(write_folder(tmp_path, cases=3), outputs=["g"], progress=False)
    for train in (list(data), ConcatDataset([data, data])):
        with pytest.raises(ValueError, match="layout="):
            quick(train, tiny_model(2, 1, 1))
        surrogate = quick(train, tiny_model(2, 1, 1), layout=data.layout)
        assert surrogate.layout is data.layout


def test_the_layout_of_bare_samples():
    assert quick(waves()).layout == Layout(inputs={"input": 1}, outputs={"output": 1}, axes=[0])
    samples = [
        replace(s, fields=s.fields[:, :0], parameters=torch.full((2,), float(i)))
        for i, s in enumerate(waves())
    ]
    layout = quick(samples, tiny_model(1, 0, 1, parameter_channels=2)).layout
    assert layout == Layout(outputs={"output": 1}, parameters={"parameter": 2}, axes=[0])


def test_random_points_of_volume_and_boundary(tmp_path, monkeypatch):
    """Each measure is thinned by itself; a mesh without a boundary takes part."""
    data = MeshDataset(write_folder(tmp_path, cases=3), outputs=["g"], progress=False)
    closed = replace(data[0], part=torch.zeros_like(data[0].part), name="closed")
    seen = []
    step = _run.loss

    def watched(surrogate, batch):
        seen.append(batch)
        return step(surrogate, batch)

    monkeypatch.setattr(_run, "loss", watched)
    samples = [*data, closed]
    quick(
        samples,
        tiny_model(2, 1, 1),
        samples_per_mesh=20,
        validation=[data[0]],
        batch_size=1,
        layout=data.layout,
    )
    whole = {sample.name: sample for sample in samples}
    assert {batch.name for batch in seen} == whole.keys()
    for batch in seen:
        sample = whole[batch.name]
        assert abs(batch.source.size - 20) <= 2
        assert difference(batch.inside.total[0], sample.inside.total) < 1e-12
        assert difference(batch.source.total[0], sample.source.total) < 1e-12
        assert batch.on_parts.any() == sample.on_parts.any()


def test_a_batch_on_other_targets():
    samples = [
        Sample(s.source, s.fields, s.parameters, t.source, t.outputs, name=s.name)
        for s, t in zip(waves(), [smoothed(line(7 + i), i) for i in range(8)], strict=True)
    ]
    model = tiny_model(1, 1, 1, decoder_layers=1)
    surrogate = quick(samples, model, samples_per_mesh=6)
    assert surrogate(samples[0]).shape == (7, 1)


# ---- what is refused


def test_a_loss_that_is_not_finite(tmp_path):
    samples = waves()
    samples[3] = replace(samples[3], outputs=samples[3].outputs * float("inf"))
    torch.manual_seed(1)
    scale = Standardizer.fit(waves())
    surrogate = Surrogate(tiny_model(1, 1, 1), scale, Layout(outputs={"u": 1}))
    plan = _run.Plan(
        cases=8, validation_cases=1, epochs=1, batch_size=8, learning_rate=1e-3, weight_decay=0.0,
        clip=1.0, samples_per_mesh=None, seed=0,
    )  # fmt: skip
    run = _run.Run(surrogate, samples, plan)
    before = weights(run.surrogate)
    with pytest.raises(
        FloatingPointError, match=r"the loss is nan in epoch 1 \(.*wave 3.*\); lower"
    ):
        run._train(None)
    assert torch.equal(weights(run.surrogate), before)


@pytest.mark.parametrize(
    ("train", "options", "message"),
    [
        ([], {}, "fit needs cases, got none"),
        (waves(2), {"validation": []}, "got 2 and 0"),
        (waves(1), {}, r"validation=0.1 of 1 case\(s\) leaves none"),
        (waves(4), {"validation": 0.0}, "leaves none"),
        (waves(4), {"validation": 1.0}, "leaves none"),
        (waves(4), {"validation": -0.5}, "leaves none"),
        (waves(4), {"epochs": 0}, "epochs must be at least 1, got 0"),
        (waves(4), {"samples_per_mesh": 0}, "n must be at least 1, got 0"),
        ([replace(s, outputs=None) for s in waves(4)], {}, "has no outputs"),
    ],
)
def test_refused(train, options, message):
    with pytest.raises(ValueError, match=message):
        quick(train, **options)


def test_a_folder_that_cannot_be_made_is_known_at_once(tmp_path, monkeypatch):
    (tmp_path / "run").write_text("a file")
    monkeypatch.setattr(_run.Run, "epoch", lambda *_: pytest.fail("trained before that"))
    with pytest.raises(FileExistsError):
        quick(waves(), out=tmp_path / "run")


def test_a_model_that_cannot_be_written_is_known_at_once(tmp_path, monkeypatch):
    class Local(torch.nn.Module):
        """Not at the top of a module."""

    monkeypatch.setattr(_run.Run, "epoch", lambda *_: pytest.fail("trained before that"))
    with pytest.raises(TypeError, match="Local must be defined at the top of a module"):
        quick(waves(), Local(), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_series_is_held_out_as_a_whole(tmp_path):
    """Steps of one series are alike: one that is trained on says what its neighbour is."""
    for k in range(4):
        steps = [write_square(tmp_path / "square" / f"{k}{i}.vtu", 1 + k + i / 3) for i in range(3)]
        write_series(tmp_path / f"{k}.pvd", steps, range(3))
    data = MeshDataset(
        [tmp_path / f"{k}.pvd" for k in range(4)], inputs=["f"], outputs=["g"], progress=False
    )
    assert data.groups == [k for k in range(4) for _ in range(3)]
    for seed in range(3):
        torch.manual_seed(seed)
        train, held = _hold_out(data, 0.25)
        assert (len(train), len(held)) == (9, 3)
        series = {data.groups[i] for i in held.indices}
        assert len(series) == 1
        assert not series & {data.groups[i] for i in train.indices}
    one = MeshDataset(tmp_path / "0.pvd", inputs=["f"], outputs=["g"], progress=False)
    assert [len(part) for part in _hold_out(one, 0.34)] == [2, 1]
