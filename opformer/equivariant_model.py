r"""A model of scalar and vector fields that turns with the space, exactly.

.. math:: G(u\circ Q^{-1}) = Q\,G(u)

for every motion Q of the space, whatever the parameters: scalar outputs (pressure) move with the
points, vectors (velocity) and tensors (stress) turn too. Nothing in it knows a direction: no
coordinates enter, only differences, and vectors only by products, or as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from opformer.domain import Domain
from opformer.equivariant import (
    EquivariantBlock,
    EquivariantFeedForward,
    TokenNorm,
    Tokens,
    VectorMix,
)
from opformer.field_operator import FieldOperator
from opformer.motions import KINDS, channels_of, split
from opformer.transformer import Encoder

__all__ = ["EquivariantTransformer"]


class EquivariantTransformer(FieldOperator):
    """Pre-LN transformer between scalar, vector and tensor fields that keeps their symmetry.

    Parameters
    ----------
    dim : int
        2 or 3.
    inputs : list of "scalar" or "vector"
        What the input channels are, in their order; a vector has dim of them. The channels that
        mark the parts of a source are scalars.
    outputs : list of "scalar", "vector" or "tensor"
        A tensor is symmetric and has dim² channels, row by row.
    parameter_channels : int
        Number of global inputs, scalars.
    channels, vectors : int
        Width of the tokens: scalars and vectors, multiples of ``heads``.
    heads, layers : int
    hidden : int, optional
        Inner width of the feed-forward; 2·channels by default.
    lengths : (float, float)
        Shortest and longest of the Gaussians, for coordinates in about [-1, 1].
    reflections : bool
        Whether mirror images behave alike, E(d); otherwise only rotations and translations, SE(d).

    Examples
    --------
    >>> model = EquivariantTransformer(2, ["scalar", "vector"], ["vector"])
    >>> source = Domain(torch.rand(50, 2), torch.rand(50))
    >>> model(source, torch.randn(50, 3)).shape
    torch.Size([50, 2])
    """

    def __init__(
        self,
        dim: int,
        inputs: Sequence[str],
        outputs: Sequence[str],
        *,
        parameter_channels: int = 0,
        channels: int = 64,
        vectors: int = 16,
        heads: int = 4,
        layers: int = 4,
        hidden: int | None = None,
        lengths: tuple[float, float] = (0.1, 2.0),
        reflections: bool = True,
    ) -> None:
        super().__init__()
        self.dim, self.inputs, self.outputs = dim, list(inputs), list(outputs)
        self.parameter_channels, self.channels, self.vectors = parameter_channels, channels, vectors
        self.heads, self.layers, self.hidden = heads, layers, hidden
        self.lengths, self.reflections = lengths, reflections
        _check_kinds("inputs", self.inputs, KINDS[:2], dim)
        _check_kinds("outputs", self.outputs, KINDS, dim)
        self.in_channels = sum(channels_of(kind, dim) for kind in self.inputs)
        self.out_channels = sum(channels_of(kind, dim) for kind in self.outputs)
        tokens = Tokens(channels, vectors, dim)
        self.lift = VectorLift(tokens, self.inputs, parameter_channels, hidden, reflections)
        self.encoder = Encoder.of(
            [
                EquivariantBlock(
                    tokens, heads, hidden=hidden, lengths=self.lengths, reflections=reflections
                )
                for _ in range(layers)
            ],
            TokenNorm(tokens),
        )
        self.project = Projection(tokens, self.outputs, reflections)

    @property
    def kinds(self) -> tuple[list[str], list[str]]:
        """What the input and the output channels are."""
        return self.inputs, self.outputs

    @property
    def symmetry(self) -> str:
        """The motions of the space that the model turns with."""
        return "E(d)" if self.reflections else "SE(d)"


class VectorLift(nn.Module):
    """Tokens of the fields: scalars and vectors by a linear map each, and a feed-forward."""

    def __init__(
        self,
        tokens: Tokens,
        inputs: Sequence[str],
        parameters: int,
        hidden: int | None,
        reflections: bool,
    ) -> None:
        super().__init__()
        self.tokens = tokens
        self.kinds = [*inputs, *["scalar"] * parameters]
        vectors = self.kinds.count("vector")
        # One more channel, constant: the bias, and all there is where the geometry is the input.
        self.scalars = nn.Linear(self.kinds.count("scalar") + 1, tokens.scalars, bias=False)
        self.vectors = (
            VectorMix(vectors, tokens.vectors, tokens.dim, reflections=reflections)
            if vectors
            else None
        )
        self.feed_forward = EquivariantFeedForward(tokens, hidden, reflections=reflections)

    def forward(self, fields: Tensor, domain: Domain) -> Tensor:
        """(..., n, in_channels) to tokens (..., n, width)."""
        d = self.tokens.dim
        named = list(split(fields, self.kinds, d))
        one = torch.ones_like(domain.points[..., :1], dtype=fields.dtype)
        s = self.scalars(torch.cat([*(f for kind, f in named if kind == "scalar"), one], -1))
        if self.vectors is None:
            v = s.new_zeros(*s.shape[:-1], self.tokens.vectors, d)
        else:
            v = self.vectors(torch.stack([f for kind, f in named if kind == "vector"], -2))
        x = Tokens.join(s, v)
        return x + self.feed_forward(x)


class Projection(nn.Module):
    r"""Output fields of tokens: scalars, vectors, and symmetric tensors.

    .. math:: a = w\cdot[s, |AV|^2], \qquad v = (1+g(s))\,BV, \qquad
       T = a\,I + \tfrac12\sum_j (P_jV\otimes R_jV + R_jV\otimes P_jV).
    """

    def __init__(self, tokens: Tokens, outputs: Sequence[str], reflections: bool) -> None:
        super().__init__()
        self.tokens, self.kinds = tokens, list(outputs)
        numbers, vectors, tensors = (self.kinds.count(kind) for kind in KINDS)
        self.sizes = [numbers, tensors]
        c, p = tokens.scalars, tokens.vectors
        mix = partial(VectorMix, dim=tokens.dim, reflections=reflections)
        if numbers + tensors:
            self.lengths, self.scalars = mix(p, p), nn.Linear(c + p, numbers + tensors)
        if vectors:
            self.gate, self.vectors = nn.Linear(c, vectors), mix(p, vectors)
        if tensors:
            self.left, self.right = mix(p, p * tensors), mix(p, p * tensors)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens (..., n, width) to (..., n, out_channels)."""
        s, v = self.tokens.split(x)
        parts: dict[str, Iterator[Tensor]] = {}
        if sum(self.sizes):
            invariants = torch.cat([s, self.lengths(v).square().sum(-1)], -1)
            numbers, traces = self.scalars(invariants).split(self.sizes, -1)
            parts["scalar"] = iter(numbers.split(1, -1))
            if self.sizes[1]:
                parts["tensor"] = iter(self._tensors(v, traces))
        if "vector" in self.kinds:
            parts["vector"] = iter(((1 + self.gate(s)).unsqueeze(-1) * self.vectors(v)).unbind(-2))
        return torch.cat([next(parts[kind]) for kind in self.kinds], -1)

    def _tensors(self, v: Tensor, traces: Tensor) -> tuple[Tensor, ...]:
        shape = (traces.shape[-1], self.tokens.vectors)
        left, right = self.left(v).unflatten(-2, shape), self.right(v).unflatten(-2, shape)
        product = torch.einsum("...kpi,...kpj->...kij", left, right)
        eye = torch.eye(self.tokens.dim, dtype=v.dtype, device=v.device)
        return ((product + product.mT) / 2 + traces[..., None, None] * eye).flatten(-2).unbind(-2)


def _check_kinds(name: str, kinds: Sequence[str], known: Sequence[str], dim: int) -> None:
    if dim not in (2, 3):
        raise ValueError(f"vectors that turn need 2 or 3 coordinates, got dim={dim}")
    if isinstance(kinds, str) or any(kind not in known for kind in kinds):
        raise ValueError(f"{name} must be a list of {', '.join(known)}, got {kinds!r}")
