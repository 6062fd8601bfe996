"""Write the small meshes of this folder: ``python meshes/make.py``.

One mesh for every kind of cell that meshio reads and writes, mixed ones, a surface and a curve in
space, a graded one, and one with an orphan node and an inverted cell. Each has a point field
``u = x + 2 y + 3 z`` and a cell field ``number``. README.md lists them with their exact measures.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import meshio
import numpy as np

FOLDER = Path(__file__).parent

# The box [0, 2] x [0, 1] x [0, 1] is two unit cubes, sheared by a matrix of determinant one.
SHEAR = np.array([[1.0, 0.25, 0.125], [0.5, 1.125, 0.25], [0.0, 0.0, 1.0]])

# The unit cube (its nodes in a hexahedron's order, its centre 8) and square cut into other cells.
CUT = {
    "quad": [[0, 1, 2, 3]],
    "triangle": [[0, 1, 2], [0, 2, 3]],
    "hexahedron": [[0, 1, 2, 3, 4, 5, 6, 7]],
    "wedge": [[0, 1, 2, 4, 5, 6], [0, 2, 3, 4, 6, 7]],
    "tetra": [
        [0, 1, 2, 6],
        [0, 2, 3, 6],
        [0, 3, 7, 6],
        [0, 7, 4, 6],
        [0, 4, 5, 6],
        [0, 5, 1, 6],
    ],
    "pyramid": [
        [0, 1, 2, 3, 8],
        [4, 7, 6, 5, 8],
        [0, 4, 5, 1, 8],
        [1, 5, 6, 2, 8],
        [2, 6, 7, 3, 8],
        [3, 7, 4, 0, 8],
    ],
}
CUBE = np.array([[x, y, z] for z in (0, 1) for x, y in ((0, 0), (1, 0), (1, 1), (0, 1))], float)
CUBE = np.vstack([CUBE, [0.5, 0.5, 0.5]])

EDGES = {
    "line": ["01"],
    "triangle": ["01", "12", "20"],
    "quad": ["01", "12", "23", "30"],
    "tetra": ["01", "12", "20", "03", "13", "23"],
    "hexahedron": ["01", "12", "23", "30", "45", "56", "67", "74", "04", "15", "26", "37"],
    "wedge": ["01", "12", "20", "34", "45", "53", "03", "14", "25"],
}
# Linear kind and the corners whose means are the further nodes, in VTK's order.
QUADRATIC = {
    "line3": ("line", EDGES["line"]),
    "triangle6": ("triangle", EDGES["triangle"]),
    "quad8": ("quad", EDGES["quad"]),
    "quad9": ("quad", [*EDGES["quad"], "0123"]),
    "tetra10": ("tetra", EDGES["tetra"]),
    "hexahedron20": ("hexahedron", EDGES["hexahedron"]),
    "hexahedron27": (
        "hexahedron",
        [*EDGES["hexahedron"], "0374", "1265", "0154", "3267", "0123", "4567", "01234567"],
    ),
    "wedge18": ("wedge", [*EDGES["wedge"], "0143", "1254", "2035"]),
}

# The order of the nodes of VTK's cubic triangle, in thirds of the box of the two axes.
CUBIC = "00 30 03 10 20 21 12 02 01 11"

Mesh = tuple[np.ndarray, list[tuple[str, np.ndarray]]]


def meshes() -> Iterator[tuple[str, Mesh]]:
    """Name, points and blocks of every mesh."""
    yield "vertex", (SHEAR[:2], [("vertex", np.array([[0], [1]]))])
    yield "line", line()
    for kind in CUT:
        yield kind, box(kind)
    yield "polygon", polygons()
    for kind, (linear, middles) in QUADRATIC.items():
        points, [(_, cells)] = line() if linear == "line" else box(linear)
        points, cells = with_middles(points, cells, middles)
        yield kind, (points, [(kind, cells)])
    yield "lagrange_triangle", cubic_triangles()
    yield "mixed_plane", mixed_plane()
    yield "mixed_solid", mixed_solid()
    yield "sphere", sphere(2)
    yield "helix", helix(24)
    yield "graded", graded(8)
    yield "orphan_inverted", orphan_inverted()


def box(kind: str) -> Mesh:
    """The sheared box, or its base for cells of the plane, in cells of one linear kind."""
    used = np.unique(CUT[kind])
    points = np.vstack([CUBE[used] + shift for shift in ([0, 0, 0], [1, 0, 0])])
    cells = np.searchsorted(used, CUT[kind])
    points, index = merged(points @ SHEAR.T)
    return points, [(kind, index[np.vstack([cells, cells + len(used)])])]


def cubic_triangles() -> Mesh:
    """The base of the box in cubic triangles."""
    points, [(_, cells)] = box("triangle")
    a, b, c = np.moveaxis(points[cells], 1, 0)
    u, v = np.array([[int(i) for i in node] for node in CUBIC.split()]).T[..., None, None] / 3
    nodes = np.swapaxes(a + u * (b - a) + v * (c - a), 0, 1).reshape(-1, 3)
    points, index = merged(nodes)
    return points, [("VTK_LAGRANGE_TRIANGLE", index.reshape(len(cells), -1))]


def line() -> Mesh:
    """Four segments of the unit interval, with nodes at the squares."""
    t = np.linspace(0, 1, 5) ** 2
    points = np.stack([t, 0 * t, 0 * t], axis=1)
    return points, [("line", np.stack([np.arange(4), np.arange(1, 5)], axis=1))]


def polygons() -> Mesh:
    """The square [0, 2] x [0, 1] in two pentagons with a kinked side, and a triangle below."""
    points = [[0, 0], [2, 0], [2, 1], [0, 1], [1, 0], [1.25, 0.5], [1, 1], [1, -1]]
    points = np.pad(np.array(points, float), ((0, 0), (0, 1)))
    pentagons = np.array([[0, 4, 5, 6, 3], [4, 1, 2, 6, 5]])
    return points, [("polygon", pentagons), ("polygon", np.array([[0, 7, 4]]))]


def mixed_plane() -> Mesh:
    """Triangle, quad, triangle, a block each, and two lines of the boundary."""
    points = np.array([[0, 0, 0], [1, 0, 0], [2, 0, 0], [2, 1, 0], [1, 1, 0], [0, 1, 0]], float)
    return points, [
        ("triangle", np.array([[0, 1, 4]])),
        ("quad", np.array([[1, 2, 3, 4]])),
        ("triangle", np.array([[0, 4, 5]])),
        ("line", np.array([[0, 1], [1, 2]])),
    ]


def mixed_solid() -> Mesh:
    """A cube with a pyramid on one face, a wedge on another, a tetrahedron on the pyramid."""
    more = [[2, 0.5, 0.5], [0.5, 0, 2], [0.5, 1, 2], [2, 0, 0]]
    points = np.vstack([CUBE[:8], more])
    return points, [
        ("hexahedron", np.arange(8)[None]),
        ("pyramid", np.array([[1, 2, 6, 5, 8]])),
        ("wedge", np.array([[4, 9, 5, 7, 10, 6]])),
        ("tetra", np.array([[1, 2, 8, 11]])),
    ]


def sphere(levels: int) -> Mesh:
    """The unit sphere, by halving the edges of an octahedron."""
    points = np.array([[1, 0, 0], [0, 1, 0], [-1, 0, 0], [0, -1, 0], [0, 0, 1], [0, 0, -1]], float)
    upper = np.array([[0, 1, 4], [1, 2, 4], [2, 3, 4], [3, 0, 4]])
    cells = np.vstack([upper, np.where(upper == 4, 5, upper)[:, [1, 0, 2]]])
    for _ in range(levels):
        points, six = with_middles(points, cells, EDGES["triangle"])
        points /= np.linalg.norm(points, axis=1, keepdims=True)
        cells = np.vstack([six[:, c] for c in ([0, 3, 5], [3, 1, 4], [5, 4, 2], [3, 4, 5])])
    return points, [("triangle", cells)]


def helix(n: int) -> Mesh:
    """One turn of radius 1 and pitch pi, in n segments."""
    t = 2 * np.pi * np.arange(n + 1) / n
    points = np.stack([np.cos(t), np.sin(t), t / 2], axis=1)
    return points, [("line", np.stack([np.arange(n), np.arange(1, n + 1)], axis=1))]


def graded(n: int) -> Mesh:
    """Triangles of the unit square, crowded at the origin: areas spread over (2 n - 1)^2 : 1."""
    t = (np.arange(n + 1) / n) ** 2
    points = np.array([[x, y, 0] for x, y in product(t, t)])
    corner = np.arange((n + 1) ** 2).reshape(n + 1, n + 1)[:-1, :-1].reshape(-1, 1)
    a, b, c, d = corner, corner + n + 1, corner + n + 2, corner + 1
    return points, [("triangle", np.vstack([np.hstack([a, b, c]), np.hstack([a, c, d])]))]


def orphan_inverted() -> Mesh:
    """The unit square in two triangles, the second clockwise, and a node of no cell."""
    points = np.array([[0, 0, 0], [1, 0, 0], [5, 5, 0], [1, 1, 0], [0, 1, 0]], float)
    return points, [("triangle", np.array([[0, 1, 3], [0, 4, 3]]))]


def with_middles(points: np.ndarray, cells: np.ndarray, middles: list[str]) -> Mesh:
    """Add the means of the corners named, once for cells that share them."""
    means = [points[cells[:, [int(i) for i in corners]]].mean(axis=1) for corners in middles]
    n, added = len(points), len(cells) * len(middles)
    ids = n + np.arange(added).reshape(len(middles), len(cells)).T
    points, index = merged(np.vstack([points, *means]))
    return points, index[np.hstack([cells, ids])]


def merged(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Points without those that repeat an earlier one (to 1e-9), and the new number of each."""
    _, first, index = np.unique(
        np.round(points, 9) + 0.0, axis=0, return_index=True, return_inverse=True
    )
    order = np.argsort(first)
    return points[first[order]], np.argsort(order)[index.ravel()]


def write(folder: Path = FOLDER) -> None:
    """Write all of them as compressed VTU."""
    for name, (points, blocks) in meshes():
        sizes = [len(cells) for _, cells in blocks]
        number = np.split(np.arange(sum(sizes), dtype=float), np.cumsum(sizes)[:-1])
        meshio.Mesh(
            points,
            blocks,
            point_data={"u": points @ [1.0, 2.0, 3.0]},
            cell_data={"number": number},
        ).write(folder / f"{name}.vtu")


if __name__ == "__main__":
    write()
