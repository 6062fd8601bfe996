"""Samples in other poses: the same physics, seen from another side.

For comparison with models that need no augmentation, and for those that have no other way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor
from torch.utils.data import Dataset

from opformer.domain import Domain
from opformer.motions import random_rotation, turn
from opformer.sample import Sample

__all__ = ["RandomPoses", "move"]


def move(
    sample: Sample,
    q: Tensor,
    shift: Tensor | float = 0.0,
    *,
    inputs: Sequence[str],
    outputs: Sequence[str],
) -> Sample:
    """A sample in another pose: x ↦ q x + shift, with all its fields."""

    def moved(domain: Domain) -> Domain:
        return replace(domain, points=domain.points @ q.to(domain.points.dtype).mT + shift)

    def turned(f: Tensor | None, kinds: Sequence[str]) -> Tensor | None:
        return None if f is None else turn(f, kinds, q)

    return replace(
        sample,
        source=moved(sample.source),
        target=None if sample.target is None else moved(sample.target),
        fields=turn(sample.fields, inputs, q),
        outputs=turned(sample.outputs, outputs),
        target_fields=turned(sample.target_fields, inputs),
    )


class RandomPoses(Dataset[Sample]):
    """A data set whose samples are in another pose at every access.

    Each sample is turned about the centre of its domain, by a rotation from the global generator.
    All coordinates must be those of the space: where one is time there is nothing to turn.

    Parameters
    ----------
    data : sequence of samples, or data set
    inputs, outputs : list of "scalar", "vector" or "tensor"
        What the channels are, see :attr:`opformer.Layout.kinds`.
    reflections : bool
        Whether mirror images turn up too.
    """

    def __init__(
        self,
        data: Sequence[Sample] | Dataset[Sample],
        inputs: Sequence[str],
        outputs: Sequence[str],
        *,
        reflections: bool = False,
    ) -> None:
        self.data, self.reflections = data, reflections
        self.inputs, self.outputs = list(inputs), list(outputs)
        if self.layout is not None and self.layout.trajectory:
            raise ValueError("trajectories cannot be turned: time is no direction of the space")

    @property
    def layout(self) -> Any:
        """That of the data, if they have one."""
        return getattr(self.data, "layout", None)

    def __len__(self) -> int:
        return len(self.data)  # type: ignore[arg-type]

    def __getitem__(self, index: int) -> Sample:
        sample = self.data[index]
        q = random_rotation(sample.source.dim, reflections=self.reflections)
        center = sample.source.mean(sample.source.points.double())
        return move(sample, q, center - q @ center, inputs=self.inputs, outputs=self.outputs)
