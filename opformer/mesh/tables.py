"""Tables for a person: the files of a folder, cut to a screen, and the fields over all of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from opformer.mesh.comparison import FieldSummary, Inspected

__all__ = ["case_table", "field_table"]

ROWS = 20  # up to which all files are listed


def case_table(cases: list[Inspected]) -> list[str]:
    """The files; of more than 20 the first, the last and the extremes."""
    if not cases:
        return []
    marks = _extremes(cases)
    timed = any(case.report.time is not None for case in cases)
    rows = [["file", "points", "cells", cases[0].report.unit, *(["time"] if timed else []), ""]]
    last = -1
    for i in _shown(len(cases), marks):
        if i > last + 1:
            rows.append([f"… {i - last - 1} more", *[""] * (len(rows[0]) - 1)])
        report, last = cases[i].report, i
        time = [] if not timed else ["" if report.time is None else f"{report.time:.6g}"]
        cells = str(sum(report.cells.values()))
        rows.append(
            [cases[i].file, str(report.points), cells, f"{report.measure:.6g}", *time,
             ", ".join(marks.get(i, []))]
        )  # fmt: skip
    return ["", *_aligned(rows)]


def field_table(fields: list[FieldSummary], count: int) -> list[str]:
    """The fields, over ``count`` files."""
    kinds = {
        "parameter": "constant over each file: a parameter",
        "fixed": "the same in all files: says nothing",
        "part": "marks a part",
        "boundary": "zero off the boundary: acts on the boundary only",
        "label": "a few values: a material or a label",
    }
    rows = [["field", "at", "components", "from", "to", "files", ""]]
    for f in fields:
        numbers = "/".join(map(str, f.components))
        rows.append(
            [f.name, f.location, numbers, f"{f.minimum:.6g}", f"{f.maximum:.6g}",
             str(f.files) if f.files < count else "all", kinds.get(f.kind, "")]
        )  # fmt: skip
    return list(_aligned(rows)) if fields else []


def _extremes(cases: list[Inspected]) -> dict[int, list[str]]:
    """Which files have the fewest and most points, the least and greatest measure."""
    marks: dict[int, list[str]] = {}
    sizes: dict[str, list[float]] = {
        "points": [case.report.points for case in cases],
        cases[0].report.unit: [case.report.measure for case in cases],
    }
    for what, values in sizes.items():
        if min(values) < (1 - 1e-6) * max(values):
            marks.setdefault(int(np.argmin(values)), []).append(f"least {what}")
            marks.setdefault(int(np.argmax(values)), []).append(f"most {what}")
    return marks


def _shown(count: int, marks: Iterable[int]) -> list[int]:
    if count <= ROWS:
        return list(range(count))
    return sorted({0, 1, 2, 3, count - 3, count - 2, count - 1, *marks})


def _aligned(rows: list[list[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(map(str.ljust, row, widths)).rstrip()
