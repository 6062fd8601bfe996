"""Heat conduction on plates with random holes: a folder of VTU files to train on and to test with.

On a rectangle with 1-3 elliptic holes, of random conductivity k and heat source f, the temperature
T solves

    -div(k grad T) = f,   T = 0 on the left edge,   k dT/dn = 0 on the other edges and the holes.

log k is a random sum of plane waves, f a constant plus a Gaussian bump. Both are closed formulas,
so the same seed with another number of nodes is the same problem on a finer or coarser mesh.

The meshes are made here. Boundary nodes are spread by arc length and stay; inner nodes start as
quasi-random points of the wanted density and are moved by springs between Delaunay neighbours,
which push those apart that are too close [1]_. A mesh of edge length h has int 4/(sqrt(3) h^2) dx
triangles and, by Euler's formula, half as many nodes plus half those of the boundary: this scales
h to the wanted number of nodes. T is computed with quadratic elements [2]_ and stored at the
vertices. A hole becomes the polygon of its nodes, so the plates of two meshes, and with them the
exact temperatures, differ by O(h^2).

    python examples/plates.py OUT --cases 10 --nodes 200 650 --grading 1.0 --seed 0 --workers 2

References
----------
.. [1] P.-O. Persson, G. Strang, A simple mesh generator in MATLAB, SIAM Review 46 (2004) 329-345.
.. [2] T. Gustafsson, G. D. McBain, scikit-fem: a Python package for finite element assembly,
   Journal of Open Source Software 5 (2020) 2369.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest.mock import patch

import meshio
import numpy as np
import skfem
from scipy.optimize import brentq
from scipy.sparse.linalg import splu
from scipy.spatial import Delaunay
from scipy.stats import qmc
from skfem.helpers import dot, grad
from tqdm import tqdm

__all__ = ["Case", "Plate", "case", "plate_mesh", "solve", "write"]

Function = Callable[[np.ndarray], np.ndarray]  # (..., 2) -> (...)
Curve = Callable[[np.ndarray], np.ndarray]  # (n,) -> (n, 2)

CLEARANCE = 0.08  # between two holes, and between a hole and an edge
HOLE_NODES = 12  # at least, so that a coarse polygon still has nearly the area of its ellipse
REACH = 0.1  # distance from an attractor at which the edge length has doubled, at grading 1


@dataclass(frozen=True)
class Plate:
    """The rectangle (0, width) x (0, height) without elliptic holes {c + M u : |u| < 1}.

    Parameters
    ----------
    width, height : float
    centers : (k, 2) array
        The centres c of the holes.
    frames : (k, 2, 2) array
        Their matrices M; the columns are the semi-axes.
    """

    width: float
    height: float
    centers: np.ndarray
    frames: np.ndarray

    @property
    def corners(self) -> np.ndarray:
        """The corners, counter-clockwise and closed: (5, 2)."""
        return np.array([(0, 0), (1, 0), (1, 1), (0, 1), (0, 0)]) * (self.width, self.height)

    @property
    def area(self) -> float:
        """The exact area."""
        return self.width * self.height - float(np.pi * np.linalg.det(self.frames).sum())

    def holes(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Signed distance to each hole, to first order, and its unit normal.

        (n, 2) -> (k, n), (k, n, 2)
        """
        inverse = np.linalg.inv(self.frames)
        u = (x - self.centers[:, None]) @ inverse.swapaxes(1, 2)
        slope = u @ inverse  # rho times the gradient of rho = |u|
        rho, steepness = _norm(u), _norm(slope) + 1e-12
        return (rho - 1) * rho / steepness, slope / steepness[..., None]

    def depth(self, x: np.ndarray) -> np.ndarray:
        """Distance to the boundary, negative outside of the plate: (n, 2) -> (n,)."""
        edges = np.minimum(x, (self.width, self.height) - x).min(axis=1)
        return np.minimum(edges, self.holes(x)[0].min(axis=0, initial=np.inf))

    def outlines(self) -> list[Curve]:
        """The four edges, counter-clockwise, and then the holes, as curves over 0 <= t <= 1."""
        edges = [partial(_segment, a, b) for a, b in pairwise(self.corners)]
        holes = zip(self.centers, self.frames, strict=True)
        return edges + [partial(_ellipse, center, frame) for center, frame in holes]


