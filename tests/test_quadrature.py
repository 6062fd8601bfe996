"""Weights against exact integrals: every kind of cell, every ambient dimension, and bare points."""

from __future__ import annotations

from itertools import pairwise, product
from math import factorial, log2, pi

import numpy as np
import pytest
from scipy.spatial import ConvexHull

from opformer import _cells, _chunks, quadrature
from opformer._lagrange import LAGRANGE, MAX_ORDER, lagrange_nodes, lagrange_order
from opformer._polyhedra import Polyhedra
from opformer.errors import MeshError
from opformer.quadrature import (
    TOPOLOGICAL_DIMENSION,
    boundary,
    cell_report,
    cell_weights,
    lumping,
    node_weights,
    point_weights,
    top_blocks,
)

# The parametric coordinates of VTK's documentation, doubled; a pyramid's apex is above its node 0.
LINE = "0 2"
TRIANGLE, TRIANGLE_MID = "00 20 02", "10 11 01"
QUAD, QUAD_MID = "00 20 22 02", "10 21 12 01"
TETRA, TETRA_MID = "000 200 020 002", "100 110 010 001 101 011"
HEX, HEX_MID = (
    "000 200 220 020 002 202 222 022",
    "100 210 120 010 102 212 122 012 001 201 221 021",
)
HEX_FACES = "011 211 101 121 110 112 111"  # -x +x -y +y -z +z, centre
WEDGE, WEDGE_MID = "000 200 020 002 202 022", "100 110 010 102 112 012 001 201 021"
PYRAMID, PYRAMID_MID = "000 200 220 020 002", "100 210 120 010 001 101 111 011"
NODES = {
    "line": LINE,
    "triangle": TRIANGLE,
    "quad": QUAD,
    "tetra": TETRA,
    "hexahedron": HEX,
    "wedge": WEDGE,
    "pyramid": PYRAMID,
    "line3": f"{LINE} 1",
    "triangle6": f"{TRIANGLE} {TRIANGLE_MID}",
    "quad8": f"{QUAD} {QUAD_MID}",
    "quad9": f"{QUAD} {QUAD_MID} 11",
    "tetra10": f"{TETRA} {TETRA_MID}",
    "hexahedron20": f"{HEX} {HEX_MID}",
    "hexahedron27": f"{HEX} {HEX_MID} {HEX_FACES}",
    "wedge15": f"{WEDGE} {WEDGE_MID}",
    "wedge18": f"{WEDGE} {WEDGE_MID} 101 111 011",
    "pyramid13": f"{PYRAMID} {PYRAMID_MID}",
    "pyramid14": f"{PYRAMID} {PYRAMID_MID} 110",
}
NODES = {kind: np.array([list(map(int, w)) for w in s.split()]) / 2 for kind, s in NODES.items()}
NODES["triangle7"] = np.vstack([NODES["triangle6"], [1 / 3, 1 / 3]])
# Nodes of order 3, in thirds, as VTK's classes list them.
CUBIC = {
    "VTK_LAGRANGE_CURVE": "0 3 1 2",
    "VTK_LAGRANGE_TRIANGLE": "00 30 03 10 20 21 12 02 01 11",
    "VTK_LAGRANGE_QUADRILATERAL": "00 30 33 03 10 20 31 32 13 23 01 02 11 21 12 22",
    "VTK_LAGRANGE_TETRAHEDRON": (
        "000 300 030 003 100 200 210 120 020 010 001 002 201 102 021 012 101 111 011 110"
    ),
    "VTK_LAGRANGE_HEXAHEDRON": (
        "000 300 330 030 003 303 333 033 100 200 310 320 130 230 010 020 103 203 313 323 133 233 "
        "013 023 001 002 301 302 331 332 031 032 011 021 012 022 311 321 312 322 101 201 102 202 "
        "131 231 132 232 110 210 120 220 113 213 123 223 111 211 121 221 112 212 122 222"
    ),
    "VTK_LAGRANGE_WEDGE": (
        "000 300 030 003 303 033 100 200 210 120 020 010 103 203 213 123 023 013 001 002 301 302 "
        "031 032 110 113 101 201 102 202 211 121 212 122 021 011 022 012 111 112"
    ),
}
CUBIC = {kind: np.array([list(map(int, w)) for w in s.split()]) / 3 for kind, s in CUBIC.items()}
NODES |= CUBIC
LINEAR = ("line", "triangle", "quad", "tetra", "hexahedron", "wedge", "pyramid")
CURVED = [kind for kind in NODES if kind not in LINEAR]


def shape(kind):
    return LAGRANGE.get(kind, kind.rstrip("0123456789"))


def moment(kind, *a):
    """Integral of x^a over the reference cell, in closed form."""
    fact = [factorial(i) for i in a]
    match shape(kind):
        case "triangle" | "tetra":
            return np.prod(fact) / factorial(sum(a) + len(a))
        case "wedge":
            return fact[0] * fact[1] / factorial(a[0] + a[1] + 2) / (a[2] + 1)
        case "pyramid":  # over the base [0, 1]^2, scaled by 1 - z
            m = a[0] + a[1] + 2
            return fact[2] * factorial(m) / factorial(m + a[2] + 1) / (a[0] + 1) / (a[1] + 1)
        case _:
            return 1 / np.prod(np.add(a, 1))


def single(kind, points):
    return np.asarray(points, dtype=float), [(kind, np.arange(len(points))[None])]


def random_map(rng, k, d):
    matrix = rng.normal(size=(d, k))
    return matrix, np.sqrt(np.linalg.det(matrix.T @ matrix)), rng.normal(size=d)


def test_every_kind_is_tested():
    assert set(NODES) | {"vertex", "polygon", "polyhedron"} == set(TOPOLOGICAL_DIMENSION)
    for kind, nodes in NODES.items():
        assert TOPOLOGICAL_DIMENSION[kind] == nodes.shape[1]


# --- shape functions ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", NODES)
def test_nodes_are_where_vtk_says(kind):
    n = len(NODES[kind])
    np.testing.assert_allclose(_cells.reference_cell(kind, n).nodes, NODES[kind], atol=1e-15)
    values = _cells.shape_functions(kind, NODES[kind], n)[0]
    np.testing.assert_allclose(values, np.eye(len(values)), atol=1e-13)


def spanned(kind):
    """Exponents of the monomials that a kind's shape functions must reproduce."""
    k = NODES[kind].shape[1]
    degree = 1 if kind in LINEAR else 3 if kind in CUBIC else 2
    for a in product(range(degree + 1), repeat=k):
        total = sum(a) <= degree
        match shape(kind):
            case "quad" | "hexahedron":
                inside = kind not in ("quad8", "hexahedron20") or a.count(2) <= 1
            case "wedge":
                corner = kind == "wedge15" and a[0] + a[1] == 2 and a[2] == 2
                inside = a[0] + a[1] <= degree and not corner
            case _:
                inside = total
        if inside:
            yield a


@pytest.mark.parametrize("kind", NODES)
def test_interpolation_reproduces_polynomials_and_their_gradients(kind):
    """Not symmetric in the nodes, so a wrong node order cannot pass."""
    rng = np.random.default_rng(0)
    x = rng.dirichlet(np.ones(4), size=20)[:, : NODES[kind].shape[1]]  # inside every reference cell
    values, gradients = _cells.shape_functions(kind, x, len(NODES[kind]))
    exponents = list(spanned(kind))
    assert len(exponents) >= len(NODES[kind]) - 4
    for a in exponents:
        np.testing.assert_allclose(
            values @ np.prod(NODES[kind] ** a, axis=1), np.prod(x**a, axis=1), atol=1e-13
        )
        for i, step in enumerate(np.eye(len(a), dtype=int)):
            lowered = np.maximum(np.array(a) - step, 0)
            np.testing.assert_allclose(
                gradients[..., i] @ np.prod(NODES[kind] ** a, axis=1),
                a[i] * np.prod(x**lowered, axis=1),
                atol=1e-12,
            )


