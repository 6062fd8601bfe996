r"""Transformer blocks over domains: base state plus interaction correction plus pointwise map.

.. math:: x \leftarrow x + A(\mathrm{LN}\,x), \qquad x \leftarrow x + \mathrm{FFN}(\mathrm{LN}\,x),
   \qquad \mathrm{FFN}(x) = W_2\,\sigma(W_1 x + b_1) + b_2

(Pre-LN; Post-LN, :math:`x\leftarrow\mathrm{LN}(x+F(x))`, on request). Every block can be read at
any target: a point of measure zero, which listens to the sources and is not heard. References:
Vaswani et al., arXiv:1706.03762; Xiong et al., arXiv:2002.04745 (Pre-LN); Shazeer,
arXiv:2002.05202 (SwiGLU).
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from opformer.attention import Attention, KeyValues
from opformer.domain import Domain
from opformer.encodings import Compose, PositionalEncoding

__all__ = ["Decoder", "DecoderBlock", "Encoder", "EncoderBlock", "FeedForward"]


class SwiGLU(nn.Module):
    """One half of the channels gates the other, (a, c) to silu(a) · c."""

    def forward(self, x: Tensor) -> Tensor:
        """(..., 2k) to (..., k)."""
        gate, value = x.chunk(2, -1)
        return F.silu(gate) * value


ACTIVATIONS: dict[str, type[nn.Module]] = {"gelu": nn.GELU, "relu": nn.ReLU, "swiglu": SwiGLU}


class FeedForward(nn.Sequential):
    r"""Two layers at every point: Linear, activation, Linear.

    With "swiglu" it is :math:`W_2\bigl(\mathrm{silu}(W_1 x + b_1)\odot(W_3 x + b_3)\bigr) + b_2`,
    and the first layer holds :math:`W_1` over :math:`W_3`.

    Parameters
    ----------
    channels : int
    hidden : int, optional
        Width of the inner layer; 2·channels by default.
    activation : "gelu", "relu" (that of 2017) or "swiglu"
    """

    def __init__(self, channels: int, hidden: int | None = None, activation: str = "gelu") -> None:
        if activation not in ACTIVATIONS:
            raise ValueError(f"activation must be one of {[*ACTIVATIONS]}, got {activation!r}")
        hidden = 2 * channels if hidden is None else hidden
        first = nn.Linear(channels, 2 * hidden if activation == "swiglu" else hidden)
        super().__init__(first, ACTIVATIONS[activation](), nn.Linear(hidden, channels))


class EncoderBlock(nn.Module):
    """Attention and feed-forward, each with its residual and layer norm.

    Parameters
    ----------
    channels, heads : int
    encoding : PositionalEncoding, optional
    hidden : int, optional
    norm_first : bool
        Pre-LN (True) or Post-LN.
    qk_norm : bool
    causal_axis : int, optional
    atoms : bool
        Of :class:`opformer.Attention`: the coordinate that orders the domain, and what its points
        are.
    activation : str
        Of :class:`FeedForward`.
    """

    def __init__(
        self,
        channels: int,
        heads: int,
        *,
        encoding: PositionalEncoding | None = None,
        hidden: int | None = None,
        norm_first: bool = True,
        qk_norm: bool = True,
        causal_axis: int | None = None,
        atoms: bool = False,
        activation: str = "gelu",
    ) -> None:
        super().__init__()
        self.norm_first = norm_first
        self.attention = Attention(
            channels,
            heads,
            encoding=encoding,
            qk_norm=qk_norm,
            causal_axis=causal_axis,
            atoms=atoms,
        )
        self.feed_forward = FeedForward(channels, hidden, activation)
        self.attention_norm = nn.LayerNorm(channels)
        self.feed_forward_norm = nn.LayerNorm(channels)

    def forward(
        self,
        x: Tensor,
        target: Domain,
        memory: Tensor | KeyValues | None = None,
        source: Domain | None = None,
    ) -> Tensor:
        """Tokens at the target after the block; ``memory`` are the source's before it (x).

        Or ``memory`` is what :meth:`key_values` has made of these.
        """
        if isinstance(memory, Tensor) and source is not None:
            memory, source = self.key_values(memory, source), None
        if not self.norm_first:
            x = self.attention_norm(x + self.attention(x, target, memory, source))
            return self.feed_forward_norm(x + self.feed_forward(x))
        x = x + self.attention(self.attention_norm(x), target, memory, source)
        return x + self.feed_forward(self.feed_forward_norm(x))

    def key_values(self, memory: Tensor, source: Domain) -> KeyValues:
        """What targets read of the source's tokens before the block."""
        memory = self.attention_norm(memory) if self.norm_first else memory
        return self.attention.key_values(memory, source)


