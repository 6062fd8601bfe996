"""One mesh looked through once, for its report: what is measured is shared by all that asks."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from os import PathLike

import meshio
import numpy as np

from opformer._facets import Sharing
from opformer.mesh.field_report import FieldReport, report_field
from opformer.mesh.fields import Location, blocks, flat_axes, top_cells
from opformer.mesh.geometry import report_geometry
from opformer.mesh.parts import part_measures
from opformer.mesh.read import read_mesh
from opformer.mesh.report import MeshReport
from opformer.quadrature import (
    TOPOLOGICAL_DIMENSION,
    facet_sharing,
    node_weights,
    suited_rule,
    weigh,
)

__all__ = ["inspect_mesh"]

_TIMES = ("timevalue", "time")


def inspect_mesh(mesh: meshio.Mesh | str | PathLike[str]) -> MeshReport:
    """Report what a mesh, or a mesh file, holds and whether a model can be fitted to it.

    Raises
    ------
    MeshError
        If the file cannot be read or the cells have no weight rule.
    """
    source = "mesh" if isinstance(mesh, meshio.Mesh) else str(mesh)
    mesh = mesh if isinstance(mesh, meshio.Mesh) else read_mesh(mesh)
    with ThreadPoolExecutor(max_workers=4) as pool:  # NumPy lets threads run at the same time
        facets = pool.submit(_facets, mesh)
        matrix, quality = weigh(mesh.points, blocks(mesh))
        measures: dict[Location, np.ndarray]
        measures = {"points": matrix.sum(axis=1), "cells": matrix.sum(axis=0)}
        geometry = report_geometry(mesh.points, matrix, measures, facets)
        weights = measures["points"]
        inside = (weights > 0) & (facets.result()[1] == 0)

        def describe(name: str, at: Location) -> FieldReport:
            return report_field(mesh, name, at, measures[at], inside)

        fields = [
            *pool.map(describe, mesh.point_data, repeat("points")),
            *pool.map(describe, mesh.cell_data, repeat("cells")),
        ]
    positive, null = weights[weights > 0], np.flatnonzero(weights == 0)
    cells: Counter[str] = Counter()
    for cell_type, connectivity in blocks(mesh):
        cells[cell_type] += len(connectivity)
    return MeshReport(
        source=source,
        points=len(mesh.points),
        cells=dict(cells),
        ambient=mesh.points.shape[1],
        intrinsic=TOPOLOGICAL_DIMENSION[top_cells(mesh)[0][0]],
        flat=flat_axes(mesh.points),
        measure=float(weights.sum()),
        spread=float(positive.max() / positive.min()) if len(positive) else float("nan"),
        weightless=len(null),
        first_weightless=int(null[0]) if len(null) else None,
        quality=quality,
        geometry=geometry,
        fields=fields,
        parts=part_measures(mesh),
        data=_data(mesh),
        rule=_rule(mesh),
        time=_time(mesh),
    )


def _data(mesh: meshio.Mesh) -> dict[str, list[float]]:
    arrays = {name: np.ravel(values) for name, values in mesh.field_data.items()}
    return {
        name: values.astype(float).tolist()
        for name, values in arrays.items()
        if values.dtype.kind in "biuf" and 0 < values.size <= 9 and name.lower() not in _TIMES
    }


def _rule(mesh: meshio.Mesh) -> str:
    bare = top_cells(mesh)[0][0] == "vertex" and "weights" not in mesh.point_data
    return suited_rule(mesh.points) if bare else ""


def _facets(mesh: meshio.Mesh) -> tuple[Sharing, np.ndarray]:
    """How cells share their facets, and the measure of the boundary at the points."""
    facets = facet_sharing(blocks(mesh))
    if not facets.unshared:
        return facets, np.zeros(len(mesh.points))
    return facets, node_weights(mesh.points, facets.unshared)


def _time(mesh: meshio.Mesh) -> float | None:
    for name, value in mesh.field_data.items():
        if name.lower() in _TIMES and np.size(value) == 1:
            return float(np.ravel(value)[0])
    return None
