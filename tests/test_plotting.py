"""Pictures appear, whole and of a sensible size; without matplotlib there is a reason."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import numpy as np
import pytest
from cases import square

from opformer import plotting, read_mesh
from opformer.evaluation import CaseError, Evaluation

pytest.importorskip("matplotlib", reason="needs the extra plot")

MESHES = Path(__file__).parents[1] / "meshes"


def size_of(path):
    """Width and height that a PNG file declares."""
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert data[-8:-4] == b"IEND"
    return struct.unpack(">II", data[16:24])


def evaluation(*datasets, fields=("u",), uniform=None):
    return Evaluation(
        [
            CaseError(data, "case", 100 * (i + 1), name, 0.1 + i, True, 0.2, 0.0, uniform)
            for i, data in enumerate(datasets)
            for name in fields
        ]
    )


@pytest.fixture
def drawn(monkeypatch):
    """The figures that are saved."""
    figures = []
    save = plotting._save
    monkeypatch.setattr(plotting, "_save", lambda f, path: (figures.append(f), save(f, path)))
    return figures


def test_history(tmp_path, drawn):
    history = [
        {"epoch": i + 1, "train": 1 / (i + 1), "validation": abs(i - 4) + 0.5} for i in range(9)
    ]
    plotting.plot_history(history, tmp_path / "new" / "history.png")
    width, height = size_of(tmp_path / "new" / "history.png")
    assert 500 < height < width < 1200
    (ax,) = drawn[0].axes
    assert ax.get_yscale() == "log"
    lines = {line.get_label(): line.get_ydata() for line in ax.lines}
    assert list(lines["training"]) == [row["train"] for row in history]
    assert list(lines["validation"]) == [row["validation"] for row in history]
    assert [text.get_text() for text in ax.texts] == ["0.5"]
    assert [f.name for f in (tmp_path / "new").iterdir()] == ["history.png"]


def test_history_of_one_epoch(tmp_path):
    plotting.plot_history([{"epoch": 1, "train": 0.5, "validation": 0.4}], tmp_path / "h.png")
    assert min(size_of(tmp_path / "h.png")) > 300


def test_errors(tmp_path, drawn):
    """In the order given; two folders of one name are two."""
    rows = evaluation("a/test", "b/test", "fine", fields=("u", "p"), uniform=0.7)
    plotting.plot_errors(rows, tmp_path / "e.png")
    width, height = size_of(tmp_path / "e.png")
    assert height < width < 2000
    assert [ax.get_title() for ax in drawn[0].axes] == ["u", "p"]
    ax = drawn[0].axes[0]
    assert [t.get_text() for t in ax.get_xticklabels()] == [
        "test\n100 nodes", "test\n200 nodes", "fine\n300 nodes",
    ]  # fmt: skip
    assert list(ax.lines[0].get_ydata()) == [0.1, 1.1, 2.1]
    assert list(ax.lines[1].get_ydata()) == [0.7, 0.7, 0.7]
    assert ax.get_ylim()[0] == 0


def test_errors_without_the_ablation(tmp_path, drawn):
    plotting.plot_errors(evaluation("a"), tmp_path / "e.png")
    assert len(drawn[0].axes[0].lines) == 1
    assert drawn[0].axes[0].get_legend() is None


def test_fields(tmp_path, drawn):
    meshes = []
    for n in (4, 9):
        mesh = square(n, 2.0)
        x, y, _ = mesh.points.T
        mesh.point_data = {"u": np.c_[x, y], "v": np.c_[x, y + 0.1 * x]}
        meshes.append(mesh)
    plotting.plot_fields(meshes, "u", "v", tmp_path / "f.png", component=1)
    width, height = size_of(tmp_path / "f.png")
    assert 500 < height < width < 2000
    panels = [ax for ax in drawn[0].axes if ax.get_title()]
    assert [ax.get_title() for ax in panels[:3]] == [
        "u, 25 nodes",
        "prediction",
        "prediction − truth",
    ]
    truth, prediction, error = (panels[k].collections[0] for k in range(3))
    assert truth.get_clim() == prediction.get_clim() == (0.0, 1.1)
    assert np.allclose(error.get_clim(), (-0.1, 0.1), rtol=1e-12)
    assert np.allclose(error.get_array(), 0.1 * meshes[0].points[:, 0], atol=1e-15)


@pytest.mark.parametrize("name", ["quad", "quad9", "triangle6", "mixed_plane"])
def test_values_of_cells(tmp_path, drawn, name):
    """Each triangle of a cell has the value of its cell, also where blocks alternate."""
    mesh = read_mesh(MESHES / f"{name}.vtu")
    plotting.plot_fields([mesh], "number", "number", tmp_path / "c.png")
    (ax, *_) = (ax for ax in drawn[0].axes if ax.get_title())
    faces = ax.collections[0].get_array()
    cells = np.concatenate([
        np.repeat(mesh.cell_data["number"][k], {"triangle": 1, "triangle6": 1}.get(b.type, 2))
        for k, b in enumerate(mesh.cells)
        if b.type != "line"
    ])  # fmt: skip
    assert sorted(faces) == sorted(cells)


def test_as_many_cells_as_nodes(tmp_path, drawn):
    """Where the field lives decides, not its length."""
    mesh = square(1)
    mesh.cells[0].data = np.array([[0, 2, 3], [0, 3, 1], [0, 2, 3], [0, 3, 1]])
    mesh.cell_data = {"c": [np.array([1.0, 2.0, 1.0, 2.0])]}
    assert len(mesh.points) == len(mesh.cells[0].data)
    plotting.plot_fields([mesh], "c", "c", tmp_path / "c.png")
    assert list(drawn[0].axes[0].collections[0].get_array()) == [1.0, 2.0, 1.0, 2.0]


def test_nan_at_an_orphan(tmp_path, drawn):
    mesh = square(3)
    mesh.points = np.vstack([mesh.points, [[0.5, 0.5, 0.0]]])
    mesh.point_data = {"u": np.r_[np.ones(16), np.nan], "v": np.r_[np.full(16, 2.0), 3.0]}
    plotting.plot_fields([mesh], "u", "v", tmp_path / "o.png")
    assert np.isfinite(drawn[0].axes[0].collections[0].get_clim()).all()


def test_solids_are_refused(tmp_path):
    with pytest.raises(ValueError, match="triangles or quads, got tetra"):
        plotting.plot_fields([read_mesh(MESHES / "tetra.vtu")], "u", "u", tmp_path / "t.png")
    assert not list(tmp_path.iterdir())


def test_no_window_and_no_global_state(tmp_path):
    before = "matplotlib.pyplot" in sys.modules
    plotting.plot_errors(evaluation("a"), tmp_path / "e.png")
    assert ("matplotlib.pyplot" in sys.modules) == before


def test_without_matplotlib(tmp_path, monkeypatch):
    for name in [m for m in sys.modules if m.partition(".")[0] == "matplotlib"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r"pip install 'opformer\[plot\]'"):
        plotting.plot_errors(evaluation("a"), tmp_path / "e.png")
    monkeypatch.setattr(plotting, "find_spec", lambda name: None)
    assert not plotting.available()
