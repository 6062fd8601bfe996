"""Distances, normals and indicators: closed forms, samples, orders, the divergence theorem."""

from __future__ import annotations

from itertools import pairwise, product
from math import hypot, log2, pi
from pathlib import Path

import meshio
import numpy as np
import pytest
import torch
from cases import on_edge, square
from reading import boundary_weights
from tolerances import ROUNDING, difference

from opformer._cells import TOPOLOGICAL_DIMENSION, reference_cell
from opformer.errors import MeshError
from opformer.mesh import (
    blocks,
    derived_field,
    is_derived,
    part_weights,
    read_field,
    read_mesh,
    with_fields,
)
from opformer.mesh.distance import distances, simplices
from opformer.mesh.normals import normal_integrals
from opformer.quadrature import boundary, cell_weights

FOLDER = Path(__file__).parents[1] / "meshes"
BOX = np.array([[1.0, 0.25, 0.125], [0.5, 1.125, 0.25], [0.0, 0.0, 1.0]])  # the shear of its files
PLANE = ("triangle", "triangle6", "quad", "quad8", "quad9")
SOLID = ("tetra", "tetra10", "hexahedron", "hexahedron20", "hexahedron27", "wedge", "wedge18")
SOLID = (*SOLID, "pyramid")
# The same cells the other way round.
MIRRORED = {
    "triangle": [0, 2, 1],
    "quad": [0, 3, 2, 1],
    "tetra": [1, 0, 2, 3],
    "hexahedron": [4, 5, 6, 7, 0, 1, 2, 3],
    "wedge": [3, 4, 5, 0, 1, 2],
    "pyramid": [0, 3, 2, 1, 4],
}


def exact(got: np.ndarray, expected: np.ndarray) -> bool:
    return difference(got, expected) <= ROUNDING[torch.float64]


def small(got: np.ndarray) -> bool:
    """Whether numbers of about one cancel."""
    return bool(np.abs(got).max() <= ROUNDING[torch.float64])


def field(mesh: meshio.Mesh, name: str, at: str = "points") -> np.ndarray:
    values = derived_field(mesh, name, at)
    assert values.dtype == np.float64
    assert values.ndim == 2
    return values[:, 0] if values.shape[1] == 1 else values


def marked(mesh: meshio.Mesh, **points: np.ndarray) -> meshio.Mesh:
    return with_fields(mesh, point_data={name: m.astype(np.uint8) for name, m in points.items()})


def on_cells(mesh: meshio.Mesh, **cells: np.ndarray) -> meshio.Mesh:
    return with_fields(mesh, cell_data={name: m.astype(np.uint8) for name, m in cells.items()})


def centroids(mesh: meshio.Mesh) -> np.ndarray:
    return cell_weights(mesh.points, blocks(mesh))[0]


def flat(mesh: meshio.Mesh) -> meshio.Mesh:
    """The same with two coordinates."""
    return meshio.Mesh(mesh.points[:, :2], mesh.cells)


def bricks(n: int) -> meshio.Mesh:
    """The unit cube in n³ hexahedra."""
    t = np.linspace(0, 1, n + 1)
    points = np.stack(np.meshgrid(t, t, t, indexing="ij"), axis=-1).reshape(-1, 3)
    k = np.arange((n + 1) ** 3).reshape((n + 1,) * 3)
    corners = [(x, y, z) for z in (0, 1) for x, y in ((0, 0), (1, 0), (1, 1), (0, 1))]
    cells = [k[x : n + x, y : n + y, z : n + z].ravel() for x, y, z in corners]
    return meshio.Mesh(points, [("hexahedron", np.stack(cells, axis=1))])


def disc(n: int) -> meshio.Mesh:
    """A fan of n triangles, quadratic, with nodes of unequal distance on the unit circle."""
    t = pi * np.arange(2 * n) / n
    t = t + np.sin(t) / 3
    circle = np.stack([np.cos(t), np.sin(t)], axis=1)
    points = np.vstack([circle, circle[::2] / 2, [[0, 0]]])
    a = np.arange(n)
    b, spoke, centre = (a + 1) % n, 2 * n + a, np.full(n, 3 * n)
    six = np.stack([2 * a, 2 * b, centre, 2 * a + 1, 2 * n + b, spoke], axis=1)
    return meshio.Mesh(points, [("triangle6", six)])


