"""What the readers say, as warnings and errors in one line; meshio prints it, exits or loses it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import meshio
from meshio import _common, _vtk_common

from opformer.errors import MeshError
from opformer.mesh.clean import UnknownToMeshioError

__all__ = ["captured_messages", "is_settled", "one_line", "refuse_losses", "say"]

_DROPPED_VTK_TYPES = {2: "poly vertex", 4: "polyline", 6: "triangle strip", 11: "voxel"}
_MESSAGES: ContextVar[list[str] | None] = ContextVar("meshio_messages", default=None)
# Of Medit's files: what is marked in the geometry, and no cell.
_HARMLESS = re.compile(r"know(?: keyword)? (?:Gmf)?(?:Corners|Ridges|Required|Tangent|Normal)")


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
        extra = {"h5py": "'opformer[hdf5]'"}.get(error.name or "", error.name)
        return f"the package {error.name} is needed: pip install {extra}"
    if isinstance(error, FileNotFoundError) and error.filename:
        return f"the file {error.filename} is missing, to which this one refers"
    if isinstance(error, KeyError):
        key = error.args[0] if error.args else ""
        known = key in _vtk_common.meshio_to_vtk_type
        return f"cell type {key!r} is not supported" if known else f"{key} is missing or not known"
    if isinstance(error, (MeshError, meshio.ReadError, meshio.WriteError)) and text:
        return text
    return f"the file is damaged or of another format ({type(error).__name__}: {text})"


def is_settled(error: BaseException) -> bool:
    """Whether the file is understood, and wrong: then another reader must not be more lenient."""
    if isinstance(error, MeshError):
        return not isinstance(error, UnknownToMeshioError)
    return bool(re.match(r"Incompatible cell data|len\(points\)", str(error)))


def say(messages: list[str]) -> None:
    """Add to what the reader has to say."""
    if (heard := _MESSAGES.get()) is not None:
        heard += messages


def refuse_losses(messages: list[str]) -> None:
    """Raise an error if the reader said that it left something out.

    Raises
    ------
    MeshError
        The message is what it said, or says it better.
    """
    for message in messages:
        if match := re.search(r"cannot handle \(type (\d+)\)", message):
            name = _DROPPED_VTK_TYPES.get(int(match[1]), "unknown to meshio")
            raise UnknownToMeshioError(f"cells of VTK type {match[1]} ({name}) are not supported")
        if ("Skipping" in message or "End-of-file" in message) and not _HARMLESS.search(message):
            raise MeshError(message)
