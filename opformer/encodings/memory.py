r"""Fading memory: the log-kernel falls with the time that has passed.

.. math:: b(t,s) = -\frac{t-s}{\ell_t} = \frac{s}{\ell_t} - \frac{t}{\ell_t},

a product of two channels, so that an exponential kernel in time costs no (n, m) array. Sums of them
are the memories of viscoelastic and of many other dissipative materials.

Reference: Coleman and Noll, Foundations of linear viscoelasticity, Rev. Mod. Phys. 33 (1961).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from opformer.domain import Domain
from opformer.encodings.base import PositionalEncoding
from opformer.encodings.distance import geometric
from opformer.encodings.relative import bounded, changes
from opformer.integral import Factors

__all__ = ["FadingMemory"]


class FadingMemory(PositionalEncoding):
    r"""An exponential memory for each head, whose length may depend on the target's features.

    .. math:: b(t,s) = -\frac{t-s}{\ell_t}, \qquad \ell_t = \ell_h\,e^{-g(W x_t)},

    with ℓ geometric over the heads and fitted, and g bounded, ``|g| ≤ log 20``. It is meant for
    attentions with the ``causal_axis`` that it fades along: elsewhere the future would count most.

    Parameters
    ----------
    heads : int
    channels : int, optional
        Width of the tokens that the memory may depend on; without it all targets have the same.
    axis : int
        The coordinate that is time (negative: from the last).
    lengths : (float, float)
        Shortest and longest ℓ, in the units of the coordinates. The default suits coordinates in
        about [-1, 1].

    Examples
    --------
    >>> t = Domain(torch.tensor([[0.0], [2.0]]), torch.ones(2))
    >>> fq, fk = FadingMemory(1, lengths=(0.5, 0.5)).factors(t, t, torch.zeros(2, 8))
    >>> (fq @ fk.mT)[0, 1].tolist()  # of the target at 2
    [-4.0, 0.0]
    """

    symmetry = "translation"

    def __init__(
        self,
        heads: int,
        channels: int | None = None,
        *,
        axis: int = -1,
        lengths: tuple[float, float] = (0.05, 2.0),
    ) -> None:
        super().__init__()
        self.heads, self.channels = heads, channels
        self.axis, self.lengths = axis, tuple(lengths)
        self.log_length = nn.Parameter(geometric(heads, *self.lengths))
        self.change = nn.Linear(channels, heads) if channels else None

    def factors(self, target: Domain, source: Domain, tokens: Tensor) -> Factors:
        """Channels ``[1/ℓ, −t/ℓ]`` of the target and ``[s, 1]`` of the source."""
        with torch.autocast(tokens.device.type, enabled=False):
            tokens = tokens.to(torch.promote_types(tokens.dtype, torch.float32))
            rate = self._rate(tokens)  # (..., h, n, 1)
            # The kernel sees what has passed alone; far from zero the products below lose digits.
            origin = source.mean(source.points).unsqueeze(-2)
            t, s = (self._time(d.points - origin).to(rate.dtype) for d in (target, source))
            fk = torch.cat([s, torch.ones_like(s)], -1)
            return torch.cat([rate, -rate * t], -1), fk.expand(*fk.shape[:-3], self.heads, -1, -1)

    def _time(self, points: Tensor) -> Tensor:
        """(..., n, d) to (..., 1, n, 1)."""
        d = points.shape[-1]
        if not -d <= self.axis < d:
            raise ValueError(f"axis must be one of {d} coordinates, got {self.axis}")
        return points[..., self.axis, None].unsqueeze(-3)

    def _rate(self, tokens: Tensor) -> Tensor:
        change = bounded(changes(self.change, tokens, self.heads))
        return (change - self.log_length).exp().mT.unsqueeze(-1)
