"""Writing a mesh with predicted fields, whole or not at all.

Only formats that keep fields, and that meshio can read back, are written: .vtu, .vtk and .xdmf
(with the data inside the XML, so that a result is one file). The file appears under its name when
it is complete.

Points and cells keep their order and original fields their values; .vtu also keeps the numbers of
the whole file, such as its time. For the sake of the formats,
points get three coordinates; new fields of two components, and in .vtk all of them, get a third one
of zero, so that ParaView draws arrows; tensors become rows, (n, 3, 3) to (n, 9), row after row;
bool becomes uint8, float16 float32, longer floats float64; all numbers in .xdmf and all integers in
.vtk, whose shorter ones meshio gives names that VTK does not know, take 64 bits.
"""

from __future__ import annotations

import os
import string
from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from urllib.parse import quote
from xml.sax.saxutils import escape

import meshio
import numpy as np

from opformer._files import replacing
from opformer._lagrange import LAGRANGE
from opformer._polyhedra import Polyhedra
from opformer.errors import MeshError
from opformer.mesh.clean import clean
from opformer.mesh.fields import CellData, PointData, with_fields
from opformer.mesh.messages import captured_messages, one_line
from opformer.mesh.read import parse
from opformer.mesh.vtk_cells import swapped_edges
from opformer.mesh.vtu_polyhedra import write_vtu
from opformer.quadrature import TOPOLOGICAL_DIMENSION

__all__ = ["check_writable", "write_mesh"]

_OPTIONS = {
    ".vtu": {"file_format": "vtu"},
    ".vtk": {"file_format": "vtk"},
    ".xdmf": {"file_format": "xdmf", "data_format": "XML"},
}
_ONLY_VTU = {"polyhedron", *LAGRANGE}
_TYPES = list(TOPOLOGICAL_DIMENSION)
_XDMF_COMPONENTS = (1, 2, 3, 6, 9)
_VTK_PLAIN = string.punctuation.replace("%", "").replace('"', "")


