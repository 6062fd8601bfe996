"""VTK's cells as blocks with meshio's names and node orders.

Cells keep their order; a block is a run of equal type and number of nodes. Pixels and voxels become
quads and hexahedra, strips triangles, polylines lines, and Lagrange cells of order 1 and 2 the
linear and quadratic cells, which have the same nodes in the same order.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import pairwise

import numpy as np
from meshio import _vtk_common

from opformer._cells import TOPOLOGICAL_DIMENSION, node_count
from opformer.errors import MeshError

__all__ = ["cells_from_vtk"]

_POLYHEDRA = (41, 42)

# Lagrange cells by VTK's type: name, nodes by order, and by number of nodes the cells we know.
_LAGRANGE: dict[int, tuple[str, Callable[[int], int], dict[int, str]]] = {
    68: ("curves", lambda p: p + 1, {2: "line", 3: "line3"}),
    69: ("triangles", lambda p: (p + 1) * (p + 2) // 2, {3: "triangle", 6: "triangle6"}),
    70: ("quadrilaterals", lambda p: (p + 1) ** 2, {4: "quad", 9: "quad9"}),
    71: (
        "tetrahedra",
        lambda p: (p + 1) * (p + 2) * (p + 3) // 6,
        {4: "tetra", 10: "tetra10"},
    ),
    72: ("hexahedra", lambda p: (p + 1) ** 3, {8: "hexahedron", 27: "hexahedron27"}),
    73: ("wedges", lambda p: (p + 1) ** 2 * (p + 2) // 2, {6: "wedge", 18: "wedge18"}),
}


def cells_from_vtk(
    types: np.ndarray, offsets: np.ndarray, connectivity: np.ndarray
) -> tuple[list[tuple[str, np.ndarray]], list[np.ndarray]]:
    """Return the blocks, and for each of them which of VTK's cells its cells come from.

    Parameters
    ----------
    types : (n,)
        VTK's number for the type of each cell.
    offsets : (n + 1,)
        Cell c has the nodes ``connectivity[offsets[c] : offsets[c + 1]]``.
    connectivity : (k,)

    Raises
    ------
    MeshError
        If the arrays do not fit together, or on cells that have no weight rule.
    """
    sizes = np.diff(offsets)
    if len(sizes) != len(types) or np.any(sizes < 0) or offsets[-1] > len(connectivity):
        raise MeshError("the file is damaged: offsets of the cells do not fit their nodes")
    filled = np.flatnonzero(types)  # 0 is an empty cell
    runs = np.stack([types[filled], sizes[filled]])
    breaks = np.flatnonzero((np.diff(runs) != 0).any(axis=0)) + 1
    blocks, sources = [], []
    for first, last in pairwise([0, *breaks, len(filled)]):
        ids = filled[first:last]
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
    name = _lagrange(code, n) if code in _LAGRANGE else _known(code)
    if n < 3 if name == "polygon" else n != node_count(name):
        raise MeshError(f"the file is damaged: cells of type {name!r} with {n} nodes")
    order = _vtk_common.meshio_to_vtk_order(name)  # of wedges, its own inverse
    return name, np.arange(n)[None] if order is None else order[None]


def _lagrange(code: int, n: int) -> str:
    name, count, known = _LAGRANGE[code]
    if n not in known:
        orders = [f"of order {p}" for p in range(1, 31) if count(p) == n]
        which = orders[0] if orders else f"with {n} nodes"
        raise MeshError(f"Lagrange {name} {which} are not supported, those of order 1 and 2 are")
    return known[n]


def _known(code: int) -> str:
    name = _vtk_common.vtk_to_meshio_type.get(code, "unknown")
    if code in _POLYHEDRA:
        raise MeshError(
            f"polyhedra (VTK type {code}) are not supported: split them into tetrahedra first"
        )
    if name not in TOPOLOGICAL_DIMENSION:
        raise MeshError(f"cells of VTK type {code} ({name}) are not supported")
    return name
