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

from opformer import Domain, read_mesh
from opformer.mesh import inspect_mesh


def box(cells: int) -> meshio.Mesh:
    """A box of tetrahedra, six to a cube, with a field on its nodes."""
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


def main() -> None:
    """Print seconds, and the ratio to meshio pair by pair."""
    mesh = box(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "box.vtu")
        mesh.write(path)
        print(f"{len(mesh.cells[0])} tetrahedra, {len(mesh.points)} nodes, compressed VTU\n")
        print(f"{'':34}{'seconds':>8}  {'/ meshio':>8}")
        for name, run in (
            ("read_mesh", lambda: read_mesh(path)),
            ("read_mesh and weights of the nodes", lambda: Domain.from_mesh(read_mesh(path))),
            ("the whole report of inspect", lambda: str(inspect_mesh(path))),
        ):
            time, ratio = paired(run, lambda: meshio.read(path), repeats=3)
            print(f"{name:34}{time:8.2f}  {ratio:8.2f}")


if __name__ == "__main__":
    main()
