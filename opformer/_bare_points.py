"""Bare points: their weights, and the axes they are flat along; public in `opformer.quadrature`."""

from __future__ import annotations

from contextlib import suppress
from math import gamma, pi

import numpy as np
from numpy.typing import ArrayLike
from scipy.spatial import ConvexHull, Delaunay, KDTree, QhullError

from opformer._cells import cell_integrals
from opformer._voronoi import voronoi

__all__ = ["RULES", "flat_axes", "intrinsic", "point_weights", "suited_rule"]

# Of the largest extent: float32 coordinates of a plane are noisy at 1e-7.
_FLAT = 1e-6
RULES = ("voronoi", "interval", "delaunay", "knn")
_CONVEX = 32  # so many points of a volume are never all corners of their hull; of a surface often


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
    points: ArrayLike,
    rule: str | None,
    *,
    dim: int | None = None,
    neighbors: int = 16,
    bounds: ArrayLike | None = None,
) -> np.ndarray:
    r"""Weights (n,) of bare points (n, d) by a named rule.

    Coincident points share one weight. Points on a line or in a plane of the space are taken in the
    dimension they span (to a relative tolerance of 1e-6, or the resolution of the coordinates); if
    all coincide, the total weight is one.

    Parameters
    ----------
    rule : "voronoi", "interval", "delaunay" or "knn"
        - "voronoi": measure of the part of the domain that is nearest to a point, up to three
          dimensions. The domain is the convex hull of the points, or the box ``bounds``. Points
          within 1e-9 of its extent share one cell.
        - "interval": half the distance between a point's neighbours on a line.
        - "delaunay": lumped mass of the Delaunay simplices, up to three dimensions; exact for
          linear functions. The measure is that of the convex hull.
        - "knn": :math:`V_kr^k/m` with the distance r to the m-th neighbour and the volume
          :math:`V_k` of the unit k-ball. This is a weight, not a volume; see the notes.
    dim : int, optional
        For "knn", the dimension k of the set that the points sample, such as 2 for points on a
        surface in space; without it, the dimension they span.
    neighbors : int
        For "knn", m.
    bounds : array (2, d), optional
        For "voronoi", the lower and the upper corner of a box that holds the points. Axes of no
        extent do not count. The total weight is the measure of the box.

    Raises
    ------
    ValueError
        If no known rule is named, or the points or the options do not suit it. More than 32 points
        that are all corners of their convex hull are taken for a sample of a closed curve or
        surface: "voronoi" without ``bounds`` and "delaunay" would measure what it encloses, and
        "knn" needs ``dim``.

    Notes
    -----
    Of the convex hull, "voronoi" and "delaunay" fill holes and notches.

    Around a point of a Poisson process of density :math:`\rho`, "knn" has the mean :math:`1/\rho`,
    without bias, and the relative spread :math:`m^{-1/2}`. Other samples are off by a factor that
    is the same everywhere, so that no mean and no attention sees it: neighbours at equal distances
    count at once, and regular samples have a point where we look, random ones not. For m = 16 the
    weights are right on equispaced curves, 2 % too small on square lattices, 9 % on hexagonal, 26 %
    on cubic ones. More neighbours make it smaller. Near a boundary, where half of the ball is
    empty, a weight is up to twice too large at an edge and :math:`2^k` times in a corner, which
    matters for a share :math:`(m/n)^{1/k}` of the points; fewer neighbours help, at the cost of
    spread. The curvature of a curve or surface makes an error of order :math:`(m/n)^{2/k}`.

    References
    ----------
    D. O. Loftsgaarden, C. P. Quesenberry, Ann. Math. Statist. 36 (1965), for "knn".

    Examples
    --------
    >>> point_weights(np.array([0.0, 1.0, 0.25]), "interval")
    array([0.125, 0.375, 0.5  ])
    >>> point_weights([[0.0, 0.0], [1.0, 0.0]], "voronoi", bounds=[[0, 0], [4, 1]])
    array([0.5, 3.5])
    """
    if rule not in RULES:
        raise ValueError(f"rule must be one of {', '.join(map(repr, RULES))}, got {rule!r}")
    x, resolution = _as_points(points)
    _check_options(x.shape[1], rule, dim, neighbors, bounds)
    box = None if bounds is None else _as_box(bounds, x.shape[1])
    x = x if box is None else _inside(x, box)
    unique, copy, copies = np.unique(x, axis=0, return_inverse=True, return_counts=True)
    if box is None:
        x, scale = intrinsic(unique, resolution)
    else:
        x, scale, box = _in_box(unique, box)
    _check_span(x, rule, dim, box)
    k = dim or x.shape[1]
    weights = _unit_weights(x, rule, k, neighbors, box) * scale**k
    return (weights / copies)[copy.ravel()]


def intrinsic(points: np.ndarray, resolution: float = 0.0) -> tuple[np.ndarray, float]:
    """Points (n, k) along the axes they span, centred and scaled to about 1, and that scale."""
    centred = points - points[0]  # exact, where the mean of far points is not
    centred -= centred.mean(axis=0)
    scale = float(np.abs(centred).max())
    if scale <= resolution:
        return centred[:, :0], 1.0
    centred = centred / scale
    _, extent, axes = np.linalg.svd(centred, full_matrices=False)
    spanned = extent > max(_FLAT, resolution / scale) * extent[0]
    # Turning the axes costs rounding errors, which would split the flat sides of a grid.
    full = spanned.sum() == points.shape[1]
    return centred if full else centred @ axes[spanned].T, scale


