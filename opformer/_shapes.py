r"""Shape functions of cells of every kind, on their reference cells, and Gauss rules.

A kind of cell is a list of reference nodes and a basis. The shape functions are the combinations of
the basis that are one at their own node, :math:`\varphi=m(\xi)V^{-1}` with the Vandermonde matrix
:math:`V_{ij}=m_j(\xi_i)`; those of Lagrange cells of any order are products, see
:mod:`opformer._lagrange`.

Node orders are VTK's as meshio delivers them: in a linear wedge nodes 0, 1, 2 run anticlockwise
when seen from 3, 4, 5; ``pyramid14``, unknown to VTK, is ``pyramid13`` and the centre of the base.

Reference: G. Bedrosian, Int. J. Numer. Methods Eng. 35 (1992), for the rational functions of
pyramids.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import numpy as np
from scipy.special import roots_jacobi

from opformer._lagrange import (
    CORNERS,
    EDGES,
    FACES,
    LAGRANGE,
    lagrange_functions,
    lagrange_nodes,
    lagrange_order,
)
from opformer.errors import MeshError

__all__ = ["KINDS", "gauss_rule", "is_linear", "reference_nodes", "shape_functions", "shape_of"]

Basis = Callable[..., bool]


@dataclass(frozen=True)
class _Kind:
    """What tells one kind of cell from another."""

    shape: str
    gauss: int  # points per direction: exact on affine and multilinear cells
    basis: Basis  # which exponents (each at most 2) of the coordinates and of the enrichment count
    middles: str = ""  # nodes beyond the corners, each the mean of the corners named
    enrichment: str = ""


# The prisms and cones that build a shape from a point, an axis each.
_STEPS = {
    "vertex": [],
    "line": ["prism"],
    "triangle": ["prism", "cone"],
    "quad": ["prism", "prism"],
    "tetra": ["prism", "cone", "cone"],
    "hexahedron": ["prism", "prism", "prism"],
    "wedge": ["prism", "cone", "prism"],
    "pyramid": ["prism", "prism", "cone"],
}


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


_ALL_27 = f"{EDGES['hexahedron']} {FACES['hexahedron']} 01234567"
KINDS = {
    "vertex": _Kind("vertex", 1, _total(0)),
    "line": _Kind("line", 1, _total(1)),
    "line3": _Kind("line", 3, _total(2), EDGES["line"]),
    "triangle": _Kind("triangle", 1, _total(1)),
    "triangle6": _Kind("triangle", 3, _total(2), EDGES["triangle"]),
    "triangle7": _Kind("triangle", 4, _bubble, f"{EDGES['triangle']} 012", "bubble"),
    "quad": _Kind("quad", 2, _each(1)),
    "quad8": _Kind("quad", 3, _serendipity, EDGES["quad"]),
    "quad9": _Kind("quad", 3, _each(2), f"{EDGES['quad']} 0123"),
    "tetra": _Kind("tetra", 1, _total(1)),
    "tetra10": _Kind("tetra", 3, _total(2), EDGES["tetra"]),
    "hexahedron": _Kind("hexahedron", 2, _each(1)),
    "hexahedron20": _Kind("hexahedron", 3, _serendipity, EDGES["hexahedron"]),
    "hexahedron27": _Kind("hexahedron", 3, _each(2), _ALL_27),
    "wedge": _Kind("wedge", 2, lambda x, y, z: max(x + y, z) <= 1),
    "wedge15": _Kind("wedge", 3, _wedge15, EDGES["wedge"]),
    "wedge18": _Kind("wedge", 3, _wedge18, f"{EDGES['wedge']} 0143 1254 2035"),
    "pyramid": _Kind("pyramid", 2, _total(1), enrichment="rational"),
    "pyramid13": _Kind("pyramid", 3, _pyramid13, EDGES["pyramid"], "rational"),
    "pyramid14": _Kind("pyramid", 3, _pyramid14, f"{EDGES['pyramid']} 0123", "rational"),
}


def shape_of(name: str) -> str:
    """The linear kind with the same corners."""
    return LAGRANGE.get(name) or KINDS[name].shape


def is_linear(name: str, n: int) -> bool:
    """Whether the kind has no nodes but its corners."""
    return n == len(CORNERS[shape_of(name)])


def reference_nodes(name: str, n: int = 0) -> np.ndarray:
    """The nodes (n, k) of the reference cell; ``n`` tells the order of a Lagrange cell."""
    if name in LAGRANGE:
        return lagrange_nodes(LAGRANGE[name], _order(name, n))
    corners = np.array(CORNERS[KINDS[name].shape], dtype=float)
    middles = KINDS[name].middles.split()
    return np.stack([*corners, *(corners[[int(i) for i in c]].mean(axis=0) for c in middles)])


def shape_functions(name: str, points: np.ndarray, n: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Values (q, n) and gradients (q, n, k) of the shape functions at ``points`` (q, k)."""
    if name in LAGRANGE:
        return lagrange_functions(LAGRANGE[name], _order(name, n), points)
    kind, nodes = KINDS[name], reference_nodes(name)
    axes = nodes.shape[1] + bool(kind.enrichment)
    exponents = np.array([a for a in product(range(3), repeat=axes) if kind.basis(*a)])
    exponents = exponents.reshape(len(nodes), axes)  # a vertex has one basis function and no axis
    inverse = np.linalg.inv(_monomials(kind, exponents, nodes)[0])
    values, gradients = _monomials(kind, exponents, points)
    return values @ inverse, np.einsum("qbk,bn->qnk", gradients, inverse)


def gauss_rule(name: str, n: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Points (q, k) and weights (q,): the measure of curved Lagrange cells is exact."""
    per_axis = (3 * _order(name, n) + 1) // 2 if name in LAGRANGE else KINDS[name].gauss
    return _gauss(_STEPS[shape_of(name)], per_axis)


def _order(name: str, n: int) -> int:
    order = lagrange_order(name, n)
    if order is None:
        raise MeshError(f"{name} cells of {n} nodes are not supported")
    return order


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
