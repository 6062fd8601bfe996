r"""The operator: scaled dot-product attention as a normalised kernel integral over (Ω, μ).

.. math::

    y(t) = \frac{\int_\Omega e^{p(t,s)}\,v(s)\,d\mu(s)}{\int_\Omega e^{p(t,s)}\,d\mu(s)}
    \approx \sum_s \operatorname{softmax}_s\bigl(p(t,s)+\log w_s\bigr)\,v_s,
    \qquad p(t,s) = \frac{q_t\cdot k_s}{\sqrt{e}} + f^q_t\cdot f^k_s + b(t,s).

:func:`partial_integral` is that definition, to be read; :func:`kernel_integral` is the same by the
fused kernels of ``scaled_dot_product_attention``. Shape letters: b batch, h heads, n targets,
m sources, e channels of q and k, c channels of v, r factor channels.

References: Vaswani et al., arXiv:1706.03762; Kovachki et al., JMLR 24 (2023); Calvello et al.,
arXiv:2406.06486.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from opformer._fused import Bias, attend, bias_rows, fits, join, restricted, slices
from opformer.causal import Past

__all__ = ["check_weights", "kernel_integral", "log_density", "merge", "partial_integral"]

Factors = tuple[Tensor, Tensor]


def kernel_integral(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    weights: Tensor | None = None,
    *,
    bias: Bias | None = None,
    factors: Factors | None = None,
    past: Past | None = None,
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
        Quadrature weights of the sources; None for equal ones. Only their ratios matter. A source
        of weight zero changes nothing, whatever its key and value hold. No gradient flows to them.
    bias : Tensor (..., h, n, m), or a function of a slice of targets that returns one, optional
        Added to the log-kernel. The function is called for one chunk of targets after another, so
        that memory stays bounded, in the backward pass as well.
    factors : (Tensor (..., h, n, r), Tensor (..., h, m, r)), optional
        A bias that factorises, :math:`b(t,s)=f^q_t\cdot f^k_s`; it costs r channels and no (n, m)
        array.
    past : Past, optional
        Integrate for each target over what is not later (:class:`opformer.causal.Past`). What a
        bias holds elsewhere is not read.
    chunk, source_chunk : int, optional
        Evaluate that many targets, or sources, at a time. The result is the same to rounding.

    Returns
    -------
    Tensor, shape (..., h, n, c), of v's dtype. Zero where all the sources have weight zero.

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
    if past is not None:
        _check_shape("past.target", past.target, (*q.shape[:-3], q.shape[-2]), 1)
        _check_shape("past.source", past.source, (*q.shape[:-3], k.shape[-2]), 1)
    if source_chunk is not None:
        return _by_source(q, k, v, weights, bias, factors, past, chunk, source_chunk)
    dtype, scale = v.dtype, 1 / math.sqrt(q.shape[-1])
    q, k, v, factors = _precision(q, k, v, factors)
    log_w = None
    if weights is not None:
        k, v, factors = _zero_null(k, v, weights, factors)
        uniform = (weights == weights[..., :1]).all()
        log_w = None if uniform else log_density(weights)[0]
    if factors is not None:
        q, k = join(q, factors[0] / scale), join(k, factors[1])
    with torch.autocast(q.device.type, enabled=False):  # it would undo the choice of precision
        return attend(q, k, v, log_w, bias, past, scale=scale, chunk=chunk).to(dtype)


def partial_integral(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    weights: Tensor | None = None,
    *,
    bias: Tensor | None = None,
    factors: Factors | None = None,
) -> tuple[Tensor, Tensor]:
    r"""The definition, written out, over all sources or a part of them, in float32 at least.

    It holds (..., h, n, m) arrays.

    Returns
    -------
    y : Tensor, shape (..., h, n, c)
        The normalised integral over these sources; zero where their measure is.
    lse : Tensor, shape (..., h, n), float64
        The log-denominator :math:`\log\sum_s w_s e^{p(t,s)}`, by which :func:`merge` joins parts.
    """
    _check(q, k, v, weights, factors)
    log_mean = torch.zeros((), device=v.device)
    dtype = torch.promote_types(q.dtype, torch.float32)
    (q, k, values), factors = (x.to(dtype) for x in (q, k, v)), _cast(factors, dtype)
    if weights is not None:
        k, values, factors = _zero_null(k, values, weights, factors)
    with torch.autocast(q.device.type, enabled=False):
        p = q @ k.mT / math.sqrt(q.shape[-1])
        if factors is not None:
            p = p + factors[0] @ factors[1].mT
        if bias is not None:
            p = p + bias_rows(bias, slice(None), tuple(p.shape)).to(p.dtype)
        if weights is not None:
            log_w, log_mean = log_density(weights)
            p = p + log_w[..., None, None, :].to(p.dtype)
        dead = (p == -torch.inf).all(-1)
        lse = torch.logsumexp(p.masked_fill(dead.unsqueeze(-1), 0), -1)
        y = torch.exp(p - lse.unsqueeze(-1)) @ values
    lse = lse.double() + log_mean[..., None, None]
    return y.to(v.dtype), lse.masked_fill(dead, -torch.inf)


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
    """Logarithms of the weights over the mean of the positive ones, and that of the mean.

    In float64, without gradient. The softmax cancels a constant, so centring changes nothing but
    the rounding: the mean carries the unit of the measure.

    Returns
    -------
    centred : Tensor, shape (..., m); -inf where the weight is zero
    log_mean : Tensor, shape (...)
    """
    w = weights.detach().double()
    mean = w.sum(-1) / (w > 0).sum(-1).clamp(min=1)
    mean = torch.where(mean > 0, mean, 1)
    return (w / mean.unsqueeze(-1)).log(), mean.log()


def check_weights(weights: Tensor, shape: tuple[int, ...]) -> None:
    """Refuse weights of a shape that does not broadcast to ``shape``, negative or not finite."""
    _check_shape("weights", weights, shape, 1)
    bad = ~(weights.isfinite() & (weights >= 0))
    if bad.any():
        index = torch.nonzero(bad)[0].tolist()
        raise ValueError(f"weights must be finite and not negative, entry {index} is not")


def _precision(
    q: Tensor, k: Tensor, v: Tensor, factors: Factors | None
) -> tuple[Tensor, Tensor, Tensor, Factors | None]:
    """One dtype for all: autocast's, but float32 at least with factors, which nearly cancel."""
    device = q.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else q.dtype
    if factors is not None:
        dtype = torch.promote_types(q.dtype, torch.float32)
    return q.to(dtype), k.to(dtype), v.to(dtype), _cast(factors, dtype)


