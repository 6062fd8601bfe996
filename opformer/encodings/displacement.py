r"""Displacement: the log-kernel is any function of x_s − x_t, as it is or read in a local frame.

.. math:: b(t,s) = N_h(x_s - x_t), \qquad
   b(t,s) = N_h\bigl(|\xi|^2,\; m_t\cdot\xi,\; \xi\cdot C_t\xi,\;
   \det[m_t, C_tm_t, \xi]\bigr), \quad \xi = x_s - x_t.

The frame at t is made of the domain around it: of the mean :math:`m_t` and the covariance
:math:`C_t` of the points near t, under the measure with a Gaussian window. Where the directions
:math:`m_t, C_tm_t` and their cross product span the space, the four numbers tell where ξ points;
where they do not, because the surroundings of t look the same on all sides, they fade to zero
instead of turning at random as principal axes would. The determinant (in the plane that of
:math:`[m_t, \xi]`) changes its sign in a mirror, all others are unchanged by every motion.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from opformer.domain import Domain
from opformer.encodings.base import PositionalEncoding
from opformer.encodings.distance import network, offsets
from opformer.steps import attention_weights

__all__ = ["DisplacementBias", "LocalFrameBias"]


class DisplacementBias(PositionalEncoding):
    """A small network of the displacement, for each head one output.

    Parameters
    ----------
    dim, heads : int
    hidden : int
        Width of the network.
    """

    symmetry = "translation"

    def __init__(self, dim: int, heads: int, *, hidden: int = 32) -> None:
        super().__init__()
        self.dim, self.heads, self.hidden = dim, heads, hidden
        self.pair_channels = hidden
        self.layers = network(dim, hidden, heads)

    def bias(self, target: Domain, source: Domain) -> Tensor:
        """The network at each displacement, (..., h, n, m)."""
        with torch.autocast(source.points.device.type, enabled=False):
            return _heads_first(self.layers, offsets(target, source))


class LocalFrameBias(PositionalEncoding):
    """A small network of the displacement as it is seen from the target, in its own surroundings.

    Parameters
    ----------
    dim : int
        2 or 3.
    heads : int
    length : float
        Of the Gaussian window, in the units of the coordinates.
    hidden : int
        Width of the network.
    """

    symmetry = "SE(d)"
    pairwise = False

    def __init__(self, dim: int, heads: int, *, length: float = 0.5, hidden: int = 32) -> None:
        super().__init__()
        if dim not in (2, 3):
            raise ValueError(f"a local frame needs 2 or 3 coordinates, got {dim}")
        self.dim, self.heads, self.length, self.hidden = dim, heads, length, hidden
        self.pair_channels = max(hidden, 4 * dim + 4)  # the network, or what the frame is made of
        self.layers = network(4, hidden, heads)

    def bias(self, target: Domain, source: Domain) -> Tensor:
        """The network at what the frame makes of each displacement, (..., h, n, m)."""
        with torch.autocast(source.points.device.type, enabled=False):
            return _heads_first(self.layers, self.invariants(target, source))

    def invariants(self, target: Domain, source: Domain) -> Tensor:
        """The four numbers, (..., n, m, 4), in units of the length."""
        xi = offsets(target, source) / self.length
        share = self._share(xi, source)
        mean = torch.einsum("...nm,...nmd->...nd", share, xi)
        off = xi - mean.unsqueeze(-2)
        covariance = torch.einsum("...nm,...nmi,...nmj->...nij", share, off, off)
        turned = torch.einsum("...nij,...nmj->...nmi", covariance, xi)
        return torch.stack(
            [
                xi.square().sum(-1),
                torch.einsum("...nd,...nmd->...nm", mean, xi),
                (xi * turned).sum(-1),
                self._orientation(mean, covariance, xi),
            ],
            -1,
        )

    def _share(self, xi: Tensor, source: Domain) -> Tensor:
        """The measure in the window around each target, normalised, (..., n, m)."""
        return attention_weights(-xi.square().sum(-1) / 2, source.weights)

    def _orientation(self, mean: Tensor, covariance: Tensor, xi: Tensor) -> Tensor:
        if self.dim == 2:
            return mean[..., None, 0] * xi[..., 1] - mean[..., None, 1] * xi[..., 0]
        second = torch.einsum("...ij,...j->...i", covariance, mean)
        return torch.einsum("...nd,...nmd->...nm", torch.linalg.cross(mean, second), xi)


def _heads_first(layers: nn.Sequential, x: Tensor) -> Tensor:
    """The network over the last axis, in its own precision, with the heads before (n, m)."""
    return layers(x.to(next(layers.parameters()).dtype)).movedim(-1, -3)
