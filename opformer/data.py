"""A folder of mesh files as a data set: one file a case, each with a mesh of its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
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
    is_mesh_file,
    read_field,
    read_mesh,
)
from opformer.sample import Sample

__all__ = ["MeshDataset"]


class MeshDataset(Dataset[Sample]):
    """A folder of mesh files as a data set: one file a case, in the order of their names.

    Parameters
    ----------
    files : path of a folder, of a file, or a list of files
    inputs, outputs : names of fields
        On nodes or cells; vectors count with all their components. No inputs: the geometry is the
        input.
    parameters : names of fields that are constant over each file
        They enter as global inputs.
    at : "points" or "cells", optional
        Where the samples live; by default where the first output lives in the first file.
    axes : list of int, optional
        Coordinate axes to use; by default all that are not flat in every file.
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
        at: Location | None = None,
        axes: Sequence[int] | None = None,
        boundary: bool = True,
        cache: bool = True,
        progress: bool = True,
    ) -> None:
        self.files, self.cache, self.progress = _files(files), cache, progress
        self.notes: list[str] = []
        self._samples: dict[int, Sample] = {}
        names = {"inputs": inputs, "outputs": outputs, "parameters": parameters}
        _check_names(names)
        first = read_mesh(self.files[0])
        with _named(self.files[0]):
            at = at or (field_location(first, outputs[0]) if outputs else "points")
            counts = {
                what: {name: read_field(first, name, at).shape[1] for name in given}
                for what, given in names.items()
            }
        everything = range(first.points.shape[1])
        self.layout = Layout(
            inputs=counts["inputs"],
            outputs=counts["outputs"],
            parameters=counts["parameters"],
            at=at,
            axes=list(everything if axes is None else axes),
            boundary=boundary,
            boundary_length=MeasuredMesh(first).boundary_length if boundary else 1.0,
        )
        self._survey(look_for_flat=axes is None)
        here = field_names(first)[at == "cells"]
        for name in (*inputs, *outputs):
            if name not in here and name not in self.layout.boundary_inputs:
                self.notes.append(f"field {name!r} is moved to the {at} by the measure")

    @classmethod
    def from_layout(
        cls,
        files: str | Path | Iterable[str | Path],
        layout: Layout,
        *,
        cache: bool = True,
        progress: bool = True,
    ) -> MeshDataset:
        """Another folder, read as the layout of a fitted surrogate says."""
        data = cls.__new__(cls)
        data.files, data.layout, data.notes, data._samples = _files(files), layout, [], {}
        data.cache, data.progress = cache, progress
        if cache:
            data._samples = {i: data._read(i) for i in data._bar(range(len(data)))}
        return data

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Sample:
        if not -len(self) <= index < len(self):
            raise IndexError(f"case {index} of {len(self)}")
        index %= len(self)
        return self._samples[index] if index in self._samples else self._read(index)

    @property
    def dim(self) -> int:
        """Number of coordinates of the samples."""
        return len(self.layout.axes)

    @property
    def in_channels(self) -> int:
        """Channels of the input fields together."""
        return self.layout.in_channels

    @property
    def out_channels(self) -> int:
        """Channels of the output fields together."""
        return sum(self.layout.outputs.values())

    @property
    def parameter_channels(self) -> int:
        """Components of the parameters together."""
        return sum(self.layout.parameters.values())

    def _read(self, index: int) -> Sample:
        path = self.files[index]
        with _named(path):
            return self.layout.read(read_mesh(path), path.name)

    def _bar(self, items: Iterable[Any]) -> Iterable[Any]:
        return tqdm(items, desc="reading", unit="file", disable=not self.progress, leave=False)

    def _survey(self, *, look_for_flat: bool) -> None:
        """One pass over the files: fill the cache, find flat axes and inputs of the boundary."""
        flat = set(self.layout.axes) if look_for_flat else set()
        quiet, loud = set(self.layout.inputs) if self.layout.boundary else set(), set()
        for i in self._bar(range(len(self))):
            with _named(self.files[i]):
                mesh = MeasuredMesh(read_mesh(self.files[i]))
                sample = self.layout.read(mesh, self.files[i].name)
                quiet = {n for n in quiet if n in mesh.mesh.point_data and mesh.zero_inside(n)}
                loud |= {n for n in quiet if mesh.acts_on_boundary(n)}
            flat &= set(flat_axes(sample.source.points.numpy()))
            if self.cache:
                self._samples[i] = sample
        axes = [axis for axis in self.layout.axes if axis not in flat]
        names = [name for name in self.layout.inputs if name in quiet & loud]
        self.notes += [f"input {n!r} is zero off the boundary and lives there alone" for n in names]
        if flat and axes:
            left = ", ".join("xyz"[axis] for axis in sorted(flat))
            self.notes.append(f"axis {left} is flat in all {len(self)} files and is left out")
        axes = axes or self.layout.axes
        remaining = [self.layout.axes.index(axis) for axis in axes]  # counted as the samples do
        self.layout = replace(self.layout, axes=axes, boundary_inputs=names)
        settle = replace(self.layout, axes=remaining).settle
        self._samples = {i: settle(sample) for i, sample in self._samples.items()}


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Put the file's name before the message of a :class:`MeshError`."""
    try:
        yield
    except MeshError as error:
        raise error if str(path) in str(error) else MeshError(f"{path}: {error}") from error


def _check_names(names: dict[str, Sequence[str]]) -> None:
    for what, given in names.items():
        if isinstance(given, str):
            raise ValueError(f"{what} must be a list of names, got the string {given!r}")


def _files(files: str | Path | Iterable[str | Path]) -> list[Path]:
    if not isinstance(files, str | Path):
        found = [Path(f) for f in files]
        if not found:
            raise MeshError("no mesh files: the list is empty")
        return found
    path = Path(files)
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise MeshError(f"{path}: no such file or folder")
    found = sorted(f for f in path.iterdir() if is_mesh_file(f))
    if not found:
        raise MeshError(
            f"{path}: no mesh files in this folder, expected one for each case "
            "(.vtu, .vtk, .xdmf, .msh, …)"
        )
    return found
