r"""Multi-head attention from a source domain to a target domain: several kernels at once.

.. math:: y(t) = W_O\,\bigl[y_1(t), \dots, y_h(t)\bigr], \qquad
   y_i(t) = \int_\Omega \alpha_i(t,s)\,W^V_i x(s)\,d\mu(s).

Reference: Vaswani et al., arXiv:1706.03762, section 3.2; Henry et al., arXiv:2010.04245 (QK-norm).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from opformer._fused import targets_at_once
from opformer.causal import Past, coordinate
from opformer.domain import Domain
from opformer.encodings import Compose, PositionalEncoding
from opformer.integral import kernel_integral
from opformer.steps import attention_weights, similarity

__all__ = ["Attention", "KeyValues"]


@dataclass(frozen=True, eq=False)
class KeyValues:
    """Keys and values of a source, as its targets read them.

    ``key`` is (..., h, m, e), rotated to its place; ``value`` (..., h, m, c).
    """

    key: Tensor
    value: Tensor
    source: Domain

    def append(self, new: KeyValues, source: Domain) -> KeyValues:
        """Those of a source that has grown: the new points after the ones so far.

        ``source`` holds them all, with the weights that they have now.
        """
        key, value = torch.cat([self.key, new.key], -2), torch.cat([self.value, new.value], -2)
        return KeyValues(key, value, source)


class Attention(nn.Module):
    """Self- and cross-attention over domains with a measure.

    Parameters
    ----------
    channels : int
        Width of the tokens, a multiple of ``heads``.
    heads : int
        Number of kernels.
    encoding : PositionalEncoding, optional
        How position enters the kernel; its ``embed`` is left to the model that makes the tokens.
    qk_norm : bool
        Scale query and key of each head to unit root mean square, with a learned gain a channel.
    causal_axis : int, optional
        The coordinate that orders the domain (negative: from the last), as time. A target
        integrates over what is not later, see :class:`opformer.causal.Past`; with nothing such it
        gets 0, plus the bias of the output.
    atoms : bool
        What a weight is, along that coordinate. False: that of a cell about a node of a time grid,
        or of its product with another domain, of which only the past part is heard. True: that of
        an event or a token, heard as a whole.

    Examples
    --------
    >>> import torch
    >>> domain = Domain(torch.rand(5, 2), torch.rand(5))
    >>> Attention(8, 2)(torch.randn(5, 8), domain).shape
    torch.Size([5, 8])
    """

    def __init__(
        self,
        channels: int,
        heads: int,
        *,
        encoding: PositionalEncoding | None = None,
        qk_norm: bool = True,
        causal_axis: int | None = None,
        atoms: bool = False,
    ) -> None:
        super().__init__()
        if channels % heads:
            raise ValueError(f"channels must be a multiple of heads, got {channels} and {heads}")
        if causal_axis is not None and type(causal_axis) is not int:
            raise ValueError(f"causal_axis must be the number of a coordinate, got {causal_axis!r}")
        if causal_axis is not None and encoding is not None and not encoding.pairwise:
            raise ValueError(
                "the encoding looks at all sources for each pair of points (it is not pairwise), "
                "and would look ahead: take another one with a causal_axis"
            )
        self.channels, self.heads, self.qk_norm = channels, heads, qk_norm
        self.causal_axis, self.atoms = causal_axis, atoms
        self.encoding = Compose() if encoding is None else encoding
        self.query = nn.Linear(channels, channels)
        # A bias of the key would cancel in the softmax, but for norms and rotations in between.
        self.key = nn.Linear(channels, channels, bias=False)
        self.value = nn.Linear(channels, channels)
        self.out = nn.Linear(channels, channels)
        self.query_norm = nn.RMSNorm(channels // heads) if qk_norm else nn.Identity()
        self.key_norm = nn.RMSNorm(channels // heads) if qk_norm else nn.Identity()

    def forward(
        self,
        x: Tensor,
        target: Domain,
        memory: Tensor | KeyValues | None = None,
        source: Domain | None = None,
        *,
        chunk: int | None = None,
    ) -> Tensor:
        """Integrate the memory over the source for every target.

        Parameters
        ----------
        x : Tensor, shape (..., n, channels)
            Features at the target, which make the queries.
        target : Domain of n points
        memory : Tensor, shape (..., m, channels), or KeyValues, optional
            Features at the source, which make keys and values; by default those of the target
            (self-attention). They may hold anything where the source has measure zero. Or what
            :meth:`key_values` has made of them before.
        source : Domain of m points, optional
            Required with features in ``memory``.
        chunk : int, optional
            Evaluate that many targets at a time; with a dense bias, by default as many as keep its
            memory within bounds.

        Returns
        -------
        Tensor, shape (..., n, channels)
        """
        read = self._read(x, target, memory, source)
        source = read.source
        y = kernel_integral(
            self._query(x, target),
            read.key,
            read.value,
            source.weights,
            bias=self._bias(target, source),
            factors=self.encoding.factors(target, source, x),
            past=self._past(target, source),
            chunk=self._chunk(source) if chunk is None else chunk,
        )
        return self.out(y.transpose(-3, -2).flatten(-2))

    def key_values(self, memory: Tensor, source: Domain) -> KeyValues:
        """What the targets read of a source: made once, for any number of them."""
        memory = source.zero_null(memory)
        k = self.encoding.rotate(self.key_norm(self._split(self.key(memory))), source)
        return KeyValues(k, self._split(self.value(memory)), source)

    def kernel(
        self,
        x: Tensor,
        target: Domain,
        memory: Tensor | KeyValues | None = None,
        source: Domain | None = None,
    ) -> Tensor:
        r"""The kernels :math:`\alpha_i(t,s)` themselves, one a head, to be looked at.

        They are densities under the measure, :math:`\sum_s w_s\,\alpha_i(t,s) = 1`, and 0 where the
        source has measure zero. Of a cell of time that a target cuts, α holds the past share.

        Returns
        -------
        Tensor, shape (..., h, n, m)
        """
        read = self._read(x, target, memory, source)
        source, query = read.source, self._query(x, target)
        factors = self.encoding.factors(target, source, x)
        with torch.autocast(query.device.type, enabled=False):
            p = similarity(query.double(), read.key.double())
            if factors is not None:
                p = p + factors[0].double() @ factors[1].double().mT
        bias = self._bias(target, source)
        if bias is not None:
            p = p + bias(slice(None))
        past = self._past(target, source)
        if past is not None:
            p = past.restrict(p, slice(None), slice(None))
        w = source.weights.unsqueeze(-2)
        density = attention_weights(p, w) / torch.where(w == 0, 1, w).unsqueeze(-2)
        return density.to(query.dtype)

    def _read(
        self, x: Tensor, target: Domain, memory: Tensor | KeyValues | None, source: Domain | None
    ) -> KeyValues:
        if isinstance(memory, KeyValues) and source is None:
            return memory
        if memory is None and source is None:
            return self.key_values(x, target)
        if isinstance(memory, Tensor) and source is not None:
            return self.key_values(memory, source)
        raise ValueError(
            "memory and source belong together: give both or neither (KeyValues know their source)"
        )

    def _query(self, x: Tensor, target: Domain) -> Tensor:
        return self.encoding.rotate(self.query_norm(self._split(self.query(x))), target)

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(-3, -2)  # (..., h, n, e)

    def _chunk(self, source: Domain) -> int | None:
        """How many targets at a time, so that what makes a dense bias is bounded as well."""
        if "bias" not in self.encoding.hooks:
            return None
        samples = math.prod(source.weights.shape[:-1])
        channels = max(self.heads, self.encoding.pair_channels)
        return targets_at_once(samples * channels, source.size)

    def _past(self, target: Domain, source: Domain) -> Past | None:
        if self.causal_axis is None:
            return None
        t, s = (coordinate(domain, self.causal_axis) for domain in (target, source))
        return Past(t, s, source.weights, atoms=self.atoms)

    def _bias(self, target: Domain, source: Domain) -> Callable[[slice], Tensor] | None:
        """The dense bias of the encoding, by chunks of targets."""
        if "bias" not in self.encoding.hooks:
            return None
        return lambda rows: self._dense(target.take(rows), source)

    def _dense(self, target: Domain, source: Domain) -> Tensor:
        bias = self.encoding.bias(target, source)
        if bias is None:
            name = type(self.encoding).__name__
            raise ValueError(f"{name}.bias must return a tensor (..., h, n, m), got None")
        return bias
