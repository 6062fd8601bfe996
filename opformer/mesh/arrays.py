"""Meshes as plain arrays in an ``.npz`` file, for data that never were mesh files.

========================  =====================================================================
``points``                (n, d), the coordinates
``cells_TYPE``            (k, nodes), integers, numbered from 0; TYPE as meshio says: ``triangle``
``parameter_NAME``        one number, or a row of them: data of the whole file
``point_data_NAME``       n rows: a field on the points
``cell_data_NAME``        as many rows as all cells together, in the file's order: one on the cells
``NAME``                  a field as well, on the points or cells as its number of rows says
``weights``               n numbers, not negative, where there are no cells: a field of the points
========================  =====================================================================

Points without cells are read as a mesh of ``vertex`` cells, one for each point, in order. As such
every point counts as one; what they measure is for their weights, or a rule, to say.
"""

from __future__ import annotations

from pathlib import Path

import meshio
import numpy as np

from opformer._cells import misfit
from opformer.errors import MeshError
from opformer.quadrature import TOPOLOGICAL_DIMENSION

__all__ = ["read_arrays"]


def read_arrays(path: Path) -> meshio.Mesh:
    """Read an ``.npz`` file of the layout above; nothing pickled is loaded."""
    arrays = _load(path)
    if "points" not in arrays:
        raise MeshError(f"there is no array 'points'; there are {', '.join(arrays) or 'none'}")
    points = arrays.pop("points")
    cells = [
        (name.removeprefix("cells_"), _connectivity(name, arrays.pop(name)))
        for name in list(arrays)
        if name.startswith("cells_")
    ]
    if cells and "weights" in arrays:
        raise MeshError("there are cells and an array 'weights': of a mesh the cells are measured")
    bare = not cells
    if bare:
        cells = [("vertex", np.arange(len(points) if points.ndim else 0)[:, None])]
    mesh = meshio.Mesh(points, cells)
    ends = np.cumsum([len(nodes) for _, nodes in cells])
    for key, values in arrays.items():
        where, name = _place(key, values, len(points), 0 if bare else ends[-1])
        data = getattr(mesh, where)
        if name in data:
            raise MeshError(f"array {key!r}: there is another {name!r} in the same place")
        data[name] = np.split(values, ends[:-1]) if where == "cell_data" else values
    if bare and "weights" in mesh.point_data:
        _check_weights(mesh.point_data["weights"])
    return mesh


def _check_weights(weights: np.ndarray) -> None:
    if weights.size > len(weights):
        raise MeshError(f"weights must have shape ({len(weights)},), got {weights.shape}")
    bad = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if len(bad):
        raise MeshError(
            f"weights must be finite and not negative, got {weights[bad[0]]} at point {bad[0]} "
            f"({len(bad)} such points)"
        )


def _load(path: Path) -> dict[str, np.ndarray]:
    # Opened here: of a damaged archive NumPy leaves the file open.
    with open(path, "rb") as stream, np.load(stream, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    for name, values in arrays.items():
        if not isinstance(values, np.ndarray) or values.dtype.kind not in "biuf":
            kind = getattr(values, "dtype", "no array")
            raise MeshError(f"array {name!r} must hold real numbers, got {kind}")
    return arrays


def _connectivity(name: str, nodes: np.ndarray) -> np.ndarray:
    kind = name.removeprefix("cells_")
    if kind not in TOPOLOGICAL_DIMENSION:
        raise MeshError(f"{name}: cell type {kind!r} is not supported")
    if kind == "polyhedron":
        raise MeshError(f"{name}: polyhedra are no array; save the mesh as .vtu")
    expected = misfit(kind, nodes.shape[1]) if nodes.ndim == 2 else "nodes"
    if nodes.dtype.kind not in "iu" or expected:
        raise MeshError(
            f"{name} must be integers of shape (k, {expected}), got {nodes.dtype} {nodes.shape}"
        )
    return nodes


def _place(key: str, values: np.ndarray, n_points: int, n_cells: int) -> tuple[str, str]:
    """Where an array belongs, and under which name."""
    if key.startswith("parameter_"):
        if values.ndim > 1:
            raise MeshError(f"{key} must be a number or a row of them, got shape {values.shape}")
        return "field_data", key.removeprefix("parameter_")
    rows = len(values) if values.ndim else None
    fitting = [
        where for where, n in (("point_data", n_points), ("cell_data", n_cells)) if n and rows == n
    ]
    named = [where for where in ("point_data", "cell_data") if key.startswith(f"{where}_")]
    if not fitting or (named and named[0] not in fitting):
        raise MeshError(
            f"array {key!r} has shape {values.shape}, which does not fit {n_points} points or "
            f"{n_cells} cells; a number of the whole file is called parameter_NAME"
        )
    if named:
        return named[0], key.removeprefix(f"{named[0]}_")
    if len(fitting) > 1:
        raise MeshError(
            f"array {key!r} fits the points and the cells, {rows} of each: "
            f"call it point_data_{key} or cell_data_{key}"
        )
    return fitting[0], key
