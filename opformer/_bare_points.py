"""Bare points: their weights, and the axes they are flat along; public in `opformer.quadrature`."""

from __future__ import annotations

from math import gamma, pi

import numpy as np
from scipy.spatial import Delaunay, KDTree

from opformer._cells import cell_integrals

__all__ = ["flat_axes", "point_weights"]

# Of the largest extent: float32 coordinates of a plane are noisy at 1e-7.
_FLAT = 1e-6


def flat_axes(points: np.ndarray) -> list[int]:
    """Axes along which points (n, d) extend by at most 1e-6 of their largest extent.

    Examples
    --------
    >>> flat_axes(np.array([[0.0, 0.0, 1.0], [2.0, 0.0, 1.0], [0.0, 1.0, 1.0 + 1e-9]]))
    [2]
    """
    extent = np.ptp(np.asarray(points, dtype=np.float64), axis=0)
    return np.flatnonzero(extent <= _FLAT * extent.max()).tolist()


def point_weights(
    points: np.ndarray, rule: str | None, *, dim: int | None = None, neighbors: int = 16
) -> np.ndarray:
    r"""Weights (n,) of bare points (n, d) by a named rule.

    Coincident points share one weight. Points on a line or in a plane of the space are taken in the
    dimension they span (to a relative tolerance of 1e-6); if all coincide, the total weight is one.

    Parameters
    ----------
    rule : "interval", "delaunay" or "knn"
        - "interval": half the distance between a point's neighbours on a line.
        - "delaunay": lumped mass of the Delaunay simplices, up to three dimensions. The measure is
          that of the convex hull: holes and notches are filled.
        - "knn": :math:`V_kr^k/m` with the distance r to the m-th neighbour and the volume
          :math:`V_k` of the unit k-ball. Around a point of a Poisson process of density
          :math:`\rho` it has the mean :math:`1/\rho`, without bias, and the relative spread
          :math:`m^{-1/2}`. This is a weight, not a volume: on a lattice it is off by a factor, and
          near a boundary, where half of the ball is empty, it is up to twice too large.
    dim : int, optional
        For "knn", the dimension k of the set that the points sample, such as 2 for points on a
        surface in space; without it, the dimension they span.
    neighbors : int
        For "knn", m.

    Raises
    ------
    ValueError
        If no known rule is named, or the points or the options do not suit it.

    References
    ----------
    D. O. Loftsgaarden, C. P. Quesenberry, Ann. Math. Statist. 36 (1965), for "knn".

    Examples
    --------
    >>> point_weights(np.array([0.0, 1.0, 0.25]), "interval")
    array([0.125, 0.375, 0.5  ])
    """
    if rule not in ("interval", "delaunay", "knn"):
        raise ValueError(f"rule must be one of 'interval', 'delaunay', 'knn', got {rule!r}")
    points = _as_points(points)
    _check_options(points, rule, dim, neighbors)
    unique, copy, copies = np.unique(points, axis=0, return_inverse=True, return_counts=True)
    x, scale = _intrinsic(unique)
    span = x.shape[1]
    if rule == "interval" and span > 1:
        raise ValueError(f"rule 'interval' needs points on a line, got points spanning {span} axes")
    if rule == "delaunay" and span > 3:
        raise ValueError(f"rule 'delaunay' needs at most 3 dimensions, got {span}: take 'knn'")
    if span == 0:
        weights = np.ones(1)
    elif rule == "knn":
        weights = _ball(x, dim or span, neighbors) * scale ** (dim or span)
    else:
        weights = (_interval(x[:, 0]) if span == 1 else _delaunay(x)) * scale**span
    return (weights / copies)[copy.ravel()]


def _as_points(points: np.ndarray) -> np.ndarray:
    points = np.asarray(points, dtype=np.float64)
    points = points[:, None] if points.ndim == 1 else points
    if points.ndim != 2 or not points.size:
        raise ValueError(f"points must have shape (n, d) with n, d >= 1, got {points.shape}")
    bad = np.flatnonzero(~np.isfinite(points).all(axis=1))
    if len(bad):
        raise ValueError(f"points must be finite, got {points[bad[0]].tolist()} at point {bad[0]}")
    return points


def _check_options(points: np.ndarray, rule: str, dim: int | None, neighbors: int) -> None:
    if dim is not None and rule != "knn":
        raise ValueError(f"dim is an option of rule 'knn', got dim={dim} with rule {rule!r}")
    if dim is not None and not 1 <= dim <= points.shape[1]:
        raise ValueError(f"dim must be between 1 and {points.shape[1]}, got {dim}")
    if neighbors < 1:
        raise ValueError(f"neighbors must be at least 1, got {neighbors}")


def _intrinsic(points: np.ndarray) -> tuple[np.ndarray, float]:
    """Points (n, k) along the axes they span, centred and scaled to about 1, and that scale."""
    centred = points - points.mean(axis=0)
    scale = float(np.abs(centred).max())
    if scale == 0:
        return centred[:, :0], 1.0
    centred = centred / scale
    _, extent, axes = np.linalg.svd(centred, full_matrices=False)
    spanned = extent > _FLAT * extent[0]
    # Turning the axes costs rounding errors, which would split the flat sides of a grid.
    full = spanned.sum() == points.shape[1]
    return centred if full else centred @ axes[spanned].T, scale


def _interval(x: np.ndarray) -> np.ndarray:
    order = np.argsort(x)
    half = np.diff(x[order]) / 2
    weights = np.zeros(len(x))
    weights[order[1:]] += half
    weights[order[:-1]] += half
    return weights


def _delaunay(x: np.ndarray) -> np.ndarray:
    mesh = Delaunay(x)
    kind = "triangle" if x.shape[1] == 2 else "tetra"
    corners = x[mesh.simplices]
    shares = cell_integrals(kind, corners - corners[:, :1])[0]
    weights = np.bincount(mesh.simplices.ravel(), shares.ravel(), minlength=len(x))
    # Points too near to others for Qhull are in no simplex: they share the nearest one's weight.
    left_out, _, nearest = mesh.coplanar.T
    owner = np.arange(len(x))
    owner[left_out] = nearest
    return (weights / np.bincount(owner, minlength=len(x)).clip(1))[owner]


def _ball(x: np.ndarray, dim: int, neighbors: int) -> np.ndarray:
    m = min(neighbors, len(x) - 1)
    radius = KDTree(x).query(x, [m + 1])[0][:, 0]  # the first neighbour is the point itself
    return pi ** (dim / 2) / gamma(dim / 2 + 1) * radius**dim / m
