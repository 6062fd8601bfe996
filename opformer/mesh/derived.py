"""Fields that a mesh has by its geometry alone, named FUNCTION:PART, such as ``distance:boundary``.

==================  ==============================================================================
``distance:PART``   the distance to the part: to its cells as geometry, not to its nodes; zero in a
                    part of full dimension
``normal:PART``     the outward unit normal at the nodes of a part of the boundary, zero elsewhere
``normal:mesh``     the unit normal of a surface in space or a curve in the plane
``indicator:PART``  one on the part, zero elsewhere; a cell is on a part of the boundary if it
                    touches it
``heat:K``          where a point lies within the mesh, whatever its pose and however it is bent:
                    heat-kernel signatures at K times, see :mod:`opformer.mesh.intrinsic`
==================  ==============================================================================

PART is "boundary" or a field of zeros and ones, see :mod:`opformer.mesh.parts`; K is a number.
"""

from __future__ import annotations

import meshio
import numpy as np

from opformer._cells import TOPOLOGICAL_DIMENSION
from opformer.errors import MeshError
from opformer.mesh.distance import distances, simplices
from opformer.mesh.fields import Location, blocks, read_field
from opformer.mesh.intrinsic import heat_signature
from opformer.mesh.normals import boundary_normals, surface_normals
from opformer.mesh.parts import find_part, part_names, part_weights
from opformer.quadrature import boundary, cell_weights, lumping, node_weights

__all__ = ["derived_field", "is_derived"]

_MESH = "mesh"


def is_derived(name: str) -> bool:
    """Whether a name is that of a derived field: a function of these, a colon, and a part.

    Examples
    --------
    >>> is_derived("distance:wall"), is_derived("distance"), is_derived("first:wall")
    (True, False, False)
    """
    function, _, part = name.partition(":")
    return function in _FUNCTIONS and bool(part)


def derived_field(mesh: meshio.Mesh, name: str, at: Location) -> np.ndarray:
    """Return a derived field at the points or at the cells, (n, channels) in float64.

    Raises
    ------
    MeshError
        If the name is none of :mod:`opformer.mesh.derived`, there is no such part, or it has no
        such field; the message begins with the field.

    Examples
    --------
    >>> points = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.25, 0.25]])
    >>> cells = [("triangle", np.array([[0, 1, 3], [1, 2, 3], [2, 0, 3]]))]
    >>> derived_field(meshio.Mesh(points, cells), "distance:boundary", "points").ravel()
    array([0.  , 0.  , 0.  , 0.25])
    """
    if at not in ("points", "cells"):
        raise MeshError(f'at must be "points" or "cells", got {at!r}')
    if not is_derived(name):
        raise MeshError(f"field {name!r} is none of {', '.join(_NAMES)}")
    function, _, part = name.partition(":")
    try:
        values = _FUNCTIONS[function](mesh, part, at)
    except MeshError as error:
        raise MeshError(f"field {name!r}: {error}") from error
    return values.reshape(len(values), -1)


def _distance(mesh: meshio.Mesh, name: str, at: Location) -> np.ndarray:
    cells, top = find_part(mesh, name)
    full = bool(cells) and TOPOLOGICAL_DIMENSION[cells[0][0]] == mesh.points.shape[1]
    geometry = boundary(cells) if full else cells
    if not geometry:
        raise MeshError(
            f"part {name!r} is empty in this mesh, so nothing has a distance to it; "
            f"indicator:{name} would be zero"
        )
    x = mesh.points if at == "points" else cell_weights(mesh.points, blocks(mesh))[0]
    outside = np.ones(len(x), dtype=bool)
    if top is not None:
        outside = ~top if at == "cells" else node_weights(mesh.points, cells) == 0
    result = np.zeros(len(x))
    if outside.any():
        result[outside] = distances(x[outside], simplices(mesh.points, geometry))
    return result


def _normal(mesh: meshio.Mesh, name: str, at: Location) -> np.ndarray:
    if name == _MESH and name not in part_names(mesh):
        return surface_normals(mesh, at)
    return _from_points(mesh, boundary_normals(mesh, name), at)


def _indicator(mesh: meshio.Mesh, name: str, at: Location) -> np.ndarray:
    on = part_weights(mesh, name) > 0
    if at == "points":
        return on.astype(float)
    top = find_part(mesh, name).top
    touched = lumping(mesh.points, blocks(mesh)).T @ on > 0
    return (touched if top is None else top).astype(float)


def _heat(mesh: meshio.Mesh, times: str, at: Location) -> np.ndarray:
    if not times.isdecimal() or int(times) == 0:
        raise MeshError(f"heat takes a number of channels, such as heat:8, got {times!r}")
    return _from_points(mesh, heat_signature(mesh.points, blocks(mesh), int(times)), at)


def _from_points(mesh: meshio.Mesh, values: np.ndarray, at: Location) -> np.ndarray:
    if at == "points":
        return values
    bare = meshio.Mesh(mesh.points, mesh.cells, point_data={"values": values})
    return read_field(bare, "values", at)


_FUNCTIONS = {"distance": _distance, "normal": _normal, "indicator": _indicator, "heat": _heat}
_NAMES = [f"{name}:{'K' if name == 'heat' else 'PART'}" for name in _FUNCTIONS]