def turned(mesh: meshio.Mesh, seed: int = 0) -> tuple[meshio.Mesh, np.ndarray]:
    """A mesh in a turned and shifted frame, and the rotation."""
    d = mesh.points.shape[1]
    q = np.linalg.qr(np.random.default_rng(seed).normal(size=(d, d)))[0]
    q[:, 0] *= np.sign(np.linalg.det(q))
    return meshio.Mesh(mesh.points @ q.T + 3.0, mesh.cells, mesh.point_data, mesh.cell_data), q


# --- names ----------------------------------------------------------------------------------------


def test_names():
    assert all(is_derived(f"{f}:wall") for f in ("distance", "normal", "indicator"))
    assert not any(map(is_derived, ("distance", "distance:", "first:u", "u", ":wall")))
    with pytest.raises(MeshError, match="field 'area:wall' is none of distance:PART"):
        derived_field(square(2), "area:wall", "points")
    with pytest.raises(MeshError, match="'nodes'"):
        derived_field(square(2), "distance:boundary", "nodes")


@pytest.mark.parametrize("function", ["distance", "normal", "indicator"])
def test_an_unknown_part_is_refused_with_the_field_and_the_parts(function):
    with pytest.raises(
        MeshError, match=rf"^field '{function}:wall': there is no part 'wall'.*'bou"
    ):
        derived_field(square(2), f"{function}:wall", "points")


# --- distance: geometry ---------------------------------------------------------------------------


def sampled(corners: np.ndarray, n: int) -> np.ndarray:
    """Points (m, s, d) of a lattice on each simplex."""
    k = corners.shape[1] - 1
    lattice = [c for c in product(range(n + 1), repeat=k) if sum(c) <= n]
    share = np.array([(n - sum(c), *c) for c in lattice]) / n
    return np.einsum("sc,mcd->msd", share, corners)


@pytest.mark.parametrize(("k", "d"), [(0, 2), (1, 1), (1, 2), (1, 3), (2, 2), (2, 3)])
@pytest.mark.parametrize("spread", [1.0, 1e4])
def test_the_nearest_simplex_is_found_among_unequal_ones(k, d, spread):
    """The foot on a simplex is within a step of a sample s, and |x - s|² = dist² + |foot - s|²."""
    rng = np.random.default_rng(k + 10 * d)
    size = spread ** -rng.random((60, 1, 1))
    corners = rng.random((60, 1, d)) * 2 + size * rng.normal(size=(60, k + 1, d))
    x = rng.random((200, d)) * 3 - 0.5
    found, n = distances(x, corners), 40
    samples = sampled(corners, n)
    apart = np.linalg.norm(x[:, None, None] - samples, axis=3)
    edges = [corners[:, i] - corners[:, j] for i in range(k + 1) for j in range(i)]
    step = np.linalg.norm([np.zeros((60, d)), *edges], axis=2).max(axis=0) / n
    assert (found <= apart.min(axis=(1, 2)) + 1e-14).all()
    lower = np.sqrt(np.maximum(apart.min(axis=2) ** 2 - step**2, 0)).min(axis=1)
    assert (found >= lower - 1e-14).all()


def test_one_triangle_by_its_corners_edges_and_inside():
    corners = np.array([[[0.0, 0, 0], [4, 0, 0], [0, 3, 0]]])
    x = np.array(
        [[1, 1, 2], [-3, -4, 0], [7, 0, 4], [0, 7, 3], [2, -5, 12], [4, 5.5, 0], [0, 0, 0.0]]
    )
    beyond = (4 * 3 + 5.5 * 4 - 12) / 5
    assert exact(distances(x, corners), np.array([2, 5, 5, 5, 13, beyond, 0]))
    assert exact(distances(x, corners[:, [2, 0, 1]]), np.array([2, 5, 5, 5, 13, beyond, 0]))


def test_triangles_without_area_are_their_edges():
    """Up to rounding, in which a plane through three points of a line would be lost."""
    rng = np.random.default_rng(0)
    start, along, x = rng.normal(size=(3, 400, 3))
    middle = start + rng.random((400, 1)) * along
    for order in ([0, 1, 2], [1, 0, 2], [2, 0, 1]):
        corners = np.stack([start, middle, start + along], axis=1)[:, order]
        for one, point, a, v in zip(corners, x, start, along, strict=True):
            foot = a + np.clip((point - a) @ v / (v @ v), 0, 1) * v
            assert exact(distances(point[None], one[None])[0], np.linalg.norm(point - foot))
    point = np.full((1, 3, 3), 2.0)
    assert exact(distances(x, point), np.linalg.norm(x - 2, axis=1))


