"""A mesh with its measures: that of the volume, at nodes or cells, and those of its parts.

The measure is that of the cells. Bare points have none: it is named, as a rule of
:func:`opformer.quadrature.point_weights` (``voronoi``, ``knn:2`` for points of a surface), as
``equal`` for points drawn evenly, or as a field that holds the weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import torch
from scipy.sparse import csc_array

from opformer.domain import Domain
from opformer.errors import MeshError
from opformer.mesh import (
    Location,
    blocks,
    derived_field,
    field_location,
    field_names,
    is_derived,
    is_lower_part,
    part_weights,
    read_field,
    top_cells,
)
from opformer.mesh.field_report import CONSTANT
from opformer.quadrature import RULES, lumping, point_weights

__all__ = ["MeasuredMesh", "Parameters"]

Parameters: TypeAlias = Mapping[str, float | Sequence[float]]

_NO_MEASURE = (
    "the file has points and no cells, so no measure; name one with weights (--weights): a rule "
    "('voronoi', 'delaunay', 'knn:2' for points of a surface, 'equal'), or a point field"
)


class MeasuredMesh:
    """A mesh, its lumping matrix and measures, each computed once, where it is first asked for.

    Parameters
    ----------
    mesh : meshio.Mesh
    parameters : dict of name to number, or numbers, optional
        They have precedence over what the mesh holds.
    weights : str
        Empty for the measure of the cells; or a rule, or a field (see above). Without it, bare
        points take the weights of their field "weights" if they have one.
    parts : names
        Of the sub-domains with a measure of their own, see :mod:`opformer.mesh.parts`.
    """

    def __init__(
        self,
        mesh: Any,
        parameters: Parameters | None = None,
        *,
        weights: str = "",
        parts: Sequence[str] = (),
    ) -> None:
        self.mesh = mesh
        self._given = parameters or {}
        self._weights, self._parts = weights, parts
        self._domains: dict[str, Domain] = {}
        self._derived: dict[tuple[str, str], np.ndarray] = {}

    @cached_property
    def points(self) -> torch.Tensor:
        """The nodes, (n, d) in float64."""
        return torch.from_numpy(np.asarray(self.mesh.points, dtype=float))

    @cached_property
    def lumping(self) -> csc_array:
        """Lumped mass of the nodes in the cells, see :func:`opformer.quadrature.lumping`."""
        return lumping(self.mesh.points, blocks(self.mesh))

    def domain(self, at: Location = "points") -> Domain:
        """The measure of the volume, at the nodes or the cells."""
        if at not in ("points", "cells"):
            raise MeshError(f'at must be "points" or "cells", got {at!r}')
        if at not in self._domains:
            self._domains[at] = self._nodes() if at == "points" else self._cells()
        return self._domains[at]

    def holds(self, name: str) -> bool:
        """Whether the file has a field of this name."""
        return name in self.mesh.point_data or name in self.mesh.cell_data

    def lives_at(self, name: str, at: Location) -> bool:
        """Whether a field is given, or can be computed, at this location."""
        return name in field_names(self.mesh)[at == "cells"] or self.is_computed(name)

    def field(self, name: str, at: Location) -> np.ndarray:
        """A field of the file, see :func:`opformer.mesh.read_field`, or one of its geometry.

        The latter are those of :mod:`opformer.mesh.derived`: ``distance:boundary`` and the like. A
        set of cells of a lower dimension, a wall of lines, is the indicator of its nodes.
        """
        if (name, at) not in self._derived:
            if not self.is_computed(name):
                return read_field(self.mesh, name, at, matrix=self.lumping)
            asked = f"indicator:{name}" if self.holds(name) else name
            self._derived[name, at] = derived_field(self.mesh, asked, at)
        return self._derived[name, at]

    def is_computed(self, name: str) -> bool:
        """Whether a field is made of the geometry: a derived one, or a set of lower cells."""
        return is_lower_part(self.mesh, name) if self.holds(name) else is_derived(name)

    def parameter(self, name: str) -> np.ndarray:
        """A number, or several, of the whole case: a field that is constant, or data of the file.

        The time of a step of a series is the file's datum "time". What was given comes first, then
        fields.
        """
        if name in self._given:
            return np.asarray(self._given[name], dtype=float).ravel()
        if not self.holds(name) and name in self.mesh.field_data:
            return np.asarray(self.mesh.field_data[name], dtype=float).ravel()
        try:
            at = field_location(self.mesh, name)
        except MeshError as error:
            numbers = [*self.mesh.field_data, *self._given]
            raise MeshError(f"{error}, numbers of the file or a table: {numbers}") from error
        measured = np.asarray(self.lumping.sum(axis=1 if at == "points" else 0)) > 0
        values = self.field(name, at)[measured]
        spread = np.ptp(values, axis=0).max(initial=0.0)
        if spread > CONSTANT * np.abs(values).max(initial=0.0):
            raise MeshError(
                f"parameter {name!r} must be constant over the file, it varies by {spread:.3g}"
            )
        return values.mean(axis=0)

    @cached_property
    def bare(self) -> bool:
        """Whether the mesh is points without cells that measure them."""
        return top_cells(self.mesh)[0][0] == "vertex"

    @property
    def weights_field(self) -> str:
        """The point field that holds the weights; empty if none does."""
        own = self._weights or ("weights" if self.bare else "")
        return own if own in self.mesh.point_data else ""

    @cached_property
    def parts(self) -> dict[str, np.ndarray]:
        """Weights of the nodes under the measure of each part; zero off it."""
        parts = {name: part_weights(self.mesh, name) for name in self._parts}
        if not self.bare:
            return parts
        # A vertex has no measure of its own: a part of bare points has theirs.
        weights = self.domain().weights.numpy()
        return {name: np.where(marked > 0, weights, 0.0) for name, marked in parts.items()}

    @cached_property
    def on_parts(self) -> np.ndarray:
        """Mask of the nodes of any part."""
        on = [weights > 0 for weights in self.parts.values()]
        return np.logical_or.reduce([np.zeros(len(self.mesh.points), bool), *on])

    @cached_property
    def inside(self) -> np.ndarray:
        """Mask of the nodes off the parts; orphans are neither on nor off."""
        return ~self.on_parts & (self.lumping.sum(axis=1) > 0)

    def zero_inside(self, name: str) -> bool:
        """Whether a field is zero at all nodes off the parts, if there are any."""
        return not self.field(name, "points")[self.inside].any()

    def acts_on_parts(self, name: str) -> bool:
        """Whether a field is not zero on the parts, of a mesh that has nodes off them as well."""
        return bool(self.inside.any() and self.field(name, "points")[self.on_parts].any())

    def _nodes(self) -> Domain:
        if self.bare and (lost := np.flatnonzero(self.lumping.sum(axis=1) == 0)).size:
            raise MeshError(
                f"{lost.size} points are in no cell of a file without other cells than vertices "
                f"(first {lost[0]}): give each point its vertex, or none any"
            )
        if name := self.weights_field:
            weights = _checked(self.field(name, "points"), name)
        elif self.bare:
            weights = self._by_rule(self._weights)
        elif self._weights:
            raise self._no_such_weights("points")
        else:
            weights = np.asarray(self.lumping.sum(axis=1))
        return Domain(self.points, torch.from_numpy(weights))

    def _cells(self) -> Domain:
        if self.bare:
            raise MeshError("points without cells have no cells to live at: take at='points'")
        domain = Domain.from_mesh(self.mesh, "cells")
        if not self._weights:
            return domain
        if self._weights not in self.mesh.cell_data:
            raise self._no_such_weights("cells")
        weights = _checked(self.field(self._weights, "cells"), self._weights)
        return Domain(domain.points, torch.from_numpy(weights))

    def _no_such_weights(self, at: Location) -> MeshError:
        known = field_names(self.mesh)[at == "cells"]
        other = "cells" if at == "points" else "points"
        there = f"; it is at the {other}: take at={other!r}" if self.holds(self._weights) else ""
        return MeshError(
            f"weights {self._weights!r}: there is no such field at the {at} (there are {known}), "
            f"and rules are for points without cells{there}"
        )

    def _by_rule(self, how: str) -> np.ndarray:
        if not how:
            raise MeshError(_NO_MEASURE)
        if how == "equal":
            return np.ones(len(self.points))
        rule, _, dim = how.partition(":")
        if rule not in RULES or not (dim == "" or dim.isdigit()):
            raise MeshError(
                f"weights {how!r}: neither a point field (there are {[*self.mesh.point_data]}) "
                f"nor a rule ({', '.join(RULES)}, knn:K in K dimensions, equal)"
            )
        try:
            return point_weights(self.points.numpy(), rule, dim=int(dim) if dim else None)
        except ValueError as error:
            raise MeshError(f"weights {how!r}: {error}") from error


def _checked(weights: np.ndarray, name: str) -> np.ndarray:
    bad = np.flatnonzero(~(weights[:, 0] >= 0))
    if weights.shape[1] != 1 or len(bad):
        got = f"{weights[bad[0], 0]} at {bad[0]}" if len(bad) else f"{weights.shape[1]} components"
        raise MeshError(f"weights {name!r} must be one number of at least 0 a point, got {got}")
    return weights[:, 0]