@pytest.mark.parametrize("kind", ["pyramid", "pyramid13", "pyramid14", "triangle7"])
def test_gradients_of_enriched_kinds(kind):
    rng = np.random.default_rng(1)
    x, step = rng.dirichlet(np.ones(4), size=10)[:, : NODES[kind].shape[1]], 1e-6
    gradients = _cells.shape_functions(kind, x)[1]
    for i, e in enumerate(step * np.eye(x.shape[1])):
        central = _cells.shape_functions(kind, x + e)[0] - _cells.shape_functions(kind, x - e)[0]
        np.testing.assert_allclose(gradients[..., i], central / 2 / step, atol=1e-7)


# --- single cells ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", NODES)
@pytest.mark.parametrize("extra", [0, 1, 2])
def test_affine_cells_are_exact_for_linear_functions(kind, extra):
    rng = np.random.default_rng(extra)
    k = NODES[kind].shape[1]
    for _ in range(5):
        matrix, volume, shift = random_map(rng, k, k + extra)
        points, blocks = single(kind, NODES[kind] @ matrix.T + shift)
        measure = volume * moment(kind, *[0] * k)
        weights = node_weights(points, blocks)
        assert (weights > 0).all()
        assert weights.sum() == pytest.approx(measure, rel=1e-13)
        centre = np.array([moment(kind, *e) for e in np.eye(k, dtype=int)]) / moment(kind, *[0] * k)
        exact = matrix @ centre + shift
        np.testing.assert_allclose(weights @ points / measure, exact, atol=1e-13)
        centroids, measures = cell_weights(points, blocks)
        np.testing.assert_allclose(centroids[0], exact, atol=1e-13)
        assert measures[0] == pytest.approx(measure, rel=1e-13)


@pytest.mark.parametrize("kind", CURVED)
def test_curved_cells_have_their_exact_measure(kind):
    """F is quadratic and triangular, so det F' is a product; node order enters without symmetry."""
    k = NODES[kind].shape[1]
    x, y, z = np.pad(NODES[kind], ((0, 0), (0, 3 - k))).T
    image = [x + x**2 / 4, y + x * y / 3 + x**2 / 9, z + x * y / 5 + x * z / 7 + y**2 / 6]
    det = np.array([1.0])
    for factor in ([1, 1 / 2], [1, 1 / 3], [1, 1 / 7])[:k]:
        det = np.convolve(det, factor)
    exact = sum(c * moment(kind, i, *[0] * (k - 1)) for i, c in enumerate(det))
    points, blocks = single(kind, np.stack(image[:k], axis=1))
    assert cell_weights(points, blocks)[1][0] == pytest.approx(exact, rel=1e-13)
    assert node_weights(points, blocks).sum() == pytest.approx(exact, rel=1e-13)
    assert (node_weights(points, blocks) > 0).all()


@pytest.mark.parametrize(
    ("kind", "a", "b", "measure", "first"),
    [
        ("quad", 1 / 3, 0, 1 + 1 / 6, 1 / 2 + 1 / 9),
        ("hexahedron", 1 / 3, 1 / 4, 1 + 7 / 24 + 1 / 36, 1 / 2 + 7 / 36 + 1 / 48),
        ("wedge", 0, 1 / 4, 1 / 2 + 1 / 24, 1 / 6 + 1 / 48),
        ("pyramid", 1 / 3, 0, 7 / 18, 11 / 72),
    ],
)
def test_multilinear_cells_are_exact(kind, a, b, measure, first):
    """(x, y + a x y, z + b x z): the integrals of 1 and of x, worked out by hand."""
    k = NODES[kind].shape[1]
    x, y, z = np.pad(NODES[kind], ((0, 0), (0, 3 - k))).T
    points, blocks = single(kind, np.stack([x, y + a * x * y, z + b * x * z][:k], axis=1))
    weights = node_weights(points, blocks)
    assert weights.sum() == pytest.approx(measure, rel=1e-13)
    assert weights @ points[:, 0] == pytest.approx(first, rel=1e-13)
    centroids, measures = cell_weights(points, blocks)
    assert measures[0] == pytest.approx(measure, rel=1e-13)
    np.testing.assert_allclose(centroids[0], weights @ points / measure, atol=1e-14)
    assert centroids[0, 0] == pytest.approx(first / measure, rel=1e-13)


def test_known_weights():
    """Simpson's rule on full tensor products, 1/19 and 16/57 of a triangle6, and others."""
    simpson = np.array([1, 1, 4]) / 6
    np.testing.assert_allclose(node_weights(*single("line3", NODES["line3"])), simpson, rtol=1e-14)
    node = {0.0: 0, 1.0: 1, 0.5: 2}
    for kind in ("quad9", "hexahedron27"):
        exact = [np.prod([simpson[node[c]] for c in x]) for x in NODES[kind]]
        np.testing.assert_allclose(node_weights(*single(kind, NODES[kind])), exact, rtol=1e-13)
    triangle6 = np.repeat([1 / 38, 8 / 57], 3)
    weights = node_weights(*single("triangle6", NODES["triangle6"]))
    np.testing.assert_allclose(weights, triangle6, rtol=1e-13)
    weights = node_weights(*single("quad8", NODES["quad8"]))
    np.testing.assert_allclose(weights, np.repeat([3 / 76, 16 / 76], 4), rtol=1e-13)
    np.testing.assert_allclose(node_weights(*single("pyramid", NODES["pyramid"]))[4], 1 / 12)


@pytest.mark.parametrize("kind", NODES)
def test_inverted_cells_count_by_absolute_measure(kind):
    points, blocks = single(kind, NODES[kind])
    mirrored = points * np.where(np.arange(points.shape[1]) == 0, -1, 1)
    np.testing.assert_allclose(
        node_weights(mirrored, blocks), node_weights(points, blocks), rtol=1e-13
    )
    assert cell_report(points, blocks).inverted == 0
    report = cell_report(mirrored, blocks)
    assert (report.inverted, report.first_inverted, report.degenerate) == (1, 0, 0)


@pytest.mark.parametrize("kind", [k for k in NODES if k not in ("line", "line3")])
def test_degenerate_cells_weigh_nothing(kind):
    """Flattened, collapsed to a line, or to a point: zero, never NaN; the neighbours unaffected."""
    nodes = NODES[kind]
    good = nodes + 5
    for rank in range(nodes.shape[1]):
        bad = nodes * (np.arange(nodes.shape[1]) < rank)
        points = np.vstack([bad, good])
        cells = np.arange(len(points)).reshape(2, -1)
        weights = node_weights(points, [(kind, cells)])
        np.testing.assert_array_equal(weights[: len(bad)], 0)
        np.testing.assert_allclose(
            weights[len(bad) :], node_weights(*single(kind, nodes)), rtol=1e-12
        )
        centroids, measures = cell_weights(points, [(kind, cells)])
        assert np.isfinite(centroids).all()
        np.testing.assert_allclose(centroids[0], bad.mean(axis=0), atol=1e-15)
        assert measures[0] == 0
        report = cell_report(points, [(kind, cells)])
        assert (report.degenerate, report.first_degenerate, report.inverted) == (1, 0, 0)


