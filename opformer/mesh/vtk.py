"""Reading with VTK, through pyvista, an optional extra, and in another process.

VTK reads what meshio does not, but a damaged file can take the whole process down. So one process
for each of ours reads on request, see `_vtk_process`; it starts with the first file, which takes a
second or two, and lives until ours ends. If it dies or takes too long the file is refused.
"""

from __future__ import annotations

import atexit
import os
import pickle
import re
import subprocess
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from threading import Lock, Timer
from typing import Any

import meshio
import numpy as np

from opformer.errors import MeshError
from opformer.mesh.clean import clean
from opformer.mesh.merge import merge
from opformer.mesh.vtk_cells import cells_from_vtk, swapped_edges

__all__ = ["VTK_EXTENSIONS", "read_with_vtk", "vtk_times"]

VTK_EXTENSIONS = [
    *(".vtk", ".vtu", ".vtp", ".vti", ".vts", ".vtr", ".pvti", ".pvts", ".pvtr", ".vtm", ".vtmb"),
    *(".vtkhdf", ".foam", ".case", ".e", ".exo", ".ex2", ".cgns"),
]

_PATIENCE = 600.0  # seconds for one file at most
_PACE = 1e6  # bytes that take a second at most, after half a minute
_PROGRAM = Path(__file__).with_name("_vtk_process.py")
_processes: dict[int, subprocess.Popen[bytes]] = {}  # by our own number: a fork needs its own
_lock = Lock()


def vtk_times(path: Path) -> list[float]:
    """Return the times of the steps in a file; none in most formats."""
    return [float(time) for time in _ask(path, None, with_data=False)[0]["times"]]


def read_with_vtk(path: Path, step: int | None = None) -> tuple[meshio.Mesh, list[str]]:
    """Read a mesh, and what VTK had to say about it.

    Of several named blocks each becomes a cell field of ones in the block and zeros elsewhere,
    unless there is a field of that name. A field that a block lacks is NaN there.
    """
    answer, remarks = _ask(path, step, with_data=True)
    pieces = answer["pieces"]
    if not pieces:
        raise MeshError("there are no cells")
    meshes = [_mesh(piece) for piece in pieces]
    if _has_old_numbering(path):
        meshes = [swapped_edges(mesh) for mesh in meshes]
    meshes = [clean(mesh) for mesh in meshes]
    names = list(dict.fromkeys(piece["name"] for piece in pieces if piece["name"]))
    fields = {name for piece in pieces for name in piece["cell_data"]}
    for mesh, piece in zip(meshes, pieces, strict=True) if len(names) > 1 else ():
        for name in (name for name in names if name not in fields):
            value = np.uint8(piece["name"] == name)
            mesh.cell_data[name] = [np.full(len(block), value) for block in mesh.cells]
    return (merge(meshes, fill=True) if len(meshes) > 1 else meshes[0]), remarks


def _mesh(piece: dict[str, Any]) -> meshio.Mesh:
    blocks, sources = cells_from_vtk(
        *(piece[name] for name in ("types", "offsets", "connectivity", "faces"))
    )
    return meshio.Mesh(
        piece["points"],
        blocks,
        point_data=piece["point_data"],
        cell_data={
            name: [data[source] for source in sources] for name, data in piece["cell_data"].items()
        },
        field_data=piece["field_data"],
    )


def _has_old_numbering(path: Path) -> bool:
    """Whether this is a legacy file from before VTK renumbered edges of Lagrange hexahedra.

    VTK would exchange them, if the word that our process puts at the end did not keep it from that.
    """
    if path.suffix.lower() != ".vtk":
        return False
    with path.open("rb") as file:
        version = re.match(rb"# vtk DataFile Version (\d+)\.(\d+)", file.readline())
    return version is not None and (int(version[1]), int(version[2])) < (5, 1)


def _ask(path: Path, step: int | None, *, with_data: bool) -> tuple[dict[str, Any], list[str]]:
    """The answer of the process, and VTK's warnings; its errors are raised."""
    if find_spec("pyvista") is None:
        raise MeshError("pyvista is not installed: pip install 'opformer[vtk]'")
    with _lock:
        answer = _exchange(_process(), (path.resolve(), step, with_data), _patience(path))
    for error in answer["errors"]:
        raise MeshError(" ".join(error.partition("vtkInformation (")[0].split()))
    return answer, [" ".join(text.split()) for text in answer["warnings"]]


def _process() -> subprocess.Popen[bytes]:
    process = _processes.get(os.getpid())
    if process is None or process.poll() is not None:
        process = _processes[os.getpid()] = subprocess.Popen(
            [sys.executable, str(_PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is ours to handle
        )
    return process


def _patience(path: Path) -> float:
    """How many seconds to wait: a small file that takes long is damaged, unless it names others."""
    alone = path.suffix.lower() in {".vtk", ".vtu", ".vtp", ".vti", ".vts", ".vtr", ".e", ".cgns"}
    return min(_PATIENCE, 30 + path.stat().st_size / _PACE) if alone else _PATIENCE


def _exchange(process: subprocess.Popen[bytes], request: Any, patience: float) -> dict[str, Any]:
    timer = Timer(patience, process.kill)
    timer.daemon = True
    timer.start()
    try:
        pickle.dump(request, process.stdin)  # type: ignore[arg-type]
        process.stdin.flush()  # type: ignore[union-attr]
        return pickle.load(process.stdout)  # type: ignore[arg-type]
    except BaseException as error:  # also of Ctrl-C: the next answer would be that of this file
        _end(process)
        if isinstance(error, (EOFError, OSError, pickle.UnpicklingError)):
            late = f", or takes more than {patience:.3g} seconds"
            raise MeshError(f"the file is damaged: VTK crashes on it{late}") from error
        raise
    finally:
        timer.cancel()


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        with suppress(OSError):  # what was not yet sent
            pipe.close()  # type: ignore[union-attr]


def _new_lock() -> None:
    global _lock
    _lock = Lock()


@atexit.register
def _close() -> None:
    if process := _processes.pop(os.getpid(), None):
        _end(process)


if hasattr(os, "register_at_fork"):  # a thread may hold the lock at that moment
    os.register_at_fork(after_in_child=_new_lock)
