"""A folder of mesh files as a data set: one file a case, each with a mesh of its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import fsum
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset
from tqdm.auto import tqdm

from opformer.errors import MeshError
from opformer.layout import Layout, MeasuredMesh
from opformer.mesh import (
    Location,
    field_location,
    field_names,
    flat_axes,
    mesh_files,
    read_mesh,
    steps_of,
)
from opformer.parameters import ParameterTable, tables_of
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
        input.
    parameters : names of fields that are constant over each file, or of numbers that it holds
        They enter as global inputs. The time of a step is "time". What a file does not hold is
        taken from a table.
    parameters_file : path of a CSV or JSON file, optional
        The table, see :mod:`opformer.parameters`; by default the ``cases.csv`` or ``cases.json``
        beside each file, if there is one.
    at : "points" or "cells", optional
        Where the samples live; by default where the first output lives in the first file.
    boundary : bool
        Whether the boundary, with its own measure, is a part of the source (see
        :mod:`opformer.layout`). Inputs that are zero at all other nodes, in every file, are then
        integrated over the boundary alone.
    cache : bool
        Keep the samples in memory (default), or read the files at every access.
    progress : bool
        Show a bar while the files are read.

    Attributes
    ----------
    cases : list of Case
        The path and the step of each.
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
        boundary: bool = True,
        cache: bool = True,
        progress: bool = True,
    ) -> None:
        names = {"inputs": inputs, "outputs": outputs, "parameters": parameters}
        _check_names(names)
        self.cases = _cases(files, parameters_file)
        self._samples: list[Sample] = []
        layout, findings = Layout(), []
        for i, case in enumerate(_bar(self.cases, progress)):
            with case.named():
                mesh = MeasuredMesh(case.mesh(parameters))
                layout = layout if i else _first_layout(mesh, names, at, boundary)
                sample = layout.gather(mesh, case.name)
                findings.append(_findings(mesh, sample, layout))
            if cache:
                self._samples.append(sample)
        self.layout, self.notes = _conclude(layout, findings)
        for i, sample in enumerate(self._samples):
            with self.cases[i].named():
                self._samples[i] = self.layout.settle(sample)

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
        data.cases = _cases(files, parameters_file)
        data.layout, data.notes, data._samples = layout, [], []
        if cache:
            data._samples = [case.sample(layout) for case in _bar(data.cases, progress)]
        return data

    def __len__(self) -> int:
        return len(self.cases)

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
        """Components of the inputs together, and one that says what is boundary if that is read."""
        return self.layout.in_channels

    @property
    def out_channels(self) -> int:
        """Components of the outputs together."""
        return self.layout.out_channels

    @property
    def parameter_channels(self) -> int:
        """Components of the parameters together."""
        return self.layout.parameter_channels


@dataclass(frozen=True)
class Case:
    """One mesh of a data set: a file, or a step of a time series."""

    path: Path
    step: int | None = None
    table: ParameterTable | None = None

    @property
    def name(self) -> str:
        """Of the file, and of the step if it is one."""
        return self.path.name + ("" if self.step is None else f" step {self.step}")

    def mesh(self, parameters: Iterable[str] = ()) -> Any:
        """What :func:`opformer.read_mesh` returns, with parameters of the table as its data."""
        mesh = read_mesh(self.path, step=self.step)
        if self.table is not None:
            held = {*mesh.point_data, *mesh.cell_data, *mesh.field_data}
            numbers = self.table.numbers(self.path, [p for p in parameters if p not in held])
            mesh.field_data = {**mesh.field_data, **numbers}
        return mesh

    def sample(self, layout: Layout) -> Sample:
        """Read as the layout says."""
        with self.named():
            return layout.read(self.mesh(layout.parameters), self.name)

    @contextmanager
    def named(self) -> Iterator[None]:
        """Put the file's name before the message of an error about its mesh."""
        try:
            yield
        except ValueError as error:
            known = isinstance(error, MeshError) and str(self.path) in str(error)
            where = str(self.path.with_name(self.name))
            raise error if known else MeshError(f"{where}: {error}") from error


