"""Reading mesh files: meshio or VTK parses, this module makes the result safe.

It alone knows both readers: meshio first, where it reads the format, then VTK, if pyvista is there.
Whatever goes wrong becomes one `MeshError` that names the file, the format tried and the reason.
What meshio would lose in silence (pieces of a VTU file, cells of a type it does not know, fields it
skips) is read right or refused, and what it prints is turned into the error or into a Python
warning.

Of a mesh that comes out of `read_mesh`, points are float64, connectivity is int64 and within range,
every array has native byte order, one number per row is one axis, no block is empty, ghost cells
are gone, and named sets of points or cells are fields of zeros and ones. The geometry is as the
file has it.
"""

from __future__ import annotations

import warnings
from operator import index
from os import PathLike
from pathlib import Path

import meshio
import numpy as np
from meshio import _helpers

from opformer.errors import MeshError
from opformer.mesh.abaqus import read_abaqus
from opformer.mesh.arrays import read_arrays
from opformer.mesh.clean import clean
from opformer.mesh.formats import read_complete, read_parallel, read_vtk, read_vtu
from opformer.mesh.gmsh import is_gmsh, read_gmsh
from opformer.mesh.hdf5 import read_h5m, read_med
from opformer.mesh.messages import captured_messages, is_settled, one_line, refuse_losses, say
from opformer.mesh.series import Frame, choose, list_frames, pvd_frames, xdmf_frames
from opformer.mesh.su2 import read_su2
from opformer.mesh.tecplot import read_tecplot
from opformer.mesh.vtk import VTK_EXTENSIONS, read_with_vtk, vtk_times

__all__ = ["is_mesh_file", "read_mesh", "read_times", "steps_of"]

# Of these meshio loses fields, sets or the numbers of nodes. VTK reads the first two. With changed
# bytes in the attributes of an .hmf file the HDF5 library never returns.
_LOSSY = {"exodus", "cgns", "mdpa", "wkt", "hmf"}
_READABLE = _helpers.reader_map.keys() - _LOSSY
_VTK = "VTK"
_READERS = {
    "abaqus": read_abaqus,
    "gmsh": read_gmsh,
    "h5m": read_h5m,
    "med": read_med,
    "npz": read_arrays,
    "su2": read_su2,
    "tecplot": read_tecplot,
    "vtk": read_vtk,
    "vtu": read_vtu,
}
_LISTS = {".pvtu": "pvtu", ".pvtp": "pvtp", ".pvd": "pvd", ".series": "series"}  # of other files
_EXTENSIONS = {
    extension: [name for name in names if name in _READABLE]
    for extension, names in meshio.extension_to_filetypes.items()
    if not _READABLE.isdisjoint(names)
} | {extension: [name] for extension, name in {**_LISTS, ".npz": "npz"}.items()}
del _EXTENSIONS[".node"]  # it has the points of an .ele
for _extension in VTK_EXTENSIONS:
    _EXTENSIONS[_extension] = [*_EXTENSIONS.get(_extension, []), _VTK]
_IN_TIME = {
    ".xdmf": "XDMF",
    ".xmf": "XDMF",
    ".pvd": "PVD",
    ".series": ".series",
    ".foam": "OpenFOAM",
    ".case": "EnSight",
    ".vtkhdf": "VTKHDF",
    ".cgns": "CGNS",
    **dict.fromkeys((".e", ".exo", ".ex2"), "Exodus"),
}


def read_mesh(path: str | PathLike[str], *, step: int | None = None) -> meshio.Mesh:
    """Read a mesh file with its fields.

    Parameters
    ----------
    path
        A file of a format that this package, meshio or VTK reads, or arrays in an
        .npz file (see :mod:`opformer.mesh.arrays`); the extension, in capitals or not, decides the
        format. VTK is asked for what meshio does not read, if pyvista is installed
        (``pip install 'opformer[vtk]'``). Formats on top of HDF5 need h5py
        (``pip install 'opformer[hdf5]'``).
    step
        Which step of a time series, counted from 0, or from the end if negative. Its time, or the
        one that VTK notes in a single mesh, is ``mesh.field_data["time"]``, an array of one number.

    Raises
    ------
    MeshError
        If the file is missing, damaged, of an unknown format, or holds something that would be
        lost; if it is a time series of several steps and none is chosen. The message names the
        file, the format tried and the reason, in one line.
    """
    path, step = Path(path), None if step is None else index(step)
    try:
        mesh, messages = parse(path, step)
    except MeshError as error:
        raise MeshError(f"{path}: {error}") from error
    for message in messages:
        warnings.warn(f"{path}: {message}", stacklevel=2)
    return mesh


