"""What the files of a training set say about the layout of them all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import fsum

import numpy as np

from opformer.errors import MeshError
from opformer.layout import Layout
from opformer.measured import MeasuredMesh
from opformer.mesh import Location, field_location, flat_axes
from opformer.sample import Sample

__all__ = ["Findings", "conclude", "find", "first_layout"]


@dataclass(frozen=True)
class Findings:
    """What one mesh has to say."""

    lower: np.ndarray
    upper: np.ndarray
    time: float
    axes: set[int]  # that it extends along
    moved: set[str]  # fields that do not live where the samples do
    quiet: set[str]  # inputs that are zero off the parts
    loud: set[str]  # and those of them that are not zero on them
    volume: float
    parts: dict[str, float]


def first_layout(mesh: MeasuredMesh, layout: Layout, at: Location | None) -> Layout:
    """Where the samples live and how many components the fields have, by the first file."""
    if at is None:
        at = field_location(mesh.mesh, next(iter(layout.outputs))) if layout.outputs else "points"
    inputs, outputs = (
        {name: mesh.field(name, at).shape[1] for name in names}
        for names in (layout.inputs, layout.outputs)
    )
    parameters = {name: len(mesh.parameter(name)) for name in layout.parameters}
    return replace(layout, inputs=inputs, outputs=outputs, parameters=parameters, at=at)


def find(mesh: MeasuredMesh, sample: Sample, layout: Layout, time: float) -> Findings:
    """What a mesh, and the sample gathered from it, have to say."""
    used = sample.source.points.numpy()
    alive = used[~sample.source.null.numpy()]
    at_points = {name for name in layout.inputs if mesh.lives_at(name, "points")}
    quiet = {name for name in at_points if layout.parts and mesh.zero_inside(name)}
    return Findings(
        lower=alive.min(axis=0),
        upper=alive.max(axis=0),
        time=time,
        axes=set(range(used.shape[1])) - set(flat_axes(alive)),
        moved={n for n in (*layout.inputs, *layout.outputs) if not mesh.lives_at(n, layout.at)},
        quiet=quiet,
        loud={name for name in quiet if mesh.acts_on_parts(name)},
        volume=float(mesh.domain(layout.at).total),
        parts={name: float(weights.sum()) for name, weights in mesh.parts.items()},
    )


def conclude(layout: Layout, findings: Sequence[Findings]) -> tuple[Layout, list[str]]:
    """The layout for all files, whatever their order, and what to note about it."""
    coordinates = range(max(len(f.lower) for f in findings))
    axes = sorted(set().union(*(f.axes for f in findings))) or list(coordinates)
    acting = set.intersection(*(f.quiet for f in findings))
    acting &= set().union(*(f.loud for f in findings))
    moved = set().union(*(f.moved for f in findings))
    names = [name for name in layout.inputs if name in acting]
    notes = [f"input {name!r} is zero off {layout.where} and lives there alone" for name in names]
    if flat := ", ".join("xyz"[axis] for axis in coordinates if axis not in axes):
        notes.append(f"axis {flat} is flat in all {len(findings)} files and is left out")
    extended = set().union(*(f.axes for f in findings))
    some = [axis for axis in extended if any(axis not in f.axes for f in findings)]
    if some:
        flat_in = sum(not extended <= f.axes for f in findings)
        notes.append(
            f"axis {', '.join('xyz'[axis] for axis in some)} is flat in {flat_in} of "
            f"{len(findings)} files, and is kept: look whether they lie in one plane"
        )
    notes += [
        f"field {name!r} is moved to the {layout.at} by the measure"
        for name in {**layout.inputs, **layout.outputs}
        if name in moved - acting
    ]
    done = replace(layout, axes=axes, part_inputs=names, parts=_lengths(layout, findings))
    return replace(done, velocity=_velocity(findings, axes)) if layout.trajectory else done, notes


def _lengths(layout: Layout, findings: Sequence[Findings]) -> dict[str, float]:
    """ℓ of each part: all of them together weigh as much as the volume."""
    volume = fsum(f.volume for f in findings)
    sizes = {name: fsum(f.parts[name] for f in findings) for name in layout.parts}
    count = sum(size > 0 for size in sizes.values())
    return {name: volume / (count * size) if size else 1.0 for name, size in sizes.items()}


def _velocity(findings: Sequence[Findings], axes: Sequence[int]) -> float:
    """c: all times together become as long as the box around all points."""
    times = [f.time for f in findings]
    duration = max(times) - min(times)
    if not duration > 0:
        raise MeshError(f"trajectories need times that differ, all are {times[0]}")
    with_axes = [f for f in findings if len(f.lower) > max(axes)]
    lower, upper = (
        np.array([getattr(f, side)[axes] for f in with_axes]) for side in ("lower", "upper")
    )
    extent = float((upper.max(axis=0) - lower.min(axis=0)).max())
    return (extent or 1.0) / duration
