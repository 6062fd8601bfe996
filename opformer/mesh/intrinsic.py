r"""Position on a mesh by what is measured within it: heat-kernel signatures.

.. math:: s_j(x) = \mu(\Omega)\,\frac{\sum_k w_{jk}\,\varphi_k(x)^2}{\sum_k w_{jk}}, \qquad
   w_{jk} = e^{-\lambda_k t_j} - e^{-\Lambda t_j}, \qquad -\Delta\varphi_k = \lambda_k\varphi_k.

It is the share of heat that is still at x after a time t: high at tips and edges of the boundary,
low in between. Only lengths along the mesh enter, so the signature is the same in any pose, and of
a surface that is bent without being stretched. The eigenvalues are the lowest, up to Λ, the times
geometric from 4/Λ to 32/Λ, and the mean over the mesh is one: neither its size nor the number of
its nodes matters. What counts falls to zero at Λ, so it is no matter which of equal eigenvalues are
the last.

The stiffness :math:`\int\nabla\varphi_i\cdot\nabla\varphi_j` is made of the shape functions of the
cells in their own tangent space, for triangles that of the cotangents; the mass is lumped.

References: J. Sun, M. Ovsjanikov, L. Guibas, Comput. Graph. Forum 28 (2009); U. Pinkall,
K. Polthier, Exp. Math. 2 (1993), for the cotangents.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import eigh
from scipy.sparse import coo_array, csc_array, diags_array, eye_array
from scipy.sparse.linalg import LinearOperator, eigsh, splu

from opformer._cells import TOPOLOGICAL_DIMENSION, reference_cell
from opformer._chunks import Blocks, as_points, chunks, top_blocks
from opformer.errors import MeshError
from opformer.quadrature import node_weights

__all__ = ["heat_signature", "stiffness"]

_MODES = 32  # eigenvalues up to Λ, beyond that of the constant
_TIMES = 4.0, 32.0  # over Λ; from what is resolved to about the whole of a surface
_DENSE = 400  # nodes: below this all eigenvalues are as fast as some
_FLAT = 1e-14  # smallest square of a stretch over the largest: what rounding makes of nothing


def heat_signature(points: np.ndarray, blocks: Blocks, times: int) -> np.ndarray:
    """Return the heat-kernel signature (n, times) at the nodes; zero at nodes without measure.

    Raises
    ------
    MeshError
        If there are too few nodes, or cells without edges.
    """
    dimension = TOPOLOGICAL_DIMENSION[blocks[top_blocks(blocks)[0]][0]]
    if dimension == 0:
        raise MeshError("heat needs cells to flow in, got points without cells")
    points = as_points(points)
    mass, matrix = node_weights(points, blocks), stiffness(points, blocks)
    alive = np.flatnonzero((mass > 0) & (matrix.diagonal() > 0))
    if len(alive) <= _MODES + 1:
        raise MeshError(f"heat needs more than {_MODES + 1} nodes of cells, got {len(alive)}")
    scale = mass.sum() ** (-2 / dimension)
    values, modes = _eigenpairs(matrix[alive][:, alive], mass[alive], scale)
    decay = np.exp(-np.outer(values / values[-1], np.geomspace(*_TIMES, times)))
    weights = decay - decay[-1]
    result = np.zeros((len(points), times))
    result[alive] = mass.sum() * (modes**2 @ weights) / weights.sum(axis=0)
    return result


def stiffness(points: np.ndarray, blocks: Blocks) -> csc_array:
    r"""Return the matrix (n, n) of :math:`\int\nabla\varphi_i\cdot\nabla\varphi_j` over the mesh.

    Examples
    --------
    >>> stiffness(np.array([[0.0], [2.0]]), [("line", np.array([[0, 1]]))]).toarray()
    array([[ 0.5, -0.5],
           [-0.5,  0.5]])
    """
    points = as_points(points)
    rows, columns, entries = [], [], []
    for chunk in chunks(points, blocks):
        n = chunk.nodes.shape[1]
        rows.append(np.repeat(chunk.nodes, n, axis=1).ravel())
        columns.append(np.tile(chunk.nodes, n).ravel())
        entries.append(_local(chunk.type, chunk.x, chunk.faces).ravel())
    where = np.concatenate(rows), np.concatenate(columns)
    shape = (len(points), len(points))
    return coo_array((np.concatenate(entries), where), shape=shape).tocsc()


def _local(kind: str, x: np.ndarray, faces: tuple[int, ...]) -> np.ndarray:
    """Stiffness (m, n, n) of cells with nodes x (m, n, d); nothing where they have no measure."""
    cell = reference_cell(kind, x.shape[1], faces)
    result = np.zeros((len(x), x.shape[1], x.shape[1]))
    for gradient, omega in zip(cell.gradients, cell.omega, strict=True):
        jacobian = np.einsum("mnd,nk->mdk", x, gradient)
        squares, axes = np.linalg.eigh(np.einsum("mdk,mdl->mkl", jacobian, jacobian))
        full = squares[:, 0] > _FLAT * squares[:, -1]
        share = np.where(full, omega * np.sqrt(np.prod(np.abs(squares), axis=1)), 0.0)
        slopes = gradient @ axes / np.sqrt(np.where(full[:, None], squares, 1.0))[:, None]
        result += share[:, None, None] * (slopes @ slopes.swapaxes(1, 2))
    return result


def _eigenpairs(matrix: csc_array, mass: np.ndarray, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """The lowest eigenvalues, ascending, and their functions (n, modes) of unit norm."""
    root = diags_array(1 / np.sqrt(mass))
    symmetric = root @ matrix @ root
    if len(mass) <= _DENSE:
        values, modes = eigh(symmetric.toarray(), subset_by_index=(0, _MODES))
    else:
        # Shifted it is positive, and needs no pivots; the start is the same every time.
        shifted = (symmetric + scale * eye_array(len(mass))).tocsc()
        options = {"SymmetricMode": True}
        factored = splu(shifted, "MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options=options)
        inverse = LinearOperator(shifted.shape, factored.solve, dtype=float)
        start = np.random.default_rng(0).normal(size=len(mass))
        values, modes = eigsh(symmetric, _MODES + 1, sigma=-scale, OPinv=inverse, v0=start)
    order = np.argsort(values)
    return np.maximum(values[order], 0.0), root @ modes[:, order]