def test_needles_keep_their_tiny_measure():
    points, blocks = single("triangle", [[0, 0], [1, 0], [0.5, 1e-12]])
    np.testing.assert_allclose(node_weights(points, blocks), 5e-13 / 3, rtol=1e-12)
    assert cell_report(points, blocks).degenerate == 0
    slanted = np.array([[0.1, 0.1], [0.2, 0.2], [0.3, 0.3]])  # collinear but for rounding
    assert cell_report(*single("triangle", slanted)).degenerate == 1


def test_vertices_have_weight_one():
    points = np.array([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]])
    blocks = [("vertex", np.array([[0], [2]]))]
    np.testing.assert_array_equal(node_weights(points, blocks), [1, 0, 1])
    centroids, measures = cell_weights(points, blocks)
    np.testing.assert_array_equal(centroids, points[[0, 2]])
    np.testing.assert_array_equal(measures, 1)


@pytest.mark.parametrize("kind", ["quad", "polygon"])
@pytest.mark.parametrize("dim", [2, 3])
def test_notched_cells_have_their_shoelace_area_and_centroid(kind, dim):
    dart = np.array([[0, 0], [2, -1], [0.5, 0], [2, 1]])
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(dim, dim)))[0][:, :2]
    points, blocks = single(kind, dart @ turn.T + 3)
    weights = node_weights(points, blocks)
    centroids, measures = cell_weights(points, blocks)
    assert measures[0] == pytest.approx(0.5, rel=1e-13)
    assert weights.sum() == pytest.approx(0.5, rel=1e-13)
    assert (weights > 0).all()
    np.testing.assert_allclose(centroids[0], turn @ [2.5 / 3, 0] + 3, atol=1e-13)


def test_a_self_intersecting_cell_stays_finite():
    for top in (1.0, 1.0001):
        points, blocks = single("quad", [[0, 0], [1, 0], [0, 1], [1, top]])
        assert (node_weights(points, blocks) >= 0).all()
        assert (np.abs(cell_weights(points, blocks)[0]) <= top).all()


# --- polygons -------------------------------------------------------------------------------------


def regular(n, dim=2):
    angle = 2 * pi * np.arange(n) / n
    return np.stack([np.cos(angle), np.sin(angle), np.zeros(n)][:dim], axis=1)


@pytest.mark.parametrize("n", [3, 4, 5, 8])
def test_regular_polygons(n):
    weights = node_weights(*single("polygon", regular(n)))
    np.testing.assert_allclose(weights, np.sin(2 * pi / n) / 2, rtol=1e-14)


@pytest.mark.parametrize("dim", [2, 3])
def test_star_shaped_polygons_are_exact_for_linear_functions(dim):
    rng = np.random.default_rng(2)
    for n in (3, 4, 5, 9):
        radius = rng.uniform(0.8, 1.0, size=(n, 1))
        plane = radius * regular(n) + rng.normal(size=2)
        x, y = plane.T
        cross = x * np.roll(y, -1) - np.roll(x, -1) * y
        area = cross.sum() / 2
        centroid = cross @ (plane + np.roll(plane, -1, axis=0)) / 6 / area
        turn = np.linalg.qr(rng.normal(size=(dim, dim)))[0][:, :2]
        points, blocks = single("polygon", plane @ turn.T)
        weights = node_weights(points, blocks)
        assert (weights > 0).all()
        assert weights.sum() == pytest.approx(area, rel=1e-13)
        np.testing.assert_allclose(weights @ points / area, turn @ centroid, atol=1e-13)
        np.testing.assert_allclose(cell_weights(points, blocks)[0][0], turn @ centroid, atol=1e-13)


def test_ragged_polygons_keep_the_order_of_their_cells():
    points = np.vstack([regular(5), 3 + regular(4), 6 + regular(5), 9 + regular(3)])
    ragged = [np.arange(5), np.arange(5, 9), np.arange(9, 14), np.arange(14, 17)]
    centroids, measures = cell_weights(points, [("polygon", ragged)])
    exact = [n * np.sin(2 * pi / n) / 2 for n in (5, 4, 5, 3)]
    np.testing.assert_allclose(measures, exact, rtol=1e-14)
    np.testing.assert_allclose(centroids, np.outer([0, 3, 6, 9], [1, 1]), atol=1e-14)
    objects = np.empty(4, dtype=object)
    objects[:] = ragged
    matrix = lumping(points, [("polygon", objects)])
    np.testing.assert_allclose(matrix.sum(axis=0), exact, rtol=1e-14)
    assert (matrix.toarray()[9:14, 2] > 0).all()


# --- Lagrange cells -------------------------------------------------------------------------------

VTK_NAMES = {
    "VTK_LAGRANGE_CURVE": "Curve",
    "VTK_LAGRANGE_TRIANGLE": "Triangle",
    "VTK_LAGRANGE_QUADRILATERAL": "Quadrilateral",
    "VTK_LAGRANGE_TETRAHEDRON": "Tetra",
    "VTK_LAGRANGE_HEXAHEDRON": "Hexahedron",
    "VTK_LAGRANGE_WEDGE": "Wedge",
}


@pytest.mark.parametrize("kind", LAGRANGE)
@pytest.mark.parametrize("order", [1, 2, 4, 5, 6, 8])
def test_lagrange_nodes_are_where_vtk_has_them(kind, order):
    vtk = pytest.importorskip("vtkmodules.vtkCommonDataModel")
    found = lagrange_nodes(LAGRANGE[kind], order)
    n, k = found.shape
    assert lagrange_order(kind, n) == order
    cell = getattr(vtk, f"vtkLagrange{VTK_NAMES[kind]}")()
    cell.GetPointIds().SetNumberOfIds(n)
    cell.GetPoints().SetNumberOfPoints(n)
    if hasattr(cell, "SetUniformOrderFromNumPoints"):
        cell.SetUniformOrderFromNumPoints(n)
    cell.Initialize()
    flat = cell.GetParametricCoords()
    there = np.array([flat[i] for i in range(3 * n)]).reshape(n, 3)
    np.testing.assert_allclose(found, there[:, :k], atol=1e-14)


@pytest.mark.parametrize("kind", LAGRANGE)
def test_lagrange_cells_of_all_orders_are_exact_for_linear_functions(kind):
    k = TOPOLOGICAL_DIMENSION[kind]
    matrix, volume, shift = random_map(np.random.default_rng(0), k, k)
    for order in range(1, (6 if shape(kind) == "hexahedron" else MAX_ORDER) + 1):
        points, blocks = single(kind, lagrange_nodes(shape(kind), order) @ matrix.T + shift)
        weights = node_weights(points, blocks)
        measure = volume * moment(kind, *[0] * k)
        assert weights.min() > 0
        assert weights.sum() == pytest.approx(measure, rel=1e-12)
        centre = np.array([moment(kind, *e) for e in np.eye(k, dtype=int)]) / moment(kind, *[0] * k)
        np.testing.assert_allclose(weights @ points / measure, matrix @ centre + shift, atol=1e-12)
        np.testing.assert_allclose(
            cell_weights(points, blocks)[0][0], matrix @ centre + shift, atol=1e-12
        )


@pytest.mark.parametrize(
    ("kind", "known"),
    [
        ("VTK_LAGRANGE_TRIANGLE", ["triangle", "triangle6"]),
        ("VTK_LAGRANGE_QUADRILATERAL", ["quad", "quad9"]),
        ("VTK_LAGRANGE_TETRAHEDRON", ["tetra", "tetra10"]),
        ("VTK_LAGRANGE_HEXAHEDRON", ["hexahedron", "hexahedron27"]),
        ("VTK_LAGRANGE_WEDGE", ["wedge", "wedge18"]),
        ("VTK_LAGRANGE_CURVE", ["line", "line3"]),
    ],
)
def test_lagrange_cells_of_low_order_are_the_known_ones(kind, known):
    noise = np.random.default_rng(0)
    for name in known:
        points, blocks = single(name, NODES[name] + 0.1 * noise.normal(size=NODES[name].shape))
        weights = node_weights(points, [(kind, blocks[0][1])])
        np.testing.assert_allclose(weights, node_weights(points, blocks), rtol=1e-10)


