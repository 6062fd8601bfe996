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

    The wavelengths of each head are geometric from the longest to the shortest. Wave vectors and
    with them the wavelengths are fitted if ``learnable``.

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
    directions : "random" or "axes"
        Of the wave vectors: drawn for each pair of channels, evenly from all directions, or along
        the axes in turn, all axes with the same wavelengths.

    Examples
    --------
    With integer positions and these wavelengths it is that of 2021, from the longest wave on:

    >>> wavelengths = 2 * math.pi, 2 * math.pi * 10000 ** (3 / 4)
    >>> Rotary(1, 1, 8, wavelengths=wavelengths, directions="axes").wave[0, :, 0].detach()
    tensor([0.0010, 0.0100, 0.1000, 1.0000])
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
        directions: str = "random",
    ) -> None:
        super().__init__()
        if channels % 2:
            raise ValueError(f"channels of a head must be even, got {channels}")
        if directions not in ("random", "axes"):
            raise ValueError(f'directions must be "random" or "axes", got {directions!r}')
        if directions == "axes" and channels < 2 * dim:
            raise ValueError(
                f"directions along {dim} axes need {2 * dim} channels a head at least, "
                f"got {channels}"
            )
        self.dim, self.heads, self.channels = dim, heads, channels
        self.wavelengths, self.learnable = tuple(wavelengths), learnable
        self.directions = directions
        self.wave = nn.Parameter(self._wave_vectors(), requires_grad=learnable)

    def rotate(self, x: Tensor, domain: Domain) -> Tensor:
        """Turn the pairs (j, j + e/2) of channels by κ_j·x, in float32 or better."""
        with torch.autocast(x.device.type, enabled=False):
            points = domain.points.to(torch.promote_types(x.dtype, torch.float32))
            angles = torch.einsum("...nd,hjd->...hnj", points, self.wave.to(points.dtype))
            a, b = x.to(points.dtype).chunk(2, -1)
            cos, sin = angles.cos(), angles.sin()
            return torch.cat([a * cos - b * sin, a * sin + b * cos], -1).to(x.dtype)

    def _wave_vectors(self) -> Tensor:
        """κ of each head and pair, (h, e/2, d), from the longest wave to the shortest."""
        pairs, step = self.channels // 2, self.dim if self.directions == "axes" else 1
        shortest, longest = (math.log(w) for w in self.wavelengths)
        scales = torch.linspace(longest, shortest, -(-pairs // step))
        numbers = 2 * math.pi / scales.exp().repeat_interleave(step)[:pairs, None]
        if self.directions == "random":
            towards = nn.functional.normalize(torch.randn(self.heads, pairs, self.dim), dim=-1)
        else:
            towards = torch.eye(self.dim).repeat(len(scales), 1)[:pairs]
        return (towards * numbers).expand(self.heads, pairs, self.dim).clone()
