"""Elastic bodies, clamped at one end and pulled at the other: a folder of VTU files.

In the plane (plane strain) the bodies are the plates with random holes of plates.py, in space bent
blocks, that is boxes of random size under a random smooth map. The displacement u solves

    div S = 0,   S = 2 G E(u) + lambda tr E(u) I,   E(u) = (grad u + grad u^T) / 2,
    u = 0 on one end,   S n = t on the opposite one,   S n = 0 elsewhere,

with Young's modulus 1, Poisson's ratio 0.3 and a unit vector t in a random direction. Two inputs
say so, both zero off the boundary: ``clamped`` is 1 on the clamped end, ``traction`` is t on the
loaded one. Outputs are the vector ``displacement`` and the tensor ``stress``, row by row. Elements
are quadratic [1]_; the displacement is stored at the vertices, the stress averaged around them.

All bodies lie alike, clamped on the left. In another pose the solution is the same, turned.

    python examples/elasticity.py OUT --dim 3 --cases 10 --nodes 300 600 --seed 0

References
----------
.. [1] T. Gustafsson, G. D. McBain, scikit-fem: a Python package for finite element assembly,
   Journal of Open Source Software 5 (2020) 2369.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import meshio
import numpy as np
import skfem
from scipy.sparse.linalg import splu
from skfem.helpers import dot, sym_grad
from skfem.models.elasticity import lame_parameters, linear_elasticity, linear_stress
from tqdm import tqdm

import plates

__all__ = ["Body", "block", "body", "plate", "solve", "write"]

YOUNG, POISSON = 1.0, 0.3
ELEMENTS = {2: skfem.ElementTriP2(), 3: skfem.ElementTetP2()}
HATS = {2: skfem.ElementTriP1(), 3: skfem.ElementTetP1()}


@dataclass(frozen=True)
class Body:
    """A mesh, the numbers of its clamped and of its loaded facets, and the traction on these."""

    mesh: skfem.Mesh
    clamped: np.ndarray
    loaded: np.ndarray
    traction: np.ndarray


def body(seed: int, dim: int, nodes: tuple[int, int]) -> Body:
    """Return the random body of this seed, of ``nodes[0]`` to ``nodes[1]`` nodes by lot."""
    rng = np.random.default_rng((seed, dim))
    traction = rng.normal(size=dim)
    count = int(rng.integers(*nodes, endpoint=True))
    mesh, ends = plate(seed, count) if dim == 2 else block(rng, count)
    return Body(mesh, *ends, traction / np.linalg.norm(traction))


def plate(seed: int, nodes: int) -> tuple[skfem.Mesh, list[np.ndarray]]:
    """Mesh a plate with holes; its facets on the left and on the right edge."""
    problem = plates.case(seed)
    size = partial(problem.size, grading=0.5)
    points, triangles = plates.plate_mesh(problem.plate, size, nodes=nodes, seed=seed)
    mesh = skfem.MeshTri(*(np.ascontiguousarray(x.T) for x in (points, triangles)))
    return mesh, _ends(mesh, problem.plate.width)


def block(rng: np.random.Generator, nodes: int) -> tuple[skfem.Mesh, list[np.ndarray]]:
    """Mesh a bent block with at most so many nodes; its facets on the two ends."""
    extent = rng.uniform((1.0, 0.5, 0.5), (1.4, 0.9, 0.9))
    h = np.cbrt(extent.prod() / nodes)
    while np.prod(extent // h + 1) > nodes:
        h *= 1.01
    mesh = skfem.MeshTet.init_tensor(*(np.linspace(0, a, int(a // h) + 1) for a in extent))
    ends = _ends(mesh, extent[0])
    waves, phases = rng.normal(scale=2.0, size=(4, 3)), rng.uniform(0, 2 * np.pi, (4, 1))
    bend = rng.normal(scale=0.04, size=(3, 4)) @ np.sin(waves @ mesh.p + phases)
    return skfem.MeshTet(mesh.p + bend, mesh.t), ends


def solve(given: Body, poisson: float = POISSON) -> tuple[np.ndarray, np.ndarray]:
    """Return displacement and stress at the vertices: (n, d) and (n, d * d)."""
    mesh, element = given.mesh, ELEMENTS[given.mesh.dim()]
    # Of that order it is exact, as the cells are straight.
    basis = skfem.Basis(mesh, skfem.ElementVector(element), intorder=2)
    moduli = lame_parameters(YOUNG, poisson)
    end = skfem.FacetBasis(mesh, basis.elem, facets=given.loaded)
    load = _load.assemble(end, t=given.traction[:, None, None] * np.ones_like(end.dx))
    stiffness = linear_elasticity(*moduli).assemble(basis)
    matrix, rhs, u, free = skfem.condense(stiffness, load, D=basis.get_dofs(given.clamped))
    factors = splu(matrix.tocsc(), permc_spec="MMD_AT_PLUS_A", options={"SymmetricMode": True})
    u[free] = factors.solve(rhs)
    stress = linear_stress(*moduli)(sym_grad(basis.interpolate(u)))
    return u[basis.nodal_dofs].T, _at_vertices(mesh, stress)


def write(
    folder: str | Path, seeds: Sequence[int], *, dim: int = 2, nodes: tuple[int, int] = (200, 400)
) -> list[Path]:
    """Write ``body_<seed>.vtu`` for each seed."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    paths = []
    for seed in tqdm(seeds, desc=str(folder), unit="body"):
        given = body(seed, dim, nodes)
        mesh, traction = given.mesh, given.traction
        clamped, loaded = (_nodes(mesh, facets) for facets in (given.clamped, given.loaded))
        displacement, stress = solve(given)
        fields = {
            "clamped": clamped.astype(float),
            "traction": loaded[:, None] * traction,
            "displacement": displacement,
            "stress": stress,
        }
        points = np.pad(mesh.p.T, ((0, 0), (0, 3 - dim)))
        cells = [("triangle" if dim == 2 else "tetra", mesh.t.T)]
        paths.append(Path(folder) / f"body_{seed:04d}.vtu")
        meshio.Mesh(points, cells, point_data=fields).write(paths[-1])
    return paths


