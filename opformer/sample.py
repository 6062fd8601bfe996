r"""Samples: one case as tensors, and batches of cases of different sizes.

The measure does the bookkeeping: a batch is padded with points of measure zero, and a subsample
carries the weight of all points. A source may hold several measures, that of the domain Ω and those
of its parts, its boundary for instance; ``part`` then says which points belong to which.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from opformer.domain import Domain, stack
from opformer.grids import grid

__all__ = ["Sample", "collate", "over_time"]


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
    part : Tensor of integers, shape (m,), optional
        Which measure a source point belongs to: 0 is that of Ω, k that of its k-th part. Outputs
        are judged under that of Ω alone.
    name : str
        Of the case; a batch has all of them, joined by commas.
    target_fields : Tensor, shape (n, in_channels), optional
        The input fields at the target; without them those of the source are interpolated there.
    """

    source: Domain
    fields: Tensor
    parameters: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))
    target: Domain | None = None
    outputs: Tensor | None = None
    part: Tensor | None = None
    name: str = ""
    target_fields: Tensor | None = None

    def __post_init__(self) -> None:
        for name in ("fields", "parameters", "outputs", "target_fields"):
            values = getattr(self, name)
            if isinstance(values, Tensor) and not values.is_floating_point():
                object.__setattr__(self, name, values.double())
        n = self.source.weights.shape
        m = n if self.target is None else self.target.weights.shape
        if self.target is None and self.target_fields is not None:
            raise ValueError(f"sample {self.name!r} has target_fields and no target")
        for name, shape in (("fields", n), ("outputs", m), ("target_fields", m)):
            values = getattr(self, name)
            if values is not None and (values.ndim, values.shape[:-1]) != (len(shape) + 1, shape):
                raise ValueError(
                    f"sample {self.name!r}: {name} must have shape {(*shape, 'channels')}, "
                    f"got {tuple(values.shape)}"
                )
        if self.part is not None and self.part.shape != n:
            got = tuple(self.part.shape)
            raise ValueError(f"sample {self.name!r}: part must have shape {tuple(n)}, got {got}")

    @property
    def on_parts(self) -> Tensor:
        """Mask of the source points that the measures of parts have added."""
        return torch.zeros_like(self.source.null) if self.part is None else self.part > 0

    @property
    def inside(self) -> Domain:
        """The source without the measures of its parts: those points get weight zero."""
        if self.part is None:
            return self.source
        return replace(self.source, weights=self.source.weights.masked_fill(self.on_parts, 0))

    @property
    def domain(self) -> Domain:
        """Where the outputs live, with the measure that errors are integrated under."""
        return self.inside if self.target is None else self.target

    @property
    def size(self) -> int:
        """Points of the source's mesh; those that the measures of parts add do not count."""
        return self.source.size - int(self.on_parts.sum())

    @property
    def truth(self) -> Tensor:
        """The outputs, or a ValueError where there are none."""
        if self.outputs is None or not self.outputs.shape[-1]:
            raise ValueError(f"sample {self.name!r} has no outputs")
        return self.outputs

    def subsample(self, n: int, generator: torch.Generator | None = None) -> Sample:
        """The case on about ``n`` random points, re-lumped (see :meth:`Domain.subsample`).

        Each part is thinned in the same proportion, by itself: the measures do not mix.
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
            part=None if self.part is None else self.part[index],
            target_fields=None if self.target_fields is None else self.target_fields[kept],
        )

    def to(self, device: torch.device | str) -> Sample:
        """Move all tensors to a device."""
        values: dict[str, Any] = {
            name: value.to(device) if isinstance(value, Domain | Tensor) else value
            for name, value in vars(self).items()
        }
        return Sample(**values)

    def _thin(self, n: int, generator: torch.Generator | None) -> tuple[Domain, Tensor]:
        if self.part is None or not self.part.any():
            kept = self.source.subsample(n, generator=generator)
            return kept, kept.index
        parts, indices = [], []
        for number in self.part.unique():
            index = torch.nonzero(self.part == number)[:, 0]
            count = max(1, round(n * len(index) / self.source.size))
            kept = self.source.take(index).subsample(count, generator=generator)
            parts.append(kept)
            indices.append(index[kept.index])
        points, weights = ([getattr(p, a) for p in parts] for a in ("points", "weights"))
        return Domain(torch.cat(points), torch.cat(weights)), torch.cat(indices)


def collate(samples: Sequence[Sample]) -> Sample:
    """Batch cases of different sizes, for ``DataLoader(..., collate_fn=collate)``.

    Shorter cases are padded with points of measure zero.

    Raises
    ------
    ValueError
        If targets, outputs or parts are given for some samples only.
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
        part=_all_or_none(samples, "part", lambda x: _stack_padded(x, source.size)),
        name=",".join(sample.name for sample in samples),
        target_fields=_all_or_none(samples, "target_fields", lambda x: _stack_padded(x, size)),
    )


def over_time(
    samples: Sequence[Sample], times: Sequence[float], velocity: float, name: str = ""
) -> Sample:
    r"""The steps of a trajectory as one case in space and time.

    The points are :math:`(x, ct)`, the weights :math:`w_s\tau_k` with the trapezoidal rule
    :math:`\tau` in time; the points of the measures of parts come last.

    Raises
    ------
    ValueError
        If there are not two times at least, they do not ascend, or a parameter changes.
    """
    if len(times) < 2 or any(b <= a for a, b in itertools.pairwise(times)):
        raise ValueError(f"a trajectory needs two times or more that ascend, got {list(times)}")
    if any(not torch.equal(s.parameters, samples[0].parameters) for s in samples):
        raise ValueError("a parameter changes along the trajectory: make it an input instead")
    points, weights = [], []
    for sample, t, tau in zip(samples, times, grid(times).weights, strict=True):
        x = sample.source.points
        points.append(torch.cat([x, torch.full_like(x[:, :1], velocity * t)], 1))
        weights.append(tau * sample.source.weights)
    # Stable: what the steps hold stays in the order of the steps.
    order = torch.cat([sample.on_parts for sample in samples]).int().argsort(stable=True)

    def joined(attribute: str) -> Tensor | None:
        whole = _all_or_none(samples, attribute, torch.cat)
        return None if whole is None else whole[order]

    return replace(
        samples[0],
        source=Domain(torch.cat(points)[order], torch.cat(weights)[order]),
        fields=torch.cat([sample.fields for sample in samples])[order],
        outputs=joined("outputs"),
        part=joined("part"),
        name=name,
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