def test_slender_triangles_and_points_far_away():
    t = np.linspace(0, 1, 401)
    near, far = np.c_[t, 0 * t, 0 * t], np.c_[t, 0 * t, 0 * t + 50]
    strips = np.concatenate(
        [
            np.stack([near[:-1], near[1:], far[1:]], axis=1),
            np.stack([near[:-1], far[1:], far[:-1]], axis=1),
        ]
    )
    x = np.random.default_rng(0).uniform([0, -1, 0], [1, 1, 50], size=(500, 3))
    x[:100] *= [1, 1e3, 1]
    q = np.linalg.qr(np.random.default_rng(1).normal(size=(3, 3)))[0]
    assert exact(distances(x @ q, strips @ q), np.abs(x[:, 1]))


def test_all_points_as_far_as_all_facets():
    """The centre of a circle, many times: nothing can be left out, and memory is still bounded."""
    t = np.linspace(0, 2 * pi, 501)
    circle = np.stack([np.cos(t), np.sin(t)], axis=1)
    found = distances(np.zeros((2000, 2)), np.stack([circle[:-1], circle[1:]], axis=1))
    assert exact(found, np.full(2000, np.cos(pi / 500)))


KINDS = [
    (kind, 0) for kind, k in TOPOLOGICAL_DIMENSION.items() if k in (1, 2) and "VTK" not in kind
]
KINDS.remove(("polygon", 0))
KINDS += [
    ("VTK_LAGRANGE_CURVE", 5),
    ("VTK_LAGRANGE_TRIANGLE", 15),
    ("VTK_LAGRANGE_QUADRILATERAL", 16),
]


@pytest.mark.parametrize(("kind", "n"), KINDS)
def test_cells_are_cut_between_all_their_nodes(kind, n):
    nodes = reference_cell(kind, n).nodes
    pieces = simplices(nodes, [(kind, np.arange(len(nodes))[None])])
    sides = pieces[:, 1:] - pieces[:, :1]
    size = np.abs(np.linalg.det(sides)) / [1, 1, 2][nodes.shape[1]]
    assert exact(size.sum(), reference_cell(kind, n).omega.sum())
    assert size.min() > 1e-3  # none of three nodes of one edge
    corners = {tuple(c) for c in pieces.reshape(-1, nodes.shape[1]).round(9)}
    assert corners == {tuple(c) for c in nodes.round(9)}


def test_a_quadratic_triangle_is_cut_at_its_middles():
    nodes = reference_cell("triangle6").nodes
    pieces = simplices(nodes, [("triangle6", np.arange(6)[None])])
    centres = {tuple(c) for c in pieces.mean(axis=1).round(9)}
    expected = np.array([[1, 1], [4, 1], [1, 4], [2, 2]]) / 6
    assert centres == {tuple(c) for c in expected.round(9)}


def test_quads_polygons_and_mixtures_are_cut():
    mesh = read_mesh(FOLDER / "polygon.vtu")
    pieces = simplices(mesh.points, blocks(mesh))
    area = np.linalg.norm(np.cross(*(pieces[:, 1:] - pieces[:, :1]).swapaxes(0, 1)), axis=1) / 2
    assert area.sum() >= 2.5 - 1e-12  # a fan is larger if a polygon is notched
    middle = np.array([[0.5, 0.5, 2.0]])
    warped = np.array([[0.0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0]])
    assert exact(
        distances(middle, simplices(warped, [("quad", np.arange(4)[None])])), np.array([2.0])
    )


# --- distance: fields -----------------------------------------------------------------------------


@pytest.mark.parametrize("grade", [1.0, 4.0])
@pytest.mark.parametrize("at", ["points", "cells"])
def test_distance_to_the_sides_of_a_square(grade, at):
    mesh = square(8, grade)
    x = (mesh.points if at == "points" else centroids(mesh))[:, :2]
    expected = np.minimum(x, 1 - x).min(axis=1)
    for one in (mesh, flat(mesh)):
        assert exact(field(one, "distance:boundary", at), expected)