def read_times(path: str | PathLike[str]) -> list[float]:
    """Return the times of the steps of a time series; an empty list for any other mesh file.

    Raises
    ------
    MeshError
        If the file is missing, damaged or of an unknown format, as far as the times show.
    """
    path = Path(path)
    try:
        _check_file(path)
        return [frame.time for frame in _frames(path)]
    except Exception as error:  # of the parsers of XML and JSON
        raise MeshError(f"{path}: {one_line(error)}") from error


def steps_of(path: str | PathLike[str]) -> list[int] | list[None]:
    """Return what to give `read_mesh` as ``step`` for each mesh of a file: None if it holds one."""
    count = len(read_times(path))
    return list(range(count)) if count > 1 else [None]


def is_mesh_file(path: str | PathLike[str]) -> bool:
    """Whether this is a file, not a hidden one, with an extension that `read_mesh` knows."""
    path = Path(path)
    return path.is_file() and not path.name.startswith(".") and bool(_formats(path))


def parse(path: Path, step: int | None = None) -> tuple[meshio.Mesh, list[str]]:
    """Read a mesh, and what the reader had to say about it; errors do not name the file."""
    _check_file(path)
    if step is not None and path.suffix.lower() not in _IN_TIME:
        known = ", ".join(dict.fromkeys(_IN_TIME.values()))
        raise MeshError(f"step={step} was asked for, but only {known} files hold time series")
    names, reasons, settled = _candidates(path), [], False
    for name in names:
        if name == _VTK and settled:  # the file is understood, and refused
            continue
        # errstate: of the text of an STL file meshio computes the size as if it were numbers
        with captured_messages() as messages, np.errstate(all="ignore"):
            try:
                mesh = _read(name, path, step)
                refuse_losses(messages)
                return _with_time(clean(mesh)), messages
            except (Exception, SystemExit) as error:  # meshio raises about anything, and exits
                reasons.append(one_line(error))
                settled = is_settled(error)
    formats = " or ".join(name for name in names if name != _VTK)
    ways = [f"as {formats}"] * bool(formats) + ["by VTK"] * (_VTK in names)
    raise MeshError(f"cannot be read {' or '.join(ways)}: {'; '.join(reasons)}")


def _check_file(path: Path) -> None:
    if not _formats(path):
        readable = ", ".join(sorted(_EXTENSIONS))
        raise MeshError(f"extension {path.suffix!r} is not supported; supported are {readable}")
    if not path.is_file():
        raise MeshError("there is no such file")
    if not path.stat().st_size and path.suffix.lower() != ".foam":  # that one marks a folder
        raise MeshError("the file is empty")


def _formats(path: Path) -> list[str]:
    name = path.name.lower()
    return [
        n for extension, names in _EXTENSIONS.items() if name.endswith(extension) for n in names
    ]


def _candidates(path: Path) -> list[str]:
    """The formats that a file can be of: two have the same extension and tell themselves apart."""
    other = {"gmsh": "ansys", "ansys": "gmsh"}["gmsh" if is_gmsh(path) else "ansys"]
    return [name for name in _formats(path) if name != other]


def _read(name: str, path: Path, step: int | None) -> meshio.Mesh:
    frames = _frames(path)
    if frames:
        frame = choose(frames, step)
        mesh = frame.read()
        mesh.field_data = {**mesh.field_data, "time": np.array([frame.time])}
        return mesh
    if step is not None:
        raise MeshError(f"step={step} was asked for, but the file is no time series")
    if name == _VTK:
        return _by_vtk(path)
    if name in ("pvtu", "pvtp"):
        return read_parallel(path, _member)
    return _READERS[name](path) if name in _READERS else read_complete(name, path)


def _frames(path: Path) -> list[Frame]:
    """The steps of a time series, none of anything else."""
    match _IN_TIME.get(path.suffix.lower()):
        case None:
            return []
        case "XDMF":
            return xdmf_frames(path)
        case "PVD":
            return pvd_frames(path, _member)
        case ".series":
            return list_frames(path, _member)
    times = enumerate(vtk_times(path))
    return [Frame(time, lambda k=k: _by_vtk(path, k)) for k, time in times]  # type: ignore[misc]


def _member(path: Path) -> meshio.Mesh:
    """A file that another one lists."""
    try:
        mesh, messages = parse(path)
    except MeshError as error:
        raise MeshError(f"{path.name}: {error}") from error
    say([f"{path.name}: {message}" for message in messages])
    return mesh


def _by_vtk(path: Path, step: int | None = None) -> meshio.Mesh:
    mesh, messages = read_with_vtk(path, step)
    say(messages)
    return mesh


def _with_time(mesh: meshio.Mesh) -> meshio.Mesh:
    """Say in the same way when a mesh is that is one of a series of files of its own."""
    if "TimeValue" in mesh.field_data:
        time = np.ravel(mesh.field_data["TimeValue"])[:1].astype(np.float64)
        mesh.field_data = {"time": time, **mesh.field_data}
    return mesh
