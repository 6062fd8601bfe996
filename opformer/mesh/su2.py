"""Meshes of SU2, .su2: nodes, elements by VTK's type numbers, and boundary parts ("markers").

Lines ``NAME= value`` announce how many lines of numbers follow. meshio numbers the markers anew,
sorts the elements by type and reads the last of several zones, so the files are read here. Each
marker is a set of cells under its own name.

Reference: the SU2 documentation, "Mesh file".
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby, islice
from pathlib import Path

import meshio
import numpy as np
from meshio.su2._su2 import su2_to_meshio_type, su2_type_to_numnodes

from opformer.errors import MeshError

__all__ = ["read_su2"]

_Block = tuple[str, np.ndarray]


def read_su2(path: Path) -> meshio.Mesh:
    """Read a mesh of one zone.

    Raises
    ------
    MeshError
        If the file is damaged or has several zones.
    """
    lines = _lines(path)
    dim, points = 0, np.empty((0, 0))
    blocks: list[_Block] = []
    markers: dict[str, list[int]] = {}  # the numbers of their blocks
    name, promised = "", 0
    for line in lines:
        key, equals, value = (text.strip() for text in line.partition("="))
        if not equals:
            raise MeshError(f"a line {line[:20]!r} where NAME= is due: a count before is wrong")
        match key.upper():
            case "NDIME":
                dim = int(value)
            case "NPOIN":
                points = _points(lines, int(value.split()[0]), dim)
            case "NZONE" if int(value) != 1:
                raise MeshError(f"{value} zones: save each of them as a file")
            case "NMARK":
                promised = int(value)
            case "MARKER_TAG":
                name = value
                markers.setdefault(name, [])
            case "NELEM" | "MARKER_ELEMS" as what:
                own = _elements(lines, int(value))
                if what == "MARKER_ELEMS":
                    markers[name] += range(len(blocks), len(blocks) + len(own))
                blocks += own
            case "SEND_RECV" if name == "SEND_RECEIVE":
                raise MeshError("a part of a partitioned mesh: save it whole")
    if len(markers) != promised:
        raise MeshError(f"{promised} markers announced, {len(markers)} found")
    sets = {
        name: [np.arange(len(cells) if k in own else 0) for k, (_, cells) in enumerate(blocks)]
        for name, own in markers.items()
    }
    return meshio.Mesh(points, blocks, cell_sets=sets)


def _lines(path: Path) -> Iterator[str]:
    """The lines, without comments and empty ones."""
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        if text := line.partition("%")[0].strip():
            yield text


def _points(lines: Iterator[str], count: int, dim: int) -> np.ndarray:
    """Coordinates, after which a number of the point may stand."""
    rows = [line.split()[:dim] for line in islice(lines, count)]
    if dim not in (2, 3) or len(rows) != count or any(len(row) != dim for row in rows):
        raise MeshError(f"{count} points of dimension {dim} announced, {len(rows)} found")
    return np.array(rows, dtype=np.float64)


def _elements(lines: Iterator[str], count: int) -> list[_Block]:
    """Runs of one type; after the nodes a number of the element may stand."""
    rows = [[int(text) for text in line.split()] for line in islice(lines, count)]
    if len(rows) != count:
        raise MeshError(f"{count} cells announced, {len(rows)} found")
    return [_block(code, list(run)) for code, run in groupby(rows, key=lambda row: row[0])]


def _block(code: int, rows: list[list[int]]) -> _Block:
    if code not in su2_type_to_numnodes:
        raise MeshError(f"elements of type {code} are not supported")
    n = su2_type_to_numnodes[code]
    if any(not 0 <= len(row) - 1 - n <= 1 for row in rows):
        raise MeshError(f"an element of type {code} does not have {n} nodes")
    return su2_to_meshio_type[code], np.array([row[1 : 1 + n] for row in rows])