def test_distance_to_one_side_whose_nodes_are_far():
    """One long facet: the nearest node is a wrong answer by far."""
    t = np.linspace(0, 1, 11)
    points = np.vstack([[[-5.0, 0], [5, 0]], np.c_[t - 0.5, t + 1]])
    cells = [
        ("line", np.array([[0, 1]])),
        ("triangle", np.array([[0, 1, k] for k in range(2, 13)])),
    ]
    mesh = on_cells(meshio.Mesh(points, cells), wall=np.arange(12) == 0)
    assert exact(field(mesh, "distance:wall"), points[:, 1])


def test_distance_in_a_box_turned_in_space():
    mesh = bricks(4)
    x, c = mesh.points, centroids(mesh)
    moved = turned(mesh)[0]
    assert exact(field(moved, "distance:boundary"), np.minimum(x, 1 - x).min(axis=1))
    assert exact(field(moved, "distance:boundary", "cells"), np.minimum(c, 1 - c).min(axis=1))


def test_distance_far_from_the_origin():
    mesh = square(8, shift=2.0**20)
    x = mesh.points[:, :2] - [2.0**20, 0]
    assert exact(field(mesh, "distance:boundary"), np.minimum(x, 1 - x).min(axis=1))


def test_distance_around_a_corner_that_points_inward():
    mesh = square(8)
    c = centroids(mesh)
    mesh = meshio.Mesh(
        mesh.points, [("triangle", mesh.cells[0].data[~(c[:, :2] > 0.5).all(axis=1)])]
    )
    mesh = marked(
        mesh,
        notch=(mesh.points[:, :2] >= 0.5).all(axis=1) & (mesh.points[:, :2] <= 0.5).any(axis=1),
    )
    c = centroids(mesh)[:, :2]
    outer = np.minimum(c, np.where(c[:, ::-1] > 0.5, 0.5, 1.0) - c).min(axis=1)
    corner = np.where((c < 0.5).all(axis=1), np.linalg.norm(c - 0.5, axis=1), np.inf)
    assert exact(field(mesh, "distance:boundary", "cells"), np.minimum(outer, corner))
    notch = np.where((c < 0.5).all(axis=1), corner, 0.5 - c.min(axis=1))
    assert exact(field(mesh, "distance:notch", "cells"), notch)


def test_distance_to_a_circle_of_order_two():
    """To the chords between the nodes, also those inside a facet."""
    errors = []
    for n in (16, 32, 64):
        mesh = disc(n)
        found = field(mesh, "distance:boundary")
        errors.append(np.abs(found - (1 - np.linalg.norm(mesh.points, axis=1))).max())
    assert all(log2(coarse / fine) > 1.9 for coarse, fine in pairwise(errors))
    assert errors[-1] < 2e-3


@pytest.mark.parametrize("at", ["points", "cells"])
@pytest.mark.parametrize("space", [2, 3])
def test_distance_to_an_inclusion_is_zero_in_it(at, space):
    mesh = square(8)
    mesh = mesh if space == 3 else flat(mesh)
    inside = (np.abs(centroids(mesh)[:, :2] - 0.5) < 0.25).all(axis=1)
    mesh = on_cells(mesh, inclusion=inside)
    x = (mesh.points if at == "points" else centroids(mesh))[:, :2]
    expected = np.linalg.norm(np.maximum(np.abs(x - 0.5) - 0.25, 0), axis=1)
    assert exact(field(mesh, "distance:inclusion", at), expected)


@pytest.mark.parametrize("at", ["points", "cells"])
def test_distance_to_a_solid_inclusion(at):
    mesh = bricks(4)
    mesh = on_cells(mesh, inclusion=(centroids(mesh) < 0.5).all(axis=1))
    x = mesh.points if at == "points" else centroids(mesh)
    expected = np.linalg.norm(np.maximum(x - 0.5, 0), axis=1)
    assert exact(field(mesh, "distance:inclusion", at), expected)


def test_distance_on_an_interval():
    points = np.array([[0.0], [1], [3], [7]])
    mesh = meshio.Mesh(points, [("line", np.array([[0, 1], [1, 2], [2, 3]]))])
    assert exact(field(mesh, "distance:boundary"), np.array([0, 1, 3, 0.0]))
    mesh = on_cells(mesh, wire=np.array([0, 1, 0]))
    assert exact(field(mesh, "distance:wire"), np.array([1, 0, 0, 4.0]))


def test_distance_to_an_empty_part_is_refused():
    mesh = marked(square(2), outlet=np.zeros(9))
    with pytest.raises(
        MeshError, match=r"'distance:outlet': part 'outlet' is empty.*indicator:outlet"
    ):
        derived_field(mesh, "distance:outlet", "points")


