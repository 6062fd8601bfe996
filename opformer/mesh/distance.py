r"""Distances of points to cells as geometry: the least distance to a segment or a triangle.

Cells are cut into simplices between their nodes. These are the leaves of a binary tree of boxes,
each turned into the principal axes of what is in it. The distance to a box is a lower bound of that
to all within, the distance to any simplex an upper bound of the least: branches that are farther
than what is known are left out, all others followed. So the nearest simplex is always found,
however unequal they are in size and however slender.

The points go down together, level after level, as pairs of a point and a box.

Reference: S. Gottschalk, M. C. Lin, D. Manocha, OBBTree, Proc. SIGGRAPH (1996).
"""

from __future__ import annotations

from functools import cache
from itertools import combinations, pairwise
from typing import NamedTuple

import numpy as np
from scipy.spatial import Delaunay

from opformer._cells import TOPOLOGICAL_DIMENSION, reference_cell

__all__ = ["distances", "simplices"]

_PAIRS = 2**15  # of points and boxes, worked on at once: memory stays bounded


def distances(x: np.ndarray, corners: np.ndarray) -> np.ndarray:
    """Return the distance (n,) of points (n, d) to the nearest of the simplices (m, k + 1, d).

    Simplices are points, segments or triangles, in any space.

    Examples
    --------
    >>> distances(np.array([[0.5, 2.0], [4.0, 4.0]]), np.array([[[0.0, 0.0], [1.0, 0.0]]]))
    array([2., 5.])
    """
    corners, boxes = _tree(corners)
    chunks = np.array_split(np.arange(len(x)), len(x) // _PAIRS + 1)
    return np.sqrt(np.concatenate([_least(x[rows], corners, boxes) for rows in chunks]))


def simplices(points: np.ndarray, blocks: list[tuple[str, np.ndarray]]) -> np.ndarray:
    """Corners (m, k + 1, d) of the simplices of cells, all of one dimension k of at most 2.

    Quads are cut along a diagonal, polygons into a fan around their middle, quadratic cells and
    those of higher order between all their nodes.
    """
    return np.concatenate([_cut(kind, points[nodes]) for kind, nodes in blocks])


def _cut(kind: str, x: np.ndarray) -> np.ndarray:
    if kind == "polygon":
        middle = np.broadcast_to(x.mean(axis=1, keepdims=True), x.shape)
        pieces = np.stack([middle, x, np.roll(x, -1, axis=1)], axis=2)
    else:
        pieces = x[:, _pieces(kind, x.shape[1])]
    return pieces.reshape(-1, *pieces.shape[2:])


@cache
def _pieces(kind: str, n: int) -> np.ndarray:
    """The nodes (p, k + 1) of the simplices that a cell of ``n`` nodes is cut into."""
    nodes = reference_cell(kind, n).nodes
    if TOPOLOGICAL_DIMENSION[kind] == 0:
        return np.array([[0]])
    if TOPOLOGICAL_DIMENSION[kind] == 1:
        return np.array(list(pairwise(np.argsort(nodes[:, 0]))))
    return Delaunay(nodes).simplices


def _least(x: np.ndarray, simplices: np.ndarray, boxes: list[_Boxes]) -> np.ndarray:
    """Squared distances of points to the simplices of a tree."""
    point, box = np.arange(len(x)), np.zeros(len(x), dtype=np.int64)
    for level in boxes[1:]:  # a first guess: to the nearer branch, without looking back
        box = 2 * box
        box += level.squared(x, box + 1) < level.squared(x, box)
    best = _squared(x, simplices[box])
    stack = [(0, point, np.zeros_like(box))]
    while stack:
        depth, point, box = stack.pop()
        if len(point) > _PAIRS:
            half = len(point) // 2
            stack += [(depth, point[:half], box[:half]), (depth, point[half:], box[half:])]
            continue
        near = boxes[depth].squared(x[point], box) <= best[point]
        point, box = point[near], box[near]
        if depth < len(boxes) - 1:
            stack.append((depth + 1, np.tile(point, 2), np.concatenate([2 * box, 2 * box + 1])))
        else:
            np.minimum.at(best, point, _squared(x[point], simplices[box]))
    return best


class _Boxes(NamedTuple):
    """Boxes in axes of their own, the rows of a rotation."""

    centre: np.ndarray  # (b, d)
    half: np.ndarray  # (b, d)
    axes: np.ndarray  # (b, d, d)

    @classmethod
    def around(cls, x: np.ndarray) -> _Boxes:
        """The box around each group of points (b, n, d), in their principal axes."""
        mean = x.mean(axis=1, keepdims=True)
        axes = np.linalg.eigh(np.einsum("bni,bnj->bij", x - mean, x - mean))[1].swapaxes(1, 2)
        along = np.einsum("bij,bnj->bni", axes, x - mean)
        lower, upper = along.min(axis=1), along.max(axis=1)
        centre = mean[:, 0] + np.einsum("bij,bi->bj", axes, (lower + upper) / 2)
        return cls(centre, (upper - lower) / 2, axes)

    def squared(self, x: np.ndarray, box: np.ndarray) -> np.ndarray:
        """Squared distance of each point (m, d) to its box (m,)."""
        along = np.einsum("mij,mj->mi", self.axes[box], x - self.centre[box])
        gap = np.maximum(np.abs(along) - self.half[box], 0.0)
        return _dot(gap, gap)


def _tree(corners: np.ndarray) -> tuple[np.ndarray, list[_Boxes]]:
    """The simplices in the order of a binary tree, and its boxes from the root down to each.

    The number of simplices is brought to a power of two by repeating some.
    """
    levels = (len(corners) - 1).bit_length()
    order, centres = np.resize(np.arange(len(corners)), (1, 2**levels)), corners.mean(axis=1)
    boxes = []
    for level in range(levels + 1):
        boxes.append(_Boxes.around(corners[order].reshape(2**level, -1, corners.shape[2])))
        if level < levels:
            x = centres[order]
            longest = np.ptp(x, axis=1).argmax(axis=1)[:, None, None]
            along = np.take_along_axis(x, longest, axis=2)[..., 0].argsort(axis=1)
            order = np.take_along_axis(order, along, axis=1).reshape(2 ** (level + 1), -1)
    return corners[order[:, 0]], boxes


def _squared(x: np.ndarray, corners: np.ndarray) -> np.ndarray:
    """Squared distance of each point (m, d) to its simplex (m, k + 1, d)."""
    if corners.shape[1] == 1:
        return _dot(x - corners[:, 0], x - corners[:, 0])
    ends = combinations(range(corners.shape[1]), 2)
    best = np.min([_squared_to_segment(x, corners[:, i], corners[:, j]) for i, j in ends], axis=0)
    return best if corners.shape[1] == 2 else np.minimum(best, _squared_to_face(x, corners))


def _squared_to_segment(x: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    r, edge = x - a, b - a
    r = r - np.clip(_ratio(_dot(r, edge), _dot(edge, edge)), 0.0, 1.0)[:, None] * edge
    return _dot(r, r)


def _squared_to_face(x: np.ndarray, corners: np.ndarray) -> np.ndarray:
    """The same to the plane of a triangle, infinite where the foot is not in the triangle."""
    r, u, v = x - corners[:, 0], corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]
    across = v - _ratio(_dot(v, u), _dot(u, u))[:, None] * u
    b = _ratio(_dot(r, across), _dot(across, across))
    foot = r - b[:, None] * v
    a = _ratio(_dot(foot, u), _dot(u, u))
    foot = foot - a[:, None] * u
    inside = (a >= 0) & (b >= 0) & (a + b <= 1)
    return np.where(inside, _dot(foot, foot), np.inf)


def _dot(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.einsum("md,md->m", a, b)


def _ratio(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.divide(a, b, out=np.zeros_like(a), where=b > 0)
