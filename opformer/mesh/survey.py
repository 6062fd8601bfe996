"""A whole folder of mesh files: what is in it, what differs, what looks wrong, how to fit it.

One file is in memory at a time; what remains of it is a `MeshReport` and three digests.
"""

from __future__ import annotations

import hashlib
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from opformer._polyhedra import Polyhedra
from opformer.errors import MeshError
from opformer.mesh.comparison import (
    FieldSummary,
    Inspected,
    copies,
    differences,
    distinct_meshes,
    list_parts,
    oddities,
    summarize,
)
from opformer.mesh.folder import mesh_files
from opformer.mesh.inspection import inspect_mesh
from opformer.mesh.proposal import Proposal, propose
from opformer.mesh.read import read_mesh, steps_of
from opformer.mesh.report import MeshReport, plain
from opformer.mesh.tables import case_table, field_table
from opformer.parameters import common_columns

__all__ = ["FolderReport", "inspect_path", "survey_folder"]


@dataclass(frozen=True)
class FolderReport:
    """What a folder of mesh files holds; as a string, a page to read.

    Attributes
    ----------
    source : str
        The folder.
    cases : list of Inspected
        File, report and digests of each file that can be read, in the order of their names.
    unreadable : dict of file to reason
    messages : list of str
        What was said while the files were read, with their names.
    meshes : int
        How many different meshes there are.
    fields : list of FieldSummary
        Each field over all files.
    differences, oddities, copies : list of str
        What is not the same in all files, what is NaN or far from the rest, what is there twice.
    proposal : Proposal
        A command that fits the folder.
    """

    source: str
    cases: list[Inspected]
    unreadable: dict[str, str]
    messages: list[str]
    meshes: int
    fields: list[FieldSummary]
    differences: list[str]
    oddities: list[str]
    copies: list[str]
    proposal: Proposal = field(default_factory=Proposal)

    @property
    def problems(self) -> list[str]:
        """What keeps the folder from a fit."""
        aside = self.proposal.set_aside
        found = [
            (aside, f"{_count(aside, 'file')} to mend or move away (see 'to fit')"),
            (
                len({case.file for case in self.cases} - aside.keys()) < 2,
                "a fit needs two good meshes at least, one of them to validate",
            ),
            (self.cases and not self.proposal.command, "there is no field to predict"),
        ]
        return [text for applies, text in found if applies]

    @property
    def verdict(self) -> str:
        """One line: ready to fit, or what to do first."""
        if self.problems:
            return f"not ready: {'; '.join(self.problems)}"
        kinds = {"differences": self.differences, "oddities": self.oddities, "copies": self.copies}
        looks = [f"{len(lines)} under '{name}'" for name, lines in kinds.items() if lines]
        return f"ready to fit{'; have a look: ' if looks else ''}{', '.join(looks)}"

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain data for JSON; None stands for NaN."""
        cases = [{**asdict(case), "report": case.report.to_dict()} for case in self.cases]
        return plain(
            {**asdict(self), "cases": cases, "problems": self.problems, "verdict": self.verdict}
        )

    def __str__(self) -> str:
        dimensions = Counter(case.report.dimensions for case in self.cases).most_common(1)
        several = {1: "one mesh for all", len(self.cases): "each with a mesh of its own"}
        meshes = several.get(self.meshes, f"{self.meshes} different meshes")
        sections = {
            "fields": field_table(self.fields, len(self.cases)),
            "parts": list_parts(self.cases),
            "differences": self.differences,
            "oddities": self.oddities,
            "copies": self.copies,
            "messages": self.messages,
            "cannot be read": [f"{file}: {reason}" for file, reason in self.unreadable.items()],
            "verdict": [self.verdict],
            "to fit": str(self.proposal).splitlines(),
        }
        lost = f"; {len(self.unreadable)} cannot be read" if self.unreadable else ""
        lines = [f"{self.source}: {_count(self.cases, 'mesh file')}, {meshes}{lost}"]
        lines += [f"dimension {text}" for text, _ in dimensions] + case_table(self.cases)
        for title, text in sections.items():
            lines += ["", title, *(f"  {line}" for line in text)] if text else []
        return "\n".join(lines)


def inspect_path(path: str | PathLike[str], *, progress: bool = False) -> MeshReport | FolderReport:
    """Report on a mesh file, on the steps of a time series, or on a folder of files.

    Raises
    ------
    MeshError
        If there is no such file, if it cannot be read, or if there are no mesh files in the folder.
    """
    path = Path(path)
    if not path.suffix and not path.exists():  # it was meant as a folder
        raise MeshError(f"{path}: no such file or folder")
    if path.is_dir():
        return survey_folder(path, progress=progress)
    return _survey(path, [path], progress) if len(steps_of(path)) > 1 else inspect_mesh(path)


def survey_folder(folder: str | PathLike[str], *, progress: bool = False) -> FolderReport:
    """Report what the mesh files of a folder hold, what differs, and how to fit them.

    Parameters
    ----------
    folder
        Its mesh files are the cases; folders in it are not looked into.
    progress
        Show a bar while the files are read.

    Raises
    ------
    MeshError
        If this is no folder or there is no mesh file in it. A file that cannot be read is reported.
    """
    folder = Path(folder)
    return _survey(folder, _files(folder), progress)


def _survey(source: Path, files: list[Path], progress: bool) -> FolderReport:
    cases: list[Inspected] = []
    unreadable: dict[str, str] = {}
    messages: list[str] = []
    for path in tqdm(files, desc="inspecting", unit="file", disable=not progress, leave=False):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                cases.extend(_cases(path))
            except MeshError as error:
                unreadable[path.name] = str(error).removeprefix(f"{path}: ")
        said = [str(warning.message).removeprefix(f"{path}: ") for warning in caught]
        messages += [f"{path.name}: {text}" for text in said]
    fields, columns = summarize(cases), []
    try:
        columns = common_columns(files)
    except MeshError as error:
        messages.append(str(error))
    return FolderReport(
        source=str(source),
        cases=cases,
        unreadable=unreadable,
        messages=messages,
        meshes=distinct_meshes(cases),
        fields=fields,
        differences=differences(cases),
        oddities=oddities(cases),
        copies=copies(cases),
        proposal=propose(str(source), fields, cases, unreadable | _unfit(cases), columns),
    )


def _files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise MeshError(f"{folder}: no such folder")
    if files := mesh_files(folder):
        return files
    inner = sorted(sub.name for sub in folder.iterdir() if sub.is_dir() and mesh_files(sub))
    hint = f", but in its folders {', '.join(inner)}: inspect those" if inner else ""
    raise MeshError(f"{folder}: no mesh files in this folder{hint}")


def _cases(path: Path) -> Iterator[Inspected]:
    """The mesh of a file, or those of the steps of a time series, one after the other."""
    content = hashlib.blake2b(digest_size=16)
    with open(path, "rb") as file:
        while block := file.read(2**20):
            content.update(block)
    return (_case(path, step, content.hexdigest()) for step in steps_of(path))


def _case(path: Path, step: int | None, content: str) -> Inspected:
    mesh = read_mesh(path, step=step)
    on_mesh = _digest([("points", mesh.points), *((c.type, c.data) for c in mesh.cells)])
    parts = [(f"points {name}", data) for name, data in sorted(mesh.point_data.items())]
    parts += [(f"cells {n}", part) for n, data in sorted(mesh.cell_data.items()) for part in data]
    return Inspected(
        file=path.name if step is None else f"{path.name} step {step}",
        step=step,
        report=inspect_mesh(mesh),
        mesh_digest=on_mesh,
        digest=on_mesh + _digest(parts),
        file_digest=f"{content} {step}",
    )


def _unfit(cases: list[Inspected]) -> dict[str, str]:
    """Readable files that a fit would refuse, and why."""
    most = Counter(case.report.ambient for case in cases).most_common(1)
    reasons = {}
    for case in cases:
        if not case.report.measure > 0:
            reasons[case.file] = "the cells have no measure"
        elif case.report.ambient != most[0][0]:
            reasons[case.file] = f"{case.report.ambient} coordinates, most files have {most[0][0]}"
    return reasons


def _digest(arrays: Iterable[tuple[str, Any]]) -> str:
    """Digest of named arrays, the same for numbers of any type of the same value."""
    total = hashlib.blake2b(digest_size=16)
    for name, array in arrays:
        if isinstance(array, Polyhedra):
            total.update(_digest((f"{name} {part}", a) for part, a in vars(array).items()).encode())
            continue
        array = np.asarray(array)
        values = array.astype(np.float64) if array.dtype.kind in "biuf" else array.astype(str)
        total.update(f"{name} {array.shape}".encode())
        total.update(np.ascontiguousarray(values).tobytes())
    return total.hexdigest()


def _count(items: Any, what: str) -> str:
    return f"{len(items)} {what}{'s' if len(items) != 1 else ''}"
