r"""Rotary position: query and key turn with their positions, so their product sees the offset.

.. math:: \langle R(x_t)q_t, R(x_s)k_s\rangle = \langle q_t, R(x_s-x_t)k_s\rangle,

where R(x) turns the pair j of channels by the angle κ_j·x. Reference: Su et al., arXiv:2104.09864,
here with wave vectors κ_j in space instead of frequencies along a sequence.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from opformer.domain import Domain
from opformer.encodings.base import PositionalEncoding

__all__ = ["Rotary"]


class Rotary(PositionalEncoding):
    r"""Rotary encoding for continuous coordinates in any number of dimensions.

    The wave vectors of each head point in random directions; their wavelengths are geometric from
    the shortest to the longest. Both are fitted if ``learnable``.

    Parameters
    ----------
    dim : int
    heads : int
    channels : int
        Width of one head, e; even.
    wavelengths : (float, float)
        Shortest and longest, in the units of the coordinates. The default suits coordinates in
        about [-1, 1].
    learnable : bool
    """

    symmetry = "translation"

    def __init__(
        self,
        dim: int,
        heads: int,
        channels: int,
        *,
        wavelengths: tuple[float, float] = (0.5, 8.0),
        learnable: bool = True,
    ) -> None:
        super().__init__()
        if channels % 2:
            raise ValueError(f"channels of a head must be even, got {channels}")
        self.dim, self.heads, self.channels = dim, heads, channels
        self.wavelengths, self.learnable = tuple(wavelengths), learnable
        directions = nn.functional.normalize(torch.randn(heads, channels // 2, dim), dim=-1)
        shortest, longest = (math.log(w) for w in self.wavelengths)
        numbers = 2 * math.pi / torch.linspace(longest, shortest, channels // 2).exp()
        self.wave = nn.Parameter(directions * numbers[:, None], requires_grad=learnable)

    def rotate(self, x: Tensor, domain: Domain) -> Tensor:
        """Turn the pairs (j, j + e/2) of channels by κ_j·x, in float32 or better."""
        with torch.autocast(x.device.type, enabled=False):
            points = domain.points.to(torch.promote_types(x.dtype, torch.float32))
            angles = torch.einsum("...nd,hjd->...hnj", points, self.wave.to(points.dtype))
            a, b = x.to(points.dtype).chunk(2, -1)
            cos, sin = angles.cos(), angles.sin()
            return torch.cat([a * cos - b * sin, a * sin + b * cos], -1).to(x.dtype)
