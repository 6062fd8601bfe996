"""Writing a time series: a .pvd file for ParaView, and the mesh of each step beside it."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from xml.etree import ElementTree

import meshio

from opformer._files import replacing
from opformer.errors import MeshError
from opformer.mesh.write import check_writable, write_mesh

__all__ = ["check_writable_series", "series_files", "write_series"]


def check_writable_series(path: str | PathLike[str]) -> Path:
    """Refuse a file that cannot be written as a series, before anything is computed for it.

    Raises
    ------
    MeshError
        If the extension is not .pvd, or the folder does not exist or is write-protected.
    """
    path = Path(path)
    if path.suffix.lower() != ".pvd":
        raise MeshError(f"{path}: a time series is written as .pvd, with a .vtu file for each step")
    check_writable(path.with_suffix(".vtu"))
    return path


def series_files(path: str | PathLike[str], count: int) -> list[Path]:
    """The files that a series of ``count`` steps is written into: the steps, and the list."""
    path = Path(path)
    steps = [path.with_name(f"{path.stem}_{step:04d}.vtu") for step in range(count)]
    return [*steps, path]


def write_series(
    path: str | PathLike[str], meshes: Sequence[meshio.Mesh], times: Sequence[float]
) -> None:
    """Write the steps of a time series, ``NAME_0000.vtu`` and so on, and ``NAME.pvd``.

    The list of the steps is written last: it never names a file that is not complete.

    Raises
    ------
    MeshError
        If there is not one time for each mesh, or one of the files cannot be written.
    """
    path = check_writable_series(path)
    if len(meshes) != len(times) or not len(meshes):
        raise MeshError(f"{path}: {len(meshes)} meshes for {len(times)} times")
    root = ElementTree.Element("VTKFile", type="Collection", version="0.1")
    collection = ElementTree.SubElement(root, "Collection")
    files = series_files(path, len(meshes))[:-1]
    for file, mesh, time in zip(files, meshes, times, strict=True):
        write_mesh(file, mesh)
        ElementTree.SubElement(collection, "DataSet", timestep=repr(float(time)), file=file.name)
    with replacing(path) as temporary:
        ElementTree.ElementTree(root).write(temporary, encoding="utf-8", xml_declaration=True)
