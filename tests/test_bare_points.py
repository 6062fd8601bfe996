"""Weights of bare points against known measures, by all rules; more in test_quadrature.py."""

from __future__ import annotations

from itertools import product
from math import pi, sqrt

import numpy as np
import pytest
import torch
from scipy.spatial import Delaunay, KDTree
from tolerances import ROUNDING

from opformer.quadrature import point_weights
from opformer.testing import observed_order

TIGHT = ROUNDING[torch.float64]
UNIT = {k: np.array([[0.0] * k, [1.0] * k]) for k in (1, 2, 3)}
RULES = ("voronoi", "interval", "delaunay", "knn")


def rng(seed=0):
    return np.random.default_rng(seed)


def turn(k, seed=0):
    """A rotation of k-dimensional space."""
    return np.linalg.qr(rng(seed).normal(size=(k, k)))[0]


def lattice(*axes):
    return np.array(list(product(*axes)))


def trapezoidal(*axes):
    """Weights of the lattice's points: products of half the distances of the neighbours."""
    weights = [np.convolve(np.diff(t), [0.5, 0.5]) for t in axes]
    return np.array([np.prod(w) for w in product(*weights)])


def voronoi(points, bounds=None):
    return point_weights(points, "voronoi", bounds=bounds)


# ---- Voronoi cells


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("grade", [1, 4])
@pytest.mark.parametrize("in_box", [True, False])
def test_voronoi_weights_are_the_shares_of_what_is_nearest(k, grade, in_box):
    """Against a count of random places by their nearest point, within 5 standard deviations."""
    points = rng(k).random((25, k)) ** grade
    bounds = UNIT[k] * 1.5 - 0.25 if in_box else None
    weights = voronoi(points, bounds)
    low, high = bounds if in_box else UNIT[k]
    places = low + (high - low) * rng(1).random((400_000, k))
    if not in_box and k == 1:
        places = places[(places > points.min()) & (places < points.max())][:, None]
    elif not in_box:
        places = places[Delaunay(points).find_simplex(places) >= 0]
    share = np.bincount(KDTree(points).query(places)[1], minlength=25) / 400_000
    spread = np.sqrt(share * (1 - share) / 400_000) + 1e-5
    assert (np.abs(weights / np.prod(high - low) - share) < 5 * spread).all()


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("box", [True, False])
def test_nodes_of_a_lattice_have_the_trapezoidal_weights(k, box):
    axes = [np.linspace(0, 1, 7) ** grade for grade in (1, 2, 3)[:k]]
    points = lattice(*axes)
    weights = voronoi(points, UNIT[k] if box else None)
    np.testing.assert_allclose(weights, trapezoidal(*axes), rtol=1e-11)  # down to 1e-5 of the sum


@pytest.mark.parametrize("k", [1, 2, 3])
def test_centres_of_a_lattice_weigh_the_same(k):
    points = lattice(*[(np.arange(8) + 0.5) / 8] * k)
    np.testing.assert_allclose(voronoi(points, UNIT[k]), 8.0**-k, rtol=TIGHT)


def test_hexagons():
    """Cells inside a triangular lattice of spacing 1 have the area sqrt(3) / 2, also turned."""
    points = np.array([[i + j / 2, j * sqrt(3) / 2] for i, j in product(range(9), repeat=2)])
    weights = voronoi(points @ turn(2)).reshape(9, 9)
    np.testing.assert_allclose(weights[1:-1, 1:-1], sqrt(3) / 2, rtol=1e-11)
    assert weights.sum() == pytest.approx(64 * sqrt(3) / 2, rel=TIGHT, abs=0)


def test_truncated_octahedra():
    """Cells inside a body-centred cubic lattice of spacing 1 have the volume 1/2."""
    corners = lattice(*[np.arange(6.0)] * 3)
    points = np.vstack([corners, corners[(corners < 5).all(axis=1)] + 0.5])
    weights = voronoi(points)
    inside = ((points > 0.9) & (points < 4.1)).all(axis=1)
    np.testing.assert_allclose(weights[inside], 0.5, rtol=1e-11)
    assert weights.sum() == pytest.approx(125, rel=TIGHT, abs=0)


