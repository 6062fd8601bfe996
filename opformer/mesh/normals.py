r"""Unit normals at the nodes: of a part of the boundary, outward, and of a surface in space.

At node i the normal is the direction of :math:`\int n\,s_i`, over the facets of the part, or over
the cells of the surface; the :math:`s_i\ge0` are the shape functions, for quadratic cells and those
of higher order their squares brought to the sum one. So :math:`\sum_i\int n\,s_i=\int n`, which is
zero for a closed surface. At an edge of a cube it is the diagonal, at a corner too.

The boundary of a surface in space has the conormal: tangent to the surface, normal to the edge. So
one rule serves all: at each Gauss point, what is normal to the facet of a vector that leads out of
the cell. The top cell that owns the facet says what is out, and may be inverted itself.
"""

from __future__ import annotations

import meshio
import numpy as np
from scipy.sparse import coo_array, csr_array

from opformer._alike import alike
from opformer._cells import TOPOLOGICAL_DIMENSION, cell_integrals, reference_cell, shape_functions
from opformer._facets import cell_facets, facet_corners
from opformer.errors import MeshError
from opformer.mesh.fields import Location, blocks, top_cells
from opformer.mesh.parts import find_part, taken
from opformer.quadrature import boundary, lumping

__all__ = ["boundary_normals", "normal_integrals", "surface_normals"]

Blocks = list[tuple[str, np.ndarray]]

_CANCELS = 1e-12  # of the measure at a node: a sum of normals below this has no direction


def boundary_normals(mesh: meshio.Mesh, name: str) -> np.ndarray:
    """Return the outward normals (n, d) of a part of the boundary, zero at all other nodes.

    The part's own cells may run either way. Where the facets at a node cancel, it is zero too.

    Raises
    ------
    MeshError
        If there is no such part, or it is no part of the boundary.
    """
    return _units(normal_integrals(mesh, name))[:, : mesh.points.shape[1]]


def surface_normals(mesh: meshio.Mesh, at: Location) -> np.ndarray:
    """Return the normals (n, d) of a surface in space, or a curve in the plane, by its cells.

    That of triangles and quads points to where they run anticlockwise, that of lines to the right.

    Raises
    ------
    MeshError
        If it is neither a surface nor a curve, or neighbouring cells run against each other.
    """
    cells, d = top_cells(mesh), mesh.points.shape[1]
    k = _dimension(cells)
    if k != d - 1 or k == 0:
        raise MeshError(
            f"cells of dimension {k} in {d} coordinates have no normal, a surface in space has one "
            "and a curve in the plane; take the name of a part, such as normal:boundary"
        )
    _check_orientation(cells, len(mesh.points))
    points = _in_space(mesh.points)
    ahead = np.concatenate([_ahead(_corners(points, *block)) for block in cells])
    parts = _integrals(points, cells, ahead)
    if at == "points":
        return _units(_at_nodes(cells, parts, len(points)))[:, :d]
    return _units(np.concatenate([part.sum(axis=1) for part in parts]))[:, :d]


def normal_integrals(mesh: meshio.Mesh, name: str) -> np.ndarray:
    r"""Return :math:`\int n\,s_i` of a part of the boundary in three coordinates, and its measure.

    An array (n, 4), zero off the part. Raises as :func:`boundary_normals` does.
    """
    facets, n = find_part(mesh, name).cells, len(mesh.points)
    if not facets:
        return np.zeros((n, 4))
    top = _dimension(top_cells(mesh))
    if _dimension(facets) != top - 1:
        raise MeshError(
            f"part {name!r} has cells of dimension {_dimension(facets)}, and outward normals are "
            f"those of a part of the boundary, of dimension {top - 1}"
        )
    on = np.zeros(n, dtype=bool)
    for _, nodes in facets:
        on[nodes] = True
    edge = [(kind, nodes[on[nodes].any(axis=1)]) for kind, nodes in boundary(blocks(mesh))]
    found = _holders(_incidence(facets, n), _incidence(edge, n))
    if (found < 0).any():
        first = [row.tolist() for _, nodes in facets for row in nodes][int(np.argmax(found < 0))]
        raise MeshError(
            f"{(found < 0).sum()} of the {len(found)} facets of part {name!r} are not on the "
            f"boundary, the first has the nodes {first}; inside there is no outward: "
            "take a part of the boundary"
        )
    points = _in_space(mesh.points)
    out = _outward(mesh, points, edge)[found]
    return _at_nodes(facets, _integrals(points, facets, out), n)


