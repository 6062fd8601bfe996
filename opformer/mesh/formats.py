"""The formats in which meshio alone loses something, or never comes to an end.

VTU in pieces, legacy VTK, and files that are shorter than they say.
"""

from __future__ import annotations

import gzip
import io
import re
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import unquote
from xml.etree import ElementTree

import meshio
from meshio import _helpers

from opformer.errors import MeshError
from opformer.mesh.clean import UnknownToMeshioError, clean
from opformer.mesh.merge import merge

__all__ = ["read_complete", "read_parallel", "read_vtk", "read_vtu"]

_WAITING = {"ansys", "mdpa", "nastran", "ply"}  # meshio would wait forever for more of them
_COUNTS = {
    "vtk": re.compile(rb"^CELL_TYPES\s+(\d+)", re.MULTILINE),
    "ply": re.compile(rb"^element\s+face\s+(\d+)", re.MULTILINE),
    "su2": re.compile(rb"^\s*(?:NELEM|MARKER_ELEMS)\s*=\s*(\d+)", re.MULTILINE),
}
_MISSES = 100  # empty reads that no honest file brings about


class _Ending(io.BufferedReader):
    """A file that refuses to be read past its end over and over."""

    misses = 0

    def read(self, size: int | None = -1, /) -> bytes:
        return self._counted(super().read(size))

    def read1(self, size: int = -1, /) -> bytes:
        return self._counted(super().read1(size))

    def readline(self, size: int | None = -1, /) -> bytes:
        return self._counted(super().readline(size))

    def _counted(self, data: bytes) -> bytes:
        self.misses += not data
        if self.misses > _MISSES:
            raise MeshError("the file ends early")
        return data


def read_complete(name: str, path: Path) -> meshio.Mesh:
    """Read with meshio, and refuse a file that lacks the cells or the end mark it should have."""
    read = _helpers.reader_map[name]
    if name in _WAITING:
        with _Ending(io.FileIO(path)) as file, io.TextIOWrapper(file) as text:
            mesh = read(text if name == "nastran" else file)
    else:
        mesh = read(str(path))
    _check_count(name, path, mesh)
    if (mark := _end_mark(name, path)) and mark not in _content(path).lower():
        raise MeshError(f"the file ends early: there is no {mark.decode()}")
    return mesh


def _check_count(name: str, path: Path, mesh: meshio.Mesh) -> None:
    if name in _COUNTS:
        header = path.read_bytes().partition(b"end_header")[0]  # of .ply; .su2 has no such word
        counts = _COUNTS[name].findall(header)
        promised, found = sum(map(int, counts)), sum(map(len, mesh.cells))
        if counts and promised != found:
            raise UnknownToMeshioError(
                f"the file is damaged: {promised} cells announced, {found} found"
            )


def _end_mark(name: str, path: Path) -> bytes | None:
    if name == "netgen":
        return b"endmesh"
    if name == "stl":  # a binary one has as many bytes as the number of its triangles says
        data = path.read_bytes()
        binary = len(data) == 84 + 50 * int.from_bytes(data[80:84], "little")
        return None if binary else b"endsolid"
    return None


def _content(path: Path) -> bytes:
    data = path.read_bytes()
    return gzip.decompress(data) if path.suffix.lower() == ".gz" else data


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
    _check_count("vtk", path, mesh)
    polygons = any(block.type == "polygon" for block in mesh.cells)
    if polygons and not mesh.cell_data and b"\nCELL_DATA" in path.read_bytes():
        raise UnknownToMeshioError(
            "meshio drops the cell data of polygons in this version; save it as .vtu"
        )
    mesh.point_data = {unquote(name): data for name, data in mesh.point_data.items()}
    mesh.cell_data = {unquote(name): data for name, data in mesh.cell_data.items()}
    return mesh
