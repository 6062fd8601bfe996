r"""Voronoi cells of points, clipped to a convex domain.

The domain is a box, or the convex hull of the points. A cell that lies inside is a sum of pyramids
over its facets, one for each neighbour q of its point p,

.. math:: |V_p| = \frac1k\sum_q\frac{|p-q|}2\,|V_p\cap V_q|,

and one that reaches out is an intersection of half-spaces: those of its neighbours, and those of
the domain. Reference: A. Okabe et al., Spatial Tessellations, 2nd ed., 2000.
"""

from __future__ import annotations

import numpy as np
from scipy.spatial import ConvexHull, HalfspaceIntersection, KDTree, Voronoi

__all__ = ["voronoi"]

_OUT = 1e-12  # of the size of the domain: a vertex within this of it does not reach out
_NEAR = 1e-9  # of the size: points this near count as one
_FAR = 3.0  # sizes of the domain from its centre, where points bound all cells and claim none of it


def voronoi(x: np.ndarray, box: np.ndarray | None = None) -> np.ndarray:
    """Measures (n,) of the cells of distinct points (n, k) in the plane or in space.

    The points lie in the ``box``, its lower and its upper corner (2, k); without one the domain is
    their convex hull. The measures sum to that of the domain.
    """
    k = x.shape[1]
    corners = np.array([x.min(axis=0), x.max(axis=0)]) if box is None else box
    size = np.ptp(corners, axis=0).max()
    centre = corners.mean(axis=0)
    ghosts = centre + _FAR * size * np.vstack([np.eye(k), -np.eye(k)])
    diagram, kept = _diagram(x, ghosts, _NEAR * size)
    if box is None:
        hull = ConvexHull(x)
        centre = x[hull.vertices].mean(axis=0)
        facets, total, near = hull.equations, hull.volume, _near(hull, x[kept])
    else:
        facets, total = _sides(box), np.prod(box[1] - box[0])
        near = dict.fromkeys(range(len(kept)), np.arange(2 * k))
    cells, neighbours = _unclipped(diagram), _neighbours(diagram)
    for p, candidates in near.items():
        vertices = diagram.vertices[diagram.regions[diagram.point_region[p]]]
        planes = facets[candidates]
        cut = planes[(vertices @ planes[:, :k].T + planes[:, k] > _OUT * size).any(axis=0)]
        if len(cut):
            cells[p] = _clipped(diagram.points[p], diagram.points[neighbours[p]], cut, centre)
    # Points that are not in the diagram share the cell of the nearest one.
    owner = KDTree(x[kept]).query(x)[1]
    weights = (cells[: len(kept)] / np.bincount(owner))[owner]
    return weights * (total / weights.sum())  # equal before, but for rounding errors


def _diagram(x: np.ndarray, ghosts: np.ndarray, near: float) -> tuple[Voronoi, np.ndarray]:
    """The diagram of points, then ghosts; and the points in it, without those too near to others.

    Of very near points Qhull leaves some out, and has no digits left for the cells of the rest.
    """
    kept = _apart(x, near)
    while True:
        diagram = Voronoi(np.vstack([x[kept], ghosts]))
        used = np.isin(np.arange(len(kept)), diagram.ridge_points)
        if used.all():
            return diagram, kept
        kept = kept[used]


def _apart(x: np.ndarray, radius: float) -> np.ndarray:
    """Indices of points with no two of them within the radius, and some within it of all others."""
    kept = np.arange(len(x))
    while True:
        nearest = KDTree(x[kept]).query(x[kept], [2], distance_upper_bound=radius)[1][:, 0]
        first = nearest > np.arange(len(kept))  # where nothing is near, the answer is their number
        if first.all():
            return kept
        kept = kept[first]


def _unclipped(diagram: Voronoi) -> np.ndarray:
    """Measures of the bounded cells; of the others, some number."""
    bounded = [i for i, ridge in enumerate(diagram.ridge_vertices) if -1 not in ridge]
    ridges = [diagram.ridge_vertices[i] for i in bounded]
    ends = np.cumsum([len(ridge) for ridge in ridges])
    starts = np.append(0, ends[:-1])
    corner = diagram.vertices[np.concatenate(ridges)]
    if diagram.ndim == 2:
        measure = np.linalg.norm(corner[1::2] - corner[::2], axis=1)
    else:  # the corners of a ridge come in order around it
        following = np.arange(1, len(corner) + 1)
        following[ends - 1] = starts
        first = np.repeat(corner[starts], ends - starts, axis=0)
        fan = np.cross(corner - first, corner[following] - first)
        measure = np.linalg.norm(np.add.reduceat(fan, starts), axis=1) / 2
    pairs = diagram.ridge_points[bounded]
    height = np.linalg.norm(np.diff(diagram.points[pairs], axis=1)[:, 0], axis=1) / 2
    return np.bincount(pairs.ravel(), np.repeat(measure * height / diagram.ndim, 2))


def _neighbours(diagram: Voronoi) -> list[np.ndarray]:
    pairs = np.vstack([diagram.ridge_points, diagram.ridge_points[:, ::-1]])
    pairs = pairs[np.argsort(pairs[:, 0], kind="stable")]
    return np.split(pairs[:, 1], np.searchsorted(pairs[:, 0], np.arange(1, len(diagram.points))))


def _sides(box: np.ndarray) -> np.ndarray:
    """Half-spaces of a box as rows (normal, offset): normal · x + offset <= 0 inside."""
    eye = np.eye(box.shape[1])
    return np.vstack([np.column_stack([-eye, box[0]]), np.column_stack([eye, -box[1]])])


def _near(hull: ConvexHull, x: np.ndarray) -> dict[int, np.ndarray]:
    """For each point, the facets of the hull that its cell may meet; not all have such facets.

    Let the corners of a facet be within r of their mean. A place in the facet at distance s from
    the mean has a corner within sqrt(r² - s²), hence its owner is within s + sqrt(r² - s²) of the
    mean, which is at most r sqrt(2).
    """
    corners = hull.points[hull.simplices]
    mean = corners.mean(axis=1)
    radius = np.linalg.norm(corners - mean[:, None], axis=2).max(axis=1)
    owners = KDTree(x).query_ball_point(mean, 1.01 * np.sqrt(2) * radius)
    points = np.concatenate(owners).astype(np.int64)
    facets = np.repeat(np.arange(len(owners)), [len(some) for some in owners])
    order = np.argsort(points, kind="stable")
    found, starts = np.unique(points[order], return_index=True)
    return dict(zip(found.tolist(), np.split(facets[order], starts[1:]), strict=True))


def _clipped(p: np.ndarray, others: np.ndarray, planes: np.ndarray, centre: np.ndarray) -> float:
    """Measure of what is nearer to p than to others, and within the planes as the centre is."""
    k = len(p)
    distance = np.linalg.norm(others - p, axis=1)
    bisectors = np.column_stack([(others - p) / distance[:, None], -distance / 2])
    planes = np.column_stack([planes[:, :k], planes[:, :k] @ p + planes[:, k]])  # from p
    # The point itself may lie on the boundary: half way to where the line to the centre leaves the
    # cell, one is inside of all.
    leaves = (bisectors[:, :k] @ (centre - p) / -bisectors[:, k]).max()
    inside = (centre - p) / (2 * max(leaves, 1.0))
    spaces = np.vstack([bisectors, planes])
    scale = distance.min()
    spaces[:, k] = (spaces[:, k] + spaces[:, :k] @ inside) / scale
    corners = HalfspaceIntersection(spaces, np.zeros(k)).intersections
    return ConvexHull(corners).volume * scale**k
