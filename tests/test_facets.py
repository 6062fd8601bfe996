"""The boundary of a mesh: closed forms, convex hulls, a count by hand, the divergence theorem."""

from __future__ import annotations

from collections import Counter
from itertools import combinations, pairwise, permutations, product
from math import log2, pi, sqrt
from pathlib import Path

import meshio
import numpy as np
import pytest
from scipy.spatial import ConvexHull

from opformer._cells import TOPOLOGICAL_DIMENSION, cell_integrals, reference_cell
from opformer._lagrange import LAGRANGE, lagrange_nodes
from opformer.errors import MeshError
from opformer.quadrature import boundary, cell_weights, node_weights

FOLDER = Path(__file__).parents[1] / "meshes"
# Measure of the boundary of the reference cell; a pyramid's apex is above its node 0.
EXACT = {
    "line": 2.0,
    "triangle": 2 + sqrt(2),
    "quad": 4.0,
    "tetra": 1.5 + sqrt(3) / 2,
    "hexahedron": 6.0,
    "wedge": 1 + 2 + sqrt(2),
    "pyramid": 1 + 1 + sqrt(2),
}
FACETS = {
    "line": {"vertex": 2},
    "line3": {"vertex": 2},
    "triangle": {"line": 3},
    "triangle6": {"line3": 3},
    "triangle7": {"line3": 3},
    "quad": {"line": 4},
    "quad8": {"line3": 4},
    "quad9": {"line3": 4},
    "tetra": {"triangle": 4},
    "tetra10": {"triangle6": 4},
    "hexahedron": {"quad": 6},
    "hexahedron20": {"quad8": 6},
    "hexahedron27": {"quad9": 6},
    "wedge": {"triangle": 2, "quad": 3},
    "wedge15": {"triangle6": 2, "quad8": 3},
    "wedge18": {"triangle6": 2, "quad9": 3},
    "pyramid": {"triangle": 4, "quad": 1},
    "pyramid13": {"triangle6": 4, "quad8": 1},
    "pyramid14": {"triangle6": 4, "quad9": 1},
    "VTK_LAGRANGE_CURVE": {"vertex": 2},
    "VTK_LAGRANGE_TRIANGLE": {"VTK_LAGRANGE_CURVE": 3},
    "VTK_LAGRANGE_QUADRILATERAL": {"VTK_LAGRANGE_CURVE": 4},
    "VTK_LAGRANGE_TETRAHEDRON": {"VTK_LAGRANGE_TRIANGLE": 4},
    "VTK_LAGRANGE_HEXAHEDRON": {"VTK_LAGRANGE_QUADRILATERAL": 6},
    "VTK_LAGRANGE_WEDGE": {"VTK_LAGRANGE_TRIANGLE": 2, "VTK_LAGRANGE_QUADRILATERAL": 3},
}
every_kind = pytest.mark.parametrize("kind", FACETS)


def shape(kind):
    return LAGRANGE.get(kind, kind.rstrip("0123456789"))


def single(kind, order=3):
    nodes = lagrange_nodes(shape(kind), order) if kind in LAGRANGE else reference_cell(kind).nodes
    return nodes, [(kind, np.arange(len(nodes))[None])]


def measure(points, blocks):
    found = boundary(blocks)
    return node_weights(points, found).sum() if found else 0.0


def hull_measure(points):
    """Perimeter or surface of a convex mesh, by Qhull."""
    return 2.0 if points.shape[1] == 1 else ConvexHull(points).area


def flux(points, blocks):
    """Integral of x . n over the facets, by their Gauss rules."""
    total = 0.0
    for kind, facets in boundary(blocks):
        if kind == "vertex":  # no tangent; the first end of a line is its left one
            return float(np.diff(points[facets[:, 0], 0])[0])
        cell, x = reference_cell(kind, facets.shape[1]), points[facets]
        at = np.einsum("qn,mnd->mqd", cell.values, x)
        tangents = np.einsum("qnk,mnd->mqkd", cell.gradients, x)
        columns = np.concatenate([at[:, :, None], tangents], axis=2)  # det(x, t1, t2) = x . n
        total += np.einsum("mq,q->", np.linalg.det(columns), cell.omega)
    return total


