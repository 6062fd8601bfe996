"""Reading mesh files: meshio parses, this module makes the result safe.

Whatever goes wrong becomes one `MeshError` that names the file, the format tried and the reason.
What meshio would lose in silence (pieces of a VTU file, cells of a type it does not know, fields it
skips) is read right or refused, and what it prints is turned into the error or into a Python
warning.

Of a mesh that comes out of `read_mesh`, points are float64, connectivity is int64 and within range,
every array has native byte order, one number per row is one axis, no block is empty, and named sets
of points or cells are fields of zeros and ones. The geometry is as the file has it.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from os import PathLike
from pathlib import Path
from typing import Any

import meshio
from meshio import _common, _helpers, _vtk_common

from opformer.errors import MeshError
from opformer.mesh.clean import clean
from opformer.mesh.formats import read_vtk, read_vtu, read_xdmf

__all__ = ["is_mesh_file", "read_mesh"]

# From a truncated file of these meshio never returns.
_ENDLESS = {"off", "tecplot", "tetgen", "wkt"}
_READABLE = _helpers.reader_map.keys() - _ENDLESS
_EXTENSIONS = {
    extension: [name for name in names if name in _READABLE]
    for extension, names in meshio.extension_to_filetypes.items()
    if not _READABLE.isdisjoint(names)
}
_DROPPED_VTK_TYPES = {2: "poly vertex", 4: "polyline", 6: "triangle strip", 11: "voxel"}
_MESSAGES: ContextVar[list[str] | None] = ContextVar("meshio_messages", default=None)


def read_mesh(path: str | PathLike[str], *, step: int | None = None) -> meshio.Mesh:
    """Read a mesh file with its fields.

    Parameters
    ----------
    path
        A file of a format that meshio reads and that ends where it should; the extension, in
        capitals or not, decides the format. Not read are .off, .wkt, and the files of Tecplot and
        TetGen, where meshio would wait forever for the rest of a truncated file.
    step
        Which step of an XDMF time series, counted from 0.

    Raises
    ------
    MeshError
        If the file is missing, damaged, of an unknown format, or holds something that would be
        lost. The message names the file, the format tried and the reason, in one line.
    """
    path = Path(path)
    try:
        mesh, messages = parse(path, step)
    except MeshError as error:
        raise MeshError(f"{path}: {error}") from error
    for message in messages:
        warnings.warn(f"{path}: {message}", stacklevel=2)
    return mesh


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
    """Read a mesh, and what meshio had to say about it; errors do not name the file."""
    formats = _formats(path)
    if not formats:
        readable = ", ".join(sorted(_EXTENSIONS))
        raise MeshError(f"extension {path.suffix!r} is not supported; supported are {readable}")
    if not path.is_file():
        raise MeshError("there is no such file")
    if not path.stat().st_size:
        raise MeshError("the file is empty")
    if step is not None and formats != ["xdmf"]:
        raise MeshError(f"step={step} was asked for, but only XDMF files hold time series")
    reasons = []
    for name in formats:
        with captured_messages() as messages:
            try:
                mesh = read_xdmf(path, step) if name == "xdmf" else _reader(name)(path)
                _refuse_losses(messages)
                return clean(mesh), messages
            except (Exception, SystemExit) as error:  # meshio raises about anything, and exits
                reasons.append(one_line(error))
    raise MeshError(f"cannot be read as {' or '.join(formats)}: {'; '.join(reasons)}")


def _formats(path: Path) -> list[str]:
    name = path.name.lower()
    return [
        n for extension, names in _EXTENSIONS.items() if name.endswith(extension) for n in names
    ]


def _reader(name: str) -> Callable[[Path], meshio.Mesh]:
    special = {"vtu": read_vtu, "vtk": read_vtk}
    return special.get(name) or (lambda path: _helpers.reader_map[name](str(path)))


def _refuse_losses(messages: list[str]) -> None:
    for message in messages:
        if match := re.search(r"cannot handle \(type (\d+)\)", message):
            name = _DROPPED_VTK_TYPES.get(int(match[1]), "unknown to meshio")
            raise MeshError(f"cells of VTK type {match[1]} ({name}) are not supported")
        if "Skipping" in message:
            raise MeshError(message)
