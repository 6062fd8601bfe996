r"""Multi-head attention from a source domain to a target domain: several kernels at once.

.. math:: y(t) = W_O\,\bigl[y_1(t), \dots, y_h(t)\bigr], \qquad
   y_i(t) = \int_\Omega \alpha_i(t,s)\,W^V_i x(s)\,d\mu(s).

Reference: Vaswani et al., arXiv:1706.03762, section 3.2; Henry et al., arXiv:2010.04245 (QK-norm).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor, nn

from opformer._fused import targets_at_once
from opformer.domain import Domain
from opformer.encodings import Compose, PositionalEncoding
from opformer.integral import causal_bias, kernel_integral

__all__ = ["Attention"]


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
        The coordinate that orders the domain (negative: from the last). A target integrates over
        the sources whose coordinate is not larger than its own; equal ones count. With none such it
        gets 0, plus the bias of the output.

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
    ) -> None:
        super().__init__()
        if channels % heads:
            raise ValueError(f"channels must be a multiple of heads, got {channels} and {heads}")
        self.channels, self.heads, self.qk_norm = channels, heads, qk_norm
        self.causal_axis = causal_axis
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
        memory: Tensor | None = None,
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
        memory : Tensor, shape (..., m, channels), optional
            Features at the source, which make keys and values; by default those of the target
            (self-attention). They may hold anything where the source has measure zero.
        source : Domain of m points, optional
            Required with ``memory``.
        chunk : int, optional
            Evaluate that many targets at a time; with a dense bias, by default as many as keep its
            memory within bounds.

        Returns
        -------
        Tensor, shape (..., n, channels)
        """
        if (memory is None) != (source is None):
            raise ValueError("memory and source belong together: give both or neither")
        if memory is None or source is None:
            memory, source = x, target
        memory = source.zero_null(memory)
        q = self.encoding.rotate(self.query_norm(self._split(self.query(x))), target)
        k = self.encoding.rotate(self.key_norm(self._split(self.key(memory))), source)
        y = kernel_integral(
            q,
            k,
            self._split(self.value(memory)),
            source.weights,
            bias=self._bias(target, source),
            factors=self.encoding.factors(target, source, x),
            chunk=self._chunk(source) if chunk is None else chunk,
        )
        return self.out(y.transpose(-3, -2).flatten(-2))

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(-3, -2)  # (..., h, n, e)

    def _chunk(self, source: Domain) -> int | None:
        """How many targets at a time, so that what makes a dense bias is bounded as well."""
        if "bias" not in self.encoding.hooks:
            return None
        samples = math.prod(source.weights.shape[:-1])
        channels = max(self.heads, self.encoding.pair_channels)
        return targets_at_once(samples * channels, source.size)

    def _bias(self, target: Domain, source: Domain) -> Callable[[slice], Tensor] | None:
        """By chunks of targets, the dense bias of the encoding, and -inf for later sources."""
        axis, dense = self.causal_axis, "bias" in self.encoding.hooks
        if axis is None and not dense:
            return None

        def rows_of_bias(rows: slice) -> Tensor:
            at = target.take(rows)
            if axis is None:
                return self._dense(at, source)
            t, s = _coordinate(at, axis), _coordinate(source, axis)
            return causal_bias(t, s, self._dense(at, source) if dense else None)

        return rows_of_bias

    def _dense(self, target: Domain, source: Domain) -> Tensor:
        bias = self.encoding.bias(target, source)
        if bias is None:
            name = type(self.encoding).__name__
            raise ValueError(f"{name}.bias must return a tensor (..., h, n, m), got None")
        return bias


def _coordinate(domain: Domain, axis: int) -> Tensor:
    """One coordinate of the points, (..., n), without gradient: an order has none."""
    if not -domain.dim <= axis < domain.dim:
        raise ValueError(
            f"causal_axis must be one of {domain.dim} coordinates, got {axis} for points "
            f"{tuple(domain.points.shape)}"
        )
    return domain.points[..., axis].detach()