def _as_points(points: ArrayLike) -> tuple[np.ndarray, float]:
    """Points (n, d) in float64, and the distance that their own dtype resolves."""
    given = np.asarray(points)
    given = given[:, None] if given.ndim == 1 else given
    if given.ndim != 2 or not given.size:
        raise ValueError(f"points must have shape (n, d) with n, d >= 1, got {given.shape}")
    x = given.astype(np.float64)
    bad = np.flatnonzero(~np.isfinite(x).all(axis=1))
    if len(bad):
        raise ValueError(f"points must be finite, got {x[bad[0]].tolist()} at point {bad[0]}")
    eps = np.finfo(given.dtype if given.dtype.kind == "f" else np.float64).eps
    return x, 2 * float(eps * np.abs(x).max())


def _as_box(bounds: ArrayLike, d: int) -> np.ndarray:
    box = np.asarray(bounds, dtype=np.float64)
    if box.shape != (2, d) or not np.isfinite(box).all() or (box[0] > box[1]).any():
        raise ValueError(
            f"bounds must be the lower and the upper corner of a box, (2, {d}), got {box.tolist()}"
        )
    return box


def _inside(points: np.ndarray, box: np.ndarray) -> np.ndarray:
    """The points, moved into the box where rounding has put them out of it."""
    inside = np.clip(points, *box)
    tolerance = _FLAT * np.ptp(box, axis=0).max()
    out = np.flatnonzero((np.abs(points - inside) > tolerance).any(axis=1))
    if len(out):
        raise ValueError(
            f"bounds {box.tolist()} must hold the points: point {out[0]} is at "
            f"{points[out[0]].tolist()} ({len(out)} such points)"
        )
    return inside


def _in_box(points: np.ndarray, box: np.ndarray) -> tuple[np.ndarray, float, np.ndarray]:
    """Points, scale and box along the axes that the box extends along, scaled to about 1."""
    extent, centre = np.ptp(box, axis=0), box.mean(axis=0)
    scale, spanned = float(extent.max()) or 1.0, extent > 0
    return (points - centre)[:, spanned] / scale, scale, (box - centre)[:, spanned] / scale


def _check_options(
    d: int, rule: str, dim: int | None, neighbors: int, bounds: ArrayLike | None
) -> None:
    if dim is not None and rule != "knn":
        raise ValueError(f"dim is an option of rule 'knn', got dim={dim} with rule {rule!r}")
    if dim is not None and not 1 <= dim <= d:
        raise ValueError(f"dim must be between 1 and {d}, got {dim}")
    if neighbors < 1:
        raise ValueError(f"neighbors must be at least 1, got {neighbors}")
    if bounds is not None and rule != "voronoi":
        raise ValueError(f"bounds is an option of rule 'voronoi', got it with rule {rule!r}")


def _check_span(x: np.ndarray, rule: str, dim: int | None, box: np.ndarray | None) -> None:
    span = x.shape[1]
    if rule == "interval" and span > 1:
        raise ValueError(f"rule 'interval' needs points on a line, got points spanning {span} axes")
    if rule in ("delaunay", "voronoi") and span > 3:
        raise ValueError(f"rule {rule!r} needs at most 3 dimensions, got {span}: take 'knn'")
    if dim is None and box is None:
        with suppress(QhullError):  # points without a hull are no such curve
            _refuse_closed(x, rule)


def suited_rule(points: np.ndarray) -> str:
    """A rule, as "rule" or "rule:dim", that fits points of an unknown set; a guess, no more."""
    x = intrinsic(np.unique(np.asarray(points, dtype=np.float64), axis=0))[0]
    span = x.shape[1]
    if span <= 1:
        return "interval"
    if _closed(x):
        return f"knn:{span - 1}"
    return "voronoi" if span <= 3 else "knn"


def _closed(x: np.ndarray) -> bool:
    """Whether all points are corners of their hull, as those of a closed curve or surface are."""
    n, span = x.shape
    return span in (2, 3) and n > _CONVEX and len(ConvexHull(x).vertices) == n


def _refuse_closed(x: np.ndarray, rule: str) -> None:
    n, span = x.shape
    if _closed(x):
        what = "curve" if span == 2 else "surface"
        raise ValueError(
            f"all {n} points are corners of their convex hull, like those of a closed {what}, and "
            f"rule {rule!r} would measure what it encloses: take rule 'knn' with dim={span - 1} "
            f"for the {what}, or rule 'voronoi' with bounds for a box around it"
        )


def _unit_weights(
    x: np.ndarray, rule: str, k: int, neighbors: int, box: np.ndarray | None
) -> np.ndarray:
    """Weights of distinct points (n, span) of about unit size."""
    span = x.shape[1]
    if span == 0:
        return np.full(len(x), 1 / len(x))
    if rule == "knn":
        return _ball(x, k, neighbors)
    if span == 1:
        return _interval(x[:, 0], box)
    try:
        return voronoi(x, box) if rule == "voronoi" else _delaunay(x)
    except QhullError as error:
        raise ValueError(
            f"rule {rule!r} cannot resolve these {len(x)} points, whose distances differ too much "
            f"(Qhull: {str(error).splitlines()[0]}): take 'knn'"
        ) from error


def _interval(x: np.ndarray, box: np.ndarray | None) -> np.ndarray:
    order = np.argsort(x)
    half = np.diff(x[order]) / 2
    weights = np.zeros(len(x))
    weights[order[1:]] += half
    weights[order[:-1]] += half
    if box is not None:
        weights[order[0]] += x[order[0]] - box[0, 0]
        weights[order[-1]] += box[1, 0] - x[order[-1]]
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
