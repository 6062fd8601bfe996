r"""Mesh files side by side: each field over all of them, what differs, what is far from the rest.

A value stands out if its robust z-score, :math:`|x-m|` over :math:`1.4826\,\mathrm{median}|x-m|`
with m the median (Iglewicz and Hoaglin 1993), is over 8; a unit is doubtful if it is 30 times m.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from opformer.mesh.field_report import CONSTANT, FieldReport
from opformer.mesh.fields import Location
from opformer.mesh.report import MEASURE, MeshReport

__all__ = [
    "FieldSummary",
    "Inspected",
    "copies",
    "differences",
    "distinct_meshes",
    "list_parts",
    "oddities",
    "summarize",
]

UNIT = 30.0  # times the median, or one part of it
OUTLIER = 8.0
FEW = 5  # files below which no value stands out, and the number of files named in full


@dataclass(frozen=True)
class Inspected:
    """A mesh: its file, its report, and digests of the mesh, of mesh and fields, of the bytes.

    ``file`` is the name, with "step k" after it for a step of a time series.
    """

    file: str
    step: int | None
    report: MeshReport
    mesh_digest: str
    digest: str
    file_digest: str


@dataclass(frozen=True)
class FieldSummary:
    """One field over all files.

    Attributes
    ----------
    name : str
    location : "points" or "cells"
    files : int
        How many files have it there.
    components : list of int
        All numbers of components that occur, the most common first.
    minimum, maximum : float
        Over all files.
    kind : str
        "parameter" if constant over each file, "fixed" if it is the same in all of them,
        "boundary" if zero off the boundary, "label" if it takes a few values, "unusable" if it is
        good nowhere, "part" if it marks cells of a lower dimension, "varying" otherwise.
    variation : float
        Of the root mean square, from file to file: median deviation over median.
    bad_files : list of str
        Where it is missing, has other components than most, or holds NaN.
    """

    name: str
    location: Location
    files: int
    components: list[int]
    minimum: float
    maximum: float
    kind: str
    variation: float
    bad_files: list[str]


def summarize(cases: Sequence[Inspected]) -> list[FieldSummary]:
    """Each field over all files, in the order in which they turn up."""
    files = [case.file for case in cases]
    parts = {name for case in cases for name in case.report.parts}
    fields = [_summary(found, files) for found in _fields(cases).values()]
    # On the cells that count a set of others is zero, and still no field that says nothing.
    return [replace(f, kind="part") if f.kind == "fixed" and f.name in parts else f for f in fields]


def list_parts(cases: Sequence[Inspected]) -> list[str]:
    """The parts that may have a measure of their own, with its range over the files."""
    found: dict[str, list[tuple[int, float]]] = {}
    for case in cases:
        for name, part in case.report.parts.items():
            found.setdefault(name, []).append(part)
    lines = []
    for name, sizes in found.items():
        low, high = (f"{end(size for _, size in sizes):.6g}" for end in (min, max))
        where = "all" if len(sizes) == len(cases) else f"{len(sizes)} of {len(cases)}"
        size = low if low == high else f"{low} to {high}"
        lines.append(f"{name}: {MEASURE[sizes[0][0]]} {size}, in {where} files; see --parts")
    return lines


def differences(cases: Sequence[Inspected]) -> list[str]:
    """What is not the same in all files, and where it first is otherwise."""
    reports = {case.file: case.report for case in cases}
    lines = [
        *_differing("coordinates", {f: str(r.ambient) for f, r in reports.items()}),
        *_differing("dimension of the cells", {f: str(r.intrinsic) for f, r in reports.items()}),
        *_differing("cell types", {f: " + ".join(sorted(r.cells)) for f, r in reports.items()}),
        *_differing(
            "flat axes",
            {f: "".join("xyz"[a] for a in r.flat) or "none" for f, r in reports.items()},
        ),
        *_differing(
            "boundary", {f: "some" if r.geometry.boundary else "none" for f, r in reports.items()}
        ),
        *_differing("time", {f: "none" if r.time is None else "given" for f, r in reports.items()}),
    ]
    fields = _fields(cases)
    for name in dict.fromkeys(name for name, _ in fields):
        at = {f: [p.location for p in r.fields if p.name == name] for f, r in reports.items()}
        places = {f: "at " + " and ".join(p) if p else "missing" for f, p in at.items()}
        lines += _differing(f"field {name}", places)
    for (name, _), found in fields.items():
        components = {f: f"{p.components} component(s)" for f, p in found.items()}
        lines += _differing(f"field {name}", components)
        constant = {f: "constant" if p.constant else "varying" for f, p in found.items()}
        if 2 * sum(p.constant for p in found.values()) > len(found):
            lines += _differing(f"field {name}", constant)
    return lines


def oddities(cases: Sequence[Inspected]) -> list[str]:
    """What is NaN, of a doubtful unit, or far from the other files, with the file's name."""
    extents = {case.file: case.report.geometry.extent for case in cases}
    lines, strange = _units("extent", extents, "is one in mm, the other in m?")
    measures = {c.file: c.report.measure for c in cases if c.file not in strange}
    lines += _outliers("measure", measures)
    for (name, _), found in _fields(cases).items():
        lines += _broken(name, found)
        zero = [file for file, f in found.items() if f.zero]
        if 0 < len(zero) < len(found):
            lines.append(f"field {name} is zero everywhere in {_files(zero)}")
        size = {f: p.rms for f, p in found.items() if f not in zero}
        doubtful, strange = _units(f"rms of field {name}", size, "another unit, kilo or milli?")
        peaks = {
            f: max(abs(p.minimum), abs(p.maximum)) for f, p in found.items() if f not in strange
        }
        lines += doubtful + _outliers(f"largest |{name}|", peaks)
    own = [
        f"{case.file}: {', '.join(case.report.remarks)}" for case in cases if case.report.remarks
    ]
    more = [f"… {len(own) - FEW} more files with remarks of their own"] if len(own) > FEW else []
    return lines + own[:FEW] + more


