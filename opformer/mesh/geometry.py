"""The geometry of a mesh in figures: extent, boundary, parts, facets and points that are shared.

Cells belong to one part if a chain of cells leads from one to the other in which neighbours share a
node. A facet of more than two cells is one where cells overlap or a surface branches.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np
from scipy.sparse import coo_array, csc_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial import cKDTree

from opformer._facets import Sharing
from opformer._grouping import maybe_near
from opformer.mesh.fields import Location

__all__ = ["GeometryReport", "report_geometry"]

NEAR = 1e-9  # of the largest extent: closer points are meant to be one
_FEW = 7  # one edge in so many, which is no number of nodes of common cells


@dataclass(frozen=True)
class GeometryReport:
    """Where a mesh lies and how it hangs together.

    Attributes
    ----------
    lower, upper : list of float
        The box around the points of positive weight.
    boundary : float
        Measure of the boundary; zero for a closed surface.
    cell_spread : float
        Largest over smallest positive measure of a cell.
    parts : list of int
        Number of cells of each connected part, the largest first.
    first_of_parts : list of int
        The first cell of each part.
    near_duplicates : int
        Points that do not coincide with another, but lie within 1e-9 of the extent of one.
    first_near_duplicate : int, optional
    crowded_facets : int
        Facets shared by more than two cells.
    first_crowded_facet : list of int
        The corner nodes of the first.
    """

    lower: list[float]
    upper: list[float]
    boundary: float
    cell_spread: float
    parts: list[int]
    first_of_parts: list[int]
    near_duplicates: int
    first_near_duplicate: int | None
    crowded_facets: int
    first_crowded_facet: list[int]

    @property
    def extent(self) -> float:
        """The largest extent along an axis."""
        return float(max(np.subtract(self.upper, self.lower)))

    @property
    def offset(self) -> float:
        """Distance of the centre from the origin, in extents; NaN without an extent."""
        centre = float(np.linalg.norm(np.add(self.lower, self.upper) / 2))
        return centre / self.extent if self.extent else float("nan")


def report_geometry(
    points: np.ndarray,
    matrix: csc_array,
    measures: Mapping[Location, np.ndarray],
    facets: Future[tuple[Sharing, np.ndarray]],
) -> GeometryReport:
    """Report the geometry, given the lumping matrix, its sums, and facets and boundary weights."""
    alive = points[measures["points"] > 0]
    alive = alive if len(alive) else points
    lower, upper = alive.min(axis=0), alive.max(axis=0)
    positive = measures["cells"][measures["cells"] > 0]
    near = _near_duplicates(points, NEAR * float((upper - lower).max()))
    sizes, first = _parts(matrix)
    shared, boundary = facets.result()  # asked for when all else is done
    return GeometryReport(
        lower=lower.tolist(),
        upper=upper.tolist(),
        boundary=float(boundary.sum()),
        cell_spread=float(positive.max() / positive.min()) if len(positive) else float("nan"),
        parts=sizes,
        first_of_parts=first,
        near_duplicates=len(near),
        first_near_duplicate=int(near[0]) if len(near) else None,
        crowded_facets=shared.crowded,
        first_crowded_facet=shared.first_crowded,
    )


def _parts(matrix: csc_array) -> tuple[list[int], list[int]]:
    """Number of cells and first cell of each part, the largest part first."""
    heads = matrix.indices[matrix.indptr[:-1]]
    ends = np.repeat(heads, np.diff(matrix.indptr)), matrix.indices
    labels = np.arange(matrix.shape[0])
    for step in (_FEW, 1):  # a few edges connect nearly everything, and the others are then loops
        one, other = (labels[end[::step]] for end in ends)
        edges = np.flatnonzero(one != other)
        pairs = one[edges], other[edges]
        graph = coo_array((np.ones(len(edges)), pairs), shape=(len(labels),) * 2)
        labels = connected_components(graph, directed=False)[1][labels]
    of_cells = labels[heads]
    sizes = np.bincount(of_cells)
    first = np.full(len(sizes), len(heads))
    np.minimum.at(first, of_cells, np.arange(len(heads)))
    order = np.lexsort((first, -sizes))[: np.count_nonzero(sizes)]  # points of no cell come last
    return sizes[order].tolist(), first[order].tolist()


def _near_duplicates(points: np.ndarray, radius: float) -> np.ndarray:
    some = maybe_near(points, radius)
    unique, index = np.unique(points[some], axis=0, return_index=True)
    if len(unique) < 2:
        return some[:0]
    distance = cKDTree(unique).query(unique, k=[2], distance_upper_bound=max(radius, 1e-300))[0]
    return np.sort(some[index[np.isfinite(distance[:, 0])]])