def cube(kind, n):
    """The unit cube or square in n^d copies of its cut."""
    square = {"quad": [[0, 1, 2, 3]], "triangle": [[0, 1, 2], [0, 2, 3]]}
    d = 2 if kind in square else 3
    corners = reference_cell("quad" if d == 2 else "hexahedron").nodes.astype(int)
    cut = {
        **square,
        "hexahedron": [range(8)],
        "wedge": [[0, 1, 2, 4, 5, 6], [0, 2, 3, 4, 6, 7]],
        "tetra": [kuhn_tetra(p) for p in permutations(np.eye(3, dtype=int).tolist())],
    }
    lattice = (n + 1) ** np.arange(d)
    origins = np.array(list(product(range(n), repeat=d)))
    nodes = (origins[:, None] + corners) @ lattice
    cells = np.concatenate([nodes[:, list(cell)] for cell in cut[kind]])
    points = np.array(list(product(range(n + 1), repeat=d)))[:, ::-1] / n
    return points, [(kind, cells)]


def kuhn_tetra(steps):
    """A path of three steps along the axes through the cube: one of Kuhn's six simplices."""
    path = np.vstack([[0, 0, 0], np.cumsum(steps, axis=0)])
    if np.linalg.det(steps) < 0:
        path = path[[1, 0, 2, 3]]
    corners = reference_cell("hexahedron").nodes.astype(int).tolist()
    return [corners.index(corner) for corner in path.tolist()]


def interior(points):
    return ((points > 0) & (points < 1)).all(axis=1)


def by_hand(blocks):
    """The corner sets that one cell only has, by a dictionary, cells of mixed shape included."""
    corners = {"triangle": 3, "quad": 4, "tetra": 4, "hexahedron": 8, "wedge": 6, "pyramid": 5}
    sides = Counter()
    for kind, cells in blocks:
        k, n = TOPOLOGICAL_DIMENSION[kind], corners[shape(kind)]
        nodes = reference_cell(kind).nodes[:n]
        for side in [s for size in range(k, 5) for s in combinations(range(n), size)]:
            if is_side(nodes, side):
                sides.update(frozenset(cell) for cell in np.asarray(cells)[:, side].tolist())
    return {side for side, count in sides.items() if count == 1}


def is_side(nodes, side):
    """Whether some of the corners of a convex cell are all those on a supporting hyperplane."""
    offset = nodes - nodes[side[0]]
    _, s, axes = np.linalg.svd(offset[list(side)])
    rank = int((s > 1e-9).sum())
    if rank != nodes.shape[1] - 1:
        return False
    height = offset @ axes[-1]
    on = set(np.flatnonzero(np.abs(height) < 1e-9))
    return on == set(side) and (height.min() > -1e-9 or height.max() < 1e-9)


def corner_sets(blocks):
    corners = {"vertex": 1, "line": 2, "triangle": 3, "quad": 4}
    return {frozenset(f) for kind, fs in blocks for f in fs[:, : corners[shape(kind)]].tolist()}


# --- one cell -------------------------------------------------------------------------------------


def test_every_kind_is_tested():
    assert set(FACETS) | {"vertex", "polygon", "polyhedron"} == set(TOPOLOGICAL_DIMENSION)


@every_kind
def test_unit_cell(kind):
    points, blocks = single(kind)
    assert {name: len(facets) for name, facets in boundary(blocks)} == FACETS[kind]
    assert measure(points, blocks) == pytest.approx(EXACT[shape(kind)], rel=1e-13)


@every_kind
def test_affine_image(kind):
    rng = np.random.default_rng(0)
    points, blocks = single(kind)
    k = points.shape[1]
    for _ in range(5):
        image = points @ rng.normal(size=(k, k)) + rng.normal(size=k)
        assert measure(image, blocks) == pytest.approx(hull_measure(image), rel=1e-12)
        turn = np.linalg.qr(rng.normal(size=(k + 1, k)))[0]  # into one dimension more
        assert measure(image @ turn.T, blocks) == pytest.approx(hull_measure(image), rel=1e-12)


