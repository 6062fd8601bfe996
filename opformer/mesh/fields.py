"""Fields of a mesh, at the points or at the cells, moved between them by the measure.

With the lumping matrix W[i, c] = ∫_c φ_i dμ, a field of one location is seen at the other as

    points to cells:  f_c = Σ_i W[i, c] f_i / Σ_i W[i, c],
    cells to points:  f_i = Σ_c W[i, c] f_c / Σ_c W[i, c],

so constants stay what they are and ∫ f dμ is kept. "Cells" are always those of the top dimension,
all blocks of them one after the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import meshio
import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import csc_array

from opformer._polyhedra import Polyhedra
from opformer.errors import MeshError
from opformer.quadrature import flat_axes, lumping, top_blocks

__all__ = [
    "CellData",
    "Location",
    "PointData",
    "blocks",
    "field_location",
    "field_names",
    "field_values",
    "flat_axes",
    "read_field",
    "same_cells",
    "top_cells",
    "with_fields",
]

Location = Literal["points", "cells"]
PointData = Mapping[str, ArrayLike]
CellData = Mapping[str, "ArrayLike | list[ArrayLike]"]


def blocks(mesh: meshio.Mesh) -> list[tuple[str, np.ndarray]]:
    """Return all blocks of cells as (type, connectivity), in the order of the file."""
    return [(block.type, block.data) for block in mesh.cells]


def top_cells(mesh: meshio.Mesh) -> list[tuple[str, np.ndarray]]:
    """Return the blocks of the top dimension, the ones that carry the measure."""
    everything = blocks(mesh)
    return [everything[k] for k in top_blocks(everything)]


def same_cells(mesh: meshio.Mesh, other: meshio.Mesh) -> bool:
    """Whether two meshes have the same cells of the same points, in the same order."""

    def alike(a: Any, b: Any) -> bool:
        if isinstance(a, Polyhedra) and isinstance(b, Polyhedra):
            return all(np.array_equal(vars(a)[name], vars(b)[name]) for name in vars(a))
        return type(a) is type(b) and np.array_equal(a, b)

    return [block.type for block in mesh.cells] == [block.type for block in other.cells] and all(
        alike(a.data, b.data) for a, b in zip(mesh.cells, other.cells, strict=True)
    )


def field_names(mesh: meshio.Mesh) -> tuple[list[str], list[str]]:
    """Return the names of the point fields and of the cell fields."""
    return list(mesh.point_data), list(mesh.cell_data)


def field_location(mesh: meshio.Mesh, name: str) -> Location:
    """Say where a field lives; at the points if it is at both.

    Raises
    ------
    MeshError
        If there is no such field; the message lists those there are.
    """
    if name in mesh.point_data:
        return "points"
    if name in mesh.cell_data:
        return "cells"
    at_points, at_cells = field_names(mesh)
    raise MeshError(
        f"there is no field {name!r}; point fields: {at_points}, cell fields: {at_cells}"
    )


def read_field(
    mesh: meshio.Mesh, name: str, at: Location, *, matrix: csc_array | None = None
) -> np.ndarray:
    """Return a field at the points or at the cells, as float64 of shape (n, channels).

    A field that lives at both is taken from where it is asked for. One that lives at the other
    location only is moved there by the measure; a point or cell of measure zero then gets the mean.
    Tensors are flattened, (n, 3, 3) to (n, 9), row after row. Whoever reads many fields of a mesh
    can give its :func:`opformer.quadrature.lumping` as ``matrix``.

    Raises
    ------
    MeshError
        If there is no such field, or it has the wrong number of rows, is not real, or is not finite
        at a point or cell of positive measure. Elsewhere NaN is left as it is.
    """
    if at not in ("points", "cells"):
        raise MeshError(f'at must be "points" or "cells", got {at!r}')
    lives_there = name in (mesh.point_data if at == "points" else mesh.cell_data)
    source = at if lives_there else field_location(mesh, name)
    values = field_values(mesh, name, source)
    if source == at and np.isfinite(values).all():
        return values
    matrix = lumping(mesh.points, blocks(mesh)) if matrix is None else matrix
    matrix = matrix.T if source == "cells" else matrix  # rows: where the field lives
    _check_finite(values, matrix.sum(axis=1), name, source)
    return values if source == at else _move(values, matrix, name)


def field_values(mesh: meshio.Mesh, name: str, source: Location) -> np.ndarray:
    """Return a field where it lives, as `read_field` does, but with NaN where the file has it."""
    if source == "points":
        rows, parts = len(mesh.points), [np.asarray(mesh.point_data[name])]
    else:
        top = top_blocks(blocks(mesh))
        rows = sum(len(mesh.cells[k]) for k in top)
        parts = [np.asarray(mesh.cell_data[name][k]) for k in top]
    if any(part.dtype.kind not in "biuf" for part in parts):
        raise MeshError(f"field {name!r} must hold real numbers, got {parts[0].dtype}")
    if len({part.shape[1:] for part in parts}) > 1:
        raise MeshError(f"field {name!r} has another shape in each block of cells")
    values = np.concatenate(parts).astype(np.float64, copy=False)
    if len(values) != rows:
        raise MeshError(f"field {name!r} has {len(values)} rows for {rows} {source}")
    return values.reshape(rows, -1)


def with_fields(
    mesh: meshio.Mesh,
    *,
    point_data: PointData | None = None,
    cell_data: CellData | None = None,
    overwrite: bool = False,
) -> meshio.Mesh:
    """Return the mesh with more fields; the mesh given stays as it is.

    Parameters
    ----------
    mesh
        The mesh with its original fields.
    point_data
        Fields with one row per point.
    cell_data
        Fields with one row per cell of the top dimension (other cells get NaN) or one row per cell,
        as one array; or a list with one array per block.
    overwrite
        Whether fields of the mesh may be replaced by new ones of the same name.

    Raises
    ------
    MeshError
        If a field does not fit the mesh or its name is taken.
    """
    if not overwrite:
        _refuse_taken(mesh, point_data or (), cell_data or ())
    new_points = {name: _point_field(mesh, name, d) for name, d in (point_data or {}).items()}
    new_cells = {name: _cell_field(mesh, name, d) for name, d in (cell_data or {}).items()}
    return meshio.Mesh(
        mesh.points,
        list(mesh.cells),
        point_data={**mesh.point_data, **new_points},
        cell_data={**{name: list(d) for name, d in mesh.cell_data.items()}, **new_cells},
        field_data=mesh.field_data,
        point_sets=mesh.point_sets,
        cell_sets=mesh.cell_sets,
    )


def _check_finite(values: np.ndarray, weights: np.ndarray, name: str, source: Location) -> None:
    bad = np.flatnonzero(~np.isfinite(values).all(axis=1) & (weights > 0))
    if len(bad):
        raise MeshError(
            f"field {name!r} is NaN or infinite at {len(bad)} {source}, the first is {bad[0]}"
        )


def _move(values: np.ndarray, matrix: csc_array, name: str) -> np.ndarray:
    weights, measures = matrix.sum(axis=1), matrix.sum(axis=0)[:, None]
    if not weights.sum() > 0:
        raise MeshError(f"field {name!r} cannot be moved: the total measure of the cells is zero")
    values = np.where(weights[:, None] > 0, values, 0.0)  # 0 times NaN would be NaN
    mean = weights @ values / weights.sum()
    return np.where(measures > 0, matrix.T @ values / np.where(measures > 0, measures, 1.0), mean)


def _refuse_taken(mesh: meshio.Mesh, points: Iterable[str], cells: Iterable[str]) -> None:
    taken = sorted({*points} & mesh.point_data.keys() | {*cells} & mesh.cell_data.keys())
    if taken:
        raise MeshError(
            f"the mesh already holds {taken}; overwrite=True (--overwrite) replaces fields"
        )


def _point_field(mesh: meshio.Mesh, name: str, data: ArrayLike) -> np.ndarray:
    data = np.asarray(data)
    if data.shape[:1] != (len(mesh.points),):
        raise MeshError(f"field {name!r} has shape {data.shape} for {len(mesh.points)} points")
    return data


def _cell_field(
    mesh: meshio.Mesh, name: str, data: ArrayLike | list[ArrayLike]
) -> list[np.ndarray]:
    if isinstance(data, (list, tuple)):
        parts = [np.asarray(part) for part in data]
    else:
        parts = _split(mesh, name, np.asarray(data))
    shapes, sizes = [part.shape for part in parts], [len(block) for block in mesh.cells]
    fits = [shape[:1] for shape in shapes] == [(size,) for size in sizes]
    if not fits or len({shape[1:] for shape in shapes}) > 1:
        raise MeshError(f"cell field {name!r} has shapes {shapes} for blocks of {sizes} cells")
    return parts


def _split(mesh: meshio.Mesh, name: str, data: np.ndarray) -> list[np.ndarray]:
    """Cut one array into blocks; if it covers only the cells of top dimension, fill up with NaN."""
    sizes = np.array([len(block) for block in mesh.cells])
    top = top_blocks(blocks(mesh))
    n_all, n_top = sizes.sum(), sizes[top].sum()
    if data.shape[:1] not in {(n_all,), (n_top,)}:
        raise MeshError(
            f"field {name!r} has shape {data.shape} for {n_all} cells, {n_top} of top dimension"
        )
    covered = top if len(data) == n_top else list(range(len(sizes)))
    dtype = np.result_type(data.dtype, np.float32)
    parts = [np.full((size, *data.shape[1:]), np.nan, dtype) for size in sizes]
    for k, part in zip(covered, np.split(data, np.cumsum(sizes[covered])[:-1]), strict=True):
        parts[k] = part
    return parts
