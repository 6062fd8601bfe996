r"""One field of a mesh in figures: its range, its mean :math:`\int f\,d\mu/\mu(\Omega)`, its kind.

The kind says what a field may be good for. One number over the whole file is a parameter; what is
zero off the boundary is a load on it; a few different values are a material or a label.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import meshio
import numpy as np

from opformer.errors import MeshError
from opformer.mesh.fields import Location, field_values, read_field

__all__ = ["FieldReport", "report_field"]

CONSTANT = 1e-6  # of the largest value: up to the digits a file keeps, as for parameters in a fit
LEVELS = 32  # different values up to which a field may be a label, if it has many more rows


@dataclass(frozen=True)
class FieldReport:
    """One field in figures, over the points or the cells of the top dimension.

    Attributes
    ----------
    name : str
    location : "points" or "cells"
    components : int
        Zero for what is no number.
    minimum, maximum : float
        Over all components; NaN where no value is finite.
    mean : list of float
        Of each component, under the measure.
    rms : float
        Root of the mean of the squared magnitude, under the measure.
    not_finite : int
        Rows with NaN or an infinite value.
    first_not_finite : int, optional
        The first of them.
    zero_components : list of int
        Components that are zero everywhere though others are not, counted from 0.
    constant : bool
        One value wherever the measure is positive.
    zero_inside : bool
        A point field that is zero at all points off the boundary, if there are such points.
    levels : int
        Number of different values of a field of one component, if they are few; otherwise 0.
    whole : bool
        Whole numbers only.
    problem : str
        What makes the field unusable; empty for most.
    """

    name: str
    location: Location
    components: int = 0
    minimum: float = np.nan
    maximum: float = np.nan
    mean: list[float] = field(default_factory=list)
    rms: float = np.nan
    not_finite: int = 0
    first_not_finite: int | None = None
    zero_components: list[int] = field(default_factory=list)
    constant: bool = False
    zero_inside: bool = False
    levels: int = 0
    whole: bool = False
    problem: str = ""

    @property
    def zero(self) -> bool:
        """Whether the field is zero everywhere."""
        return self.minimum == self.maximum == 0

    @property
    def boundary_only(self) -> bool:
        """Whether the field is zero off the boundary, and not on it."""
        return self.zero_inside and not self.zero

    @property
    def kind(self) -> str:
        """What the values look like, in a few words; empty for a field that simply varies."""
        if self.zero:
            return "zero everywhere"
        if self.constant:
            return "constant: fit it under --parameters"
        if self.boundary_only:
            return "zero off the boundary: acts on the boundary only"
        if self.levels == 2 and (self.minimum, self.maximum) == (0, 1):
            return "only 0 and 1: marks a part"
        if self.levels:
            what = "whole numbers" if self.whole else "different values"
            return f"only {self.levels} {what}: a material or a label"
        return ""

    @property
    def remarks(self) -> list[str]:
        """The kind, rows that are not finite, and components that are always zero."""
        where = f"{self.not_finite} of the {self.location} (first {self.first_not_finite})"
        zeros = ", ".join(str(index + 1) for index in self.zero_components)
        found = [
            self.kind,
            f"NaN or infinite at {where}" if self.not_finite else "",
            f"component {zeros} of {self.components} is zero everywhere" if zeros else "",
        ]
        return [text for text in found if text]

    def __str__(self) -> str:
        if not self.components:
            return f"{self.name} at {self.location}, not a field of numbers"
        mean = ", ".join(f"{value:.4g}" for value in self.mean)
        parts = [
            f"{self.name} at {self.location}",
            "1 component" if self.components == 1 else f"{self.components} components",
            f"from {self.minimum:.6g} to {self.maximum:.6g}",
            f"mean {mean if len(self.mean) == 1 else f'({mean})'}",
        ]
        return "; ".join([", ".join(parts), *self.remarks])


def report_field(
    mesh: meshio.Mesh, name: str, location: Location, weights: np.ndarray, inside: np.ndarray
) -> FieldReport:
    """Report one field, given the measure where it lives and the mask of the points off Γ."""
    try:
        values = field_values(mesh, name, location)
    except MeshError as error:
        return FieldReport(name, location, problem=str(error))
    finite = np.isfinite(values)
    bad = np.empty(0, int) if finite.all() else np.flatnonzero(~finite.all(axis=1))
    good, share = (np.delete(x, bad, axis=0) if len(bad) else x for x in (values, weights))
    counted = good if (share > 0).all() else good[share > 0]
    mean, rms = _moments(counted, share[share > 0])
    zero = ~good.any(axis=0) if len(good) else np.zeros(values.shape[1], dtype=bool)
    return FieldReport(
        name,
        location,
        components=values.shape[1],
        minimum=float(good.min()) if good.size else np.nan,
        maximum=float(good.max()) if good.size else np.nan,
        mean=mean,
        rms=rms,
        not_finite=len(bad),
        first_not_finite=int(bad[0]) if len(bad) else None,
        zero_components=[] if zero.all() else np.flatnonzero(zero).tolist(),
        constant=_constant(counted),
        zero_inside=location == "points" and bool(inside.any()) and not values[inside].any(),
        levels=_levels(good),
        whole=bool((good == np.round(good)).all()),
        problem=_problem(mesh, name, location) if len(bad) else "",
    )


def _problem(mesh: meshio.Mesh, name: str, location: Location) -> str:
    try:
        read_field(mesh, name, location)
    except MeshError as error:
        return str(error)
    return ""


def _moments(values: np.ndarray, weights: np.ndarray) -> tuple[list[float], float]:
    if not len(values):
        return [float("nan")] * values.shape[1], float("nan")
    share = weights / weights.sum()
    largest = np.abs(values).max(initial=0.0) or 1.0  # squares must neither under- nor overflow
    square = share @ (values / largest) ** 2
    return (share @ values).tolist(), float(largest * np.sqrt(square.sum()))


def _constant(values: np.ndarray) -> bool:
    if not values.size:
        return False
    return bool(np.ptp(values, axis=0).max() <= CONSTANT * np.abs(values).max())


def _levels(values: np.ndarray) -> int:
    """Few values, each of which occurs often; else 0.

    A function of x alone has sqrt(n) different values on a square grid, and is no label.
    """
    if values.shape[1] != 1:
        return 0
    if len(np.unique(values[:: len(values) // 1000 + 1])) > LEVELS:  # soon seen of most fields
        return 0
    count = len(np.unique(values))
    return count if count <= min(LEVELS, np.sqrt(len(values)) / 2) else 0
