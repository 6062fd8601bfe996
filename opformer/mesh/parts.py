"""Parts of a mesh: sub-domains with a measure of their own, such as a wall, an inlet, an inclusion.

A part is a field of zeros and ones, which is what physical groups, named sets and patches become in
:func:`opformer.read_mesh`, or "boundary", the facets that belong to one top cell only.

At the cells, the marked cells are the part, of those only the ones of the highest dimension: a wall
of lines in a mesh of triangles, an inclusion of triangles. At the points, the part is the boundary
facets whose corners are all marked; or, if nodes inside are marked and cells with all their nodes
too, these cells. NaN marks nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import meshio
import numpy as np

from opformer._facets import facet_corners
from opformer._polyhedra import Polyhedra
from opformer.errors import MeshError
from opformer.mesh.fields import blocks
from opformer.quadrature import (
    TOPOLOGICAL_DIMENSION,
    boundary,
    lumping,
    node_weights,
    top_blocks,
)

__all__ = [
    "Part",
    "find_part",
    "is_lower_part",
    "part_cells",
    "part_measures",
    "part_names",
    "part_weights",
    "taken",
]

Blocks = list[tuple[str, np.ndarray]]

_BOUNDARY = "boundary"


class Part(NamedTuple):
    """The cells of a part, and which of the mesh's top cells they are; None if they are none."""

    cells: Blocks
    top: np.ndarray | None = None


def part_names(mesh: meshio.Mesh, *, whole: bool = True) -> list[str]:
    """Return the names of the parts: "boundary" if there is one, and the fields of zeros and ones.

    The whole boundary is left out where it is not wanted.

    Examples
    --------
    >>> points, lines = [[0.0], [1.0], [2.0]], [("line", np.array([[0, 1], [1, 2]]))]
    >>> part_names(meshio.Mesh(points, lines, cell_data={"wire": [[0, 1]], "region": [[3, 4]]}))
    ['boundary', 'wire']
    """
    names = [_BOUNDARY] if whole and boundary(blocks(mesh)) else []
    at_cells = [name for name, parts in mesh.cell_data.items() if _is_mark(parts)]
    at_points = [name for name, values in mesh.point_data.items() if _is_mark([values])]
    return list(dict.fromkeys([*names, *at_cells, *at_points]))


def part_cells(mesh: meshio.Mesh, name: str) -> Blocks:
    """Return the cells of a part as blocks (type, connectivity); none if it is empty in this mesh.

    Raises
    ------
    MeshError
        If there is no such part, the message lists those there are; or if nodes are marked that
        make up neither facets of the boundary nor cells.
    """
    return find_part(mesh, name).cells


def part_weights(mesh: meshio.Mesh, name: str) -> np.ndarray:
    """Return the measure (n,) of a part, lumped at the nodes of the mesh; zero off it.

    Raises as :func:`part_cells` does.

    Examples
    --------
    >>> points, lines = [[0.0], [1.0], [3.0]], [("line", np.array([[0, 1], [1, 2]]))]
    >>> part_weights(meshio.Mesh(points, lines, cell_data={"wire": [[0, 1]]}), "wire")
    array([0., 1., 1.])
    """
    cells = part_cells(mesh, name)
    return node_weights(mesh.points, cells) if cells else np.zeros(len(mesh.points))


def part_measures(mesh: meshio.Mesh) -> dict[str, tuple[int, float]]:
    """Return the dimension and the measure of each named part that is neither empty nor the whole.

    Examples
    --------
    >>> points, lines = [[0.0], [1.0], [3.0]], [("line", np.array([[0, 1], [1, 2]]))]
    >>> part_measures(meshio.Mesh(points, lines, cell_data={"wire": [[0, 1]], "all": [[1, 1]]}))
    {'wire': (1, 2.0)}
    """
    found = {}
    for name in part_names(mesh, whole=False):
        try:
            cells, top = find_part(mesh, name)
        except MeshError:  # marked nodes that make up no facet and no cell are a mere field
            continue
        if cells and (top is None or not top.all()):
            dimension = TOPOLOGICAL_DIMENSION[cells[0][0]]
            found[name] = (dimension, float(node_weights(mesh.points, cells).sum()))
    return found


