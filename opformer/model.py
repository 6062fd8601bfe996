r"""The operator network: from a function on one domain to a function that can be read at any point.

.. math:: u \;\mapsto\; \bigl(t \mapsto
   \mathrm{project}\circ B_L\circ\dots\circ B_1\circ \mathrm{lift}(u)(t)\bigr)

A target is a point of measure zero: it runs through the same blocks as the sources, listens to
them, and is not heard. So one trained model answers at its own nodes and anywhere else, and what it
says at a target depends on no other target. With ``decoder_layers`` the targets start from a
learned token instead and read only the encoded source; that is for outputs on another domain than
the inputs.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from opformer.domain import Domain
from opformer.encodings import Compose, Coordinates, GaussianBias, PositionalEncoding, Rotary
from opformer.encodings.base import SYMMETRIES
from opformer.field_operator import FieldOperator
from opformer.transformer import Decoder, Encoder, FeedForward

__all__ = ["OperatorTransformer", "default_encoding"]


def default_encoding(dim: int, channels: int, heads: int) -> PositionalEncoding:
    """Absolute coordinates in the lift, rotary, and a Gaussian that depends on the target."""
    return Compose(
        Coordinates(dim, channels),
        Rotary(dim, heads, channels // heads),
        GaussianBias(dim, heads, channels),
    )


class OperatorTransformer(FieldOperator):
    r"""Pre-LN transformer between functions on domains with a measure.

    Parameters
    ----------
    dim : int
        Number of coordinates.
    in_channels : int
        Channels of the input fields; 0 where the geometry is the input.
    out_channels : int
    parameter_channels : int
        Number of global inputs (Reynolds number, angle of attack, time).
    channels, heads, layers : int
        Width of the tokens, kernels per layer, blocks of the encoder.
    decoder_layers : int
        0: targets run through the encoder's blocks. Positive: that many cross-attention blocks from
        a learned token.
    hidden : int, optional
        Inner width of the feed-forward; 2·channels by default.
    encoding : PositionalEncoding, optional
        :func:`default_encoding` if not given, for coordinates in about [-1, 1]. Coordinates enter
        through it alone, so the model has the symmetry that it declares.
    norm_first, qk_norm : bool
        Pre-LN; root-mean-square norm of queries and keys.
    causal_axis : int, optional
        The coordinate that orders the domain, time for instance: no output depends on fields where
        it is larger. Times that the model's dtype does not tell apart are equal. The symmetry is
        then translation at most.
    atoms : bool
        Whether the points are events or tokens, along that coordinate, rather than nodes of a time
        grid; see :class:`opformer.Attention`.
    activation : "gelu", "relu" or "swiglu"
        Of all feed-forwards.

    Examples
    --------
    >>> model = OperatorTransformer(dim=2, in_channels=1, out_channels=3)
    >>> source = Domain(torch.rand(50, 2), torch.rand(50))
    >>> model(source, torch.randn(50, 1)).shape
    torch.Size([50, 3])
    >>> state = model.encode(source, torch.randn(50, 1))
    >>> model.decode(state, torch.rand(7, 2)).shape
    torch.Size([7, 3])
    """

    encoding: PositionalEncoding

    @property
    def symmetry(self) -> str:
        """The motions of the space that the model does not see."""
        if self.causal_axis is None:
            return self.encoding.symmetry
        return min(self.encoding.symmetry, "translation", key=SYMMETRIES.index)

    def __init__(
        self,
        dim: int,
        in_channels: int,
        out_channels: int,
        *,
        parameter_channels: int = 0,
        channels: int = 64,
        heads: int = 4,
        layers: int = 4,
        decoder_layers: int = 0,
        hidden: int | None = None,
        encoding: PositionalEncoding | None = None,
        norm_first: bool = True,
        qk_norm: bool = True,
        causal_axis: int | None = None,
        atoms: bool = False,
        activation: str = "gelu",
    ) -> None:
        super().__init__()
        if causal_axis is not None and causal_axis not in range(-dim, dim):
            raise ValueError(f"causal_axis must be one of {dim} coordinates, got {causal_axis!r}")
        self.dim, self.in_channels, self.out_channels = dim, in_channels, out_channels
        self.parameter_channels, self.channels, self.heads = parameter_channels, channels, heads
        self.layers, self.decoder_layers, self.hidden = layers, decoder_layers, hidden
        self.norm_first, self.qk_norm = norm_first, qk_norm
        self.causal_axis, self.atoms, self.activation = causal_axis, atoms, activation
        encoding = default_encoding(dim, channels, heads) if encoding is None else encoding
        # Kept for its description, out of the module tree: the copies below have the parameters.
        object.__setattr__(self, "encoding", encoding)
        options: dict[str, Any] = {"encoding": encoding, "hidden": hidden, "qk_norm": qk_norm}
        options |= {"norm_first": norm_first, "activation": activation}
        options |= {"causal_axis": causal_axis, "atoms": atoms}
        own = channels, encoding, hidden, activation
        self.lift = Lift(in_channels + parameter_channels, *own)
        self.encoder = Encoder(layers, channels, heads, **options)
        if decoder_layers:
            self.query = Lift(parameter_channels, *own)
            self.decoder = Decoder(decoder_layers, channels, heads, **options)
        self.project = nn.Linear(channels, out_channels)


class Lift(nn.Module):
    """Tokens of the fields at their positions: linear, embedding, and a feed-forward of both."""

    def __init__(
        self,
        in_channels: int,
        channels: int,
        encoding: PositionalEncoding,
        hidden: int | None,
        activation: str,
    ) -> None:
        super().__init__()
        # One more channel, constant: the bias, and all there is where the geometry is the input.
        self.linear = nn.Linear(in_channels + 1, channels, bias=False)
        self.encoding = deepcopy(encoding.only("embed"))
        self.feed_forward = FeedForward(channels, hidden, activation)

    def forward(self, fields: Tensor, domain: Domain) -> Tensor:
        """(..., n, in_channels) to tokens (..., n, channels)."""
        x = self.linear(torch.cat([fields, torch.ones_like(domain.points[..., :1])], -1))
        x = self.encoding.embed(x, domain)
        return x + self.feed_forward(x)