@every_kind
def test_divergence_theorem_on_a_curved_cell(kind):
    """Exact only if every node of every facet is the right one, and all facets run outward."""
    rng = np.random.default_rng(1)
    points, blocks = single(kind)
    k = points.shape[1]
    for _ in range(5):
        if shape(kind) != "pyramid":  # the Gauss rules are exact for polynomials
            image = points + 0.1 * rng.normal(size=points.shape)
        else:  # a polynomial map that the shape functions reproduce
            image = points + points @ rng.normal(size=(k, k)) * 0.1
            if kind != "pyramid":
                square = np.einsum("ni,nj->nij", points, points)
                image += 0.1 * np.einsum("nij,ijd->nd", square, rng.normal(size=(k, k, k)))
        image += rng.normal(size=k)  # else x . n = 0 on the facets at the origin
        volume = cell_integrals(kind, image[None])[2].item()
        assert volume > 0
        assert flux(image, blocks) == pytest.approx(k * volume, rel=1e-12)


@every_kind
def test_inverted_cells_have_the_same_boundary(kind):
    points, blocks = single(kind)
    mirrored = points * ([-1.0] + [1.0] * (points.shape[1] - 1))
    found = node_weights(mirrored, boundary(blocks))
    np.testing.assert_allclose(found, node_weights(points, boundary(blocks)), rtol=1e-13)


@pytest.mark.parametrize("kind", [kind for kind in LAGRANGE if kind != "VTK_LAGRANGE_CURVE"])
@pytest.mark.parametrize("order", [1, 2, 4, 5])
def test_lagrange_facets_of_all_orders(kind, order):
    rng = np.random.default_rng(order)
    points, blocks = single(kind, order)
    image = points + 0.1 / order * rng.normal(size=points.shape)
    k = points.shape[1]
    assert {name: len(facets) for name, facets in boundary(blocks)} == FACETS[kind]
    volume = cell_integrals(kind, image[None])[2][0, 0]
    assert flux(image, blocks) == pytest.approx(k * volume, rel=1e-12)


def test_polygons_of_all_sizes():
    corners = [np.exp(2j * pi * np.arange(n) / n) + 3 * n for n in range(3, 9)]
    flat = np.concatenate(corners)
    cells = np.split(np.arange(len(flat)), np.cumsum([len(c) for c in corners])[:-1])
    exact = sum(2 * n * np.sin(pi / n) for n in range(3, 9))
    points, blocks = np.stack([flat.real, flat.imag], axis=1), [("polygon", cells)]
    assert measure(points, blocks) == pytest.approx(exact, rel=1e-13)
    assert flux(points, blocks) == pytest.approx(2 * cell_weights(points, blocks)[1].sum())


# --- meshes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["triangle", "quad", "tetra", "wedge", "hexahedron"])
def test_interior_facets_vanish(kind):
    n = 3
    points, blocks = cube(kind, n)
    d = points.shape[1]
    found = boundary(blocks)
    weights = node_weights(points, found)
    assert corner_sets(found) == by_hand(blocks)
    faces = {"tetra": 2 * 6 * n**2, "wedge": 2 * 2 * n**2 + 4 * n**2, "hexahedron": 6 * n**2}
    assert sum(len(f) for _, f in found) == faces.get(kind, 4 * n)
    assert weights.sum() == pytest.approx(2 * d, rel=1e-13)
    np.testing.assert_array_equal(weights == 0, interior(points))
    assert flux(points, blocks) == pytest.approx(d, rel=1e-12)
    np.testing.assert_allclose(weights @ points, np.full(d, d), rtol=1e-12)  # centroid 1/2


def test_mixed_plane():
    """Quads beside triangles, quad9 beside triangle6, and a polygon of both's sides."""
    points = np.array([[0, 0], [1, 0], [1, 1], [0, 1], [2, 0], [2, 2], [0, 2]], float)
    linear = [("quad", [[0, 1, 2, 3]]), ("triangle", [[1, 4, 2]]), ("polygon", [[3, 2, 4, 5, 6]])]
    assert [kind for kind, _ in boundary(linear)] == ["line"]
    assert measure(points, linear) == pytest.approx(8)
    assert node_weights(points, boundary(linear))[2] == 0
    quad, triangle = (reference_cell(kind).nodes for kind in ("quad9", "triangle6"))
    triangle = triangle + np.array([1.0, 0.0])
    points, index = np.unique(np.vstack([quad, triangle]), axis=0, return_inverse=True)
    blocks = [("quad9", index[None, :9]), ("triangle6", index[None, 9:])]
    assert {kind: len(f) for kind, f in boundary(blocks)} == {"line3": 5}
    assert measure(points, blocks) == pytest.approx(4 + sqrt(2))


