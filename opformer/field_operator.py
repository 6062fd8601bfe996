"""What every network between functions does: read fields, encode once, decode at any points."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from opformer._fused import slices
from opformer.attention import KeyValues
from opformer.causal import continued, coordinate, lost_steps
from opformer.domain import Domain, as_target
from opformer.transformer import Decoder, Encoder

__all__ = ["Encoded", "FieldOperator"]


@dataclass(frozen=True)
class Encoded:
    """An encoded input, made once by ``encode``: what every target reads in ``decode``.

    ``key_values`` are those of the encoder's blocks, ``decoder_key_values`` those of the decoder's.
    """

    source: Domain
    fields: Tensor
    parameters: Tensor
    key_values: list[KeyValues]
    decoder_key_values: list[KeyValues]
    origin: Tensor


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
    causal_axis: int | None = None
    atoms: bool = False
    lift: nn.Module
    encoder: Encoder
    project: nn.Module
    query: nn.Module
    decoder: Decoder

    @property
    def symmetry(self) -> str:
        """The motions of the space that the model keeps; "none" unless a subclass says more."""
        return "none"

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
            The input fields at the targets; without them the source's are interpolated there,
            which a causal model refuses. Not read if there are decoder layers.

        Returns
        -------
        Tensor, shape (..., n, out_channels)

        Raises
        ------
        ValueError
            On shapes that do not fit the model, or fields that a causal model misses at a target.
        """
        if target is None and not self.decoder_layers:
            tokens, source, *_ = self._lifted(source, fields, parameters)
            return self.project(self.encoder(tokens, source))
        state = self.encode(source, fields, parameters)
        return self.decode(state, source if target is None else target, target_fields)

    def encode(
        self, source: Domain, fields: Tensor | None = None, parameters: Tensor | None = None
    ) -> Encoded:
        """Run the encoder over the source, once for any number of targets."""
        return self._encode(source, fields, parameters)[1]

    def step(
        self,
        source: Domain,
        fields: Tensor | None = None,
        parameters: Tensor | None = None,
        *,
        state: Encoded | None = None,
    ) -> tuple[Tensor, Encoded]:
        """Hear the next points of a causal model's source, and say the output fields there.

        Only the new points run through the network; keys and values of the earlier ones are in the
        state. One step or many give what one call does (with ``atoms``: if the weights of earlier
        points stay as they were).

        Parameters
        ----------
        source : Domain of m points
            All points so far, the earlier ones first, with the weights of the domain that ends now.
        fields : Tensor, shape (..., n, in_channels)
            At the n new points, the last of the source.
        parameters : Tensor, shape (..., parameter_channels), optional
            With the first step; they are kept.
        state : Encoded, optional
            After the step before, None at the first.

        Returns
        -------
        y : Tensor, shape (..., n, out_channels)
        state : Encoded

        Raises
        ------
        ValueError
            If the model has no causal axis, or new points are not later than all that were heard.
        """
        if self.causal_axis is None:
            raise ValueError("only a model with a causal_axis takes step after step")
        tokens, state = self._encode(source, fields, parameters, state)
        if not self.decoder_layers:
            return self.project(tokens), state
        new = state.source.take(slice(source.size - tokens.shape[-2], None))
        return self._decode(state, new, None), state

    def _encode(
        self,
        source: Domain,
        fields: Tensor | None,
        parameters: Tensor | None,
        past: Encoded | None = None,
    ) -> tuple[Tensor, Encoded]:
        """The last tokens of the new points, and the state with them."""
        tokens, source, fields, parameters, origin = self._lifted(source, fields, parameters, past)
        new = source.take(slice(source.size - tokens.shape[-2], None))
        tokens, read = self.encoder.run(tokens, source, None if past is None else past.key_values)
        decoder = self.decoder.key_values(tokens, new) if self.decoder_layers else []
        if past is not None:
            fields = torch.cat([past.fields, fields], -2)
            pairs = zip(past.decoder_key_values, decoder, strict=True)
            decoder = [old.append(more, source) for old, more in pairs]
        if self.decoder_layers and self.causal_axis is None:
            read = []  # nobody reads them again
        return tokens, Encoded(source, fields, parameters, read, decoder, origin)

    def _lifted(
        self,
        source: Domain,
        fields: Tensor | None,
        parameters: Tensor | None,
        past: Encoded | None = None,
    ) -> tuple[Tensor, Domain, Tensor, Tensor, Tensor]:
        """Tokens and fields of the new points (without a past: all), the rest as the model's."""
        origin = self._origin(source) if past is None else past.origin
        source = new = self._cast(source, origin)
        if past is None or parameters is not None:
            given = self._read_parameters(source, parameters)
        else:
            given = past.parameters
        if past is not None and self.causal_axis is not None:
            new = continued(past.source, source, self.causal_axis, atoms=self.atoms)
            if not torch.equal(given, past.parameters):
                raise ValueError("parameters are those of the first step, got others")
        fields = self._read_fields(new, fields)
        tokens = self.lift(torch.cat([fields, _spread(given, new)], -1), new)
        return tokens, source, fields, given, origin

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
        target = self._cast(as_target(target), state.origin)
        if target.weights.shape[:-1] != state.source.weights.shape[:-1]:
            raise ValueError(
                f"target must have the batch axes {tuple(state.source.weights.shape[:-1])} of the "
                f"source, got points {tuple(target.points.shape)}"
            )
        if self.decoder_layers:
            fields = None  # a learned token stands for them
        elif fields is None:
            fields = self._interpolate(state, target)
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
            return self.project(self.decoder.at(x, target, state.decoder_key_values))
        x = self.lift(torch.cat([fields, parameters], -1), target)
        return self.project(self.encoder.at(x, target, state.key_values))

    def _interpolate(self, state: Encoded, target: Domain) -> Tensor:
        if self.causal_axis is not None and self.in_channels:
            raise ValueError(
                "a model with a causal_axis does not interpolate its input fields, which would "
                "look ahead: give them at the targets as target_fields (fields of decode)"
            )
        return state.source.interpolate(state.fields, target.points)

    def _origin(self, source: Domain) -> Tensor:
        """What coordinates are counted from, (..., 1, d), in float64.

        A model that sees offsets alone counts from the centre of the source, so that casting a
        domain far from the origin loses no digits; a causal one from its first point, which is
        known when the first step is taken.
        """
        points = source.points.double()
        if self.symmetry == "none" or not source.size:
            return points.new_zeros(*points.shape[:-2], 1, self.dim)
        if self.causal_axis is None:
            return source.mean(points).unsqueeze(-2)
        time = coordinate(source, self.causal_axis).masked_fill(source.null, torch.inf)
        first = time.argmin(-1)[..., None, None]
        return points.take_along_dim(first, -2)

    def _cast(self, domain: Domain, origin: Tensor) -> Domain:
        if domain.dim != self.dim:
            shape = tuple(domain.points.shape)
            raise ValueError(f"the model has {self.dim} coordinates, got points {shape}")
        dtype = next(self.parameters()).dtype
        cast = replace(domain, points=(domain.points - origin).to(dtype))
        if self.causal_axis is not None:
            lost = lost_steps(*(coordinate(d, self.causal_axis) for d in (domain, cast)))
            if lost:
                warnings.warn(
                    f"times fall together in {dtype} ({lost} steps are lost), and hear one "
                    "another: count time from the start of the record, or use a longer type",
                    stacklevel=4,
                )
        return cast

    def _read_fields(self, domain: Domain, fields: Tensor | None) -> Tensor:
        """Fields in the model's dtype; NaN and Inf at points of measure zero become 0."""
        shape = (*domain.weights.shape, self.in_channels)
        if fields is None:
            fields = domain.points.new_zeros(*domain.weights.shape, 0)
        if tuple(fields.shape) != shape:
            raise ValueError(
                f"fields must have shape (..., n, in_channels) = {shape}, got {tuple(fields.shape)}"
            )
        odd = ~fields.isfinite()
        bad = odd & ~domain.null.unsqueeze(-1)
        if bad.any():
            raise ValueError(
                "fields must be finite where the measure is positive: entry "
                f"{tuple(bad.nonzero()[0].tolist())} is not. A point without data has the weight 0"
            )
        return torch.where(odd, 0, fields).to(domain.points.dtype)

    def _read_parameters(self, domain: Domain, parameters: Tensor | None) -> Tensor:
        shape = (*domain.weights.shape[:-1], self.parameter_channels)
        if parameters is None:
            parameters = domain.points.new_zeros(*shape[:-1], 0)
        if tuple(parameters.shape) != shape:
            raise ValueError(f"parameters must have shape {shape}, got {tuple(parameters.shape)}")
        return parameters.to(domain.points.dtype)


def _spread(parameters: Tensor, domain: Domain) -> Tensor:
    """Global parameters (..., p) as constant fields (..., n, p)."""
    return parameters.unsqueeze(-2).expand(*parameters.shape[:-1], domain.size, -1)
