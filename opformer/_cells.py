r"""Integrals of shape functions over cells of every kind, by one mechanism.

A cell with nodes :math:`x_i` is the image of the reference cell of its kind under
:math:`x(\xi)=\sum_i\varphi_i(\xi)x_i`, with the shape functions :math:`\varphi_i` of
:mod:`opformer._shapes`. Its measure has the density
:math:`|\partial_1x\wedge\dots\wedge\partial_kx|=\sqrt{\det J^TJ}`, in any ambient dimension,
and is integrated with a Gauss rule. So cells with curved sides count as the curved cells they are.

Polygons and polyhedra have no reference cell. They are fans of simplices around their centre, the
mean of their corners; a simplex of a polyhedron joins it to the centre of a face and to one of the
face's edges. Each simplex counts as a Gauss point, and shares in the centres go to their corners.
With signs, the simplices sum up to the measure that the divergence theorem gives, star-shaped or
not, and neighbours agree on a face between them that is not plane.

Reference: E. Hinton, T. Rock, O. C. Zienkiewicz, Earthq. Eng. Struct. Dyn. 4 (1976), for the
lumping of quadratic cells.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations

import numpy as np

from opformer._lagrange import CORNERS, LAGRANGE, MAX_ORDER, lagrange_order
from opformer._shapes import KINDS, gauss_rule, is_linear, reference_nodes, shape_functions

__all__ = [
    "TOPOLOGICAL_DIMENSION",
    "cell_integrals",
    "misfit",
    "node_count",
    "reference_cell",
    "shape_functions",
]

TOPOLOGICAL_DIMENSION = {name: len(CORNERS[kind.shape][0]) for name, kind in KINDS.items()}
TOPOLOGICAL_DIMENSION |= {name: len(CORNERS[shape][0]) for name, shape in LAGRANGE.items()}
TOPOLOGICAL_DIMENSION |= {"polygon": 2, "polyhedron": 3}


@dataclass(frozen=True, eq=False)
class ReferenceCell:
    """Nodes and Gauss weights of a kind of cell, and its shape functions at the Gauss points."""

    nodes: np.ndarray  # (n, k)
    omega: np.ndarray  # (q,)
    values: np.ndarray  # (q, n)
    gradients: np.ndarray  # (q, n, k)
    shares: np.ndarray  # (q, n) positive functions: their integrals split the measure


@lru_cache(maxsize=256)
def reference_cell(name: str, n: int = 0, faces: tuple[int, ...] = ()) -> ReferenceCell:
    """The reference cell of a kind, or what stands for it for a polygon or a polyhedron.

    Parameters
    ----------
    name : str
    n : int
        The number of nodes, of polygons and Lagrange cells.
    faces : tuple of int
        The number of corners of each face of a polyhedron.
    """
    if name in ("polygon", "polyhedron"):
        return _fan(faces or (n,), TOPOLOGICAL_DIMENSION[name])
    nodes = reference_nodes(name, n)
    points, omega = gauss_rule(name, n)
    values, gradients = shape_functions(name, points, n)
    linear = is_linear(name, len(nodes))
    shares = values if linear else _diagonal_scaling(nodes, points, omega, values)
    return ReferenceCell(nodes, omega, values, gradients, shares)


def node_count(name: str) -> int:
    """Number of nodes of a kind of cell that always has the same."""
    return len(reference_cell(name).nodes)


def misfit(name: str, n: int) -> str:
    """What number of nodes cells of a kind should have, if it is not ``n``; else nothing."""
    if name == "polygon":
        return "" if n >= 3 else "at least 3"
    if name in LAGRANGE:
        return "" if lagrange_order(name, n) else f"those of an order from 1 to {MAX_ORDER}"
    return "" if n == node_count(name) else str(node_count(name))


def cell_integrals(
    name: str, x: np.ndarray, faces: tuple[int, ...] = ()
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    r"""Node shares, moments and oriented measure of cells of one kind with nodes ``x`` (m, n, d).

    The nodes of a polyhedron are the corners of its faces, one face after the other, and ``faces``
    the number of corners of each.

    Returns
    -------
    shares : (m, n)
        The lumped mass: not negative, of sum :math:`|c|`.
    moments : (m, n)
        :math:`\int_c\varphi_i`, of sum :math:`|c|`; the same as the shares if linear and convex.
    oriented : (m, d over k)
        :math:`\int_c\partial_1x\wedge\dots\wedge\partial_kx`; one signed number where k = d.
    """
    cell = reference_cell(name, x.shape[1], faces)
    (m, n, d), (q, _, k) = x.shape, cell.gradients.shape
    if q == 1:  # affine
        oriented = cell.omega * _wedge((x[:, 1:] - x[:, :1]).swapaxes(1, 2))
        measure = np.sqrt(np.einsum("mc,mc->m", oriented, oriented))
        shares = measure[:, None] * cell.shares
        return shares, shares, oriented
    gradients = cell.gradients.swapaxes(0, 1).reshape(n, q * k)
    jacobian = x.transpose(0, 2, 1).reshape(m * d, n) @ gradients
    wedges = _wedge(jacobian.reshape(m, d, q, k).swapaxes(1, 2))
    size, signed, oriented = _densities(wedges, cell.omega)
    shares, moments = size @ cell.shares, signed @ cell.values
    measure = np.maximum(moments.sum(axis=1, keepdims=True), 0.0)
    total = shares.sum(axis=1, keepdims=True)
    shares *= np.divide(measure, total, out=np.zeros_like(total), where=total > 0)
    return shares, moments, oriented


def _densities(wedges: np.ndarray, omega: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """|J| (m, q), the same with its sign against the mean orientation, and the integral of J.

    The sign matters only where a cell is not convex: with it, a plane one has its shoelace area.
    """
    size = omega * np.sqrt(np.einsum("mqc,mqc->mq", wedges, wedges))
    oriented = np.einsum("mqc,q->mc", wedges, omega)
    return size, size * np.sign(np.einsum("mqc,mc->mq", wedges, oriented)), oriented


def _fan(faces: tuple[int, ...], k: int) -> ReferenceCell:
    """Simplices of the centre, in a polyhedron of the centre of a face, and of a side's corners."""
    n = sum(faces)
    eye = np.eye(n)
    first = np.repeat(np.cumsum((0, *faces[:-1])), faces)
    size = np.repeat(faces, faces)
    following = eye[first + (np.arange(n) - first + 1) % size]
    centre = np.full((n, n), 1 / n)
    middles = [(first[:, None] == first) / size] if k == 3 else []
    corners = [centre, *middles, eye, following]  # (n simplices, n nodes) each
    values = np.mean(corners, axis=0)
    gradients = np.stack([corner - centre for corner in corners[1:]], axis=-1)
    return ReferenceCell(np.empty((0, k)), np.full(n, 1 / (k * (k - 1))), values, gradients, values)


