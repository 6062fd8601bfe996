"""Equal rows and near points, against comparing all with all."""

from __future__ import annotations

import numpy as np
import pytest

from opformer._grouping import equal_rows, maybe_near, packed


def same_groups(a, b):
    return len(np.unique(np.stack([a, b]), axis=1).T) == len(np.unique(a)) == len(np.unique(b))


@pytest.mark.parametrize("count", [0, 1, 2, 1000, 40000])
@pytest.mark.parametrize("columns", [1, 3, 5])
@pytest.mark.parametrize("base", [3, 2**16, 2**33])
def test_equal_rows_have_one_number(count, columns, base):
    """Of 64 bits a row of these fills one word or several; the hashes of many collide."""
    rng = np.random.default_rng(count + columns)
    few = rng.integers(0, base, (count // 3 + 1, columns))
    rows = few[rng.integers(0, len(few), count)]
    words = packed(list(rows.T), base)
    assert len(words) == {3: 1, 2**16: -(-columns // 3), 2**33: columns}[base]
    leaders = equal_rows(words)
    assert leaders.shape == (count,)
    np.testing.assert_array_equal(rows[leaders], rows)
    if count:
        expected = np.unique(rows, axis=0, return_inverse=True)[1].ravel()
        assert same_groups(leaders, expected)


def test_rows_that_differ_in_one_word_only():
    a = np.repeat(np.arange(200), 200)
    b = np.tile(np.arange(200), 200)
    assert len(np.unique(equal_rows([a, b]))) == 200**2
    assert len(np.unique(equal_rows([a, a]))) == 200


@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.parametrize(
    ("shift", "away", "radius"),
    [(0.0, 0.0, 0.0), (0.0, 0.0, 1e-6), (1e6, 0.0, 1e-6), (0.0, 1e9, 2e-7)],
)
def test_whatever_is_near_may_be_near(dim, shift, away, radius):
    """In the last case points at 1e9 differ in the last digit, as the projections do anyway."""
    rng = np.random.default_rng(dim)
    points = rng.random((300, dim)) + shift
    points[150:] += away
    copies = points[rng.integers(0, 300, 60)]
    moved = points[rng.integers(0, 300, 60)] + rng.uniform(-2, 2, (60, dim)) * radius
    points = np.concatenate([points, copies, moved])[rng.permutation(420)]
    distance = np.linalg.norm(points[:, None] - points, axis=-1) + np.diag(np.full(420, np.inf))
    near = np.flatnonzero((distance <= radius).any(axis=1))
    found = maybe_near(points, radius)
    assert len(near) >= 60
    assert np.isin(near, found).all()
    assert len(found) < 300, "most points are seen not to be near any other"
    np.testing.assert_array_equal(found, np.unique(found))


def test_a_grid_is_not_taken_for_near_points():
    x = np.linspace(0, 1, 20)
    grid = np.stack(np.meshgrid(x, x, x), axis=-1).reshape(-1, 3)
    assert not len(maybe_near(grid, 1e-9))


def test_points_that_are_not_finite_are_near_none():
    points = np.array([[0.0, 0], [np.nan, 0], [np.nan, 0], [0, 0], [np.inf, 1], [np.inf, 1]])
    np.testing.assert_array_equal(maybe_near(points, 1.0), [0, 3])
    assert not len(maybe_near(points[1:3], 1.0))
    assert not len(maybe_near(points[:0], 1.0))
