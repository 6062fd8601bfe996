"""The files of meshes/: what they measure, and that make.py writes them."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import meshio
import numpy as np
import pytest

from opformer.quadrature import cell_report, cell_weights, lumping, node_weights, top_blocks

FOLDER = Path(__file__).parents[1] / "meshes"
# From the geometry, in closed form; the shear of the box keeps its volume and the area of its base.
EXACT = {
    **dict.fromkeys(["vertex", "triangle", "quad", "tetra", "hexahedron", "wedge", "pyramid"], 2.0),
    **dict.fromkeys(
        ["triangle6", "quad8", "quad9", "tetra10", "hexahedron20", "hexahedron27"], 2.0
    ),
    **dict.fromkeys(["wedge18", "lagrange_triangle"], 2.0),
    **dict.fromkeys(["line", "line3", "graded", "orphan_inverted"], 1.0),
    "polygon": 2.5,
    "mixed_plane": 2.0,
    "mixed_solid": 1 + 1 / 3 + 1 / 2 + 1 / 12,
    "helix": 24 * np.sqrt(4 * np.sin(np.pi / 24) ** 2 + (np.pi / 24) ** 2),
}
FILES = sorted(FOLDER.glob("*.vtu"))


def load(path):
    mesh = meshio.read(path)
    return mesh, mesh.points, [(block.type, block.data) for block in mesh.cells]


def test_the_readme_lists_every_file_with_its_measure():
    names = {path.stem for path in FILES}
    assert names == set(EXACT) | {"sphere"}
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    table = dict(re.findall(r"^\| `(\w+)\.vtu` .* ([\d.]+) \|$", text, flags=re.MULTILINE))
    assert set(table) == names
    for name, measure in table.items():
        _, points, blocks = load(FOLDER / f"{name}.vtu")
        assert float(measure) == pytest.approx(node_weights(points, blocks).sum(), rel=1e-12)


@pytest.mark.parametrize("name", EXACT)
def test_measure(name):
    _, points, blocks = load(FOLDER / f"{name}.vtu")
    weights, measures = node_weights(points, blocks), cell_weights(points, blocks)[1]
    assert weights.sum() == pytest.approx(EXACT[name], rel=1e-12)
    assert measures.sum() == pytest.approx(EXACT[name], rel=1e-12)
    report = cell_report(points, blocks)
    odd = int(name == "orphan_inverted")
    assert (report.inverted, report.orphans) == (odd, odd)
    assert (report.degenerate, report.duplicates) == (0, 0)
    assert np.count_nonzero(weights == 0) == odd


def test_the_sphere_is_near_its_limit():
    _, points, blocks = load(FOLDER / "sphere.vtu")
    np.testing.assert_allclose(np.linalg.norm(points, axis=1), 1, rtol=1e-15)
    area = node_weights(points, blocks).sum()
    assert 0.95 < area / (4 * np.pi) < 1
    a, b, c = (points[blocks[0][1][:, i]] for i in range(3))
    assert area == pytest.approx(
        np.linalg.norm(np.cross(b - a, c - a), axis=1).sum() / 2, rel=1e-13
    )
    assert (np.sum(np.cross(b - a, c - a) * a, axis=1) > 0).all()  # all look outwards


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_fields(path):
    mesh, points, blocks = load(path)
    assert path.stat().st_size < 12_000
    np.testing.assert_allclose(mesh.point_data["u"], points @ [1, 2, 3], rtol=1e-15)
    numbers = np.concatenate(mesh.cell_data["number"])
    np.testing.assert_array_equal(numbers, np.arange(len(numbers)))
    # u is linear, so nodes and centroids give the same integral over each cell.
    centroids, measures = cell_weights(points, blocks)
    matrix = lumping(points, blocks)
    assert matrix.shape == (len(points), sum(len(blocks[i][1]) for i in top_blocks(blocks)))
    np.testing.assert_allclose(
        matrix.T @ mesh.point_data["u"], measures * (centroids @ [1, 2, 3]), atol=1e-12
    )


def test_make_writes_these_files(tmp_path):
    made = runpy.run_path(str(FOLDER / "make.py"))
    made["write"](tmp_path)
    again = sorted(tmp_path.glob("*.vtu"))
    assert [path.name for path in again] == [path.name for path in FILES]
    for old, new in zip(FILES, again, strict=True):
        a, b = meshio.read(old), meshio.read(new)
        np.testing.assert_allclose(a.points, b.points, rtol=1e-15, atol=1e-15)
        assert [c.type for c in a.cells] == [c.type for c in b.cells]
        for x, y in zip(a.cells, b.cells, strict=True):
            np.testing.assert_array_equal(x.data, y.data)
        np.testing.assert_allclose(a.point_data["u"], b.point_data["u"], rtol=1e-15, atol=1e-15)
        for x, y in zip(a.cell_data["number"], b.cell_data["number"], strict=True):
            np.testing.assert_array_equal(x, y)
