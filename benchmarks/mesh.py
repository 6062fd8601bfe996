"""What safe reading costs: read_mesh, weights and report against meshio's own reading.

python benchmarks/mesh.py [CELLS]    (a million by default)
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import meshio
import numpy as np
from _measure import paired
from scipy.spatial import Delaunay

from opformer import Domain, read_mesh
from opformer.mesh import inspect_mesh


def box(cells: int) -> meshio.Mesh:
    """A box of tetrahedra, six to a cube, with a field on its nodes: as plain as a file can be."""
    n = round((cells / 6) ** (1 / 3))
    x, y, z = np.meshgrid(*3 * [np.linspace(0, 1, n + 1)], indexing="ij")
    points = np.column_stack([x.ravel(), y.ravel(), z.ravel()])
    k = np.arange((n + 1) ** 3).reshape(3 * [n + 1])
    corner = k[:-1, :-1, :-1].ravel()
    step = np.array([(n + 1) ** 2, n + 1, 1])
    tetra = []
    for first, second, _ in ((0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)):
        a = corner + step[first]
        b = a + step[second]
        tetra.append(np.column_stack([corner, a, b, corner + step.sum()]))
    return meshio.Mesh(points, [("tetra", np.concatenate(tetra))], point_data={"u": points[:, 0]})


def solution(cells: int) -> meshio.Mesh:
    """What a solver writes: nodes in no order, and seven fields of digits that do not compress."""
    rng = np.random.default_rng(0)
    points = rng.random((round(cells / 6.73), 3))
    tetra = Delaunay(points).simplices.astype(np.int64)
    at_points = {name: rng.normal(size=len(points)) for name in ("p", "k", "omega", "T")}
    at_points["U"] = rng.normal(size=(len(points), 3))
    at_cells = {name: [rng.normal(size=len(tetra))] for name in ("nut", "q")}
    return meshio.Mesh(points, [("tetra", tetra)], at_points, at_cells)


def report(path: Path) -> None:
    """Print seconds, and the ratio to meshio pair by pair."""
    rows = {
        "read": lambda: read_mesh(path),
        "read, weights of the nodes": lambda: Domain.from_mesh(read_mesh(path)),
        "read, weights, report of inspect": lambda: str(inspect_mesh(path)),
    }
    for name, run in rows.items():
        time, ratio = paired(run, lambda: meshio.read(path), repeats=5)
        print(f"  {name:34}{time:8.2f}  {ratio:8.2f}", flush=True)


def main() -> None:
    """Write the files, and measure each."""
    cells = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    print(f"{'':36}{'seconds':>8}  {'/ meshio':>8}")
    for title, mesh, binary in (
        ("a plain box, compressed", box(cells), True),
        ("a solution, compressed", solved := solution(cells), True),
        ("a solution, as text", solved, False),
    ):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "mesh.vtu")
            meshio.vtu.write(path, mesh, binary=binary)
            size = path.stat().st_size / 2**20
            shape = f"{len(mesh.cells[0])} tetrahedra, {len(mesh.points)} nodes"
            print(f"{title}: {shape}, {size:.0f} MiB")
            report(path)


if __name__ == "__main__":
    main()