CLOUDS = {
    "random": lambda k: rng().random((300, k)),
    "graded": lambda k: rng().random((300, k)) ** 5,
    "one": lambda k: rng().random((1, k)),
    "two": lambda k: rng().random((2, k)),
    "three": lambda k: rng().random((3, k)),
    "copies of one": lambda k: np.full((7, k), 0.3),
    "a corner": lambda k: np.zeros((1, k)),
    "on a line": lambda k: np.outer(rng().random(20), np.ones(k)),
    "on an edge": lambda k: np.outer(rng().random(20), np.eye(k)[0]),
    "on the boundary": lambda k: np.vstack([lattice(*[[0.0, 0.5, 1.0]] * k)]),
    "on a circle": lambda k: np.column_stack(
        [0.5 + 0.5 * np.cos(np.arange(50)), 0.5 + 0.5 * np.sin(np.arange(50)), np.full(50, 0.5)]
    )[:, :k],
    "a crowd": lambda k: np.vstack([rng().random((100, k)), 0.4 + 1e-9 * rng(1).random((100, k))]),
    "boundary layer": lambda k: lattice(
        *[np.linspace(0, 1, 5)] * (k - 1), np.geomspace(1e-5, 1, 30)
    ),
}


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("cloud", CLOUDS)
def test_the_total_is_the_measure_of_the_box(cloud, k):
    points = CLOUDS[cloud](k)
    for scale, shift in ((1.0, 0.0), (1e-6, 0.0), (1e6, 3e6)):
        bounds = scale * UNIT[k] + shift
        weights = voronoi(np.clip(scale * points + shift, *bounds), bounds)
        assert weights.min() > 0
        assert weights.sum() == pytest.approx(np.prod(np.diff(bounds, axis=0)), rel=TIGHT, abs=0)


@pytest.mark.parametrize("rule", ["voronoi", "delaunay"])
@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("cloud", ["random", "graded", "a crowd", "boundary layer"])
def test_the_total_is_the_measure_of_the_hull(cloud, k, rule):
    corners = lattice(*[[0.0, 1.0]] * k)
    points = np.vstack([CLOUDS[cloud](k), corners]) @ turn(k)
    weights = point_weights(points, rule)
    assert weights.min() > 0
    assert weights.sum() == pytest.approx(1, rel=TIGHT, abs=0)


@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("box", [True, False])
def test_a_crowd_that_qhull_cannot_tell_apart_weighs_what_one_point_does(k, box):
    points, bounds = rng().random((100, k)), UNIT[k] if box else None
    alone = voronoi(points, bounds)
    for size in (1e-8, 1e-9, 1e-10, 1e-13):
        crowd = points[40] + size * rng(1).random((50, k))
        weights = voronoi(np.vstack([points, crowd]), bounds)
        assert weights[40] + weights[100:].sum() == pytest.approx(alone[40], rel=1e-6, abs=0)
        np.testing.assert_allclose(np.delete(weights[:100], 40), np.delete(alone, 40), rtol=1e-6)


@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("grade", [1, 2])
def test_integrals_converge(k, grade):
    """Order 2 in the root mean square over 8 clouds.

    Errors of the cells are of order 1 and independent, but at the boundary, a share h of all, where
    the points lie on one side of their cells.
    """
    exact = (np.e - 1) ** k
    sizes, errors = {2: (100, 1600), 3: (40, 1000)}[k], []
    for n in sizes:
        clouds = [rng(seed).random((n, k)) ** grade for seed in range(8)]
        found = [voronoi(x, UNIT[k]) @ np.exp(x.sum(axis=1)) for x in clouds]
        errors.append(np.sqrt(np.mean((np.array(found) / exact - 1) ** 2)))
    observed_order([n ** (-1 / k) for n in sizes], errors, at_least=1.8)
    assert errors[-1] < {2: 2e-3, 3: 2e-2}[k]