def test_lagrange_cells_of_several_orders_in_one_block():
    parts = [lagrange_nodes("triangle", p) + 2 * p for p in (1, 3, 2)]
    ends = np.cumsum([len(part) for part in parts])
    cells = np.split(np.arange(ends[-1]), ends[:-1])
    measures = cell_weights(np.vstack(parts), [("VTK_LAGRANGE_TRIANGLE", cells)])[1]
    np.testing.assert_allclose(measures, 0.5, rtol=1e-13)


# --- polyhedra ------------------------------------------------------------------------------------

CUBE = np.array([[x, y, z] for z in (0, 1) for x, y in ((0, 0), (1, 0), (1, 1), (0, 1))], float)
CUBE_FACES = [[0, 4, 7, 3], [1, 2, 6, 5], [0, 1, 5, 4], [3, 7, 6, 2], [0, 3, 2, 1], [4, 5, 6, 7]]


def hull(points):
    """Faces of the convex hull, triangles outward, and its volume and centroid."""
    found = ConvexHull(points)
    faces = []
    for triangle, plane in zip(found.simplices, found.equations, strict=True):
        a, b, c = points[triangle]
        outward = np.cross(b - a, c - a) @ plane[:3] > 0
        faces.append(triangle if outward else triangle[::-1])
    tetra = points[np.array(faces)] - points.mean(axis=0)
    volumes = np.linalg.det(tetra) / 6
    centroid = volumes @ tetra.sum(axis=1) / 4 / volumes.sum() + points.mean(axis=0)
    return faces, found.volume, centroid


def prism(n, radius=1.0):
    """A prism over a regular polygon of n corners, of height 2, its faces outward."""
    base = radius * regular(n)
    points = np.vstack([np.column_stack([base, np.full(n, z)]) for z in (0.0, 2.0)])
    i, j = np.arange(n), np.roll(np.arange(n), -1)
    sides = np.stack([i, j, j + n, i + n], axis=1).tolist()
    return points, [[*range(n)][::-1], [*range(n, 2 * n)], *sides]


def notched():
    """A unit square with a notch to near its far side, as a prism: not star-shaped, volume 0.55."""
    flat = np.array(
        [[0, 0], [1, 0], [1, 1], [0.95, 1], [0.95, 0.5], [0.05, 0.5], [0.05, 1], [0, 1]]
    )
    n = len(flat)
    points = np.vstack([np.column_stack([flat, np.full(n, z)]) for z in (0.0, 1.0)])
    i, j = np.arange(n), np.roll(np.arange(n), -1)
    sides = np.stack([i, j, j + n, i + n], axis=1).tolist()
    return points, [[*range(n)][::-1], [*range(n, 2 * n)], *sides]


def test_convex_polyhedra_are_exact_for_linear_functions():
    rng = np.random.default_rng(3)
    for n in (4, 5, 8, 12, 30):
        points = onto_sphere(rng.normal(size=(n, 3))) * [1, 2, 3] + rng.normal(size=3)
        faces, volume, centroid = hull(points)
        blocks = [("polyhedron", [faces])]
        weights = node_weights(points, blocks)
        assert (weights > 0).all()
        assert weights.sum() == pytest.approx(volume, rel=1e-13)
        np.testing.assert_allclose(weights @ points / volume, centroid, atol=1e-13)
        centroids, measures = cell_weights(points, blocks)
        np.testing.assert_allclose(centroids[0], centroid, atol=1e-13)
        assert measures[0] == pytest.approx(volume, rel=1e-13)
        assert cell_report(points, blocks) == quadrature.CellReport(0, 0, 0, 0)


@pytest.mark.parametrize("n", [3, 5, 6, 9])
def test_prisms_as_polyhedra(n):
    points, faces = prism(n)
    volume = n * np.sin(2 * pi / n)
    weights = node_weights(points, [("polyhedron", [faces])])
    np.testing.assert_allclose(weights, volume / 2 / n, rtol=1e-13)
    found = boundary([("polyhedron", [faces])])
    area = 2 * volume / 2 + 2 * n * 2 * np.sin(pi / n)
    assert node_weights(points, found).sum() == pytest.approx(area, rel=1e-13)


@pytest.mark.parametrize("solid", [prism(7), notched(), (CUBE, CUBE_FACES)])
def test_faces_may_run_either_way_and_come_in_any_order(solid):
    points, faces = solid
    exact, rng = node_weights(points, [("polyhedron", [faces])]), np.random.default_rng(0)
    where = cell_weights(points, [("polyhedron", [faces])])[0]
    for _ in range(10):
        turn = [1, -1, *rng.choice([-1, 1], size=len(faces) - 2)]  # never all of them
        mixed = [faces[k][:: turn[k]] for k in rng.permutation(len(faces))]
        blocks = [("polyhedron", [mixed, faces])]
        np.testing.assert_allclose(node_weights(points, blocks), 2 * exact, rtol=1e-12)
        np.testing.assert_allclose(cell_weights(points, blocks)[0], where[[0, 0]], atol=1e-14)
        assert cell_report(points, blocks).inverted == 0
    inward = [("polyhedron", [[face[::-1] for face in faces]])]
    np.testing.assert_allclose(node_weights(points, inward), exact, rtol=1e-12)
    assert cell_report(points, inward).inverted == 1


def test_a_polyhedron_that_is_not_star_shaped_has_its_volume_and_centroid():
    points, faces = notched()
    weights = node_weights(points, [("polyhedron", [faces])])
    centroids, measures = cell_weights(points, [("polyhedron", [faces])])
    assert measures[0] == pytest.approx(0.55, rel=1e-13)
    assert weights.sum() == pytest.approx(0.55, rel=1e-13)
    assert (weights > 0).all()
    height = (0.5 * 0.25 + 0.05 * 0.75) / 0.55
    np.testing.assert_allclose(centroids[0], [0.5, height, 0.5], atol=1e-13)


def test_neighbours_agree_on_a_face_that_is_not_plane():
    """Two cells fill a box whatever the face between them is."""
    rng = np.random.default_rng(0)
    points = np.vstack([CUBE, [[2, 0, 0], [2, 1, 0], [2, 0, 1], [2, 1, 1]]])
    second = [
        [1, 5, 6, 2],
        [8, 9, 11, 10],
        [1, 8, 10, 5],
        [2, 6, 11, 9],
        [1, 2, 9, 8],
        [5, 10, 11, 6],
    ]
    for _ in range(5):
        points[[1, 2, 5, 6], 0] = 1 + 0.3 * rng.normal(size=4)
        measures = cell_weights(points, [("polyhedron", [CUBE_FACES, second])])[1]
        assert measures.sum() == pytest.approx(2, rel=1e-13)
        assert node_weights(points, [("polyhedron", [CUBE_FACES, second])]).sum() == pytest.approx(
            2
        )


