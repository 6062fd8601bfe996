"""The numbers in a file of Gmsh, as text or binary, and the header that says which.

Nothing is allocated for a count before the numbers are known to be there.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from opformer.errors import MeshError

__all__ = ["Form", "Numbers", "read_header"]


class Form(NamedTuple):
    """The version, whether the numbers are binary, their byte order, and the bytes of a size."""

    version: float
    binary: bool
    order: str
    size: int


class Numbers:
    """The numbers of a section one after the other; more than there are is an error."""

    def __init__(self, body: bytes, form: Form) -> None:
        _, self._binary, self._order, self._size = form
        self._all = np.frombuffer(body, "u1") if self._binary else np.fromstring(body, sep=" ")
        self._at = 0

    def ints(self, n: int = 1) -> np.ndarray:
        """The next integers."""
        return self._take("i4", n)

    def sizes(self, n: int = 1) -> np.ndarray:
        """The next counts; numbers of nodes and elements are stored like these since 4.1."""
        return self._take(f"u{self._size}", n)

    def floats(self, n: int) -> np.ndarray:
        """The next real numbers."""
        return self._take("f8", n)

    def numbered(self, n: int, width: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows of an integer and floats."""
        if not self._binary:
            rows = self.floats(n * (1 + width)).reshape(n, 1 + width)
            return _whole(rows[:, 0]), rows[:, 1:]
        row = np.dtype([("id", f"{self._order}i4"), ("x", f"{self._order}f8", (width,))])
        rows = self._bytes(n * row.itemsize).view(row)
        return rows["id"].astype(np.int64), rows["x"].astype(np.float64)

    def rest(self) -> np.ndarray:
        """All integers that are left, of a text."""
        return self.ints(len(self._all) - self._at)

    def finish(self) -> None:
        """Refuse what is left over, but for the end of the line.

        Raises
        ------
        MeshError
            If a count before was too small.
        """
        if len(self._all) - self._at > (2 if self._binary else 0):
            raise MeshError("the file is damaged: there are more numbers than announced")

    def _bytes(self, n: int) -> np.ndarray:
        if not 0 <= n <= len(self._all) - self._at:
            raise MeshError("the file ends early, or a number in it is wrong")
        self._at += n
        return self._all[self._at - n : self._at]

    def _take(self, kind: str, n: int) -> np.ndarray:
        n = int(n)
        if not self._binary:
            values = self._bytes(n)
            return values if kind == "f8" else _whole(values)
        dtype = np.dtype(self._order + kind)
        values = self._bytes(n * dtype.itemsize).view(dtype)
        return values.astype(np.float64 if kind == "f8" else np.int64)


def _whole(values: np.ndarray) -> np.ndarray:
    if not (np.abs(values) < 2**62).all() or (values % 1).any():
        raise MeshError("a count or a number of a node or element is no whole number")
    return values.astype(np.int64)


def read_header(data: bytes) -> Form:
    """Find out how the numbers of a file are written."""
    found = re.search(rb"^\$MeshFormat\s*\n\s*([\d.]+)\s+([01])\s+([48])[^\n]*\n", data, re.M)
    if not found:
        raise MeshError("there is no proper $MeshFormat at the beginning")
    version, binary, size = float(found[1]), found[2] == b"1", int(found[3])
    if not 2 <= version < 5:
        raise MeshError(f"version {version} is not supported: save as version 4.1")
    one = data[found.end() : found.end() + 4]
    if binary and one not in (b"\1\0\0\0", b"\0\0\0\1"):
        raise MeshError("the mark of the byte order is damaged")
    # Gmsh writes "4" for 4.0, others for 4.1, whose nodes begin with four numbers instead of two.
    line = re.search(rb"^\$Nodes\s*\n([^\n]*)", data, re.M)
    if found[1] == b"4" and not binary and line and len(line[1].split()) == 4:
        version = 4.1
    return Form(version, binary, ">" if binary and not one[0] else "<", size if version > 4 else 8)
