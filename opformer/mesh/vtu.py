"""VTU files of one piece, read by meshio; the blocks of compressed arrays are unpacked in threads.

Such an array is a header (number of blocks, size of a block, size of the last one, the size of each
when packed) and the packed blocks, in base64 each on its own. Reference: VTK's XML file formats.
"""

from __future__ import annotations

import lzma
import zlib
from base64 import b64decode
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import meshio
import numpy as np
from meshio.vtu._vtu import VtuReader, vtu_to_numpy_type

from opformer.errors import MeshError
from opformer.mesh.clean import UnknownToMeshioError

__all__ = ["read_piece"]

_UNPACK: dict[str, Callable[..., bytes]] = {
    "vtkZLibDataCompressor": zlib.decompress,
    "vtkLZMADataCompressor": lzma.decompress,
}
_TOGETHER = 64  # blocks that a thread unpacks in one go


def read_piece(path: Path) -> meshio.Mesh:
    """Read a file of one piece.

    Raises
    ------
    MeshError
        If there are more pieces, of which meshio would keep only the cells of the last.
    UnknownToMeshioError
        If there are polyhedra.
    """
    reader = _Reader(str(path))
    _check_lengths(reader)
    return meshio.Mesh(
        reader.points,
        reader.cells,
        point_data=reader.point_data,
        cell_data=reader.cell_data,
        field_data=reader.field_data,
    )


def _check_lengths(reader: _Reader) -> None:
    """Refuse arrays that are longer than the mesh: meshio cuts them."""
    n_cells = sum(map(len, reader.cells))
    if [n_cells] != reader.lengths["types"]:  # there are cells that meshio does not know
        return
    for name, lengths in reader.lengths.items():
        expected = [len(reader.points)] * (name in (reader.point_data or {}))
        expected += [n_cells] * (name in reader.cell_data)
        if expected and name not in reader.field_data and sorted(expected) != sorted(lengths):
            size = f"{len(reader.points)} points, {n_cells} cells"
            raise MeshError(f"field {name!r} has {lengths} rows for {size}")


class _Reader(VtuReader):
    def __init__(self, path: str) -> None:
        self.pieces = 0
        self.lengths: dict[str, list[int]] = {}  # rows of every array
        super().__init__(path)

    def read_data(self, array: Any) -> np.ndarray:
        """Read one array of the file."""
        name = array.get("Name")
        if name == "faceoffsets":
            raise UnknownToMeshioError("meshio mixes up the fields of polyhedra")
        self.pieces += name == "connectivity"
        if self.pieces > 1:
            raise MeshError("the file has several pieces")
        data = super().read_data(array)
        self.lengths.setdefault(name, []).append(len(data))
        return data

    def read_compressed_binary(self, data: str, dtype: np.dtype) -> np.ndarray:
        """Unpack one array."""
        order: Literal["<", ">"] = ">" if self.byte_order == "BigEndian" else "<"
        size = vtu_to_numpy_type[self.header_type].newbyteorder(order)
        count = int(np.frombuffer(b64decode(data[: _characters(size.itemsize)]), size, 1)[0])
        start = _characters((3 + count) * size.itemsize)
        sizes = np.frombuffer(b64decode(data[:start]), size)[3:]
        if len(sizes) != count:
            raise MeshError("the file is damaged: the header of an array is not whole")
        ends = np.cumsum([0, *sizes], dtype=np.int64).tolist()
        packed = memoryview(b64decode(data[start : start + _characters(ends[-1])]))
        unpack = _UNPACK[self.compression]

        def unpacked(first: int) -> bytes:
            some = ends[first : first + _TOGETHER + 1]
            return b"".join(unpack(packed[a:b]) for a, b in pairwise(some))

        with ThreadPoolExecutor() as pool:
            content = b"".join(pool.map(unpacked, range(0, count, _TOGETHER)))
        return np.frombuffer(content, dtype.newbyteorder(order))


def _characters(size: int) -> int:
    """How many characters stand for so many bytes in base64."""
    return -(-size // 3) * 4
