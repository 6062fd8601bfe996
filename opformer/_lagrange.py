r"""Lagrange cells of any order: VTK's node orders and Silvester's shape functions.

A cell of order p has its nodes where p times each of its barycentric coordinates
:math:`\lambda_c` is an integer :math:`i_c`; a line has two of them, a triangle three, a quad those
of two lines, a wedge those of a triangle and a line. The shape function of a node is

.. math:: \varphi(\xi)=\prod_c\prod_{m<i_c}\frac{p\lambda_c(\xi)-m}{m+1}.

The nodes are the corners, then those inside each edge, each face and the cell; edges and faces are
given by their corners, and run from the first to the second, and then to the last of them.

References: P. Silvester, Int. J. Eng. Sci. 7 (1969); VTK's classes vtkLagrangeTetra and others.
"""

from __future__ import annotations

import numpy as np

__all__ = [
    "CORNERS",
    "EDGES",
    "FACES",
    "LAGRANGE",
    "MAX_ORDER",
    "lagrange_functions",
    "lagrange_nodes",
    "lagrange_order",
    "plain_name",
]

MAX_ORDER = 10

# meshio's names of the cells, and their shapes. VTK knows no nodes of VTK_LAGRANGE_PYRAMID.
LAGRANGE = {
    "VTK_LAGRANGE_CURVE": "line",
    "VTK_LAGRANGE_TRIANGLE": "triangle",
    "VTK_LAGRANGE_QUADRILATERAL": "quad",
    "VTK_LAGRANGE_TETRAHEDRON": "tetra",
    "VTK_LAGRANGE_HEXAHEDRON": "hexahedron",
    "VTK_LAGRANGE_WEDGE": "wedge",
}
CORNERS: dict[str, list[tuple[int, ...]]] = {
    "vertex": [()],
    "line": [(0,), (1,)],
    "triangle": [(0, 0), (1, 0), (0, 1)],
    "quad": [(0, 0), (1, 0), (1, 1), (0, 1)],
    "tetra": [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)],
    "hexahedron": [(x, y, z) for z in (0, 1) for x, y in ((0, 0), (1, 0), (1, 1), (0, 1))],
    "wedge": [(x, y, z) for z in (0, 1) for x, y in ((0, 0), (1, 0), (0, 1))],
    "pyramid": [(0, 0, 0), (1, 0, 0), (1, 1, 0), (0, 1, 0), (0, 0, 1)],
}
EDGES = {
    "line": "01",
    "triangle": "01 12 20",
    "quad": "01 12 32 03",
    "tetra": "01 12 20 03 13 23",
    "hexahedron": "01 12 32 03 45 56 76 47 04 15 26 37",
    "wedge": "01 12 20 34 45 53 03 14 25",
    "pyramid": "01 12 23 30 04 14 24 34",
}
FACES = {
    "triangle": "012",
    "quad": "0123",
    "tetra": "013 231 032 021",
    "hexahedron": "0374 1265 0154 3267 0123 4567",
    "wedge": "012 345 0143 1254 2035",
}
_QUADRATIC = {
    **{"line": "line3", "triangle": "triangle6", "quad": "quad9", "tetra": "tetra10"},
    **{"hexahedron": "hexahedron27", "wedge": "wedge18"},
}
# The axes of each factor of a shape: its coordinates and one minus their sum are barycentric.
_FACTORS = {
    "line": [[0]],
    "triangle": [[0, 1]],
    "quad": [[0], [1]],
    "tetra": [[0, 1, 2]],
    "hexahedron": [[0], [1], [2]],
    "wedge": [[0, 1], [2]],
}


def lagrange_order(name: str, n: int) -> int | None:
    """The order of a Lagrange cell of ``n`` nodes, if there is one up to `MAX_ORDER`."""
    counts = [_count(LAGRANGE[name], p) for p in range(1, MAX_ORDER + 1)]
    return counts.index(n) + 1 if n in counts else None


def plain_name(name: str, n: int) -> str:
    """The usual name of a Lagrange cell of order 1 or 2, whose nodes are the same; else its own."""
    names = {1: LAGRANGE[name], 2: _QUADRATIC[LAGRANGE[name]]}
    return names.get(lagrange_order(name, n) or 0, name)


