"""Pictures; the only module that knows matplotlib (extra ``plot``)."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from opformer._files import replacing
from opformer.errors import require
from opformer.evaluation import Evaluation
from opformer.mesh import field_location, read_field, top_cells

__all__ = ["available", "plot_errors", "plot_fields", "plot_history"]

BLUE, ORANGE = "#2166ac", "#d6604d"
CORNERS = {"triangle": 3, "triangle6": 3, "quad": 4, "quad8": 4, "quad9": 4}


def available() -> bool:
    """Whether matplotlib is installed: long work that ends in a picture must not fail for one."""
    return find_spec("matplotlib") is not None


def plot_history(history: Sequence[dict[str, float]], path: str | Path) -> None:
    """Training and validation error against the epoch, on a logarithmic axis."""
    figure, axes = _figure(1, 1, (6, 4))
    ax, ticker = axes[0, 0], require("matplotlib.ticker", "plot")
    epochs = [row["epoch"] for row in history]
    for name, label, colour in (
        ("train", "training", ORANGE),
        ("validation", "validation", BLUE),
    ):
        ax.plot(epochs, [row[name] for row in history], color=colour, label=label)
    best = min(history, key=lambda row: row["validation"])
    point = best["epoch"], best["validation"]
    ax.plot(*point, "o", color=BLUE)
    ax.annotate(
        f"{point[1]:.3g}", point, (0, 9), textcoords="offset points", ha="center", color=BLUE
    )
    ax.set(xlabel="epoch", ylabel="relative L²(μ) error", yscale="log")
    ax.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
    ax.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 3, 5), numticks=20))
    ax.yaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))
    ax.yaxis.set_minor_formatter(ticker.NullFormatter())
    ax.legend(frameon=False)
    _save(figure, path)


def plot_errors(evaluation: Evaluation, path: str | Path) -> None:
    """Error of each field on each data set, with the measure and, where evaluated, without."""
    rows = evaluation.summary()
    names = list(rows[0]["fields"])
    labels = [f"{Path(row['path']).name}\n{row['nodes_mean']:.0f} nodes" for row in rows]
    figure, axes = _figure(1, len(names), (max(4, 1.3 * len(rows)) * len(names), 3.8))
    for ax, name in zip(axes[0], names, strict=True):
        errors = [row["fields"][name] for row in rows]
        ax.plot([e["relative_l2"] for e in errors], "o-", color=BLUE, label="with measure")
        plain = [e["relative_l2_uniform"] for e in errors]
        if None not in plain:
            ax.plot(plain, "s--", color=ORANGE, label="all weights equal")
            ax.legend(frameon=False)
        ax.set(title=name)
        shown = [e for e in (*(e["relative_l2"] for e in errors), *plain) if e is not None]
        ax.set_ylim(0, 1.1 * max(shown) or 1)
        ax.margins(x=0.15)
        ax.set_xticks(range(len(labels)), labels)
    axes[0, 0].set_ylabel("relative L²(μ) error")
    _save(figure, path)


def plot_fields(
    meshes: Sequence[Any], truth: str, prediction: str, path: str | Path, *, component: int = 0
) -> None:
    """Truth, prediction and error of one field on plane meshes, one row for each mesh.

    Parameters
    ----------
    meshes : sequence of meshio.Mesh
    truth, prediction : str
        Names of the two fields, on nodes or cells.
    path : file of the picture
    component : int
        Of a vector field.

    Raises
    ------
    ValueError
        If a mesh has other cells than triangles and quads.
    """
    width, height = np.ptp(meshes[0].points[:, :2], axis=0)
    tall = float(np.clip(3.2 * height / width, 0.8, 6)) + 0.4
    figure, axes = _figure(len(meshes), 3, (11, tall * len(meshes)))
    for row, mesh in zip(axes, meshes, strict=True):
        at = field_location(mesh, prediction)
        y, z = (read_field(mesh, name, at)[:, component] for name in (truth, prediction))
        low, high = np.nanmin([y, z]), np.nanmax([y, z])
        largest = np.nanmax(np.abs(z - y)) or 1.0
        shared: dict[str, Any] = {"cmap": "viridis", "vmin": low, "vmax": high}
        title = f"{truth}, {len(mesh.points)} nodes"
        _draw(row[0], mesh, y, at, title, edges=True, **shared)
        image = _draw(row[1], mesh, z, at, "prediction", **shared)
        error = _draw(
            row[2],
            mesh,
            z - y,
            at,
            "prediction − truth",
            cmap="RdBu_r",
            vmin=-largest,
            vmax=largest,
        )
        figure.colorbar(image, ax=row[:2], shrink=0.85, pad=0.02)
        figure.colorbar(error, ax=row[2], shrink=0.85, pad=0.02)
    _save(figure, path)


def _draw(
    ax: Any, mesh: Any, values: np.ndarray, at: str, title: str, edges: bool = False, **colours: Any
) -> Any:
    """One field on one plane mesh: smooth for nodal values, flat for values of cells."""
    triangles, cell = _triangles(mesh)
    grid = require("matplotlib.tri", "plot").Triangulation(*mesh.points.T[:2], triangles)
    if at == "points":
        image = ax.tripcolor(grid, np.nan_to_num(values), shading="gouraud", **colours)
    else:
        image = ax.tripcolor(grid, facecolors=values[cell], **colours)
    if edges:
        ax.triplot(grid, color="white", linewidth=0.3, alpha=0.35)
    ax.set(title=title, aspect="equal")
    ax.set_axis_off()
    return image


def _triangles(mesh: Any) -> tuple[np.ndarray, np.ndarray]:
    """The plane cells cut into triangles by their corners, and which cell each belongs to."""
    parts, cells, start = [], [], 0
    for kind, block in top_cells(mesh):
        if kind not in CORNERS:
            raise ValueError(f"cells to draw must be triangles or quads, got {kind}")
        for k in range(1, CORNERS[kind] - 1):
            parts.append(np.asarray(block)[:, [0, k, k + 1]])
            cells.append(start + np.arange(len(block)))
        start += len(block)
    return np.concatenate(parts), np.concatenate(cells)


def _figure(rows: int, columns: int, size: tuple[float, float]) -> tuple[Any, Any]:
    """A figure of its own canvas: no window, no global state."""
    figure = require("matplotlib.figure", "plot").Figure(figsize=size, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for ax in axes.flat:
        ax.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _save(figure: Any, path: str | Path) -> None:
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=130)
