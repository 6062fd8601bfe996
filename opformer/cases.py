"""Which meshes are the cases of a data set: files, steps of time series, or whole trajectories."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from opformer.errors import MeshError
from opformer.layout import Layout
from opformer.mesh import mesh_files, read_mesh, same_cells, steps_of, with_fields
from opformer.parameters import ParameterTable, tables_of
from opformer.sample import Sample

__all__ = ["Case", "Step", "find_cases", "series_of", "time_of"]

_EARLIER = ("first", "previous")
_NUMBERED = re.compile(r"(.*?)[._-]?(\d+)")


@dataclass(frozen=True)
class Step:
    """One mesh: a file, or a step of a time series.

    Attributes
    ----------
    path, step
        What :func:`opformer.read_mesh` needs.
    series : path
        The file of the series, or the first of its numbered files.
    number : int, optional
        In the name of the file, if that makes it a step: its time, if nothing else tells it.
    earlier : dict of "first", "previous" to Step
        Of a time series, its first step, and the one before this: a stride back if one is given.
    table : ParameterTable, optional
    """

    path: Path
    step: int | None = None
    series: Path = Path()
    number: int | None = None
    earlier: Mapping[str, Step] = field(default_factory=dict)
    table: ParameterTable | None = None

    @property
    def name(self) -> str:
        """Of the file, and of the step if it is one."""
        return self.path.name + ("" if self.step is None else f" step {self.step}")

    def mesh(self, parameters: Iterable[str] = ()) -> Any:
        """What :func:`opformer.read_mesh` returns, with those of the parameters that it lacks.

        They are in the table, in the row of the file or in that of its series; and the time may be
        the number of the file.
        """
        mesh = read_mesh(self.path, step=self.step)
        held = {*mesh.point_data, *mesh.cell_data, *mesh.field_data}
        known = self._known([name for name in parameters if name not in held])
        mesh.field_data = {**known, **mesh.field_data}
        return mesh

    def complete(self, mesh: Any, fields: Iterable[str]) -> Any:
        """The mesh with those of the fields that are of an earlier step, ``first:NAME``."""
        points: dict[str, Any] = {}
        cells: dict[str, Any] = {}
        read: dict[str, Any] = {}
        for name in fields:
            when, _, known = name.partition(":")
            if when in _EARLIER and name not in mesh.point_data and name not in mesh.cell_data:
                if when not in read:
                    read[when] = self._earlier(mesh, name, when)
                other = read[when]
                if known not in other.point_data and known not in other.cell_data:
                    raise MeshError(
                        f"field {name!r}: there is no field {known!r} in the {when} step"
                    )
                points |= {name: other.point_data[known]} if known in other.point_data else {}
                cells |= {name: other.cell_data[known]} if known in other.cell_data else {}
        return with_fields(mesh, point_data=points, cell_data=cells) if points or cells else mesh

    @contextmanager
    def named(self) -> Iterator[None]:
        """Put the file's name before the message of an error about its mesh."""
        try:
            yield
        except ValueError as error:
            known = isinstance(error, MeshError) and str(self.path) in str(error)
            where = str(self.path.with_name(self.name))
            raise error if known else MeshError(f"{where}: {error}") from error

    def _known(self, missing: Sequence[str]) -> dict[str, Any]:
        """Parameters that the file does not hold: of the table, and the number as a time."""
        known = {} if self.number is None else {"time": np.array([float(self.number)])}
        if self.table is None or not missing:
            return known
        file = self.path if self.table.row(self.path) else self.series
        # A time need not be told at all; any other parameter is missing if the table has none.
        wanted = [name for name in missing if name != "time" or name in self.table.row(file)]
        return {**known, **self.table.numbers(file, wanted)}

    def _earlier(self, mesh: Any, name: str, when: str) -> Any:
        if when not in self.earlier:
            raise MeshError(f"field {name!r} needs a time series, and there is no {when} step here")
        other = self.earlier[when].mesh()
        if len(mesh.points) != len(other.points) or not same_cells(mesh, other):
            raise MeshError(f"field {name!r} cannot be taken over: the {when} step has other cells")
        return other


