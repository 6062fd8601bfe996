"""What a mesh file holds, for somebody who sees it for the first time.

Three kinds of findings: a *problem* keeps the mesh from a fit, a *remark* deserves a look, a *note*
is worth knowing and harmless. All but the counts name the first point or cell concerned, from 0.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from opformer.mesh.field_report import FieldReport
from opformer.mesh.geometry import GeometryReport
from opformer.quadrature import (
    TOPOLOGICAL_DIMENSION,
    CellReport,
)

__all__ = ["FieldReport", "MeshReport", "plain"]

MEASURE = {0: "count", 1: "length", 2: "area", 3: "volume"}
FAR = 1e4  # extents from the origin: float32 then resolves a thousandth of the mesh
TINY = 1e-4  # extent below which another unit may be meant
GRADED = 1e6  # largest over smallest cell
_TIMES = ("timevalue", "time")


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
    first_weightless : int, optional
    quality : CellReport
        Counts of inverted, degenerate, orphan and duplicate, with the first of each.
    geometry : GeometryReport
        Extent, boundary, connected parts, crowded facets, points that nearly coincide.
    fields : list of FieldReport
    parts : dict of name to (dimension, measure)
        Sets of cells or points that may have a measure of their own.
    data : dict of name to list of numbers
        Numbers of the whole file, parameters for a fit; the time is by itself.
    rule : str
        One that may suit points without cells and without weights; empty for all else.
    time : float, optional
        The time that the file says it belongs to.
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
    first_weightless: int | None
    quality: CellReport
    geometry: GeometryReport
    fields: list[FieldReport] = field(default_factory=list)
    parts: dict[str, tuple[int, float]] = field(default_factory=dict)
    data: dict[str, list[float]] = field(default_factory=dict)
    rule: str = ""
    time: float | None = None

    @property
    def unit(self) -> str:
        """What the measure is: count, length, area or volume."""
        return MEASURE[self.intrinsic]

    @property
    def dimensions(self) -> str:
        """The two dimensions and the flat axes, in words."""
        flat = "".join(f", axis {'xyz'[axis]} is flat" for axis in self.flat)
        return f"{self.intrinsic} of the cells, {self.ambient} of the points{flat}"

    @property
    def problems(self) -> list[str]:
        """What keeps the mesh from a fit."""
        none = [] if self.measure > 0 else ["the cells have no measure"]
        return none + [f.problem for f in self.fields if f.problem]

    @property
    def remarks(self) -> dict[str, str]:
        """What deserves a look, in a few words, and what it means."""
        g, q = self.geometry, self.quality
        centre = f"{g.offset:.3g} times its size from the origin"
        found = [
            (q.degenerate, f"{q.degenerate} degenerate cells (first {q.first_degenerate})",
             f"they have no {self.unit} and count for nothing"),
            (q.orphans, f"{q.orphans} points in no cell (first {q.first_orphan})",
             "their weight is 0: they change nothing, and predictions are made there all the same"),
            (q.duplicates, f"{q.duplicates} duplicate points (first {q.first_duplicate})",
             "another point has the same place; if no crack is meant, merge them"),
            (g.near_duplicates,
             f"{g.near_duplicates} nearly duplicate points (first {g.first_near_duplicate})",
             "another point is within 1e-9 of the extent; if no crack is meant, merge them"),
            (g.crowded_facets and not self._curved,
             f"{g.crowded_facets} facets of more than two cells (first {g.first_crowded_facet})",
             f"cells overlap, and {self.unit} counts twice (the numbers are those of its nodes)"),
            (self.intrinsic and len(g.parts) > 1, f"{len(g.parts)} parts that share no point",
             f"of {_some(g.parts)} cells, beginning at cells {_some(g.first_of_parts)}; "
             "fine if several bodies are meant"),
            (g.offset > FAR, f"the mesh lies {centre}",
             "float32 coordinates lose digits there: shift it before saving, if you can"),
            (0 < g.extent < TINY, f"the mesh is only {g.extent:.3g} large",
             "nothing is wrong with that, if it is your unit of length"),
            (g.cell_spread > GRADED, f"cells differ in {self.unit} by {g.cell_spread:.2g}",
             "such cells are often an accident of meshing"),
        ]  # fmt: skip
        return {short: meaning for applies, short, meaning in found if applies}

    @property
    def notes(self) -> dict[str, str]:
        """What is worth knowing and harmless, in a few words, and what it means."""
        g, q = self.geometry, self.quality
        lower = [k for k in self.cells if TOPOLOGICAL_DIMENSION[k] < self.intrinsic]
        flat = ", ".join("xyz"[axis] for axis in self.flat)
        found = [
            (q.inverted, f"{q.inverted} inverted cells (first {q.first_inverted})",
             "their nodes run the other way round; common, and harmless: the measure is positive"),
            (self.rule, "points without cells",
             f"their measure is for you to name, maybe by --weights {self.rule}"),
            (lower, f"{' and '.join(lower)} cells do not count",
             f"only those of the highest dimension carry {self.unit}"),
            (self.flat and len(self.flat) < self.ambient, f"axis {flat} is flat",
             "a fit leaves out an axis that is flat in all files"),
            (g.crowded_facets and self._curved,
             f"{g.crowded_facets} facets of more than two cells (first {g.first_crowded_facet})",
             "the mesh branches there (the numbers are those of its nodes)"),
        ]  # fmt: skip
        return {short: meaning for applies, short, meaning in found if applies}

    @property
    def verdict(self) -> str:
        """One line: ready to fit, or what to look at first."""
        if self.problems:
            return f"not ready: {'; '.join(self.problems)}"
        ready = "ready to fit" if self.fields else "geometry alone, no field to fit"
        return f"{ready}{'; have a look: ' if self.remarks else ''}{', '.join(self.remarks)}"

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain data for JSON; None stands for NaN."""
        findings = {"problems": self.problems, "remarks": self.remarks, "notes": self.notes}
        kinds = [{**asdict(f), "kind": f.kind} for f in self.fields]
        return plain({**asdict(self), "fields": kinds, **findings, "verdict": self.verdict})

    @property
    def _curved(self) -> bool:
        """Whether the mesh is a curve or a surface in a space of more dimensions."""
        return self.intrinsic < self.ambient - len(self.flat)

    def __str__(self) -> str:
        g = self.geometry
        cells = ", ".join(f"{count} {name}" for name, count in self.cells.items())
        box = ", ".join(
            f"{axis} from {low:.6g} to {high:.6g}"
            for axis, low, high in zip("xyz", g.lower, g.upper, strict=False)
        )
        edge = {1: "{:.6g} end points", 2: "length {:.6g}", 3: "area {:.6g}"}.get(self.intrinsic)
        first = f" (first {self.first_weightless})" if self.weightless else ""
        lines = [
            f"{self.source}",
            *([] if self.time is None else [f"time        {self.time:.6g}"]),
            f"points      {self.points}",
            f"cells       {cells}",
            f"dimension   {self.dimensions}",
            f"extent      {box}",
            f"{self.unit:11} {self.measure:.6g}",
            *([f"boundary    {edge.format(g.boundary) if g.boundary else 'none'}"] if edge else []),
            f"weights     largest/smallest {self.spread:.4g} of points, {g.cell_spread:.4g} of "
            f"cells; {self.weightless} points of weight 0{first}",
            *(
                f"number      {name} = {', '.join(f'{x:.6g}' for x in values)}: see --parameters"
                for name, values in self.data.items()
            ),
            *(f"field       {f}" for f in self.fields),
            *(
                f"part        {name}, {MEASURE[k]} {size:.6g}: see --parts"
                for name, (k, size) in self.parts.items()
            ),
            *(f"look at     {short}: {meaning}" for short, meaning in self.remarks.items()),
            *(f"note        {short}: {meaning}" for short, meaning in self.notes.items()),
            f"verdict     {self.verdict}",
        ]
        return "\n".join(lines)


def plain(value: Any) -> Any:
    """The value with None for numbers that are not finite, which JSON does not know."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _some(numbers: list[int], count: int = 5) -> str:
    more = f" and {len(numbers) - count} more" if len(numbers) > count else ""
    return ", ".join(map(str, numbers[:count])) + more
