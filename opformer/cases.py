"""Which meshes are the cases of a data set: files, steps of time series, or whole trajectories."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from opformer.errors import MeshError
from opformer.layout import Layout
from opformer.mesh import mesh_files, read_mesh, steps_of
from opformer.parameters import ParameterTable, tables_of
from opformer.sample import Sample

__all__ = ["Case", "Step", "find_cases", "is_earlier", "series_of"]

_EARLIER = ("first", "previous")
_NUMBERED = re.compile(r"(.*?)[._-]?(\d+)")


def is_earlier(name: str) -> bool:
    """Whether a field is that of another step: ``first:NAME`` or ``previous:NAME``."""
    when, _, known = name.partition(":")
    return bool(known) and when in _EARLIER


@dataclass(frozen=True)
class Step:
    """One mesh: a file, or a step of a time series.

    Attributes
    ----------
    path, step
        What :func:`opformer.read_mesh` needs.
    number : int, optional
        In the name of the file, if that makes it a step; its time, if the file tells none.
    earlier : dict of "first", "previous" to Step
        In a time series, the first of the steps taken and the one before this.
    """

    path: Path
    step: int | None = None
    number: int | None = None
    earlier: Mapping[str, Step] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Of the file, and of the step if it is one."""
        return self.path.name + ("" if self.step is None else f" step {self.step}")

    def mesh(self, names: Iterable[str] = ()) -> Any:
        """What :func:`opformer.read_mesh` returns, and those of ``names`` of earlier steps."""
        mesh = read_mesh(self.path, step=self.step)
        if self.number is not None:
            mesh.field_data = {"time": np.array([float(self.number)]), **mesh.field_data}
        for name in filter(is_earlier, names):
            if name not in mesh.point_data and name not in mesh.cell_data:
                self._add_earlier(mesh, name)
        return mesh

    @contextmanager
    def named(self) -> Iterator[None]:
        """Put the file's name before the message of an error about its mesh."""
        try:
            yield
        except ValueError as error:
            known = isinstance(error, MeshError) and str(self.path) in str(error)
            where = str(self.path.with_name(self.name))
            raise error if known else MeshError(f"{where}: {error}") from error

    def _add_earlier(self, mesh: Any, name: str) -> None:
        when, _, known = name.partition(":")
        if when not in self.earlier:
            raise MeshError(f"field {name!r} needs a time series, and there is no {when} step here")
        other = self.earlier[when].mesh()
        sizes = [[len(m.points), *map(len, m.cells)] for m in (mesh, other)]
        if sizes[0] != sizes[1]:
            raise MeshError(f"field {name!r} cannot be taken over: the {when} step has other cells")
        found = [data for data in ("point_data", "cell_data") if known in getattr(other, data)]
        if not found:
            raise MeshError(f"field {name!r}: there is no field {known!r} in the {when} step")
        for data in found:
            getattr(mesh, data)[name] = getattr(other, data)[known]


@dataclass(frozen=True)
class Case:
    """A case of a data set: one mesh, or the steps of a trajectory."""

    steps: tuple[Step, ...]
    table: ParameterTable | None = None

    @property
    def path(self) -> Path:
        """Of the file, or of the first one."""
        return self.steps[0].path

    @property
    def name(self) -> str:
        """Of the file, and of the step if it is one."""
        return self.steps[0].name if len(self.steps) == 1 else self.path.name

    def meshes(self, fields: Iterable[str], parameters: Iterable[str]) -> Iterator[Any]:
        """The mesh of each step, with fields of earlier steps and parameters of the table."""
        fields, parameters = list(fields), list(parameters)
        for step in self.steps:
            with step.named():
                mesh = step.mesh(fields)
                if self.table is not None:
                    held = {*mesh.point_data, *mesh.cell_data, *mesh.field_data}
                    missing = [name for name in parameters if name not in held]
                    numbers = self.table.numbers(self.path, missing)
                    mesh.field_data = {**mesh.field_data, **numbers}
                yield mesh

    def sample(self, layout: Layout) -> Sample:
        """Read as the layout says."""
        samples, times = [], []
        for step, mesh in zip(
            self.steps, self.meshes(layout.inputs, layout.parameters), strict=True
        ):
            with step.named():
                samples.append(layout.read(mesh, step.name))
                times.append(time_of(mesh) if layout.trajectory else 0.0)
        return self.whole(layout, samples, times)

    def whole(self, layout: Layout, samples: Sequence[Sample], times: Sequence[float]) -> Sample:
        """The sample of the case, of those of its steps."""
        if not layout.trajectory:
            return samples[0]
        with replace(self.steps[0], step=None).named():
            return layout.join(samples, times, self.name)


