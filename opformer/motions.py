r"""Motions of the space and what they do to fields: scalars stay, vectors and tensors turn.

.. math:: x \mapsto Qx + a, \qquad s \mapsto s, \qquad v \mapsto Qv, \qquad T \mapsto QTQ^T.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

__all__ = ["KINDS", "channels_of", "random_rotation", "split", "turn"]

KINDS = ("scalar", "vector", "tensor")


def channels_of(kind: str, dim: int) -> int:
    """How many channels a scalar, a vector or a tensor has in a space of ``dim`` coordinates."""
    return {"scalar": 1, "vector": dim, "tensor": dim * dim}[kind]


def split(f: Tensor, kinds: Sequence[str], dim: int) -> Iterator[tuple[str, Tensor]]:
    """Channels (..., c) by field: the kind of each, and its channels."""
    sizes = [channels_of(kind, dim) for kind in kinds]
    if sum(sizes) != f.shape[-1]:
        raise ValueError(f"{list(kinds)} are {sum(sizes)} channels, got {tuple(f.shape)}")
    return zip(kinds, f.split(sizes, -1), strict=True)


def turn(f: Tensor, kinds: Sequence[str], q: Tensor) -> Tensor:
    """Fields (..., n, c) of points that are turned by q, (..., d, d)."""
    dim, q = q.shape[-1], q.to(f.dtype)
    parts = [f[..., :0]]
    for kind, part in split(f, kinds, dim):
        if kind == "vector":
            part = part @ q.mT
        elif kind == "tensor":
            whole = part.unflatten(-1, (dim, dim))
            part = (q.unsqueeze(-3) @ whole @ q.mT.unsqueeze(-3)).flatten(-2)
        parts.append(part)
    return torch.cat(parts, -1)


def random_rotation(
    dim: int, *, reflections: bool = False, generator: torch.Generator | None = None
) -> Tensor:
    """A rotation (d, d), uniform over SO(d), or over O(d) with reflections, in float64.

    By QR of a Gaussian matrix, with the signs of R moved into Q (Mezzadri, arXiv:math-ph/0609050).
    """
    q, r = torch.linalg.qr(torch.randn(dim, dim, generator=generator, dtype=torch.float64))
    q = q * r.diagonal().sign()
    if not reflections and torch.linalg.det(q) < 0:
        q[:, 0] *= -1
    return q
