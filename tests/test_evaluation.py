"""Errors are integrals in physical units: closed forms on graded meshes, any order, any batch."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace

import pytest
import torch
from cases import exact_surrogate, line, smoothed, square, tiny_model, write_folder, write_square
from tolerances import difference

from opformer import (
    Domain,
    Layout,
    MeshDataset,
    MeshError,
    Sample,
    Standardizer,
    Surrogate,
    collate,
    evaluate,
    read_mesh,
    refinement_study,
)
from opformer.evaluation import Evaluation, relative_l2
from opformer.refinement import observed_orders
from opformer.testing import observed_order


def function_sample(domain, f, u, name="case"):
    """Input f and output u, functions of the points."""
    x = domain.points
    return Sample(domain, f(x), torch.zeros(0), outputs=u(x), name=name)


def shifted(n, grade, offset=0.1, name="case"):
    """Input x + 1; the rule f -> f + offset is off by the offset everywhere."""
    return function_sample(line(n, grade), lambda x: x + 1, lambda x: x + 1, name)


OFF = exact_surrogate(lambda f: f + 0.1)


# ---- the metric


@pytest.mark.parametrize("grade", [1.0, 3.0])
def test_relative_l2_against_the_closed_form(grade):
    """u = 1 + x, error x: (1/3)^½ / (7/3)^½, at order 2; the plain mean over nodes is off."""
    errors = []
    for n in (33, 65, 129):
        domain = line(n, grade)
        x = domain.points
        got, relative = relative_l2(1 + 2 * x, 1 + x, domain)
        assert relative
        errors.append(abs(got.item() - math.sqrt(1 / 7)))
    assert observed_order([1 / 32, 1 / 64, 1 / 128], errors, at_least=1.9) < 2.1
    assert errors[-1] < 1e-4
    plain, _ = relative_l2(1 + 2 * x, 1 + x, Domain(x, torch.ones(129)))
    assert (abs(plain - math.sqrt(1 / 7)) > 0.02) == (grade == 3.0)


def test_all_components_count_together():
    domain = line(17, 2.0)
    truth = torch.tensor([3.0, 4.0]).expand(17, 2)
    error, _ = relative_l2(truth + torch.tensor([0.3, -0.4]), truth, domain)
    assert difference(error, 0.1) < 1e-14


def test_a_zero_truth_gives_the_absolute_error():
    domain = Domain(line(9).points * 4, line(9).weights * 4)
    error, relative = relative_l2(torch.full((9, 1), 0.5), torch.zeros(9, 1), domain)
    assert not relative
    assert difference(error, 1.0) < 1e-14  # (∫ 0.25 over a length of 4)^½


def test_null_points_do_not_count():
    domain = Domain(torch.rand(3, 1), torch.tensor([1.0, 1.0, 0.0]))
    truth = torch.ones(3, 1)
    error, _ = relative_l2(torch.tensor([[1.1], [0.9], [torch.nan]]), truth, domain)
    assert difference(error, 0.1) < 1e-14


def test_a_batch_of_errors_is_the_loop():
    samples = [smoothed(line(n, 2.0), seed) for seed, n in enumerate((9, 20, 31))]
    batch = collate(samples)
    errors, relative = relative_l2(batch.fields, batch.outputs, batch.domain)
    single = [relative_l2(s.fields, s.outputs, s.domain)[0] for s in samples]
    assert relative.all()
    assert difference(errors, torch.stack(single)) < 1e-14


# ---- evaluate


def test_one_case_by_hand():
    (case,) = evaluate(OFF, [shifted(33, 2.0, name="a")], progress=False).cases
    assert (case.dataset, case.case, case.nodes, case.field) == ("dataset 0", "a", 33, "u")
    square_norm = line(33, 2.0).integrate((line(33, 2.0).points[:, 0] + 1).square())
    assert difference(case.relative_l2, 0.1 / square_norm.sqrt()) < 1e-12
    assert difference(case.max_error, 0.1) < 1e-12
    assert difference(case.integral_error, 0.1 / 1.5) < 1e-12  # ∫ 1 + x is exact
    below = exact_surrogate(lambda f: f - 0.1)
    (under,) = evaluate(below, [shifted(33, 2.0)], progress=False).cases
    assert difference(under.max_error, 0.1) < 1e-12
    assert difference(under.integral_error, 0.1 / 1.5) < 1e-12
    assert case.relative is True
    assert case.relative_l2_uniform is None


def test_means_do_not_depend_on_order_or_company():
    samples = [shifted(n, g, name=f"{n}") for n, g in ((9, 1.0), (17, 2.0), (40, 3.0))]
    a, b = evaluate(OFF, samples, progress=False), evaluate(OFF, samples[::-1], progress=False)
    assert a.cases == b.cases[::-1]
    singles = [evaluate(OFF, [s], progress=False).cases[0].relative_l2 for s in samples]
    mean = a.summary()[0]["fields"]["u"]["relative_l2"]
    assert difference(mean, sum(singles) / 3) < 1e-14
    assert difference(b.summary()[0]["fields"]["u"]["relative_l2"], mean) < 1e-14
    assert a.summary()[0]["nodes_mean"] == 22
    assert a.summary()[0]["cases"] == 3


def test_refined_regions_do_not_count_more():
    """An error in the refined corner: the same on all meshes, as long as it is resolved."""
    bump = exact_surrogate(lambda f: f + torch.exp(-8 * f))
    samples = [
        function_sample(line(n, g), lambda x: x, lambda x: x) for n, g in ((257, 1.0), (257, 3.0))
    ]
    even, graded = (c.relative_l2 for c in evaluate(bump, samples, progress=False).cases)
    exact = math.sqrt((1 - math.exp(-16)) / 16 * 3)
    assert abs(even / exact - 1) < 2e-3
    assert abs(graded / exact - 1) < 2e-3


def test_inputs_do_not_count():
    """Only outputs are compared, each field by itself."""
    rule = exact_surrogate(lambda f: torch.cat([f, f, 2 * f], -1), a=2, b=1)
    sample = function_sample(
        line(9), lambda x: x + 1, lambda x: torch.cat([x + 1, x + 1, x + 1], -1)
    )
    errors = {c.field: c.relative_l2 for c in evaluate(rule, [sample], progress=False).cases}
    assert errors["a"] < 1e-15
    assert difference(errors["b"], 1.0) < 1e-14


def test_a_zero_truth_is_flagged():
    zero = function_sample(line(9), lambda x: x + 1, torch.zeros_like)
    evaluation = evaluate(OFF, [zero, shifted(9, 1.0)], progress=False)
    assert [c.relative for c in evaluation.cases] == [False, True]
    norm = line(9).norm(line(9).points + 1.1)
    assert difference(evaluation.cases[0].relative_l2, norm) < 1e-14
    assert difference(evaluation.cases[0].integral_error, 1.6) < 1e-14
    assert "1 of them have a truth of zero" in str(evaluation)


def test_the_ablation_changes_the_model_alone():
    """Against a model that sees equal weights, judged under the same measure."""
    samples = [smoothed(line(33, 3.0), seed) for seed in range(3)]
    layout = Layout(inputs={"f": 1}, outputs={"u": 1}, axes=[0])
    surrogate = Surrogate(tiny_model(1, 1, 1), Standardizer.fit(samples), layout).eval()
    cases = evaluate(surrogate, samples, uniform=True, progress=False).cases
    for case, sample in zip(cases, samples, strict=True):
        with torch.no_grad():
            y = surrogate(replace(sample, source=sample.source.uniform()))
        expected, _ = relative_l2(y, sample.outputs, sample.domain)
        assert difference(case.relative_l2_uniform, expected) < 1e-12
        assert abs(case.relative_l2_uniform - case.relative_l2) > 1e-4
    assert evaluate(surrogate, samples, progress=False).cases[0].relative_l2 == cases[0].relative_l2
    (same,) = evaluate(OFF, [shifted(33, 2.0)], uniform=True, progress=False).cases
    assert same.relative_l2_uniform == same.relative_l2


def test_boundary_copies_are_not_judged():
    sample = shifted(9, 1.0)
    twice = torch.cat([torch.arange(9), torch.tensor([0, 8])])
    both = Sample(
        sample.source.take(twice),
        sample.fields[twice],
        sample.parameters,
        outputs=torch.cat([sample.outputs, torch.full((2, 1), 1e9)]),
        part=(torch.arange(11) >= 9).long(),
        name="case",
    )
    a, b = (evaluate(OFF, [s], progress=False).cases[0] for s in (sample, both))
    assert vars(a) == vars(b)


def test_another_target():
    sample, fine = shifted(9, 1.0), line(41, 2.0)
    x = fine.points
    case = Sample(sample.source, sample.fields, sample.parameters, fine, x + 1)
    (got,) = evaluate(OFF, [case], progress=False).cases
    # The input x + 1 is read off the source's nodes by interpolation, up to its first order.
    assert abs(got.relative_l2 - 0.1 / float(fine.norm(x + 1))) < 0.02


def test_folders_and_their_table(tmp_path):
    coarse = write_folder(tmp_path / "coarse", cases=2, n=(3, 4))
    fine = write_folder(tmp_path / "fine", cases=3, n=(8,))
    data = MeshDataset(coarse, inputs=["f"], outputs=["g", "v"], progress=False)
    surrogate = Surrogate(tiny_model(2, 2, 3), Standardizer.fit(data), data.layout).eval()
    evaluation = evaluate(surrogate, coarse, str(fine), uniform=True, progress=False)
    first, second = evaluation.summary()
    assert (first["path"], second["path"]) == (str(coarse), str(fine))
    assert (first["cases"], second["cases"]) == (2, 3)
    assert (first["nodes_mean"], second["nodes_mean"]) == (20.5, 81)
    in_memory = evaluate(surrogate, data, uniform=True, progress=False).summary()[0]
    assert in_memory["fields"] == first["fields"]

    evaluation.write_json(tmp_path / "out" / "evaluation.json")
    read = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    assert read == {"datasets": [first, second]}
    assert list(read["datasets"][0]["fields"]) == ["g", "v"]
    assert read["datasets"][0]["fields"]["g"].keys() == {
        "relative_l2",
        "max_error",
        "integral_error",
        "relative_l2_uniform",
    }

    evaluation.write_csv(tmp_path / "out" / "evaluation.csv")
    with open(tmp_path / "out" / "evaluation.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * (2 + 3)
    assert rows[0]["case"] == "case_00.vtu"
    assert [float(row["relative_l2"]) for row in rows] == [c.relative_l2 for c in evaluation.cases]

    lines = str(evaluation).splitlines()
    assert " ".join(lines[0].split()) == "data cases nodes g ratio no weights v ratio no weights"
    assert len({len(line) for line in lines[:4]}) == 1
    error = second["fields"]["g"]["relative_l2"]
    assert lines[3].split()[:5] == [
        str(fine), "3", "81", f"{error:.4f}", f"{error / first['fields']['g']['relative_l2']:.2f}",
    ]  # fmt: skip
    assert lines[2].split()[4] == "1.00"


def test_refused(tmp_path):
    with pytest.raises(ValueError, match="at least one data set"):
        evaluate(OFF)
    with pytest.raises(ValueError, match="dataset 1 has no cases"):
        evaluate(OFF, [shifted(9, 1.0)], [], progress=False)
    with pytest.raises(ValueError, match="'case' has no outputs"):
        evaluate(OFF, [replace(shifted(9, 1.0), outputs=None)], progress=False)
    with pytest.raises(MeshError, match="nowhere: no such file or folder"):
        evaluate(OFF, tmp_path / "nowhere", progress=False)


def test_no_bar_without_progress(capsys):
    evaluate(OFF, [shifted(9, 1.0)], progress=False)
    assert capsys.readouterr() == ("", "")
    assert isinstance(evaluate(OFF, [shifted(9, 1.0)]), Evaluation)
    assert "dataset 0" in capsys.readouterr().err


# ---- refinement


@pytest.mark.parametrize("order", [1, 2, 4])
def test_refinement_with_labels_finds_the_order(order):
    """An operator whose error is exactly n^-p, relative to the truth."""

    def operator(sample):
        return sample.outputs * (1 + (sample.source.size - 1.0) ** -order)

    study = refinement_study(operator, [shifted(n, 2.0) for n in (9, 17, 33)])
    assert difference(study.errors, [8.0**-order, 16.0**-order, 32.0**-order]) < 1e-9
    assert difference(study.h, [1 / 9, 1 / 17, 1 / 33]) < 1e-14
    assert study.nodes == [9, 17, 33]
    expected = math.log(2**order) / math.log(17 / 9)
    assert difference(study.orders[0], expected) < 1e-9
    lines = str(study).splitlines()
    assert len(lines) == 5
    assert lines[2].split()[-1] == f"{expected:.2f}"
    assert "the truth" in lines[-1]


def nested(dim, n, grade):
    """A mesh of 2^k refinements whose nodes are nodes of the next, with a smooth input."""
    if dim == 1:
        domain = line(n + 1, grade)
    else:
        domain = Domain.from_mesh(square(n, grade))
        domain = Domain(domain.points[:, :2], domain.weights)
    return Sample(domain, torch.sin(2 * domain.points.sum(-1, keepdim=True)), torch.zeros(0))


@pytest.mark.parametrize(("dim", "grade"), [(1, 1.0), (1, 2.0), (2, 1.0), (2, 1.5)])
def test_refinement_without_labels_is_the_quadrature_error(dim, grade):
    """Random blocks converge with order 2 to themselves; without weights to something else."""
    model = tiny_model(dim, 1, 2, layers=2).eval()
    samples = [
        nested(dim, n, grade) for n in ((8, 16, 32, 64, 256) if dim == 1 else (6, 12, 24, 72))
    ]

    def operator(sample):
        return model(sample.source, sample.fields, sample.target, sample.parameters)

    study = refinement_study(operator, samples, labels=False)
    assert study.nodes == [s.source.size for s in samples[:-1]]
    observed_order(study.h, study.errors, at_least=1.9)
    assert 1.9 < study.orders[-1] < 2.4
    assert study.errors[-1] < 0.02
    assert f"the operator on {samples[-1].source.size} nodes" in str(study)
    if grade > 1:
        plain = [replace(s, source=s.source.uniform()) for s in samples]
        truth = operator(replace(samples[-1], target=samples[0].source)).detach()
        off, _ = relative_l2(
            operator(replace(plain[-1], target=samples[0].source)), truth, samples[0].source
        )
        assert off > 3 * study.errors[-1]


@pytest.mark.parametrize(("axis", "jitter"), [(None, 0.6), (0, 0.0)], ids=["not nested", "causal"])
def test_a_surrogate_moves_with_order_two(axis, jitter):
    """Inputs at the points of the first mesh are known there, and need not be interpolated.

    A causal surrogate would refuse to; between nodes of time one case alone shows no clean order.
    """
    model = tiny_model(1, 1, 1, layers=2, causal_axis=axis).eval()
    surrogate = Surrogate(model, Standardizer(1, 1, 0, 1), Layout({"f": 1}, {"y": 1}, {}))
    samples = []
    for n in (24, 48, 96, 1536):
        grid = line(n + 1, 1.5, jitter=jitter)
        samples.append(Sample(grid, torch.sin(5 * grid.points)))
    study = refinement_study(surrogate, samples, labels=False)
    assert study.nodes == [25, 49, 97]
    observed_order(study.h, study.errors, at_least=1.8)
    some = samples[0].source.take(slice(3, 9))
    asked = replace(samples[0], target=some, target_fields=samples[0].fields[3:9])
    assert difference(surrogate(asked), surrogate(samples[0])[3:9]) < 1e-12


def test_fields_of_other_units_count_alike():
    """A surrogate's errors are taken field by field: pascals do not drown metres."""
    surrogate = exact_surrogate(lambda f: torch.cat([1.1 * f, 1e6 * f, -1e6 * f], 1), u=1, p=2)
    samples = []
    for n in (9, 17):
        f = smoothed(line(n), 3).fields
        samples.append(Sample(line(n), f, outputs=torch.cat([f, 1e6 * f, -1.2e6 * f], 1)))
    pressure = 0.2 / math.sqrt(1 + 1.2**2)
    study = refinement_study(surrogate, samples)
    assert difference(study.errors, [(0.1 + pressure) / 2] * 2) < 1e-12
    together = refinement_study(lambda s: surrogate(s), samples)
    assert difference(together.errors, [pressure] * 2) < 1e-9

    def gain(f):  # moves by a tenth in the first field alone, when the mesh is refined
        scale = 1.1 if f.numel() == 9 else 1.0
        return torch.cat([scale * f, 1e6 * f, -1e6 * f], 1)

    moving = exact_surrogate(gain, u=1, p=2)
    moving.forward = lambda s: gain(s.fields)[:9] if s.size == 9 else gain(s.fields[::2])
    study = refinement_study(moving, samples, labels=False)
    first, second = (gain(s.fields[:: 1 if s.size == 9 else 2])[:, :1] for s in samples)
    error, _ = relative_l2(first, second, samples[0].source)
    assert difference(study.errors, [float(error) / 2]) < 1e-12


