r"""A domain with a measure, known at points: :math:`\mu \approx \sum_s w_s\,\delta(x_s)`.

Every reduction of this library is an integral under that measure,

.. math:: \int_\Omega f\,d\mu \;\approx\; \sum_s w_s f(x_s),

so a padded batch is a domain with points of measure zero, a finer mesh another quadrature of the same
measure, and a subsample a coarser one. Weights are float64 whatever the dtype of the points: small cells must
not underflow, and a logarithm is taken of them later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.spatial import cKDTree
from torch import Tensor

from opformer import quadrature

__all__ = ["Domain", "stack"]


@dataclass(frozen=True, eq=False)
class Domain:
    r"""Points of a domain and the quadrature weights that make sums over them integrals.

    Parameters
    ----------
    points : Tensor, shape (..., n, d)
        Coordinates, in the user's units of length.
    weights : Tensor, shape (..., n)
        Non-negative, in units of the measure (length, area, volume). Zero marks padding and orphan nodes.

    Raises
    ------
    ValueError
        On shapes that do not fit, or a coordinate or weight that is negative or not finite (its index is named).

    Examples
    --------
    >>> line = Domain.from_points(torch.linspace(0, 1, 5, dtype=torch.float64)[:, None], rule="interval")
    >>> line.total.item()
    1.0
    >>> round(line.integrate(line.points[:, 0]).item(), 12)
    0.5
    """

    points: Tensor
    weights: Tensor

    def __post_init__(self) -> None:
        points, weights = torch.as_tensor(self.points), torch.as_tensor(self.weights)
        if points.ndim < 2 or points.shape[:-1] != weights.shape:
            raise ValueError(
                "points (..., n, d) and weights (..., n) must share their leading axes, "
                f"got {tuple(points.shape)} and {tuple(weights.shape)}"
            )
        if not points.is_floating_point():
            points = points.double()
        # Double, and no gradient: a mask that needs one would turn the fused attention kernels off.
        weights = weights.detach().double()
        _refuse(~points.detach().isfinite().all(-1), "points must be finite", points)
        _refuse(~(weights.isfinite() & (weights >= 0)), "weights must be finite and not negative", weights)
        object.__setattr__(self, "points", points)
        object.__setattr__(self, "weights", weights)

    @classmethod
    def from_mesh(cls, mesh: Any, at: str = "points") -> Domain:
        r"""Domain of a mesh's nodes (:math:`w_i=\int\varphi_i`) or of its cells (measure, at the centroid).

        Only cells of the mesh's top dimension count, and for ``at="cells"`` the points are those cells in the
        order of their blocks. A node of no such cell has weight zero.

        Parameters
        ----------
        mesh : meshio.Mesh
            What :func:`opformer.read_mesh` returns; anything with ``points`` and ``cells`` will do.
        at : "points" or "cells"

        Raises
        ------
        MeshError
            On cells of an unknown kind, connectivity out of range, or no cells at all.
        """
        blocks = [(block.type, block.data) for block in mesh.cells]
        points = np.asarray(mesh.points, dtype=float)
        if at == "points":
            weights = quadrature.node_weights(points, blocks)
        elif at == "cells":
            points, weights = quadrature.cell_weights(points, blocks)
        else:
            raise ValueError(f"at must be 'points' or 'cells', got {at!r}")
        return cls(torch.from_numpy(points), torch.from_numpy(weights))

    @classmethod
    def from_points(cls, points: Tensor | np.ndarray, rule: str | None = None, **options: Any) -> Domain:
        """Domain of bare points, with weights by a rule that must be named: they are never silently uniform.

        Parameters
        ----------
        points : array, shape (n, d)
        rule : "interval", "delaunay" or "knn"
            See :func:`opformer.quadrature.point_weights`, which also takes the ``options``.
        """
        array = np.asarray(torch.as_tensor(points).detach().cpu().double())
        return cls(torch.from_numpy(array), torch.from_numpy(quadrature.point_weights(array, rule, **options)))

    @property
    def dim(self) -> int:
        """Number of coordinates, d."""
        return self.points.shape[-1]

    @property
    def size(self) -> int:
        """Number of points, n, padding included."""
        return self.points.shape[-2]

    @property
    def null(self) -> Tensor:
        """Mask (..., n) of the points of measure zero."""
        return self.weights == 0

    @property
    def total(self) -> Tensor:
        r"""Total measure :math:`\mu(\Omega)`, shape (...)."""
        return self.weights.sum(-1)

    def integrate(self, f: Tensor) -> Tensor:
        r"""Integral :math:`\int f\,d\mu=\sum_s w_s f_s`, accumulated in float64.

        Parameters
        ----------
        f : Tensor, shape (..., n) or (..., n, c, ...)
            Leading axes are those of the weights. Values at points of measure zero count as nothing, NaN too.

        Returns
        -------
        Tensor, shape (...) or (..., c, ...), of f's dtype.
        """
        w = self._over(f)
        return (w * torch.where(w == 0, 0, f)).sum(self.weights.ndim - 1).to(f.dtype)

    def mean(self, f: Tensor) -> Tensor:
        r"""Mean :math:`\int f\,d\mu\,/\,\mu(\Omega)`; zero where the whole measure is."""
        # Normalised before the sum: a mean must not depend on the unit of the measure, nor underflow in it.
        total = self.total.unsqueeze(-1)
        return Domain(self.points, self.weights / torch.where(total == 0, 1, total)).integrate(f)

    def inner(self, f: Tensor, g: Tensor) -> Tensor:
        r"""Inner product :math:`\int f\,g\,d\mu`, summed over channels where there are some."""
        return self.integrate((f * g).flatten(self.weights.ndim).sum(-1) if f.ndim > self.weights.ndim else f * g)

    def norm(self, f: Tensor) -> Tensor:
        r"""Norm :math:`(\int |f|^2 d\mu)^{1/2}` in L²(μ), over all channels together."""
        square = self.inner(f, f)
        # The root has no gradient at zero; that of the norm is taken as zero there.
        return torch.where(square > 0, square, 1).sqrt() * (square > 0)

    def zero_null(self, f: Tensor) -> Tensor:
        """``f`` with its values at points of measure zero set to 0, so that NaN there reaches no product."""
        return torch.where(self._over(f) == 0, 0, f)

    def uniform(self) -> Domain:
        """The same points with equal weights (zero stays zero): what a plain softmax sees."""
        return Domain(self.points, (~self.null).double())

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Domain:
        """Move to a device; ``dtype`` is that of the points, the weights stay float64."""
        return Domain(self.points.to(device=device, dtype=dtype), self.weights.to(device=device))

    def take(self, index: Tensor | slice) -> Domain:
        """The points of an index or a slice, with the weights they have."""
        return Domain(self.points[..., index, :], self.weights[..., index])

    def subsample(
        self, n: int, *, method: str = "random", generator: torch.Generator | None = None
    ) -> tuple[Domain, Tensor]:
        """A coarser quadrature of the same measure: ``n`` of the points, carrying the weight of all.

        Each kept point takes the weight of the points nearest to it, so the total measure is kept.

        Parameters
        ----------
        n : int
            Number of points to keep; all of positive weight are kept where there are no more than that.
        method : "random" or "farthest"
            Drawn evenly from the points of positive weight, or by farthest-point selection from a random start.
        generator : torch.Generator, optional

        Returns
        -------
        domain : Domain of min(n, number of points of positive weight) points
        index : Tensor of their indices, ascending; use it on fields
        """
        if self.weights.ndim != 1:
            raise ValueError(f"subsample takes one domain, points (n, d), got {tuple(self.points.shape)}")
        if n < 1:
            raise ValueError(f"n must be at least 1, got {n}")
        alive = torch.nonzero(self.weights > 0)[:, 0]
        points, weights = self.points[alive].detach().cpu().double().numpy(), self.weights[alive]
        kept = _choose(points, min(n, len(points)), method, generator)
        nearest = torch.from_numpy(cKDTree(points[kept]).query(points)[1]).to(weights.device)
        lumped = torch.zeros(len(kept), dtype=weights.dtype, device=weights.device)
        index = alive[torch.from_numpy(kept).to(alive.device)]
        return Domain(self.points[index], lumped.index_add_(0, nearest, weights)), index

    def interpolate(self, f: Tensor, points: Tensor) -> Tensor:
        r"""Values of ``f`` at other points, by inverse distances to the nearest ones (Franke and Little).

        .. math:: f(t) = \frac{\sum_s a_s f_s}{\sum_s a_s}, \qquad a_s = \Bigl(\frac{(R-r_s)_+}{R\,r_s}\Bigr)^2,

        with r the distance of s and t, and R half as much again as that of the neighbour d + 1. Exact where a point
        coincides with one of the domain, first order elsewhere. Points of measure zero are not read, and coincident
        ones count once, with the mean of their values.

        Parameters
        ----------
        f : Tensor, shape (..., n, c)
        points : Tensor, shape (..., m, d)

        Returns
        -------
        Tensor, shape (..., m, c)
        """
        if self.weights.ndim > 1:
            parts = zip(self.points, self.weights, f, points, strict=True)
            return torch.stack([Domain(x, w).interpolate(g, p) for x, w, g, p in parts])
        alive = self.weights > 0
        if not alive.any():
            return f.new_zeros(points.shape[-2], f.shape[-1])
        known, index = torch.unique(self.points[alive].detach().cpu().double(), dim=0, return_inverse=True)
        mass = torch.zeros(len(known), dtype=torch.float64).index_add_(0, index, self.weights[alive].cpu())
        share = (self.weights[alive] / mass.to(f.device)[index.to(f.device)]).to(f.dtype)
        f = f.new_zeros(len(known), f.shape[-1]).index_add_(0, index.to(f.device), share[:, None] * f[alive])
        near, a = _inverse_distances(known.numpy(), points.detach().cpu().double().numpy())
        return torch.einsum("mk,mkc->mc", torch.from_numpy(a).to(f), f[torch.from_numpy(near).to(f.device)])

    def describe(self) -> str:
        """A few lines for a person: points, coordinates, total measure, spread and zeros of the weights."""
        return "\n".join(_describe(Domain(x, w)) for x, w in zip(*self._samples(), strict=True))

    def _samples(self) -> tuple[Tensor, Tensor]:
        return self.points.reshape(-1, self.size, self.dim), self.weights.reshape(-1, self.size)

    def _over(self, f: Tensor) -> Tensor:
        """The weights with trailing axes, to meet those of ``f``."""
        w = self.weights
        if f.shape[: w.ndim] != w.shape:
            raise ValueError(f"f must have the leading axes {tuple(w.shape)} of the weights, got {tuple(f.shape)}")
        return w.reshape(w.shape + (1,) * (f.ndim - w.ndim))


def stack(domains: Sequence[Domain]) -> Domain:
    """Batch domains of different sizes; the shorter ones are padded with points of measure zero.

    Raises
    ------
    ValueError
        If there are none, or their numbers of coordinates differ.
    """
    if not domains:
        raise ValueError("stack needs at least one domain, got none")
    if len({domain.dim for domain in domains}) > 1:
        raise ValueError(f"domains must have one number of coordinates, got {[d.dim for d in domains]}")
    size = max(domain.size for domain in domains)
    return Domain(
        # The last point again, not the origin: that could lie far outside the domain.
        torch.stack([torch.cat([d.points, d.points[-1:].expand(size - d.size, -1)]) for d in domains]),
        torch.stack([pad(domain.weights, size) for domain in domains]),
    )


def pad(x: Tensor, size: int) -> Tensor:
    """``x`` with its first axis filled up with zeros to ``size``."""
    return torch.cat([x, x.new_zeros(size - len(x), *x.shape[1:])])


def _refuse(bad: Tensor, rule: str, values: Tensor) -> None:
    if bad.any():
        index = tuple(torch.nonzero(bad)[0].tolist())
        name = index[0] if len(index) == 1 else index
        raise ValueError(f"{rule}: entry {name} is {values[index].tolist()} ({int(bad.sum())} such entries)")


def _choose(points: np.ndarray, n: int, method: str, generator: torch.Generator | None) -> np.ndarray:
    if not len(points):
        raise ValueError("subsample: no point has positive weight")
    if method == "random":
        return np.sort(torch.randperm(len(points), generator=generator)[:n].numpy())
    if method == "farthest":
        start = int(torch.randint(len(points), (1,), generator=generator))
        return np.sort(_farthest(points, n, start))
    raise ValueError(f"method must be 'random' or 'farthest', got {method!r}")


def _farthest(points: np.ndarray, n: int, start: int) -> np.ndarray:
    """Indices of ``n`` points, each the farthest from those before it."""
    kept = [start]
    distance = np.full(len(points), np.inf)
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
    radius = 1.5 * r[:, min(dim, len(k) - 1), None] + np.finfo(float).tiny
    a = (np.maximum(radius - r, 0) / (radius * np.maximum(r, 1e-12 * radius))) ** 2 * radius**2
    a[a.sum(1) == 0, 0] = 1  # one known point, far away
    return near, a / a.sum(1, keepdims=True)


def _describe(domain: Domain) -> str:
    positive = domain.weights[domain.weights > 0]
    distinct = len(torch.unique(domain.points, dim=0))
    spread = f"{positive.min():.3g} … {positive.max():.3g}" if len(positive) else "none is positive"
    return (
        f"{domain.size} points with {domain.dim} coordinates, total measure {domain.total.item():.6g}\n"
        f"weights {spread}; {int(domain.null.sum())} of measure zero; "
        f"{domain.size - distinct} coincide with another point"
    )