def time_of(mesh: Any) -> float:
    """When a step of a trajectory is."""
    if "time" not in mesh.field_data:
        raise MeshError("a step of a trajectory needs a time, and the file tells none")
    return float(np.ravel(mesh.field_data["time"])[0])


def find_cases(
    files: str | Path | Iterable[str | Path],
    table: str | Path | None,
    *,
    steps: str = ":",
    numbered: bool = False,
    trajectory: bool = False,
    earlier: bool = False,
) -> list[Case]:
    """The cases of files and folders.

    Parameters
    ----------
    files, table
        See :class:`opformer.MeshDataset`.
    steps : str
        Which steps of a time series, as in ``start:stop:stride``.
    numbered : bool
        Files that differ by the number at the end of their names are one time series.
    trajectory : bool
        A time series is one case, not as many as it has steps.
    earlier : bool
        Each case needs a step before it: the first of a time series is none.
    """
    paths = [files] if isinstance(files, str | Path) else list(files)
    if not paths:
        raise MeshError("no mesh files: the list is empty")
    found = [file for path in paths for file in _expanded(Path(path))]
    tables = tables_of(found, table)
    cases = []
    for series in series_of(found, steps, numbered):
        taken = series[1:] if earlier else series
        groups = [tuple(taken)] if trajectory else [(step,) for step in taken]
        cases += [Case(group, tables[group[0].path]) for group in groups if group]
    if not cases:
        raise MeshError(f"no cases: steps {steps!r} of {len(found)} file(s) are none")
    return cases


def series_of(files: Sequence[Path], steps: str = ":", numbered: bool = False) -> list[list[Step]]:
    """The steps of each file that are taken, in their order; of a mesh without time, itself."""
    chosen = _slice(steps)
    groups = _by_number(files) if numbered else [[(file, None)] for file in files]
    found = []
    for group in groups:
        series = [Step(file, step, number) for file, number in group for step in steps_of(file)]
        found.append(_linked(series[chosen]) if len(series) > 1 else series)
    return found


def _linked(series: list[Step]) -> list[Step]:
    return [
        replace(step, earlier={"first": series[0]} | ({"previous": series[i - 1]} if i else {}))
        for i, step in enumerate(series)
    ]


def _by_number(files: Sequence[Path]) -> list[list[tuple[Path, int | None]]]:
    """Files in groups of one name but for the number at its end, by that number."""
    groups: dict[Path, list[tuple[Path, int | None]]] = {}
    for file in files:
        match = _NUMBERED.fullmatch(file.stem)
        key = file.with_name(match[1] + file.suffix) if match else file
        groups.setdefault(key, []).append((file, int(match[2]) if match else None))
    return [sorted(group, key=lambda entry: entry[1] or 0) for group in groups.values()]


def _slice(text: str) -> slice:
    """``start:stop:stride``, or one number for one step."""
    try:
        if ":" not in text:
            return slice(int(text), int(text) + 1 or None)
        numbers = [int(part) if part.strip() else None for part in text.split(":")]
        chosen = slice(*numbers)
        chosen.indices(0)  # refuses a stride of 0
    except (TypeError, ValueError) as error:
        raise ValueError(f"steps must be like 10:100:5, or a number, got {text!r}") from error
    return chosen


def _expanded(path: Path) -> list[Path]:
    """A file as it is, a folder as its mesh files in the order of their names."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise MeshError(f"{path}: no such file or folder")
    found = mesh_files(path)
    if not found:
        raise MeshError(
            f"{path}: no mesh files in this folder, expected one for each case "
            "(.vtu, .vtk, .xdmf, .msh, …)"
        )
    return found
