"""The formats in which meshio alone loses something: VTU in pieces, legacy VTK."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import unquote
from xml.etree import ElementTree

import meshio

from opformer.mesh.clean import UnknownToMeshioError, clean
from opformer.mesh.merge import merge

__all__ = ["read_parallel", "read_vtk", "read_vtu"]


def read_vtu(path: Path) -> meshio.Mesh:
    """Read piece by piece: of several pieces meshio keeps only the cells of the last."""
    data = path.read_bytes()
    if data.partition(b"<AppendedData")[0].count(b"<Piece") <= 1:
        return meshio.vtu.read(str(path))
    try:
        root = ElementTree.fromstring(data)
    except ElementTree.ParseError as error:
        raise UnknownToMeshioError(
            f"several pieces and data that is not plain XML ({error}); save it as one piece"
        ) from error
    pieces = root.findall("UnstructuredGrid/Piece")
    return merge([_read_piece(root, p) for p in pieces if p.get("NumberOfCells") != "0"])


def _read_piece(root: ElementTree.Element, piece: ElementTree.Element) -> meshio.Mesh:
    (grid,) = root.findall("UnstructuredGrid")
    for other in grid.findall("Piece"):
        grid.remove(other)
    grid.append(piece)
    with TemporaryDirectory() as folder:
        file = Path(folder, "piece.vtu")
        ElementTree.ElementTree(root).write(file)
        return clean(meshio.vtu.read(str(file)))


def read_parallel(path: Path, read: Callable[[Path], meshio.Mesh]) -> meshio.Mesh:
    """Read the pieces that a .pvtu or .pvtp file lists, without those of no cells."""
    entries = ElementTree.parse(path).getroot().iter("Piece")
    files = [path.parent / (entry.get("Source") or "") for entry in entries]
    return merge([read(file) for file in files if not _is_empty(file)])


def _is_empty(file: Path) -> bool:
    """Whether a file of pieces exists and all of them are without cells."""
    sizes = rb'NumberOf(?:Cells|Verts|Lines|Strips|Polys)\s*=\s*"\s*(\d+)'
    found = re.findall(sizes, file.read_bytes()) if file.is_file() else []
    return bool(found) and not any(map(int, found))


def read_vtk(path: Path) -> meshio.Mesh:
    """Read a legacy file; its field names are written as in web addresses, "wall%20shear"."""
    mesh = meshio.vtk.read(str(path))
    polygons = any(block.type == "polygon" for block in mesh.cells)
    if polygons and not mesh.cell_data and b"\nCELL_DATA" in path.read_bytes():
        raise UnknownToMeshioError(
            "meshio drops the cell data of polygons in this version; save it as .vtu"
        )
    mesh.point_data = {unquote(name): data for name, data in mesh.point_data.items()}
    mesh.cell_data = {unquote(name): data for name, data in mesh.cell_data.items()}
    return mesh
