"""Small problems for the tests of data, training and evaluation: meshes, folders, models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import meshio
import numpy as np
import torch
from torch import Tensor

from opformer import Domain, OperatorTransformer, Sample, Standardizer, Surrogate
from opformer.layout import Layout


def square(n: int, grade: float = 1.0, shift: float = 0.0, height: float = 0.0) -> meshio.Mesh:
    """The unit square (moved by ``shift``) in 2 n² triangles that crowd towards x = 0."""
    t = np.linspace(0, 1, n + 1)
    x, y = np.meshgrid(t**grade, t, indexing="ij")
    points = np.column_stack([x.ravel() + shift, y.ravel(), np.full(x.size, height)])
    k = np.arange((n + 1) ** 2).reshape(n + 1, n + 1)
    a, b, c, d = (part.ravel() for part in (k[:-1, :-1], k[1:, :-1], k[1:, 1:], k[:-1, 1:]))
    return meshio.Mesh(points, [("triangle", np.vstack([np.c_[a, b, c], np.c_[a, c, d]]))])


def on_edge(mesh: meshio.Mesh) -> np.ndarray:
    """Mask of the nodes on the boundary of the square, wherever it lies."""
    x = mesh.points[:, :2]
    return (np.isclose(x, x.min(axis=0)) | np.isclose(x, x.max(axis=0))).any(axis=1)


def write_square(
    path: Path, k: float, n: int = 4, grade: float = 1.0, **fields: Any
) -> meshio.Mesh:
    """A case file: ``f`` and ``g`` on nodes, ``c`` on cells, ``speed`` constant; returns it."""
    mesh = square(n, grade)
    x, y, _ = mesh.points.T
    f = np.sin(k * x + y)
    mesh.point_data = {"f": f, "g": f**2 + x, "v": np.c_[f, y], "speed": np.full(len(x), k)}
    mesh.cell_data = {"c": [mesh.points[mesh.cells[0].data].mean(axis=1)[:, 0] + k]}
    mesh.point_data |= fields
    path.parent.mkdir(parents=True, exist_ok=True)
    mesh.write(path)
    return mesh


def write_folder(folder: Path, cases: int = 4, n: Sequence[int] = (4, 5, 6)) -> Path:
    """Case files of different sizes and gradings."""
    for i in range(cases):
        write_square(folder / f"case_{i:02d}.vtu", 1 + i / 3, n[i % len(n)], 1 + i % 2)
    return folder


def line(n: int, grade: float = 1.0, *, jitter: float = 0.0, seed: int = 0) -> Domain:
    """n nodes on [0, 1] that crowd towards 0, moved at random by a part of their distance."""
    t = np.linspace(0, 1, n)
    t[1:-1] += jitter / n * (np.random.default_rng(seed).random(n - 2) - 0.5)
    return Domain.from_points(torch.from_numpy(t**grade), rule="interval")


def smoothed(domain: Domain, seed: int, width: float = 0.15) -> Sample:
    """Random waves f and their normalised Gaussian smoothing, by quadrature on a fine grid."""
    generator = torch.Generator().manual_seed(seed)
    waves = torch.arange(1, 5, dtype=torch.float64)
    a, b = torch.randn(2, 4, generator=generator, dtype=torch.float64)

    def f(x: Tensor) -> Tensor:
        return torch.cos(torch.pi * x * waves) @ a + torch.sin(torch.pi * x * waves) @ b

    s = line(801)
    kernel = torch.exp(-((domain.points - s.points.T) / width).square()) * s.weights
    u = kernel @ f(s.points) / kernel.sum(1)
    fields = f(domain.points)[:, None]
    return Sample(domain, fields, torch.zeros(0), outputs=u[:, None], name=f"wave {seed}")


def tiny_model(dim: int, inputs: int, outputs: int, **options: Any) -> OperatorTransformer:
    """One that fits a test."""
    defaults = {"channels": 8, "heads": 2, "layers": 1}
    return OperatorTransformer(dim, inputs, outputs, **(defaults | options))


class Exact(torch.nn.Module):
    """A model without parameters: outputs are a function of the fields; for ``Surrogate``."""

    def __init__(self, rule: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.rule = rule

    def forward(
        self,
        source: Domain,
        fields: Tensor,
        target: Any,
        parameters: Any,
        *,
        target_fields: Any = None,
    ) -> Tensor:
        return self.rule(fields if target_fields is None else target_fields)


def exact_surrogate(rule: Callable[[Tensor], Tensor], dim: int = 1, **outputs: int) -> Surrogate:
    """A surrogate that applies a rule to one input, scaled by nothing."""
    layout = Layout(inputs={"f": 1}, outputs=outputs or {"u": 1}, axes=list(range(dim)))
    return Surrogate(Exact(rule), Standardizer(dim, 1, 0, sum(layout.outputs.values())), layout)
