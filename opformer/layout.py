r"""Layout: which fields of a mesh become which channels, where, and under which measure.

All fields of a case are brought to one location, nodes or cells; what lives at the other is moved
there by the measure.

The source is Ω and parts of it with a measure of their own, its boundary Γ by default: the nodes of
each part are another set of points, under :math:`\mu+\sum_k\ell_k\sigma_k` with the measures
:math:`\sigma_k` of the K parts and :math:`\ell_k=\sum|\Omega|\,/\,(K\sum|\Gamma_k|)`, summed over
the files of the training set, and one more input channel for each part says what belongs to it. So
the shape of a domain is an input, not something to be guessed from where its points end. A field
that is zero away from the parts, a traction for instance, lives on them alone. It is no function on
Ω: a finer mesh gives its nodes less area, and in the limit none.

A trajectory is one case in space and time, with the coordinates :math:`(x,ct)` and the product of
the measures, :math:`w_s\tau_k` with the trapezoidal weights :math:`\tau_k` of its times; c makes
the time as long as the domain is, over the training set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from opformer.domain import Domain
from opformer.errors import MeshError
from opformer.measured import MeasuredMesh, Parameters
from opformer.mesh import Location, flat_axes, merge_points, with_fields
from opformer.sample import Sample, over_time

__all__ = ["Layout", "as_components", "project"]


@dataclass(frozen=True)
class Layout:
    """Which fields a surrogate reads and writes, how many components they have, where they live.

    Attributes
    ----------
    inputs, outputs, parameters : dict of name to number of components
    at : "points" or "cells"
    axes : list of int
        The coordinate axes in use; one that is flat in the whole training set is left out.
    weights : str
        What measures Ω, see :mod:`opformer.measured`; empty for the cells.
    merged : bool
        Whether points of one place are one point (see :func:`opformer.mesh.merge_points`).
    parts : dict of name to float
        The parts of the source that have a measure of their own, and the length ℓ that stands
        before it, in the mesh's units: over the training set all parts together weigh as much as
        the volume.
    part_inputs : list of str
        Inputs that live on the parts alone.
    velocity : float
        c of a trajectory, in the mesh's units; 0 where a case is one step.
    steps : str
        Which steps of a time series are taken, as in Python's ``start:stop:stride``.
    numbered : bool
        Whether files that differ by a number in their names are steps of one time series.
    """

    inputs: dict[str, int] = field(default_factory=dict)
    outputs: dict[str, int] = field(default_factory=dict)
    parameters: dict[str, int] = field(default_factory=dict)
    at: Location = "points"
    axes: list[int] = field(default_factory=list)
    weights: str = ""
    merged: bool = False
    parts: dict[str, float] = field(default_factory=dict)
    part_inputs: list[str] = field(default_factory=list)
    velocity: float = 0.0
    steps: str = ":"
    numbered: bool = False

    def __eq__(self, other: object) -> bool:
        # The order of the fields is that of the channels; equal dicts need not have one order.
        return isinstance(other, Layout) and str(self) == str(other)

    __hash__ = None  # type: ignore[assignment]  # it holds lists

    @property
    def trajectory(self) -> bool:
        """Whether a case is a whole time series rather than one step of it."""
        return self.velocity > 0

    @property
    def needs_previous(self) -> bool:
        """Whether an input is that of the step before, which the first step has not."""
        return any(name.startswith("previous:") for name in self.inputs)

    @property
    def where(self) -> str:
        """What inputs that live on the parts live on, in words."""
        alone = [*self.parts] == ["boundary"]
        return "the boundary" if alone else f"the parts {', '.join(self.parts)}"

    @property
    def dim(self) -> int:
        """Number of coordinates in use, that of time included."""
        return len(self.axes) + self.trajectory

    @property
    def in_channels(self) -> int:
        """Components of the inputs together, and one for each part that says what belongs to it."""
        return sum(self.inputs.values()) + len(self.parts)

    @property
    def out_channels(self) -> int:
        """Components of the outputs together."""
        return sum(self.outputs.values())

    @property
    def parameter_channels(self) -> int:
        """Components of the parameters together."""
        return sum(self.parameters.values())

    @property
    def kinds(self) -> tuple[list[str], list[str]]:
        """What the input and the output channels are, "scalar", "vector" or "tensor".

        As the components say: one is a scalar, as many as there are coordinates a vector, their
        square a tensor, row by row. Of a vector of three in the plane the third is a scalar.

        Raises
        ------
        ValueError
            If a field has another number of components, or a case is a trajectory: time is no
            direction of the space.
        """
        if self.trajectory:
            raise ValueError("a trajectory has no vectors: time is no direction of the space")
        parts = ["scalar"] * len(self.parts)
        return self._kinds(self.inputs) + parts, self._kinds(self.outputs)

    def split(self, y: Tensor) -> dict[str, Tensor]:
        """Output channels (..., out_channels) by field, each (..., components)."""
        parts = y.split(list(self.outputs.values()), -1)
        return dict(zip(self.outputs, parts, strict=True))

    def measured(self, mesh: Any, parameters: Parameters | None = None) -> MeasuredMesh:
        """A mesh under the measures of this layout."""
        options: dict[str, Any] = {"weights": self.weights, "parts": list(self.parts)}
        measured = MeasuredMesh(mesh, parameters, **options)
        if not self.merged:
            return measured
        merged, index = merge_points(mesh)
        if name := measured.weights_field:  # a measure adds up, where other fields have a mean
            total = np.bincount(index, np.ravel(mesh.point_data[name]))
            merged = with_fields(merged, point_data={name: total}, overwrite=True)
        return MeasuredMesh(merged, parameters, **options)

    def read(
        self,
        mesh: Any,
        name: str = "",
        *,
        outputs: bool = True,
        parameters: Parameters | None = None,
    ) -> Sample:
        """The sample of one mesh, a ``meshio.Mesh``; given parameters have precedence over its own.

        Raises
        ------
        MeshError
            If a field is missing, has other components than the layout says, holds NaN, is no
            constant where a parameter is wanted, or is not zero off the parts where it should be;
            or if the mesh has no measure, or extends along an axis that was flat in training.
        """
        measured = self.measured(mesh, parameters)
        sample = self.gather(measured, name, outputs=outputs)
        for load in self.part_inputs:
            if not measured.zero_inside(load):
                raise MeshError(f"input {load!r} must be zero off {self.where}, and is not")
        return self.settle(sample)

    def gather(self, mesh: MeasuredMesh, name: str = "", *, outputs: bool = True) -> Sample:
        """The fields and measures of a mesh, before it is known what :meth:`settle` needs."""
        source = mesh.domain(self.at)
        if not source.total > 0:
            raise MeshError("the total measure is zero")
        parameters = [_parameter(mesh, p, n) for p, n in self.parameters.items()]
        sample = Sample(
            source=source,
            fields=_channels(mesh, self.inputs, self.at),
            parameters=torch.cat([torch.zeros(0, dtype=torch.float64), *parameters]),
            outputs=_channels(mesh, self.outputs, self.at) if outputs else None,
            name=name,
        )
        return self._with_parts(sample, mesh) if self.parts else sample

    def settle(self, sample: Sample) -> Sample:
        """What was gathered: on the axes in use, parts in units of ℓ, their inputs there alone."""
        source = project(sample.source, self.axes)
        if sample.part is None:
            return replace(sample, source=source)
        lengths = torch.tensor([1.0, *self.parts.values()], dtype=torch.float64)
        weights = lengths[sample.part] * source.weights
        loads = [k in self.part_inputs for k, size in self.inputs.items() for _ in range(size)]
        loads += [False] * len(self.parts)
        elsewhere = ~sample.on_parts[:, None] & torch.tensor(loads)
        fields = sample.fields.masked_fill(elsewhere, 0)
        return replace(sample, source=Domain(source.points, weights), fields=fields)

    def join(self, samples: Sequence[Sample], times: Sequence[float], name: str) -> Sample:
        """A trajectory of samples that are settled, one for each time."""
        return over_time(samples, times, self.velocity, name)

    def _kinds(self, fields: dict[str, int]) -> list[str]:
        d = len(self.axes)
        known = {1: ["scalar"], d * d: ["tensor"], d: ["vector"]}
        if d == 2:
            known[3] = ["vector", "scalar"]
        found = []
        for name, components in fields.items():
            if name.startswith("heat:"):  # features, see `opformer.mesh.derived`
                found += ["scalar"] * components
                continue
            if components not in known:
                raise ValueError(
                    f"field {name!r} has {components} components, which make no scalar, vector or "
                    f"tensor in {d} coordinates"
                )
            found += known[components]
        return found

    def _with_parts(self, sample: Sample, mesh: MeasuredMesh) -> Sample:
        """Append the nodes of each part under its measure."""
        nodal = sample.fields if self.at == "points" else _channels(mesh, self.inputs, "points")
        points, weights = [sample.source.points], [sample.source.weights]
        fields, part = [sample.fields], [torch.zeros(sample.source.size, dtype=torch.int64)]
        for number, measure in enumerate(mesh.parts.values(), start=1):
            index = torch.from_numpy(np.flatnonzero(measure))
            points.append(mesh.points[index])
            weights.append(torch.from_numpy(measure)[index])
            fields.append(nodal[index])
            part.append(torch.full((len(index),), number))
        which = torch.cat(part)
        marks = which[:, None] == torch.arange(1, len(self.parts) + 1)
        outputs = sample.outputs
        if outputs is not None:
            added = len(which) - len(outputs)
            outputs = torch.cat([outputs, outputs.new_zeros(added, outputs.shape[1])])
        return replace(
            sample,
            source=Domain(torch.cat(points), torch.cat(weights)),
            fields=torch.cat([torch.cat(fields), marks.double()], 1),
            outputs=outputs,
            part=which,
        )


def project(domain: Domain, axes: list[int]) -> Domain:
    """The domain on some of its axes; the others must be flat."""
    if axes == list(range(domain.dim)):
        return domain
    if not axes or max(axes) >= domain.dim:
        raise MeshError(f"coordinate axes {axes} are needed, the mesh has {domain.dim}")
    flat = flat_axes(domain.points[~domain.null].numpy())
    bent = [axis for axis in range(domain.dim) if axis not in axes and axis not in flat]
    if bent:
        raise MeshError(f"axis {'xyz'[bent[0]]} was flat in the training set and is not flat here")
    return Domain(domain.points[:, axes], domain.weights)


def as_components(values: np.ndarray, components: int) -> np.ndarray:
    """Vectors of two components as three, and back: formats and ParaView add a zero."""
    if (values.shape[1], components) == (2, 3):
        return np.pad(values, ((0, 0), (0, 1)))
    if (values.shape[1], components) == (3, 2) and not values[:, 2].any():
        return values[:, :2]
    return values


def _channels(mesh: MeasuredMesh, names: dict[str, int], at: Location) -> Tensor:
    parts = [np.zeros((mesh.domain(at).size, 0))]
    for name, components in names.items():
        values = as_components(mesh.field(name, at), components)
        if values.shape[1] != components:
            raise MeshError(
                f"field {name!r} must have {components} component(s), got {values.shape[1]}"
            )
        parts.append(values)
    return torch.from_numpy(np.concatenate(parts, axis=1))


def _parameter(mesh: MeasuredMesh, name: str, components: int) -> Tensor:
    values = mesh.parameter(name)
    if len(values) != components:
        raise MeshError(
            f"parameter {name!r} must have {components} component(s), got {len(values)}"
        )
    if not np.isfinite(values).all():
        raise MeshError(f"parameter {name!r} must be finite, got {values.tolist()}")
    return torch.from_numpy(values)