def test_a_study_of_files(tmp_path):
    """A data set is a sequence of samples; so is a generator."""
    paths = [tmp_path / f"{n}.vtu" for n in (4, 8, 16)]
    for path, n in zip(paths, (4, 8, 16), strict=True):
        write_square(path, 1.0, n)
    surrogate = exact_surrogate(lambda f: 1.1 * f, dim=2, f=1)
    data = MeshDataset.from_layout(paths, surrogate.layout, cache=False, progress=False)
    study = refinement_study(surrogate, data)
    assert difference(study.errors, [0.1] * 3) < 1e-12
    assert study.nodes == [25, 81, 289]
    samples = (surrogate.layout.read(read_mesh(path), outputs=False) for path in paths)
    itself = refinement_study(surrogate, samples, labels=False)
    assert itself.nodes == [25, 81]
    assert max(itself.errors) < 1e-12


def test_samples_follow_the_operator():
    """To its device; ``meta`` stands in for an accelerator as far as the move."""

    class Elsewhere:
        device = torch.device("meta")

        def __call__(self, sample):
            raise RuntimeError(f"called on {sample.fields.device}, {sample.source.points.device}")

    with pytest.raises(RuntimeError, match="called on meta, meta"):
        refinement_study(Elsewhere(), [shifted(9, 1.0)])