@dataclass(frozen=True)
class _Findings:
    """What one file has to say about the layout of all."""

    dim: int
    axes: set[int]  # that it extends along
    moved: set[str]  # fields that do not live where the samples do
    quiet: set[str]  # inputs that are zero off the boundary
    loud: set[str]  # and those of them that are not zero on it
    volume: float
    surface: float


def _first_layout(
    mesh: MeasuredMesh, names: dict[str, Sequence[str]], at: Location | None, boundary: bool
) -> Layout:
    """Where the samples live and how many components the fields have, by the first file."""
    if at is None:
        at = field_location(mesh.mesh, names["outputs"][0]) if names["outputs"] else "points"
    inputs, outputs = (
        {name: mesh.field(name, at).shape[1] for name in names[what]}
        for what in ("inputs", "outputs")
    )
    parameters = {name: len(mesh.parameter(name)) for name in names["parameters"]}
    return Layout(inputs, outputs, parameters, at, boundary=boundary)


def _findings(mesh: MeasuredMesh, sample: Sample, layout: Layout) -> _Findings:
    point_fields, cell_fields = field_names(mesh.mesh)
    here = point_fields if layout.at == "points" else cell_fields
    dim = sample.source.dim
    candidates = layout.inputs.keys() & point_fields if layout.boundary else set()
    quiet = {name for name in candidates if mesh.zero_inside(name)}
    return _Findings(
        dim=dim,
        axes=set(range(dim)) - set(flat_axes(sample.source.points.numpy())),
        moved={*layout.inputs, *layout.outputs} - set(here),
        quiet=quiet,
        loud={name for name in quiet if mesh.acts_on_boundary(name)},
        volume=float(mesh.domain().total),
        surface=float(mesh.boundary.sum()) if layout.boundary else 0.0,
    )


def _conclude(layout: Layout, findings: list[_Findings]) -> tuple[Layout, list[str]]:
    """The layout for all files, whatever their order, and what to note about it."""
    coordinates = range(max(f.dim for f in findings))
    axes = sorted(set().union(*(f.axes for f in findings))) or list(coordinates)
    acting = set.intersection(*(f.quiet for f in findings))
    acting &= set().union(*(f.loud for f in findings))
    moved = set().union(*(f.moved for f in findings))
    surface = fsum(f.surface for f in findings)
    names = [name for name in layout.inputs if name in acting]
    notes = [f"input {name!r} is zero off the boundary and lives there alone" for name in names]
    if flat := ", ".join("xyz"[axis] for axis in coordinates if axis not in axes):
        notes.append(f"axis {flat} is flat in all {len(findings)} files and is left out")
    notes += [
        f"field {name!r} is moved to the {layout.at} by the measure"
        for name in {**layout.inputs, **layout.outputs}
        if name in moved - acting
    ]
    length = fsum(f.volume for f in findings) / surface if surface else 1.0
    return replace(layout, axes=axes, boundary_inputs=names, boundary_length=length), notes


def _bar(cases: list[Case], progress: bool) -> Iterable[Case]:
    return tqdm(cases, desc="reading", unit="file", disable=not progress, leave=False)


def _check_names(names: dict[str, Sequence[str]]) -> None:
    for what, given in names.items():
        if isinstance(given, str):
            raise ValueError(f"{what} must be a list of names, got the string {given!r}")


def _cases(files: str | Path | Iterable[str | Path], table: str | Path | None) -> list[Case]:
    """One for each file; a time series is as many cases as it has steps."""
    paths = [files] if isinstance(files, str | Path) else list(files)
    if not paths:
        raise MeshError("no mesh files: the list is empty")
    found = [file for path in paths for file in _expanded(Path(path))]
    tables = tables_of(found, table)
    return [Case(file, step, tables[file]) for file in found for step in steps_of(file)]


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
