r"""A domain with a measure, known at points: :math:`\mu \approx \sum_s w_s\,\delta(x_s)`.

Every reduction of this library is an integral under that measure,

.. math:: \int_\Omega f\,d\mu \;\approx\; \sum_s w_s f(x_s),

so a padded batch is a domain with points of measure zero, a finer mesh another quadrature of the
same measure, and a subsample a coarser one. Weights are float64 whatever the dtype of the points:
small cells must not underflow, and a logarithm is taken of them later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from opformer import _describe, _neighbors, quadrature

__all__ = ["Domain", "Subsample", "as_target", "stack"]


@dataclass(frozen=True, eq=False)
class Domain:
    r"""Points of a domain and the quadrature weights that make sums over them integrals.

    Parameters
    ----------
    points : Tensor, shape (..., n, d)
        Coordinates, in the user's units of length.
    weights : Tensor, shape (..., n)
        Finite and not negative, in units of the measure. Zero marks padding and orphan nodes.

    Raises
    ------
    ValueError
        On shapes that do not fit, or a coordinate or weight (named) that may not be.

    Examples
    --------
    >>> x = torch.linspace(0, 1, 5, dtype=torch.float64)
    >>> line = Domain.from_points(x[:, None], rule="interval")
    >>> line.total.item()
    1.0
    >>> round(line.integrate(x).item(), 12)
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
        bad = ~(weights.isfinite() & (weights >= 0))
        _refuse(bad, "weights must be finite and not negative", weights)
        object.__setattr__(self, "points", points)
        object.__setattr__(self, "weights", weights)

    @classmethod
    def from_mesh(cls, mesh: Any, at: str = "points") -> Domain:
        r"""Domain of a mesh's nodes (:math:`w_i=\int\varphi_i`) or cells (at the centroids).

        Only cells of the mesh's top dimension count, and for ``at="cells"`` the points are those
        cells in the order of their blocks. A node of no such cell has weight zero.

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
    def from_points(
        cls, points: Tensor | np.ndarray, rule: str | None = None, **options: Any
    ) -> Domain:
        """Domain of bare points (n, d), or (n,) on a line, with weights by a rule.

        The rule must be named, weights are never silently uniform: "voronoi", "interval",
        "delaunay" or "knn". It and its options are those of
        :func:`opformer.quadrature.point_weights`.
        """
        x = torch.as_tensor(points).detach().cpu()
        x = x[:, None] if x.ndim == 1 else x
        # In their own dtype: what float32 does not resolve is no extent.
        given = x.float() if x.dtype is torch.bfloat16 else x  # which NumPy does not know
        weights = quadrature.point_weights(given.numpy(), rule, **options)
        return cls(x.double().clone(), torch.from_numpy(weights))

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

        ``f``, (..., n) or (..., n, c, ...), begins with the axes of the weights. The result, (...)
        or (..., c, ...), has its dtype; float64 for integers and booleans. Values at points of
        measure zero count as nothing, NaN too.
        """
        return self._sum(self.weights, f)

    def mean(self, f: Tensor) -> Tensor:
        r"""Mean :math:`\int f\,d\mu\,/\,\mu(\Omega)`; zero where the whole measure is."""
        # Normalised before the sum: a mean must not depend on the unit of the measure.
        total = self.total.unsqueeze(-1)
        return self._sum(self.weights / torch.where(total == 0, 1, total), f)

    def inner(self, f: Tensor, g: Tensor) -> Tensor:
        r"""Inner product :math:`\int f\,g\,d\mu`, summed over channels if there are some."""
        return self._inner(f, g).to(_floating(f).dtype)

    def norm(self, f: Tensor) -> Tensor:
        r"""Norm :math:`(\int |f|^2 d\mu)^{1/2}` in L²(μ), over all channels together."""
        square = self._inner(f, f)
        zero = square == 0
        # The root has no gradient at zero; that of the norm is taken as zero there.
        return torch.where(zero, 1, square).sqrt().masked_fill(zero, 0).to(_floating(f).dtype)

    def zero_null(self, f: Tensor) -> Tensor:
        """``f`` set to 0 at points of measure zero, so that NaN there reaches no product."""
        return torch.where(self._over(f) == 0, 0, f)

    def uniform(self) -> Domain:
        """The same points with equal weights (zero stays zero): what a plain softmax sees."""
        return self._with(self.points, (~self.null).double())

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Domain:
        """Move to a device; ``dtype`` is that of the points, the weights stay float64."""
        points = self.points.to(device=device, dtype=dtype)
        return self._with(points, self.weights.to(device=device))

    def take(self, index: Tensor | slice) -> Domain:
        """The points of an index or a slice, with the weights they have."""
        return self._with(self.points[..., index, :], self.weights[..., index])

    def subsample(
        self, n: int, *, method: str = "random", generator: torch.Generator | None = None
    ) -> Subsample:
        """A coarser quadrature of the same measure: ``n`` points that carry the weight of all.

        Each kept point takes the weight of the points nearest to it, so the total measure is kept.

        Parameters
        ----------
        n : int, number of points to keep; all those of positive weight if there are no more
        method : "random" or "farthest"
            Drawn evenly, or each as far as can be from those before it, from a random start.
        generator : torch.Generator, optional

        The result is a domain of at most n points; for the fields, ``f[part.index]``.
        """
        if self.weights.ndim != 1:
            raise ValueError(f"subsample takes one domain, got {tuple(self.weights.shape)} points")
        index, weights = _neighbors.subsample(self.points, self.weights, n, method, generator)
        return Subsample(self.points[index], weights, index)

    def interpolate(self, f: Tensor, points: Tensor) -> Tensor:
        r"""Values (..., m, c) of ``f`` at other points, by inverse distances to the nearest ones.

        .. math:: f(t) = \frac{\sum_s a_s f_s}{\sum_s a_s}, \qquad
           a_s = \Bigl(\frac{(R-r_s)_+}{R\,r_s}\Bigr)^2,

        with r the distance of s and t, and R half as much again as that of the neighbour d + 1
        (Franke and Little). Exact where a point coincides with one of the domain, first order
        elsewhere. Points of measure zero are not read, and coincident ones count once, with the
        mean of their values. ``f`` is (..., n, c), the points are (..., m, d).
        """
        if self.weights.ndim > 1:
            parts = zip(self.points, self.weights, f, points, strict=True)
            return torch.stack([Domain(x, w).interpolate(g, p) for x, w, g, p in parts])
        return _neighbors.interpolate(self.points, self.weights, f, points)

    def describe(self) -> str:
        """Size, extent, measure, what is odd (with the index of a point), and a verdict."""
        if self.weights.ndim > 1:
            parts = zip(self.points, self.weights, strict=True)
            return "\n".join(Domain(x, w).describe() for x, w in parts)
        points, weights = (x.detach().cpu().double().numpy() for x in (self.points, self.weights))
        return _describe.describe(points, weights)

    def _with(self, points: Tensor, weights: Tensor) -> Domain:
        """A domain of what has been checked already: checks would stop a GPU each time."""
        domain = object.__new__(Domain)
        vars(domain).update(points=points, weights=weights)
        return domain

    def _sum(self, weights: Tensor, f: Tensor) -> Tensor:
        f = _floating(f)
        w = weights.reshape(self._over(f).shape)
        return (w * torch.where(w == 0, 0, f)).sum(self.weights.ndim - 1).to(f.dtype)

    def _inner(self, f: Tensor, g: Tensor) -> Tensor:
        """In float64 throughout: squares of small values must not underflow."""
        # Zeroed one by one: the gradient of f · NaN is NaN, whatever becomes of the product.
        f, g = (self.zero_null(_floating(x)).double() for x in (f, g))
        product = f * g
        axes = self.weights.ndim
        return self.integrate(product.flatten(axes).sum(-1) if product.ndim > axes else product)

    def _over(self, f: Tensor) -> Tensor:
        """The weights with trailing axes, to meet those of ``f``."""
        w = self.weights
        if f.shape[: w.ndim] != w.shape:
            raise ValueError(f"f must begin with the axes {tuple(w.shape)}, got {tuple(f.shape)}")
        return w.reshape(w.shape + (1,) * (f.ndim - w.ndim))


