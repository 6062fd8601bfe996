"""A folder of mesh files as a data set: one file a case, each with a mesh of its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from torch.utils.data import Dataset
from tqdm.auto import tqdm

from opformer._findings import Findings, conclude, find, first_layout
from opformer.cases import Case, find_cases, time_of
from opformer.layout import Layout
from opformer.mesh import Location
from opformer.sample import Sample

__all__ = ["MeshDataset"]


class MeshDataset(Dataset[Sample]):
    """Mesh files as a data set: one file a case, or one step of a file with a time series.

    Parameters
    ----------
    files : path of a folder or of a file, or a list of such paths
        The files of a folder come in the order of their names, a list keeps its own.
    inputs, outputs : names of fields
        On nodes or cells; vectors count with all their components. No inputs: the geometry is the
        input. An input may also be computed from the geometry, ``distance:boundary`` for instance
        (see :mod:`opformer.mesh.derived`), or be taken from another step of a time series, as
        ``first:NAME`` or ``previous:NAME``.
    parameters : names of fields that are constant over each file, or of numbers that it holds
        They enter as global inputs. The time of a step is "time". What a file does not hold is
        taken from a table.
    parameters_file : path of a CSV or JSON file, optional
        The table, see :mod:`opformer.parameters`; by default the ``cases.csv`` or ``cases.json``
        beside each file, if there is one.
    at : "points" or "cells", optional
        Where the samples live; by default where the first output lives in the first file.
    parts : names
        Of what has a measure of its own and is a part of the source (see :mod:`opformer.layout`):
        ``boundary``, or named sets of cells or points (:mod:`opformer.mesh.parts`). Inputs that are
        zero at all other nodes, in every file, are then integrated over the parts alone.
    weights : str
        For points without cells: a rule, or a field that holds the weights (see
        :mod:`opformer.measured`).
    merged : bool
        Points of one place are one point; the seams between pieces are then no boundary.
    steps : str
        Which steps of a time series are taken, as ``start:stop:stride`` or a number.
    numbered : bool
        Files that differ by the number at the end of their names are steps of one time series.
    trajectory : bool
        A time series is one case in space and time (see :mod:`opformer.layout`), not a case a step.
    cache : bool
        Keep the samples in memory (default), or read the files at every access.
    progress : bool
        Show a bar while the files are read.

    Attributes
    ----------
    cases : list of Case
        The files and steps of each.
    layout : Layout
    notes : list of str
        What was done that a user should know of: fields moved, axes left out.

    Raises
    ------
    MeshError
        Naming the file and the field, if one cannot be used.
    """

    def __init__(
        self,
        files: str | Path | Iterable[str | Path],
        *,
        inputs: Sequence[str] = (),
        outputs: Sequence[str] = (),
        parameters: Sequence[str] = (),
        parameters_file: str | Path | None = None,
        at: Location | None = None,
        parts: Sequence[str] = ("boundary",),
        weights: str = "",
        merged: bool = False,
        steps: str = ":",
        numbered: bool = False,
        trajectory: bool = False,
        cache: bool = True,
        progress: bool = True,
    ) -> None:
        names = {"inputs": inputs, "outputs": outputs, "parameters": parameters, "parts": parts}
        _check_names(names)
        layout = Layout(
            dict.fromkeys(inputs, 0),
            dict.fromkeys(outputs, 0),
            dict.fromkeys(parameters, 0),
            weights=weights,
            merged=merged,
            parts=dict.fromkeys(parts, 1.0),
            velocity=float(trajectory),
            steps=steps,
            numbered=numbered,
        )
        self.cases = find_cases(files, parameters_file, layout)
        gathered: list[tuple[list[Sample], list[float]]] = []
        findings: list[Findings] = []
        for case in _bar(self.cases, progress):
            samples, times = [], []
            for step, mesh in zip(case.steps, case.meshes(layout), strict=True):
                with step.named():
                    measured = layout.measured(mesh)
                    layout = layout if findings else first_layout(measured, layout, at)
                    sample = layout.gather(measured, step.name)
                    times.append(time_of(mesh, layout))
                    findings.append(find(measured, sample, layout, times[-1]))
                samples.append(sample)
            if cache:
                gathered.append((samples, times))
        self.layout, self.notes = conclude(layout, findings)
        if repeated := len(self.cases) - len({(c.path.resolve(), c.name) for c in self.cases}):
            self.notes.append(f"{repeated} case(s) are given more than once")
        self._samples = []
        gathered.reverse()
        for case in self.cases if cache else ():
            self._samples.append(_settled(case, self.layout, *gathered.pop()))

    @classmethod
    def from_layout(
        cls,
        files: str | Path | Iterable[str | Path],
        layout: Layout,
        *,
        parameters_file: str | Path | None = None,
        cache: bool = True,
        progress: bool = True,
    ) -> MeshDataset:
        """Another folder, read as the layout of a fitted surrogate says."""
        data = cls.__new__(cls)
        data.cases = find_cases(files, parameters_file, layout)
        data.layout, data.notes, data._samples = layout, [], []
        if cache:
            data._samples = [case.sample(layout) for case in _bar(data.cases, progress)]
        return data

    def __len__(self) -> int:
        return len(self.cases)

    @property
    def groups(self) -> list[int]:
        """Which series, or file, each case belongs to: what a fit holds out as a whole."""
        numbers: dict[Path, int] = {}
        return [numbers.setdefault(case.steps[0].series, len(numbers)) for case in self.cases]

    def __repr__(self) -> str:
        names = {k: list(getattr(self.layout, k)) for k in ("inputs", "outputs", "parameters")}
        fields = ", ".join(f"{what}={found}" for what, found in names.items() if found)
        return f"MeshDataset({len(self)} cases at {self.layout.at}, {fields})"

    @property
    def files(self) -> list[Path]:
        """The file of each case."""
        return [case.path for case in self.cases]

    def __getitem__(self, index: int) -> Sample:
        if not -len(self) <= index < len(self):
            raise IndexError(f"case {index} of {len(self)}")
        return self._samples[index] if self._samples else self.cases[index].sample(self.layout)

    @property
    def dim(self) -> int:
        """Number of coordinates of the samples."""
        return self.layout.dim

    @property
    def in_channels(self) -> int:
        """Components of the inputs together, and one for each part that says what belongs to it."""
        return self.layout.in_channels

    @property
    def out_channels(self) -> int:
        """Components of the outputs together."""
        return self.layout.out_channels

    @property
    def parameter_channels(self) -> int:
        """Components of the parameters together."""
        return self.layout.parameter_channels


def _settled(case: Case, layout: Layout, samples: list[Sample], times: list[float]) -> Sample:
    settled = []
    for step, sample in zip(case.steps, samples, strict=True):
        with step.named():
            settled.append(layout.settle(sample))
    return case.whole(layout, settled, times)


def _bar(cases: list[Case], progress: bool) -> Iterable[Case]:
    return tqdm(cases, desc="reading", unit="case", disable=not progress, leave=False)


def _check_names(names: dict[str, Sequence[str]]) -> None:
    for what, given in names.items():
        if isinstance(given, str):
            raise ValueError(f"{what} must be a list of names, got the string {given!r}")
        if len(set(given)) < len(given):
            raise ValueError(f"{what} name a field twice: {list(given)}")
    if both := sorted({*names["inputs"]} & {*names["outputs"]}):
        raise ValueError(
            f"{both} cannot be inputs and outputs at once; what is known at the first step of a "
            "time series is first:NAME, at the step before previous:NAME"
        )