def _outward(mesh: meshio.Mesh, points: np.ndarray, edge: Blocks) -> np.ndarray:
    """A vector for each facet of the boundary, from the cell it belongs to, that leads out."""
    owners = _holders(_incidence(edge, len(points)), lumping(mesh.points, blocks(mesh)).T)
    out, start = np.zeros((len(owners), 3)), 0
    for kind, nodes in edge:
        corner, first = facet_corners(kind, nodes), 0
        for owner_kind, cells in top_cells(mesh):
            own = owners[start : start + len(nodes)] - first
            rows = np.flatnonzero((own >= 0) & (own < len(cells)))
            out[start + rows] = _leading_out(
                points, corner[rows], owner_kind, taken(owner_kind, cells, own[rows])
            )
            first += len(cells)
        start += len(nodes)
    return out


def _leading_out(
    points: np.ndarray, corner: np.ndarray, kind: str, cells: np.ndarray
) -> np.ndarray:
    """Vectors (m, 3) that lead out of cells through one facet of each, given by its corners."""
    x = points[corner]
    if TOPOLOGICAL_DIMENSION[kind] == 3:
        return _ahead(x) * _orientation(points, kind, cells)[:, None]
    if TOPOLOGICAL_DIMENSION[kind] == 1:
        return x[:, 0] - points[cells[:, :2]].mean(axis=1)
    on = (cells[:, :, None] == corner[:, None, :]).any(axis=2)
    normal = np.einsum("mn,mnd->md", on, _normals_in_cell(points, kind, cells))
    return np.cross(x[:, 1] - x[:, 0], normal)


def _orientation(points: np.ndarray, kind: str, cells: np.ndarray) -> np.ndarray:
    """The sign of the volume of each cell (m, ...)."""
    sign = np.zeros(len(cells))
    for like in alike(kind, cells):
        volumes = cell_integrals(kind, _local(points, like.nodes), like.faces)[2]
        sign[like.numbers] = np.sign(volumes[:, 0])
    return sign


def _normals_in_cell(points: np.ndarray, kind: str, cells: np.ndarray) -> np.ndarray:
    """Normals (m, n, 3), of any length, of two-dimensional cells at each of their nodes."""
    x = _local(points, cells)
    if kind == "polygon":
        return np.repeat(_ahead(x)[:, None], x.shape[1], axis=1)
    nodes = reference_cell(kind, x.shape[1]).nodes
    tangents = np.einsum("qnk,mnd->kmqd", shape_functions(kind, nodes, len(nodes))[1], x)
    return np.cross(*tangents)


def _integrals(points: np.ndarray, cells: Blocks, ahead: np.ndarray) -> list[np.ndarray]:
    r"""For each block :math:`\int n\,s_i` and the measure (m, n, 4), n on the side of ``ahead``."""
    parts, start = [], 0
    for kind, nodes in cells:
        cell = reference_cell(kind, nodes.shape[1])
        tangents = np.einsum("qnk,mnd->kmqd", cell.gradients, _local(points, nodes))
        normal = _density(tangents, ahead[start : start + len(nodes), None])
        size = np.linalg.norm(normal, axis=2, keepdims=True)
        shares = cell.shares / cell.shares.sum(axis=1, keepdims=True)
        density = np.concatenate([normal, size], axis=2) * cell.omega[:, None]
        parts.append(np.einsum("mqc,qn->mnc", density, shares))
        start += len(nodes)
    return parts


def _density(tangents: np.ndarray, ahead: np.ndarray) -> np.ndarray:
    """Normals (m, q, 3) as long as the element of measure of the tangents (k, m, q, 3)."""
    if len(tangents) == 2:
        normal = np.cross(*tangents)
        return normal * np.sign(_dot(normal, ahead))
    if len(tangents) == 0:
        return _unit(ahead)
    (t,) = tangents
    along = _unit(t)
    return _unit(ahead - _dot(ahead, along) * along) * np.sqrt(_dot(t, t))