# --- normals of the boundary ----------------------------------------------------------------------


def test_normals_of_a_square():
    mesh = square(4)
    x, y, _ = mesh.points.T
    sides = np.c_[(x == 1.0) * 1 - (x == 0), (y == 1.0) * 1 - (y == 0)]
    length = np.linalg.norm(sides, axis=1, keepdims=True)
    expected = np.divide(sides, length, out=np.zeros((25, 2)), where=length > 0)
    assert exact(field(flat(mesh), "normal:boundary"), expected)
    assert exact(field(mesh, "normal:boundary"), np.c_[expected, np.zeros(25)])
    left = np.where(x[:, None] == 0, [[-1.0, 0, 0]], 0)
    assert exact(field(marked(mesh, left=x == 0), "normal:left"), left)


def test_normals_of_a_graded_square_lean_to_the_longer_facet():
    mesh = flat(square(4, grade=2.0))
    h = mesh.points[5, 0]
    corner = -np.array([0.25, h]) / hypot(0.25, h)
    assert exact(field(mesh, "normal:boundary")[0], corner)


def test_normals_of_a_disc_of_order_two():
    errors = []
    for n in (16, 32, 64):
        mesh = disc(n)
        found, x = field(mesh, "normal:boundary"), mesh.points
        on = boundary_weights(mesh) > 0
        np.testing.assert_array_equal(found[~on], 0)
        errors.append(np.abs(found - x)[on].max())
    assert all(log2(coarse / fine) > 1.9 for coarse, fine in pairwise(errors))
    assert errors[-1] < 1e-3


def test_normals_of_a_box_turned_in_space():
    mesh = bricks(3)
    sides = (mesh.points == 1) * 1.0 - (mesh.points == 0)
    length = np.linalg.norm(sides, axis=1, keepdims=True)
    expected = np.divide(sides, length, out=np.zeros_like(sides), where=length > 0)
    moved, q = turned(mesh)
    assert (
        difference(field(moved, "normal:boundary"), expected @ q.T) < 1e-11
    )  # a frame of rounding


@pytest.mark.parametrize("kind", [*PLANE, *SOLID])
@pytest.mark.parametrize("flip", [False, True])
def test_normals_of_each_face_of_a_sheared_box(kind, flip):
    """Of every kind of cell, also where each second cell runs the other way."""
    mesh = read_mesh(FOLDER / f"{kind}.vtu")
    if flip and kind in MIRRORED:
        mesh.cells[0].data[::2] = mesh.cells[0].data[::2][:, MIRRORED[kind]]
    d = 2 if kind in PLANE else 3
    shear = BOX[:d, :d]
    unit = mesh.points[:, :d] @ np.linalg.inv(shear).T
    normals = np.linalg.inv(shear).T / np.linalg.norm(np.linalg.inv(shear), axis=1)
    for axis, (side, end) in product(range(d), ((-1, 0), (1, None))):
        end = unit[:, axis].max() if end is None else end
        on = np.abs(unit[:, axis] - end) < 1e-6
        one = marked(mesh, face=on)
        expected = np.zeros((len(unit), 3))
        expected[on, :d] = side * normals[:, axis]
        assert difference(field(one, "normal:face"), expected) < 1e-6  # the files are float32


@pytest.mark.parametrize("kind", [*PLANE, *SOLID, "polygon", "mixed_solid", "orphan_inverted"])
def test_divergence_theorem(kind):
    """Over a closed boundary ∫ n = 0, and on linear cells ∫ n · x = d |Ω|."""
    mesh = read_mesh(FOLDER / f"{kind}.vtu")
    integrals = normal_integrals(mesh, "boundary")
    assert small(integrals[:, :3].sum(axis=0))
    assert exact(integrals[:, 3].sum(), boundary_weights(mesh).sum())
    if not kind[-1].isdigit():
        d = TOPOLOGICAL_DIMENSION[blocks(mesh)[-1][0]]
        flux = (integrals[:, :3] * mesh.points).sum()
        assert exact(flux, d * cell_weights(mesh.points, blocks(mesh))[1].sum())