def test_mixed_solid_by_hand():
    mesh = meshio.read(FOLDER / "mixed_solid.vtu")
    blocks = [(block.type, block.data) for block in mesh.cells]
    assert corner_sets(boundary(blocks)) == by_hand(blocks)


def test_random_mixed_meshes_by_hand():
    """Cells that share corners at random, in random order, and many more than once."""
    rng = np.random.default_rng(2)
    sizes = {"tetra": 4, "pyramid": 5, "wedge": 6, "hexahedron": 8}
    for _ in range(20):
        blocks = [
            (kind, np.array([rng.permutation(9)[:n] for _ in range(4)]))
            for kind, n in sizes.items()
        ]
        assert corner_sets(boundary(blocks)) == by_hand(blocks)


def disc(n):
    """A fan of n triangles whose outer edges have their middles on the unit circle."""
    t = pi * np.arange(2 * n) / n
    circle = np.stack([np.cos(t), np.sin(t)], axis=1)
    points = np.vstack([circle, circle[::2] / 2, [[0, 0]]])
    a = np.arange(n)
    b, spoke, centre = (a + 1) % n, 2 * n + a, np.full(n, 3 * n)
    six = np.stack([2 * a, 2 * b, centre, 2 * a + 1, 2 * n + b, spoke], axis=1)
    return points, [("triangle6", six)]


def test_curved_boundary_of_order_four():
    errors = [abs(measure(*disc(n)) - 2 * pi) for n in (8, 16, 32)]
    assert all(log2(coarse / fine) > 3.9 for coarse, fine in pairwise(errors))
    assert errors[-1] < 1e-5
    points, blocks = disc(8)
    weights = node_weights(points, boundary(blocks))
    np.testing.assert_array_equal(weights > 0, np.linalg.norm(points, axis=1) > 0.9)
    assert flux(points, blocks) == pytest.approx(2 * node_weights(points, blocks).sum(), rel=1e-12)


# --- polyhedra ------------------------------------------------------------------------------------

CUBE = np.array([[x, y, z] for z in (0, 1) for x, y in ((0, 0), (1, 0), (1, 1), (0, 1))], float)
CUBE_FACES = [[0, 4, 7, 3], [1, 2, 6, 5], [0, 1, 5, 4], [3, 7, 6, 2], [0, 3, 2, 1], [4, 5, 6, 7]]


def beside():
    """A pentagonal prism on the side x = 1 of the cube, and a tetrahedron on top of it."""
    more = [[2, 0, 0], [2, 1, 0], [2, 0, 1], [2, 1, 1], [3, 0.5, 0], [3, 0.5, 1], [2, 0.5, 3]]
    points = np.vstack([CUBE, more])
    prism = [
        *([1, 2, 9, 12, 8], [5, 10, 13, 11, 6]),
        *([1, 8, 10, 5], [8, 12, 13, 10], [12, 9, 11, 13], [9, 2, 6, 11], [2, 1, 5, 6]),
    ]
    return points, prism


def test_faces_of_polyhedra_are_triangles_quads_and_polygons():
    points, prism = beside()
    found = boundary([("polyhedron", [prism])])
    assert {kind: faces.shape for kind, faces in found} == {"quad": (5, 4), "polygon": (2, 5)}
    assert measure(points, [("polyhedron", [prism])]) == pytest.approx(2 * 1.5 + 3 + 2 * SLOPE)
    assert boundary(found) == []


