r"""Blocks whose tokens carry scalars and vectors, exactly equivariant at the cost of one kernel.

A token is :math:`(s, V)`, c scalars and p vectors of d components. Under a motion of the space, x →
Qx + a, the scalars stay and the vectors turn with Q. Attention remains one fused call, because
what turns enters by scalar products alone and leaves as a weighted mean:

.. math::
   p(t,s) = \frac{q_t\cdot k_s + \sum_i\langle Q_{t,i},K_{s,i}\rangle}{\sqrt{e}}
   - \gamma_t\,|x_s-x_t-u_t|^2, \qquad
   y_t = \int\alpha(t,s)\,[v_s,\,V_s,\,x_s-x_t]\,d\mu(s).

γ is made of the target's scalars and u of its vectors, so a head may look to one side and still has
no preferred direction in space. With ``reflections=False`` vectors may also be turned by 90° in the
plane, or multiplied as cross products in space; then a mirror image is told apart, and the symmetry
is SE(d).

References: Satorras et al., arXiv:2102.09844; Schütt et al., arXiv:2102.03150 (gated vectors).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from opformer.attention import KeyValues
from opformer.domain import Domain
from opformer.encodings.relative import gaussian_factors, gaussian_rates
from opformer.integral import Factors, kernel_integral

__all__ = [
    "EquivariantAttention",
    "EquivariantBlock",
    "EquivariantFeedForward",
    "TokenNorm",
    "Tokens",
    "VectorMix",
]


@dataclass(frozen=True)
class Tokens:
    """Tokens in one tensor (..., n, c + p·d): first the scalars, then the vectors, one by one."""

    scalars: int
    vectors: int
    dim: int

    @property
    def width(self) -> int:
        """c + p·d."""
        return self.scalars + self.vectors * self.dim

    def split(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Scalars (..., n, c) and vectors (..., n, p, d)."""
        s, v = x.split([self.scalars, self.vectors * self.dim], -1)
        return s, v.unflatten(-1, (self.vectors, self.dim))

    @staticmethod
    def join(s: Tensor, v: Tensor) -> Tensor:
        """The two in one tensor."""
        return torch.cat([s, v.flatten(-2)], -1)


class TokenNorm(nn.Module):
    """Layer norm of the scalars; the vectors over the root mean square of their lengths."""

    def __init__(self, tokens: Tokens) -> None:
        super().__init__()
        self.tokens = tokens
        self.scalars = nn.LayerNorm(tokens.scalars)
        self.gain = nn.Parameter(torch.ones(tokens.vectors))

    def forward(self, x: Tensor) -> Tensor:
        """The same for tokens of any shape (..., n, width)."""
        s, v = self.tokens.split(x)
        size = v.square().sum(-1).mean(-1, keepdim=True)
        v = v * (self.gain * torch.rsqrt(size + 1e-5)).unsqueeze(-1)
        return Tokens.join(self.scalars(s), v.to(s.dtype))


class VectorMix(nn.Module):
    """A linear map over the vectors of a token, the same for every component.

    Parameters
    ----------
    vectors, out : int
        Numbers of vectors that come and go.
    dim : int
    reflections : bool
        If not, and in the plane, each vector comes with itself turned by 90°.
    """

    def __init__(self, vectors: int, out: int, dim: int, *, reflections: bool = True) -> None:
        super().__init__()
        self.turned = dim == 2 and not reflections
        self.linear = nn.Linear(vectors * (2 if self.turned else 1), out, bias=False)

    def forward(self, v: Tensor) -> Tensor:
        """(..., vectors, d) to (..., out, d)."""
        if self.turned:
            v = torch.cat([v, torch.stack([-v[..., 1], v[..., 0]], -1)], -2)
        # Not in half precision: rounding along the axes of coordinates singles them out.
        with torch.autocast(v.device.type, enabled=False):
            return self.linear(v.to(self.linear.weight.dtype).mT).mT