def test_polyhedra_of_many_kinds_keep_their_order():
    solids = [prism(5), notched(), (CUBE, CUBE_FACES), prism(5, 2.0), prism(3), (CUBE, CUBE_FACES)]
    points = np.vstack([np.asarray(p) + 9 * k for k, (p, _) in enumerate(solids)])
    starts = np.cumsum([0, *(len(p) for p, _ in solids)])
    cells = [[np.add(f, s) for f in faces] for (_, faces), s in zip(solids, starts, strict=False)]
    exact = [cell_weights(p, [("polyhedron", [f])])[1][0] for p, f in solids]
    for form in (cells, Polyhedra.of(cells)):
        np.testing.assert_allclose(cell_weights(points, [("polyhedron", form)])[1], exact)
    some = Polyhedra.of(cells)[np.array([4, 1])]
    np.testing.assert_allclose(
        cell_weights(points, [("polyhedron", some)])[1], [exact[4], exact[1]]
    )
    assert [f.tolist() for f in some[1]] == [f.tolist() for f in cells[1]]


def test_collapsed_polyhedra_weigh_nothing_or_what_is_left():
    flat = CUBE * [1, 1, 0]
    blocks = [("polyhedron", [CUBE_FACES])]
    np.testing.assert_array_equal(node_weights(flat, blocks), 0)
    assert cell_report(flat, blocks).degenerate == 1
    assert np.isfinite(cell_weights(flat, blocks)[0]).all()
    wedge = [[(c, 2, 6)[(c in (3,)) + 2 * (c == 7)] for c in face] for face in CUBE_FACES]
    weights = node_weights(CUBE, [("polyhedron", [wedge])])  # 3 falls on 2, and 7 on 6
    assert weights.sum() == pytest.approx(0.5, rel=1e-13)
    assert (weights >= 0).all()
    tangled = CUBE[[0, 6, 2, 3, 4, 5, 1, 7]]
    weights = node_weights(tangled, blocks)
    assert np.isfinite(weights).all()
    assert (weights >= 0).all()


@pytest.mark.parametrize(
    ("kind", "nodes", "measure"),
    [
        ("hexahedron", [0, 1, 2, 2, 4, 5, 6, 6], 1 / 2),
        ("hexahedron", [0, 1, 2, 3, 4, 4, 4, 4], 1 / 3),
        ("hexahedron", [0, 1, 2, 2, 4, 4, 4, 4], 1 / 6),
        ("wedge", [0, 1, 2, 4, 4, 4], 1 / 6),
        ("wedge", [0, 1, 2, 0, 5, 6], 1 / 3),
        ("pyramid", [0, 1, 2, 2, 4], 1 / 6),
        ("pyramid", [0, 1, 2, 3, 0], 0),
        ("hexahedron", [0] * 8, 0),
    ],
)
def test_cells_with_nodes_that_fall_together(kind, nodes, measure):
    weights = node_weights(CUBE, [(kind, [nodes])])
    assert weights.sum() == pytest.approx(measure, rel=1e-13, abs=1e-16)
    assert (weights >= 0).all()
    assert (weights[[k for k in range(8) if k not in nodes]] == 0).all()
    centroids, measures = cell_weights(CUBE, [(kind, [nodes])])
    assert np.isfinite(centroids).all()
    assert measures[0] == pytest.approx(measure, rel=1e-13, abs=1e-16)


# --- meshes ---------------------------------------------------------------------------------------


def square(n, grade=lambda t: t):
    """Triangles of the unit square, on an n by n graded grid."""
    t = grade(np.linspace(0, 1, n + 1))
    points = np.stack(np.meshgrid(t, t, indexing="ij"), axis=-1).reshape(-1, 2)
    index = np.arange((n + 1) ** 2).reshape(n + 1, n + 1)
    a, b, c, d = (
        i.ravel() for i in (index[:-1, :-1], index[1:, :-1], index[1:, 1:], index[:-1, 1:])
    )
    return points, np.vstack([np.stack([a, b, c], axis=1), np.stack([a, c, d], axis=1)])


def with_middles(points, cells, pairs):
    """Add the middles of the given pairs of corners, shared between cells, to a mesh."""
    ends = np.sort(cells[:, pairs].reshape(-1, 2), axis=1)
    unique, index = np.unique(ends, axis=0, return_inverse=True)
    middles = points[unique].mean(axis=1)
    index = index.reshape(len(cells), len(pairs)) + len(points)
    return np.vstack([points, middles]), np.hstack([cells, index])


def orders(errors):
    return [log2(a / b) for a, b in pairwise(errors)]


def test_matrix_of_a_mixed_mesh_with_interleaved_types():
    points = np.array([[0, 0], [1, 0], [1, 1], [0, 1], [2, 0], [2, 1], [3, 0], [9, 9]], float)
    blocks = [
        ("vertex", [[7]]),
        ("triangle", np.array([[0, 1, 2]])),
        ("line", np.array([[0, 1], [4, 6]])),
        ("quad", np.array([[1, 4, 5, 2]])),
        ("triangle", np.array([[0, 2, 3], [4, 6, 5]])),
        ("tetra", np.zeros((0, 4), dtype=int)),
    ]
    assert top_blocks(blocks) == [1, 3, 4]
    matrix = lumping(points, blocks)
    assert matrix.shape == (8, 4)
    np.testing.assert_allclose(matrix.sum(axis=0), [0.5, 1, 0.5, 0.5], rtol=1e-14)
    third = [[1 / 6, 1 / 6, 1 / 6, 0, 0, 0, 0, 0], [0, 0.25, 0.25, 0, 0.25, 0.25, 0, 0]]
    np.testing.assert_allclose(matrix.toarray().T[:2], third, rtol=1e-14)
    np.testing.assert_allclose(node_weights(points, blocks), matrix.sum(axis=1), rtol=1e-15)
    np.testing.assert_allclose(cell_weights(points, blocks)[1], [0.5, 1, 0.5, 0.5], rtol=1e-14)
    assert node_weights(points, blocks)[7] == 0  # of no top cell
    report = cell_report(points, blocks)
    assert (report.orphans, report.first_orphan) == (1, 7)


def test_big_endian_float32_and_unsigned_arrays():
    points, cells = square(3)
    exact = node_weights(points, [("triangle", cells)])
    foreign = node_weights(points.astype(">f4"), [("triangle", cells.astype(">u4"))])
    assert foreign.dtype == np.float64
    assert foreign.dtype.isnative
    np.testing.assert_allclose(foreign, exact, rtol=1e-6)


def test_chunks_do_not_matter(monkeypatch):
    points, cells = square(6, np.sqrt)
    blocks = [("triangle", cells[:40]), ("triangle", cells[40:])]
    whole = lumping(points, blocks).toarray(), *cell_weights(points, blocks)
    monkeypatch.setattr(_chunks, "_CHUNK", 40)
    parts = lumping(points, blocks).toarray(), *cell_weights(points, blocks)
    for a, b in zip(whole, parts, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-14)
    assert cell_report(points, blocks).degenerate == 0


@pytest.mark.parametrize("kind", NODES)
def test_small_and_far_away_cells(kind):
    points, blocks = single(kind, NODES[kind])
    weights, k = node_weights(points, blocks), points.shape[1]
    for scale in (1e-6, 1e6):
        scaled = node_weights(scale * points, blocks)
        np.testing.assert_allclose(scaled, scale**k * weights, rtol=1e-12)
        assert cell_report(scale * points, blocks).degenerate == 0
    np.testing.assert_allclose(node_weights(points + 2.0**20, blocks), weights, rtol=1e-8)
    far = np.round(points * 2**10) / 2**10  # exact in binary at any of these offsets
    np.testing.assert_allclose(
        node_weights(far + 2.0**20, blocks), node_weights(far, blocks), rtol=1e-12
    )


def test_flat_third_axis_changes_nothing():
    points, cells = square(4, np.square)
    cells[3] = cells[3, ::-1]
    blocks = [("triangle", cells)]
    for noise in (0.0, 1e-9):
        space = np.column_stack([points, noise * np.sin(1e3 * points[:, 0])])
        np.testing.assert_allclose(
            node_weights(space, blocks), node_weights(points, blocks), rtol=1e-9
        )
        report = cell_report(space, blocks)
        assert (report.inverted, report.first_inverted) == (1, 3)
    curved = np.column_stack([points, points[:, 0] ** 2])
    assert cell_report(curved, blocks).inverted == 0  # a surface in space has no sign


