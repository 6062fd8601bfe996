"""Arrays of VTU files, unpacked in threads, against meshio's own reading."""

from __future__ import annotations

import base64
import re
from itertools import product

import meshio
import numpy as np
import pytest

from opformer import read_mesh
from opformer.errors import MeshError
from opformer.mesh.vtu import read_piece


def cloud(n):
    """Lines through n points with fields of all sizes of numbers; 64 blocks hold 2 MiB."""
    rng = np.random.default_rng(0)
    points = rng.random((n, 3))
    lines = rng.integers(0, n, (n // 2, 2))
    data = {"p": rng.random(n), "v": rng.random((n, 3)).astype(np.float32), "k": np.arange(n) % 7}
    return meshio.Mesh(points, [("line", lines)], data, {"c": [rng.random(n // 2)]})


@pytest.mark.parametrize("header", ["UInt32", "UInt64"])
@pytest.mark.parametrize(
    ("n", "compression"),
    [*product([2, 5000], ["zlib", "lzma", None]), (150_000, "zlib")],
)
def test_what_meshio_reads(tmp_path, n, compression, header):
    path = tmp_path / "a.vtu"
    meshio.vtu.write(path, cloud(n), compression=compression, header_type=header)
    exact = meshio.read(path)
    for found in (read_piece(path), read_mesh(path)):
        np.testing.assert_array_equal(found.points, exact.points)
        np.testing.assert_array_equal(found.cells[0].data, exact.cells[0].data)
        for name, data in exact.point_data.items():
            np.testing.assert_array_equal(found.point_data[name], data.squeeze())
            assert found.point_data[name].dtype == data.dtype
        np.testing.assert_array_equal(found.cell_data["c"][0], exact.cell_data["c"][0])


@pytest.mark.parametrize("blocks", [5, 10**6])
def test_a_header_that_promises_more_blocks_is_refused(tmp_path, blocks):
    path = tmp_path / "a.vtu"
    meshio.vtu.write(path, cloud(50), header_type="UInt32")
    text = path.read_text()
    first = re.search(r'Name="p"[^>]*>\s*(\S{8})', text)
    raw = base64.b64decode(first[1])
    wrong = base64.b64encode(np.uint32(blocks).tobytes() + raw[4:]).decode()
    path.write_text(text[: first.start(1)] + wrong + text[first.end(1) :])
    with pytest.raises(MeshError, match=r"a\.vtu"):
        read_mesh(path)
