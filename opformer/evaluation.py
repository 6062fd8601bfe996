r"""Errors under the measure, on the training mesh and on finer ones.

.. math:: e = \frac{\|\hat y-y\|_{L^2(\mu)}}{\|y\|_{L^2(\mu)}}, \qquad
   \|f\|_{L^2(\mu)}^2 = \int_\Omega |f|^2\,d\mu \approx \sum_s w_s |f_s|^2

for each case and field, in physical units, over all components of the field; then the mean over
cases. An integral does not over-count the points of a refined region, and a case counts the same in
any batch.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, cast

import torch
from torch import Tensor
from tqdm.auto import tqdm

from opformer._files import replacing
from opformer.data import MeshDataset
from opformer.domain import Domain
from opformer.sample import Sample
from opformer.surrogate import Surrogate

__all__ = ["CaseError", "Evaluation", "evaluate", "relative_l2"]


def relative_l2(prediction: Tensor, truth: Tensor, domain: Domain) -> tuple[Tensor, Tensor]:
    """Relative L²(μ) error over all components, and whether it is relative at all.

    Parameters
    ----------
    prediction, truth : Tensor, shape (..., n, c)
    domain : Domain of n points

    Returns
    -------
    error : Tensor, shape (...)
        Where the truth is zero, the absolute error instead.
    relative : Tensor of bool, shape (...)

    Raises
    ------
    ValueError
        If the two have not the same shape: a difference that broadcasts is no error.
    """
    if prediction.shape != truth.shape:
        raise ValueError(
            "prediction and truth must have one shape, "
            f"got {tuple(prediction.shape)} and {tuple(truth.shape)}"
        )
    size = domain.norm(truth)
    relative = size > 0
    return domain.norm(prediction - truth) / _or_one(size), relative


@dataclass(frozen=True)
class CaseError:
    """One case and field: errors in physical units.

    Attributes
    ----------
    relative_l2 : float
        The absolute L²(μ) error where the truth is zero; ``relative`` is False then.
    max_error : float
        The largest error at a point of positive measure.
    integral_error : float
        Error of ∫ y dμ over the integral of the modulus of y: conservation.
    relative_l2_uniform : float, optional
        ``relative_l2`` of the same model with all weights set equal in its attention.
    """

    dataset: str
    case: str
    nodes: int
    field: str
    relative_l2: float
    relative: bool
    max_error: float
    integral_error: float
    relative_l2_uniform: float | None = None


@dataclass(frozen=True)
class Evaluation:
    """Errors of all cases of some data sets; prints as a table, writes itself as JSON and CSV."""

    cases: list[CaseError]

    def summary(self) -> list[dict[str, Any]]:
        """Means over the cases of each data set, in the order of evaluation."""
        return [self._summarise(path) for path in dict.fromkeys(c.dataset for c in self.cases)]

    def write_json(self, path: str | Path) -> None:
        """Write the summary.

        ``{"datasets": [{"path", "cases", "nodes_mean", "fields": {name: {"relative_l2", …}}}]}``
        """
        with replacing(path) as temporary:
            text = json.dumps({"datasets": self.summary()}, indent=2)
            temporary.write_text(text + "\n", encoding="utf-8")

    def write_csv(self, path: str | Path) -> None:
        """One row for each case and field."""
        with replacing(path) as temporary, open(temporary, "w", newline="", encoding="utf-8") as f:
            writer = csv.DictWriter(f, list(CaseError.__dataclass_fields__))
            writer.writeheader()
            writer.writerows(vars(case) for case in self.cases)

    def __str__(self) -> str:
        rows = self.summary()
        lines = _table(rows)
        lines.append("relative L2(μ), mean over the cases; ratio to the first row")
        zero = sum(not case.relative for case in self.cases)
        if zero:
            lines.append(
                f"{zero} of them have a truth of zero: their absolute error is in the mean"
            )
        return "\n".join(lines)

    def _summarise(self, path: str) -> dict[str, Any]:
        here = [case for case in self.cases if case.dataset == path]
        names = list(dict.fromkeys(case.field for case in here))
        fields = {name: _means([case for case in here if case.field == name]) for name in names}
        count = len(here) // len(names)
        return {
            "path": path,
            "cases": count,
            "nodes_mean": fmean(c.nodes for c in here),
            "fields": fields,
        }


def evaluate(
    surrogate: Surrogate,
    *datasets: str | Path | Sequence[Sample],
    parameters_file: str | Path | None = None,
    uniform: bool = False,
    progress: bool = True,
) -> Evaluation:
    """Errors of a surrogate on data sets: the same folder of shapes on finer meshes, for instance.

    Parameters
    ----------
    surrogate : Surrogate
    *datasets : folders of mesh files, or sequences of samples
    parameters_file : path, optional
        The table of the folders, see :class:`opformer.MeshDataset`.
    uniform : bool
        Also evaluate the model with all its weights set equal. The errors stay integrals.
    progress : bool

    Returns
    -------
    Evaluation
    """
    if not datasets:
        raise ValueError("evaluate needs at least one data set, got none")
    cases: list[CaseError] = []
    for number, data in enumerate(datasets):
        name, samples = f"dataset {number}", cast(Sequence[Sample], data)
        if isinstance(data, str | Path):
            files = MeshDataset.from_layout(
                data, surrogate.layout, parameters_file=parameters_file, cache=False
            )
            name, samples = str(data), cast(Sequence[Sample], files)
        if getattr(samples, "layout", surrogate.layout) != surrogate.layout:
            raise ValueError(
                f"{name} was read with another layout than the surrogate's: "
                "use MeshDataset.from_layout(files, surrogate.layout), or give the folder"
            )
        if not len(samples):
            raise ValueError(f"{name} has no cases")
        if name in {case.dataset for case in cases}:
            raise ValueError(f"{name} is given twice")
        # An index, not an iterator: a lazy data set reads each file when its turn comes.
        order = tqdm(range(len(samples)), desc=name, unit="case", disable=not progress, leave=False)
        for i in order:
            cases += _case_errors(surrogate, samples[i], name, uniform)
    return Evaluation(cases)


def _table(rows: list[dict[str, Any]]) -> list[str]:
    """Lines of a table: a row for each data set, three columns for each field."""
    names = list(rows[0]["fields"])
    uniform = rows[0]["fields"][names[0]]["relative_l2_uniform"] is not None
    width = max(len("data"), *(len(row["path"]) for row in rows))
    head = f"{'data':{width}}  {'cases':>5}  {'nodes':>7}"
    for name in names:
        head += f"  {name[:14]:>14}  {'ratio':>6}" + (f"  {'no weights':>10}" if uniform else "")
    lines = [head, "-" * len(head)]
    for row in rows:
        line = f"{row['path']:{width}}  {row['cases']:5d}  {row['nodes_mean']:7.0f}"
        for name in names:
            error, first = row["fields"][name], rows[0]["fields"][name]["relative_l2"]
            ratio = error["relative_l2"] / first if first else float("nan")
            line += f"  {error['relative_l2']:14.4f}  {ratio:6.2f}"
            line += f"  {error['relative_l2_uniform']:10.4f}" if uniform else ""
        lines.append(line)
    return lines


def _means(cases: Sequence[CaseError]) -> dict[str, float | None]:
    names = ("relative_l2", "max_error", "integral_error", "relative_l2_uniform")
    columns = {name: [getattr(case, name) for case in cases] for name in names}
    return {name: None if None in values else fmean(values) for name, values in columns.items()}


@torch.no_grad()
def _case_errors(
    surrogate: Surrogate, sample: Sample, dataset: str, uniform: bool
) -> Iterator[CaseError]:
    sample, split = sample.to(surrogate.device), surrogate.layout.split
    truths, predictions = split(sample.truth), split(surrogate(sample))
    plain = split(surrogate(sample, uniform=True)) if uniform else {}
    domain = sample.domain
    for name, truth in truths.items():
        difference = domain.zero_null(predictions[name] - truth)
        size = domain.integrate(truth.abs()).sum()
        error, relative = relative_l2(predictions[name], truth, domain)
        yield CaseError(
            dataset=dataset,
            case=sample.name,
            nodes=sample.size,
            field=name,
            relative_l2=error.item(),
            relative=bool(relative),
            max_error=difference.abs().max().item(),
            integral_error=(domain.integrate(difference).abs().sum() / _or_one(size)).item(),
            relative_l2_uniform=(
                relative_l2(plain[name], truth, domain)[0].item() if uniform else None
            ),
        )


def _or_one(size: Tensor) -> Tensor:
    """The size to divide by: where it is zero an error stays absolute."""
    return torch.where(size > 0, size, 1)