@pytest.mark.parametrize("k", [1, 2, 3])
def test_box_axes_without_extent_do_not_count(k):
    points = rng().random((20, k))
    flat = np.column_stack([points, np.full(20, 7.0)])
    bounds = np.column_stack([UNIT[k], [7.0, 7.0]])
    np.testing.assert_allclose(voronoi(flat, bounds), voronoi(points, UNIT[k]), rtol=1e-9)


def test_two_points_on_a_line():
    """The interval rule, and the ends of the box."""
    np.testing.assert_allclose(voronoi([1.0, 4.0]), [1.5, 1.5], rtol=TIGHT)
    np.testing.assert_allclose(voronoi([4.0, 1.0], [[0.0], [9.0]]), [6.5, 2.5], rtol=TIGHT)
    np.testing.assert_allclose(voronoi([2.0, 2.0], [[0.0], [9.0]]), [4.5, 4.5], rtol=TIGHT)


def test_rounding_puts_no_point_out_of_the_box():
    points = np.array([[0.1, 0.2], [0.1, 0.7], [0.0, 0.7]], np.float32)  # 0.1 is 0.10000000149
    assert voronoi(points, [[0.0, 0.0], [0.1, 0.7]]).sum() == pytest.approx(0.07, rel=TIGHT, abs=0)


BOXES = {
    "out": ([[0, 0], [1, 2]], r"must hold the points: point 1 is at \[2.0, 1.0\] \(2 such"),
    "upside down": ([[0, 0], [9, -9]], r"lower and the upper corner of a box, \(2, 2\)"),
    "a number": (1.0, "lower and the upper corner"),
    "of another space": ([[0, 0, 0], [9, 9, 9]], "lower and the upper corner"),
    "infinite": ([[0, 0], [9, np.inf]], "lower and the upper corner"),
}


@pytest.mark.parametrize("case", BOXES)
def test_boxes_that_are_none(case):
    bounds, message = BOXES[case]
    with pytest.raises(ValueError, match=message):
        voronoi([[0.0, 0], [2, 1], [0, 3]], bounds)


@pytest.mark.parametrize("rule", ["interval", "delaunay", "knn"])
def test_bounds_are_for_voronoi(rule):
    with pytest.raises(ValueError, match="bounds is an option of rule 'voronoi'"):
        point_weights([0.0, 1.0], rule, bounds=[[0.0], [1.0]])


# ---- all rules


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("d", [1, 2, 3])
def test_lines_in_any_direction(rule, d):
    """Length 2, of three points and of thirty, tiny and far away."""
    for n, (scale, shift) in product((3, 30), ((1, 0), (1e-6, 0), (1e-6, 1e6), (1e6, -1e6))):
        t = np.linspace(0, 2, n) ** 2 / 2
        points = shift + scale * np.outer(t, turn(d)[0])
        # At 1e6, coordinates of 1e-6 are known to 1e-4 only.
        tolerance = 2 * scale * (1e-3 if shift > 0 else 1e-9)
        if rule == "knn":
            near = KDTree(t[:, None]).query(t[:, None], [2])[0][:, 0]
            weights = point_weights(points, rule, neighbors=1)
            np.testing.assert_allclose(weights, 2 * scale * near, rtol=0, atol=tolerance)
        else:
            weights = point_weights(points, rule)
            np.testing.assert_allclose(weights, scale * trapezoidal(t), rtol=0, atol=tolerance)


@pytest.mark.parametrize("rule", ["voronoi", "delaunay"])
@pytest.mark.parametrize("seed", [0, 1])
def test_planes_in_any_direction(rule, seed):
    t = np.linspace(0, 1, 6)
    flat = np.column_stack([lattice(t, 3 * t), np.zeros(36)])
    for scale, shift, tolerance in ((1, 0, 1e-9), (1e-6, 0, 1e-9), (1e-6, 1e6, 1e-3)):
        weights = point_weights(shift + scale * flat @ turn(3, seed), rule)
        assert weights.min() > 0
        assert weights.sum() == pytest.approx(3 * scale**2, rel=tolerance, abs=0)
        if rule == "voronoi":
            np.testing.assert_allclose(
                weights, scale**2 * trapezoidal(t, 3 * t), rtol=0, atol=tolerance * scale**2
            )


