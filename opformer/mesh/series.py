"""Time series: which steps a file holds, and each of them as a mesh.

XDMF in time, through meshio, ParaView's lists of files (.pvd, .series), and what VTK reads in time.
A `Frame` is one step; the list of them costs no more than the table of contents of the file.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import meshio
import numpy as np

from opformer.errors import MeshError
from opformer.mesh.merge import merge

__all__ = ["Frame", "choose", "list_frames", "pvd_frames", "xdmf_frames"]

_LISTED = 20  # times in a message


@dataclass(frozen=True)
class Frame:
    """One step of a time series: when it is, and how to get it."""

    time: float
    read: Callable[[], meshio.Mesh]


def choose(frames: list[Frame], step: int | None) -> Frame:
    """Return the frame at an index, negative ones from the end; without one, the only frame.

    Raises
    ------
    MeshError
        If there is no such frame, or several to choose from; the message lists the times.
    """
    if step is None and len(frames) == 1:
        return frames[0]
    if step is None or not -len(frames) <= step < len(frames):
        times = [str(frame.time) for frame in frames]
        times[_LISTED:-1] = ["…"] if len(times) > _LISTED + 1 else times[_LISTED:-1]
        raise MeshError(
            f"a time series of {len(frames)} steps, t = {', '.join(times)}: "
            f"choose one with step=0 to step={len(frames) - 1}, got step={step}"
        )
    return frames[step]


# --- lists of files -------------------------------------------------------------------------------


def pvd_frames(path: Path, read: Callable[[Path], meshio.Mesh]) -> list[Frame]:
    """The steps of a ParaView collection; the parts of a step become one mesh.

    The same part twice at one time, as after a restart, would count twice.
    """
    parts: dict[float, dict[tuple[str, str], Path]] = {}
    for entry in ElementTree.parse(path).iterfind("Collection/DataSet"):
        time, part = float(entry.get("timestep") or 0), entry.get("part") or "0"
        files = parts.setdefault(time, {})
        if (key := (part, entry.get("group") or "")) in files:
            raise MeshError(
                f"time {time:g} is there twice as part {part}: leave one out, or number the parts"
            )
        files[key] = path.parent / (entry.get("file") or "")
    if not parts:
        raise MeshError("the collection is empty")
    return [_joined(time, list(files.values()), read) for time, files in parts.items()]


def list_frames(path: Path, read: Callable[[Path], meshio.Mesh]) -> list[Frame]:
    """The steps of a list of files in ParaView's .series format."""
    entries = json.loads(path.read_text(encoding="utf-8"))["files"]
    if not entries:
        raise MeshError("the list is empty")
    return [_joined(float(e["time"]), [path.parent / e["name"]], read) for e in entries]


def _joined(time: float, files: list[Path], read: Callable[[Path], meshio.Mesh]) -> Frame:
    def get() -> meshio.Mesh:
        meshes = [read(file) for file in files]
        return meshes[0] if len(meshes) == 1 else merge(meshes, fill=True)

    return Frame(time, get)


# --- XDMF -----------------------------------------------------------------------------------------


def xdmf_frames(path: Path) -> list[Frame]:
    """The steps of an XDMF file; none if it is no time series.

    Several series, one for each field as dolfinx writes them, must have the same times.
    """
    root = ElementTree.parse(path)
    for grid in root.iter("Grid"):
        fields = [(field.get("Center"), field.get("Name")) for field in grid.findall("Attribute")]
        if len({*fields}) < len(fields):
            raise MeshError("there are two fields of the same name in one grid")
    series = [
        [_xdmf_time(grid, k) for k, grid in enumerate(collection.findall("Grid"))]
        for collection in root.iterfind(".//Grid[@CollectionType='Temporal']")
    ]
    if any(times != series[0] for times in series):
        raise MeshError("the time series in the file do not have the same times")
    return [
        Frame(time, lambda k=k: _xdmf_step(path, k))  # type: ignore[misc]
        for k, time in enumerate(series[0] if series else [])
    ]


def _xdmf_time(grid: ElementTree.Element, k: int) -> float:
    time = grid.find("Time")
    if time is None or time.get("Value") is None:
        raise MeshError(f"step {k} of the time series has no time")
    return float(time.get("Value", ""))


def _xdmf_step(path: Path, step: int) -> meshio.Mesh:
    with meshio.xdmf.TimeSeriesReader(path) as reader:
        series = reader.domain.findall("Grid[@CollectionType='Temporal']")
        grids = [collection.findall("Grid")[step] for collection in series]
        own = [grid for grid in grids if grid.find("Geometry") is not None]  # a mesh in every step
        anywhere = [
            grid for grid in reader.domain.iter("Grid") if grid.find("Geometry") is not None
        ]
        reader.mesh_grid = (own or anywhere or [reader.mesh_grid])[0]
        points, cells = reader.read_points_cells()
        point_data: dict[str, np.ndarray] = {}
        cell_data: dict[str, list[np.ndarray]] = {}
        reader.collection = grids
        for k in range(len(grids)):
            _, at_points, at_cells = reader.read_data(k)
            point_data |= at_points
            cell_data |= at_cells
    return meshio.Mesh(points, cells, point_data=point_data, cell_data=cell_data)