def is_lower_part(mesh: meshio.Mesh, name: str) -> bool:
    """Whether a field of the cells marks none but cells of a lower dimension: the lines of a wall.

    On the cells that count it is zero, and says nothing; what it means is where these cells are.
    """
    if name in mesh.point_data or not _is_mark(mesh.cell_data.get(name, [])):
        return False
    cells, top = find_part(mesh, name)
    return bool(cells) and top is None


def find_part(mesh: meshio.Mesh, name: str) -> Part:
    """Return a part with what it is of the mesh; raises as :func:`part_cells` does."""
    if name in mesh.cell_data and _is_mark(mesh.cell_data[name]):
        return _of_cells(mesh, [_marked(values) for values in mesh.cell_data[name]])
    if name in mesh.point_data and _is_mark([mesh.point_data[name]]):
        return _of_points(mesh, name, _marked(mesh.point_data[name]))
    if name == _BOUNDARY:
        return Part(boundary(blocks(mesh)))
    reason = f"there is no part {name!r}"
    if name in mesh.cell_data or name in mesh.point_data:
        reason = f"field {name!r} is no part, it holds more than zeros and ones"
    raise MeshError(
        f"{reason}; parts are {part_names(mesh)}, "
        "and any field of zeros and ones at the points or the cells is one"
    )


def taken(kind: str, cells: Any, chosen: np.ndarray) -> Any:
    """Some cells of a block, by a mask or by their numbers."""
    return (Polyhedra.of(cells) if kind == "polyhedron" else cells)[chosen]


def _is_mark(parts: Iterable[np.ndarray]) -> bool:
    """Whether a field, given by its blocks, is one number a row, and zero or one where known."""
    parts = [np.asarray(part) for part in parts]
    if any(part.dtype.kind not in "biuf" or part.size != len(part) for part in parts):
        return False
    values = np.concatenate([part.ravel().astype(float) for part in parts] or [np.empty(0)])
    known = values[~np.isnan(values)]
    return bool(known.size) and bool(np.isin(known, (0, 1)).all())


def _marked(values: np.ndarray) -> np.ndarray:
    return np.ravel(values) == 1


def _of_cells(mesh: meshio.Mesh, marks: list[np.ndarray]) -> Part:
    everything = blocks(mesh)
    dimension = {k: TOPOLOGICAL_DIMENSION[everything[k][0]] for k, m in enumerate(marks) if m.any()}
    highest = max(dimension.values(), default=-1)
    chosen = [k for k, dim in dimension.items() if dim == highest]
    top = top_blocks(everything)
    mask = np.concatenate([marks[k] for k in top]) if set(chosen) & set(top) else None
    return Part([(everything[k][0], taken(*everything[k], marks[k])) for k in chosen], mask)


def _of_points(mesh: meshio.Mesh, name: str, mark: np.ndarray) -> Part:
    if not mark.any():
        return Part([])
    edge = boundary(blocks(mesh))
    facets = [(kind, nodes[_whole(kind, nodes, mark)]) for kind, nodes in edge]
    facets = [(kind, nodes) for kind, nodes in facets if len(nodes)]
    inside = mark.copy()
    for _, nodes in edge:
        inside[nodes] = False
    if facets and not inside.any():
        return Part(facets)
    matrix = lumping(mesh.points, blocks(mesh))
    whole = (matrix.T @ ~mark == 0) & (matrix.sum(axis=0) > 0)
    if whole.any():
        return _of_cells(mesh, _over_blocks(mesh, whole))
    if not facets:
        raise MeshError(
            f"part {name!r} marks {mark.sum()} nodes, but no facet of the boundary has all its "
            "corners marked, nor any cell all its nodes: mark the cells of the part instead"
        )
    return Part(facets)


def _whole(kind: str, nodes: np.ndarray, mark: np.ndarray) -> np.ndarray:
    """Which facets have all their corners marked."""
    return mark[facet_corners(kind, nodes)].all(axis=1)


def _over_blocks(mesh: meshio.Mesh, top: np.ndarray) -> list[np.ndarray]:
    """A mask of the top cells as masks of all blocks."""
    marks = [np.zeros(len(block), dtype=bool) for block in mesh.cells]
    start = 0
    for k in top_blocks(blocks(mesh)):
        marks[k] = top[start : start + len(marks[k])]
        start += len(marks[k])
    return marks
