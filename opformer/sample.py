r"""Samples: one case as tensors, and batches of cases of different sizes.

The measure does the bookkeeping: a batch is padded with points of measure zero, and a subsample
carries the weight of all points. A source may hold two measures, that of the volume Ω and that of
its boundary Γ; ``boundary`` then says which points belong to the second.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from opformer.domain import Domain, stack

__all__ = ["Sample", "collate"]


@dataclass(frozen=True, eq=False)
class Sample:
    """One case, or a batch of them with a leading axis.

    Attributes
    ----------
    source : Domain of m points
    fields : Tensor, shape (m, in_channels)
    parameters : Tensor, shape (parameter_channels,), none by default
    target : Domain of n points, optional
        Where the outputs are wanted; None for the source's own points.
    outputs : Tensor, shape (n, out_channels), or None where they are to be predicted
    boundary : Tensor of bool, shape (m,), optional
        Which source points belong to the boundary measure; outputs are not judged there.
    name : str
        Of the case; a batch has all of them, joined by commas.
    """

    source: Domain
    fields: Tensor
    parameters: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))
    target: Domain | None = None
    outputs: Tensor | None = None
    boundary: Tensor | None = None
    name: str = ""

    def __post_init__(self) -> None:
        n = self.source.weights.shape
        m = n if self.target is None else self.target.weights.shape
        for name, shape in (("fields", n), ("outputs", m)):
            values = getattr(self, name)
            if values is not None and (values.ndim, values.shape[:-1]) != (len(shape) + 1, shape):
                raise ValueError(
                    f"sample {self.name!r}: {name} must have shape {(*shape, 'channels')}, "
                    f"got {tuple(values.shape)}"
                )
        if self.boundary is not None and self.boundary.shape != n:
            got = tuple(self.boundary.shape)
            raise ValueError(
                f"sample {self.name!r}: boundary must have shape {tuple(n)}, got {got}"
            )

    @property
    def inside(self) -> Domain:
        """The source without its boundary measure: those points get weight zero."""
        if self.boundary is None:
            return self.source
        return replace(self.source, weights=self.source.weights.masked_fill(self.boundary, 0))

    @property
    def domain(self) -> Domain:
        """Where the outputs live, with the measure that errors are integrated under."""
        return self.inside if self.target is None else self.target

    @property
    def size(self) -> int:
        """Points of the source's mesh; those that the boundary measure adds do not count."""
        added = 0 if self.boundary is None else int(self.boundary.sum())
        return self.source.size - added

    @property
    def truth(self) -> Tensor:
        """The outputs, or a ValueError where there are none."""
        if self.outputs is None or not self.outputs.shape[-1]:
            raise ValueError(f"sample {self.name!r} has no outputs")
        return self.outputs

    def subsample(self, n: int, generator: torch.Generator | None = None) -> Sample:
        """The case on about ``n`` random points, re-lumped (see :meth:`Domain.subsample`).

        The boundary is thinned in the same proportion, by itself: the two measures do not mix.
        """
        source, index = self._thin(n, generator)
        target, kept = self.target, index
        if target is not None:
            target = target.subsample(n, generator=generator)
            kept = target.index
        return replace(
            self,
            source=source,
            fields=self.fields[index],
            target=target,
            outputs=None if self.outputs is None else self.outputs[kept],
            boundary=None if self.boundary is None else self.boundary[index],
        )

    def to(self, device: torch.device | str) -> Sample:
        """Move all tensors to a device."""
        values: dict[str, Any] = {
            name: value.to(device) if isinstance(value, Domain | Tensor) else value
            for name, value in vars(self).items()
        }
        return Sample(**values)

    def _thin(self, n: int, generator: torch.Generator | None) -> tuple[Domain, Tensor]:
        if self.boundary is None or not self.boundary.any():
            part = self.source.subsample(n, generator=generator)
            return part, part.index
        parts, indices = [], []
        for where in (~self.boundary, self.boundary):
            index = torch.nonzero(where)[:, 0]
            count = max(1, round(n * len(index) / self.source.size))
            part = self.source.take(index).subsample(count, generator=generator)
            parts.append(part)
            indices.append(index[part.index])
        points, weights = ([getattr(p, a) for p in parts] for a in ("points", "weights"))
        return Domain(torch.cat(points), torch.cat(weights)), torch.cat(indices)


def collate(samples: Sequence[Sample]) -> Sample:
    """Batch cases of different sizes, for ``DataLoader(..., collate_fn=collate)``.

    Shorter cases are padded with points of measure zero.

    Raises
    ------
    ValueError
        If targets, outputs or boundaries are given for some samples only.
    """
    source = stack([sample.source for sample in samples])
    target = _all_or_none(samples, "target", stack)
    size = source.size if target is None else target.size
    return Sample(
        source=source,
        fields=_stack_padded([sample.fields for sample in samples], source.size),
        parameters=torch.stack([sample.parameters for sample in samples]),
        target=target,
        outputs=_all_or_none(samples, "outputs", lambda x: _stack_padded(x, size)),
        boundary=_all_or_none(samples, "boundary", lambda x: _stack_padded(x, source.size)),
        name=",".join(sample.name for sample in samples),
    )


def _stack_padded(tensors: Sequence[Tensor], size: int) -> Tensor:
    return torch.stack([torch.cat([x, x.new_zeros(size - len(x), *x.shape[1:])]) for x in tensors])


def _all_or_none(samples: Sequence[Sample], name: str, join: Callable[[list[Any]], Any]) -> Any:
    items = [item for sample in samples if (item := getattr(sample, name)) is not None]
    if items and len(items) < len(samples):
        raise ValueError(
            f"{name} must be given for all samples of a batch or for none, "
            f"got {len(items)} of {len(samples)}"
        )
    return join(items) if items else None