@dataclass(frozen=True, eq=False)
class Subsample(Domain):
    """Some points of a domain with the measure of all; ``index`` holds their numbers, ascending."""

    index: Tensor


def stack(domains: Sequence[Domain]) -> Domain:
    """Batch domains of different sizes; the shorter ones are padded with points of measure zero.

    Raises
    ------
    ValueError
        If there are none, one is a batch, or their numbers of coordinates differ.
    """
    shapes = [tuple(domain.points.shape) for domain in domains]
    if {len(shape) for shape in shapes} != {2} or len({shape[-1] for shape in shapes}) > 1:
        raise ValueError(f"stack takes some domains with points (n, d) of one d, got {shapes}")
    size = max(n for n, _ in shapes)
    # The last point again, not the origin: that could lie far outside the domain.
    points = [torch.cat([d.points, d.points[-1:].expand(size - d.size, -1)]) for d in domains]
    weights = [torch.nn.functional.pad(d.weights, (0, size - d.size)) for d in domains]
    return Domain(torch.stack(points), torch.stack(weights))


def as_target(points: Domain | Tensor) -> Domain:
    """Bare points as a domain of measure zero: nobody integrates over a target."""
    if isinstance(points, Domain):
        return points
    return Domain(points, torch.zeros(points.shape[:-1], device=points.device))


def _floating(f: Tensor) -> Tensor:
    if f.is_complex():
        raise ValueError("f must be real: take real and imaginary part by themselves")
    return f if f.is_floating_point() else f.double()


def _refuse(bad: Tensor, rule: str, values: Tensor) -> None:
    if bad.any():
        index = tuple(torch.nonzero(bad)[0].tolist())
        name, value = index[0] if len(index) == 1 else index, values[index].tolist()
        raise ValueError(f"{rule}: entry {name} is {value} ({int(bad.sum())} such entries)")
