"""The cells of a block in groups of one form, so that each group is an array, and their checks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from opformer._cells import TOPOLOGICAL_DIMENSION, misfit
from opformer._polyhedra import Polyhedra, similar_polyhedra
from opformer.errors import MeshError

__all__ = ["Alike", "alike", "check_cells", "check_nodes"]


class Alike(NamedTuple):
    """Cells of a block that have the same number of nodes, and of corners of each face."""

    numbers: np.ndarray  # (m,)
    nodes: np.ndarray  # (m, n)
    faces: tuple[int, ...] = ()  # of polyhedra: corners of each face
    signed: bool = True  # whether their orientation says anything


def alike(kind: str, cells: Any) -> Iterator[Alike]:
    """Sort the cells of a block into groups."""
    if kind == "polyhedron":
        yield from (Alike(*group) for group in similar_polyhedra(Polyhedra.of(cells)))
        return
    if isinstance(cells, np.ndarray) and cells.ndim == 2:
        yield Alike(np.arange(len(cells)), cells)
        return
    sizes = np.array([np.size(cell) for cell in cells])
    for size in np.unique(sizes):
        numbers = np.flatnonzero(sizes == size)
        yield Alike(numbers, np.stack([np.ravel(cells[number]) for number in numbers]))


def check_cells(points: np.ndarray, kind: str, block: int, like: Alike) -> None:
    """Refuse cells of a block that are not cells of ``points``."""
    n, d = points.shape
    if d < TOPOLOGICAL_DIMENSION[kind]:
        raise MeshError(f"{kind} cells need points with more coordinates, got dimension {d}")
    check_nodes(kind, block, like, n)
    finite = np.isfinite(points).all(axis=1)
    if not finite.all() and not finite[like.nodes].all():
        bad = like.nodes[~finite[like.nodes]]
        raise MeshError(
            f"nodes of cells must be finite, got {points[bad[0]].tolist()} at node {bad[0]}"
        )


def check_nodes(kind: str, block: int, like: Alike, n: float = np.inf) -> None:
    """Refuse cells with a wrong number of nodes, or with nodes that are no integers below ``n``."""
    numbers, nodes = like.numbers, like.nodes
    where = f"cell {numbers[0]} of block {block} ({kind})"
    if kind == "polyhedron" and (len(like.faces) < 4 or min(like.faces) < 3):
        raise MeshError(
            f"{where} must have at least 4 faces of at least 3 corners, "
            f"got faces of {list(like.faces)} corners"
        )
    if kind != "polyhedron" and (expected := misfit(kind, nodes.shape[1])):
        raise MeshError(f"{where} must have {expected} nodes, got {nodes.shape[1]}")
    if not np.issubdtype(nodes.dtype, np.integer):
        raise MeshError(f"block {block} ({kind}) must hold integers, got {nodes.dtype}")
    if nodes.size and (nodes.min() < 0 or nodes.max() >= n):
        cell, corner = np.argwhere((nodes < 0) | (nodes >= n))[0]
        raise MeshError(
            f"cell {numbers[cell]} of block {block} ({kind}) refers to node {nodes[cell, corner]}, "
            f"expected 0 <= node < {n}"
        )