@dataclass(frozen=True)
class Case:
    """A case of a data set: one mesh, or the steps of a trajectory."""

    steps: tuple[Step, ...]

    @property
    def path(self) -> Path:
        """Of the file, or of the first one."""
        return self.steps[0].path

    @property
    def name(self) -> str:
        """Of the file, and of the step if it is one."""
        return self.steps[0].name if len(self.steps) == 1 else self.path.name

    def meshes(self, layout: Layout) -> Iterator[Any]:
        """The mesh of each step, with all that the layout needs."""
        parameters = [*layout.parameters, *(["time"] if layout.trajectory else [])]
        for step in self.steps:
            with step.named():
                yield step.complete(step.mesh(parameters), layout.inputs)

    def sample(self, layout: Layout) -> Sample:
        """Read as the layout says."""
        samples, times = [], []
        for step, mesh in zip(self.steps, self.meshes(layout), strict=True):
            with step.named():
                samples.append(layout.read(mesh, step.name))
                times.append(time_of(mesh, layout))
        return self.whole(layout, samples, times)

    def whole(self, layout: Layout, samples: Sequence[Sample], times: Sequence[float]) -> Sample:
        """The sample of the case, of those of its steps."""
        if not layout.trajectory:
            return samples[0]
        with replace(self.steps[0], step=None).named():
            return layout.join(samples, times, self.name)


def time_of(mesh: Any, layout: Layout | None = None) -> float:
    """When a step of a trajectory is; of anything else it does not matter."""
    if layout is not None and not layout.trajectory:
        return 0.0
    if "time" not in mesh.field_data:
        raise MeshError("a step of a trajectory needs a time, and the file tells none")
    return float(np.ravel(mesh.field_data["time"])[0])


def find_cases(
    files: str | Path | Iterable[str | Path], table: str | Path | None, layout: Layout
) -> list[Case]:
    """The cases of files and folders, see :class:`opformer.MeshDataset`.

    Raises
    ------
    MeshError
        If there are none, or a file gives none.
    """
    paths = [files] if isinstance(files, str | Path) else list(files)
    if not paths:
        raise MeshError("no mesh files: the list is empty")
    found = [file for path in paths for file in _expanded(Path(path))]
    tables = tables_of(found, table)
    cases = []
    for series in series_of(found, layout):
        steps = tuple(replace(step, table=tables[step.path]) for step in series)
        cases += [Case(steps)] if layout.trajectory else [Case((step,)) for step in steps]
    return cases


def series_of(files: Sequence[Path], layout: Layout, *, together: bool = False) -> list[list[Step]]:
    """The steps of each file that are taken, in their order; of a mesh without time, itself.

    ``together``: the files are the steps of one series, whether their layout is numbered or not.

    Raises
    ------
    MeshError
        If nothing of a file is taken.
    """
    numbered = layout.numbered or together
    alone: list[list[tuple[Path, int | None]]] = [[(file, None)] for file in files]
    groups = _by_number(files) if numbered else alone
    return [_taken(group, layout) for group in groups]


def _taken(group: list[tuple[Path, int | None]], layout: Layout) -> list[Step]:
    first = group[0][0]
    series = [Step(file, step, first, number) for file, number in group for step in steps_of(file)]
    if len(series) == 1:
        if layout.needs_previous:
            raise MeshError(f"{first}: there is no step before it, which a previous: input needs")
        return series
    chosen = _slice(layout.steps)
    stride, taken = abs(chosen.step or 1), []
    for i in range(len(series))[chosen]:
        before = {"previous": series[i - stride]} if i >= stride else {}
        if before or not layout.needs_previous:
            taken.append(replace(series[i], earlier={"first": series[0], **before}))
    if not taken:
        raise MeshError(f"{first}: none of its {len(series)} steps are in steps {layout.steps!r}")
    return taken


def _by_number(files: Sequence[Path]) -> list[list[tuple[Path, int | None]]]:
    """Files in groups of one name but for the number at its end, by that number."""
    groups: dict[tuple[Path, bool], list[tuple[Path, int | None]]] = {}
    for file in files:
        match = _NUMBERED.fullmatch(file.stem)
        key = (file.with_name((match[1] if match else file.stem) + file.suffix), bool(match))
        groups.setdefault(key, []).append((file, int(match[2]) if match else None))
    for group in groups.values():
        number, count = Counter(number for _, number in group).most_common(1)[0]
        if count > 1:
            names = ", ".join(file.name for file, own in group if own == number)
            raise MeshError(f"{group[0][0].parent}: {names} have one number, {number}")
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
