"""A domain in a few lines, for somebody who wonders whether its weights can be right."""

from __future__ import annotations

import numpy as np
from scipy.spatial import KDTree

from opformer._bare_points import intrinsic

__all__ = ["describe"]

_FAR = 1e4  # extents from the origin: float32 then resolves a thousandth of the domain
_APART = 100.0  # times the weight of the points around, or a part of it: out of proportion
_AROUND = 8  # points


def describe(points: np.ndarray, weights: np.ndarray) -> str:
    """Size, extent and measure of points (n, d) with weights (n,), what is odd, and a verdict.

    All that is odd comes with the index of the first point concerned. A weight is out of proportion
    if it is over 100 times, or under a hundredth of, the median at the 8 nearest other places.
    """
    alive = np.flatnonzero(weights > 0)
    remarks = _remarks(points, weights, alive)
    ready = "ready" if len(alive) else "not ready: no point has a positive weight"
    lines = [
        f"points      {len(points)} with {points.shape[1]} coordinates",
        *(_extent(points[alive], weights[alive]) if len(alive) else []),
        *(f"look at     {short}: {meaning}" for short, meaning in remarks.items()),
        f"verdict     {ready}{'; have a look: ' if remarks else ''}{', '.join(remarks)}",
    ]
    return "\n".join(lines)


def _extent(points: np.ndarray, weights: np.ndarray) -> list[str]:
    d = points.shape[1]
    names = "xyz" if d <= 3 else [f"x{axis}" for axis in range(d)]
    box = zip(names, points.min(axis=0), points.max(axis=0), strict=False)
    span, low, high = intrinsic(points)[0].shape[1], weights.min(), weights.max()
    return [
        f"extent      {', '.join(f'{name} from {a:.6g} to {b:.6g}' for name, a, b in box)}; "
        f"spans {span} dimensions",
        f"measure     {weights.sum():.6g}",
        f"weights     {low:.3g} … {high:.3g}, largest/smallest {high / low:.4g}",
    ]


def _remarks(points: np.ndarray, weights: np.ndarray, alive: np.ndarray) -> dict[str, str]:
    """What deserves a look, in a few words, and what it means."""
    null = np.flatnonzero(weights == 0)
    found = [
        (null, "points of weight 0", "they change nothing; padding, or nodes of no cell"),
    ]
    offset = 0.0
    if len(alive):
        x = points[alive]
        places, first, copy = np.unique(x, axis=0, return_index=True, return_inverse=True)
        copies = alive[np.setdiff1d(np.arange(len(x)), first)]
        held = np.bincount(copy.ravel(), weights[alive])
        odd = np.sort(alive[first[_out_of_proportion(places, held)]])
        found += [
            (copies, "points coincide with an earlier one",
             "fine if they share its weight; if each has the whole, the place counts twice"),
            (odd, "points of a weight out of proportion",
             f"it is {_APART:.0f} times that of the points around, or a part of it as small"),
        ]  # fmt: skip
        extent = np.ptp(x, axis=0).max()
        centre = float(np.linalg.norm((x.min(axis=0) + x.max(axis=0)) / 2))
        offset = centre / extent if extent else 0.0
    remarks = {f"{len(i)} {short} (first {i[0]})": text for i, short, text in found if len(i)}
    if offset > _FAR:
        remarks[f"the points lie {offset:.3g} times their size from the origin"] = (
            "float32 coordinates lose digits there: shift them, if you can"
        )
    return remarks


def _out_of_proportion(places: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Which of the places, all different, have another weight than those around them."""
    if len(places) <= _AROUND:
        return np.zeros(len(places), dtype=bool)
    around = KDTree(places).query(places, range(2, _AROUND + 2))[1]
    ratio = weights / np.median(weights[around], axis=1)
    return (ratio > _APART) | (ratio < 1 / _APART)
