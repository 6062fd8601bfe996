"""The program that reads files with VTK, in a process of its own.

On damaged files VTK prints, hangs or ends in a segmentation fault, and here it harms nobody.
Requests (path, step, with_data) come pickled through stdin, answers go pickled through stdout. The
file is run, not imported, and does not import opformer, which would take seconds.
"""

from __future__ import annotations

import os
import pickle
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

try:
    import resource
except ImportError:  # on Windows
    resource = None  # type: ignore[assignment]

__all__ = ["answer"]

_END = "the_end_is_here"
_POLYHEDRON = 42
_EXODUS = {".e", ".exo", ".ex2"}
_ALONE = {".vtk", ".vtu", ".vtp", ".vti", ".vts", ".vtr", ".cgns", *_EXODUS}  # name no other files
_COMPRESSED = 10_000  # numbers in a byte at most
_ROOM, _GROWTH = 4_000_000_000, 200  # bytes of memory, and bytes for each of the file
_XML = {".vtu", ".vtp", ".vti", ".vts", ".vtr", ".pvti", ".pvts", ".pvtr", ".vtm", ".vtmb"}


def answer(path: Path, step: int | None, with_data: bool) -> dict[str, Any]:
    """Read a file: the ``times`` of its steps, ``pieces`` as arrays, ``errors``, ``warnings``."""
    import pyvista  # noqa: F401, first: it sets an output window of its own
    from vtkmodules.vtkCommonCore import vtkOutputWindow, vtkStringOutputWindow

    window = vtkStringOutputWindow()
    vtkOutputWindow.SetInstance(window)
    times: list[float] = []
    pieces: list[dict[str, Any]] = []
    errors = []
    try:
        times, pieces = _read(path, step, with_data)
    except Exception as error:
        errors.append(f"{type(error).__name__}: {error}")
    said = re.findall(
        r"^(ERROR|[\w ]*Warning): In .*\n(?:\S+ \(0x\w+\): )?((?:(?!vtkInformation).+\n)+)",
        window.GetOutput(),
        re.MULTILINE,
    )
    errors = [text for kind, text in said if kind == "ERROR"] + errors
    if path.suffix.lower() == ".vtk" and with_data:
        ended = [text for text in errors if _END in text]
        errors = [text for text in errors if _END not in text]
        if not ended and not errors:
            errors = ["the file ends early, or holds something that is not a number"]
    warnings = [text for kind, text in said if kind != "ERROR"]
    return {"times": times, "pieces": pieces, "errors": errors, "warnings": warnings}


def _read(path: Path, step: int | None, with_data: bool) -> tuple[list[float], list[Any]]:
    import pyvista
    from vtkmodules.vtkCommonExecutionModel import vtkStreamingDemandDrivenPipeline

    suffix = path.suffix.lower()
    reader = pyvista.get_reader(path, force_ext=".e" if suffix in _EXODUS else suffix).reader
    if suffix == ".foam":
        _prepare_openfoam(reader, path.parent)
    if suffix in _EXODUS:
        _prepare_exodus(reader)
    if suffix == ".cgns" and hasattr(reader, "SetLoadSurfacePatch"):
        reader.SetLoadBndPatch(False)  # together they crash
        reader.SetLoadSurfacePatch(True)
    if suffix == ".vtk":
        _prepare_legacy(reader, path.read_bytes())
    if suffix in _XML:
        _check_xml(path.read_bytes())
    reader.UpdateInformation()
    times = reader.GetOutputInformation(0).Get(vtkStreamingDemandDrivenPipeline.TIME_STEPS()) or ()
    if not with_data:
        return list(times), []
    pieces = reader.GetNumberOfPieces() if suffix in {".vtu", ".vtp"} else 1
    arrays = []
    for piece in range(pieces):  # one by one: VTK would not join them at the seams
        if pieces > 1:
            reader.UpdatePiece(piece, pieces, 0)
        else:
            reader.Update() if step is None else reader.UpdateTimeStep(times[step])
        leaves = _leaves(reader.GetOutputDataObject(0))
        arrays += [_arrays(data, name) for name, data in leaves if data.GetNumberOfCells()]
    return list(times), arrays


def _check_xml(content: bytes) -> None:
    """Refuse what VTK would not notice in appended data, and counts that it would work through."""
    if not content.rstrip().endswith(b"</VTKFile>"):
        raise ValueError("the file ends early")
    counts = re.findall(rb"NumberOf\w+\s*=\s*[\"']\s*-?(\d+)", content.partition(b"<Appended")[0])
    if max(map(int, counts), default=0) > _COMPRESSED * len(content):
        raise ValueError("a count in it is too large for the size of the file")