def test_polyhedra_beside_other_cells():
    """They share their quads with hexahedra and their triangles with tetrahedra."""
    points, prism = beside()
    for cube in (("hexahedron", [[*range(8)]]), ("polyhedron", [CUBE_FACES])):
        blocks = [cube, ("polyhedron", [prism])]
        assert measure(points, blocks) == pytest.approx(5 + 2 * 1.5 + 2 + 2 * SLOPE)
    pyramid = [[1, 5, 6, 2], [1, 14, 5], [5, 14, 6], [6, 14, 2], [2, 14, 1]]
    tetra = ("tetra", [[5, 6, 14, 7]])
    shared = {
        frozenset(f) for _, faces in boundary([("polyhedron", [pyramid])]) for f in faces.tolist()
    }
    both = boundary([("polyhedron", [pyramid]), tetra])
    kept = {frozenset(f) for _, faces in both for f in faces.tolist()}
    assert shared - kept == {frozenset([5, 6, 14])}
    assert sum(len(faces) for _, faces in both) == 5 + 4 - 2


def test_the_boundary_of_a_polyhedron_runs_alike_whatever_way_its_faces_do():
    points, prism = beside()
    volume = cell_weights(points, [("polyhedron", [prism])])[1][0]
    assert volume == pytest.approx(1.5)
    rng = np.random.default_rng(0)
    for _ in range(10):
        turn = rng.choice([-1, 1], size=len(prism))
        mixed = [face[::sign] for face, sign in zip(prism, turn, strict=True)]
        fans = 0.0
        for _, faces in boundary([("polyhedron", [mixed])]):
            x = points[faces]
            for i in range(1, faces.shape[1] - 1):
                fans += np.linalg.det(x[:, [0, i, i + 1]]).sum() / 6
        assert abs(fans) == pytest.approx(volume)


def test_a_big_face_does_not_meet_four_small_ones():
    """Two levels of refinement: four small hexahedra on a face that the polyhedron has in four."""
    t = [0.0, 0.5, 1.0]
    grid = np.array([[1, y, z] for z in t for y in t])
    far = grid + np.array([0.5, 0, 0])
    left = CUBE[[0, 3, 4, 7]]
    points = np.vstack([left, grid, far])
    a = 4 + np.arange(9).reshape(3, 3)
    cells = [
        [x for k in (j, j + 1) for x in (a[k, i], a[k, i] + 9, a[k, i + 1] + 9, a[k, i + 1])]
        for j in range(2)
        for i in range(2)
    ]
    small = [[cell[0], cell[3], cell[7], cell[4]] for cell in cells]
    big = [
        [0, 2, 3, 1],
        *small,
        [0, *a[:, 0], 2],
        [1, 3, *a[::-1, 2]],
        [0, 1, *a[0, ::-1]],
        [2, *a[2], 3],
    ]
    blocks = [("polyhedron", [big]), ("hexahedron", cells)]
    assert cell_weights(points, blocks)[1] == pytest.approx([1, *[0.125] * 4], rel=1e-13)
    assert measure(points, blocks) == pytest.approx(2 + 4 * 1.5, rel=1e-13)


# --- files ----------------------------------------------------------------------------------------

SLOPE = sqrt(1.25)
MEASURES = {
    "vertex": 0.0,
    "sphere": 0.0,
    "line": 2.0,
    "line3": 2.0,
    "helix": 2.0,
    "graded": 4.0,
    "orphan_inverted": 4.0,
    "mixed_plane": 6.0,
    "polygon": 6 + sqrt(2),
    # cube, pyramid, wedge, tetrahedron
    "mixed_solid": 4 + 1.5 * SLOPE + 1 + 2 * SLOPE + (1 + sqrt(0.5) + sqrt(0.75)) / 2,
}


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.vtu")), ids=lambda path: path.stem)
def test_file(path):
    mesh = meshio.read(path)
    blocks = [(block.type, block.data) for block in mesh.cells]
    k = max(TOPOLOGICAL_DIMENSION[kind] for kind, _ in blocks)
    convex = hull_measure(mesh.points[:, :k]) if path.stem not in MEASURES else None
    exact = MEASURES.get(path.stem, convex)
    assert measure(mesh.points, blocks) == pytest.approx(exact, rel=1e-12)
    assert boundary(boundary(blocks)) == []


