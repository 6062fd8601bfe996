r"""Facets: the sides, of dimension k - 1, of cells of dimension k.

The facets of a kind of cell are listed by their corners, and run such that a cell of positive
orientation has its outward normal: :math:`\int_c\nabla\cdot f=\sum_f\int_f f\cdot n`. The other
nodes of a facet are those of the cell at which its own reference nodes fall. A facet is known by
the set of its corners, so that sides of equal corners are one facet whatever their types are, and
a quad that is collapsed to a triangle is that triangle.
"""

from __future__ import annotations

from functools import cache
from typing import TypeAlias

import numpy as np

from opformer._cells import TOPOLOGICAL_DIMENSION, reference_cell, shape_functions

__all__ = ["cell_facets", "unshared"]

Facets: TypeAlias = list[tuple[str, np.ndarray]]

# The corners of each facet, outward.
_SIDES = {
    "vertex": "",
    "line": "0 1",
    "triangle": "01 12 20",
    "quad": "01 12 23 30",
    "tetra": "013 123 032 021",
    "hexahedron": "0473 1265 0154 3762 0321 4567",
    "wedge": "021 345 0143 1254 2035",
    "pyramid": "0321 014 124 234 304",
}
# By the number of corners: the types of facets, that with the most nodes first.
_TYPES = {
    1: ("vertex",),
    2: ("line3", "line"),
    3: ("triangle6", "triangle"),
    4: ("quad9", "quad8", "quad"),
}
_CORNERS = {name: corners for corners, names in _TYPES.items() for name in names}


def cell_facets(name: str, cells: np.ndarray) -> Facets:
    """Types and nodes (m, ...) of the facets of cells of one kind with nodes ``cells`` (m, n)."""
    cells = cells.astype(np.int64)
    if name == "polygon":
        return [("line", np.stack([cells, np.roll(cells, -1, axis=1)], axis=-1).reshape(-1, 2))]
    return [(side, cells[:, columns]) for side, columns in _sides(name)]


def unshared(facets: Facets) -> Facets:
    """The facets that occur once, a block for each type; those of no extent are left out."""
    if not facets:
        return []
    width = max(_CORNERS[name] for name, _ in facets)
    sets = np.concatenate(
        [_corner_sets(nodes[:, : _CORNERS[name]], width) for name, nodes in facets]
    )
    extended = (sets >= 0).sum(axis=1) > TOPOLOGICAL_DIMENSION[facets[0][0]]
    kept = np.split(_once(sets) & extended, np.cumsum([len(nodes) for _, nodes in facets])[:-1])
    blocks: dict[str, list[np.ndarray]] = {}
    for (name, nodes), keep in zip(facets, kept, strict=True):
        blocks.setdefault(name, []).append(nodes[keep])
    merged = ((name, np.concatenate(parts)) for name, parts in blocks.items())
    return [(name, nodes) for name, nodes in merged if len(nodes)]


@cache
def _sides(name: str) -> list[tuple[str, np.ndarray]]:
    """Type and columns of the nodes of each facet of a kind of cell."""
    nodes = reference_cell(name).nodes
    sides = _SIDES[name.rstrip("0123456789")].split()
    return [_side(nodes, [int(corner) for corner in corners]) for corners in sides]


def _side(nodes: np.ndarray, corners: list[int]) -> tuple[str, np.ndarray]:
    """The type with the most nodes that are all nodes of the cell, and their columns."""
    *quadratic, linear = _TYPES[len(corners)]
    for name in quadratic:
        x = shape_functions(linear, reference_cell(name).nodes)[0] @ nodes[corners]
        distance = np.abs(x[:, None] - nodes).max(axis=-1)
        if np.allclose(distance.min(axis=1), 0):
            return name, distance.argmin(axis=1)
    return linear, np.array(corners)


def _corner_sets(corners: np.ndarray, width: int) -> np.ndarray:
    """Sorted rows (m, width) of distinct corners; -1 stands for what a set has fewer."""
    sets = np.full((len(corners), width), -1)
    sets[:, : corners.shape[1]] = np.sort(corners, axis=1)
    repeated = sets[:, 1:] == sets[:, :-1]
    sets[:, 1:][repeated] = -1
    return np.sort(sets, axis=1)


def _once(rows: np.ndarray) -> np.ndarray:
    """Which rows (m, w) have no equal."""
    order = np.lexsort(rows.T)
    steps = (np.diff(rows[order], axis=0) != 0).any(axis=1)
    edges = np.concatenate([[True], steps, [True]])  # before and after each row
    once = np.empty(len(rows), dtype=bool)
    once[order] = edges[1:] & edges[:-1]
    return once
