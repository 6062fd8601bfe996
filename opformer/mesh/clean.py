"""One shape, one byte order, nothing out of range: what every mesh is brought to after reading."""

from __future__ import annotations

from typing import Any

import meshio
import numpy as np
from meshio import _mesh

from opformer._cells import misfit
from opformer._lagrange import LAGRANGE, plain_name
from opformer._polyhedra import Polyhedra, renumbered
from opformer.errors import MeshError
from opformer.quadrature import TOPOLOGICAL_DIMENSION

__all__ = ["UnknownToMeshioError", "clean"]

_GHOSTS = "vtkGhostType"
_FARTHEST = 1e40  # so that no volume overflows, nor its square
_NOT_HERE = 1 | 8 | 32  # cells of another piece, cells that finer ones replace, hidden cells

# meshio reads wedge15, pyramid13 and triangle7, but its meshes do not know their dimension.
_mesh.topological_dimension.update(TOPOLOGICAL_DIMENSION)


class UnknownToMeshioError(MeshError):
    """A sound file that meshio does not understand; another reader may."""


def clean(mesh: meshio.Mesh) -> meshio.Mesh:
    """Return a copy with float64 points, int64 connectivity within range and native byte order.

    A field of one number per row gets one axis, empty blocks go, and named sets of points or cells
    become fields of zeros and ones; a field of the same name has precedence over a set. Ghost cells
    go, and points that only they have.
    """
    if _GHOSTS in mesh.cell_data or _GHOSTS in mesh.point_data:
        mesh = _without_ghosts(mesh)
    points = _checked_points(mesh.points)
    first = np.cumsum([0] + [len(block) for block in mesh.cells])
    kept = np.flatnonzero(np.diff(first))
    if not len(kept):
        raise MeshError("there are points but no cells")
    return meshio.Mesh(
        points,
        [
            (_name(mesh.cells[k]), _checked_cells(mesh.cells[k], len(points), first[k]))
            for k in kept
        ],
        point_data={
            name: _native(data) for name, data in {**_point_masks(mesh), **mesh.point_data}.items()
        },
        cell_data={
            name: [_native(data[k]) for k in kept]
            for name, data in {**_cell_masks(mesh), **mesh.cell_data}.items()
        },
        field_data=mesh.field_data,
    )


def _without_ghosts(mesh: meshio.Mesh) -> meshio.Mesh:
    marks = [np.ravel(block).astype(np.int64) for block in mesh.cell_data.get(_GHOSTS, [])]
    marks = marks or [np.zeros(len(block), np.int64) for block in mesh.cells]
    kept = [mark & _NOT_HERE == 0 for mark in marks]
    cells = [block.data[keep] for block, keep in zip(mesh.cells, kept, strict=True)]
    points = every = np.arange(len(mesh.points))
    if not all(keep.all() for keep in kept):
        gone = [block.data[~keep] for block, keep in zip(mesh.cells, kept, strict=True)]
        points = np.setdiff1d(points, np.setdiff1d(_nodes(gone), _nodes(cells)))
        cells = [renumbered(nodes, np.searchsorted(points, every)) for nodes in cells]
    return meshio.Mesh(
        mesh.points[points],
        [(block.type, nodes) for block, nodes in zip(mesh.cells, cells, strict=True)],
        point_data={name: d[points] for name, d in mesh.point_data.items() if name != _GHOSTS},
        cell_data={
            name: [part[keep] for part, keep in zip(parts, kept, strict=True)]
            for name, parts in mesh.cell_data.items()
            if name != _GHOSTS
        },
        field_data=mesh.field_data,
    )


def _nodes(blocks: list[Any]) -> np.ndarray:
    parts = [b.corners if isinstance(b, Polyhedra) else b.ravel() for b in blocks]
    return np.concatenate(parts)


def _checked_points(points: np.ndarray) -> np.ndarray:
    points = np.array(points, dtype=np.float64)
    if points.ndim != 2 or not 1 <= points.shape[1] <= 3 or not len(points):
        raise MeshError(f"points must have shape (n, 1), (n, 2) or (n, 3), got {points.shape}")
    bad = np.flatnonzero(~np.isfinite(points).all(axis=1))
    if len(bad):
        raise MeshError(f"{len(bad)} points are not finite, the first is point {bad[0]}")
    far = np.flatnonzero((np.abs(points) > _FARTHEST).any(axis=1))
    if len(far):
        raise MeshError(f"{len(far)} points are over {_FARTHEST:g} away, the first is {far[0]}")
    return points


def _name(block: meshio.CellBlock) -> str:
    """The type of the cells; Lagrange cells of low order are those that every format knows."""
    if block.type.startswith("polyhedron"):  # meshio adds the number of nodes
        return "polyhedron"
    if block.type not in LAGRANGE:
        return block.type
    n = block.data.shape[1]
    if expected := misfit(block.type, n):
        raise MeshError(f"{block.type} cells with {n} nodes are not supported, {expected} are")
    return plain_name(block.type, n)


def _checked_cells(block: meshio.CellBlock, n_points: int, first: int) -> Any:
    if block.type.startswith("polyhedron"):
        return _checked_polyhedra(Polyhedra.of(block.data), n_points, first)
    if block.type not in TOPOLOGICAL_DIMENSION:
        raise UnknownToMeshioError(f"cell type {block.type!r} is not supported")
    cells = np.array(block.data, dtype=np.int64)
    if cells.size and (cells.min() < 0 or cells.max() >= n_points):
        bad = np.flatnonzero(((cells < 0) | (cells >= n_points)).any(axis=1))
        raise MeshError(
            f"cell {first + bad[0]} ({block.type}) refers to points {cells[bad[0]].tolist()}, "
            f"but there are {n_points} points, counted from 0"
        )
    return cells


def _checked_polyhedra(cells: Polyhedra, n_points: int, first: int) -> Polyhedra:
    bad = np.flatnonzero((cells.corners < 0) | (cells.corners >= n_points))
    if len(bad):
        face = np.searchsorted(cells.faces, bad[0], side="right") - 1
        cell = first + np.searchsorted(cells.cells, face, side="right") - 1
        raise MeshError(
            f"cell {cell} (polyhedron) refers to point {cells.corners[bad[0]]}, "
            f"but there are {n_points} points, counted from 0"
        )
    arrays = (cells.corners, cells.faces, cells.cells)
    return Polyhedra(*(array.astype(np.int64) for array in arrays))


def _native(data: np.ndarray) -> np.ndarray:
    data = np.asarray(data)
    data = data.astype(data.dtype.newbyteorder("="))
    return data[:, 0] if data.ndim == 2 and data.shape[1] == 1 else data


def _point_masks(mesh: meshio.Mesh) -> dict[str, np.ndarray]:
    return {name: _mask(members, len(mesh.points)) for name, members in mesh.point_sets.items()}


def _cell_masks(mesh: meshio.Mesh) -> dict[str, list[np.ndarray]]:
    masks = {}
    for name, blocks in mesh.cell_sets.items():
        if name.startswith("gmsh:"):  # meshio keeps the topology of the geometry there
            continue
        if len(blocks) != len(mesh.cells):
            raise MeshError(f"cell set {name!r} does not fit the {len(mesh.cells)} blocks of cells")
        masks[name] = [
            _mask(ids, len(block)) for ids, block in zip(blocks, mesh.cells, strict=True)
        ]
    return masks


def _mask(members: Any, length: int) -> np.ndarray:
    mask = np.zeros(length, dtype=np.uint8)
    mask[[] if members is None else np.asarray(members, dtype=np.int64)] = 1
    return mask
