r"""The past of a target: the causal mask as a Volterra operator.

.. math:: y(t) = \int_{s\le t}\alpha(t,s)\,v(s)\,d\mu(s), \qquad
   \alpha(t,s) = \frac{e^{p(t,s)}}{\int_{s'\le t}e^{p(t,s')}\,d\mu(s')}.

Times are compared, not places in the array. The weights of a time grid are those of cells that
reach half a step to both sides of their node, so the past ends within the cell of the last node
τ ≤ t. With the step :math:`h_-` before that node and :math:`h_+` after it, its weight becomes

.. math:: w_\tau\,\frac{h_- + 2\,(t-\tau)}{h_- + h_+},

which is the trapezoidal rule on the grid that ends at τ, and from there to t the rectangle, also
beyond the last node. The order is 2 (between nodes, where t is some steps from the start), and
nothing of the grid after t is in the result. This is the measure of nodes of time, or of their
product with another domain. Cells with a point at their centre, gaps in time, and meshes of space
and time that are no product are integrated with order 1 at least. Reference: P. Linz, Analytical
and Numerical Methods for Volterra Equations, SIAM 1985.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from opformer.domain import Domain

__all__ = ["Past", "continued", "coordinate", "lost_steps"]


class Past:
    """The part of the measure that is not later than each target.

    Parameters
    ----------
    target : Tensor, shape (..., n)
        The times of the targets.
    source : Tensor, shape (..., m)
        Those of the sources, in any order. Times that differ by rounding alone are one.
    weights : Tensor, shape (..., m), optional
        Of nodes of a time grid, or of its product with another domain: the last node before the
        target counts for the past part of its cell.
    atoms : bool
        Each source is an atom of the measure (an event, a token), that counts as a whole from its
        own time on. Without weights it always is.

    Examples
    --------
    >>> from opformer import kernel_integral
    >>> t, w = torch.tensor([0.0, 1.0, 2.0]), torch.tensor([0.5, 1.0, 0.5])
    >>> q, v = torch.zeros(1, 3, 8), torch.tensor([[[6.0], [0.0], [3.0]]])
    >>> kernel_integral(q, q, v, w, past=Past(t, t, w))[0, :, 0]  # means over time so far
    tensor([6.0000, 3.0000, 2.2500])
    >>> kernel_integral(q, q, v, past=Past(t, t))[0, :, 0]  # means of the events so far
    tensor([6., 3., 3.])
    """

    def __init__(
        self,
        target: Tensor,
        source: Tensor,
        weights: Tensor | None = None,
        *,
        atoms: bool = False,
    ) -> None:
        self.target, self.source = _settled(target, source, weights)
        self._last = None if weights is None or atoms else self._cut(weights)
        # Sources in the order of time, as a rule: the later ones need not even be read.
        ordered = bool((self.source.diff(dim=-1) >= 0).all())
        self._free: list[int] | None = None
        self._heard: list[int] | None = None
        if ordered:
            self._free, self._heard = self._count()

    def heard(self, rows: slice) -> int:
        """How many sources, from the first on, hold all that these targets hear; at least one."""
        m = self.source.shape[-1]
        return m if self._heard is None else min(m, max([1, *self._heard[rows]]))

    def restrict(self, p: Tensor | None, rows: slice, columns: slice) -> Tensor:
        """The log-kernel p (..., h, rows, columns), 0 if None, of the past alone.

        Where the source is later it is -inf, whatever p holds there; at the last time the logarithm
        of the share that is past is added.
        """
        if p is None and self._free is not None and columns.start is None:
            # The first of them are past for all these targets: zeros, without a comparison.
            free = min([columns.stop or self.source.shape[-1], *self._free[rows]])
            return F.pad(self.restrict(None, rows, slice(free, columns.stop)), (free, 0))
        t, s = self.target[..., None, rows, None], self.source[..., None, None, columns]
        p = t.new_zeros(()) if p is None else p
        if self._last is not None:
            last, log_share = (x[..., None, rows, None] for x in self._last)
            p = p + torch.where(s == last, log_share, 0).to(p.dtype)
        return torch.where(s > t, -torch.inf, p)

    def _cut(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """The last live time before each target, and the log of the share that its cell keeps."""
        live = self.source.masked_fill(weights == 0, torch.inf)
        # One more, of no source: there is always something after the last.
        times = F.pad(live.sort(-1).values, (0, 1), value=torch.inf)
        i = torch.searchsorted(times, self.target, right=True)
        last = times.gather(-1, (i - 1).clamp(min=0))
        after = times.gather(-1, i)
        after = torch.where(after.isinf(), last, after)  # the cell of the last node is a half one
        j = torch.searchsorted(times, last)
        before = times.gather(-1, (j - 1).clamp(min=0))
        share = (last - before + 2 * (self.target - last)) / (after - before)
        # At the first time all that is heard has one share, which the softmax cancels.
        return last, torch.where(j == 0, 1, share).log()

    def _count(self) -> tuple[list[int], list[int]]:
        """How many sources are past and of no cut cell, and how many are past, for each target."""
        heard = torch.searchsorted(self.source, self.target, right=True)
        free = heard
        if self._last is not None:
            free = torch.minimum(heard, torch.searchsorted(self.source, self._last[0]))
        samples, n = math.prod(heard.shape[:-1]), heard.shape[-1]
        if not samples:
            return [0] * n, [0] * n
        both = free.reshape(samples, n).amin(0), heard.reshape(samples, n).amax(0)
        return both[0].tolist(), both[1].tolist()


def continued(so_far: Domain, domain: Domain, axis: int, *, atoms: bool) -> Domain:
    """The points of a domain that has grown, after those that it had; each later than those.

    Raises
    ------
    ValueError
        If it does not begin with the points so far, if a new one of positive measure is not later,
        or if the weight of an atom has changed.
    """
    n = so_far.size
    if domain.points.shape[:-2] != so_far.points.shape[:-2] or not torch.equal(
        domain.points[..., :n, :], so_far.points
    ):
        raise ValueError(
            f"the domain must begin with the {n} points so far, as they were; got other ones, or "
            f"fewer: points {tuple(domain.points.shape)}"
        )
    if atoms and not torch.equal(domain.weights[..., :n], so_far.weights):
        raise ValueError("atoms keep their weights, got others for points that have been heard")
    new = domain.take(slice(n, None))
    heard = coordinate(so_far, axis).masked_fill(so_far.null, -torch.inf)
    times = coordinate(new, axis).masked_fill(new.null, torch.inf)
    early = times <= heard.amax(-1, keepdim=True)
    if early.any():
        raise ValueError(
            f"new points must be later than all so far along coordinate {axis}, got "
            f"{times[early].min().item():g} after {heard.max().item():g}"
        )
    return new


def lost_steps(times: Tensor, cast: Tensor) -> int:
    """How many steps of some times (..., n) are none after a cast; what is rounding is no step."""
    steps, kept = times.sort(-1).values.diff(dim=-1), cast.sort(-1).values
    real = steps > 1e-3 * steps.mean(-1, keepdim=True)
    return int(real.sum() - (kept.diff(dim=-1) > _resolution(kept)).sum().clamp(max=real.sum()))


def coordinate(domain: Domain, axis: int) -> Tensor:
    """One coordinate of the points, (..., n), without gradient: an order has none."""
    if not -domain.dim <= axis < domain.dim:
        raise ValueError(
            f"causal_axis must be one of {domain.dim} coordinates, got {axis} for points "
            f"{tuple(domain.points.shape)}"
        )
    return domain.points[..., axis].detach()


def _resolution(times: Tensor) -> Tensor:
    """What times (..., n) of this type do not tell apart after some rounding, (..., 1)."""
    size = times.abs().amax(-1, keepdim=True) if times.shape[-1] else times.sum(-1, keepdim=True)
    return 8 * torch.finfo(times.dtype).eps * size


def _settled(target: Tensor, source: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
    """Times that differ by rounding alone as one, the earliest: a layer of a mesh is one time."""
    both = torch.cat([target, source], -1)
    both = both if both.is_floating_point() else both.double()
    t, order = both.sort(-1)
    # By the size of times that are heard: no other target, and no point of measure zero, counts.
    live = both[..., target.shape[-1] :]
    live = live if weights is None else live.masked_fill(weights == 0, 0)
    apart = t.diff(dim=-1, prepend=t[..., :1]) > _resolution(live)
    place = torch.arange(t.shape[-1], device=t.device).expand_as(t)
    first = torch.where(apart, place, 0).cummax(-1).values
    settled = torch.empty_like(t).scatter(-1, order, t.gather(-1, first))
    n = target.shape[-1]
    return settled[..., :n].contiguous(), settled[..., n:].contiguous()
