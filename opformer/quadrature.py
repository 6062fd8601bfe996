r"""Quadrature weights of meshes and bare points: :math:`\int f\,d\mu\approx\sum_i w_if(x_i)`.

On a mesh everything follows from one sparse matrix, the lumped mass of node i in cell c,

.. math:: W_{ic}\approx\int_c\varphi_i\,d\mu,\qquad W_{ic}\ge0,\qquad \sum_iW_{ic}=|c|,

with the shape functions :math:`\varphi_i` of the cells of top dimension, which alone count.
Its row sums are the weights of the nodes, its column sums the measures of the cells;
:math:`(Wf)/(W1)` moves a field of the cells to the nodes, :math:`(W^Tf)/(W^T1)` one of the nodes to
the cells. Linear cells are lumped by :math:`\int_c\varphi_i`. On quadratic ones that can be zero or
negative, so :math:`|c|` is shared in proportion to :math:`\int_c\varphi_i^2` (Hinton, Rock and
Zienkiewicz 1976), which is Simpson's rule on lines and on full quads and hexahedra. Both rules are
exact for linear functions on affine cells.

A mesh is ``points`` (n, d) and ``blocks``, a sequence of (type, connectivity) with meshio's names
and node orders; the connectivity is an integer array (cells, nodes), or a list of rows (polygons),
or of lists of faces (polyhedra). Where the sides of cells are curved the curved geometry is
integrated: the measures of quadratic cells, and of Lagrange cells of any order, are exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csc_array

from opformer._alike import alike, check_nodes
from opformer._bare_points import RULES, flat_axes, point_weights, suited_rule
from opformer._cells import TOPOLOGICAL_DIMENSION, cell_integrals
from opformer._chunks import Blocks, as_points, checked, chunks, top_blocks
from opformer._facets import Sharing, cell_facets, sharing
from opformer._grouping import maybe_near

__all__ = [
    "RULES",
    "TOPOLOGICAL_DIMENSION",
    "CellReport",
    "block_facets",
    "boundary",
    "cell_report",
    "cell_weights",
    "flat_axes",
    "lumping",
    "node_weights",
    "point_weights",
    "suited_rule",
    "top_blocks",
]

_DEGENERATE = 1e-15  # measure over diameter^k below which a cell counts as degenerate


def lumping(points: np.ndarray, blocks: Blocks) -> csc_array:
    r"""Lumped mass :math:`W_{ic}` of node i in cell c, a matrix (n points, n cells).

    The cells are those of the top blocks, in order. No entry is negative; degenerate cells have
    zeros, inverted ones count by their absolute measure, and the row of a node of no cell is empty.

    Raises
    ------
    MeshError
        On cells of an unknown type, with a wrong number of nodes or a node out of range, on
        non-finite coordinates of a used node, or if there are no cells.

    Examples
    --------
    >>> square = np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
    >>> lumping(square, [("triangle", [[0, 1, 2], [0, 2, 3]])]).toarray() * 6
    array([[1., 1.], [1., 0.], [1., 1.], [0., 1.]])
    """
    points = as_points(points)
    parts = [
        (chunk.cells, chunk.nodes, cell_integrals(chunk.type, chunk.x, chunk.faces)[0])
        for chunk in chunks(points, blocks)
    ]
    return _assembled(parts, len(points))


def node_weights(points: np.ndarray, blocks: Blocks) -> np.ndarray:
    r"""Weights (n,) of the nodes, :math:`w_i\approx\int\varphi_i`; zero at nodes of no cell.

    Raises as :func:`lumping` does.
    """
    points = as_points(points)
    weights = np.zeros(len(points))
    for chunk in chunks(points, blocks):
        shares = cell_integrals(chunk.type, chunk.x, chunk.faces)[0]
        for nodes, share in zip(chunk.nodes.T, shares.T, strict=True):
            np.add.at(weights, nodes, share)
    return weights


def cell_weights(points: np.ndarray, blocks: Blocks) -> tuple[np.ndarray, np.ndarray]:
    r"""Centroids (cells, d), :math:`\int_cx\,/\,|c|`, and measures (cells,) of the top cells.

    The centroid of a cell without measure is the mean of its nodes. Raises as :func:`lumping` does.
    """
    points = as_points(points)
    count = sum(len(blocks[index][1]) for index in top_blocks(blocks))
    centroids, measures = np.empty((count, points.shape[1])), np.empty(count)
    for chunk in chunks(points, blocks):
        shares, moments, _ = cell_integrals(chunk.type, chunk.x, chunk.faces)
        measure = measures[chunk.cells] = shares.sum(axis=1)
        barycentric = np.full_like(moments, 1 / moments.shape[1])
        np.divide(moments, measure[:, None], out=barycentric, where=measure[:, None] > 0)
        centre = np.einsum("mn,mnd->md", barycentric, chunk.x)
        # In a self-intersecting cell signed areas cancel; its centroid is kept from running away.
        centre = np.clip(centre, chunk.x.min(axis=1), chunk.x.max(axis=1))
        centroids[chunk.cells] = points[chunk.nodes[:, 0]] + centre
    return centroids, measures


def boundary(blocks: Blocks) -> list[tuple[str, np.ndarray]]:
    r"""The boundary as blocks of cells: the facets that belong to one top cell only.

    ``node_weights(points, boundary(blocks))`` is the measure of the boundary, lumped at the nodes
    of the mesh. Facets are known by the numbers of their corners, so nodes that coincide but differ
    in number make a crack. Where there is no boundary, as of a closed surface, the list is empty.

    Raises
    ------
    MeshError
        On cells of an unknown type, with a wrong number of nodes or a negative node.

    Examples
    --------
    >>> [(kind, lines)] = boundary([("triangle", [[0, 1, 2], [0, 2, 3]])])
    >>> kind, lines.tolist()
    ('line', [[0, 1], [1, 2], [2, 3], [3, 0]])
    """
    return facet_sharing(blocks).unshared


def facet_sharing(blocks: Blocks) -> Sharing:
    """The boundary and the facets of more than two cells, out of one comparison of all facets."""
    filled = top_blocks(blocks) if any(len(cells) for _, cells in blocks) else []
    return sharing([facet for k in filled for facet in block_facets(*blocks[k], k)])


def block_facets(kind: str, cells: Any, block: int = 0) -> list[tuple[str, np.ndarray]]:
    """The facets of all cells of a block, one type and number of nodes after another."""
    facets = []
    for like in alike(kind, cells):
        check_nodes(kind, block, like)
        facets += cell_facets(kind, like.nodes, like.faces)
    return facets


@dataclass(frozen=True)
class CellReport:
    """What is odd about a mesh: counts, and the index of each first offender or None.

    Attributes
    ----------
    inverted : int
        Top cells of negative orientation, where dimension and space allow one to tell.
    degenerate : int
        Top cells of no measure.
    orphans : int
        Points in no top cell.
    duplicates : int
        Points that coincide with an earlier one.
    """

    inverted: int
    degenerate: int
    orphans: int
    duplicates: int
    first_inverted: int | None = None
    first_degenerate: int | None = None
    first_orphan: int | None = None
    first_duplicate: int | None = None


def cell_report(points: np.ndarray, blocks: Blocks) -> CellReport:
    """Count inverted and degenerate top cells, points in no top cell, and coincident points.

    Trailing axes along which the mesh is flat do not count, so the triangles of a plane mesh with
    z = 0 have an orientation. Raises as :func:`lumping` does.
    """
    return weigh(points, blocks)[1]


def weigh(points: np.ndarray, blocks: Blocks) -> tuple[csc_array, CellReport]:
    """The matrix of :func:`lumping` and the report of :func:`cell_report`, out of one pass."""
    points = as_points(points)
    used = np.zeros(len(points), dtype=bool)
    for _, _, like in checked(points, blocks):
        used[like.nodes] = True
    extent = np.ptp(points[used], axis=0).max()
    axes = _spanned_axes(points[used])
    parts, inverted, degenerate = [], [], []
    for chunk in chunks(points, blocks):
        shares, _, oriented = cell_integrals(chunk.type, chunk.x, chunk.faces)
        parts.append((chunk.cells, chunk.nodes, shares))
        k = TOPOLOGICAL_DIMENSION[chunk.type]
        x = chunk.x[..., : max(axes, k)]
        if x.shape != chunk.x.shape:
            shares, _, oriented = cell_integrals(chunk.type, x, chunk.faces)
        null = _null(shares @ np.ones(shares.shape[1]), x, k, extent)
        degenerate.append(chunk.cells[null])
        if oriented.shape[1] == 1 and chunk.signed:
            negative = oriented[:, 0] < 0
            negative[null] = False
            inverted.append(chunk.cells[negative])
    found = (
        np.concatenate([*inverted, np.empty(0, dtype=int)]),
        np.concatenate(degenerate),
        np.flatnonzero(~used),
        _duplicates(points),
    )
    report = CellReport(*map(len, found), *(int(f.min()) if len(f) else None for f in found))
    return _assembled(parts, len(points)), report


def _assembled(parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]], n: int) -> csc_array:
    """The matrix of n rows from numbers (m,), nodes (m, k) and shares (m, k) of cells."""
    cells = np.concatenate([cells for cells, _, _ in parts])
    sizes = np.concatenate([np.full(len(nodes), nodes.shape[1]) for _, nodes, _ in parts])
    nodes = np.concatenate([nodes.ravel() for _, nodes, _ in parts])
    shares = np.concatenate([shares.ravel() for _, _, shares in parts])
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    matrix = csc_array((shares, nodes, offsets), shape=(n, len(cells)))
    return matrix if (np.diff(cells) > 0).all() else matrix[:, np.argsort(cells)]


def _null(measure: np.ndarray, x: np.ndarray, k: int, extent: float) -> np.ndarray:
    """Which cells (m, n, d) are degenerate; most are seen not to be without their diameter."""
    small = np.flatnonzero(measure <= _DEGENERATE * (2 * extent) ** k)
    diameter = np.ptp(x[small], axis=1).max(axis=1)
    return small[measure[small] <= _DEGENERATE * diameter**k]


def _duplicates(points: np.ndarray) -> np.ndarray:
    """Points that coincide with an earlier one."""
    near = maybe_near(points, 0.0)
    return np.delete(near, np.unique(points[near], axis=0, return_index=True)[1])


def _spanned_axes(points: np.ndarray) -> int:
    """Number of axes (n, d) without the trailing ones along which the points do not extend."""
    return max(set(range(points.shape[1])) - set(flat_axes(points)), default=-1) + 1