class DecoderBlock(EncoderBlock):
    """The same from a memory that an encoder has already normalised.

    There is no self-attention among the targets: the value at one must not depend on the others.
    """

    def key_values(self, memory: Tensor, source: Domain) -> KeyValues:
        """What targets read of the memory, as it is."""
        return self.attention.key_values(memory, source)


class Stack(nn.Module):
    """Blocks one after the other, and a last layer norm if Pre-LN.

    Parameters
    ----------
    layers, channels, heads : int
    encoding : PositionalEncoding, optional
        Each block gets a copy of its kernel hooks. Embeddings belong to whoever makes the tokens.
    **options
        Of :class:`EncoderBlock`.
    """

    block: type[EncoderBlock]
    blocks: Sequence[EncoderBlock]

    def __init__(
        self,
        layers: int,
        channels: int,
        heads: int,
        *,
        encoding: PositionalEncoding | None = None,
        norm_first: bool = True,
        **options: Any,
    ) -> None:
        super().__init__()
        kernel = (encoding or Compose()).only("rotate", "factors", "bias")
        self.blocks = nn.ModuleList(  # type: ignore[assignment]
            self.block(channels, heads, encoding=deepcopy(kernel), norm_first=norm_first, **options)
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(channels) if norm_first else nn.Identity()

    def at(self, x: Tensor, target: Domain, key_values: Sequence[KeyValues]) -> Tensor:
        """Tokens at the target, (..., n, c), with what each block reads of the source."""
        for block, read in zip(self.blocks, key_values, strict=True):
            x = block(x, target, read)
        return self.norm(x)


class Encoder(Stack):
    """A stack of :class:`EncoderBlock` over one domain.

    ``Encoder(layers, channels, heads, *, encoding=None, norm_first=True, hidden=None,
    qk_norm=True, causal_axis=None, atoms=False, activation="gelu")``.
    """

    block = EncoderBlock

    @classmethod
    def of(cls, blocks: Sequence[nn.Module], norm: nn.Module) -> Encoder:
        """A stack of given blocks, that are called like :class:`EncoderBlock`."""
        encoder = cls.__new__(cls)
        nn.Module.__init__(encoder)
        encoder.blocks = nn.ModuleList(blocks)  # type: ignore[assignment]
        encoder.norm = norm  # type: ignore[assignment]
        return encoder

    def forward(self, x: Tensor, domain: Domain) -> Tensor:
        """Tokens (..., n, c) of a domain to tokens of the same domain."""
        for block in self.blocks:
            x = block(x, domain)
        return self.norm(x)

    def run(
        self, x: Tensor, domain: Domain, past: Sequence[KeyValues] | None = None
    ) -> tuple[Tensor, list[KeyValues]]:
        """The tokens after all blocks, and what each has read, which :meth:`at` reads again.

        Parameters
        ----------
        x : Tensor, shape (..., n, c)
        domain : Domain
            Of n points; with ``past`` of all points so far, of which the n are the last.
        past : list of KeyValues, optional
            Of the points before them, from an earlier call.
        """
        read = []
        new = domain if past is None else domain.take(slice(domain.size - x.shape[-2], None))
        for i, block in enumerate(self.blocks):
            key_values = block.key_values(x, new)
            if past is not None:
                key_values = past[i].append(key_values, domain)
            read.append(key_values)
            x = block(x, new, key_values)
        return self.norm(x), read


class Decoder(Stack):
    """A stack of :class:`DecoderBlock`: every block integrates over the memory of an encoder."""

    block = DecoderBlock

    def forward(self, x: Tensor, target: Domain, memory: Tensor, source: Domain) -> Tensor:
        """Tokens at the targets, (..., n, c), from the encoded source."""
        return self.at(x, target, self.key_values(memory, source))

    def key_values(self, memory: Tensor, source: Domain) -> list[KeyValues]:
        """What each block reads of the memory."""
        return [block.key_values(memory, source) for block in self.blocks]
