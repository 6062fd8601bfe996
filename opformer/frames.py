r"""Frames: any model made equivariant, by letting it see each case in axes of its own.

.. math:: G(u) = \frac1{|F|}\sum_{R\in F(u)} R\,M(R^{-1}u),

over the frames F that the case itself has: the principal axes of its domain,

.. math:: C = \int (x-\bar x)(x-\bar x)^T d\mu\,/\,\mu(\Omega),

in all choices of their signs, or one that the physics gives: the mean of a vector field, such as an
inflow, a load or gravity, points along the first axis, in space that of another one lies in the
plane of the first two. Reference: Puny et al., arXiv:2110.03336.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from opformer.domain import Domain, as_target
from opformer.motions import channels_of, split, turn

__all__ = ["FrameAveraging", "principal_axes"]

DEGENERATE = 1e-3  # of the largest eigenvalue: axes whose eigenvalues are closer are not told apart


class FrameAveraging(nn.Module):
    """A model in the frames of its input, called as :class:`opformer.OperatorTransformer` is.

    Parameters
    ----------
    model : nn.Module
        With ``dim``, ``in_channels``, ``out_channels`` and ``parameter_channels``.
    inputs, outputs : list of "scalar", "vector" or "tensor"
        What its channels are.
    along : list of int, optional
        Which vectors of the inputs, counted from 0 among the vectors, give the frame by their means
        over the domain: one in the plane, two in space. Without it the principal axes do.
    reflections : bool
        Whether frames are also mirrored, for E(d) instead of SE(d).
    """

    def __init__(
        self,
        model: Any,
        inputs: Sequence[str],
        outputs: Sequence[str],
        *,
        along: Sequence[int] = (),
        reflections: bool = True,
    ) -> None:
        super().__init__()
        if getattr(model, "causal_axis", None) is not None:
            raise ValueError(
                "a model with a causal_axis has no frames: the mean of the domain, and axes taken "
                "from it, look ahead in time"
            )
        self.model = model
        self.inputs, self.outputs = list(inputs), list(outputs)
        self.along, self.reflections = list(along), reflections
        self.dim: int = model.dim
        self.in_channels: int = model.in_channels
        self.out_channels: int = model.out_channels
        self.parameter_channels: int = model.parameter_channels
        for name, kinds in (("inputs", self.inputs), ("outputs", self.outputs)):
            sizes = sum(channels_of(kind, self.dim) for kind in kinds)
            wanted = self.in_channels if name == "inputs" else self.out_channels
            if sizes != wanted:
                raise ValueError(f"{name} {kinds} are {sizes} channels, the model has {wanted}")
        vectors = range(self.inputs.count("vector"))
        if self.along and (len(self.along) != self.dim - 1 or not {*self.along} <= {*vectors}):
            raise ValueError(
                f"along must be {self.dim - 1} of the {len(vectors)} input vectors, got {along}"
            )

    @property
    def kinds(self) -> tuple[list[str], list[str]]:
        """What the input and the output channels are."""
        return self.inputs, self.outputs

    @property
    def symmetry(self) -> str:
        """The motions that the whole turns with."""
        return "E(d)" if self.reflections else "SE(d)"

    def forward(
        self,
        source: Domain,
        fields: Tensor | None = None,
        target: Domain | Tensor | None = None,
        parameters: Tensor | None = None,
        *,
        target_fields: Tensor | None = None,
    ) -> Tensor:
        """Mean over the frames of what the model says in each, turned back."""
        if fields is None:
            fields = source.points.new_zeros(*source.weights.shape, 0)
        center = source.mean(source.points).unsqueeze(-2)
        target = None if target is None else as_target(target)
        said = []
        frames = self._frames(source, fields)
        for frame in frames:  # columns are the axes; coordinates along them are x @ frame
            back = frame.mT
            y = self.model(
                _seen(source, center, frame),
                turn(fields, self.inputs, back),
                None if target is None else _seen(target, center, frame),
                parameters,
                target_fields=(
                    None if target_fields is None else turn(target_fields, self.inputs, back)
                ),
            )
            said.append(turn(y, self.outputs, frame))
        return torch.stack(said).mean(0)

    def _frames(self, source: Domain, fields: Tensor) -> list[Tensor]:
        if self.along:
            found = [f for kind, f in split(fields, self.inputs, self.dim) if kind == "vector"]
            given = [found[i].double() for i in self.along]
            axes = _axes_along(
                [source.mean(f) for f in given], [source.mean(f.norm(dim=-1)) for f in given]
            )
            free = 1  # of what is perpendicular to them only the sign is open
        else:
            axes, free = principal_axes(source), self.dim
        # Right-handed; a choice of signs keeps the hand if their product is one.
        hand = torch.linalg.det(axes).sign()[..., None, None]
        axes = torch.cat([axes[..., :-1], axes[..., -1:] * hand], -1)
        fixed = (1.0,) * (self.dim - free)
        signs = [(*fixed, *choice) for choice in product((1.0, -1.0), repeat=free)]
        return [axes * axes.new_tensor(s) for s in signs if self.reflections or prod(s) > 0]


def _axes_along(vectors: Sequence[Tensor], sizes: Sequence[Tensor]) -> Tensor:
    """Orthonormal axes, (..., d, d): the first along the first vector, and so on (Gram-Schmidt).

    ``sizes`` are the mean lengths of the fields whose means the vectors are.
    """
    axes: list[Tensor] = []
    for v, size in zip(vectors, sizes, strict=True):
        for axis in axes:
            v = v - (v * axis).sum(-1, keepdim=True) * axis
        if (v.norm(dim=-1) <= DEGENERATE * size).any():
            warnings.warn(
                "the vectors that give the frame vanish in the mean, or are parallel, in some "
                "domain: its frame means nothing there",
                stacklevel=2,
            )
        axes.append(nn.functional.normalize(v, dim=-1))
    if len(axes) == 1:
        axes.append(torch.stack([-axes[0][..., 1], axes[0][..., 0]], -1))
    else:
        axes.append(torch.linalg.cross(*axes))
    return torch.stack(axes, -1)


def principal_axes(domain: Domain) -> Tensor:
    """Axes of the covariance under the measure, the longest first, as columns (..., d, d).

    Warns where two eigenvalues are nearly equal: then the axes between them mean nothing, and a
    slight change of the domain can turn them.
    """
    x = domain.points.detach().double()
    off = domain.zero_null(x - domain.mean(x).unsqueeze(-2))
    covariance = domain.mean((off.unsqueeze(-1) * off.unsqueeze(-2)).flatten(-2))
    values, axes = torch.linalg.eigh(covariance.unflatten(-1, (domain.dim, domain.dim)))
    close = values.diff(dim=-1) < DEGENERATE * values[..., -1:]
    if close.any():
        warnings.warn(
            f"{int(close.any(-1).sum())} domain(s) have principal axes of nearly equal length, "
            "which tell no direction: give the frame by a vector (along=), or take a model that "
            "needs no frame",
            stacklevel=2,
        )
    return axes.flip(-1)


def _seen(domain: Domain, center: Tensor, frame: Tensor) -> Domain:
    points = (domain.points - center).double() @ frame
    return replace(domain, points=points.to(domain.points.dtype))
