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
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from opformer._fused import slices
from opformer.domain import Domain, as_target
from opformer.encodings import Compose, Coordinates, GaussianBias, PositionalEncoding, Rotary
from opformer.transformer import Decoder, Encoder, FeedForward

__all__ = ["Encoded", "OperatorTransformer", "default_encoding"]


def default_encoding(dim: int, channels: int, heads: int) -> PositionalEncoding:
    """Absolute coordinates in the lift, rotary, and a Gaussian that depends on the target."""
    return Compose(
        Coordinates(dim, channels),
        Rotary(dim, heads, channels // heads),
        GaussianBias(dim, heads, channels),
    )


@dataclass(frozen=True)
class Encoded:
    """An encoded input, made once by ``encode``: what every target reads in ``decode``."""

    source: Domain
    fields: Tensor
    parameters: Tensor
    trace: list[Tensor]


class FieldOperator(nn.Module):
    """A network between functions, of four parts that a subclass makes in its constructor.

    ``lift`` makes tokens of fields at points, ``encoder`` is a :class:`opformer.Encoder` or like
    one, ``project`` makes output channels of tokens; with ``decoder_layers`` there are ``query``
    and ``decoder`` for tokens that start from nothing.
    """

    dim: int
    in_channels: int
    out_channels: int
    parameter_channels: int
    decoder_layers: int = 0
    lift: nn.Module
    encoder: Encoder
    project: nn.Module
    query: nn.Module
    decoder: nn.Module

    def forward(
        self,
        source: Domain,
        fields: Tensor | None = None,
        target: Domain | Tensor | None = None,
        parameters: Tensor | None = None,
        *,
        target_fields: Tensor | None = None,
    ) -> Tensor:
        """Output fields at the target.

        Parameters
        ----------
        source : Domain of m points, (..., m, dim)
        fields : Tensor, shape (..., m, in_channels), optional
            None for a model without input fields.
        target : Domain or Tensor of points (..., n, dim), optional
            The source by default. Weights of a target are not read.
        parameters : Tensor, shape (..., parameter_channels), optional
        target_fields : Tensor, shape (..., n, in_channels), optional
            The input fields at the targets; without them the source's are interpolated there. Not
            read if there are decoder layers.

        Returns
        -------
        Tensor, shape (..., n, out_channels)

        Raises
        ------
        ValueError
            On shapes that do not fit the model.
        """
        state = self.encode(source, fields, parameters)
        if target is None and not self.decoder_layers:
            return self.project(state.trace[-1])
        if target is None:
            target = state.source
        return self.decode(state, target, target_fields)

    def encode(
        self, source: Domain, fields: Tensor | None = None, parameters: Tensor | None = None
    ) -> Encoded:
        """Run the encoder over the source, once for any number of targets."""
        source = self._cast(source)
        fields = self._read_fields(source, fields)
        parameters = self._read_parameters(source, parameters)
        tokens = self.lift(torch.cat([fields, _spread(parameters, source)], -1), source)
        return Encoded(source, fields, parameters, self.encoder.trace(tokens, source))

    def decode(
        self,
        state: Encoded,
        target: Domain | Tensor,
        fields: Tensor | None = None,
        *,
        chunk: int | None = None,
    ) -> Tensor:
        """Output fields at the targets, the same whatever ``chunk`` of them is done at a time.

        ``fields`` are the input fields at the targets, as ``target_fields`` of the call.
        """
        target = self._cast(as_target(target))
        if target.weights.shape[:-1] != state.source.weights.shape[:-1]:
            raise ValueError(
                f"target must have the batch axes {tuple(state.source.weights.shape[:-1])} of the "
                f"source, got points {tuple(target.points.shape)}"
            )
        if self.decoder_layers:
            fields = None  # a learned token stands for them
        elif fields is None:
            fields = state.source.interpolate(state.fields, target.points)
        else:
            fields = self._read_fields(target, fields)
        parts = [
            self._decode(state, target.take(rows), None if fields is None else fields[..., rows, :])
            for rows in slices(target.size, target.size if chunk is None else chunk)
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts, -2)

    def _decode(self, state: Encoded, target: Domain, fields: Tensor | None) -> Tensor:
        parameters = _spread(state.parameters, target)
        if fields is None:
            x = self.query(parameters, target)
            return self.project(self.decoder(x, target, state.trace[-1], state.source))
        x = self.lift(torch.cat([fields, parameters], -1), target)
        return self.project(self.encoder.at(x, target, state.trace[:-1], state.source))

    def _cast(self, domain: Domain) -> Domain:
        if domain.dim != self.dim:
            shape = tuple(domain.points.shape)
            raise ValueError(f"the model has {self.dim} coordinates, got points {shape}")
        return domain.to(dtype=next(self.parameters()).dtype)

    def _read_fields(self, domain: Domain, fields: Tensor | None) -> Tensor:
        """Fields in the model's dtype; NaN and Inf at points of measure zero become 0."""
        shape = (*domain.weights.shape, self.in_channels)
        if fields is None:
            fields = domain.points.new_zeros(*domain.weights.shape, 0)
        if tuple(fields.shape) != shape:
            raise ValueError(
                f"fields must have shape (..., n, in_channels) = {shape}, got {tuple(fields.shape)}"
            )
        blank = domain.null.unsqueeze(-1) & ~fields.isfinite()
        return torch.where(blank, 0, fields).to(domain.points.dtype)

    def _read_parameters(self, domain: Domain, parameters: Tensor | None) -> Tensor:
        shape = (*domain.weights.shape[:-1], self.parameter_channels)
        if parameters is None:
            parameters = domain.points.new_zeros(*shape[:-1], 0)
        if tuple(parameters.shape) != shape:
            raise ValueError(f"parameters must have shape {shape}, got {tuple(parameters.shape)}")
        return parameters.to(domain.points.dtype)


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
    ) -> None:
        super().__init__()
        self.dim, self.in_channels, self.out_channels = dim, in_channels, out_channels
        self.parameter_channels, self.channels, self.heads = parameter_channels, channels, heads
        self.layers, self.decoder_layers, self.hidden = layers, decoder_layers, hidden
        self.norm_first, self.qk_norm = norm_first, qk_norm
        encoding = default_encoding(dim, channels, heads) if encoding is None else encoding
        # Kept for its description, out of the module tree: the copies below have the parameters.
        object.__setattr__(self, "encoding", encoding)
        options: dict[str, Any] = {
            "encoding": encoding,
            "hidden": hidden,
            "norm_first": norm_first,
            "qk_norm": qk_norm,
        }
        self.lift = Lift(in_channels + parameter_channels, channels, encoding, hidden)
        self.encoder = Encoder(layers, channels, heads, **options)
        if decoder_layers:
            self.query = Lift(parameter_channels, channels, encoding, hidden)
            self.decoder = Decoder(decoder_layers, channels, heads, **options)
        self.project = nn.Linear(channels, out_channels)


class Lift(nn.Module):
    """Tokens of the fields at their positions: linear, embedding, and a feed-forward of both."""

    def __init__(
        self, in_channels: int, channels: int, encoding: PositionalEncoding, hidden: int | None
    ) -> None:
        super().__init__()
        # One more channel, constant: the bias, and all there is where the geometry is the input.
        self.linear = nn.Linear(in_channels + 1, channels, bias=False)
        self.encoding = deepcopy(encoding.only("embed"))
        self.feed_forward = FeedForward(channels, hidden)

    def forward(self, fields: Tensor, domain: Domain) -> Tensor:
        """(..., n, in_channels) to tokens (..., n, channels)."""
        x = self.linear(torch.cat([fields, torch.ones_like(domain.points[..., :1])], -1))
        x = self.encoding.embed(x, domain)
        return x + self.feed_forward(x)


def _spread(parameters: Tensor, domain: Domain) -> Tensor:
    """Global parameters (..., p) as constant fields (..., n, p)."""
    return parameters.unsqueeze(-2).expand(*parameters.shape[:-1], domain.size, -1)
