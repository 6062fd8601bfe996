"""The formats in which meshio alone loses something, or never comes to an end.

VTU in pieces, legacy VTK, and files that are shorter than they say.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import unquote
from xml.etree import ElementTree

import meshio
import numpy as np
from meshio import _helpers
from meshio.vtk import _vtk_42

from opformer.errors import MeshError
from opformer.mesh.checks import check_after, check_before
from opformer.mesh.clean import UnknownToMeshioError, clean
from opformer.mesh.merge import merge
from opformer.mesh.vtk_cells import swapped_edges
from opformer.mesh.vtu import read_piece

__all__ = ["read_complete", "read_parallel", "read_vtk", "read_vtu"]

_WAITING = {"ansys", "nastran", "ply"}  # meshio would wait forever for more of them
_LEGACY_FIELD = re.compile(
    rb"^(?:(?:SCALARS|VECTORS|TENSORS) +(\S+) +\w+(?: +\d)?|(\S+) \d+ \d+ [a-z_\d]+) *\r?$",
    re.MULTILINE,
)
_FIRST_FIELDS = re.compile(rb"^DATASET[^\n]*\n\s*FIELD\s+\S+\s+(\d+)[^\n]*\n", re.MULTILINE)
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
    check_before(name, path)
    read = _helpers.reader_map[name]
    if name == "ply":
        return check_after(name, path, _read_ply(path))
    if name in _WAITING:
        with _Ending(io.FileIO(path)) as file, io.TextIOWrapper(file) as text:
            mesh = read(text if name == "nastran" else file)
    else:
        mesh = read(str(path))
    return check_after(name, path, mesh)


def _read_ply(path: Path) -> meshio.Mesh:
    """Read faces of either name, vertex_index or vertex_indices, and bytes without a sign."""
    header, end, data = path.read_bytes().partition(b"end_header")
    header = re.sub(rb"\bvertex_index\b", b"vertex_indices", header)
    if sum(map(int, re.findall(rb"^element\s+\w+\s+(\d+)", header, re.MULTILINE))) > len(data):
        raise MeshError("the file ends early, or a count in it is wrong")
    faces = header.partition(b"element face")[2]
    if b"format ascii" not in header and faces.count(b"property") > 1:
        raise MeshError("data of faces in a binary file are not supported: save it as text")
    with _Ending(io.BytesIO(header + end + data)) as file:
        mesh = meshio.ply._ply.read_buffer(file)
    unsigned = re.findall(rb"^property\s+uchar\s+(\w+)", header, re.MULTILINE)
    for name in {name.decode() for name in unsigned} & mesh.point_data.keys():
        mesh.point_data[name] = mesh.point_data[name].view(np.uint8)
    return mesh


def read_vtu(path: Path) -> meshio.Mesh:
    """Read piece by piece: of several pieces meshio keeps only the cells of the last."""
    _check_names(path.read_bytes())
    try:
        return swapped_edges(read_piece(path))
    except UnknownToMeshioError:
        raise
    except Exception:  # meshio raises about anything, of an empty piece as well
        data = path.read_bytes()
        if data.partition(b"<AppendedData")[0].count(b"<Piece") <= 1:
            raise
    try:
        root = ElementTree.fromstring(data)
    except ElementTree.ParseError as error:
        raise UnknownToMeshioError(
            f"several pieces and data that is not plain XML ({error}); save it as one piece"
        ) from error
    pieces = root.findall("UnstructuredGrid/Piece")
    return merge([_read_piece(root, p) for p in pieces if p.get("NumberOfCells") != "0"])


def _check_names(data: bytes) -> None:
    """Refuse two arrays of one name, of which the last would be the only one."""
    seen: set[bytes] | None = None
    tags = re.findall(
        rb"<(/?PointData|/?CellData|DataArray\b[^>]*)", data.partition(b"<Appended")[0]
    )
    for tag in tags:
        if not tag.startswith(b"DataArray"):
            seen = None if tag.startswith(b"/") else set()
        elif seen is not None and (name := re.search(rb"\bName\s*=\s*[\"']([^\"']*)", tag)):
            if name[1] in seen:
                raise MeshError(f"there are two fields {name[1].decode(errors='replace')!r}")
            seen.add(name[1])


def _read_piece(root: ElementTree.Element, piece: ElementTree.Element) -> meshio.Mesh:
    (grid,) = root.findall("UnstructuredGrid")
    for other in grid.findall("Piece"):
        grid.remove(other)
    grid.append(piece)
    with TemporaryDirectory() as folder:
        file = Path(folder, "piece.vtu")
        ElementTree.ElementTree(root).write(file)
        return clean(swapped_edges(read_piece(file)))


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
    check_after("vtk", path, mesh)
    data = path.read_bytes()
    _check_legacy_fields(data, sum(map(len, mesh.cells)))
    polygons = any(block.type == "polygon" for block in mesh.cells)
    if polygons and not mesh.cell_data and b"\nCELL_DATA" in data:
        raise UnknownToMeshioError(
            "meshio drops the cell data of polygons in this version; save it as .vtu"
        )
    mesh.point_data = {unquote(name): data for name, data in mesh.point_data.items()}
    mesh.cell_data = {unquote(name): data for name, data in mesh.cell_data.items()}
    mesh.field_data = {**_first_fields(path), **mesh.field_data}
    return mesh


def _check_legacy_fields(data: bytes, n_cells: int) -> None:
    if re.search(rb"^COLOR_SCALARS\b", data, re.MULTILINE):
        raise UnknownToMeshioError("meshio drops COLOR_SCALARS")
    for count in re.findall(rb"^CELL_DATA\s+(\d+)", data, re.MULTILINE):
        if int(count) != n_cells:
            raise MeshError(f"there are data of {int(count)} cells for {n_cells} cells")
    for part in re.split(rb"^(?:POINT|CELL)_DATA\b", data, flags=re.MULTILINE)[1:]:
        names = [one or other for one, other in _LEGACY_FIELD.findall(part)]
        if len({*names}) < len(names):
            twice = max(names, key=names.count).decode(errors="replace")
            raise MeshError(f"there are two fields {twice!r}")


def _first_fields(path: Path) -> dict[str, np.ndarray]:
    """Numbers of the whole file, where VTK writes them and meshio forgets them."""
    with open(path, "rb") as file:
        head = file.read(4096)
        if not (found := _FIRST_FIELDS.search(head)):
            return {}
        file.seek(found.end())
        ascii_ = b"\nASCII" in head[: found.start()].upper()
        return _vtk_42._read_fields(file, int(found[1]), ascii_)