def lagrange_nodes(shape: str, p: int) -> np.ndarray:
    """The nodes (n, k) of the reference cell of order p, in VTK's order."""
    corners = p * np.array(CORNERS[shape])
    sides = [
        corners[[int(i) for i in side]]
        for side in (*EDGES[shape].split(), *FACES.get(shape, "").split())
    ]
    triangle = _rows if shape == "wedge" else _inside_simplex
    parts = [triangle(x, p) if len(x) == 3 else _inside(x, p) for x in sides]
    if shape == "tetra":
        parts.append(_inside_simplex(corners, p))
    elif len(corners[0]) == 3:  # copies of what is inside the base
        base = parts[-2] if shape == "hexahedron" else _rows(corners[:3], p)
        parts += [base + np.array([0, 0, z]) for z in range(1, p)]
    return np.concatenate([corners, *parts]) / p


def lagrange_functions(shape: str, p: int, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Values (q, n) and gradients (q, n, k) of the shape functions at ``points`` (q, k)."""
    rows, offsets = _barycentric(shape)
    index = np.rint(p * (lagrange_nodes(shape, p) @ rows.T + offsets)).astype(int)  # (n, c)
    tables = _silvester(p, p * (points @ rows.T + offsets))  # (2, q, c, p + 1)
    factors, slopes = tables[:, :, np.arange(len(rows)), index]  # (q, n, c)
    gradients = np.zeros((len(points), len(index), points.shape[1]))
    for c, row in enumerate(rows):
        others = np.delete(factors, c, axis=-1).prod(axis=-1)
        gradients += (p * slopes[..., c] * others)[..., None] * row
    return factors.prod(axis=-1), gradients


def _count(shape: str, p: int) -> int:
    counts = {1: p + 1, 2: (p + 1) * (p + 2) // 2, 3: (p + 1) * (p + 2) * (p + 3) // 6}
    return int(np.prod([counts[len(axes)] for axes in _FACTORS[shape]]))


def _inside(corners: np.ndarray, p: int) -> np.ndarray:
    """Lattice points inside an edge or a quad, along its first side first."""
    steps = np.arange(1, p)[:, None] * (corners[1] - corners[0]) // p
    across = np.arange(1, p)[:, None] * (corners[-1] - corners[0]) // p
    if len(corners) == 2:
        return corners[0] + steps
    return (corners[0] + steps + across[:, None]).reshape(-1, corners.shape[1])


def _rows(corners: np.ndarray, p: int) -> np.ndarray:
    """Lattice points inside a triangle of a wedge, along its first side first."""
    i, j = np.array([(i, j) for j in range(1, p) for i in range(1, p - j)], int).reshape(-1, 2).T
    sides = (corners[1:] - corners[0]) // p
    return corners[0] + np.outer(i, sides[0]) + np.outer(j, sides[1])


def _inside_simplex(corners: np.ndarray, p: int) -> np.ndarray:
    """Lattice points inside a triangle or a tetrahedron: those of one whose order is less."""
    m = len(corners)
    inner = corners + (corners.sum(axis=0) - m * corners) // p
    if p <= m:
        return inner[:1] if p == m else inner[:0]
    shape = "tetra" if m == 4 else "triangle"
    edges = [_inside(inner[[int(i) for i in side]], p - m) for side in EDGES[shape].split()]
    faces = [
        _inside_simplex(inner[[int(i) for i in side]], p - m)
        for side in (FACES[shape].split() if m == 4 else [])
    ]
    return np.concatenate([inner, *edges, *faces, _inside_simplex(inner, p - m)])


def _barycentric(shape: str) -> tuple[np.ndarray, np.ndarray]:
    """Rows (c, k) and offsets (c,) of the barycentric coordinates, as functions of the point."""
    k = len(CORNERS[shape][0])
    rows, offsets = [], []
    for axes in _FACTORS[shape]:
        unit = np.eye(k)[axes]
        rows += [-unit.sum(axis=0), *unit]
        offsets += [1.0] + [0.0] * len(axes)
    return np.array(rows), np.array(offsets)


def _silvester(p: int, t: np.ndarray) -> np.ndarray:
    """Products of (t - m) / (m + 1) over m < i, i = 0 ... p, and derivatives (2, ..., p + 1)."""
    values, slopes = [np.ones_like(t)], [np.zeros_like(t)]
    for m in range(p):
        slopes.append((slopes[-1] * (t - m) + values[-1]) / (m + 1))
        values.append(values[-1] * (t - m) / (m + 1))
    return np.stack([np.stack(values, -1), np.stack(slopes, -1)])
