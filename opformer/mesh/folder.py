"""The mesh files of a folder, where some only list others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from os import PathLike
from pathlib import Path

from opformer.mesh.read import is_mesh_file

__all__ = ["listed_files", "mesh_files"]

_LISTS = {".pvd", ".series", ".pvtu", ".pvtp", ".pvti", ".pvts", ".pvtr", ".vtm", ".vtmb"}
_ENTRY = re.compile(r"""\b(?:file|Source)\s*=\s*["']([^"']+)|"name"\s*:\s*"([^"]+)""")


def mesh_files(folder: str | PathLike[str]) -> list[Path]:
    """Return the mesh files of a folder by name, each mesh once.

    A piece of a parallel file, a block, or a step of a time series, to which another file of the
    folder refers, is left out: it is read with that one.
    """
    files = sorted(path for path in Path(folder).iterdir() if is_mesh_file(path))
    members = {member for path in files for member in listed_files(path)}
    return [path for path in files if path.resolve() not in members]


def listed_files(path: Path) -> Iterator[Path]:
    """The files that a list of files, a ``.pvd`` for instance, refers to; none of another file."""
    if path.suffix.lower() in _LISTS:
        for entry in _ENTRY.findall(path.read_text(encoding="utf-8", errors="replace")):
            yield (path.parent / unescape("".join(entry))).resolve()