def check_writable(path: str | PathLike[str]) -> Path:
    """Refuse a file that cannot be written with its fields, before anything is computed for it.

    Raises
    ------
    MeshError
        If the extension is not .vtu, .vtk or .xdmf, if .xdmf lacks the package h5py, or if the
        folder does not exist or is write-protected.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in _OPTIONS:
        raise MeshError(
            f"{path}: {suffix or 'a file without extension'} cannot be written; formats that keep "
            f"every field and can be read again are {', '.join(_OPTIONS)}"
        )
    if suffix == ".xdmf" and find_spec("h5py") is None:
        raise MeshError(f"{path}: .xdmf needs the package h5py: pip install 'opformer[hdf5]'")
    if path.is_dir():
        raise MeshError(f"{path}: this is a folder, name a file")
    if not path.parent.is_dir():
        raise MeshError(f"{path}: the folder {path.parent} does not exist")
    if not os.access(path.parent, os.W_OK):
        raise MeshError(f"{path}: the folder is write-protected")
    return path


def write_mesh(
    path: str | PathLike[str],
    mesh: meshio.Mesh,
    *,
    point_data: PointData | None = None,
    cell_data: CellData | None = None,
    overwrite: bool = False,
) -> None:
    """Write a copy of a mesh with additional fields; the mesh itself stays as it is.

    Parameters
    ----------
    path
        Ends in .vtu, .vtk or .xdmf; an existing file is replaced when the new one is complete.
    mesh
        The mesh with its original fields.
    point_data, cell_data, overwrite
        New fields, as in `with_fields`.

    Raises
    ------
    MeshError
        If `check_writable` refuses the file, a field does not fit the mesh or the format, or a name
        is taken. Nothing is left behind then.
    """
    path = check_writable(path)
    try:
        for name in {*(point_data or ()), *(cell_data or ())}:
            _checked_name(name)
        everything = clean(
            with_fields(mesh, point_data=point_data, cell_data=cell_data, overwrite=overwrite)
        )
        new = {*(point_data or ())}, {*(cell_data or ())}
        _replace(path, _portable(everything, new, path.suffix.lower()))
    except MeshError as error:
        raise MeshError(f"{path}: {error}") from error


# --- fitting names, numbers and points to the format ----------------------------------------------


def _portable(mesh: meshio.Mesh, new: tuple[set[str], set[str]], suffix: str) -> meshio.Mesh:
    for kind in {block.type for block in mesh.cells} & _ONLY_VTU if suffix != ".vtu" else ():
        raise MeshError(f"cells of type {kind} cannot be written as {suffix}: write .vtu")
    vtk = suffix == ".vtk"  # meshio would do it there, with a warning
    missing = 3 - mesh.points.shape[1]
    return meshio.Mesh(
        np.pad(mesh.points, ((0, 0), (0, missing))),
        mesh.cells,
        point_data={
            name: _portable_field(data, _checked_name(name), suffix, arrow=vtk or name in new[0])
            for name, data in mesh.point_data.items()
        },
        cell_data={
            name: [
                _portable_field(data, _checked_name(name), suffix, arrow=vtk or name in new[1])
                for data in parts
            ]
            for name, parts in mesh.cell_data.items()
        },
        field_data=mesh.field_data,
    )


def _checked_name(name: str) -> str:
    if not name or not name.isprintable() or name == "vtkGhostType":  # that one hides cells
        raise MeshError(f"{name!r} cannot be the name of a field")
    return name


def _portable_field(data: np.ndarray, name: str, suffix: str, *, arrow: bool) -> np.ndarray:
    if data.dtype.kind not in "biuf" or not data.size:
        hint = "; write real and imaginary part as two fields" if data.dtype.kind == "c" else ""
        got = f"{data.dtype} of shape {data.shape}"
        raise MeshError(f"field {name!r} must hold real numbers, got {got}{hint}")
    rows = data.reshape(len(data), -1)
    data = rows if rows.shape[1] > 1 else rows[:, 0]
    if arrow and data.ndim == 2 and data.shape[1] == 2:
        data = np.pad(data, ((0, 0), (0, 1)))
    if suffix == ".xdmf" and data[0].size not in _XDMF_COMPONENTS:
        raise MeshError(
            f"field {name!r} has {data[0].size} components, which .xdmf does not hold: write .vtu"
        )
    return data.astype(_portable_dtype(data.dtype, suffix))


def _portable_dtype(dtype: np.dtype, suffix: str) -> np.dtype:
    if suffix == ".xdmf":  # meshio prints float32 with too few digits, and has no shorter integers
        return np.dtype({"b": "u8", "u": "u8", "i": "i8", "f": "f8"}[dtype.kind])
    if dtype.kind == "f":
        return np.dtype("f4" if dtype.itemsize <= 4 else "f8")
    if suffix == ".vtk":
        return np.dtype("i8" if dtype.kind == "i" else "u8")
    return np.dtype("u1") if dtype.kind == "b" else dtype


def _encoded(name: str, suffix: str) -> str:
    if suffix == ".vtu":
        return escape(name, {'"': "&quot;"}).encode("ascii", "xmlcharrefreplace").decode()
    return quote(name, safe=_VTK_PLAIN) if suffix == ".vtk" else name


# --- the file, whole or not at all ----------------------------------------------------------------


def _replace(path: Path, mesh: meshio.Mesh) -> None:
    suffix = path.suffix.lower()
    try:
        with replacing(path) as temporary:
            with captured_messages():
                _write(temporary, _with_encoded_names(mesh, suffix), suffix)
            _check_same(mesh, parse(temporary)[0])
    except (Exception, SystemExit) as error:
        raise MeshError(f"cannot be written as {suffix}: {one_line(error)}") from error


def _write(path: Path, mesh: meshio.Mesh, suffix: str) -> None:
    facts = mesh.field_data
    mesh = swapped_edges(mesh) if suffix == ".vtu" else mesh
    if any(block.type == "polyhedron" for block in mesh.cells):
        write_vtu(path, mesh)
    else:
        meshio.write(path, mesh, **_OPTIONS[suffix])
    if suffix == ".vtu" and facts:
        head, grid, rest = path.read_bytes().partition(b"<UnstructuredGrid>")
        path.write_bytes(head + grid + _field_data(facts).encode() + rest)


def _field_data(facts: dict[str, np.ndarray]) -> str:
    """Numbers of the whole file as VTU has them; the time is TimeValue there."""
    entries = []
    for name, value in facts.items():
        data = np.ravel(value)
        if data.dtype.kind in "biuf" and data.size and (name != "time" or "TimeValue" not in facts):
            name = "TimeValue" if name == "time" else _encoded(name, ".vtu")
            numbers = " ".join(repr(float(number)) for number in data)
            entries.append(
                f'<DataArray type="Float64" Name="{name}" NumberOfTuples="{data.size}" '
                f'format="ascii">{numbers}</DataArray>'
            )
    return f"\n<FieldData>{''.join(entries)}</FieldData>" if entries else ""


def _with_encoded_names(mesh: meshio.Mesh, suffix: str) -> meshio.Mesh:
    return meshio.Mesh(
        mesh.points,
        list(mesh.cells),
        point_data={_encoded(name, suffix): data for name, data in mesh.point_data.items()},
        cell_data={_encoded(name, suffix): list(data) for name, data in mesh.cell_data.items()},
        field_data=mesh.field_data,
    )


def _check_same(mesh: meshio.Mesh, written: meshio.Mesh) -> None:
    expected, found = _content(mesh), _content(written)
    for what in expected.keys() | found.keys():
        same = what in expected and what in found
        if not same or not np.array_equal(expected[what], found[what], equal_nan=True):
            raise MeshError(f"{what} would not be read back as written; write .vtu")


def _content(mesh: meshio.Mesh) -> dict[str, np.ndarray]:
    types = [_TYPES.index(block.type) for block in mesh.cells]
    return {
        "the points": mesh.points,
        "the cells": np.concatenate([_numbers(block.data) for block in mesh.cells]),
        "the cell types": np.repeat(types, [len(block) for block in mesh.cells]),
        **{f"point field {name!r}": data for name, data in mesh.point_data.items()},
        **{f"cell field {name!r}": np.concatenate(d) for name, d in mesh.cell_data.items()},
    }


def _numbers(cells: np.ndarray | Polyhedra) -> np.ndarray:
    if isinstance(cells, Polyhedra):
        return np.concatenate([cells.corners, np.diff(cells.faces), np.diff(cells.cells)])
    return cells.ravel()
