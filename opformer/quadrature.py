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
and node orders; the connectivity is an integer array (cells, nodes), or a list of rows (polygons).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from opformer._bare_points import flat_axes, point_weights
from opformer._cells import TOPOLOGICAL_DIMENSION, cell_integrals, node_count
from opformer._facets import cell_facets, unshared
from opformer.errors import MeshError

__all__ = [
    "TOPOLOGICAL_DIMENSION",
    "CellReport",
    "boundary",
    "cell_report",
    "cell_weights",
    "flat_axes",
    "lumping",
    "node_weights",
    "point_weights",
    "top_blocks",
]

Blocks = Sequence[tuple[str, Any]]

_CHUNK = 2**17  # node coordinates of cells worked on at once: memory stays bounded
_DEGENERATE = 1e-15  # measure over diameter^k below which a cell counts as degenerate


def top_blocks(blocks: Blocks) -> list[int]:
    """Indices of the blocks whose cells have the mesh's top dimension; empty blocks have none.

    Raises
    ------
    MeshError
        On cells of an unknown type, or if there are no cells.

    Examples
    --------
    >>> top_blocks([("line", [[0, 1]]), ("triangle", [[0, 1, 2]]), ("quad", [[1, 3, 4, 2]])])
    [1, 2]
    """
    filled = [index for index, (_, cells) in enumerate(blocks) if len(cells)]
    for index in filled:
        if blocks[index][0] not in TOPOLOGICAL_DIMENSION:
            raise MeshError(
                f"block {index} has cells of type {blocks[index][0]!r}; "
                f"expected one of {', '.join(TOPOLOGICAL_DIMENSION)}"
            )
    if not filled:
        raise MeshError(f"a mesh needs cells, got none in {len(blocks)} block(s)")
    dimension = {index: TOPOLOGICAL_DIMENSION[blocks[index][0]] for index in filled}
    return [index for index in filled if dimension[index] == max(dimension.values())]


def lumping(points: np.ndarray, blocks: Blocks) -> csr_array:
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
    points = _as_points(points)
    rows, columns, values = [], [], []
    for chunk in _chunks(points, blocks):
        rows.append(chunk.nodes.ravel())
        columns.append(np.repeat(chunk.cells, chunk.nodes.shape[1]))
        values.append(cell_integrals(chunk.type, chunk.x)[0].ravel())
    row, column, value = map(np.concatenate, (rows, columns, values))
    return csr_array((value, (row, column)), shape=(len(points), column.max() + 1))


def node_weights(points: np.ndarray, blocks: Blocks) -> np.ndarray:
    r"""Weights (n,) of the nodes, :math:`w_i\approx\int\varphi_i`; zero at nodes of no cell.

    Raises as :func:`lumping` does.
    """
    return np.asarray(lumping(points, blocks).sum(axis=1))


def cell_weights(points: np.ndarray, blocks: Blocks) -> tuple[np.ndarray, np.ndarray]:
    r"""Centroids (cells, d), :math:`\int_cx\,/\,|c|`, and measures (cells,) of the top cells.

    The centroid of a cell without measure is the mean of its nodes. Raises as :func:`lumping` does.
    """
    points = _as_points(points)
    count = sum(len(blocks[index][1]) for index in top_blocks(blocks))
    centroids, measures = np.empty((count, points.shape[1])), np.empty(count)
    for chunk in _chunks(points, blocks):
        shares, moments, _ = cell_integrals(chunk.type, chunk.x)
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
    facets = []
    for index in top_blocks(blocks) if any(len(cells) for _, cells in blocks) else []:
        kind, cells = blocks[index]
        for numbers, nodes in _by_size(cells):
            _check_nodes(kind, index, numbers, nodes)
            facets += cell_facets(kind, nodes)
    return unshared(facets)


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
    points = _as_points(points)
    inverted, degenerate, orphan = [], [], np.ones(len(points), dtype=bool)
    for chunk in _chunks(points, blocks):
        orphan[chunk.nodes] = False
    axes = _spanned_axes(points[~orphan])
    for chunk in _chunks(points, blocks):
        k = TOPOLOGICAL_DIMENSION[chunk.type]
        x = chunk.x[..., : max(axes, k)]
        shares, _, oriented = cell_integrals(chunk.type, x)
        zero = shares.sum(axis=1) <= _DEGENERATE * np.ptp(x, axis=1).max(axis=1) ** k
        degenerate.append(chunk.cells[zero])
        if oriented.shape[1] == 1:
            inverted.append(chunk.cells[~zero & (oriented[:, 0] < 0)])
    first = np.unique(points, axis=0, return_index=True)[1]
    found = (
        np.concatenate([*inverted, []]),
        np.concatenate(degenerate),
        np.flatnonzero(orphan),
        np.setdiff1d(np.arange(len(points)), first),
    )
    return CellReport(*map(len, found), *(int(min(f)) if len(f) else None for f in found))


