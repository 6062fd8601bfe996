r"""Relative position: the log-kernel depends on the offset of source and target.

.. math:: b(t,s) = -\gamma_t\,|x_s - x_t - u_t|^2
   = 2\gamma_t\,c_t\cdot x_s - \gamma_t|x_s|^2 - \gamma_t|c_t|^2, \qquad c_t = x_t + u_t,

a product of d + 2 channels, so that the Gaussian costs no (n, m) array. An anisotropic one is the
same in coordinates that each head stretches for itself.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from opformer.domain import Domain
from opformer.encodings.base import PositionalEncoding
from opformer.encodings.distance import geometric
from opformer.integral import Factors

__all__ = ["GaussianBias", "bounded", "changes", "gaussian_factors", "gaussian_rates"]

# The token may change a rate by this factor at most: factor channels cancel to about eps · γR².
MAX_CHANGE = 20.0


class GaussianBias(PositionalEncoding):
    r"""A Gaussian kernel for each head, whose width and centre may depend on the target's features.

    .. math:: b(t,s) = -\gamma_t\,|A_h(x_s - x_t) - u_t|^2, \qquad
       \gamma_t = \gamma_h\,e^{g(W_\gamma x_t)}, \qquad u_t = W_u x_t / \sqrt{2\gamma_h},

    with γ_h = 1/(2ℓ²), ℓ geometric over the heads and fitted, and g bounded, ``|g| ≤ log 20``. A is
    the identity, or fitted and symmetric positive.

    Parameters
    ----------
    dim : int
    heads : int
    channels : int, optional
        Width of the tokens that the kernel may depend on; without it all targets have the same.
    shift : bool
        Whether the centre depends on the tokens too. The kernel is then no longer isotropic, only
        translation-invariant.
    lengths : (float, float)
        Shortest and longest ℓ, in the units of the coordinates. The default suits coordinates in
        about [-1, 1].
    anisotropic : bool
        Whether each head fits a matrix A, the identity at first, for physics that prefers a
        direction: flow, fibres, layers.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        channels: int | None = None,
        *,
        shift: bool = True,
        lengths: tuple[float, float] = (0.1, 2.0),
        anisotropic: bool = False,
    ) -> None:
        super().__init__()
        self.dim, self.heads, self.channels = dim, heads, channels
        self.shift, self.lengths, self.anisotropic = shift, tuple(lengths), anisotropic
        self.log_length = nn.Parameter(geometric(heads, *self.lengths))
        self.log_stretch = nn.Parameter(torch.zeros(heads, dim, dim)) if anisotropic else None
        self.width = nn.Linear(channels, heads) if channels else None
        self.center = nn.Linear(channels, heads * dim, bias=False) if channels and shift else None

    @property
    def symmetry(self) -> str:  # type: ignore[override]
        """E(d), or only translation with centres made of scalar features, or if anisotropic."""
        isotropic = not self.anisotropic or self.dim == 1
        return "E(d)" if self.center is None and isotropic else "translation"

    def factors(self, target: Domain, source: Domain, tokens: Tensor) -> Factors:
        """Channels ``[2γc, −γ, −γ|c|²]`` of the target and ``[x, |x|², 1]`` of the source."""
        with torch.autocast(tokens.device.type, enabled=False):
            tokens = tokens.to(torch.promote_types(tokens.dtype, torch.float32))
            gamma, shift = self._gamma(tokens), self._shift(tokens)
            return gaussian_factors(target, source, gamma, shift, self._stretch())

    def _gamma(self, tokens: Tensor) -> Tensor:
        """γ of each head and target, (..., h, n, 1)."""
        return gaussian_rates(self.log_length, changes(self.width, tokens, self.heads))

    def _shift(self, tokens: Tensor) -> Tensor:
        """u of each head and target, (..., h, n, d), in units of the head's length."""
        if self.center is None:
            return tokens.new_zeros(())
        u = self.center(tokens).unflatten(-1, (self.heads, self.dim))
        return (u * self.log_length.exp()[:, None]).transpose(-3, -2)

    def _stretch(self) -> Tensor | None:
        """A of each head, (h, d, d): the exponential of a symmetric matrix is positive."""
        if self.log_stretch is None:
            return None
        return torch.linalg.matrix_exp(self.log_stretch + self.log_stretch.mT)


def gaussian_rates(log_length: Tensor, change: Tensor) -> Tensor:
    r"""γ = e^g / 2ℓ², (..., h, n, 1), of the heads' ℓ and of what the tokens say, (..., n, h).

    The latter is bounded, :math:`|g|\le\log 20`.
    """
    return (bounded(change) - 2 * log_length - math.log(2)).exp().mT.unsqueeze(-1)


def changes(layer: nn.Linear | None, tokens: Tensor, heads: int) -> Tensor:
    """What the tokens (..., n, c) say to each head, (..., n, h); nothing without a layer."""
    return tokens.new_zeros(*tokens.shape[:-1], heads) if layer is None else layer(tokens)


def bounded(change: Tensor) -> Tensor:
    r"""The logarithm of a change, as it is near 0, and :math:`|g|\le\log 20` anywhere."""
    bound = math.log(MAX_CHANGE)
    return bound * torch.tanh(change / bound)


def gaussian_factors(
    target: Domain, source: Domain, gamma: Tensor, shift: Tensor, stretch: Tensor | None = None
) -> Factors:
    r"""Channels whose product is :math:`-\gamma_t|A(x_s-x_t)-u_t|^2`.

    ``gamma`` is (..., h, n, 1), ``shift`` (..., h, n, d), or broadcasts to it, and ``stretch`` the
    symmetric matrices A, (h, d, d), the identity if not given.
    """
    # The kernel sees offsets alone; the products below lose digits far from the origin.
    origin = source.mean(source.points).unsqueeze(-2)
    x = (source.points - origin).to(gamma.dtype).unsqueeze(-3)  # (..., 1, m, d)
    y = (target.points - origin).to(gamma.dtype).unsqueeze(-3)  # (..., 1, n, d)
    if stretch is not None:
        x, y = x @ stretch.to(x.dtype), y @ stretch.to(y.dtype)  # (..., h, m, d), (..., h, n, d)
    center = (y + shift).expand(*gamma.shape[:-1], x.shape[-1])
    constant = -gamma * center.square().sum(-1, keepdim=True)
    fq = torch.cat([2 * gamma * center, -gamma, constant], -1)
    fk = torch.cat([x, x.square().sum(-1, keepdim=True), torch.ones_like(x[..., :1])], -1)
    return fq, fk.expand(*fk.shape[:-3], gamma.shape[-3], *fk.shape[-2:])