def test_inverted_and_mixed_cells_do_not_turn_normals():
    mesh = read_mesh(FOLDER / "mixed_plane.vtu")
    before = field(mesh, "normal:boundary")
    for block in mesh.cells:
        if block.type in MIRRORED:
            block.data[:] = block.data[:, MIRRORED[block.type]]
    assert exact(field(mesh, "normal:boundary"), before)
    assert (np.linalg.norm(before, axis=1) > 0.9).sum() == (boundary_weights(mesh) > 0).sum()


def test_polyhedra_with_faces_that_run_inward():
    cube = bricks(1)
    faces = np.array(
        [[0, 4, 7, 3], [1, 2, 6, 5], [0, 1, 5, 4], [3, 7, 6, 2], [0, 3, 2, 1], [4, 5, 6, 7]]
    )
    order = cube.cells[0].data[0]
    for rows in (faces, faces[:, ::-1]):
        mesh = meshio.Mesh(cube.points, [("polyhedron", [[order[face] for face in rows]])])
        expected = (cube.points - 0.5) * 2 / np.sqrt(3)
        assert exact(field(mesh, "normal:boundary"), expected)


def test_a_notched_polygon():
    """Its centre does not see all of its sides."""
    ring = np.array([[0, 0], [4, 0], [4, 4], [3, 4], [3, 1], [1, 1], [1, 4], [0, 4]], float)
    for nodes in (np.arange(8), np.arange(8)[::-1]):
        mesh = meshio.Mesh(ring, [("polygon", nodes[None])])
        integrals = normal_integrals(mesh, "boundary")
        assert exact((integrals[:, :2] * ring).sum(), 2 * 10.0)
        inner = field(mesh, "normal:boundary")[[4, 5]]
        assert exact(inner, np.array([[-3, 2], [3, 2]]) / np.sqrt(13))


@pytest.mark.parametrize("seed", range(3))
def test_cells_of_a_part_may_run_either_way(seed):
    mesh, rng = square(4), np.random.default_rng(seed)
    [(kind, lines)] = boundary(blocks(mesh))
    some = rng.random(len(lines)) < 0.5
    lines = np.where(some[:, None], lines[:, ::-1], lines)
    with_lines = meshio.Mesh(mesh.points, [(kind, lines), *mesh.cells])
    with_lines = on_cells(with_lines, wall=np.arange(len(lines) + 32) < len(lines))
    assert exact(field(with_lines, "normal:wall"), field(mesh, "normal:boundary"))


def test_a_quad_of_the_boundary_given_as_triangles():
    cube = bricks(1)
    base = [k for k, x in enumerate(cube.points) if x[2] == 0]
    a, b, c, d = (base[k] for k in (0, 1, 3, 2))
    mesh = meshio.Mesh(cube.points, [("triangle", np.array([[a, b, c], [a, c, d]])), *cube.cells])
    mesh = on_cells(mesh, wall=np.array([1, 1, 0]))
    expected = np.where(cube.points[:, 2:] == 0, [[0.0, 0, -1]], 0)
    assert exact(field(mesh, "normal:wall"), expected)


def test_normals_that_cancel_are_zero():
    """Three triangles that meet in one node, where their normals add up to rounding."""
    t = 2 * pi * np.arange(6) / 6
    points = np.vstack([[[0, 0]], np.stack([np.cos(t), np.sin(t)], axis=1)])
    mesh = meshio.Mesh(points, [("triangle", np.array([[0, 1, 2], [0, 3, 4], [0, 5, 6]]))])
    assert normal_integrals(mesh, "boundary")[0, :2].any()
    found = field(mesh, "normal:boundary")
    np.testing.assert_array_equal(found[0], [0, 0])
    assert exact(np.linalg.norm(found[1:], axis=1), np.ones(6))


def test_normals_of_the_ends_of_an_interval():
    mesh = meshio.Mesh([[0.0], [1], [3]], [("line", np.array([[1, 0], [1, 2]]))])
    assert exact(field(mesh, "normal:boundary"), np.array([-1, 0, 1.0]))


def test_normals_at_cells_are_moved_by_the_measure():
    mesh = square(4)
    nodal = field(mesh, "normal:boundary")
    expected = read_field(with_fields(mesh, point_data={"n": nodal}), "n", "cells")
    assert exact(field(mesh, "normal:boundary", "cells"), expected)
    assert np.abs(expected).max() > 0.5


def test_an_empty_part_has_no_normals():
    mesh = marked(square(2), outlet=np.zeros(9))
    np.testing.assert_array_equal(field(mesh, "normal:outlet"), np.zeros((9, 3)))


