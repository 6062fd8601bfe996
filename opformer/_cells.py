r"""Integrals of shape functions over cells of every kind, by one mechanism.

A kind of cell is a list of reference nodes, a monomial basis and a Gauss rule. The shape functions
are the combinations of the basis that are one at their own node, :math:`\varphi=m(\xi)V^{-1}` with
the Vandermonde matrix :math:`V_{ij}=m_j(\xi_i)`. A cell with nodes :math:`x_i` is the image of
:math:`x(\xi)=\sum_i\varphi_i(\xi)x_i`, and its measure has the density
:math:`|\partial_1x\wedge\dots\wedge\partial_kx|=\sqrt{\det J^TJ}`, in any ambient dimension.

Node orders are VTK's as meshio delivers them: in a linear wedge nodes 0, 1, 2 run anticlockwise
when seen from 3, 4, 5; ``pyramid14``, unknown to VTK, is ``pyramid13`` and the centre of the base.

References: G. Bedrosian, Int. J. Numer. Methods Eng. 35 (1992), for the rational functions of
pyramids; E. Hinton, T. Rock, O. C. Zienkiewicz, Earthq. Eng. Struct. Dyn. 4 (1976), for the lumping
of quadratic cells.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import combinations, product

import numpy as np
from scipy.special import roots_jacobi

__all__ = [
    "TOPOLOGICAL_DIMENSION",
    "cell_integrals",
    "node_count",
    "reference_cell",
    "shape_functions",
]

Basis = Callable[..., bool]


@dataclass(frozen=True)
class _Kind:
    """What tells one kind of cell from another."""

    shape: str
    gauss: int  # points per direction: exact on affine and multilinear cells
    basis: Basis  # which exponents (each at most 2) of the coordinates and of the enrichment count
    middles: str = ""  # nodes beyond the corners, each the mean of the corners named
    enrichment: str = ""


# Corners in VTK's order, and the prisms and cones that build the shape from a point, an axis each.
_SHAPES = {
    "vertex": ([()], []),
    "line": ([(0,), (1,)], ["prism"]),
    "triangle": ([(0, 0), (1, 0), (0, 1)], ["prism", "cone"]),
    "quad": ([(0, 0), (1, 0), (1, 1), (0, 1)], ["prism", "prism"]),
    "tetra": ([(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)], ["prism", "cone", "cone"]),
    "hexahedron": (
        [(x, y, z) for z in (0, 1) for x, y in ((0, 0), (1, 0), (1, 1), (0, 1))],
        ["prism", "prism", "prism"],
    ),
    "wedge": (
        [(x, y, z) for z in (0, 1) for x, y in ((0, 0), (1, 0), (0, 1))],
        ["prism", "cone", "prism"],
    ),
    "pyramid": (
        [(0, 0, 0), (1, 0, 0), (1, 1, 0), (0, 1, 0), (0, 0, 1)],
        ["prism", "prism", "cone"],
    ),
}

_TRIANGLE = "01 12 20"
_QUAD = "01 12 23 30"
_TETRA = "01 12 20 03 13 23"
_HEXAHEDRON = "01 12 23 30 45 56 67 74 04 15 26 37"
_FACES = "0374 1265 0154 3267 0123 4567"
_WEDGE = "01 12 20 34 45 53 03 14 25"
_PYRAMID = "01 12 23 30 04 14 24 34"


def _total(degree: int) -> Basis:
    return lambda *a: sum(a) <= degree


def _each(degree: int) -> Basis:
    return lambda *a: max(a) <= degree


def _serendipity(*a: int) -> bool:
    return a.count(2) <= 1


def _wedge15(x: int, y: int, z: int) -> bool:
    return x + y <= 2 and min(x + y, z) <= 1


def _wedge18(x: int, y: int, z: int) -> bool:
    return x + y <= 2


def _pyramid13(x: int, y: int, z: int, e: int) -> bool:
    return _pyramid14(x, y, z, e) and e < 2


def _pyramid14(x: int, y: int, z: int, e: int) -> bool:
    return x + y + z + e <= 2 and z * e == 0  # z e = e - xy adds nothing


def _bubble(x: int, y: int, e: int) -> bool:
    return x + y + 2 * e <= 2


_KINDS = {
    "vertex": _Kind("vertex", 1, _total(0)),
    "line": _Kind("line", 1, _total(1)),
    "line3": _Kind("line", 3, _total(2), "01"),
    "triangle": _Kind("triangle", 1, _total(1)),
    "triangle6": _Kind("triangle", 3, _total(2), _TRIANGLE),
    "triangle7": _Kind("triangle", 4, _bubble, f"{_TRIANGLE} 012", "bubble"),
    "quad": _Kind("quad", 2, _each(1)),
    "quad8": _Kind("quad", 3, _serendipity, _QUAD),
    "quad9": _Kind("quad", 3, _each(2), f"{_QUAD} 0123"),
    "tetra": _Kind("tetra", 1, _total(1)),
    "tetra10": _Kind("tetra", 3, _total(2), _TETRA),
    "hexahedron": _Kind("hexahedron", 2, _each(1)),
    "hexahedron20": _Kind("hexahedron", 3, _serendipity, _HEXAHEDRON),
    "hexahedron27": _Kind("hexahedron", 3, _each(2), f"{_HEXAHEDRON} {_FACES} 01234567"),
    "wedge": _Kind("wedge", 2, lambda x, y, z: max(x + y, z) <= 1),
    "wedge15": _Kind("wedge", 3, _wedge15, _WEDGE),
    "wedge18": _Kind("wedge", 3, _wedge18, f"{_WEDGE} 0143 1254 2035"),
    "pyramid": _Kind("pyramid", 2, _total(1), enrichment="rational"),
    "pyramid13": _Kind("pyramid", 3, _pyramid13, _PYRAMID, "rational"),
    "pyramid14": _Kind("pyramid", 3, _pyramid14, f"{_PYRAMID} 0123", "rational"),
}

TOPOLOGICAL_DIMENSION = {name: len(_SHAPES[kind.shape][1]) for name, kind in _KINDS.items()}
TOPOLOGICAL_DIMENSION["polygon"] = 2


@dataclass(frozen=True, eq=False)
class ReferenceCell:
    """Nodes and Gauss weights of a kind of cell, and its shape functions at the Gauss points."""

    nodes: np.ndarray  # (n, k)
    omega: np.ndarray  # (q,)
    values: np.ndarray  # (q, n)
    gradients: np.ndarray  # (q, n, k)
    shares: np.ndarray  # (q, n) positive functions: their integrals split the measure


@cache
def reference_cell(name: str) -> ReferenceCell:
    """The reference cell of a kind (not of ``polygon``, which has none)."""
    kind = _KINDS[name]
    nodes = _reference_nodes(kind)
    points, omega = _gauss(_SHAPES[kind.shape][1], kind.gauss)
    values, gradients = shape_functions(name, points)
    shares = _diagonal_scaling(nodes, points, omega, values) if kind.gauss > 2 else values
    return ReferenceCell(nodes, omega, values, gradients, shares)


def shape_functions(name: str, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Values (q, n) and gradients (q, n, k) of the shape functions at ``points`` (q, k)."""
    kind = _KINDS[name]
    nodes = _reference_nodes(kind)
    axes = nodes.shape[1] + bool(kind.enrichment)
    exponents = np.array([a for a in product(range(3), repeat=axes) if kind.basis(*a)])
    exponents = exponents.reshape(len(nodes), axes)  # a vertex has one basis function and no axis
    inverse = np.linalg.inv(_monomials(kind, exponents, nodes)[0])
    values, gradients = _monomials(kind, exponents, points)
    return values @ inverse, np.einsum("qbk,bn->qnk", gradients, inverse)


