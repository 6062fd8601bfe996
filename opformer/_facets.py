r"""Facets: the sides, of dimension k - 1, of cells of dimension k.

The facets of a kind of cell are listed by their corners, and run such that a cell of positive
orientation has its outward normal: :math:`\int_c\nabla\cdot f=\sum_f\int_f f\cdot n`. The other
nodes of a facet are those of the cell at which its own reference nodes fall. A facet is known by
the set of its corners, so that sides of equal corners are one facet whatever their types are, and
a quad that is collapsed to a triangle is that triangle. Faces of polyhedra are triangles, quads,
or polygons of five corners and more.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np

from opformer._cells import TOPOLOGICAL_DIMENSION
from opformer._grouping import equal_rows, packed
from opformer._lagrange import CORNERS, LAGRANGE, lagrange_nodes, lagrange_order
from opformer._shapes import reference_nodes, shape_functions, shape_of

__all__ = ["Sharing", "cell_facets", "corner_count", "facet_corners", "sharing"]

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
_LAGRANGE_TYPES = {shape: name for name, shape in LAGRANGE.items()}


def cell_facets(name: str, cells: np.ndarray, faces: tuple[int, ...] = ()) -> Facets:
    """Types and nodes (m, ...) of the facets of cells of one kind with nodes ``cells`` (m, n).

    The nodes of a polyhedron are the corners of its faces, one face after the other, and ``faces``
    the number of corners of each.
    """
    cells = cells.astype(np.int64)
    if name == "polygon":
        return [("line", np.stack([cells, np.roll(cells, -1, axis=1)], axis=-1).reshape(-1, 2))]
    if name == "polyhedron":
        parts = np.split(cells, np.cumsum(faces)[:-1], axis=1)
        types = ({3: "triangle", 4: "quad"}.get(n, "polygon") for n in faces)
        return list(zip(types, parts, strict=True))
    by_node = np.ascontiguousarray(cells.T)  # so that facets are contiguous column by column
    return [(side, by_node[columns].T) for side, columns in _sides(name, cells.shape[1])]


def corner_count(name: str, n: int) -> int:
    """How many of the ``n`` nodes of a facet, the first ones, are corners."""
    return n if name == "polygon" else len(CORNERS[shape_of(name)])


def facet_corners(name: str, nodes: np.ndarray) -> np.ndarray:
    """The corners (m, k) of facets with nodes (m, n)."""
    return nodes[:, : corner_count(name, nodes.shape[1])]


class Sharing(NamedTuple):
    """How many cells share a facet; facets of no extent are left out.

    Attributes
    ----------
    unshared : list of (type, nodes)
        The facets of one cell only, by type and number of nodes.
    crowded : int
        The number of facets of more than two cells.
    first_crowded : list of int
        The corners of the first of them.
    """

    unshared: Facets
    crowded: int
    first_crowded: list[int]


def sharing(facets: Facets) -> Sharing:
    """Compare all facets of a mesh, those of as many distinct corners with one another."""
    corners = [facet_corners(name, nodes) for name, nodes in facets]
    ends = np.cumsum([0, *map(len, corners)])
    once, crowded, first = np.zeros(ends[-1], dtype=bool), 0, ends[-1]
    for n, (rows, *words) in _corner_sets(corners).items():
        if n <= TOPOLOGICAL_DIMENSION[facets[0][0]]:  # of no extent
            continue
        leaders = equal_rows(words)
        count = np.bincount(leaders, minlength=len(leaders))
        once[rows] = count == 1
        if count.max() > 2:
            crowded += int((count > 2).sum())
            first = min(first, rows[np.argmax((count > 2)[leaders])])
    block = int(np.searchsorted(ends, first, side="right")) - 1
    nodes = corners[block][first - ends[block]] if crowded else []
    return Sharing(_chosen(facets, once), crowded, np.unique(nodes).tolist())


@cache
def _sides(name: str, n: int) -> list[tuple[str, np.ndarray]]:
    """Type and columns of the nodes of each facet of a kind of cell."""
    nodes = reference_nodes(name, n)
    sides = [[int(corner) for corner in corners] for corners in _SIDES[shape_of(name)].split()]
    if name in LAGRANGE:
        return [_lagrange_side(nodes, corners, lagrange_order(name, n) or 0) for corners in sides]
    return [_side(nodes, corners) for corners in sides]


def _side(nodes: np.ndarray, corners: list[int]) -> tuple[str, np.ndarray]:
    """The type with the most nodes that are all nodes of the cell, and their columns."""
    *quadratic, linear = _TYPES[len(corners)]
    for name in quadratic:
        distance, columns = _found(reference_nodes(name), nodes, corners)
        if np.allclose(distance, 0):
            return name, columns
    return linear, np.array(corners)


def _lagrange_side(nodes: np.ndarray, corners: list[int], p: int) -> tuple[str, np.ndarray]:
    """The type of the same order, and the columns of its nodes."""
    linear = _TYPES[len(corners)][-1]
    if linear == "vertex":
        return linear, np.array(corners)
    return _LAGRANGE_TYPES[linear], _found(lagrange_nodes(linear, p), nodes, corners)[1]


def _found(
    side: np.ndarray, nodes: np.ndarray, corners: list[int]
) -> tuple[np.ndarray, np.ndarray]:
    """Distances to, and columns of, the nodes of a cell nearest to those of one of its sides."""
    x = shape_functions(_TYPES[len(corners)][-1], side)[0] @ nodes[corners]
    distance = np.abs(x[:, None] - nodes).max(axis=-1)
    return distance.min(axis=1), distance.argmin(axis=1)


def _chosen(facets: Facets, mask: np.ndarray) -> Facets:
    """Some of all facets, counted through, by type and number of nodes."""
    blocks: dict[tuple[str, int], list[np.ndarray]] = {}
    start = 0
    for name, nodes in facets:
        kept = np.flatnonzero(mask[start : start + len(nodes)])
        blocks.setdefault((name, nodes.shape[1]), []).append(nodes[kept])
        start += len(nodes)
    merged = ((name, np.concatenate(parts)) for (name, _), parts in blocks.items())
    return [(name, nodes) for name, nodes in merged if len(nodes)]


def _corner_sets(facets: list[np.ndarray]) -> dict[int, list[np.ndarray]]:
    """By the number of distinct corners: which facets (m, c) have so many, and those in order.

    The facets are counted through, and the corners packed into few columns.
    """
    base = max((int(corners.max(initial=0)) for corners in facets), default=0) + 1
    found: dict[int, list[list[np.ndarray]]] = {}
    start = 0
    for corners in facets:
        rows = np.arange(start, start + len(corners))
        for kept, columns in _by_size(_sorted(list(corners.T))):
            found.setdefault(len(columns), []).append([rows[kept], *packed(columns, base)])
        start += len(corners)
    return {n: [np.concatenate(p) for p in zip(*parts, strict=True)] for n, parts in found.items()}


def _by_size(columns: list[np.ndarray]) -> Iterator[tuple[slice | np.ndarray, list[np.ndarray]]]:
    """Rows that have the same number of distinct entries, and these, given sorted columns."""
    repeated = [low == high for low, high in pairwise(columns)]
    if not any(equal.any() for equal in repeated):
        yield slice(None), columns
        return
    sets = np.stack(columns)
    sets[1:][np.stack(repeated)] = -1
    sets.sort(axis=0)
    size = (sets >= 0).sum(axis=0)
    for n in np.unique(size):
        rows = np.flatnonzero(size == n)
        yield rows, list(sets[-n:, rows])


def _sorted(columns: list[np.ndarray]) -> list[np.ndarray]:
    """Bubble sort of all rows at once: they are short and many."""
    for end in range(len(columns) - 1, 0, -1):
        for i in range(end):
            low, high = columns[i : i + 2]
            columns[i : i + 2] = np.minimum(low, high), np.maximum(low, high)
    return columns