def _nodes(mesh: skfem.Mesh, facets: np.ndarray) -> np.ndarray:
    """Mask of the vertices that lie on these facets."""
    return np.isin(np.arange(mesh.nvertices), mesh.facets[:, facets])


def _ends(mesh: skfem.Mesh, length: float) -> list[np.ndarray]:
    return [
        mesh.facets_satisfying(lambda x, at=at: np.abs(x[0] - at) < 1e-9, boundaries_only=True)
        for at in (0.0, length)
    ]


def _at_vertices(mesh: skfem.Mesh, f: np.ndarray) -> np.ndarray:
    """Means under the hat functions of the vertices: (d, d, cells, q) -> (n, d * d)."""
    basis = skfem.Basis(mesh, HATS[mesh.dim()], intorder=2)
    size = _hat.assemble(basis, f=np.ones_like(basis.dx))
    return np.stack([_hat.assemble(basis, f=g) / size for row in f for g in row], -1)


@skfem.LinearForm
def _load(v: Any, w: Any) -> Any:
    return dot(w.t, v)


@skfem.LinearForm
def _hat(v: Any, w: Any) -> Any:
    return w.f * v


def main() -> None:
    """Read the command line and write the files."""
    parser = argparse.ArgumentParser(description="Write random elastic bodies as VTU files.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--dim", type=int, default=2, choices=(2, 3))
    parser.add_argument("--cases", type=int, default=10)
    parser.add_argument("--nodes", type=int, nargs=2, default=(200, 400), metavar=("LOW", "HIGH"))
    parser.add_argument("--seed", type=int, default=0, help="of the first body")
    a = parser.parse_args()
    write(a.folder, range(a.seed, a.seed + a.cases), dim=a.dim, nodes=tuple(a.nodes))


if __name__ == "__main__":
    main()
