"""Nearest neighbours: which points to keep, which of them is nearest, and values in between.

The formula of the interpolation stands at :meth:`opformer.Domain.interpolate`. Reference: Franke
and Nielson, Int. J. Numer. Meth. Eng. 15 (1980), for weights that vanish at a radius.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.spatial import cKDTree
from torch import Tensor

__all__ = ["interpolate", "subsample"]


def subsample(
    points: Tensor, weights: Tensor, n: int, method: str, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Ascending indices of at most n points, and the weights of all lumped at the nearest of them.

    Raises
    ------
    ValueError
        If nothing is to be kept, or the method is not "random" or "farthest".
    """
    alive = torch.nonzero(weights > 0)[:, 0]
    if n < 1 or not len(alive):
        raise ValueError(f"n must be at least 1, got {n}, of {len(alive)} points with weight")
    x = _array(points[alive])
    kept = _choose(x, min(n, len(x)), method, generator)
    near = cKDTree(x[kept]).query(x)[1]
    near[kept] = np.arange(len(kept))  # its own weight, also where another coincides with it
    lumped = weights.new_zeros(len(kept))
    lumped.index_add_(0, torch.from_numpy(near).to(weights.device), weights[alive])
    return alive[torch.from_numpy(kept).to(alive.device)], lumped


def interpolate(known: Tensor, weights: Tensor, f: Tensor, points: Tensor) -> Tensor:
    """Values (m, c) at ``points`` of ``f`` (n, c) at the ``known`` points of positive weight."""
    alive = weights > 0
    if not alive.any():
        return f.new_zeros(len(points), f.shape[-1])
    known, group = torch.unique(known[alive].detach().cpu().double(), dim=0, return_inverse=True)
    group, weights = group.to(f.device), weights[alive]
    mass = weights.new_zeros(len(known)).index_add_(0, group, weights)
    share = (weights / mass[group]).to(f.dtype)
    f = f.new_zeros(len(known), f.shape[-1]).index_add_(0, group, share[:, None] * f[alive])
    near, a = _inverse_distances(known.numpy(), _array(points))
    return torch.einsum("mk,mkc->mc", torch.from_numpy(a).to(f), f[torch.from_numpy(near)])


def _array(points: Tensor) -> np.ndarray:
    return points.detach().cpu().double().numpy()


def _choose(
    points: np.ndarray, n: int, method: str, generator: torch.Generator | None
) -> np.ndarray:
    if method == "random":
        return np.sort(torch.randperm(len(points), generator=generator)[:n].numpy())
    if method == "farthest":
        start = int(torch.randint(len(points), (1,), generator=generator))
        return np.sort(_farthest(points, n, start))
    raise ValueError(f"method must be 'random' or 'farthest', got {method!r}")


def _farthest(points: np.ndarray, n: int, start: int) -> np.ndarray:
    kept, distance = [start], np.full(len(points), np.inf)
    while len(kept) < n:
        distance = np.minimum(distance, ((points - points[kept[-1]]) ** 2).sum(1))
        distance[kept] = -1  # coincident points: never take one twice
        kept.append(int(distance.argmax()))
    return np.array(kept)


def _inverse_distances(known: np.ndarray, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Indices (m, k) of the nearest known points and what each counts, rows of sum one."""
    dim = known.shape[1]
    # More neighbours than are wanted, so that those at equal distances are all in.
    k = np.arange(1, min(8 * dim, len(known)) + 1)
    r, near = cKDTree(known).query(points, k=k)
    radius = 1.5 * r[:, min(dim, len(k) - 1), None]
    r = np.divide(r, radius, out=np.zeros_like(r), where=radius > 0)  # one point, hit: r = R = 0
    a = (np.maximum(1 - r, 0) / np.maximum(r, 1e-12)) ** 2
    return near, a / a.sum(1, keepdims=True)
