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
from opformer.layout import Layout, boundary_length, inner_nodes, project
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
    boundary : names of inputs that live on the boundary, optional
        By default those that are zero at all other nodes, in every file.
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
        boundary: Sequence[str] | None = None,
        cache: bool = True,
        progress: bool = True,
    ) -> None:
        self.files, self.cache, self.progress = _files(files), cache, progress
        self.notes: list[str] = []
        self._samples: dict[int, Sample] = {}
        names = {"inputs": inputs, "outputs": outputs, "parameters": parameters}
        _check_names(names, boundary)
        first = read_mesh(self.files[0])
        with _named(self.files[0]):
            at = at or (field_location(first, outputs[0]) if outputs else "points")
            counts = {
                k: {n: read_field(first, n, at).shape[1] for n in v} for k, v in names.items()
            }
        boundary = self._find_boundary(inputs) if boundary is None else boundary
        self._note_moves(first, [n for n in (*inputs, *outputs) if n not in boundary], at)
        everything = range(first.points.shape[1])
        self.layout = Layout(
            **counts,
            at=at,
            axes=list(everything if axes is None else axes),
            boundary=list(boundary),
            boundary_length=boundary_length(first) if boundary else 1.0,
        )
        if cache or axes is None:
            self._read_all(look_for_flat=axes is None)

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
            data._read_all(look_for_flat=False)
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

    def _bar(self, items: Iterable[Any], what: str) -> Iterable[Any]:
        return tqdm(items, desc=what, unit="file", disable=not self.progress, leave=False)

    def _read_all(self, *, look_for_flat: bool) -> None:
        """One pass over the files: fill the cache, and find the axes that are flat in all."""
        flat = set(self.layout.axes)
        for i in self._bar(range(len(self)), "reading"):
            sample = self._read(i)
            flat &= set(flat_axes(sample.source.points.numpy()))
            if self.cache:
                self._samples[i] = sample
        axes = [axis for axis in self.layout.axes if axis not in flat]
        if not (look_for_flat and flat and axes):
            return
        self.layout = replace(self.layout, axes=axes)
        for i, sample in self._samples.items():
            self._samples[i] = replace(sample, source=project(sample.source, axes))
        left = ", ".join("xyz"[axis] for axis in sorted(flat))
        self.notes.append(f"axis {left} is flat in all {len(self)} files and is left out")

    def _find_boundary(self, inputs: Sequence[str]) -> list[str]:
        """Inputs that are zero off the boundary in every file, and not zero everywhere."""
        found, nonzero = set(inputs), set()
        for path in self._bar(self.files, "looking"):
            if not found:
                break
            mesh = read_mesh(path)
            with _named(path):
                inside = inner_nodes(mesh)
                found = {n for n in found if field_location(mesh, n) == "points" and inside.any()}
                values = {name: read_field(mesh, name, "points") for name in found}
            found = {name for name in found if not values[name][inside].any()}
            nonzero |= {name for name in found if values[name].any()}
        names = [name for name in inputs if name in found & nonzero]
        for name in names:
            self.notes.append(
                f"input {name!r} is zero off the boundary: it is integrated over the boundary"
            )
        return names

    def _note_moves(self, mesh: Any, names: Sequence[str], at: Location) -> None:
        here = field_names(mesh)[at == "cells"]
        moved = [name for name in names if name not in here]
        self.notes += [f"field {name!r} is moved to the {at} by the measure" for name in moved]


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Put the file's name before the message of a :class:`MeshError`."""
    try:
        yield
    except MeshError as error:
        raise error if str(path) in str(error) else MeshError(f"{path}: {error}") from error


def _check_names(names: dict[str, Sequence[str]], boundary: Sequence[str] | None) -> None:
    for what, given in {**names, "boundary": boundary or ()}.items():
        if isinstance(given, str):
            raise ValueError(f"{what} must be a list of names, got the string {given!r}")
    unknown = sorted({*(boundary or ())} - {*names["inputs"]})
    if unknown:
        raise ValueError(f"boundary must name inputs, got {unknown} besides")


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