def copies(cases: Sequence[Inspected]) -> list[str]:
    """Files that hold the same mesh and the same fields."""
    groups: dict[str, list[Inspected]] = defaultdict(list)
    for case in cases:
        groups[case.digest].append(case)
    return [
        f"{', '.join(case.file for case in group)} hold the same mesh and fields"
        + (", byte for byte" if len({case.file_digest for case in group}) == 1 else "")
        for group in groups.values()
        if len(group) > 1
    ]


def distinct_meshes(cases: Sequence[Inspected]) -> int:
    """How many different meshes there are, whatever their fields."""
    return len({case.mesh_digest for case in cases})


def _fields(cases: Sequence[Inspected]) -> dict[tuple[str, Location], dict[str, FieldReport]]:
    """For each name and location the reports by file."""
    found: dict[tuple[str, Location], dict[str, FieldReport]] = {}
    for case in cases:
        for report in case.report.fields:
            found.setdefault((report.name, report.location), {})[case.file] = report
    return found


def _summary(found: Mapping[str, FieldReport], files: list[str]) -> FieldSummary:
    reports = list(found.values())
    counts = Counter(f.components for f in reports if not f.problem)
    components = [n for n, _ in (counts or Counter(f.components for f in reports)).most_common()]
    good = {file: f for file, f in found.items() if f.components == components[0] and not f.problem}
    numbers = [f for f in reports if np.isfinite(f.minimum)]
    return FieldSummary(
        reports[0].name,
        reports[0].location,
        files=len(found),
        components=components,
        minimum=min((f.minimum for f in numbers), default=np.nan),
        maximum=max((f.maximum for f in numbers), default=np.nan),
        kind=_kind(list(good.values())),
        variation=_variation(np.array([f.rms for f in good.values()])),
        bad_files=[file for file in files if file not in good],
    )


