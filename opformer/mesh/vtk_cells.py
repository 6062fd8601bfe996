"""VTK's cells as blocks with meshio's names and node orders.

Cells keep their order; a block is a run of equal type and number of nodes, or of polyhedra. Pixels
and voxels become quads and hexahedra, strips triangles, polylines lines.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import Any

import meshio
import numpy as np
from meshio import _vtk_common

from opformer._cells import TOPOLOGICAL_DIMENSION, misfit
from opformer._lagrange import LAGRANGE, lagrange_order
from opformer._polyhedra import Polyhedra
from opformer.errors import MeshError

__all__ = ["cells_from_vtk", "swapped_edges"]

_POLYHEDRON = 42
_HEXAHEDRON = "VTK_LAGRANGE_HEXAHEDRON"


def cells_from_vtk(
    types: np.ndarray,
    offsets: np.ndarray,
    connectivity: np.ndarray,
    faces: tuple[np.ndarray, ...] | None = None,
) -> tuple[list[tuple[str, Any]], list[np.ndarray]]:
    """Return the blocks, and for each of them which of VTK's cells its cells come from.

    Parameters
    ----------
    types : (n,)
        VTK's number for the type of each cell.
    offsets : (n + 1,)
        Cell c has the nodes ``connectivity[offsets[c] : offsets[c + 1]]``.
    connectivity : (k,)
    faces
        Of polyhedra: the corners of all faces, where each begins and the last ends, and the same
        of the faces of all cells.

    Raises
    ------
    MeshError
        If the arrays do not fit together, or on cells that have no weight rule.
    """
    sizes = np.diff(offsets)
    if len(sizes) != len(types) or np.any(sizes < 0) or offsets[-1] > len(connectivity):
        raise MeshError("the file is damaged: offsets of the cells do not fit their nodes")
    filled = np.flatnonzero(types)  # 0 is an empty cell
    of_polyhedra = types[filled] == _POLYHEDRON
    polyhedra = _polyhedra(faces, len(types)) if of_polyhedra.any() else None
    runs = np.stack([types[filled], np.where(of_polyhedra, 0, sizes[filled])])
    breaks = np.flatnonzero((np.diff(runs) != 0).any(axis=0)) + 1
    blocks, sources = [], []
    for first, last in pairwise([0, *breaks, len(filled)]):
        ids = filled[first:last]
        if polyhedra and of_polyhedra[first]:
            blocks.append(("polyhedron", polyhedra[ids]))
            sources.append(ids)
            continue
        name, pattern = _pattern(*runs[:, first].tolist())
        nodes = connectivity[offsets[ids][:, None] + np.arange(runs[1, first])]
        blocks.append((name, nodes[:, pattern].reshape(-1, pattern.shape[1])))
        sources.append(np.repeat(ids, len(pattern)))
    return blocks, sources


@cache
def _pattern(code: int, n: int) -> tuple[str, np.ndarray]:
    """What a cell of n nodes becomes: a name and, for each new cell, which nodes it takes."""
    match code:
        case 2:  # poly vertex
            return "vertex", np.arange(n).reshape(n, 1)
        case 4:  # polyline
            return "line", np.array([(i, i + 1) for i in range(n - 1)], int).reshape(-1, 2)
        case 6:  # triangle strip: every other triangle is turned
            turned = [(i, i + 1 + i % 2, i + 2 - i % 2) for i in range(n - 2)]
            return "triangle", np.array(turned, int).reshape(-1, 3)
        case 8:  # pixel
            return "quad", np.array([[0, 1, 3, 2]])
        case 11:  # voxel
            return "hexahedron", np.array([[0, 1, 3, 2, 4, 5, 7, 6]])
    name = _known(code)
    if name not in LAGRANGE and misfit(name, n):
        raise MeshError(f"the file is damaged: cells of type {name!r} with {n} nodes")
    order = _vtk_common.meshio_to_vtk_order(name)  # of wedges, its own inverse
    return name, np.arange(n)[None] if order is None else order[None]


def _known(code: int) -> str:
    name = _vtk_common.vtk_to_meshio_type.get(code, "unknown")
    if name not in TOPOLOGICAL_DIMENSION:
        raise MeshError(f"cells of VTK type {code} ({name}) are not supported")
    return name


def _polyhedra(faces: tuple[np.ndarray, ...] | None, n: int) -> Polyhedra:
    """All cells as polyhedra, those of another type without faces."""
    if faces is None or len(faces[3]) != n + 1:
        raise MeshError("the file is damaged: there are polyhedra without faces")
    corners, ends, of_cells, offsets = faces
    ordered = Polyhedra(corners, ends, np.arange(len(ends)))[of_cells]
    return Polyhedra(ordered.corners, ordered.faces, offsets)


def swapped_edges(mesh: meshio.Mesh) -> meshio.Mesh:
    """The mesh with the last two edges of Lagrange hexahedra exchanged.

    So they are numbered in VTU files of versions before 2.1, those that meshio reads and writes,
    and in legacy files of versions before 5.1.
    """
    return meshio.Mesh(
        mesh.points,
        [
            (block.type, _swapped(block.data) if block.type == _HEXAHEDRON else block.data)
            for block in mesh.cells
        ],
        point_data=mesh.point_data,
        cell_data=mesh.cell_data,
        field_data=mesh.field_data,
    )


def _swapped(nodes: np.ndarray) -> np.ndarray:
    inside = (lagrange_order(_HEXAHEDRON, nodes.shape[1]) or 1) - 1
    ten, eleven, rest = 8 + inside * np.array([10, 11, 12])
    parts = nodes[:, :ten], nodes[:, eleven:rest], nodes[:, ten:eleven], nodes[:, rest:]
    return np.concatenate(parts, axis=1)