@dataclass(frozen=True)
class _Chunk:
    """Some cells of one type: numbers (m,), nodes (m, n), coordinates from the first node."""

    type: str
    cells: np.ndarray
    nodes: np.ndarray
    x: np.ndarray  # (m, n, d), so that no digits are lost far from the origin


def _chunks(points: np.ndarray, blocks: Blocks) -> Iterator[_Chunk]:
    """The top cells, checked, a bounded number at a time."""
    start = 0
    for index in top_blocks(blocks):
        kind, cells = blocks[index]
        for numbers, nodes in _by_size(cells):
            _check_cells(points, kind, index, numbers, nodes)
            pieces = -(-nodes.size * points.shape[1] // _CHUNK)
            for part in np.array_split(np.arange(len(nodes)), pieces):
                x = points[nodes[part]]
                yield _Chunk(kind, start + numbers[part], nodes[part], x - x[:, :1])
        start += len(cells)


def _by_size(cells: Any) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Numbers and nodes of the cells of a block, those with the same number of nodes together."""
    if isinstance(cells, np.ndarray) and cells.ndim == 2:
        yield np.arange(len(cells)), cells
        return
    sizes = np.array([np.size(cell) for cell in cells])
    for size in np.unique(sizes):
        numbers = np.flatnonzero(sizes == size)
        yield numbers, np.stack([np.ravel(cells[number]) for number in numbers])


def _check_cells(
    points: np.ndarray, kind: str, block: int, numbers: np.ndarray, nodes: np.ndarray
) -> None:
    n, d = points.shape
    if d < TOPOLOGICAL_DIMENSION[kind]:
        raise MeshError(f"{kind} cells need points with more coordinates, got dimension {d}")
    _check_nodes(kind, block, numbers, nodes, n)
    bad = nodes[~np.isfinite(points).all(axis=1)[nodes]]
    if len(bad):
        raise MeshError(
            f"nodes of cells must be finite, got {points[bad[0]].tolist()} at node {bad[0]}"
        )


def _check_nodes(
    kind: str, block: int, numbers: np.ndarray, nodes: np.ndarray, n: float = np.inf
) -> None:
    size = nodes.shape[1]
    if size < 3 if kind == "polygon" else size != node_count(kind):
        expected = "at least 3" if kind == "polygon" else node_count(kind)
        raise MeshError(
            f"cell {numbers[0]} of block {block} ({kind}) must have {expected} nodes, got {size}"
        )
    if not np.issubdtype(nodes.dtype, np.integer):
        raise MeshError(f"block {block} ({kind}) must hold integers, got {nodes.dtype}")
    outside = np.argwhere((nodes < 0) | (nodes >= n))
    if len(outside):
        cell, corner = outside[0]
        raise MeshError(
            f"cell {numbers[cell]} of block {block} ({kind}) refers to node {nodes[cell, corner]}, "
            f"expected 0 <= node < {n}"
        )


def _as_points(points: np.ndarray) -> np.ndarray:
    points = np.asarray(points, dtype=np.float64)
    points = points[:, None] if points.ndim == 1 else points
    if points.ndim != 2:
        raise MeshError(f"points must have shape (n, d), got {points.shape}")
    return points


def _spanned_axes(points: np.ndarray) -> int:
    """Number of axes (n, d) without the trailing ones along which the points do not extend."""
    return max(set(range(points.shape[1])) - set(flat_axes(points)), default=-1) + 1