def test_the_dimension_of_a_surface():
    domain = Domain(torch.rand(100, 3), torch.full((100,), 0.04))
    sample = Sample(domain, torch.ones(100, 1), torch.zeros(0), outputs=torch.ones(100, 1))
    study = refinement_study(lambda s: s.outputs * 1.1, [sample], dim=2)
    assert difference(study.h, [0.2]) < 1e-14
    assert difference(study.errors, [0.1]) < 1e-12
    assert study.orders == []
    assert difference(refinement_study(lambda s: s.outputs, [sample]).h, [0.04 ** (1 / 3)]) < 1e-14


def test_a_study_needs_meshes():
    with pytest.raises(ValueError, match="needs 1 meshes at least, got 0"):
        refinement_study(lambda s: s.outputs, [])
    with pytest.raises(ValueError, match="needs 2 meshes at least, got 1"):
        refinement_study(lambda s: s.outputs, [shifted(9, 1.0)], labels=False)
    with pytest.raises(ValueError, match="has no outputs"):
        refinement_study(lambda s: s.fields, [replace(shifted(9, 1.0), outputs=None)])


def test_observed_orders():
    assert difference(observed_orders([0.4, 0.2, 0.1], [0.16, 0.04, 0.005]), [2.0, 3.0]) < 1e-12
    assert observed_orders([0.1], [0.3]) == []
    assert [math.isnan(p) for p in observed_orders([0.2, 0.1, 0.1], [0.1, 0.0, 0.1])] == [
        True,
        True,
    ]
