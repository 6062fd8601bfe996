"""The formats in which meshio alone loses something: VTU in pieces, legacy VTK, XDMF in time."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import unquote
from xml.etree import ElementTree

import meshio
import numpy as np

from opformer.errors import MeshError
from opformer.mesh.clean import clean

__all__ = ["read_vtk", "read_vtu", "read_xdmf"]


def read_vtu(path: Path) -> meshio.Mesh:
    """Read piece by piece: of several pieces meshio keeps only the cells of the last."""
    data = path.read_bytes()
    if data.partition(b"<AppendedData")[0].count(b"<Piece") <= 1:
        return meshio.vtu.read(str(path))
    try:
        root = ElementTree.fromstring(data)
    except ElementTree.ParseError as error:
        raise MeshError(
            f"several pieces and data that is not plain XML ({error}); save it as one piece"
        ) from error
    pieces = root.findall("UnstructuredGrid/Piece")
    return _merge([_read_piece(root, p) for p in pieces if p.get("NumberOfCells") != "0"])


def _read_piece(root: ElementTree.Element, piece: ElementTree.Element) -> meshio.Mesh:
    (grid,) = root.findall("UnstructuredGrid")
    for other in grid.findall("Piece"):
        grid.remove(other)
    grid.append(piece)
    with TemporaryDirectory() as folder:
        file = Path(folder, "piece.vtu")
        ElementTree.ElementTree(root).write(file)
        return clean(meshio.vtu.read(str(file)))


def _merge(pieces: list[meshio.Mesh]) -> meshio.Mesh:
    if not pieces:
        raise MeshError("there are no cells")
    first = pieces[0]
    for piece in pieces:
        if (piece.point_data.keys(), piece.cell_data.keys()) != (
            first.point_data.keys(),
            first.cell_data.keys(),
        ):
            raise MeshError("the pieces do not hold the same fields")
        if any(np.any(ghost) for ghost in piece.cell_data.get("vtkGhostType", [])):
            raise MeshError("the pieces overlap (vtkGhostType); save it without ghost cells")
    offsets = np.cumsum([0] + [len(piece.points) for piece in pieces[:-1]])
    return meshio.Mesh(
        np.concatenate([piece.points for piece in pieces]),
        [
            (c.type, c.data + k)
            for piece, k in zip(pieces, offsets, strict=True)
            for c in piece.cells
        ],
        point_data={
            name: np.concatenate([piece.point_data[name] for piece in pieces])
            for name in first.point_data
        },
        cell_data={
            name: [block for piece in pieces for block in piece.cell_data[name]]
            for name in first.cell_data
        },
    )


def read_vtk(path: Path) -> meshio.Mesh:
    """Read a legacy file; its field names are written as in web addresses, "wall%20shear"."""
    mesh = meshio.vtk.read(str(path))
    polygons = any(block.type == "polygon" for block in mesh.cells)
    if polygons and not mesh.cell_data and b"\nCELL_DATA" in path.read_bytes():
        raise MeshError("meshio drops the cell data of polygons in this version; save it as .vtu")
    mesh.point_data = {unquote(name): data for name, data in mesh.point_data.items()}
    mesh.cell_data = {unquote(name): data for name, data in mesh.cell_data.items()}
    return mesh


def read_xdmf(path: Path, step: int | None) -> meshio.Mesh:
    """Read a single mesh, or one step of a time series, where meshio needs another reader."""
    times = _times(path)
    if not times:
        if step is not None:
            raise MeshError(f"step={step} was asked for, but the file is no time series")
        return meshio.xdmf.read(str(path))
    if step is None or not 0 <= step < len(times):
        raise MeshError(
            f"a time series of {len(times)} steps, t = {', '.join(times)}: "
            f"choose one with step=0 to step={len(times) - 1}, got step={step}"
        )
    with meshio.xdmf.TimeSeriesReader(path) as reader:
        if reader.collection[step].find("Geometry") is not None:  # a mesh of its own in every step
            reader.mesh_grid = reader.collection[step]
        points, cells = reader.read_points_cells()
        _, point_data, cell_data = reader.read_data(step)
    return meshio.Mesh(points, cells, point_data=point_data, cell_data=cell_data)


def _times(path: Path) -> list[str]:
    grids = ElementTree.parse(path).findall(".//Grid[@CollectionType='Temporal']/Grid")
    return [time.get("Value", "?") for grid in grids for time in grid.findall("Time") or [grid]]