# --- what is odd ----------------------------------------------------------------------------------


def test_without_a_boundary():
    tetra = np.array([[0, 1, 2, 3]])
    surface = boundary([("tetra", tetra)])
    assert boundary(surface) == []
    assert boundary([]) == []
    assert boundary([("triangle", np.zeros((0, 3), dtype=int))]) == []
    assert boundary([("vertex", [[0], [1]])]) == []
    assert boundary([("line", [[0, 1], [1, 2], [2, 0]])]) == []
    with pytest.raises(MeshError, match="needs cells"):
        node_weights(np.zeros((4, 3)), boundary(surface))


def test_only_cells_of_top_dimension_and_used_nodes_count():
    points = np.array([[9, 9], [0, 0], [1, 0], [0, 1], [5, 5]], float)
    blocks = [("line", [[0, 4], [1, 2]]), ("triangle", [[1, 2, 3]])]
    weights = node_weights(points, boundary(blocks))
    np.testing.assert_allclose(weights, [0, 1, (1 + sqrt(2)) / 2, (1 + sqrt(2)) / 2, 0])


def test_a_crack_between_nodes_that_coincide():
    points = np.array([[0, 0], [1, 0], [1, 1], [0, 1]], float)[[0, 1, 2, 0, 2, 3]]
    assert measure(points, [("triangle", [[0, 1, 2], [3, 4, 5]])]) == pytest.approx(4 + 2 * sqrt(2))
    assert measure(points, [("triangle", [[0, 1, 2], [0, 2, 5]])]) == pytest.approx(4)


def test_an_edge_of_three_triangles_is_no_boundary():
    points = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1], [0, -1, 0]], float)
    blocks = [("triangle", [[0, 1, 2], [0, 1, 3], [0, 1, 4]])]
    assert frozenset([0, 1]) not in corner_sets(boundary(blocks))
    assert measure(points, blocks) == pytest.approx(3 * (1 + sqrt(2)))


def test_collapsed_cells():
    """A hexahedron collapsed to a wedge, or a quad to a triangle, has the other's boundary."""
    points, _ = single("hexahedron")
    blocks = [("hexahedron", [[0, 1, 2, 2, 4, 5, 6, 6]])]
    assert sum(len(f) for _, f in boundary(blocks)) == 5
    assert measure(points, blocks) == pytest.approx(EXACT["wedge"])
    other = [*blocks, ("wedge", [[0, 2, 3, 4, 6, 7]])]
    assert measure(points, other) == pytest.approx(EXACT["hexahedron"])
    top = np.vstack([points, [[1, 0, 2]]])  # on the side that the hexahedron has as a quad
    tetra = [*blocks, ("tetra", [[4, 5, 6, 8]])]
    slanted = sum(triangle_area(top[[*edge, 8]]) for edge in ([4, 5], [5, 6], [4, 6]))
    assert measure(top, tetra) == pytest.approx(EXACT["wedge"] - 0.5 + slanted)
    assert measure(points[:, :2], [("quad", [[0, 1, 2, 2]])]) == pytest.approx(2 + sqrt(2))


def triangle_area(x):
    return np.linalg.norm(np.cross(x[1] - x[0], x[2] - x[0])) / 2


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.uint64])
def test_any_integers(dtype):
    points, [(kind, cells)] = cube("tetra", 2)
    found = boundary([(kind, cells.astype(dtype))])
    assert all(np.issubdtype(facets.dtype, np.integer) for _, facets in found)
    assert node_weights(points, found).sum() == pytest.approx(6)


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        ([("cube", [[0, 1]])], "block 0 has cells of type 'cube'; expected one of"),
        ([("triangle", [[0, 1, 2, 3]])], r"cell 0 of block 0 \(triangle\) must have 3 nodes"),
        ([("line", [[0, 1]]), ("triangle", [[0, 1, -1]])], r"block 1 .* refers to node -1"),
        ([("triangle", [[0.0, 1.0, 2.0]])], "must hold integers"),
        ([("polygon", [[0, 1]])], "at least 3"),
    ],
)
def test_what_is_refused(blocks, message):
    with pytest.raises(MeshError, match=message):
        boundary(blocks)
