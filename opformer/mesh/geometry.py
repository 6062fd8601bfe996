"""The geometry of a mesh in figures: extent, boundary, parts, facets and points that are shared.

Cells belong to one part if a chain of cells leads from one to the other in which neighbours share a
node. A facet of more than two cells is one where cells overlap or a surface branches.
"""

from __future__ import annotations

from dataclasses import dataclass

import meshio
import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial import cKDTree

from opformer._cells import node_count
from opformer._facets import cell_facets
from opformer.mesh.fields import top_cells

__all__ = ["GeometryReport", "report_geometry"]

NEAR = 1e-9  # of the largest extent: closer points are meant to be one


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


def report_geometry(mesh: meshio.Mesh, matrix: csr_array, boundary: np.ndarray) -> GeometryReport:
    """Report the geometry, given the lumping matrix (points, cells) and the boundary weights."""
    weights, cells = matrix.sum(axis=1), matrix.sum(axis=0)
    alive = mesh.points[weights > 0] if (weights > 0).any() else mesh.points
    lower, upper = alive.min(axis=0), alive.max(axis=0)
    positive = cells[cells > 0]
    near = _near_duplicates(mesh.points, NEAR * float((upper - lower).max()))
    crowded = _crowded_facets(mesh)
    sizes, first = _parts(matrix)
    return GeometryReport(
        lower=lower.tolist(),
        upper=upper.tolist(),
        boundary=float(boundary.sum()),
        cell_spread=float(positive.max() / positive.min()) if len(positive) else float("nan"),
        parts=sizes,
        first_of_parts=first,
        near_duplicates=len(near),
        first_near_duplicate=int(near[0]) if len(near) else None,
        crowded_facets=len(crowded),
        first_crowded_facet=crowded[0] if crowded else [],
    )


def _parts(matrix: csr_array) -> tuple[list[int], list[int]]:
    """Number of cells and first cell of each part, the largest part first."""
    by_cell = matrix.tocsc()
    heads = by_cell.indices[by_cell.indptr[:-1]]
    edges = (np.repeat(heads, np.diff(by_cell.indptr)), by_cell.indices)
    graph = csr_array((np.ones(len(edges[0])), edges), shape=(matrix.shape[0],) * 2)
    labels = connected_components(graph, directed=False)[1][heads]
    _, first, sizes = np.unique(labels, return_index=True, return_counts=True)
    order = np.lexsort((first, -sizes))
    return sizes[order].tolist(), first[order].tolist()


def _near_duplicates(points: np.ndarray, radius: float) -> np.ndarray:
    unique, index = np.unique(points, axis=0, return_index=True)
    if len(unique) < 2:
        return index[:0]
    distance = cKDTree(unique).query(unique, k=[2], distance_upper_bound=max(radius, 1e-300))[0]
    return np.sort(index[np.isfinite(distance[:, 0])])


def _crowded_facets(mesh: meshio.Mesh) -> list[list[int]]:
    """Corner nodes of each facet of more than two cells."""
    by_size: dict[int, list[np.ndarray]] = {}
    for kind, cells in top_cells(mesh):
        for side, nodes in cell_facets(kind, np.asarray(cells)):
            corners = node_count(side.rstrip("0123456789"))
            by_size.setdefault(corners, []).append(np.sort(nodes[:, :corners], axis=1))
    found = [_occurring_more_than_twice(np.concatenate(rows)) for rows in by_size.values()]
    return [row for rows in found for row in rows.tolist()]


def _occurring_more_than_twice(rows: np.ndarray) -> np.ndarray:
    """The distinct rows that occur more than twice, in the order of their first occurrence."""
    rows = rows[(np.diff(rows, axis=1) != 0).all(axis=1)]  # sides that have collapsed are none
    if not len(rows):
        return rows
    order = np.lexsort(rows.T)
    new = np.append(True, (np.diff(rows[order], axis=0) != 0).any(axis=1))
    starts = np.flatnonzero(new)
    counts = np.diff(np.append(starts, len(rows)))
    return rows[np.sort(order[starts[counts > 2]])]