def test_report_counts():
    points = np.array([[0, 0], [1, 0], [0, 1], [7, 7], [1, 0], [0, 1], [1, 1], [2, 0]], float)
    blocks = [("triangle", np.array([[0, 1, 2], [4, 5, 6], [0, 1, 7]]))]
    report = cell_report(points, blocks)
    assert (report.inverted, report.first_inverted) == (1, 1)
    assert (report.degenerate, report.first_degenerate) == (1, 2)
    assert (report.orphans, report.first_orphan) == (1, 3)
    assert (report.duplicates, report.first_duplicate) == (2, 4)
    clean = cell_report(*single("triangle", NODES["triangle"]))
    assert clean == quadrature.CellReport(0, 0, 0, 0)
    assert node_weights(points, blocks).sum() == pytest.approx(1)  # duplicates keep the measure


def test_p1_lumped_integrals_converge_with_order_two():
    exact = (np.e - 1) * (1 - np.cos(1))
    for grade in (lambda t: t, np.square):
        errors = []
        for n in (8, 16, 32):
            points, cells = square(n, grade)
            f = np.exp(points[:, 0]) * np.sin(points[:, 1])
            errors.append(abs(node_weights(points, [("triangle", cells)]) @ f - exact))
        assert min(orders(errors)) > 1.9
        assert errors[-1] < 5e-4


def test_lumping_moves_fields_between_nodes_and_cells():
    points, cells = square(5, np.square)
    matrix = lumping(points, [("triangle", cells)])
    linear = points @ [2.0, -1.0] + 3
    at_cells = (matrix.T @ linear) / matrix.sum(axis=0)
    np.testing.assert_allclose(at_cells, linear[cells].mean(axis=1), rtol=1e-13)
    at_nodes = (matrix @ np.ones(len(cells))) / matrix.sum(axis=1)
    np.testing.assert_allclose(at_nodes, 1, rtol=1e-13)
    moved = (matrix @ at_cells) / matrix.sum(axis=1)  # averages twice, keeps the integral
    assert matrix.sum(axis=1) @ moved == pytest.approx(matrix.sum(axis=1) @ linear, rel=1e-13)


# --- curved surfaces and curves -------------------------------------------------------------------

OCTAHEDRON = np.array([[1, 0, 0], [0, 1, 0], [-1, 0, 0], [0, -1, 0], [0, 0, 1], [0, 0, -1]], float)
OCTANTS = np.array(
    [[0, 1, 4], [1, 2, 4], [2, 3, 4], [3, 0, 4], [1, 0, 5], [2, 1, 5], [3, 2, 5], [0, 3, 5]]
)
TRIANGLE_EDGES, QUAD_EDGES = [[0, 1], [1, 2], [2, 0]], [[0, 1], [1, 2], [2, 3], [3, 0]]


def onto_sphere(points):
    return points / np.linalg.norm(points, axis=1, keepdims=True)


def sphere(levels, middles=False):
    points, cells = OCTAHEDRON, OCTANTS
    for _ in range(levels):
        points, six = with_middles(points, cells, TRIANGLE_EDGES)
        points = onto_sphere(points)
        cells = np.vstack([six[:, c] for c in ([0, 3, 5], [3, 1, 4], [5, 4, 2], [3, 4, 5])])
    if middles:
        points, cells = with_middles(points, cells, TRIANGLE_EDGES)
    return onto_sphere(points), cells


def cubed_sphere(n):
    """Biquadratic quads: six faces of a cube, each a grid of 2n by 2n, projected."""
    t = np.linspace(-1, 1, 2 * n + 1)
    u, v = (a.ravel() for a in np.meshgrid(t, t, indexing="ij"))
    index = np.arange(len(u)).reshape(len(t), -1)
    at = [(0, 0), (2, 0), (2, 2), (0, 2), (1, 0), (2, 1), (1, 2), (0, 1), (1, 1)]
    face = np.stack([index[i : 2 * n - 1 + i : 2, j : 2 * n - 1 + j : 2].ravel() for i, j in at], 1)
    one = np.ones_like(u)
    sides = [np.roll(np.stack([u, v, s * one], 1), r, 1) for r in range(3) for s in (-1, 1)]
    return onto_sphere(np.vstack(sides)), np.vstack([face + i * len(u) for i in range(6)])


@pytest.mark.parametrize(
    ("kind", "order", "last"),
    [("triangle", 1.9, 4e-3), ("triangle6", 3.9, 3e-6), ("quad", 1.9, 3e-3), ("quad9", 3.9, 1e-5)],
)
def test_area_and_moments_of_the_sphere(kind, order, last):
    area, moments, quadratic = [], [], kind in ("triangle6", "quad9")
    for level in (2, 3, 4):
        if kind.startswith("triangle"):
            points, cells = sphere(level, middles=quadratic)
        else:
            points, cells = cubed_sphere(2**level)
            cells = cells if quadratic else cells[:, :4]
        weights = node_weights(points, [(kind, cells)])
        area.append(abs(weights.sum() / (4 * pi) - 1))
        moments.append(abs(weights @ (points[:, 2] ** 2 * np.exp(points[:, 0])) - EXACT_MOMENT))
    assert min(orders(area)) > order
    assert area[-1] < last
    assert orders(moments)[-1] > 1.8  # the coarsest is ahead of its order
    assert moments[-1] < 2e-2


def onto_disc(x):
    """The square [-1, 1]^2 onto the unit disc, smoothly."""
    return x * np.sqrt(1 - x[:, ::-1] ** 2 / 2)


def onto_ball(x):
    """The cube [-1, 1]^3 onto the unit ball, smoothly, and its surface onto the sphere."""
    y, z = np.roll(x, -1, axis=1) ** 2, np.roll(x, -2, axis=1) ** 2
    return x * np.sqrt(1 - y / 2 - z / 2 + y * z / 3)


def onto_sphere_from_square(x):
    return onto_ball(np.column_stack([x, np.ones(len(x))]))  # a sixth of the sphere


def onto_helix(x):
    return np.column_stack([np.cos(pi * x), np.sin(pi * x), pi * x / 2])


CUTS = {
    "line": [[0, 1]],
    "triangle": [[0, 1, 2], [0, 2, 3]],
    "quad": [[0, 1, 2, 3]],
    "hexahedron": [[*range(8)]],
    "wedge": [[0, 1, 2, 4, 5, 6], [0, 2, 3, 4, 6, 7]],
    "tetra": [[0, 1, 2, 6], [0, 2, 3, 6], [0, 3, 7, 6], [0, 7, 4, 6], [0, 4, 5, 6], [0, 5, 1, 6]],
}


def image(kind, n, function):
    """Cells of a kind in n^k copies of the cut cube [-1, 1]^k, under a map of it."""
    k, nodes = NODES[kind].shape[1], NODES[kind]
    corners = NODES[("line", "quad", "hexahedron")[k - 1]]
    origins = np.array(list(product(range(n), repeat=k)))
    cubes = 2 * (origins[:, None] + corners) / n - 1
    cells = np.concatenate([cubes[:, cut] for cut in CUTS[shape(kind)]])
    points = _cells.shape_functions(shape(kind), nodes)[0] @ cells
    index = np.arange(len(cells) * len(nodes)).reshape(len(cells), -1)
    return function(points.reshape(-1, k)), [(kind, index)]