@dataclass(frozen=True)
class Case:
    """One problem: where, with what conductivity and source, and where its meshes are finer."""

    plate: Plate
    conductivity: Function
    source: Function
    attractor: np.ndarray  # the two ends of a segment

    def size(self, x: np.ndarray, grading: float) -> np.ndarray:
        """Relative edge length, growing from the holes and the attractor: (n, 2) -> (n,).

        Grading 0 is uniform; at 1 the areas of the cells spread over about 50:1.
        """
        distance = self.plate.holes(x)[0].min(axis=0, initial=np.inf)
        distance = np.minimum(distance, _distance_to_segment(x, *self.attractor))
        return (1 + np.maximum(distance, 0) / REACH) ** grading


def case(seed: int) -> Case:
    """Return the random problem of this seed."""
    rng = np.random.default_rng(seed)
    plate = _random_plate(rng)
    hot, fine = plate.corners[2] * rng.uniform(0.1, 0.9, (2, 2))
    edge = rng.integers(4)
    return Case(
        plate,
        conductivity=_random_conductivity(rng),
        source=partial(_bump, center=hot, height=rng.uniform(3, 6), width=rng.uniform(0.12, 0.2)),
        attractor=plate.corners[edge : edge + 2] if rng.random() < 0.5 else np.array([fine, fine]),
    )


