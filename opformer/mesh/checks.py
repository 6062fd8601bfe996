"""What meshio makes of a file, held against the file.

A check before reading refuses what meshio would misunderstand or believe, one after it counts the
cells, looks for the mark of the end, and adds the named sets that meshio leaves lying.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import meshio
import numpy as np
from meshio.nastran._nastran import nastran_to_meshio_type

from opformer.errors import MeshError
from opformer.mesh.clean import UnknownToMeshioError
from opformer.quadrature import TOPOLOGICAL_DIMENSION

__all__ = ["check_after", "check_before"]

_COUNTS = {
    "vtk": re.compile(rb"^CELL_TYPES\s+(\d+)", re.MULTILINE),
    "ply": re.compile(rb"^element\s+face\s+(\d+)", re.MULTILINE),
}
_CARDS = "|".join(card for card in nastran_to_meshio_type if not card.endswith("_"))
_CARD = re.compile(rf"^\s*(?:{_CARDS})\b".encode(), re.MULTILINE | re.IGNORECASE)
_UNKNOWN_CARD = re.compile(
    rb"^\s*(INCLUDE\b|C(?:HEX|TETRA|PENTA|PYR|TRI|TRA|QUAD|SHEAR|BAR|BEAM|ROD|TUBE)\w*\*?)",
    re.MULTILINE | re.IGNORECASE,
)
_LARGEST_ID = 10**7


def check_before(name: str, path: Path) -> None:
    """Refuse a file that meshio would misunderstand, or whose numbers it would believe.

    Raises
    ------
    MeshError
        The message says what to do.
    """
    if name in _BEFORE:
        _BEFORE[name](_content(path))
    if name == "tetgen":
        for suffix in (".ele", ".node"):
            _before_headed(path.with_suffix(suffix).read_bytes())


def check_after(name: str, path: Path, mesh: meshio.Mesh) -> meshio.Mesh:
    """Refuse a mesh that is not all of the file; return it with its named sets.

    Raises
    ------
    MeshError
        If cells or the end of the file are missing.
    """
    content = _content(path)
    if name in _COUNTS:
        counts = _COUNTS[name].findall(content.partition(b"end_header")[0])
        _compare(sum(map(int, counts)), mesh, bool(counts))
    if name == "nastran":
        _compare(len(_CARD.findall(_bulk(content))), mesh)
    for mark in _end_marks(name, content):
        if mark not in content.lower():
            raise MeshError(f"the file ends early: there is no {mark.decode()}")
    if name in _SETS:
        mesh.cell_sets = _SETS[name](mesh)
    return mesh


def _content(path: Path) -> bytes:
    data = path.read_bytes()
    return gzip.decompress(data) if path.suffix.lower() == ".gz" else data


def _compare(promised: int, mesh: meshio.Mesh, counted: bool = True) -> None:
    found = sum(map(len, mesh.cells))
    if counted and promised != found:
        raise UnknownToMeshioError(
            f"the file is damaged: {promised} cells announced, {found} found"
        )


def _end_marks(name: str, content: bytes) -> list[bytes]:
    if name == "stl":  # a binary one has as many bytes as the number of its triangles says
        binary = len(content) == 84 + 50 * int.from_bytes(content[80:84], "little")
        return [] if binary else [b"endsolid"]
    text = b"\0" not in content[:8]
    marks = {"netgen": b"endmesh", "permas": b"$fin", "medit": b"end"}
    return [marks[name]] if name in marks and text else []


# --- before ---------------------------------------------------------------------------------------


def _before_ansys(content: bytes) -> None:
    if re.search(rb"^\s*\(\s*(?:20|30)?13\s*\(", content, re.MULTILINE):
        raise MeshError(
            "the cells are given by their faces, as in Fluent: export the case for EnSight or CGNS"
        )


def _before_nastran(content: bytes) -> None:
    bulk = _bulk(content)
    for card in {card.decode().upper() for card in _UNKNOWN_CARD.findall(bulk)}:
        if card not in nastran_to_meshio_type:
            raise MeshError(
                f"{card} is not supported: write the mesh with plain cards, in one file"
            )
    for line in bulk.splitlines():
        if line.lstrip().upper().startswith(b"GRID"):
            large = line.lstrip()[4:5] == b"*"
            system = line.split(b",")[2:3] or [line[24:40] if large else line[16:24]]
            if system[0].strip() not in (b"", b"0"):
                raise MeshError("nodes in a coordinate system of their own are not supported")


def _bulk(content: bytes) -> bytes:
    return content.partition(b"BEGIN BULK")[2].partition(b"ENDDATA")[0]


def _before_flac3d(content: bytes) -> None:
    if b"\0" in content[:8]:
        raise MeshError("the binary form is not supported: save the grid as text")
    ids = re.findall(rb"^\s*[ZF]\s+\w+\s+(\d+)", content, re.MULTILINE)
    if max(map(len, ids), default=0) > 8 or max(map(int, ids), default=0) > _LARGEST_ID:
        raise MeshError(f"a zone or face has a number above {_LARGEST_ID}")


def _before_headed(content: bytes) -> None:
    """Of files whose first line of numbers meshio waits for."""
    if not re.search(rb"^\s*-?\d", content, re.MULTILINE):
        raise MeshError("the file ends early: there are no numbers")


def _before_permas(content: bytes) -> None:
    if re.search(rb"^\$(?:NSET|ESET)", content, re.MULTILINE):
        raise MeshError("sets of nodes and elements are not supported: save without them")


def _before_dolfin(content: bytes) -> None:
    root = ElementTree.fromstring(content)
    for parent in [*root.iter("vertices"), *root.iter("cells")]:
        numbers = sorted(int(child.get("index", -1)) for child in parent)
        size = int(parent.get("size", -1))
        if size != len(numbers) or numbers != [*range(size)]:
            raise MeshError(f"the {parent.tag} are not numbered from 0 to their size")
    if {child.tag for parent in root.iter("vertices") for child in parent} != {"vertex"}:
        raise MeshError("there is something else among the vertices")


def _before_xdmf(content: bytes) -> None:
    if re.search(rb"Endian\s*=\s*[\"']Big|Seek\s*=", content):
        raise MeshError("binary data with Endian or Seek is not supported: save it as HDF5")


_BEFORE: dict[str, Callable[[bytes], None]] = {
    "ansys": _before_ansys,
    "nastran": _before_nastran,
    "flac3d": _before_flac3d,
    "off": _before_headed,
    "permas": _before_permas,
    "dolfin-xml": _before_dolfin,
    "xdmf": _before_xdmf,
}


# --- sets -----------------------------------------------------------------------------------------


def _flac3d_sets(mesh: meshio.Mesh) -> dict[str, list[np.ndarray]]:
    """meshio counts the cells of a set through all blocks, `clean` through each of them."""
    starts = np.cumsum([0] + [len(block) for block in mesh.cells])
    return {
        name: [np.asarray(ids) - start for ids, start in zip(parts, starts, strict=False)]
        for name, parts in mesh.cell_sets.items()
    }


def _netgen_sets(mesh: meshio.Mesh) -> dict[str, list[np.ndarray]]:
    """Names of materials and boundaries belong to a number and a dimension."""
    kinds = [TOPOLOGICAL_DIMENSION[block.type] for block in mesh.cells]
    index = [np.asarray(part) for part in mesh.cell_data["netgen:index"]]
    return {
        name: [
            np.flatnonzero(part == number) if kind == dim else np.empty(0, np.int64)
            for part, kind in zip(index, kinds, strict=True)
        ]
        for name, (number, dim) in mesh.field_data.items()
    }


_SETS = {"flac3d": _flac3d_sets, "netgen": _netgen_sets}
