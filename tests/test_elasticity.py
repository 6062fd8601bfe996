"""The elastic bodies: a bar in closed form, a body in another pose, and what is written."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from opformer import MeshDataset
from opformer.motions import random_rotation

skfem = pytest.importorskip("skfem", reason="needs the extra 'data'")
EXAMPLES = Path(__file__).parents[1] / "examples"
sys.path.insert(0, str(EXAMPLES))

import elasticity  # noqa: E402

NODES = {2: (100, 150), 3: (60, 120)}


@pytest.mark.parametrize("kind", [skfem.MeshTri, skfem.MeshTet])
def test_bar_without_lateral_contraction(kind):
    """u = t x e_1 and S = t e_1 e_1^T solve it, and quadratic elements hold them."""
    dim = kind().dim()
    mesh = kind.init_tensor(*(np.linspace(0, a, 4) for a in (2.0, 1.0, 0.7)[:dim]))
    axis = np.eye(dim)[0]
    bar = elasticity.Body(mesh, *elasticity._ends(mesh, 2.0), 0.3 * axis)
    displacement, stress = elasticity.solve(bar, poisson=0.0)
    assert displacement == pytest.approx(0.3 * np.outer(mesh.p[0], axis), abs=1e-12)
    expected = np.tile(0.3 * np.outer(axis, axis).ravel(), (mesh.nvertices, 1))
    assert stress == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("dim", [2, 3])
def test_solution_turns_with_the_body(dim):
    body = elasticity.body(1, dim, NODES[dim])
    q = random_rotation(dim, reflections=True).numpy()
    turned = replace(body, mesh=type(body.mesh)(q @ body.mesh.p, body.mesh.t))
    turned = replace(turned, traction=q @ body.traction)
    u, stress = elasticity.solve(body)
    v, turned_stress = elasticity.solve(turned)
    assert v == pytest.approx(u @ q.T, abs=1e-9 * np.abs(u).max())
    expected = q @ stress.reshape(-1, dim, dim) @ q.T
    size = np.abs(stress).max()
    assert turned_stress == pytest.approx(expected.reshape(-1, dim * dim), abs=1e-9 * size)


@pytest.mark.parametrize("dim", [2, 3])
def test_folder(dim, tmp_path):
    elasticity.write(tmp_path, range(3), dim=dim, nodes=NODES[dim])
    data = MeshDataset(
        tmp_path, inputs=["clamped", "traction"], outputs=["displacement", "stress"], progress=False
    )
    assert data.dim == dim
    assert data.layout.kinds == (["scalar", "vector", "scalar"], ["vector", "tensor"])
    assert data.layout.part_inputs == ["clamped", "traction"]
    for sample in (data[i] for i in range(3)):
        low, high = NODES[dim]
        assert low / 2 <= sample.size <= high
        traction = sample.fields[:, 1 : 1 + dim]
        loaded = traction.norm(dim=-1) > 0
        assert traction[loaded].norm(dim=-1).numpy() == pytest.approx(1.0)
        clamped = sample.fields[sample.on_parts, 0] == 1
        boundary = sample.source.points[sample.on_parts]
        inner = sample.source.points[: sample.size]
        for x in boundary[clamped]:
            node = (inner - x).norm(dim=-1).argmin()
            assert not sample.truth[node, :dim].any()
        assert clamped.any()
        assert loaded.any()
        assert not (clamped & loaded[sample.on_parts]).any()