def _prepare_legacy(reader: Any, content: bytes) -> None:
    """Let VTK stumble over a word at the end: it has understood all before, and else tells nobody.

    Where a number is missing or is none, VTK leaves the rest of the numbers as they lie in memory.
    In a binary file the word follows at once: what is missing of the last numbers is taken from it,
    and it is no longer whole; an empty line before it would be taken in silence.
    """
    head = content.split(b"\n", 3)
    binary = len(head) > 2 and head[2].strip().upper() == b"BINARY"
    content += f"{'' if binary else chr(10) * 2}{_END}\n".encode()
    reader.ReadFromInputStringOn()
    reader.SetBinaryInputString(content, len(content))


def _prepare_openfoam(reader: Any, folder: Path) -> None:
    """Cells and fields as the solver has them, from time zero on, and from processor folders."""
    if hasattr(reader, "DecomposePolyhedraOff"):  # VTK before 9.4 would make many cells of one
        reader.DecomposePolyhedraOff()
    reader.CreateCellToPointOff()
    reader.SkipZeroTimeOff()
    if not (folder / "constant/polyMesh").is_dir() and (folder / "processor0").is_dir():
        reader.SetCaseType(0)


def _prepare_exodus(reader: Any) -> None:
    """All blocks, sets and fields, where they were before the displacement, with all points."""
    reader.SetSqueezePoints(False)
    reader.SetApplyDisplacements(False)
    reader.GenerateObjectIdCellArrayOff()
    reader.GenerateGlobalElementIdArrayOff()
    reader.GenerateGlobalNodeIdArrayOff()
    reader.UpdateInformation()
    for kind in (reader.ELEM_BLOCK, reader.SIDE_SET, reader.NODE_SET, reader.NODAL):
        for k in range(reader.GetNumberOfObjects(kind)):
            reader.SetObjectStatus(kind, k, 1)
        for k in range(reader.GetNumberOfObjectArrays(kind)):
            reader.SetObjectArrayStatus(kind, reader.GetObjectArrayName(kind, k), 1)


def _leaves(data: Any, name: str | None = None) -> Iterator[tuple[str | None, Any]]:
    """Every data set in a tree of blocks with the name of its block."""
    if data is None:
        return
    if data.IsA("vtkPartitionedDataSet"):
        for k in range(data.GetNumberOfPartitions()):
            yield from _leaves(data.GetPartition(k), name)
    elif data.IsA("vtkPartitionedDataSetCollection"):
        for k in range(data.GetNumberOfPartitionedDataSets()):
            yield from _leaves(data.GetPartitionedDataSet(k), _name(data, k) or name)
    elif data.IsA("vtkMultiBlockDataSet"):
        for k in range(data.GetNumberOfBlocks()):
            yield from _leaves(data.GetBlock(k), _name(data, k) or name)
    elif data.IsA("vtkDataSet"):
        yield name, data
    else:
        raise TypeError(f"{data.GetClassName()} is not a mesh")


def _name(data: Any, k: int) -> str | None:
    name = data.GetMetaData(k).Get(data.NAME()) if data.HasMetaData(k) else None
    return None if name == "Internal" else name  # so it is in every zone of CGNS


def _arrays(data: Any, name: str | None) -> dict[str, Any]:
    import pyvista

    grid = pyvista.wrap(data).cast_to_unstructured_grid()
    cells = grid.GetCells()
    return {
        "name": name,
        "points": np.array(grid.points),
        "types": np.array(grid.celltypes),
        "offsets": np.array(pyvista.convert_array(cells.GetOffsetsArray())),
        "connectivity": np.array(pyvista.convert_array(cells.GetConnectivityArray())),
        "faces": _faces(grid),
        "point_data": _fields(grid.point_data),
        "cell_data": _fields(grid.cell_data),
        "field_data": _fields(pyvista.wrap(data).field_data),
    }


def _faces(grid: Any) -> tuple[np.ndarray, ...] | None:
    """Of polyhedra: corners of all faces, where each ends, faces of all cells, where each ends."""
    if _POLYHEDRON not in grid.celltypes:
        return None
    return (
        np.array(grid.polyhedron_face_connectivity),
        np.array(grid.polyhedron_face_offsets),
        np.array(grid.polyhedron_face_location_connectivity),
        np.array(grid.polyhedron_face_location_offsets),
    )


def _fields(data: Any) -> dict[str, np.ndarray]:
    arrays = {name: np.array(array) for name, array in data.items()}
    return {name: array for name, array in arrays.items() if array.dtype.kind in "biuf"}


def _limit_memory(path: Path) -> None:
    """Let a number in a damaged file that asks for more memory end this process, not the system."""
    if resource is not None:
        alone = path.suffix.lower() in _ALONE
        most = _ROOM + _GROWTH * path.stat().st_size if alone else resource.RLIM_INFINITY
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard) if alone else hard
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))


def _serve() -> None:
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints does not print into the answers
    while True:
        try:
            request = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        _limit_memory(request[0])
        pickle.dump(answer(*request), answers, protocol=5)
        answers.flush()


if __name__ == "__main__":
    del sys.path[0]  # this folder: its modules have names that others have too
    _serve()
