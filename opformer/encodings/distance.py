r"""Distance: the log-kernel is any radial function, for each head one, of ‖x_t − x_s‖.

.. math:: b_h(t,s) = \varphi_h(r), \qquad r = \lVert x_t-x_s\rVert.

It is unchanged by every motion of the space, so its symmetry is E(d). The function is a module of
its own, a profile: given here are those whose kernels are used in physics, and a network.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from opformer.domain import Domain
from opformer.encodings.base import PositionalEncoding

__all__ = [
    "DistanceBias",
    "ExponentialDecay",
    "PowerLaw",
    "Profile",
    "RadialBasis",
    "RadialNetwork",
    "distances",
]


# Over torch's usual range. Fits from 1 are slower: twice the error, in examples/which_encoding.py.
STEEP = 4.0


class Profile(nn.Module):
    """A radial function for each of ``heads`` heads: distances (..., n, m) to (..., h, n, m).

    ``pair_channels`` are the numbers it holds for a distance, as of the encoding.
    """

    heads: int
    pair_channels: int = 1

    def forward(self, r: Tensor) -> Tensor:
        """The logarithm of the kernel at a distance."""
        raise NotImplementedError


class DistanceBias(PositionalEncoding):
    """A bias of the log-kernel that depends on the distance of source and target alone.

    Parameters
    ----------
    profile : Profile
        The function of the distance, :class:`RadialBasis` for instance.

    Examples
    --------
    >>> source = Domain(torch.tensor([[0.0], [2.0]]), torch.ones(2))
    >>> DistanceBias(ExponentialDecay(1, lengths=(0.5, 0.5))).bias(source, source)[0, 1].tolist()
    [-4.0, -0.0]
    """

    symmetry = "E(d)"

    def __init__(self, profile: nn.Module) -> None:
        super().__init__()
        self.profile = profile

    @property
    def pair_channels(self) -> int:  # type: ignore[override]
        """Those of the profile."""
        return getattr(self.profile, "pair_channels", 1)

    def bias(self, target: Domain, source: Domain) -> Tensor:
        """φ of the distances, (..., h, n, m)."""
        with torch.autocast(source.points.device.type, enabled=False):
            return self.profile(distances(target, source))


class ExponentialDecay(Profile):
    r"""Screened interaction: :math:`\varphi_h(r) = -r/\ell_h`.

    Parameters
    ----------
    heads : int
    lengths : (float, float)
        Shortest and longest ℓ, geometric over the heads, and fitted.
    """

    def __init__(self, heads: int, *, lengths: tuple[float, float] = (0.1, 2.0)) -> None:
        super().__init__()
        self.heads, self.lengths = heads, tuple(lengths)
        self.log_length = nn.Parameter(geometric(heads, *self.lengths))

    def forward(self, r: Tensor) -> Tensor:
        """−r/ℓ."""
        return -r.unsqueeze(-3) / self.log_length.exp()[:, None, None].to(r.dtype)


class PowerLaw(Profile):
    r"""Long-range interaction: the kernel decays as a power, :math:`(1+r^2/\ell^2)^{-p_h/2}`.

    Parameters
    ----------
    heads : int
    length : float
        ℓ, below which the kernel is flat.
    powers : (float, float)
        Smallest and largest p, geometric over the heads, and fitted.
    """

    def __init__(
        self, heads: int, *, length: float = 0.1, powers: tuple[float, float] = (0.5, 4.0)
    ) -> None:
        super().__init__()
        self.heads, self.length, self.powers = heads, length, tuple(powers)
        self.log_power = nn.Parameter(geometric(heads, *self.powers))

    def forward(self, r: Tensor) -> Tensor:
        """−p/2 log(1 + r²/ℓ²)."""
        power = self.log_power.exp()[:, None, None].to(r.dtype)
        return -power / 2 * torch.log1p((r / self.length).square()).unsqueeze(-3)


class RadialBasis(Profile):
    r"""A sum of bumps: :math:`\varphi_h(r) = \sum_k a_{hk}\,e^{-(r-c_k)^2/2\delta^2}`.

    The centres c are equidistant from zero to the reach, δ is their distance; beyond the reach the
    bias fades to zero, and the kernel to a constant.

    Parameters
    ----------
    heads : int
    centers : int
    reach : float
        In the units of the coordinates.
    """

    def __init__(self, heads: int, *, centers: int = 16, reach: float = 2.0) -> None:
        super().__init__()
        if centers < 2:
            raise ValueError(f"centers must be at least 2, got {centers}")
        self.heads, self.centers, self.reach = heads, centers, reach
        self.pair_channels = centers
        self.amplitude = nn.Parameter(torch.randn(heads, centers) / math.sqrt(centers))

    def forward(self, r: Tensor) -> Tensor:
        """The sum of the bumps."""
        c = torch.linspace(0, self.reach, self.centers, dtype=r.dtype, device=r.device)
        bumps = torch.exp(-(((r.unsqueeze(-1) - c) / c[1]).square()) / 2)
        return (bumps @ self.amplitude.to(r.dtype).mT).movedim(-1, -3)


class RadialNetwork(Profile):
    r"""A small network of the distance, :math:`\varphi_h(r) = W_2\,\sigma(W_1 r + b_1)`.

    Parameters
    ----------
    heads : int
    hidden : int
    """

    def __init__(self, heads: int, *, hidden: int = 16) -> None:
        super().__init__()
        self.heads, self.hidden = heads, hidden
        self.pair_channels = hidden
        self.layers = network(1, hidden, heads)

    def forward(self, r: Tensor) -> Tensor:
        """The network at each distance."""
        dtype = next(self.parameters()).dtype
        return self.layers(r.unsqueeze(-1).to(dtype)).movedim(-1, -3)


def network(channels: int, hidden: int, heads: int) -> nn.Sequential:
    """Two layers, from what is known of a pair of points to a log-kernel of each head."""
    first = nn.Linear(channels, hidden)
    with torch.no_grad():  # a kernel is narrower than the domain: steeper than torch begins
        for parameter in first.parameters():
            parameter.mul_(STEEP)
    # No last bias: a constant cancels in the softmax.
    return nn.Sequential(first, nn.SiLU(), nn.Linear(hidden, heads, bias=False))


def distances(target: Domain, source: Domain) -> Tensor:
    """‖x_t − x_s‖, (..., n, m), by differences; its gradient is zero where the points coincide."""
    square = offsets(target, source).square().sum(-1)
    zero = square == 0
    return torch.where(zero, 1, square).sqrt().masked_fill(zero, 0)


def offsets(target: Domain, source: Domain) -> Tensor:
    """x_s − x_t, (..., n, m, d), in float32 at least."""
    dtype = torch.promote_types(source.points.dtype, torch.float32)
    return (source.points.unsqueeze(-3) - target.points.unsqueeze(-2)).to(dtype)


def geometric(heads: int, first: float, last: float) -> Tensor:
    """Logarithms of numbers from the first to the last, one for each head."""
    if not (0 < first < math.inf and 0 < last < math.inf):
        raise ValueError(f"the range of the heads must be positive, got {first} to {last}")
    place = torch.linspace(0, 1, heads) if heads > 1 else torch.tensor([0.5])
    return math.log(first) + (math.log(last) - math.log(first)) * place