def test_facets_inside_have_no_outward_normal():
    mesh = square(4)
    lines = np.array([[0, 1], [12, 13], [13, 14]])
    mesh = on_cells(
        meshio.Mesh(mesh.points, [("line", lines), *mesh.cells]), wall=np.arange(35) < 3
    )
    with pytest.raises(MeshError, match=r"'normal:wall': 2 of the 3 facets .* nodes \[12, 13\]"):
        derived_field(mesh, "normal:wall", "points")


def test_a_part_of_another_dimension_has_no_normal():
    mesh = on_cells(square(2), fluid=np.ones(8))
    with pytest.raises(
        MeshError, match=r"'normal:fluid': part 'fluid' has cells of dimension 2.* 1"
    ):
        derived_field(mesh, "normal:fluid", "points")


# --- conormals ------------------------------------------------------------------------------------


def zone(n: int, kind: str) -> meshio.Mesh:
    """The unit sphere from the equator to a latitude of one, turned eastward, in quads."""
    m = 1 if kind == "quad" else 2
    lat, lon = np.linspace(0, 1, n * m + 1), np.linspace(0, 2 * pi, 4 * n * m + 1)[:-1]
    b, a = (grid.ravel() for grid in np.meshgrid(lat, lon, indexing="ij"))
    points = np.stack([np.cos(b) * np.cos(a), np.cos(b) * np.sin(a), np.sin(b)], axis=1)
    k = np.arange(len(points)).reshape(len(lat), -1)
    k = np.concatenate([k, k[:, :1]], axis=1)
    steps = {"quad": [(0, 0), (0, 1), (1, 1), (1, 0)]}.get(
        kind, [(0, 0), (0, 2), (2, 2), (2, 0), (0, 1), (1, 2), (2, 1), (1, 0), (1, 1)]
    )
    cells = [k[i : i + n * m : m, j : j + 4 * n * m : m].ravel() for i, j in steps]
    return meshio.Mesh(points, [(kind, np.stack(cells, axis=1))])


@pytest.mark.parametrize(("kind", "order"), [("quad", 0.9), ("quad9", 1.9)])
def test_conormals_are_tangent_to_the_surface(kind, order):
    """At the equator that is down; by plane cells to first order, by curved ones to second."""
    errors = []
    for n in (4, 8, 16):
        mesh = zone(n, kind)
        found = field(mesh, "normal:boundary")[np.abs(mesh.points[:, 2]) < 1e-12]
        errors.append(np.linalg.norm(found - [0, 0, -1], axis=1).max())
    assert all(log2(coarse / fine) > order for coarse, fine in pairwise(errors))
    assert errors[-1] < 0.04


def test_conormals_of_a_tube_and_of_a_curve():
    t = 2 * pi * np.arange(8) / 8
    ring = np.stack([np.cos(t), np.sin(t), 0 * t], axis=1)
    points = np.vstack([ring, ring + np.array([0, 0, 2])])
    k = np.arange(8)
    quads = np.stack([k, (k + 1) % 8, 8 + (k + 1) % 8, 8 + k], axis=1)
    quads[::3] = quads[::3, ::-1]  # conormals do not care
    found = field(meshio.Mesh(points, [("quad", quads)]), "normal:boundary")
    assert exact(found, np.repeat([[0.0, 0, -1], [0, 0, 1]], 8, axis=0))
    helix = read_mesh(FOLDER / "helix.vtu")
    found = field(helix, "normal:boundary")
    ends = np.flatnonzero(np.linalg.norm(found, axis=1))
    first, last = helix.points[1] - helix.points[0], helix.points[-1] - helix.points[-2]
    assert ends.tolist() == [0, 24]
    assert exact(
        found[ends], np.stack([-first, last]) / np.linalg.norm([first, last], axis=1)[:, None]
    )


# --- normals of the mesh --------------------------------------------------------------------------


