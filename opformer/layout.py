r"""Layout: which fields of a mesh become which channels, where, and under which measure.

All fields of a case are brought to one location, nodes or cells; what lives at the other is moved
there by the measure.

The source is Ω and its boundary Γ: the nodes of Γ are a second set of points, under
:math:`\mu + \ell\,\sigma` with σ the boundary measure and
:math:`\ell = \sum|\Omega|\,/\,\sum|\Gamma|`, summed over the files of the training set, and one
more input channel says which is which. So the shape of a domain is an input, not something to be
guessed from where its points end. A field that is zero away from the boundary, a traction for
instance, lives on Γ alone. It is no function on Ω: a finer mesh gives its nodes less area, and in
the limit none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from opformer.domain import Domain
from opformer.errors import MeshError
from opformer.mesh import Location, blocks, boundary_weights, field_location, flat_axes, read_field
from opformer.mesh.field_report import CONSTANT
from opformer.quadrature import lumping
from opformer.sample import Sample

__all__ = ["Layout", "MeasuredMesh", "Parameters", "project"]

Parameters: TypeAlias = Mapping[str, float | Sequence[float]]


class MeasuredMesh:
    """A mesh, its lumping matrix and measures, each computed once, where it is first asked for."""

    def __init__(self, mesh: Any, parameters: Parameters | None = None) -> None:
        self.mesh = mesh
        self._given = parameters or {}
        self._domains: dict[str, Domain] = {}

    @cached_property
    def lumping(self) -> csr_array:
        """Lumped mass of the nodes in the cells, see :func:`opformer.quadrature.lumping`."""
        return lumping(self.mesh.points, blocks(self.mesh))

    def domain(self, at: Location = "points") -> Domain:
        """The measure of the volume, at the nodes or the cells."""
        if at not in self._domains:
            self._domains[at] = self._nodes() if at == "points" else Domain.from_mesh(self.mesh, at)
        return self._domains[at]

    def field(self, name: str, at: Location) -> np.ndarray:
        """A field at the nodes or the cells, see :func:`opformer.mesh.read_field`."""
        return read_field(self.mesh, name, at, matrix=self.lumping)

    def parameter(self, name: str) -> np.ndarray:
        """A number, or several, of the whole case: a field that is constant, or data of the file.

        The time of a step of a series is the file's datum "time". What was given comes first, then
        fields.
        """
        if name in self._given:
            return np.asarray(self._given[name], dtype=float).ravel()
        fields = (*self.mesh.point_data, *self.mesh.cell_data)
        if name not in fields and name in self.mesh.field_data:
            return np.asarray(self.mesh.field_data[name], dtype=float).ravel()
        try:
            at = field_location(self.mesh, name)
        except MeshError as error:
            more = "nor is a number of the file, of a table, or a given one called so"
            raise MeshError(f"{error}; {more}") from error
        values = self.field(name, at)[~self.domain(at).null.numpy()]
        spread = np.ptp(values, axis=0).max(initial=0.0)
        if spread > CONSTANT * np.abs(values).max(initial=0.0):
            raise MeshError(
                f"parameter {name!r} must be constant over the file, it varies by {spread:.3g}"
            )
        return values.mean(axis=0)

    @cached_property
    def boundary(self) -> np.ndarray:
        """Weights of the nodes under the boundary measure; zero inside."""
        return boundary_weights(self.mesh)

    @cached_property
    def inside(self) -> np.ndarray:
        """Mask of the nodes off the boundary; orphans are neither on nor off."""
        return (self.boundary == 0) & ~self.domain().null.numpy()

    def zero_inside(self, name: str) -> bool:
        """Whether a field is zero at all nodes off the boundary, if there are any."""
        return not self.field(name, "points")[self.inside].any()

    def acts_on_boundary(self, name: str) -> bool:
        """Whether a field is not zero on the boundary, of a mesh that has an inside as well."""
        values = self.field(name, "points")[self.boundary > 0]
        return bool(self.inside.any() and values.any())

    def _nodes(self) -> Domain:
        points = np.asarray(self.mesh.points, dtype=float)
        return Domain(torch.from_numpy(points), torch.from_numpy(self.lumping.sum(axis=1)))


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
        The length ℓ that stands before the boundary measure, in the mesh's units: Σ|Ω| / Σ|Γ| over
        the files of the training set, so that there the boundary weighs as much as the volume, or
        1 if none of them has a boundary.
    """

    inputs: dict[str, int] = field(default_factory=dict)
    outputs: dict[str, int] = field(default_factory=dict)
    parameters: dict[str, int] = field(default_factory=dict)
    at: Location = "points"
    axes: list[int] = field(default_factory=list)
    boundary: bool = False
    boundary_inputs: list[str] = field(default_factory=list)
    boundary_length: float = 1.0

    def __eq__(self, other: object) -> bool:
        # The order of the fields is that of the channels; equal dicts need not have one order.
        return isinstance(other, Layout) and str(self) == str(other)

    __hash__ = None  # type: ignore[assignment]  # it holds lists

    @property
    def dim(self) -> int:
        """Number of coordinates in use."""
        return len(self.axes)

    @property
    def in_channels(self) -> int:
        """Components of the inputs together, and one that says what is boundary if that is read."""
        return sum(self.inputs.values()) + self.boundary

    @property
    def out_channels(self) -> int:
        """Components of the outputs together."""
        return sum(self.outputs.values())

    @property
    def parameter_channels(self) -> int:
        """Components of the parameters together."""
        return sum(self.parameters.values())

    def split(self, y: Tensor) -> dict[str, Tensor]:
        """Output channels (..., out_channels) by field, each (..., components)."""
        parts = y.split(list(self.outputs.values()), -1)
        return dict(zip(self.outputs, parts, strict=True))

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
            constant where a parameter is wanted, or is not zero off the boundary where it should
            be; or if the mesh has no measure, or extends along an axis that was flat in training.
        """
        mesh = MeasuredMesh(mesh, parameters)
        sample = self.gather(mesh, name, outputs=outputs)
        for load in self.boundary_inputs:
            if not mesh.zero_inside(load):
                raise MeshError(f"input {load!r} must be zero off the boundary, and is not")
        return self.settle(sample)

    def gather(self, mesh: MeasuredMesh, name: str = "", *, outputs: bool = True) -> Sample:
        """The fields and measures of a mesh, before it is known what :meth:`settle` needs."""
        source = mesh.domain(self.at)
        if not source.total > 0:
            raise MeshError("the total measure of the cells is zero")
        parameters = [_parameter(mesh, p, n) for p, n in self.parameters.items()]
        sample = Sample(
            source=source,
            fields=_channels(mesh, self.inputs, self.at),
            parameters=torch.cat([torch.zeros(0, dtype=torch.float64), *parameters]),
            outputs=_channels(mesh, self.outputs, self.at) if outputs else None,
            name=name,
        )
        return self._with_boundary(sample, mesh) if self.boundary else sample

    def settle(self, sample: Sample) -> Sample:
        """What was gathered: on the axes in use, Γ in units of ℓ, its inputs on Γ alone."""
        source = project(sample.source, self.axes)
        if sample.boundary is None:
            return replace(sample, source=source)
        w = source.weights
        weights = torch.where(sample.boundary, self.boundary_length * w, w)
        loads = [k in self.boundary_inputs for k, size in self.inputs.items() for _ in range(size)]
        elsewhere = ~sample.boundary[:, None] & torch.tensor([*loads, False])
        fields = sample.fields.masked_fill(elsewhere, 0)
        return replace(sample, source=Domain(source.points, weights), fields=fields)

    def _with_boundary(self, sample: Sample, mesh: MeasuredMesh) -> Sample:
        """Append the boundary's nodes under the boundary measure."""
        weights = torch.from_numpy(mesh.boundary)
        index = torch.nonzero(weights)[:, 0]
        both = Domain(
            torch.cat([sample.source.points, mesh.domain().points[index]]),
            torch.cat([sample.source.weights, weights[index]]),
        )
        on_boundary = torch.arange(both.size) >= sample.source.size
        nodal = sample.fields if self.at == "points" else _channels(mesh, self.inputs, "points")
        fields = torch.cat([sample.fields, nodal[index]])
        fields = torch.cat([fields, on_boundary[:, None].double()], 1)
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


def _channels(mesh: MeasuredMesh, names: dict[str, int], at: Location) -> Tensor:
    parts = [np.zeros((mesh.domain(at).size, 0))]
    for name, components in names.items():
        values = mesh.field(name, at)
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
