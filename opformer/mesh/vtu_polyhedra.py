"""Polyhedra in VTU files, which meshio does not write beside other cells.

meshio writes everything, with a vertex in the place of each polyhedron, and then the description of
the cells is exchanged. The format is that of VTK before version 9.4, which all later ones read: the
faces of a cell are a stream of numbers (faces, corners of the first, its nodes, corners of the
second, ...), and `faceoffsets` says where each stream ends, or -1 for other cells.
"""

from __future__ import annotations

import base64
import zlib
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import meshio
import numpy as np
from meshio import _vtk_common

from opformer._polyhedra import Polyhedra

__all__ = ["write_vtu"]


def write_vtu(path: Path, mesh: meshio.Mesh) -> None:
    """Write a mesh with polyhedra as VTU."""
    blocks = [
        ("vertex", np.zeros((len(block), 1), int)) if _faces(block) else (block.type, block.data)
        for block in mesh.cells
    ]
    stand_in = meshio.Mesh(mesh.points, blocks, mesh.point_data, mesh.cell_data)
    meshio.write(path, stand_in, file_format="vtu")
    tree = ElementTree.parse(path)
    (cells,) = tree.iter("Cells")
    cells.clear()
    for name, array in _description(mesh).items():
        entry = ElementTree.SubElement(cells, "DataArray", type="Int64", Name=name, format="binary")
        entry.text = _encoded(array)
    tree.write(path)


def _faces(block: meshio.CellBlock) -> Polyhedra | None:
    return block.data if isinstance(block.data, Polyhedra) else None


def _description(mesh: meshio.Mesh) -> dict[str, np.ndarray]:
    """The arrays that VTU has for cells."""
    nodes, sizes, types, streams, lengths = [], [], [], [], []
    for block in mesh.cells:
        if polyhedra := _faces(block):
            found, size = _nodes(polyhedra)
            stream, length = _stream(polyhedra)
            streams.append(stream)
        else:
            order = _vtk_common.meshio_to_vtk_order(block.type)
            found = (block.data if order is None else block.data[:, order]).ravel()
            size = np.full(len(block), block.data.shape[1])
            length = np.zeros(len(block), int)
        nodes.append(found)
        sizes.append(size)
        lengths.append(length)
        types.append(np.full(len(block), _vtk_common.meshio_to_vtk_type[block.type]))
    length = np.concatenate(lengths)
    return {
        "connectivity": np.concatenate(nodes),
        "offsets": np.cumsum(np.concatenate(sizes)),
        "types": np.concatenate(types),
        "faces": np.concatenate(streams),
        "faceoffsets": np.where(length > 0, np.cumsum(length), -1),
    }


def _nodes(cells: Polyhedra) -> tuple[np.ndarray, np.ndarray]:
    """The nodes of each cell, each once, and how many they are."""
    owner = np.repeat(np.arange(len(cells)), np.diff(cells.faces[cells.cells]))
    order = np.lexsort((cells.corners, owner))
    owner, corners = owner[order], cells.corners[order]
    first = np.append(True, (np.diff(owner) != 0) | (np.diff(corners) != 0))
    return corners[first], np.bincount(owner[first], minlength=len(cells))


def _stream(cells: Polyhedra) -> tuple[np.ndarray, np.ndarray]:
    """VTK's stream of faces, and the length of each cell's part."""
    faces = np.insert(cells.corners, cells.faces[:-1], np.diff(cells.faces))
    first = cells.faces[cells.cells] + cells.cells
    return np.insert(faces, first[:-1], np.diff(cells.cells)), np.diff(first) + 1


def _encoded(array: Any) -> str:
    """An array in one compressed block, as meshio's header of the file promises."""
    data = array.astype(np.int64).tobytes()
    packed = zlib.compress(data)
    header = np.array([1, len(data) + 1, len(data), len(packed)], np.uint32).tobytes()
    return (base64.b64encode(header) + base64.b64encode(packed)).decode()