def _variation(x: np.ndarray) -> float:
    median = np.median(x) if len(x) else 0.0
    return float(np.median(np.abs(x - median)) / median) if median > 0 else 0.0


def _kind(found: list[FieldReport]) -> str:
    if not found:
        return "unusable"
    if all(f.constant for f in found):
        means = np.array([f.mean for f in found])
        same = np.ptp(means, axis=0).max() <= CONSTANT * np.abs(means).max()
        return "fixed" if same and len(means) > 1 else "parameter"
    if len(found) > 1 and len({(f.minimum, f.maximum, *f.mean, f.rms) for f in found}) == 1:
        return "fixed"
    if all(f.zero_inside for f in found):
        return "boundary"
    return "label" if all(f.levels for f in found) else "varying"


def _differing(what: str, values: Mapping[str, str]) -> list[str]:
    """One line if not all files have the same value: the most common, then the others."""
    counts = Counter(values.values()).most_common()
    if len(counts) < 2:
        return []
    first = {value: file for file, value in reversed(list(values.items()))}
    others = [f"{value} in {n} (first {first[value]})" for value, n in counts[1 : FEW + 1]]
    return [f"{what}: {counts[0][0]} in {counts[0][1]} files, {', '.join(others)}"]


def _broken(name: str, found: Mapping[str, FieldReport]) -> Iterator[str]:
    bad = {file: f for file, f in found.items() if f.not_finite}
    for file, f in list(bad.items())[:1]:
        yield (
            f"field {name} is NaN or infinite at {f.not_finite} of the {f.location} of {file} "
            f"(first {f.first_not_finite})"
            + (f", and in {len(bad) - 1} more files" if len(bad) > 1 else "")
            + ("" if f.problem else "; harmless, the measure is zero there")
        )
    for file, f in found.items():
        if f.problem and not f.not_finite:
            yield f"{file}: {f.problem}"


def _units(what: str, values: Mapping[str, float], hint: str) -> tuple[list[str], set[str]]:
    """Files 30 times above or below the median, and their names."""
    positive = {file: x for file, x in values.items() if x > 0}
    if len(positive) < 3:
        return [], set()
    median = float(np.median(list(positive.values())))
    strange = {f: x for f, x in positive.items() if not 1 / UNIT <= x / median <= UNIT}
    lines = [
        f"{what} in {file} is {x:.4g}, {_ratio(x / median)} the median {median:.4g}"
        + (f"; {hint}" if 300 < max(x / median, median / x) < 3000 else "")
        for file, x in strange.items()
    ]
    return _shortened(lines), set(strange)


def _ratio(ratio: float) -> str:
    return f"{ratio:.4g} times" if ratio > 1 else f"1/{1 / ratio:.4g} of"


def _outliers(what: str, values: Mapping[str, float]) -> list[str]:
    finite = {file: x for file, x in values.items() if np.isfinite(x)}
    if len(finite) < FEW:
        return []
    x = np.array(list(finite.values()))
    median = np.median(x)
    # Where most files agree to the digit, one per mille is the least that counts as a deviation.
    scale = max(1.4826 * np.median(np.abs(x - median)), 1e-3 * abs(median)) or 1.0
    score = np.abs(x - median) / scale
    far = np.flatnonzero(score > OUTLIER)
    far = far if 5 * len(far) <= len(x) else far[:0]  # what a fifth of the files do is no exception
    files = list(finite)
    return _shortened(
        [
            f"{what} in {files[i]} is {x[i]:.4g}, far from the median {median:.4g} "
            f"(robust z-score {score[i]:.2g})"
            for i in far
        ]
    )


def _shortened(lines: list[str]) -> list[str]:
    more = [f"… {len(lines) - FEW} more such files"] if len(lines) > FEW else []
    return lines[:FEW] + more


def _files(files: list[str]) -> str:
    return files[0] if len(files) == 1 else f"{len(files)} files (first {files[0]})"