def _wedge(columns: np.ndarray) -> np.ndarray:
    """Exterior product of the columns of (..., d, k): the k-minors (..., d over k), by Laplace."""
    d, k = columns.shape[-2:]
    minors: dict[tuple[int, ...], np.ndarray] = {(): np.ones(columns.shape[:-2])}
    for c in range(k):
        minors = {
            rows: sum(
                (-1) ** (c + i) * columns[..., row, c] * minors[rows[:i] + rows[i + 1 :]]
                for i, row in enumerate(rows)
            )
            for rows in combinations(range(d), c + 1)
        }
    return np.stack(list(minors.values()), axis=-1)


def _diagonal_scaling(
    nodes: np.ndarray, points: np.ndarray, omega: np.ndarray, values: np.ndarray
) -> np.ndarray:
    """phi_i^2, tilted so that the weights of the reference cell have its centroid for theirs.

    Hinton, Rock and Zienkiewicz's rule is exact for linear functions on all kinds but the pyramids,
    whose nodes have no centre of symmetry; for all others the tilt is one.
    """
    weights = omega @ values**2
    mean = weights @ nodes / weights.sum()
    covariance = np.einsum("n,ni,nj->ij", weights, nodes - mean, nodes - mean) / weights.sum()
    shift = omega @ points / omega.sum() - mean
    return values**2 * (1 + (nodes - mean) @ np.linalg.solve(covariance, shift))
