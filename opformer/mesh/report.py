"""What a mesh file holds, for somebody who sees it for the first time."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from os import PathLike

import meshio
import numpy as np

from opformer.errors import MeshError
from opformer.mesh.fields import Location, blocks, flat_axes, read_field, top_cells
from opformer.mesh.read import read_mesh
from opformer.quadrature import TOPOLOGICAL_DIMENSION, CellReport, cell_report, lumping

__all__ = ["FieldReport", "MeshReport", "inspect_mesh"]


@dataclass(frozen=True)
class FieldReport:
    """One field: where it lives, its range, rows that are not finite, what makes it unusable."""

    name: str
    location: Location
    components: int
    minimum: float
    maximum: float
    not_finite: int
    problem: str = ""

    def __str__(self) -> str:
        bad = f", {self.not_finite} rows NaN or infinite" if self.not_finite else ""
        return (
            f"{self.name} at {self.location}, {self.components} component(s), "
            f"from {self.minimum:.6g} to {self.maximum:.6g}{bad}"
        )


@dataclass(frozen=True)
class MeshReport:
    """What a mesh holds; as a string, a page to read.

    Attributes
    ----------
    source : str
        The file, or "mesh".
    points : int
        Number of points.
    cells : dict
        Number of cells of each type.
    ambient, intrinsic : int
        Dimension of the coordinates and of the cells that carry the measure.
    flat : list of int
        Axes of negligible extent, see `flat_axes`.
    measure : float
        Length, area or volume.
    spread : float
        Largest over smallest positive weight of a point.
    weightless : int
        Points of weight zero: in no cell, or in degenerate ones only.
    quality : CellReport
        Counts of inverted, degenerate, orphan and duplicate, with the first of each.
    fields : list of FieldReport
    """

    source: str
    points: int
    cells: dict[str, int]
    ambient: int
    intrinsic: int
    flat: list[int]
    measure: float
    spread: float
    weightless: int
    quality: CellReport
    fields: list[FieldReport]

    @property
    def verdict(self) -> str:
        """One line: ready to fit, or what to look at first."""
        problems = [field.problem for field in self.fields if field.problem]
        if not self.measure > 0:
            problems.insert(0, "the cells have no measure")
        if problems:
            return f"not ready: {'; '.join(problems)}"
        remarks = _remarks(self.quality) + ([] if self.fields else ["no fields, geometry only"])
        return f"ready to fit{'; have a look: ' if remarks else ''}{', '.join(remarks)}"

    def __str__(self) -> str:
        kind = {0: "count", 1: "length", 2: "area", 3: "volume"}[self.intrinsic]
        cells = ", ".join(f"{count} {name}" for name, count in self.cells.items())
        flat = "".join(f", axis {'xyz'[axis]} is flat" for axis in self.flat)
        lines = [
            f"{self.source}",
            f"points      {self.points}",
            f"cells       {cells}",
            f"dimension   ambient {self.ambient}, intrinsic {self.intrinsic}{flat}",
            f"{kind:11} {self.measure:.6g}",
            f"weights     largest/smallest {self.spread:.4g}, {self.weightless} points of weight 0",
            f"quality     {', '.join(_remarks(self.quality)) or 'nothing unusual'}",
            *(f"field       {field}" for field in self.fields),
            f"verdict     {self.verdict}",
        ]
        return "\n".join(lines)


def inspect_mesh(mesh: meshio.Mesh | str | PathLike[str]) -> MeshReport:
    """Report what a mesh, or a mesh file, holds and whether a model can be fitted to it.

    Raises
    ------
    MeshError
        If the file cannot be read or the cells have no weight rule.
    """
    source = "mesh" if isinstance(mesh, meshio.Mesh) else str(mesh)
    mesh = mesh if isinstance(mesh, meshio.Mesh) else read_mesh(mesh)
    weights = lumping(mesh.points, blocks(mesh)).sum(axis=1)
    positive = weights[weights > 0]
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
        weightless=len(weights) - len(positive),
        quality=cell_report(mesh.points, blocks(mesh)),
        fields=[_field(mesh, name, "points") for name in mesh.point_data]
        + [_field(mesh, name, "cells") for name in mesh.cell_data],
    )


def _field(mesh: meshio.Mesh, name: str, location: Location) -> FieldReport:
    data = [mesh.point_data[name]] if location == "points" else mesh.cell_data[name]
    try:
        problem = ""
        read_field(mesh, name, location)
    except MeshError as error:
        problem = str(error)
    if any(np.asarray(part).dtype.kind not in "biuf" for part in data):
        return FieldReport(name, location, 0, np.nan, np.nan, 0, problem)
    rows = [np.asarray(part, dtype=np.float64).reshape(len(part), -1) for part in data]
    values = np.concatenate([part.ravel() for part in rows])
    finite = values[np.isfinite(values)]
    return FieldReport(
        name,
        location,
        components=rows[0].shape[1],
        minimum=float(finite.min(initial=np.inf)),
        maximum=float(finite.max(initial=-np.inf)),
        not_finite=sum(int((~np.isfinite(part)).any(axis=1).sum()) for part in rows),
        problem=problem,
    )


def _remarks(quality: CellReport) -> list[str]:
    counts = [
        (quality.inverted, "inverted cells", quality.first_inverted),
        (quality.degenerate, "degenerate cells", quality.first_degenerate),
        (quality.orphans, "points in no cell", quality.first_orphan),
        (quality.duplicates, "duplicate points", quality.first_duplicate),
    ]
    return [f"{count} {what} (first {first})" for count, what, first in counts if count]