def plate_mesh(
    plate: Plate, size: Function, *, nodes: int, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Triangulate a plate with ``nodes`` nodes and edge lengths in the proportions of ``size``.

    Returns
    -------
    points : (n, 2) array
        First the nodes of the outer edges, then those of each hole, then the inner ones.
    triangles : (m, 3) array
        Counter-clockwise.

    Raises
    ------
    ValueError
        If so few nodes cannot show the holes or follow ``size``.
    """
    h = _calibrated(plate, size, nodes)
    curves = [_spread(curve, h) for curve in plate.outlines()]
    fixed = sum(map(len, curves))
    hole = np.zeros(nodes, int)  # the number of the hole that a node lies on, or 0
    hole[:fixed] = np.repeat([0, 0, 0, *range(len(curves) - 3)], [len(curve) for curve in curves])
    x = np.concatenate([*curves, _scatter(plate, h, nodes - fixed, seed)])
    for _ in range(15):
        triangles = _triangles(x, hole)
        for _ in range(2):
            x[fixed:] = _kept_inside((x + 0.15 * _forces(x, triangles, h))[fixed:], plate, h)
    triangles = _triangles(x, hole)
    if len(triangles) != 2 * (nodes - 1 + len(plate.centers)) - fixed:  # Euler's formula
        raise ValueError(f"nodes={nodes} are too few for this plate and size: a boundary is broken")
    return x, triangles


def solve(points: np.ndarray, triangles: np.ndarray, problem: Case) -> np.ndarray:
    """Return the temperature at the vertices, from quadratic elements: (n, 2), (m, 3) -> (n,)."""
    mesh = skfem.MeshTri(np.ascontiguousarray(points.T), np.ascontiguousarray(triangles.T))
    basis = skfem.Basis(mesh, skfem.ElementTriP2(), intorder=4)
    x = np.moveaxis(np.asarray(basis.global_coordinates()), 0, -1)
    stiffness = _stiffness.assemble(basis, k=problem.conductivity(x))
    load = _load.assemble(basis, f=problem.source(x))
    left = basis.get_dofs(lambda x: x[0] < 1e-9)
    matrix, rhs, temperature, free = skfem.condense(stiffness, load, D=left)
    factors = splu(matrix.tocsc(), permc_spec="MMD_AT_PLUS_A", options={"SymmetricMode": True})
    temperature[free] = factors.solve(rhs)
    return temperature[basis.nodal_dofs[0]]


def write(
    folder: str | Path,
    seeds: Sequence[int],
    *,
    nodes: tuple[int, int] = (200, 650),
    grading: float = 1.0,
    workers: int = 0,
) -> list[Path]:
    """Write ``plate_<seed>.vtu`` for each seed, with ``nodes[0]`` to ``nodes[1]`` nodes by lot.

    Point fields are ``conductivity``, ``source`` and ``temperature``. So many ``workers`` share the
    cases; the files do not depend on it.
    """
    Path(folder).mkdir(parents=True, exist_ok=True)
    one = partial(_write_case, folder=Path(folder), nodes=nodes, grading=grading)
    progress = partial(tqdm, total=len(seeds), desc=str(folder), unit="plate")
    if not workers:
        return list(progress(map(one, seeds)))
    single = dict.fromkeys(["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"], "1")
    with patch.dict(os.environ, single), get_context("spawn").Pool(workers) as pool:
        return list(progress(pool.imap(one, seeds)))


def _write_case(seed: int, folder: Path, nodes: tuple[int, int], grading: float) -> Path:
    problem = case(seed)
    count = int(np.random.default_rng((seed, *nodes)).integers(*nodes, endpoint=True))
    points, triangles = plate_mesh(
        problem.plate, partial(problem.size, grading=grading), nodes=count, seed=seed
    )
    fields = {
        "conductivity": problem.conductivity(points),
        "source": problem.source(points),
        "temperature": solve(points, triangles, problem),
    }
    path = folder / f"plate_{seed:04d}.vtu"
    points = np.column_stack([points, np.zeros(len(points))])
    meshio.Mesh(points, [("triangle", triangles)], point_data=fields).write(path)
    return path


@skfem.BilinearForm
def _stiffness(u: Any, v: Any, w: Any) -> Any:
    return w.k * dot(grad(u), grad(v))


@skfem.LinearForm
def _load(v: Any, w: Any) -> Any:
    return w.f * v


# ---- random problems


def _random_plate(rng: np.random.Generator) -> Plate:
    """Throw holes until so many as drawn have found room, judged by their bounding circles."""
    extent = np.array([1.0, rng.uniform(0.8, 1.25)])
    centers, frames = np.empty((0, 2)), np.empty((0, 2, 2))
    count = rng.integers(1, 4)
    while len(centers) < count:
        long, angle = rng.uniform(0.08, 0.17), rng.uniform(0, np.pi)
        axes = np.array([long, long * rng.uniform(0.6, 1)])
        center = rng.uniform(CLEARANCE + long, extent - CLEARANCE - long)
        reach = np.linalg.norm(frames[:, :, 0], axis=1) + long + CLEARANCE
        if (np.linalg.norm(centers - center, axis=1) > reach).all():
            turn = np.array([(np.cos(angle), -np.sin(angle)), (np.sin(angle), np.cos(angle))])
            centers = np.vstack([centers, center])
            frames = np.concatenate([frames, (turn * axes)[None]])
    return Plate(1.0, float(extent[1]), centers, frames)


def _random_conductivity(rng: np.random.Generator) -> Function:
    """Plane waves no shorter than about the plate; their sum spans log(3) to log(6) on it."""
    waves = rng.normal(scale=0.4, size=(6, 2))
    phases, amplitudes = rng.uniform(0, 2 * np.pi, 6), rng.normal(size=6)
    grid = np.stack(np.meshgrid(*2 * [np.linspace(0, 1.1, 45)]), axis=-1)
    values = _waves(grid, waves, phases, amplitudes)
    low, high = values.min(), values.max()
    scale = np.log(rng.uniform(3, 6)) / (high - low)
    return lambda x: np.exp(scale * (_waves(x, waves, phases, amplitudes) - (low + high) / 2))


def _waves(
    x: np.ndarray, waves: np.ndarray, phases: np.ndarray, amplitudes: np.ndarray
) -> np.ndarray:
    return np.cos(2 * np.pi * x @ waves.T + phases) @ amplitudes


def _bump(x: np.ndarray, center: np.ndarray, height: float, width: float) -> np.ndarray:
    return 1 + height * np.exp(-((x - center) ** 2).sum(axis=-1) / (2 * width**2))


def _norm(x: np.ndarray) -> np.ndarray:
    return np.hypot(x[..., 0], x[..., 1])


def _distance_to_segment(x: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """A segment of length zero is a point."""
    along = b - a
    t = np.clip((x - a) @ along / max(along @ along, 1e-300), 0, 1)
    return _norm(x - a - t[:, None] * along)


# ---- the mesh generator


def _segment(a: np.ndarray, b: np.ndarray, t: np.ndarray) -> np.ndarray:
    return a + t[:, None] * (b - a)


def _ellipse(center: np.ndarray, frame: np.ndarray, t: np.ndarray) -> np.ndarray:
    return center + np.column_stack([np.cos(2 * np.pi * t), np.sin(2 * np.pi * t)]) @ frame.T


def _calibrated(plate: Plate, size: Function, nodes: int) -> Function:
    """Scale ``size`` to edge lengths that give these nodes, but nowhere too long for a hole."""
    side = (np.arange(150) + 0.5) / 150
    grid = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2) * plate.corners[2]
    grid = grid[plate.depth(grid) > 0]
    rim, steps = map(np.concatenate, zip(*map(_steps, plate.outlines()), strict=True))
    x = np.concatenate([grid, rim])
    relative, longest = size(x), _longest(plate, x)

    def missing(log_scale: float) -> float:
        """Nodes still to add, by Euler's formula: (triangles + boundary nodes) / 2 + 1 - holes."""
        h = np.minimum(np.exp(log_scale) * relative, longest)
        triangles = 4 / np.sqrt(3) * plate.area * np.mean(h[: len(grid)] ** -2.0)
        boundary = (steps / h[len(grid) :]).sum()
        return nodes - ((triangles + boundary) / 2 + 1 - len(plate.centers))

    if missing(3.0) < 0:
        raise ValueError(f"nodes must be at least {nodes - missing(3.0):.0f} here, got {nodes}")
    scale = np.exp(brentq(missing, -20.0, 3.0))
    return lambda x: np.minimum(scale * size(x), _longest(plate, x))


def _longest(plate: Plate, x: np.ndarray) -> np.ndarray:
    """The edge length at which each hole has about ``HOLE_NODES``, growing away from it."""
    perimeter = 2 * np.pi * np.sqrt(np.linalg.det(plate.frames))[:, None]
    return (perimeter / HOLE_NODES + 0.7 * plate.holes(x)[0]).min(axis=0, initial=np.inf)


def _steps(curve: Curve) -> tuple[np.ndarray, np.ndarray]:
    """Midpoints and lengths of short steps along a curve."""
    x = curve(np.linspace(0, 1, 501))
    return (x[1:] + x[:-1]) / 2, np.linalg.norm(np.diff(x, axis=0), axis=1)


def _spread(curve: Curve, h: Function) -> np.ndarray:
    """Points of a curve at equal counts of edges, with its start and without its end."""
    middle, length = _steps(curve)
    arc = np.append(0, np.cumsum(length / h(middle)))
    count = max(1, round(arc[-1]))
    return curve(np.interp(arc[-1] * np.arange(count) / count, arc, np.linspace(0, 1, len(arc))))


def _scatter(plate: Plate, h: Function, count: int, seed: int) -> np.ndarray:
    """Quasi-random points of density 1/h^2, not too near the boundary."""
    shift = np.random.default_rng(seed).random(3)
    u = (qmc.Halton(3, scramble=False).random(20 * count) + shift) % 1
    x = u[:, :2] * plate.corners[2]
    length = h(x)
    lot = np.where(plate.depth(x) > 0.5 * length, u[:, 2] * length**2, np.inf)
    return x[np.argpartition(lot, count)[:count]]


def _triangles(x: np.ndarray, hole: np.ndarray) -> np.ndarray:
    """Delaunay triangles, without those whose corners all lie on one (convex) hole."""
    triangles = Delaunay(x).simplices
    owner = hole[triangles]
    return triangles[(owner[:, 0] == 0) | (np.ptp(owner, axis=1) > 0)]


def _forces(x: np.ndarray, triangles: np.ndarray, h: Function) -> np.ndarray:
    """Sum of the forces of springs that only push, each edge counted once per triangle."""
    i, j = np.concatenate([triangles[:, :2], triangles[:, 1:], triangles[:, ::2]]).T
    edge, wanted = x[i] - x[j], h(x)
    wanted = wanted[i] + wanted[j]
    length = _norm(edge)
    rest = 1.2 * wanted * np.linalg.norm(length) / np.linalg.norm(wanted)  # a little pressure
    push = np.maximum(rest / length - 1, 0)[:, None] * edge
    return np.column_stack([np.bincount(i, f, len(x)) - np.bincount(j, f, len(x)) for f in push.T])


def _kept_inside(x: np.ndarray, plate: Plate, h: Function) -> np.ndarray:
    """Move points back that came nearer to the boundary than 0.4 edge lengths."""
    margin = 0.4 * h(x)
    x = np.clip(x, margin[:, None], plate.corners[2] - margin[:, None])
    distance, normal = plate.holes(x)
    return x + (np.maximum(margin - distance, 0)[..., None] * normal).sum(axis=0)


def main() -> None:
    """Read the command line and write the files."""
    parser = argparse.ArgumentParser(description="Write random plates as VTU files.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cases", type=int, default=10)
    parser.add_argument("--nodes", type=int, nargs=2, default=(200, 650), metavar=("LOW", "HIGH"))
    parser.add_argument("--grading", type=float, default=1.0, help="0: uniform, 1: strong")
    parser.add_argument("--seed", type=int, default=0, help="of the first case")
    parser.add_argument("--workers", type=int, default=0)
    a = parser.parse_args()
    seeds = range(a.seed, a.seed + a.cases)
    write(a.folder, seeds, nodes=tuple(a.nodes), grading=a.grading, workers=a.workers)


if __name__ == "__main__":
    main()
