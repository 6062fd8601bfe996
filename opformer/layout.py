r"""Layout: which fields of a mesh become which channels, where, and under which measure.

All fields of a case are brought to one location, nodes or cells; what lives at the other is moved
there by the measure.

The source is Ω and its boundary Γ: the nodes of Γ are a second set of points, under
:math:`\mu + \ell\,\sigma` with σ the boundary measure and ℓ a fixed length, and one more input
channel says which is which. So the shape of a domain is an input, not something to be guessed from
where its points end. A field that is zero away from the boundary, a traction for instance, lives on
Γ alone. It is no function on Ω: a finer mesh gives its nodes less area, and in the limit none.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from opformer.domain import Domain
from opformer.errors import MeshError
from opformer.mesh import Location, boundary_weights, field_location, flat_axes, read_field
from opformer.sample import Sample

__all__ = ["Layout", "boundary_length", "project", "zero_inside"]

# A parameter is a field that is constant over its file, up to the digits a file keeps.
CONSTANT = 1e-6


@dataclass(frozen=True)
class Layout:
    """Which fields a surrogate reads and writes, how many components they have, where they live.

    Attributes
    ----------
    inputs, outputs, parameters : dict of name to number of components
    at : "points" or "cells"
    axes : list of int
        The coordinate axes in use; one that is flat in the whole training set is left out.
    boundary : bool
        Whether the boundary is a part of the source.
    boundary_inputs : list of str
        Inputs that live on the boundary alone.
    boundary_length : float
        The length ℓ that stands before the boundary measure, in the mesh's units.
    """

    inputs: dict[str, int] = field(default_factory=dict)
    outputs: dict[str, int] = field(default_factory=dict)
    parameters: dict[str, int] = field(default_factory=dict)
    at: Location = "points"
    axes: list[int] = field(default_factory=list)
    boundary: bool = False
    boundary_inputs: list[str] = field(default_factory=list)
    boundary_length: float = 1.0

    @property
    def in_channels(self) -> int:
        """Channels of the input fields together."""
        return sum(self.inputs.values()) + self.boundary

    def split(self, y: Tensor) -> dict[str, Tensor]:
        """Output channels (..., out_channels) by field, each (..., components)."""
        parts = y.split(list(self.outputs.values()), -1)
        return dict(zip(self.outputs, parts, strict=True))

    def read(self, mesh: Any, name: str = "", *, outputs: bool = True) -> Sample:
        """The sample of one mesh (a ``meshio.Mesh``).

        Raises
        ------
        MeshError
            If a field is missing, has other components than the layout says, holds NaN, is no
            constant where a parameter is wanted, or is not zero off the boundary where it should
            be; or if the mesh extends along an axis that was flat in training.
        """
        domain = Domain.from_mesh(mesh, at=self.at)
        parameters = [_constant(mesh, p, n) for p, n in self.parameters.items()]
        sample = Sample(
            source=domain,
            fields=_channels(mesh, self.inputs, self.at, domain.size),
            parameters=torch.cat([torch.zeros(0, dtype=torch.float64), *parameters]),
            outputs=_channels(mesh, self.outputs, self.at, domain.size) if outputs else None,
            name=name,
        )
        return self.settle(self._with_boundary(sample, mesh) if self.boundary else sample)

    def settle(self, sample: Sample) -> Sample:
        """The sample on the axes in use, with its boundary inputs on the boundary alone."""
        sample = replace(sample, source=project(sample.source, self.axes))
        if sample.boundary is None or not self.boundary_inputs:
            return sample
        on_boundary = [
            n in self.boundary_inputs for n, count in self.inputs.items() for _ in range(count)
        ]
        moved = ~sample.boundary[:, None] & torch.tensor([*on_boundary, False])
        return replace(sample, fields=sample.fields.masked_fill(moved, 0))

    def _with_boundary(self, sample: Sample, mesh: Any) -> Sample:
        """Append the boundary's nodes under the boundary measure."""
        weights = torch.from_numpy(boundary_weights(mesh))
        nodes = sample.source if self.at == "points" else Domain.from_mesh(mesh)
        for name in self.boundary_inputs:
            if not zero_inside(mesh, name):
                raise MeshError(f"input {name!r} must be zero off the boundary, and is not")
        index = torch.nonzero(weights)[:, 0]
        both = Domain(
            torch.cat([sample.source.points, nodes.points[index]]),
            torch.cat([sample.source.weights, self.boundary_length * weights[index]]),
        )
        on_boundary = torch.arange(both.size) >= sample.source.size
        outer = _channels(mesh, self.inputs, "points", nodes.size)[index]
        fields = torch.cat([torch.cat([sample.fields, outer]), on_boundary[:, None].double()], 1)
        outputs = sample.outputs
        if outputs is not None:
            outputs = torch.cat([outputs, outputs.new_zeros(len(index), outputs.shape[1])])
        return replace(sample, source=both, fields=fields, outputs=outputs, boundary=on_boundary)


def project(domain: Domain, axes: list[int]) -> Domain:
    """The domain on some of its axes; the others must be flat."""
    if axes == list(range(domain.dim)):
        return domain
    if not axes or max(axes) >= domain.dim:
        raise MeshError(f"coordinate axes {axes} are needed, the mesh has {domain.dim}")
    flat = flat_axes(domain.points.numpy())
    bent = [axis for axis in range(domain.dim) if axis not in axes and axis not in flat]
    if bent:
        raise MeshError(f"axis {'xyz'[bent[0]]} was flat in the training set and is not flat here")
    return Domain(domain.points[:, axes], domain.weights)


def zero_inside(mesh: Any, name: str) -> bool:
    """Whether a field of the nodes is zero off the boundary; orphans are neither on nor off."""
    inside = (boundary_weights(mesh) == 0) & ~Domain.from_mesh(mesh).null.numpy()
    return bool(inside.any()) and not read_field(mesh, name, "points")[inside].any()


def boundary_length(mesh: Any) -> float:
    """ℓ = |Ω| / |Γ|, so that the boundary weighs about as much as the volume."""
    length = float(boundary_weights(mesh).sum())
    return float(Domain.from_mesh(mesh).total) / length if length else 1.0


def _channels(mesh: Any, names: dict[str, int], at: Location, size: int) -> Tensor:
    parts = [np.zeros((size, 0))]
    for name, components in names.items():
        values = read_field(mesh, name, at)
        if values.shape[1] != components:
            raise MeshError(
                f"field {name!r} must have {components} component(s), got {values.shape[1]}"
            )
        parts.append(values)
    return torch.from_numpy(np.concatenate(parts, axis=1))


def _constant(mesh: Any, name: str, components: int) -> Tensor:
    at = field_location(mesh, name)
    values = read_field(mesh, name, at)[~Domain.from_mesh(mesh, at=at).null.numpy()]
    spread = np.ptp(values, axis=0).max()
    if values.shape[1] != components or spread > CONSTANT * np.abs(values).max():
        raise MeshError(
            f"parameter {name!r} must be a field of {components} component(s), constant over the "
            f"file, got {values.shape[1]} that vary by {spread:.3g}"
        )
    return torch.from_numpy(values.mean(axis=0))
