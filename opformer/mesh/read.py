"""Reading mesh files: meshio or VTK parses, this module makes the result safe.

It alone knows both readers: meshio first, where it reads the format, then VTK, if pyvista is there.
Whatever goes wrong becomes one `MeshError` that names the file, the format tried and the reason.
What meshio would lose in silence (pieces of a VTU file, cells of a type it does not know, fields it
skips) is read right or refused, and what it prints is turned into the error or into a Python
warning.

Of a mesh that comes out of `read_mesh`, points are float64, connectivity is int64 and within range,
every array has native byte order, one number per row is one axis, no block is empty, ghost cells
are gone, and named sets of points or cells are fields of zeros and ones. The geometry is as the
file has it.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from operator import index
from os import PathLike
from pathlib import Path
from typing import Any

import meshio
import numpy as np
from meshio import _common, _helpers, _vtk_common

from opformer.errors import MeshError
from opformer.mesh.arrays import read_arrays
from opformer.mesh.clean import UnknownToMeshioError, clean
from opformer.mesh.formats import read_complete, read_parallel, read_vtk, read_vtu
from opformer.mesh.series import Frame, choose, list_frames, pvd_frames, xdmf_frames
from opformer.mesh.vtk import VTK_EXTENSIONS, read_with_vtk, vtk_times

__all__ = ["is_mesh_file", "read_mesh", "read_times", "steps_of"]

# From a truncated file of these meshio never returns.
_ENDLESS = {"off", "tecplot", "tetgen", "wkt"}
_READABLE = _helpers.reader_map.keys() - _ENDLESS
_VTK = "VTK"
_LISTS = {".pvtu": "pvtu", ".pvtp": "pvtp", ".pvd": "pvd", ".series": "series"}  # of other files
_EXTENSIONS = {
    extension: [name for name in names if name in _READABLE]
    for extension, names in meshio.extension_to_filetypes.items()
    if not _READABLE.isdisjoint(names)
} | {extension: [name] for extension, name in {**_LISTS, ".npz": "npz"}.items()}
for _extension in VTK_EXTENSIONS:
    _EXTENSIONS[_extension] = [*_EXTENSIONS.get(_extension, []), _VTK]
_IN_TIME = {
    ".xdmf": "XDMF",
    ".xmf": "XDMF",
    ".pvd": "PVD",
    ".series": ".series",
    ".foam": "OpenFOAM",
    ".case": "EnSight",
    ".vtkhdf": "VTKHDF",
}
_DROPPED_VTK_TYPES = {2: "poly vertex", 4: "polyline", 6: "triangle strip", 11: "voxel"}
_MESSAGES: ContextVar[list[str] | None] = ContextVar("meshio_messages", default=None)


def read_mesh(path: str | PathLike[str], *, step: int | None = None) -> meshio.Mesh:
    """Read a mesh file with its fields.

    Parameters
    ----------
    path
        A file of a format that meshio or VTK reads and that ends where it should, or arrays in an
        .npz file (see :mod:`opformer.mesh.arrays`); the extension, in capitals or not, decides the
        format. VTK is asked for what meshio does not read, if pyvista is installed
        (``pip install 'opformer[vtk]'``). Not read are .off, .wkt, and the files of Tecplot and
        TetGen, where meshio would wait forever for the rest of a truncated file.
    step
        Which step of a time series, counted from 0, or from the end if negative. Its time, or the
        one that VTK notes in a single mesh, is ``mesh.field_data["time"]``, an array of one number.

    Raises
    ------
    MeshError
        If the file is missing, damaged, of an unknown format, or holds something that would be
        lost; if it is a time series of several steps and none is chosen. The message names the
        file, the format tried and the reason, in one line.
    """
    path, step = Path(path), None if step is None else index(step)
    try:
        mesh, messages = parse(path, step)
    except MeshError as error:
        raise MeshError(f"{path}: {error}") from error
    for message in messages:
        warnings.warn(f"{path}: {message}", stacklevel=2)
    return mesh


def read_times(path: str | PathLike[str]) -> list[float]:
    """Return the times of the steps of a time series; an empty list for any other mesh file.

    Raises
    ------
    MeshError
        If the file is missing, damaged or of an unknown format, as far as the times show.
    """
    path = Path(path)
    try:
        _check_file(path)
        return [frame.time for frame in _frames(path)]
    except Exception as error:  # of the parsers of XML and JSON
        raise MeshError(f"{path}: {one_line(error)}") from error


def steps_of(path: str | PathLike[str]) -> list[int] | list[None]:
    """Return what to give `read_mesh` as ``step`` for each mesh of a file: None if it holds one."""
    count = len(read_times(path))
    return list(range(count)) if count > 1 else [None]


def is_mesh_file(path: str | PathLike[str]) -> bool:
    """Whether this is a file, not a hidden one, with an extension that `read_mesh` knows."""
    path = Path(path)
    return path.is_file() and not path.name.startswith(".") and bool(_formats(path))


@contextmanager
def captured_messages() -> Iterator[list[str]]:
    """Collect what meshio says in this context, in this thread, instead of letting it print."""
    messages: list[str] = []
    token = _MESSAGES.set(messages)
    try:
        yield messages
    finally:
        _MESSAGES.reset(token)


class _Console(_common.Console):
    """meshio's console; redirecting the process's stderr instead would not be safe in threads."""

    def print(self, *objects: Any, **options: Any) -> None:
        messages = _MESSAGES.get()
        if messages is None:
            super().print(*objects, **options)
        else:
            text = re.sub(r"\[/?(?:bold|yellow|red)\]", "", " ".join(map(str, objects)))
            messages.append(text.removeprefix("Warning: "))


_common.Console = _Console


def one_line(error: BaseException) -> str:
    """Say in one line why meshio failed."""
    text = " ".join(str(error).split())
    if isinstance(error, ModuleNotFoundError):
        return f"the package {error.name} is needed: pip install {error.name}"
    if isinstance(error, KeyError):
        key = error.args[0] if error.args else ""
        known = key in _vtk_common.meshio_to_vtk_type
        return f"cell type {key!r} is not supported" if known else f"{key} is missing or not known"
    if isinstance(error, (MeshError, meshio.ReadError, meshio.WriteError)) and text:
        return text
    return f"the file is damaged or of another format ({type(error).__name__}: {text})"


def parse(path: Path, step: int | None = None) -> tuple[meshio.Mesh, list[str]]:
    """Read a mesh, and what the reader had to say about it; errors do not name the file."""
    _check_file(path)
    if step is not None and path.suffix.lower() not in _IN_TIME:
        known = ", ".join(dict.fromkeys(_IN_TIME.values()))
        raise MeshError(f"step={step} was asked for, but only {known} files hold time series")
    names, reasons, settled = _formats(path), [], False
    for name in names:
        if name == _VTK and settled:  # the file is understood, and refused
            continue
        # errstate: of the text of an STL file meshio computes the size as if it were numbers
        with captured_messages() as messages, np.errstate(all="ignore"):
            try:
                mesh = _read(name, path, step)
                _refuse_losses(messages)
                return _with_time(clean(mesh)), messages
            except (Exception, SystemExit) as error:  # meshio raises about anything, and exits
                reasons.append(one_line(error))
                settled = isinstance(error, MeshError) and not isinstance(
                    error, UnknownToMeshioError
                )
    formats = " or ".join(name for name in names if name != _VTK)
    ways = [f"as {formats}"] * bool(formats) + ["by VTK"] * (_VTK in names)
    raise MeshError(f"cannot be read {' or '.join(ways)}: {'; '.join(reasons)}")


def _check_file(path: Path) -> None:
    if not _formats(path):
        readable = ", ".join(sorted(_EXTENSIONS))
        raise MeshError(f"extension {path.suffix!r} is not supported; supported are {readable}")
    if not path.is_file():
        raise MeshError("there is no such file")
    if not path.stat().st_size and path.suffix.lower() != ".foam":  # that one marks a folder
        raise MeshError("the file is empty")


def _formats(path: Path) -> list[str]:
    name = path.name.lower()
    return [
        n for extension, names in _EXTENSIONS.items() if name.endswith(extension) for n in names
    ]


def _read(name: str, path: Path, step: int | None) -> meshio.Mesh:
    frames = _frames(path)
    if frames:
        frame = choose(frames, step)
        mesh = frame.read()
        mesh.field_data = {**mesh.field_data, "time": np.array([frame.time])}
        return mesh
    if step is not None:
        raise MeshError(f"step={step} was asked for, but the file is no time series")
    match name:
        case "VTK":
            return _by_vtk(path)
        case "pvtu" | "pvtp":
            return read_parallel(path, _member)
        case "npz":
            return read_arrays(path)
        case "vtu":
            return read_vtu(path)
        case "vtk":
            return read_vtk(path)
    return read_complete(name, path)


def _frames(path: Path) -> list[Frame]:
    """The steps of a time series, none of anything else."""
    match _IN_TIME.get(path.suffix.lower()):
        case None:
            return []
        case "XDMF":
            return xdmf_frames(path)
        case "PVD":
            return pvd_frames(path, _member)
        case ".series":
            return list_frames(path, _member)
    times = enumerate(vtk_times(path))
    return [Frame(time, lambda k=k: _by_vtk(path, k)) for k, time in times]  # type: ignore[misc]


def _member(path: Path) -> meshio.Mesh:
    """A file that another one lists."""
    try:
        mesh, messages = parse(path)
    except MeshError as error:
        raise MeshError(f"{path.name}: {error}") from error
    _say([f"{path.name}: {message}" for message in messages])
    return mesh


def _by_vtk(path: Path, step: int | None = None) -> meshio.Mesh:
    mesh, messages = read_with_vtk(path, step)
    _say(messages)
    return mesh


def _say(messages: list[str]) -> None:
    """Add to what the reader has to say."""
    if (heard := _MESSAGES.get()) is not None:
        heard += messages


def _with_time(mesh: meshio.Mesh) -> meshio.Mesh:
    """Say in the same way when a mesh is that is one of a series of files of its own."""
    if "TimeValue" in mesh.field_data:
        time = np.ravel(mesh.field_data["TimeValue"])[:1].astype(np.float64)
        mesh.field_data = {"time": time, **mesh.field_data}
    return mesh


def _refuse_losses(messages: list[str]) -> None:
    for message in messages:
        if match := re.search(r"cannot handle \(type (\d+)\)", message):
            name = _DROPPED_VTK_TYPES.get(int(match[1]), "unknown to meshio")
            raise UnknownToMeshioError(f"cells of VTK type {match[1]} ({name}) are not supported")
        if "Skipping" in message:
            raise MeshError(message)