@pytest.mark.parametrize("rule", ["voronoi", "delaunay"])
def test_a_tiny_cloud_far_away_keeps_its_volume(rule):
    t = np.linspace(0, 1, 5)
    for k in (2, 3):
        weights = point_weights(1e6 + 1e-6 * lattice(*[t] * k), rule)
        assert weights.min() > 0
        assert weights.sum() == pytest.approx(
            1e-6**k, rel=1e-3, abs=0
        )  # coordinates are known to 1e-4


@pytest.mark.parametrize("rule", RULES)
def test_few_points(rule):
    assert point_weights([[3.0, 4.0]], rule).tolist() == [1]
    assert point_weights([[3.0, 4.0]] * 4, rule).tolist() == [0.25] * 4
    np.testing.assert_allclose(
        point_weights([[0.0, 0, 0], [1, 2, 2]], rule), 6 if rule == "knn" else 1.5
    )


def test_three_points_are_a_triangle():
    """Of a right angle: the legs' bisectors meet on the hypotenuse, and quarters are cut off."""
    triangle = [[0.0, 0, 5], [2, 0, 5], [0, 2, 5]]
    np.testing.assert_allclose(point_weights(triangle, "delaunay"), 2 / 3, rtol=TIGHT)
    np.testing.assert_allclose(point_weights(triangle, "voronoi"), [1, 0.5, 0.5], rtol=TIGHT)
    # Each end of the base has the triangle (-2, 0), (-3/4, 0), (-1, 1/2) or its mirror image.
    obtuse = [[-2.0, 0], [2, 0], [0, 1]]
    np.testing.assert_allclose(
        point_weights(obtuse, "voronoi"), [0.3125, 0.3125, 1.375], rtol=TIGHT
    )


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_points_that_are_nowhere(rule, value):
    with pytest.raises(ValueError, match=r"must be finite, got \[.*\] at point 2"):
        point_weights([[0.0], [1.0], [value], [value]], rule)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("d", [1, 2, 3])
def test_copies_share(rule, d):
    points = rng(d).random((40, 1 if rule == "interval" else d))
    weights = point_weights(points, rule)
    copied = point_weights(np.vstack([points[[9, 9]], points]), rule)
    np.testing.assert_allclose(copied[[0, 1, 11]], weights[9] / 3, rtol=1e-11)
    np.testing.assert_allclose(np.delete(copied, [0, 1, 11]), np.delete(weights, 9), rtol=1e-11)


@pytest.mark.parametrize("rule", RULES)
def test_float32_lines_far_away(rule):
    """In float64 the rounding errors of these coordinates would be taken for a second dimension."""
    t = np.linspace(0, 1, 33)
    points = (np.outer(t, [2.0, 1.0]) + np.array([1000, 300])).astype(np.float32)
    weights = point_weights(points, rule, **({"neighbors": 2} if rule == "knn" else {}))
    # For "knn" the ends have their second neighbour at 2 h, and count four halves of h.
    length = sqrt(5) * (35 / 32 if rule == "knn" else 1)
    assert weights.sum() == pytest.approx(length, rel=2e-4)  # 1000 has an error of 3e-5
    assert weights.dtype == np.float64


@pytest.mark.parametrize("rule", ["voronoi", "delaunay", "knn"])
@pytest.mark.parametrize("k", [2, 3])
def test_a_closed_curve_or_surface_is_asked_about(rule, k):
    points = rng().normal(size=(200, k))
    points *= np.arange(1, k + 1) / np.linalg.norm(points, axis=1, keepdims=True)  # an ellipsoid
    what = {2: "curve", 3: "surface"}[k]
    with pytest.raises(
        ValueError, match=rf"all 200 points are corners.*closed {what}.*dim={k - 1}"
    ):
        point_weights(points, rule)
    point_weights(np.vstack([points, points[:1] / 2]), rule)  # one within
    point_weights(points, "knn", dim=k)
    assert voronoi(points, [[-3] * k, [3] * k]).sum() == pytest.approx(6**k, rel=TIGHT, abs=0)


