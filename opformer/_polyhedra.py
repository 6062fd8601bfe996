"""Polyhedra: cells given by their faces, polygons of any number of corners.

The faces of a polyhedron should run anticlockwise when seen from outside, and many programs do not
care. Two faces run alike if they pass their common edge in opposite directions. Where the faces of
a cell do not, they are turned until they do; whether all of them look outward is then unknown.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, overload

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from opformer.errors import MeshError

__all__ = ["Polyhedra", "renumbered", "similar_polyhedra"]


@dataclass(frozen=True, eq=False)
class Polyhedra:
    """Polyhedra as three arrays; a sequence of cells, each of them a list of faces.

    Face f has the corners ``corners[faces[f] : faces[f + 1]]``, cell c the faces from ``cells[c]``
    to ``cells[c + 1]``.

    Examples
    --------
    >>> tetra = [[0, 2, 1], [0, 1, 3], [1, 2, 3], [2, 0, 3]]
    >>> [face.tolist() for face in Polyhedra.of([tetra])[0]]
    [[0, 2, 1], [0, 1, 3], [1, 2, 3], [2, 0, 3]]
    """

    corners: np.ndarray
    faces: np.ndarray
    cells: np.ndarray

    @classmethod
    def of(cls, cells: Any) -> Polyhedra:
        """Take cells as lists of faces, each of which is a list of corners."""
        if isinstance(cells, Polyhedra):
            return cells
        faces = [np.asarray(face) for face in chain.from_iterable(cells)]
        if any(face.ndim != 1 or face.dtype.kind not in "iu" for face in faces):
            raise MeshError("faces of polyhedra must be lists of integers")
        return cls(
            np.concatenate([np.zeros(0, int), *faces]),
            np.cumsum([0, *map(len, faces)]),
            np.cumsum([0, *map(len, cells)]),
        )

    def __len__(self) -> int:
        return len(self.cells) - 1

    @overload
    def __getitem__(self, index: int) -> list[np.ndarray]: ...
    @overload
    def __getitem__(self, index: slice | np.ndarray) -> Polyhedra: ...
    def __getitem__(self, index: Any) -> Any:
        chosen = np.arange(len(self))[index]
        if not isinstance(chosen, np.ndarray):
            first, last = self.cells[chosen], self.cells[chosen + 1]
            corners = self.corners[self.faces[first] : self.faces[last]]
            return np.split(corners, self.faces[first + 1 : last] - self.faces[first])
        faces, cells = _gathered(self.cells, chosen)
        corners, offsets = _gathered(self.faces, faces)
        return Polyhedra(self.corners[corners], offsets, cells)

    def __iter__(self) -> Iterator[list[np.ndarray]]:
        return (self[k] for k in range(len(self)))

    @property
    def shape(self) -> tuple[int, int]:
        """Number of cells, and the most faces that one has."""
        return len(self), int(np.diff(self.cells).max(initial=0))


def renumbered(cells: Any, numbers: np.ndarray) -> Any:
    """Cells of any kind, polyhedra or an array, with ``numbers[node]`` for each node."""
    if isinstance(cells, Polyhedra):
        return Polyhedra(numbers[cells.corners], cells.faces, cells.cells)
    return numbers[cells]


def similar_polyhedra(
    cells: Polyhedra,
) -> Iterator[tuple[np.ndarray, np.ndarray, tuple[int, ...], bool]]:
    """Polyhedra in groups of cells whose faces have the same numbers of corners.

    Yields the numbers of the cells, the corners (m, n) of their faces, the smallest faces first, so
    turned that they run alike, the number of corners of each face, and whether they did so before.
    """
    counts = np.diff(cells.cells)
    owners = np.repeat(np.arange(len(cells)), counts)
    order = np.lexsort((np.diff(cells.faces), owners))
    sizes = np.diff(cells.faces)[order]
    corners, offsets = _gathered(cells.faces, order)
    corners = cells.corners[corners]
    for count in np.unique(counts):
        numbers = np.flatnonzero(counts == count)
        first = cells.cells[numbers]
        rows = sizes[first[:, None] + np.arange(count)]
        signatures, inverse = np.unique(rows, axis=0, return_inverse=True)
        for k, signature in enumerate(signatures.tolist()):
            members = np.flatnonzero(inverse.ravel() == k)
            at = offsets[first[members]][:, None] + np.arange(sum(signature))
            nodes, faces = corners[at], tuple(signature)
            alike = _run_alike(nodes, faces)
            if alike.any():
                yield numbers[members[alike]], nodes[alike], faces, True
            if not alike.all():
                yield numbers[members[~alike]], _turned(nodes[~alike], faces), faces, False


def _gathered(offsets: np.ndarray, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What rows of a ragged array hold, as indices into it, and their own offsets."""
    sizes = np.diff(offsets)[chosen]
    own = np.cumsum([0, *sizes]) if len(sizes) else np.zeros(1, int)
    return np.arange(own[-1]) + np.repeat(offsets[chosen] - own[:-1], sizes), own


def _edges(nodes: np.ndarray, faces: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Both ends (m, n) of all edges of faces."""
    first = np.cumsum((0, *faces[:-1]))
    parts = np.split(nodes, first[1:], axis=1) if faces else []
    return nodes, np.concatenate([np.roll(part, -1, axis=1) for part in parts], axis=1)


def _run_alike(nodes: np.ndarray, faces: tuple[int, ...]) -> np.ndarray:
    """Which cells have each edge as often in one direction as in the other."""
    if not faces:
        return np.ones(len(nodes), dtype=bool)
    a, b = _edges(nodes.astype(np.int64), faces)
    span = nodes.max(initial=0) + 1
    return (np.sort(a * span + b, axis=1) == np.sort(b * span + a, axis=1)).all(axis=1)


def _turned(nodes: np.ndarray, faces: tuple[int, ...]) -> np.ndarray:
    """The corners with faces reversed so that all run as the first face of their cell does.

    A graph has two vertices for each face, as it is and reversed; its edges join what runs alike.
    """
    m, f = len(nodes), len(faces)
    a, b = (end.ravel() for end in _edges(nodes.astype(np.int64), faces))
    number = (np.arange(m)[:, None] * f + np.repeat(np.arange(f), faces)).ravel()
    keys = np.stack([np.maximum(a, b), np.minimum(a, b), number // f])
    order = np.lexsort(keys)
    pair = (np.diff(keys[:, order], axis=1) == 0).all(axis=0)
    one, other = order[:-1][pair], order[1:][pair]
    differ = (a[one] == a[other]).astype(int)  # the same direction: one of them is to be reversed
    rows = np.concatenate([2 * number[one], 2 * number[one] + 1])
    columns = np.concatenate([2 * number[other] + differ, 2 * number[other] + 1 - differ])
    graph = coo_array((np.ones(len(rows)), (rows, columns)), shape=(2 * m * f, 2 * m * f))
    parts = connected_components(graph, directed=False)[1].reshape(m, f, 2)
    as_is, reverse = parts[..., 0], parts[..., 1]
    turn = (reverse == as_is[:, :1]) & (as_is != as_is[:, :1])
    polygons = np.split(nodes, np.cumsum(faces)[:-1], axis=1)
    return np.concatenate(
        [np.where(turn[:, [k]], face[:, ::-1], face) for k, face in enumerate(polygons)], axis=1
    )
