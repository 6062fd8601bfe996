r"""The operator: scaled dot-product attention as a softmax-normalised kernel integral over (Ω, μ).

.. math::

    y(t) = \frac{\int_\Omega e^{p(t,s)}\,v(s)\,d\mu(s)}{\int_\Omega e^{p(t,s)}\,d\mu(s)}
    \approx \sum_s \operatorname{softmax}_s\bigl(p(t,s)+\log w_s\bigr)\,v_s,
    \qquad p(t,s) = \frac{q_t\cdot k_s}{\sqrt{e}} + f^q_t\cdot f^k_s + b(t,s).

:func:`partial_integral` is that definition, to be read; :func:`kernel_integral` is the same by the fused kernels of
``scaled_dot_product_attention``. Shape letters: b batch, h heads, n targets, m sources, e channels of q and k,
c channels of v, r factor channels.

References: Vaswani et al., arXiv:1706.03762; Kovachki et al., JMLR 24 (2023); Calvello et al., arXiv:2406.06486.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

__all__ = ["kernel_integral", "log_density", "merge", "partial_integral"]

Factors = tuple[Tensor, Tensor]
Bias = Tensor | Callable[[slice], Tensor]

# Entries of the bias in one chunk of targets, over batch and heads: 64 MiB in float32.
BIAS_ENTRIES = 2**24
# Stands for log 0 where -inf cannot go, in a product of channels; the key and the value are zero there too.
LOG_ZERO = -1e4


def kernel_integral(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    weights: Tensor | None = None,
    *,
    bias: Bias | None = None,
    factors: Factors | None = None,
    chunk: int | None = None,
    source_chunk: int | None = None,
) -> Tensor:
    r"""Integrate ``v`` over the sources with the softmax-normalised kernel of ``q`` and ``k``.

    Parameters
    ----------
    q : Tensor, shape (..., h, n, e)
    k : Tensor, shape (..., h, m, e)
    v : Tensor, shape (..., h, m, c)
    weights : Tensor, shape (..., m), optional
        Quadrature weights of the sources; None for equal ones. Only their ratios matter. A source of weight zero
        changes nothing, whatever its key and value hold. No gradient flows to them.
    bias : Tensor (..., h, n, m), or a function of a slice of targets that returns one, optional
        Added to the log-kernel. The function is called for one chunk of targets after another, so that memory stays
        bounded, in the backward pass as well.
    factors : (Tensor (..., h, n, r), Tensor (..., h, m, r)), optional
        A bias that factorises, :math:`b(t,s)=f^q_t\cdot f^k_s`; it costs r channels and no (n, m) array.
    chunk, source_chunk : int, optional
        Evaluate that many targets, or sources, at a time. The result is the same to rounding.

    Returns
    -------
    Tensor, shape (..., h, n, c). Zero where all the sources have weight zero.

    Raises
    ------
    ValueError
        On shapes that do not fit, or negative or non-finite weights.

    Examples
    --------
    Equal keys leave the measure alone: the result is the mean of v under the weights.

    >>> q, k = torch.zeros(1, 2, 8), torch.zeros(1, 3, 8)
    >>> v = torch.tensor([[[0.0], [1.0], [2.0]]])
    >>> kernel_integral(q, k, v, torch.tensor([0.25, 0.5, 0.25]))[0, 0]
    tensor([1.])
    """
    _check(q, k, v, weights, factors)
    if source_chunk is not None:
        return merge(_by_source(q, k, v, weights, bias, factors, chunk, source_chunk))[0].to(v.dtype)
    batch, width, dtype, scale = q.shape[:-3], v.shape[-1], v.dtype, 1 / math.sqrt(q.shape[-1])
    q, k, v, factors = _precision(q, k, v, factors)
    log_w = None
    if weights is not None:
        k, v, factors = _zero_null(k, v, weights, factors)
        log_w = None if _is_uniform(weights) else log_density(weights)[0]
    if factors is not None:
        q, k = _join(q, factors[0] / scale), _join(k, factors[1])
    if log_w is not None and bias is None and q.is_cuda:
        q, k = _carry(q, k, log_w, scale)
        log_w = None
    q, k, v = (_four_axes(x, batch) for x in _one_width(q, k, v))
    mask = None if log_w is None else _four_axes(log_w[..., None, None, :].to(q.dtype), batch)
    parts = [
        _fused(q[..., t, :], k, v, mask, _rows(bias, t, batch), scale)
        for t in _slices(q.shape[-2], chunk or _default_chunk(q, k, bias))
    ]
    y = parts[0] if len(parts) == 1 else torch.cat(parts, -2)
    return y[..., :width].to(dtype).reshape(*batch, *y.shape[1:-1], width)


def partial_integral(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    weights: Tensor | None = None,
    *,
    bias: Tensor | None = None,
    factors: Factors | None = None,
) -> tuple[Tensor, Tensor]:
    r"""The definition, written out, over all sources or a part of them. It holds (..., h, n, m) arrays.

    Returns
    -------
    y : Tensor, shape (..., h, n, c)
        The normalised integral over these sources; zero where their measure is.
    lse : Tensor, shape (..., h, n), float64
        The log-denominator :math:`\log\sum_s w_s e^{p(t,s)}`, by which :func:`merge` joins parts.
    """
    dtype, log_mean = v.dtype, torch.zeros((), device=v.device)
    q, k, v, factors = _precision(q, k, v, factors)
    if weights is not None:
        k, v, factors = _zero_null(k, v, weights, factors)
    p = q @ k.mT / math.sqrt(q.shape[-1])
    if factors is not None:
        p = p + factors[0] @ factors[1].mT
    if bias is not None:
        p = p + bias
    if weights is not None:
        log_w, log_mean = log_density(weights)
        p = p + log_w[..., None, None, :].to(p.dtype)
    dead = (p == -torch.inf).all(-1)
    lse = torch.logsumexp(p.masked_fill(dead.unsqueeze(-1), 0), -1)
    y = torch.exp(p - lse.unsqueeze(-1)) @ v
    lse = lse.double() + log_mean[..., None, None]
    return y.masked_fill(dead.unsqueeze(-1), 0).to(dtype), lse.masked_fill(dead, -torch.inf)


def merge(parts: Iterable[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    r"""Join integrals over disjoint parts of the domain: a sum of measures.

    .. math:: y = \sum_i e^{l_i - l}\,y_i, \qquad l = \log\sum_i e^{l_i}.

    Parameters
    ----------
    parts : pairs (y, lse) as :func:`partial_integral` returns them

    Returns
    -------
    The pair of the union.
    """
    values, logs = (torch.stack(x) for x in zip(*parts, strict=True))
    dead = (logs == -torch.inf).all(0)
    lse = torch.logsumexp(logs.masked_fill(dead, 0), 0)
    y = (torch.exp(logs - lse).unsqueeze(-1) * values).sum(0)
    return y.masked_fill(dead.unsqueeze(-1), 0).to(values.dtype), lse.masked_fill(dead, -torch.inf)


def log_density(weights: Tensor) -> tuple[Tensor, Tensor]:
    """Logarithms of the weights over the mean of the positive ones, and of that mean; float64, detached.

    The softmax cancels a constant, so centring changes nothing but the rounding: the mean carries the unit of the
    measure, and log w of small cells is large where half precision is coarse.

    Returns
    -------
    centred : Tensor, shape (..., m); -inf where the weight is zero
    log_mean : Tensor, shape (...)
    """
    w = weights.detach().double()
    mean = w.sum(-1) / (w > 0).sum(-1).clamp(min=1)
    mean = torch.where(mean > 0, mean, 1)
    return (w / mean.unsqueeze(-1)).log(), mean.log()


def _fused(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, bias: Callable | None, scale: float) -> Tensor:
    """One call of the fused kernel; a dense bias is made, and for the backward pass made again, in here."""
    if bias is None:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        term = bias().to(q.dtype)
        # cuDNN has returned NaN gradients and misread masks (torch 2.11-2.13): leave it out where one is given.
        with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
            return F.scaled_dot_product_attention(
                q, k, v, attn_mask=term if mask is None else term + mask, scale=scale
            )

    return checkpoint(attend, q, k, v, use_reentrant=False) if torch.is_grad_enabled() else attend(q, k, v)


def _carry(q: Tensor, k: Tensor, log_w: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """The weights as channels of q and k: CUDA's flash kernels take no mask.

    In half precision the part that rounding takes from log w rides in a second channel.
    """
    log_w = log_w.clamp(min=LOG_ZERO)
    high = log_w.to(k.dtype)
    columns = [high] if k.dtype in (torch.float32, torch.float64) else [high, (log_w - high).to(k.dtype)]
    channels = torch.stack(columns, -1).unsqueeze(-3)
    ones = q.new_full((1, 1, len(columns)), 1 / scale)
    return _join(q, ones), _join(k, channels)


def _precision(q: Tensor, k: Tensor, v: Tensor, factors: Factors | None) -> tuple[Tensor, Tensor, Tensor, Factors | None]:
    """One dtype for all: autocast's, but at least float32 with factors, whose large terms nearly cancel."""
    device = q.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else q.dtype
    if factors is not None:
        dtype = torch.promote_types(q.dtype, torch.float32)
        factors = (factors[0].to(dtype), factors[1].to(dtype))
    return q.to(dtype), k.to(dtype), v.to(dtype), factors


