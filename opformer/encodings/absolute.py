r"""Absolute position: the token learns where it is. For inhomogeneous media; no symmetry.

.. math:: \tilde x_t = x_t + p(t).

Reference: Vaswani et al., arXiv:1706.03762, section 3.5; Tancik et al., arXiv:2006.10739.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from opformer.domain import Domain
from opformer.encodings.base import PositionalEncoding

__all__ = ["Coordinates", "FourierFeatures", "Sinusoidal"]


class Coordinates(PositionalEncoding):
    r"""A learned linear map of the coordinates: :math:`p(t) = W x_t`.

    Parameters
    ----------
    dim : int
        Number of coordinates.
    channels : int
        Width of the tokens.
    """

    def __init__(self, dim: int, channels: int) -> None:
        super().__init__()
        self.dim, self.channels = dim, channels
        self.linear = nn.Linear(dim, channels, bias=False)

    def embed(self, features: Tensor, domain: Domain) -> Tensor:
        """Add W x to the tokens."""
        with torch.autocast(features.device.type, enabled=False):
            position = self.linear(domain.points.to(self.linear.weight.dtype))
        return features + position.to(features.dtype)


class Sinusoidal(PositionalEncoding):
    r"""The sinusoidal encoding, for any number of coordinates; nothing is learned.

    .. math:: p(t) = \bigl[\sin(t/\lambda_0), \cos(t/\lambda_0), \sin(t/\lambda_1), \dots\bigr],
       \qquad \lambda_j = \ell\,10000^{2j/c},

    for each coordinate, with c = channels / dim. The λ are wavelengths over 2π, and
    ⟨p(t), p(s)⟩ = Σ_j cos((t−s)/λ_j) depends on the offset alone.

    Parameters
    ----------
    dim : int
    channels : int
        Width of the tokens, a multiple of 2·dim.
    unit : float
        The length ℓ: 1 for integer positions; for coordinates, about the distance of neighbours.
    base : float
        The ratio that the wavelengths approach, longest to shortest; 10000 in 2017.
    """

    def __init__(
        self, dim: int, channels: int, *, unit: float = 1.0, base: float = 10000.0
    ) -> None:
        super().__init__()
        if channels % (2 * dim):
            raise ValueError(f"channels must be a multiple of 2·dim = {2 * dim}, got {channels}")
        self.dim, self.channels, self.unit, self.base = dim, channels, unit, base

    def embed(self, features: Tensor, domain: Domain) -> Tensor:
        """Add p(t) to the tokens."""
        return features + self.table(domain.points).to(features.dtype)

    def table(self, points: Tensor) -> Tensor:
        """p at the points (..., d): (..., channels)."""
        c = self.channels // self.dim
        wavelengths = self.unit * self.base ** (torch.arange(0, c, 2).to(points) / c)
        angles = points.unsqueeze(-1) / wavelengths
        return torch.stack([angles.sin(), angles.cos()], -1).flatten(-3)


class FourierFeatures(PositionalEncoding):
    r"""Random Fourier features of the coordinates, mixed by a learned linear map.

    .. math:: p(t) = \sqrt2\,W\,[\sin(B x_t), \cos(B x_t)],
       \qquad B_{ij}\sim\mathcal N(0, 1/\ell^2).

    Parameters
    ----------
    dim, channels : int
    frequencies : int
        Number of rows of B.
    length : float
        The length ℓ over which the features vary.
    learnable : bool
        Whether B is fitted too.
    """

    def __init__(
        self,
        dim: int,
        channels: int,
        *,
        frequencies: int = 32,
        length: float = 0.5,
        learnable: bool = False,
    ) -> None:
        super().__init__()
        self.dim, self.channels, self.frequencies = dim, channels, frequencies
        self.length, self.learnable = length, learnable
        self.wave = nn.Parameter(torch.randn(dim, frequencies) / length, requires_grad=learnable)
        self.linear = nn.Linear(2 * frequencies, channels, bias=False)

    def embed(self, features: Tensor, domain: Domain) -> Tensor:
        """Add p(t) to the tokens."""
        with torch.autocast(features.device.type, enabled=False):
            angles = domain.points.to(self.wave.dtype) @ self.wave
            waves = torch.cat([angles.sin(), angles.cos()], -1) * math.sqrt(2)
            position = self.linear(waves)
        return features + position.to(features.dtype)
