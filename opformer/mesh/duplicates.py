"""Points of one place as one point, and the way back.

Writers of discontinuous or parallel results give every cell or piece its own points. Such a mesh
has the right measure, but it falls apart: each seam counts as boundary.
"""

from __future__ import annotations

import meshio
import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial import KDTree

from opformer._grouping import equal_rows
from opformer._polyhedra import renumbered
from opformer.errors import MeshError
from opformer.mesh.fields import blocks
from opformer.quadrature import node_weights

__all__ = ["merge_points"]


def merge_points(mesh: meshio.Mesh, tolerance: float = 0.0) -> tuple[meshio.Mesh, np.ndarray]:
    """Merge points of one place; return the mesh and an index, the new number of each old point.

    ``values[index]`` brings values at the new points back to the mesh as it came. Points keep the
    order and the coordinates of their first occurrence, and cells and their fields stay what and
    where they are. Cracks that are meant close as well.

    A point field keeps a value that all copies share. Where they differ, numbers of type float get
    the mean, weighted by the lumped weights of the copies (not at all, if these are zero); integers
    of 0 and 1 only, which are sets of points, the maximum; other integers, which no mean suits,
    the value of the first copy.

    Parameters
    ----------
    mesh
        What :func:`opformer.read_mesh` returns.
    tolerance
        Of the largest extent: points within it of one another are one, and so are chains of such.
        At 0 only equal coordinates are. Cells smaller than that lose their measure.

    Returns
    -------
    mesh : meshio.Mesh
        The mesh given, if no two of its points are one.
    index : array (points,)

    Raises
    ------
    MeshError
        If the tolerance is negative or not finite, or the cells have no weight rule.

    Examples
    --------
    >>> lines = np.array([[0, 1], [2, 3]])
    >>> mesh = meshio.Mesh([[0.0], [1.0], [1.0], [2.0]], [("line", lines)])
    >>> merged, index = merge_points(mesh)
    >>> merged.points.ravel().tolist(), index.tolist()
    ([0.0, 1.0, 2.0], [0, 1, 1, 2])
    """
    if not 0 <= tolerance < np.inf:
        raise MeshError(f"tolerance must be a part of the extent, 0 or more, got {tolerance}")
    points = np.asarray(mesh.points, dtype=np.float64)
    index, first = _by_occurrence(_groups(points, tolerance * np.ptp(points, axis=0).max()))
    if len(first) == len(points):
        return mesh, index
    share = _shares(node_weights(points, blocks(mesh)), index)
    merged = meshio.Mesh(
        mesh.points[first],
        [(block.type, renumbered(block.data, index)) for block in mesh.cells],
        point_data={
            name: _merged(np.asarray(field), index, first, share)
            for name, field in mesh.point_data.items()
        },
        cell_data={name: list(parts) for name, parts in mesh.cell_data.items()},
        field_data=mesh.field_data,
        point_sets={name: np.unique(index[ids]) for name, ids in mesh.point_sets.items()},
        cell_sets=mesh.cell_sets,
    )
    return merged, index


def _groups(points: np.ndarray, radius: float) -> np.ndarray:
    """A number for each point, the same for those that become one."""
    # Adding zero turns -0.0 into 0.0, whose bits differ.
    group = equal_rows([(column + 0.0).view(np.int64) for column in points.T])
    if radius > 0:
        places, group = np.unique(group, return_inverse=True)
        pairs = KDTree(points[places]).query_pairs(radius, output_type="ndarray")
        ones = np.ones(len(pairs), dtype=bool)
        graph = coo_array((ones, tuple(pairs.T)), shape=(len(places),) * 2)
        group = connected_components(graph, directed=False)[1][group]
    return group


def _by_occurrence(group: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The groups renumbered as they come, and where each first occurs."""
    _, first, group = np.unique(group, return_index=True, return_inverse=True)
    order = np.argsort(first)
    return np.argsort(order)[group], first[order]


def _shares(weights: np.ndarray, index: np.ndarray) -> np.ndarray:
    """What each old point counts in its new one; equal parts where all have weight zero."""
    total = np.bincount(index, weights)[index]
    shared = total > 0
    return np.where(shared, weights, 1) / np.where(shared, total, np.bincount(index)[index])


def _merged(
    field: np.ndarray, index: np.ndarray, first: np.ndarray, share: np.ndarray
) -> np.ndarray:
    marks = np.isin(field, (0, 1)).all()
    if marks or field.dtype.kind in "biu":
        merged = field[first]
        if marks:  # a part keeps all its points
            np.maximum.at(merged, index, field)
        return merged
    rows = field.reshape(len(field), -1)
    counted = np.where(share[:, None] > 0, share[:, None] * rows, 0)  # 0 times NaN would be NaN
    mean = np.stack([np.bincount(index, column) for column in counted.T], axis=1)
    kept = rows[first]
    differs = (rows != kept[index]) & ~(np.isnan(rows) & np.isnan(kept[index]))
    differing = np.zeros(kept.shape, dtype=bool)
    np.logical_or.at(differing, index, differs)
    return np.where(differing, mean, kept).astype(field.dtype).reshape(len(first), *field.shape[1:])
