"""From what is in a folder to a command that fits it.

Which field is to be predicted cannot be seen from the files. What can: a field that is constant
over each file is a parameter; one that is zero off the boundary, or takes a few values, is given
rather than computed, so an input. Of the others the one that changes most from file to file is
taken as the output, and the rest as inputs; of a time series these are known at the first step
alone. A field that is bad in a few files is used, and those files are to be set aside; one that is
bad in half of them or more is left out. Columns of a table beside the files are parameters.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from opformer.mesh.comparison import FieldSummary, Inspected

__all__ = ["Proposal", "propose"]

SHOWN = 10  # files to be set aside
_WEIGHTS = "weights"  # the point field that measures bare points by itself
_POINTS = (
    "Points without cells need a rule for their weights: voronoi if they fill a region;\n"
    "of a curve or a surface in space take knn:1 or knn:2."
)
_NUMBERED = (
    "The names differ by a number alone, and the mesh is one: if they are the steps of a time\n"
    "series, say --numbered."
)
_SERIES = (
    "Each step is a case, its time a parameter, first:NAME the field at the first step;\n"
    "with --trajectory each series is one case in space and time."
)
_CHOICE = (
    "Of {}: put what you want to predict under --outputs, leave under --inputs\n"
    "only what is known beforehand, and leave out the rest."
)


@dataclass(frozen=True)
class Proposal:
    """A command that can be run on the folder, and what was not to be decided.

    Attributes
    ----------
    inputs, outputs, parameters : list of str
    undecided : list of str
        Fields, the output among them, that might as well be inputs or outputs.
    left_out : dict of field to reason
    set_aside : dict of file to reason
        What must be mended, or moved out of the folder, before the command can run.
    hints : list of str
        What else to know of the command.
    command : str
        Empty if there is no field to predict.
    """

    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    parameters: list[str] = field(default_factory=list)
    undecided: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    set_aside: dict[str, str] = field(default_factory=dict)
    hints: list[str] = field(default_factory=list)
    command: str = ""

    def __str__(self) -> str:
        left = [f"{name} is left out: {reason}." for name, reason in self.left_out.items()]
        if not self.command:
            return "\n".join(["no command: there is no field to predict.", *left])
        aside = [f"  {file}: {reason}" for file, reason in list(self.set_aside.items())[:SHOWN]]
        more = len(self.set_aside) - SHOWN
        several = len(self.undecided) > 1
        because = (
            "it changes most from file to file"
            if several
            else "it alone is not constant, nor zero off the boundary, nor of a few values"
        )
        lines = [
            *(["first mend these files, or move them out of the folder:"] if aside else []),
            *aside,
            *([f"  … {more} more"] if more > 0 else []),
            self.command,
            "A proposal: the files do not say what is to be predicted, the choice is yours.",
            f"{self.outputs[0]} stands under --outputs because {because}.",
            *([_CHOICE.format(", ".join(self.undecided))] if several else []),
            *self.hints,
        ]
        return "\n".join([*lines, *left])


def propose(
    folder: str,
    fields: Sequence[FieldSummary],
    cases: Sequence[Inspected],
    unfit: Mapping[str, str],
    columns: Sequence[str] = (),
) -> Proposal:
    """A command that fits a folder of readable meshes; ``unfit`` files are set aside.

    ``columns`` are those of a table of parameters beside the files.
    """
    count = len(cases)
    series = any(case.step is not None for case in cases)
    bare = bool(cases) and all(case.report.intrinsic == 0 for case in cases)
    if bare:  # a field of this name is their measure
        fields = [summary for summary in fields if summary.name != _WEIGHTS]
    by_name: dict[str, list[FieldSummary]] = {}
    for summary in sorted(fields, key=lambda f: f.location == "cells"):  # a fit prefers the points
        by_name.setdefault(summary.name, []).append(summary)
    bad = {name: _bad_files(both) for name, both in by_name.items()}
    kinds = {name: both[0].kind for name, both in by_name.items()}
    left_out = {
        name: f"missing, not a number or of another shape in {len(bad[name])} of {count} files"
        for name in kinds
        if 2 * len(bad[name]) >= count
    }
    left_out |= {n: "the same in all files" for n, kind in kinds.items() if kind == "fixed"}
    left_out |= {n: "it marks a part" for n, kind in kinds.items() if kind == "part"}
    used = {kind: [n for n in kinds if kinds[n] == kind and n not in left_out] for kind in
            ("parameter", "boundary", "label", "varying")}  # fmt: skip
    given = used["boundary"] + used["label"]
    undecided = used["varying"] or given
    output = max(undecided, key=lambda name: by_name[name][0].variation, default=None)
    inputs = [name for name in given + used["varying"] if name != output]
    names = [*inputs, *([output] if output else []), *used["parameter"]]
    numbers = [name for name in _numbers(cases) if name not in kinds]
    more = [name for name in columns if name not in kinds]
    parameters = list(dict.fromkeys([*used["parameter"], *numbers, *more]))
    if series and output:
        inputs = [*given, *(f"first:{n}" for n in used["varying"] if n in (output, *inputs))]
        parameters = list(dict.fromkeys([*parameters, "time"]))
    rules = Counter(case.report.rule for case in cases) if bare else Counter()
    rule = rules.most_common(1)[0][0] if rules else ""
    wrong = {
        file: f"field {name} is missing, NaN or of another shape"
        for name in names
        for file in bad[name]
    }
    return Proposal(
        inputs=inputs,
        outputs=[output] if output else [],
        parameters=parameters,
        undecided=undecided,
        left_out=left_out,
        set_aside={**wrong, **unfit},
        hints=[
            *([_POINTS] if rule else []),
            *([_SERIES] if series else []),
            *([_NUMBERED] if _numbered(cases) else []),
        ],
        command=_command(folder, inputs, output, parameters, rule) if output else "",
    )


def _numbered(cases: Sequence[Inspected]) -> bool:
    """Whether the files may be steps of one series: one mesh, and names of one pattern."""
    names = {re.sub(r"[._-]?\d+(?=\.[^.]*$)", "", case.file) for case in cases}
    alone = all(case.step is None for case in cases)
    return alone and len(cases) > 2 and len(names) == 1 == len({c.mesh_digest for c in cases})


def _numbers(cases: Sequence[Inspected]) -> list[str]:
    """Numbers of the file, as many in all of them, that are not the same everywhere."""
    first = cases[0].report.data if cases else {}
    found = {name: [case.report.data.get(name, []) for case in cases] for name in first}
    return [
        name
        for name, values in found.items()
        if len({len(v) for v in values}) == 1 and (len({*map(tuple, values)}) > 1)
    ]


def _bad_files(both: list[FieldSummary]) -> list[str]:
    """Where a field is bad at the points and at the cells; a fit moves it between them."""
    same = [f for f in both if f.components[0] == both[0].components[0]]
    return [file for file in both[0].bad_files if all(file in f.bad_files for f in same)]


def _command(folder: str, inputs: list[str], output: str, parameters: list[str], rule: str) -> str:
    options = {
        "--inputs": inputs,
        "--outputs": [output],
        "--parameters": parameters,
        "--weights": [rule] if rule else [],
    }
    words = [word for flag, names in options.items() if names for word in (flag, *names)]
    return shlex.join(["opformer", "fit", folder, *words, "--out", "run"])