def _zero_null(k: Tensor, v: Tensor, weights: Tensor, factors: Factors | None) -> tuple[Tensor, Tensor, Factors | None]:
    """Clear what sources of weight zero hold: 0 · NaN is NaN in a product, forward and backward."""
    null = (weights == 0)[..., None, :, None]
    if null.any():
        k, v = k.masked_fill(null, 0), v.masked_fill(null, 0)
        factors = factors and (factors[0], factors[1].masked_fill(null, 0))
    return k, v, factors


def _is_uniform(weights: Tensor) -> bool:
    first = weights[..., :1]
    return bool(((weights == first) & (first > 0)).all())


def _join(x: Tensor, channels: Tensor) -> Tensor:
    return torch.cat([x, channels.to(x.dtype).expand(*x.shape[:-1], -1)], -1)


def _one_width(*tensors: Tensor) -> list[Tensor]:
    """Pad channels with zeros: the fused kernels want q, k and v of one width, a multiple of 8, if they differ."""
    widths = {x.shape[-1] for x in tensors}
    width = max(widths) if len(widths) == 1 else -(-max(widths) // 8) * 8
    return [F.pad(x, (0, width - x.shape[-1])) if x.shape[-1] < width else x for x in tensors]


def _four_axes(x: Tensor, batch: torch.Size) -> Tensor:
    """(..., h, n, c) as (b, h, n, c), which is what the fused kernels are written for."""
    return x.expand(*batch, *x.shape[-3:]).reshape(-1, *x.shape[-3:])


def _rows(bias: Bias | None, rows: slice, batch: torch.Size) -> Callable[[], Tensor] | None:
    """The bias of a slice of targets, to be made when it is wanted."""
    if bias is None:
        return None
    return lambda: _four_axes(bias(rows) if callable(bias) else bias[..., rows, :], batch)


def _default_chunk(q: Tensor, k: Tensor, bias: Bias | None) -> int:
    """All targets at once, unless a dense bias would be too large for that."""
    if bias is None:
        return q.shape[-2]
    return max(1, BIAS_ENTRIES // (q.shape[0] * q.shape[1] * k.shape[-2]))


def _slices(n: int, chunk: int) -> Iterator[slice]:
    if chunk < 1:
        raise ValueError(f"a chunk must hold at least 1 point, got {chunk}")
    return (slice(i, min(i + chunk, n)) for i in range(0, max(n, 1), chunk))


def _by_source(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    weights: Tensor | None,
    bias: Bias | None,
    factors: Factors | None,
    chunk: int | None,
    source_chunk: int,
) -> list[tuple[Tensor, Tensor]]:
    """Partial integrals over chunks of sources, each evaluated by chunks of targets."""
    n, m = q.shape[-2], k.shape[-2]
    parts = []
    for s in _slices(m, source_chunk):
        rows = [
            partial_integral(
                q[..., t, :],
                k[..., s, :],
                v[..., s, :],
                None if weights is None else weights[..., s],
                bias=None if bias is None else (bias(t) if callable(bias) else bias[..., t, :])[..., s],
                factors=factors and (factors[0][..., t, :], factors[1][..., s, :]),
            )
            for t in _slices(n, chunk or n)
        ]
        parts.append((torch.cat([y for y, _ in rows], -2), torch.cat([lse for _, lse in rows], -1)))
    return parts


def _check(q: Tensor, k: Tensor, v: Tensor, weights: Tensor | None, factors: Factors | None) -> None:
    if q.ndim < 3 or k.shape[:-2] != q.shape[:-2] or k.shape[-1] != q.shape[-1] or v.shape[:-1] != k.shape[:-1]:
        raise ValueError(
            "q (..., h, n, e), k (..., h, m, e) and v (..., h, m, c) must fit, "
            f"got {tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}"
        )
    if weights is not None:
        if weights.shape[-1] != k.shape[-2]:
            raise ValueError(f"weights (..., m) must have m = {k.shape[-2]} sources, got {tuple(weights.shape)}")
        bad = ~(weights.isfinite() & (weights >= 0))
        if bad.any():
            raise ValueError(f"weights must be finite and not negative, entry {torch.nonzero(bad)[0].tolist()} is not")
    if factors is not None and (
        factors[0].shape[-1] != factors[1].shape[-1]
        or factors[0].shape[-2] != q.shape[-2]
        or factors[1].shape[-2] != k.shape[-2]
    ):
        raise ValueError(
            f"factors must be (..., h, n={q.shape[-2]}, r) and (..., h, m={k.shape[-2]}, r), "
            f"got {tuple(factors[0].shape)}, {tuple(factors[1].shape)}"
        )