def test_what_qhull_cannot_resolve_is_refused():
    t = np.linspace(0, 1, 8)
    points = lattice(t, t, np.append(0, 1e-8 * 1.5 ** np.arange(46)))
    with pytest.raises(ValueError, match=r"rule 'voronoi' cannot resolve these 3008 points.*'knn'"):
        voronoi(points)


# ---- samples of curves and surfaces in space


def helix(t):
    return np.column_stack([np.cos(4 * pi * t), np.sin(4 * pi * t), t])


HELIX = sqrt(1 + 16 * pi**2)


@pytest.mark.parametrize("sample", ["even", "random", "graded"])
def test_knn_of_a_helix(sample):
    """The length within 2.5 % at 800 points, 1 % at 3200: chords, ends and the spread."""
    for n, tolerance in ((800, 2.5e-2), (3200, 1e-2)):
        t = {"even": np.linspace(0, 1, n), "random": rng().random(n)}.get(sample)
        t = np.linspace(0, 1, n) ** 2 if t is None else t
        weights = point_weights(helix(t), "knn", dim=1)
        assert weights.sum() == pytest.approx(HELIX, rel=tolerance, abs=0)
        assert weights @ t == pytest.approx(HELIX / 2, rel=2 * tolerance)


def torus(a, b):
    return np.column_stack(
        [(1 + 0.4 * np.cos(b)) * np.cos(a), (1 + 0.4 * np.cos(b)) * np.sin(a), 0.4 * np.sin(b)]
    )


def test_knn_of_a_torus():
    """Points even in the angles, that is crowded inside; area and the mean of cos b, r / 2 R."""
    for n, tolerance in ((2000, 3e-2), (32000, 3e-3)):
        a, b = 2 * pi * rng().random((2, n))
        weights = point_weights(torus(a, b), "knn", dim=2)
        assert weights.sum() == pytest.approx(4 * pi**2 * 0.4, rel=tolerance, abs=0)
        assert np.average(np.cos(b), weights=weights) == pytest.approx(0.2, rel=2 * tolerance)


def test_knn_of_a_graded_sphere():
    """Density (1 + z) / 4 pi: the mean of z is 1/3 of the points, and 0 of the sphere."""
    means = []
    for n in (2000, 32000):
        z, a = 2 * np.sqrt(rng().random(n)) - 1, 2 * pi * rng(1).random(n)
        r = np.sqrt(1 - z**2)
        weights = point_weights(np.column_stack([r * np.cos(a), r * np.sin(a), z]), "knn", dim=2)
        assert z.mean() == pytest.approx(1 / 3, abs=0.02)
        means.append(np.average(z, weights=weights))
    assert abs(means[0]) < 0.1
    assert abs(means[1]) < 0.02


# What the docstring of `point_weights` says of regular samples.
LATTICES = {
    "line": (lattice(np.arange(101.0)), 1, 0.0),
    "square": (lattice(*[np.arange(31.0)] * 2), 1, -0.02),
    "hexagonal": (
        np.array([[i + j % 2 / 2, j * sqrt(3) / 2] for i, j in product(range(31), repeat=2)]),
        sqrt(3) / 2,
        -0.09,
    ),
    "cubic": (lattice(*[np.arange(13.0)] * 3), 1, -0.26),
}


@pytest.mark.parametrize("name", LATTICES)
def test_knn_of_lattices_is_off_by_a_constant(name):
    points, cell, bias = LATTICES[name]
    middle = (np.abs(points - points.mean(axis=0)) < 0.2 * np.ptp(points, axis=0)).all(axis=1)
    weights = point_weights(points, "knn")[middle]
    np.testing.assert_allclose(weights, weights[0], rtol=1e-9)
    assert weights[0] / cell - 1 == pytest.approx(bias, abs=0.006)


def test_knn_at_edges_and_corners():
    """Half and a quarter of the ball are within: twice and four times the weight."""
    n = 41
    weights = point_weights(lattice(*[np.arange(n)] * 2), "knn", neighbors=200).reshape(n, n)
    middle = weights[n // 2, n // 2]
    assert weights[0, n // 2] / middle == pytest.approx(2, rel=0.1)
    assert weights[0, 0] / middle == pytest.approx(4, rel=0.15)