def _at_nodes(cells: Blocks, parts: list[np.ndarray], n: int) -> np.ndarray:
    total = np.zeros((n, 4))
    for (_, nodes), part in zip(cells, parts, strict=True):
        np.add.at(total, nodes, part)
    return total


def _units(integrals: np.ndarray) -> np.ndarray:
    normal, measure = integrals[:, :3], integrals[:, 3:]
    clear = np.linalg.norm(normal, axis=1, keepdims=True) > _CANCELS * measure
    return np.where(clear, _unit(normal), 0.0)


def _check_orientation(cells: Blocks, n: int) -> None:
    """Neighbours run alike if they pass the facet between them in opposite directions."""
    passed, owners, start = [], [], 0
    for kind, nodes in cells:
        for side, (_, facet) in enumerate(cell_facets(kind, nodes)):
            end = facet[:, 1] if facet.shape[1] > 1 else np.full(len(facet), n + side)
            passed.append(np.where(facet[:, 0] == end, -1, facet[:, 0] * (n + 2) + end))
            owners.append(start + np.repeat(np.arange(len(nodes)), len(facet) // len(nodes)))
        start += len(nodes)
    direction, owner = np.concatenate(passed), np.concatenate(owners)
    order = np.argsort(direction, kind="stable")
    again = (np.diff(direction[order]) == 0) & (direction[order][1:] >= 0)
    if again.any():
        first = order[np.argmax(again) + np.arange(2)]
        raise MeshError(
            f"cells {owner[first[0]]} and {owner[first[1]]} are neighbours and oriented against "
            f"each other, as are {again.sum()} pairs: orient the cells alike"
        )


def _incidence(cells: Blocks, n: int) -> csr_array:
    """Which corners (n,) each cell has: ones in a matrix (cells, n)."""
    corners = [facet_corners(kind, nodes) for kind, nodes in cells]
    lengths = np.concatenate([np.full(len(c), c.shape[1]) for c in corners] or [np.zeros(0, int)])
    columns = np.concatenate([c.ravel() for c in corners] or [np.zeros(0, int)])
    rows = np.repeat(np.arange(len(lengths)), lengths)
    return csr_array((np.ones(len(rows)), (rows, columns)), shape=(len(lengths), n))


def _holders(small: csr_array, large: csr_array) -> np.ndarray:
    """For each row of ``small`` a row of ``large`` that has all its columns, -1 without one."""
    small, large = _pattern(small), _pattern(large)
    shared = coo_array(small @ large.T)
    whole = shared.data == small.sum(axis=1)[shared.coords[0]]
    holder = np.full(small.shape[0], -1)
    holder[shared.coords[0][whole]] = shared.coords[1][whole]
    return holder


def _pattern(matrix: csr_array) -> csr_array:
    """Ones where a matrix has entries; a node may have several in a cell."""
    ones = csr_array(matrix, copy=True)
    ones.sum_duplicates()
    ones.data[:] = 1.0
    return ones


def _ahead(x: np.ndarray) -> np.ndarray:
    """The area vector (m, 3) of rings of corners (m, c, 3); that to the right of plane lines."""
    x = x - x[:, :1]
    if x.shape[1] == 2:
        return np.cross(x[:, 1], [0.0, 0.0, 1.0])
    return np.cross(x, np.roll(x, -1, axis=1)).sum(axis=1) / 2


def _corners(points: np.ndarray, kind: str, nodes: np.ndarray) -> np.ndarray:
    return points[facet_corners(kind, nodes)]


def _dimension(cells: Blocks) -> int:
    return TOPOLOGICAL_DIMENSION[cells[0][0]]


def _in_space(points: np.ndarray) -> np.ndarray:
    return np.pad(np.asarray(points, dtype=float), ((0, 0), (0, 3 - points.shape[1])))


def _local(points: np.ndarray, nodes: np.ndarray) -> np.ndarray:
    """Coordinates from the first node, so that no digits are lost far from the origin."""
    x = points[nodes]
    return x - x[:, :1]


def _dot(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a * b).sum(axis=-1, keepdims=True)


def _unit(a: np.ndarray) -> np.ndarray:
    length = np.linalg.norm(a, axis=-1, keepdims=True)
    return np.divide(a, length, out=np.zeros(a.shape), where=length > 0)
