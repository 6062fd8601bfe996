"""The top cells of a mesh, checked, a bounded number at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from opformer._alike import Alike, alike, check_cells
from opformer._cells import TOPOLOGICAL_DIMENSION
from opformer.errors import MeshError

__all__ = ["Blocks", "Chunk", "as_points", "checked", "chunks", "top_blocks"]

Blocks = Sequence[tuple[str, Any]]

_CHUNK = 2**17  # node coordinates of cells worked on at once: memory stays bounded


def top_blocks(blocks: Blocks) -> list[int]:
    """Indices of the blocks whose cells have the mesh's top dimension; empty blocks have none.

    Raises
    ------
    MeshError
        On cells of an unknown type, or if there are no cells.

    Examples
    --------
    >>> top_blocks([("line", [[0, 1]]), ("triangle", [[0, 1, 2]]), ("quad", [[1, 3, 4, 2]])])
    [1, 2]
    """
    filled = [index for index, (_, cells) in enumerate(blocks) if len(cells)]
    for index in filled:
        if blocks[index][0] not in TOPOLOGICAL_DIMENSION:
            raise MeshError(
                f"block {index} has cells of type {blocks[index][0]!r}; "
                f"expected one of {', '.join(TOPOLOGICAL_DIMENSION)}"
            )
    if not filled:
        raise MeshError(f"a mesh needs cells, got none in {len(blocks)} block(s)")
    dimension = {index: TOPOLOGICAL_DIMENSION[blocks[index][0]] for index in filled}
    return [index for index in filled if dimension[index] == max(dimension.values())]


@dataclass(frozen=True)
class Chunk:
    """Some cells of one type: numbers (m,), nodes (m, n), coordinates from the first node."""

    type: str
    cells: np.ndarray
    nodes: np.ndarray
    x: np.ndarray  # (m, n, d), so that no digits are lost far from the origin
    faces: tuple[int, ...] = ()  # of polyhedra: corners of each face
    signed: bool = True  # whether the orientation says anything


def chunks(points: np.ndarray, blocks: Blocks) -> Iterator[Chunk]:
    """The top cells, checked, a bounded number at a time."""
    axes = np.ascontiguousarray(points.T)
    for start, kind, like in checked(points, blocks):
        size = max(_CHUNK // (like.nodes.shape[1] * len(axes)), 1)
        for first in range(0, len(like.nodes), size):
            part = slice(first, first + size)
            nodes = like.nodes[part]
            x = axes.take(nodes.T, axis=1)  # (d, n, m): fast to work on, with the cells in a row
            x -= x[:, :1]
            cells = start + like.numbers[part]
            yield Chunk(kind, cells, nodes, x.transpose(2, 1, 0), like.faces, like.signed)


def checked(points: np.ndarray, blocks: Blocks) -> Iterator[tuple[int, str, Alike]]:
    """The top cells, checked, with the number of the first cell of their block, and their type."""
    start = 0
    for index in top_blocks(blocks):
        kind, cells = blocks[index]
        for like in alike(kind, cells):
            check_cells(points, kind, index, like)
            yield start, kind, like
        start += len(cells)


def as_points(points: np.ndarray) -> np.ndarray:
    points = np.asarray(points, dtype=np.float64)
    points = points[:, None] if points.ndim == 1 else points
    if points.ndim != 2:
        raise MeshError(f"points must have shape (n, d), got {points.shape}")
    return points