def sphere(levels: int) -> meshio.Mesh:
    """An octahedron, refined and brought to the unit sphere."""
    corners = np.array([[1, 0, 0], [0, 1, 0], [-1, 0, 0], [0, -1, 0], [0, 0, 1], [0, 0, -1]], float)
    cells = [[0, 1, 4], [1, 2, 4], [2, 3, 4], [3, 0, 4], [1, 0, 5], [2, 1, 5], [3, 2, 5], [0, 3, 5]]
    x = corners[np.array(cells)]
    for _ in range(levels):
        a, b, c = x.swapaxes(0, 1)
        ab, bc, ca = (
            (p + q) / np.linalg.norm(p + q, axis=1)[:, None] for p, q in ((a, b), (b, c), (c, a))
        )
        x = np.concatenate(
            [np.stack(s, axis=1) for s in ((a, ab, ca), (ab, b, bc), (ca, bc, c), (ab, bc, ca))]
        )
    points, index = np.unique(x.reshape(-1, 3).round(12), axis=0, return_inverse=True)
    return meshio.Mesh(points, [("triangle", index.reshape(-1, 3))])


def test_normals_of_a_sphere_are_radial():
    errors = []
    for levels in (2, 3, 4):
        mesh = sphere(levels)
        errors.append(np.linalg.norm(field(mesh, "normal:mesh") - mesh.points, axis=1).max())
        at_cells, c = field(mesh, "normal:mesh", "cells"), centroids(mesh)
        assert exact(np.linalg.norm(at_cells, axis=1), np.ones(len(c)))
        assert ((at_cells * c).sum(axis=1) > 0.9).all()
    assert all(log2(coarse / fine) > 0.9 for coarse, fine in pairwise(errors))
    assert errors[-1] < 0.03


def test_normals_of_a_plane_and_of_a_circle():
    mesh = square(3)
    for at, n in (("points", 16), ("cells", 18)):
        assert exact(field(mesh, "normal:mesh", at), np.tile([0.0, 0, 1], (n, 1)))
    t = 2 * pi * np.arange(12) / 12
    ring = np.stack([np.cos(t), np.sin(t)], axis=1)
    circle = meshio.Mesh(
        ring, [("line", np.stack([np.arange(12), np.roll(np.arange(12), -1)], axis=1))]
    )
    assert exact(field(circle, "normal:mesh"), ring)
    c = centroids(circle)
    assert exact(field(circle, "normal:mesh", "cells"), c / np.linalg.norm(c, axis=1)[:, None])


@pytest.mark.parametrize("kind", ["quad8", "quad9", "triangle6", "polygon"])
def test_normals_of_curved_and_polygonal_surfaces(kind):
    mesh = read_mesh(FOLDER / f"{kind}.vtu")
    assert exact(field(mesh, "normal:mesh"), np.tile([0.0, 0, 1], (len(mesh.points), 1)))


def test_cells_that_run_against_each_other_are_refused():
    mesh = square(3)
    mesh.cells[0].data[4] = mesh.cells[0].data[4][::-1]
    with pytest.raises(
        MeshError, match=r"'normal:mesh': cells .*\b4\b.* oriented against each other"
    ):
        derived_field(mesh, "normal:mesh", "cells")
    curve = meshio.Mesh(np.eye(3)[:, :2], [("line", np.array([[0, 1], [2, 1]]))])
    with pytest.raises(MeshError, match="cells 0 and 1 are neighbours"):
        derived_field(curve, "normal:mesh", "points")


@pytest.mark.parametrize("mesh", [flat(square(2)), bricks(1), read_mesh(FOLDER / "helix.vtu")])
def test_only_what_is_one_dimension_less_than_its_space_has_a_normal(mesh):
    with pytest.raises(
        MeshError, match=r"'normal:mesh': cells of dimension .* take the name of a part"
    ):
        derived_field(mesh, "normal:mesh", "points")


# --- indicators -----------------------------------------------------------------------------------


def test_indicators():
    mesh = square(4)
    right = centroids(mesh)[:, 0] > 0.5
    mesh = on_cells(marked(mesh, left=mesh.points[:, 0] == 0), right=right)
    np.testing.assert_array_equal(field(mesh, "indicator:boundary"), on_edge(mesh))
    np.testing.assert_array_equal(field(mesh, "indicator:left"), part_weights(mesh, "left") > 0)
    np.testing.assert_array_equal(field(mesh, "indicator:right"), mesh.points[:, 0] >= 0.5)
    np.testing.assert_array_equal(field(mesh, "indicator:right", "cells"), right)
    touching = (mesh.points[mesh.cells[0].data, 0] == 0).any(axis=1)
    np.testing.assert_array_equal(field(mesh, "indicator:left", "cells"), touching)
    empty = marked(mesh, outlet=np.zeros(25))
    for at in ("points", "cells"):
        assert not field(empty, "indicator:outlet", at).any()
