"""Formats on top of HDF5 of which meshio loses something: MED, of Salome, and H5M, of MOAB.

In MED every point and cell belongs to one family, and a family to any number of groups; a group
becomes a set. A field that lives on some types of cells is NaN on the others, and every step of it
is a field of its own, ``name[0] - 0.5``. In MOAB's .h5m the tags of elements are fields of the
cells; its sets of sets are not read, and it says so.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import meshio
import numpy as np
from meshio.med import _med

from opformer.errors import MeshError
from opformer.mesh.messages import say

__all__ = ["read_h5m", "read_med"]


def read_med(path: Path) -> meshio.Mesh:
    """Read a file of one mesh.

    Raises
    ------
    MeshError
        If it is damaged, holds several meshes or steps of a moving mesh, or cells of another type.
    """
    import h5py

    with h5py.File(path, "r") as file:
        name, grid = _only(file["ENS_MAA"], "mesh")
        dim = int(grid.attrs["ESP"])
        families = grid["FAS"] if "FAS" in grid else file.get(f"FAS/{name}", {})
        grid = grid if "NOE" in grid else _only(grid, "step of the mesh")[1]
        points = grid["NOE/COO"][()].reshape(-1, dim, order="F")
        kinds = list(grid["MAI"])
        if unknown := set(kinds) - _med.med_to_meshio_type.keys():
            raise MeshError(f"cells of MED's types {sorted(unknown)} are not supported")
        cells = [(_med.med_to_meshio_type[kind], _nodes(grid["MAI"][kind])) for kind in kinds]
        mesh = meshio.Mesh(points, cells)
        tags = [_tags(grid["MAI"][kind], len(c)) for kind, (_, c) in zip(kinds, cells, strict=True)]
        mesh.cell_sets = _groups(families.get("ELEME"), tags)
        at_points = _groups(families.get("NOEUD"), [_tags(grid["NOE"], len(points))])
        mesh.point_sets = {name: members for name, (members,) in at_points.items()}
        for name, field in file.get("CHA", {}).items():
            _add_field(mesh, name, field, file.get("PROFILS"), kinds)
    return mesh


def _only(group: Any, what: str) -> tuple[str, Any]:
    if len(group) != 1:
        raise MeshError(
            f"there must be one {what} in a file, there are {len(group)}: save each by itself"
        )
    return next(iter(group.items()))


def _nodes(group: Any) -> np.ndarray:
    nodes = group["NOD"]
    return nodes[()].reshape(int(nodes.attrs["NBR"]), -1, order="F") - 1


def _tags(group: Any, n: int) -> np.ndarray:
    """The family of each point or cell; 0 is in no group."""
    return group["FAM"][()] if "FAM" in group else np.zeros(n, np.int64)


def _groups(families: Any, tags: list[np.ndarray]) -> dict[str, list[np.ndarray]]:
    groups: dict[str, list[int]] = {}
    for family, names in (_med._read_families(families) if families else {}).items():
        for name in names:
            groups.setdefault(name, []).append(family)
    return {
        name: [np.flatnonzero(np.isin(part, own)) for part in tags] for name, own in groups.items()
    }


def _add_field(mesh: meshio.Mesh, name: str, field: Any, profiles: Any, kinds: list[str]) -> None:
    steps = sorted(field)
    for k, step in enumerate(steps):
        here = name if len(steps) == 1 else f"{name}[{k}] - {field[step].attrs['PDT']:g}"
        parts: dict[int, np.ndarray] = {}
        for support, data in field[step].items():
            if support == "NOE":
                mesh.point_data[here] = _med._read_nodal_data(field[step], profiles)
            else:
                block = kinds.index(support.partition(".")[2])
                parts[block] = _med._read_cell_data(data, profiles)
        if len({part.shape[1:] for part in parts.values()}) > 1:
            raise MeshError(f"field {here!r} has another number of values on each type of cell")
        if parts:
            shape = next(iter(parts.values())).shape[1:]
            mesh.cell_data[here] = [
                parts.get(k, np.full((len(block), *shape), np.nan))
                for k, block in enumerate(mesh.cells)
            ]


def read_h5m(path: Path) -> meshio.Mesh:
    """Read a file of MOAB."""
    import h5py

    mesh = meshio.h5m.read(str(path))
    with h5py.File(path, "r") as file:
        blocks = list(file["tstt/elements"].values())
        for name in {name for block in blocks for name in block.get("tags", {})} - {"GLOBAL_ID"}:
            if any(name not in block.get("tags", {}) for block in blocks):
                say([f"tag {name!r} is not read: some of the elements lack it"])
            else:
                mesh.cell_data[name] = [block[f"tags/{name}"][()] for block in blocks]
        if "NAME" in file.get("tstt/sets/tags", {}) or "NAME" in file.get("tstt/tags", {}):
            say(["the named sets are not read"])
    return mesh