@pytest.mark.parametrize(
    ("kind", "order", "last"),
    [
        *(("line", 2, 2e-3), ("line3", 4, 2e-6), ("VTK_LAGRANGE_CURVE", 4, 5e-7)),
        *(("triangle", 2, 1e-3), ("triangle6", 4, 1e-7), ("VTK_LAGRANGE_TRIANGLE", 4, 5e-8)),
        *(("quad", 2, 1e-3), ("quad8", 4, 5e-7), ("quad9", 4, 1e-7)),
        ("VTK_LAGRANGE_QUADRILATERAL", 4, 5e-8),
        *(("tetra", 2, 1e-2), ("tetra10", 4, 1e-5), ("VTK_LAGRANGE_TETRAHEDRON", 4, 5e-6)),
        *(("hexahedron", 2, 1e-2), ("hexahedron27", 4, 5e-6), ("wedge18", 4, 1e-5)),
        *(("VTK_LAGRANGE_HEXAHEDRON", 4, 5e-6), ("VTK_LAGRANGE_WEDGE", 4, 5e-6)),
    ],
)
def test_curved_cells_converge_to_the_measure_of_disc_ball_sphere_and_helix(kind, order, last):
    maps = {
        1: [(onto_helix, 2 * pi * 1.25**0.5)],
        2: [(onto_disc, pi), (onto_sphere_from_square, 4 * pi / 6)],
        3: [(onto_ball, 4 * pi / 3)],
    }
    for function, exact in maps[TOPOLOGICAL_DIMENSION[kind]]:
        sizes = (8, 16, 32) if TOPOLOGICAL_DIMENSION[kind] < 3 else (3, 6, 12)
        errors = [abs(cell_weights(*image(kind, n, function))[1].sum() / exact - 1) for n in sizes]
        assert orders(errors)[-1] > order - 0.3
        assert errors[-1] < last


# The integral of z^2 exp(x) over the unit sphere: 4 pi (cosh 1 - sinh 1) = 4 pi / e.
EXACT_MOMENT = 4 * pi / np.e


@pytest.mark.parametrize(("kind", "order"), [("line", 1.9), ("line3", 3.8)])
def test_length_of_a_helix(kind, order):
    errors = []
    for n in (8, 16, 32):
        t = np.linspace(0, 2 * pi, 2 * n + 1)
        points = np.stack([np.cos(t), np.sin(t), t / 2], axis=1)
        i = np.arange(0, 2 * n, 2)
        cells = np.stack([i, i + 2, i + 1], axis=1)[:, : 2 if kind == "line" else 3]
        errors.append(abs(cell_weights(points, [(kind, cells)])[1].sum() - 2 * pi * 1.25**0.5))
    assert min(orders(errors)) > order
    assert errors[-1] < 2e-2


def test_circumference_of_a_circle_in_the_plane():
    points = regular(50)
    cells = np.stack([np.arange(50), np.roll(np.arange(50), -1)], axis=1)
    np.testing.assert_allclose(node_weights(points, [("line", cells)]), 2 * np.sin(pi / 50))


@pytest.mark.parametrize("kind", ["triangle6", "quad8", "quad9"])
def test_quadratic_cells_integrate_with_order_two_on_distorted_meshes(kind):
    exact, errors = (np.e - 1) * (1 - np.cos(1)), []
    for n in (4, 8, 16):
        if kind == "triangle6":
            points, cells = with_middles(*square(n), TRIANGLE_EDGES)
        else:
            t = np.linspace(0, 1, 2 * n + 1)
            points = np.stack(np.meshgrid(t, t, indexing="ij"), axis=-1).reshape(-1, 2)
            index = np.arange(len(points)).reshape(len(t), -1)
            at = [(0, 0), (2, 0), (2, 2), (0, 2), (1, 0), (2, 1), (1, 2), (0, 1), (1, 1)]
            cells = [index[i : 2 * n - 1 + i : 2, j : 2 * n - 1 + j : 2].ravel() for i, j in at]
            cells = np.stack(cells[: int(kind[-1])], axis=1)
        x, y = points.T
        bump = 0.05 * np.sin(2 * pi * x) * np.sin(2 * pi * y)
        points = np.stack([x + bump, y - bump], axis=1)
        f = np.exp(points[:, 0]) * np.sin(points[:, 1])
        errors.append(abs(node_weights(points, [(kind, cells)]) @ f - exact))
    assert min(orders(errors)) > 1.8
    assert errors[-1] < 1e-3


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("points", "blocks", "message"),
    [
        (np.zeros((3, 2)), [], "needs cells"),
        (np.zeros((3, 2)), [("triangle", np.zeros((0, 3), int))], "needs cells"),
        (np.zeros((6, 2)), [("VTK_LAGRANGE_PYRAMID", [[0]])], "VTK_LAGRANGE_PYRAMID.*triangle6"),
        (np.zeros((6, 2)), [("VTK_LAGRANGE_TRIANGLE", [range(5)])], "order from 1 to 10 .*got 5"),
        (np.zeros((9, 3)), [("polyhedron", [[[0, 1, 2]]])], r"at least 4 faces .*got .*\[3\]"),
        (np.zeros((9, 3)), [("polyhedron", [[[0, 1], *[[0, 1, 2]] * 3]])], "at least 3 corners"),
        (np.zeros((9, 3)), [("polyhedron", [[[0, 1, 9]] * 4])], "refers to node 9"),
        (np.zeros((9, 3)), [("polyhedron", [[[0.5, 1, 2]] * 4])], "lists of integers"),
        (np.zeros((9, 2)), [("polyhedron", [[[0, 1, 2]] * 4])], "polyhedron.*dimension 2"),
        (np.zeros((24, 3)), [("hexahedron24", [range(24)])], "hexahedron24.*hexahedron27"),
        (np.zeros((6, 2)), [("triangle", [[0, 1, 2], [0, 1, 99]])], r"cell 1 .*triangle.*99"),
        (np.zeros((6, 2)), [("triangle", [[0, -1, 2]])], r"cell 0 .*triangle.*-1"),
        (np.zeros((6, 2)), [("triangle", [[0, 1, 2, 3]])], "cell 0 .*3 nodes, got 4"),
        (np.zeros((6, 2)), [("triangle", [[0, 1, 2], [0, 1]])], "cell 1 .*3 nodes, got 2"),
        (np.zeros((6, 2)), [("polygon", [[0, 1, 2], [0, 1]])], "cell 1 .*at least 3 nodes, got 2"),
        (np.zeros((6, 2)), [("triangle", np.array([[0.0, 1.0, 2.0]]))], "integers"),
        (np.zeros((6, 2)), [("tetra", [[0, 1, 2, 3]])], "tetra.*dimension 2"),
        (np.zeros((6, 2, 1)), [("triangle", [[0, 1, 2]])], r"\(n, d\)"),
    ],
)
@pytest.mark.parametrize("function", [lumping, node_weights, cell_weights, cell_report])
def test_broken_meshes_are_refused(function, points, blocks, message):
    with pytest.raises(MeshError, match=message):
        function(points, blocks)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_non_finite_coordinates_matter_only_where_used(value):
    points = np.vstack([NODES["triangle"], [value, 0]])
    np.testing.assert_allclose(
        node_weights(points, [("triangle", [[0, 1, 2]])]), [1 / 6, 1 / 6, 1 / 6, 0]
    )
    with pytest.raises(MeshError, match="node 3"):
        node_weights(points, [("triangle", [[0, 1, 3]])])


# --- bare points ----------------------------------------------------------------------------------