def node_count(name: str) -> int:
    """Number of nodes of a kind of cell."""
    return len(reference_cell(name).nodes)


def cell_integrals(name: str, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    r"""Node shares, moments and oriented measure of cells of one kind with nodes ``x`` (m, n, d).

    Returns
    -------
    shares : (m, n)
        The lumped mass: not negative, of sum :math:`|c|`.
    moments : (m, n)
        :math:`\int_c\varphi_i`, of sum :math:`|c|`; the same as the shares if linear and convex.
    oriented : (m, d over k)
        :math:`\int_c\partial_1x\wedge\dots\wedge\partial_kx`; one signed number where k = d.
    """
    if name == "polygon":
        arms = x - x.mean(axis=1, keepdims=True)
        wedges = _wedge(np.stack([arms, np.roll(arms, -1, axis=1)], axis=-1)) / 2
        size, signed, oriented = _densities(wedges, np.ones(x.shape[1]))
        shares, moments = _fan(size), _fan(signed)
    else:
        cell = reference_cell(name)
        (m, n, d), (q, _, k) = x.shape, cell.gradients.shape
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


def _fan(area: np.ndarray) -> np.ndarray:
    """Node shares of the triangles (centre, node j, j + 1); the centre's third is for all."""
    return (area + np.roll(area, 1, axis=1) + area.mean(axis=1, keepdims=True)) / 3


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


def _reference_nodes(kind: _Kind) -> np.ndarray:
    corners = np.array(_SHAPES[kind.shape][0], dtype=float)
    middles = [corners[[int(i) for i in corner]].mean(axis=0) for corner in kind.middles.split()]
    return np.stack([*corners, *middles])


def _gauss(steps: list[str], n: int) -> tuple[np.ndarray, np.ndarray]:
    """Gauss rule, ``n`` points per direction; the shrinking of a cone is a Jacobi weight."""
    points, omega = np.zeros((1, 0)), np.ones(1)
    for dim, step in enumerate(steps):
        power = dim if step == "cone" else 0
        t, w = roots_jacobi(n, power, 0)
        t, w = (1 + t) / 2, w / 2 ** (power + 1)
        shrink = 1 - t if step == "cone" else np.ones(n)
        base = (shrink[:, None, None] * points).reshape(n * len(points), dim)
        points = np.column_stack([base, np.repeat(t, len(points))])
        omega = np.outer(w, omega).ravel()
    return points, omega


def _monomials(kind: _Kind, exponents: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Values (q, b) and gradients (q, b, k) of the basis; an enrichment is one more coordinate."""
    coordinates, jacobian = _enriched(kind.enrichment, x)
    values = np.prod(coordinates[:, None] ** exponents, axis=-1)
    gradients = np.zeros((*values.shape, x.shape[1]))
    for axis, step in enumerate(np.eye(exponents.shape[1], dtype=int)):
        lowered = np.maximum(exponents - step, 0)
        partial = exponents[:, axis] * np.prod(coordinates[:, None] ** lowered, axis=-1)
        gradients += partial[..., None] * jacobian[:, axis, None]
    return values, gradients


def _enriched(enrichment: str, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Coordinates (q, a) with the enrichment as the last, and their derivatives (q, a, k)."""
    jacobian = np.broadcast_to(np.eye(x.shape[1]), (len(x), x.shape[1], x.shape[1]))
    if not enrichment:
        return x, jacobian
    if enrichment == "bubble":
        u, v = x.T
        value, gradient = u * v * (1 - u - v), [v * (1 - 2 * u - v), u * (1 - u - 2 * v)]
    else:
        u, v, height = x[:, 0], x[:, 1], 1 - x[:, 2]
        height = np.where(height > 0, height, 1.0)  # zero at the apex, where u = v = 0
        value, gradient = u * v / height, [v / height, u / height, u * v / height**2]
    row = np.stack(gradient, axis=-1)[:, None]
    return np.column_stack([x, value]), np.concatenate([jacobian, row], axis=1)


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