class EquivariantAttention(nn.Module):
    """Multi-head attention of tokens with scalars and vectors.

    Parameters
    ----------
    tokens : Tokens
        ``scalars`` and ``vectors`` are multiples of ``heads``.
    heads : int
    lengths : (float, float)
        Of the Gaussians, see :class:`opformer.encodings.GaussianBias`.
    reflections : bool
    """

    def __init__(
        self,
        tokens: Tokens,
        heads: int,
        *,
        lengths: tuple[float, float] = (0.1, 2.0),
        reflections: bool = True,
    ) -> None:
        super().__init__()
        c, p, d = tokens.scalars, tokens.vectors, tokens.dim
        if c % heads or p % heads:
            raise ValueError(
                f"scalars and vectors must be multiples of heads, got {c}, {p} and {heads}"
            )
        self.tokens, self.heads = tokens, heads
        self.query, self.value = nn.Linear(c, c), nn.Linear(c, c)
        self.key = nn.Linear(c, c, bias=False)
        mix = partial(VectorMix, dim=d, reflections=reflections)
        self.query_vectors, self.key_vectors, self.value_vectors = (mix(p, p) for _ in range(3))
        shortest, longest = (math.log(ell) for ell in lengths)
        self.log_length = nn.Parameter(torch.linspace(shortest, longest, heads))
        self.width = nn.Linear(c, heads)
        self.center = mix(p, heads)
        self.out = nn.Linear(c + heads, c)
        self.out_vectors = mix(p + heads, p)

    def forward(self, x: Tensor, target: Domain, key_values: KeyValues) -> Tensor:
        """Tokens (..., n, width) at the target, as of :class:`opformer.Attention`."""
        s, v = self.tokens.split(x)
        source = key_values.source
        y = kernel_integral(
            self._heads(self.query(s), self.query_vectors(v)),
            key_values.key,
            key_values.value,
            source.weights,
            factors=self._factors(s, v, target, source),
        )
        return self._out(y, self._places(target, source, x.dtype), source)

    def key_values(self, memory: Tensor, source: Domain) -> KeyValues:
        """What the targets read of tokens (..., m, width) at the source, their places too."""
        s, v = self.tokens.split(source.zero_null(memory))
        values = self._heads(self.value(s), self.value_vectors(v))
        places = self._places(source, source, memory.dtype)
        return KeyValues(
            self._heads(self.key(s), self.key_vectors(v)), torch.cat([values, places], -1), source
        )

    def _out(self, y: Tensor, here: Tensor, source: Domain) -> Tensor:
        c, p, d = self.tokens.scalars, self.tokens.vectors, self.tokens.dim
        h = self.heads
        ys, yv, where = y.split([c // h, p // h * d, d], -1)
        alive = (source.total > 0)[..., None, None, None]
        # In units of the head's length: a step of the network, whatever the head's reach.
        drift = (where - here) * alive / self.log_length.exp()[:, None, None].to(y.dtype)
        scalars = ys.transpose(-3, -2).flatten(-2)
        vectors = torch.cat(
            [yv.transpose(-3, -2).flatten(-2).unflatten(-1, (p, d)), drift.transpose(-3, -2)], -2
        )
        size = drift.square().sum(-1).mT  # (..., n, h)
        return Tokens.join(
            self.out(torch.cat([scalars, size / (1 + size)], -1)), self.out_vectors(vectors)
        )

    def _heads(self, s: Tensor, v: Tensor) -> Tensor:
        """Scalars (..., n, c) and vectors (..., n, p, d) by head, side by side, (..., h, n, e)."""
        parts = (x.unflatten(-1, (self.heads, -1)).transpose(-3, -2) for x in (s, v.flatten(-2)))
        return torch.cat(tuple(parts), -1)

    def _places(self, domain: Domain, source: Domain, dtype: torch.dtype) -> Tensor:
        """Points counted from the centre of the source, for every head, (..., h, n, d)."""
        origin = source.mean(source.points).unsqueeze(-2)
        x = (domain.points - origin).to(dtype).unsqueeze(-3)
        return x.expand(*x.shape[:-3], self.heads, *x.shape[-2:])

    def _factors(self, s: Tensor, v: Tensor, target: Domain, source: Domain) -> Factors:
        gamma = gaussian_rates(self.log_length, self.width(s))
        shift = (self.center(v) * self.log_length.exp()[:, None]).transpose(-3, -2)
        return gaussian_factors(target, source, gamma, shift)


class EquivariantFeedForward(nn.Module):
    r"""Scalars by two layers, that see the vectors by their products; vectors by gates of scalars.

    .. math:: (s, V) \mapsto \bigl(W_2\,\sigma(W_1[s, \langle AV, BV\rangle] + b_1) + b_2,\;
       g(s, V)\,CV\bigr).

    Parameters
    ----------
    tokens : Tokens
    hidden : int, optional
        Inner width, 2·scalars by default.
    reflections : bool
        If not, the products of the plane hold turned vectors, and in space cross products join CV.
    """

    def __init__(
        self, tokens: Tokens, hidden: int | None = None, *, reflections: bool = True
    ) -> None:
        super().__init__()
        c, p, d = tokens.scalars, tokens.vectors, tokens.dim
        hidden = 2 * c if hidden is None else hidden
        self.tokens = tokens
        self.cross = d == 3 and not reflections
        mix = partial(VectorMix, dim=d, reflections=reflections)
        self.left, self.right = (mix(p, p) for _ in range(2))
        self.inner = nn.Sequential(nn.Linear(c + p, hidden), nn.GELU())
        self.outer, self.gate = nn.Linear(hidden, c), nn.Linear(hidden, p)
        self.vectors = mix(2 * p if self.cross else p, p)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens (..., n, width) to tokens."""
        s, v = self.tokens.split(x)
        left, right = self.left(v), self.right(v)
        inner = self.inner(torch.cat([s, (left * right).sum(-1)], -1))
        if self.cross:
            v = torch.cat([v, torch.linalg.cross(left, right)], -2)
        return Tokens.join(self.outer(inner), self.gate(inner).unsqueeze(-1) * self.vectors(v))


class EquivariantBlock(nn.Module):
    """Pre-LN attention and feed-forward of tokens with scalars and vectors."""

    def __init__(
        self,
        tokens: Tokens,
        heads: int,
        *,
        hidden: int | None = None,
        lengths: tuple[float, float] = (0.1, 2.0),
        reflections: bool = True,
    ) -> None:
        super().__init__()
        self.attention_norm, self.feed_forward_norm = TokenNorm(tokens), TokenNorm(tokens)
        self.attention = EquivariantAttention(
            tokens, heads, lengths=lengths, reflections=reflections
        )
        self.feed_forward = EquivariantFeedForward(tokens, hidden, reflections=reflections)

    def forward(self, x: Tensor, target: Domain, key_values: KeyValues | None = None) -> Tensor:
        """Tokens at the target after the block; without key_values the target is the source."""
        normed = self.attention_norm(x)
        read = self.attention.key_values(normed, target) if key_values is None else key_values
        x = x + self.attention(normed, target, read)
        return x + self.feed_forward(self.feed_forward_norm(x))

    def key_values(self, memory: Tensor, source: Domain) -> KeyValues:
        """What targets read of the source's tokens before the block."""
        return self.attention.key_values(self.attention_norm(memory), source)