def test_interval_rule():
    for points in (np.linspace(0, 1, 6), np.linspace(0, 1, 6)[:, None]):
        weights = point_weights(points, "interval")
        np.testing.assert_allclose(weights, [0.1, 0.2, 0.2, 0.2, 0.2, 0.1], rtol=1e-13)
        order = np.random.default_rng(0).permutation(6)
        np.testing.assert_allclose(point_weights(points[order], "interval"), weights[order])
    np.testing.assert_allclose(point_weights([0.0, 1.0, 1.0], "interval"), [0.5, 0.25, 0.25])
    slanted = np.outer([0, 1, 4], [3, 4]) + 7.0
    np.testing.assert_allclose(point_weights(slanted, "interval"), [2.5, 10, 7.5], rtol=1e-12)
    np.testing.assert_allclose(point_weights(np.linspace(0, 1, 6), "delaunay")[0], 0.1)


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_delaunay_fills_square_and_cube(dim):
    rng = np.random.default_rng(dim)
    grid = np.array(list(product(np.linspace(0, 1, 6), repeat=dim)))
    corners = np.array(list(product([0.0, 1.0], repeat=dim)))
    for points in (grid, np.vstack([corners, rng.random((60, dim))])):
        weights = point_weights(points, "delaunay")
        assert weights.min() > 0
        assert weights.sum() == pytest.approx(1, rel=1e-12)
        np.testing.assert_allclose(weights @ points, 0.5, atol=1e-12)  # exact for linear functions


def test_delaunay_fills_the_circle():
    errors = []
    for n in (8, 16, 32):
        rings = [r * regular(6 * k) for k, r in enumerate(np.linspace(0, 1, n + 1)) if k]
        points = np.vstack([np.zeros((1, 2)), *rings])
        weights = point_weights(points, "delaunay")
        assert weights.min() > 0
        errors.append(abs(weights @ (points**2).sum(axis=1) - pi / 2))
    assert min(orders(errors)) > 1.9


def test_delaunay_of_a_small_cloud_far_away():
    """Unscaled, Qhull drops 13 of these 20 points as coplanar."""
    points = np.random.default_rng(0).random((20, 2))
    near = point_weights(points, "delaunay")
    far = point_weights(1e-3 * points + 1e6, "delaunay")
    assert far.min() > 0
    np.testing.assert_allclose(far, 1e-6 * near, rtol=1e-4)


def test_points_that_qhull_leaves_out_share_with_their_nearest():
    points = np.random.default_rng(0).random((20, 2))
    alone = point_weights(points, "delaunay")
    crowded = point_weights(np.vstack([points, points[:5] + 1e-16, points[:2] - 1e-16]), "delaunay")
    assert crowded.min() > 0
    crowded[:5] += crowded[20:25]
    crowded[:2] += crowded[25:]
    np.testing.assert_allclose(crowded[:20], alone, rtol=1e-9)


@pytest.mark.parametrize("rule", ["delaunay", "knn"])
def test_points_are_taken_in_the_dimension_they_span(rule):
    rng = np.random.default_rng(0)
    turn = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    for k in (1, 2):
        points = rng.random((30, k))
        plane = points @ turn[:, :k].T + 5
        np.testing.assert_allclose(
            point_weights(plane, rule), point_weights(points, rule), rtol=1e-9
        )
    np.testing.assert_allclose(
        point_weights(np.column_stack([points, 1e-9 * rng.random(30)]), rule),
        point_weights(points, rule),
        rtol=1e-6,
    )
    np.testing.assert_allclose(
        point_weights([[0, 0], [1, 1], [3, 3], [4, 4]], "delaunay"),
        np.sqrt(2) * np.array([0.5, 1.5, 1.5, 0.5]),
        rtol=1e-12,
    )
    np.testing.assert_allclose(point_weights([[1.0, 2.0]] * 4, rule), 0.25)


@pytest.mark.parametrize(
    ("rule", "dim"), [("interval", 1), *product(["delaunay", "knn"], [1, 2, 3])]
)
def test_copies_of_a_point_share_its_weight(rule, dim):
    points = np.random.default_rng(dim).random((40, dim))
    weights = point_weights(points, rule)
    copied = point_weights(np.vstack([points, points[[3, 3, 7]]]), rule)
    np.testing.assert_allclose(copied[[3, 40, 41]], weights[3] / 3, rtol=1e-12)
    np.testing.assert_allclose(copied[[7, 42]], weights[7] / 2, rtol=1e-12)
    others = np.setdiff1d(np.arange(40), [3, 7])
    np.testing.assert_allclose(copied[others], weights[others], rtol=1e-12)


@pytest.mark.parametrize("rule", ["interval", "delaunay", "knn"])
def test_scale_and_shift_of_points(rule):
    points = np.random.default_rng(0).random((30, 1 if rule == "interval" else 2))
    weights = point_weights(points, rule)
    power = points.shape[1]
    np.testing.assert_allclose(point_weights(1e-6 * points, rule), 1e-6**power * weights, rtol=1e-9)
    np.testing.assert_allclose(point_weights(points + 1e6, rule), weights, rtol=1e-5)
    order = np.random.default_rng(1).permutation(30)
    np.testing.assert_allclose(point_weights(points[order], rule), weights[order], rtol=1e-9)


def test_knn_weights_of_a_sampled_sphere():
    """Area and second moment within 4 % at 500 points, shrinking to 0.5 % at 32 000."""
    for n, tolerance in ((500, 4e-2), (4000, 1.5e-2), (32000, 5e-3)):
        points = onto_sphere(np.random.default_rng(0).normal(size=(n, 3)))
        weights = point_weights(points, "knn", dim=2)
        assert weights.min() > 0
        assert weights.sum() == pytest.approx(4 * pi, rel=tolerance)
        assert weights @ points[:, 2] ** 2 == pytest.approx(4 * pi / 3, rel=tolerance)


def test_knn_corrects_an_uneven_sampling():
    """Points of density 1 / (2 sqrt x): weighted, the mean of x is 1/2 and not 1/3."""
    points = np.random.default_rng(0).random((4000, 2)) ** [2, 1]
    weights = point_weights(points, "knn")
    assert points[:, 0].mean() == pytest.approx(1 / 3, abs=0.01)
    assert np.average(points[:, 0], weights=weights) == pytest.approx(1 / 2, abs=0.02)


def test_knn_boundary_bias_shrinks():
    errors = [
        abs(point_weights(np.random.default_rng(0).random((n, 2)), "knn").sum() - 1)
        for n in (500, 2000, 8000)
    ]
    assert errors[0] < 0.25
    assert errors[2] < errors[0] / 3


@pytest.mark.parametrize(
    ("points", "rule", "options", "message"),
    [
        (np.zeros((3, 2)), None, {}, "'interval', 'delaunay', 'knn', got None"),
        (np.zeros((3, 2)), "uniform", {}, "got 'uniform'"),
        (np.eye(3), "interval", {}, "on a line"),
        (np.random.default_rng(0).random((9, 4)), "delaunay", {}, "at most 3.*knn"),
        (np.array([[0.0, 0.0], [np.nan, 1.0]]), "knn", {}, "point 1"),
        (np.zeros((0, 2)), "knn", {}, "shape"),
        (np.zeros((2, 2, 2)), "knn", {}, "shape"),
        (np.eye(3), "knn", {"dim": 4}, "between 1 and 3"),
        (np.eye(3), "knn", {"dim": 0}, "between 1 and 3"),
        (np.eye(3), "knn", {"neighbors": 0}, "at least 1"),
        (np.eye(3), "delaunay", {"dim": 2}, "option of rule 'knn'"),
    ],
)
def test_unsuitable_points_are_refused(points, rule, options, message):
    with pytest.raises(ValueError, match=message):
        point_weights(points, rule, **options)
