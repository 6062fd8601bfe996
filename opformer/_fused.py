"""The fused kernels of ``scaled_dot_product_attention``: what they want, and bounded memory.

They want four axes, and q, k and v of one width. A mask of the weights costs little on the CPU;
CUDA's flash kernels take no mask, and half precision would round it: there log w rides in channels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from opformer.causal import Past

__all__ = ["Bias", "attend", "bias_rows", "fits", "join", "restricted", "slices", "targets_at_once"]

Bias = Tensor | Callable[[slice], Tensor]

# Entries of the bias in one chunk of targets, over batch and heads: 64 MiB in float32.
BIAS_ENTRIES = 2**24
# Entries of a mask of the past, over the batch, that is kept for the backward pass: 16 MiB. A
# larger one is made again, and so is every bias: its parts may need more memory than itself.
MASK_ENTRIES = 2**22
# Targets at a time where each hears what is not later: few enough to leave out about half of all
# pairs, and enough to keep a kernel busy.
TARGETS_WITH_A_PAST = 256
# cuDNN has returned NaN gradients and misread masks (torch 2.11-2.13).
MASKED_BACKENDS = [
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_w: Tensor | None,
    bias: Bias | None,
    past: Past | None,
    *,
    scale: float,
    chunk: int | None,
) -> Tensor:
    """Sum of v (..., h, m, c) under the softmax of scale · q·k + log w (..., m) + bias."""
    if log_w is not None and _needs_channels(q):
        q, k = _carry(q, k, log_w, scale)
        log_w = None
    batch, (h, n), m, c = q.shape[:-3], q.shape[-3:-1], k.shape[-2], v.shape[-1]
    q, k, v = (_four_axes(x, batch) for x in _one_width(q, k, v))
    mask = None if log_w is None else _four_axes(log_w[..., None, None, :].to(q.dtype), batch)
    if chunk is None:
        chunk = n if bias is None else targets_at_once(q.shape[0] * h, m)
    if past is not None:
        chunk = min(chunk, TARGETS_WITH_A_PAST, targets_at_once(q.shape[0], m))
    again = bias is not None or q.shape[0] * n * m > MASK_ENTRIES
    parts = []
    for t in slices(n, chunk):
        s = slice(m if past is None else past.heard(t))
        of_past = k[..., s, :], v[..., s, :], None if mask is None else mask[..., s]
        term = _term(bias, past, t, s, (*batch, h, t.stop - t.start, m))
        parts.append(_masked(q[..., t, :], *of_past, term, scale, again=again))
    y = parts[0] if len(parts) == 1 else torch.cat(parts, -2)
    return y[..., :c].reshape(*batch, h, n, c)


def targets_at_once(channels: int, m: int) -> int:
    """How many targets a chunk may have, with so many numbers for each and each of m sources."""
    return max(1, BIAS_ENTRIES // max(1, channels * m))


def bias_rows(bias: Bias, rows: slice, shape: tuple[int, ...]) -> Tensor:
    """The bias of some targets, broadcast to ``shape`` (..., h, rows, m)."""
    if callable(bias):
        part = bias(rows)
    else:
        part = bias[..., rows, :] if bias.ndim > 1 and bias.shape[-2] > 1 else bias
    if not part.is_floating_point():
        raise ValueError(
            f"bias is added to the scores and must be floating, got {part.dtype}; "
            "for a mask use torch.zeros(...).masked_fill(~keep, -torch.inf)"
        )
    if not fits(part.shape, shape):
        raise ValueError(
            f"bias must be (..., h, n, m), here {shape}, or broadcast to it, "
            f"got {tuple(part.shape)}"
        )
    return part.expand(shape)


def restricted(
    bias: Bias | None, past: Past | None, rows: slice, columns: slice, shape: tuple[int, ...]
) -> Tensor | None:
    """The bias of some targets and sources, -inf where the source is later; None if there is none.

    ``shape`` is (..., h, rows, m) of all the sources.
    """
    term = None if bias is None else bias_rows(bias, rows, shape)[..., columns]
    return term if past is None else past.restrict(term, rows, columns)


def fits(shape: tuple[int, ...], into: tuple[int, ...]) -> bool:
    """Whether an array of one shape broadcasts to the other."""
    pairs = zip(reversed(shape), reversed(into), strict=False)
    return len(shape) <= len(into) and all(a in (1, b) for a, b in pairs)


def join(*parts: Tensor) -> Tensor:
    """Channels side by side; the axes before them are broadcast."""
    shape = torch.broadcast_shapes(*(x.shape[:-1] for x in parts))
    return torch.cat([x.expand(*shape, -1) for x in parts], -1)


def slices(n: int, chunk: int) -> Iterator[slice]:
    """Slices of at most ``chunk`` of n points; one, empty, where there are none.

    Raises
    ------
    ValueError
        If ``chunk`` is not positive.
    """
    if chunk < min(n, 1):
        raise ValueError(f"a chunk must hold at least 1 point, got {chunk}")
    return (slice(i, min(i + chunk, n)) for i in range(0, max(n, 1), max(chunk, 1)))


def _masked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    term: Callable[[], Tensor] | None,
    scale: float,
    *,
    again: bool,
) -> Tensor:
    """One call of the kernel; a term is made in here, and for the backward pass made ``again``."""
    if term is None:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        bias = term().to(q.dtype)
        with sdpa_kernel(MASKED_BACKENDS):
            return F.scaled_dot_product_attention(
                q, k, v, attn_mask=bias if mask is None else bias + mask, scale=scale
            )

    if again and torch.is_grad_enabled():
        return checkpoint(call, q, k, v, use_reentrant=False)
    return call(q, k, v)


def _term(
    bias: Bias | None, past: Past | None, rows: slice, columns: slice, shape: tuple[int, ...]
) -> Callable[[], Tensor] | None:
    """How to make the term of one chunk, with four axes."""
    if bias is None and past is None:
        return None

    def make() -> Tensor:
        term = restricted(bias, past, rows, columns, shape)
        return _four_axes(term, shape[:-3])  # type: ignore[arg-type]

    return make


def _needs_channels(q: Tensor) -> bool:
    return q.is_cuda or q.element_size() < 4


def _carry(q: Tensor, k: Tensor, log_w: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """The weights as channels of q and k; in half precision what rounding takes in a second one."""
    # A finite log 0: infinity times the zero that pads a channel is NaN. Keys and values of null
    # sources are zero, so nothing is added to it.
    column = (log_w / scale).clamp(min=torch.finfo(k.dtype).min / 4)
    high = column.to(k.dtype)
    columns = [high] if k.element_size() >= 4 else [high, (column - high).to(k.dtype)]
    ones = q.new_ones(1, 1, len(columns))
    return join(q, ones), join(k, torch.stack(columns, -1).unsqueeze(-3))


def _one_width(*tensors: Tensor) -> list[Tensor]:
    """Pad channels with zeros: to one width, a multiple of 8, if they differ."""
    widths = {x.shape[-1] for x in tensors}
    width = max(widths) if len(widths) == 1 else -(-max(widths) // 8) * 8
    return [F.pad(x, (0, width - x.shape[-1])) if x.shape[-1] < width else x for x in tensors]


def _four_axes(x: Tensor, batch: tuple[int, ...]) -> Tensor:
    """(..., h, n, c) as (b, h, n, c)."""
    return x.expand(*batch, *x.shape[-3:]).reshape(math.prod(batch), *x.shape[-3:])