def _cast(factors: Factors | None, dtype: torch.dtype) -> Factors | None:
    return factors and (factors[0].to(dtype), factors[1].to(dtype))


def _zero_null(
    k: Tensor, v: Tensor, weights: Tensor, factors: Factors | None
) -> tuple[Tensor, Tensor, Factors | None]:
    """Clear what sources of weight zero hold: 0 · NaN is NaN, forward and backward."""
    null = (weights == 0)[..., None, :, None]
    if null.any():
        k, v = k.masked_fill(null, 0), v.masked_fill(null, 0)
        factors = factors and (factors[0], factors[1].masked_fill(null, 0))
    return k, v, factors


def _by_source(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    weights: Tensor | None,
    bias: Bias | None,
    factors: Factors | None,
    past: Past | None,
    chunk: int | None,
    source_chunk: int,
) -> Tensor:
    """Partial integrals over chunks of sources, merged for each chunk of targets."""
    n, m = q.shape[-2], k.shape[-2]
    rows = []
    for t in slices(n, n if chunk is None else chunk):
        stop = m if past is None else past.heard(t)
        term = restricted(bias, past, t, slice(stop), (*q.shape[:-2], t.stop - t.start, m))
        parts = [
            partial_integral(
                q[..., t, :],
                k[..., s, :],
                v[..., s, :],
                None if weights is None else weights[..., s],
                bias=None if term is None else term[..., s],
                factors=factors and (factors[0][..., t, :], factors[1][..., s, :]),
            )
            for s in slices(stop, source_chunk)
        ]
        rows.append(merge(parts)[0])
    return torch.cat(rows, -2)


def _check(
    q: Tensor, k: Tensor, v: Tensor, weights: Tensor | None, factors: Factors | None
) -> None:
    *batch, h, n, e = q.shape if q.ndim > 2 else (-1, -1, -1)
    m = k.shape[-2] if k.ndim > 1 else -1
    if k.shape != (*batch, h, m, e) or v.shape[:-1] != (*batch, h, m):
        raise ValueError(
            "q (..., h, n, e), k (..., h, m, e) and v (..., h, m, c) must fit, "
            f"got {tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}"
        )
    if weights is not None:
        check_weights(weights, (*batch, m))
    if factors is not None:
        r = factors[0].shape[-1]
        _check_shape("factors of the targets", factors[0], (*batch, h, n, r), 2)
        _check_shape("factors of the sources", factors[1], (*batch, h, m, r), 2)


def _check_shape(name: str, x: Tensor, shape: tuple[int, ...], exact: int) -> None:
    """That ``x`` broadcasts to a shape, of which the last axes must be there."""
    if x.shape[-exact:] != shape[-exact:] or not fits(x.shape, shape):
        raise ValueError(f"{name} must be {shape} or broadcast to it, got {tuple(x.shape)}")
