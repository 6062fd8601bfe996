"""Heat-kernel signatures: stiffness and spectra in closed form, orders, and what leaves them be."""

from __future__ import annotations

from math import log2, pi
from pathlib import Path

import meshio
import numpy as np
import pytest
import torch
from cases import square, write_folder
from scipy.special import sph_harm_y
from tolerances import ROUNDING, difference

from opformer import cli, load
from opformer.errors import MeshError
from opformer.mesh import blocks, derived_field, intrinsic, is_derived, read_field, read_mesh
from opformer.mesh.intrinsic import heat_signature, stiffness
from opformer.quadrature import node_weights

FOLDER = Path(__file__).parents[1] / "meshes"
TIGHT = ROUNDING[torch.float64]
# What an eigensolver leaves: eigenvalues to 1e-14 of the largest of the matrix, about 1e3 Λ.
SPECTRAL = 1e-10
AFFINE = sorted(set(FOLDER.glob("*.vtu")) - {FOLDER / "vertex.vtu"})


def heat(mesh: meshio.Mesh, times: int = 4) -> np.ndarray:
    return heat_signature(mesh.points, blocks(mesh), times)


def line(n: int, grade: float = 1.0) -> meshio.Mesh:
    x = np.linspace(0, 1, n + 1) ** grade
    return meshio.Mesh(x[:, None], [("line", np.c_[np.arange(n), np.arange(n) + 1])])


def quads(n: int) -> meshio.Mesh:
    """The unit square in n² quads."""
    k = np.arange((n + 1) ** 2).reshape(n + 1, n + 1)
    cells = [part.ravel() for part in (k[:-1, :-1], k[1:, :-1], k[1:, 1:], k[:-1, 1:])]
    return meshio.Mesh(square(n).points, [("quad", np.stack(cells, axis=1))])


def moved(mesh: meshio.Mesh, points: np.ndarray) -> meshio.Mesh:
    return meshio.Mesh(points, mesh.cells)


def folded(mesh: meshio.Mesh, angle: float) -> meshio.Mesh:
    """What lies beyond x = 1/2 turned about that line, which is one of edges."""
    x, y, _ = mesh.points.T
    beyond = np.maximum(x - 0.5, 0)
    bent = np.minimum(x, 0.5) + np.cos(angle) * beyond
    return moved(mesh, np.column_stack([bent, y, np.sin(angle) * beyond]))


# --- stiffness ------------------------------------------------------------------------------------


def test_triangles_have_cotangents():
    """K_ij = -(cot α + cot β) / 2, with the angles opposite to the edge, on a crooked surface."""
    mesh = square(4, 1.5)
    points = mesh.points + 0.1 * np.random.default_rng(0).normal(size=mesh.points.shape)
    expected = np.zeros((len(points), len(points)))
    for a, b, c in mesh.cells[0].data:
        for i, j, k in ((a, b, c), (b, c, a), (c, a, b)):
            u, v = points[i] - points[k], points[j] - points[k]
            cotangent = u @ v / np.linalg.norm(np.cross(u, v))
            expected[[i, j], [j, i]] -= cotangent / 2
            expected[[i, j], [i, j]] += cotangent / 2
    assert difference(stiffness(points, blocks(mesh)).toarray(), expected) < TIGHT


def test_lines_have_inverse_lengths():
    mesh = line(6, 2.0)
    matrix = stiffness(mesh.points, blocks(mesh)).toarray()
    assert difference(np.diag(matrix, 1).copy(), -1 / np.diff(mesh.points[:, 0])) < TIGHT


@pytest.mark.parametrize("path", AFFINE, ids=lambda path: path.stem)
def test_linear_functions_are_exact(path):
    """u·K v = ∫ grad u · grad v = a·b |Ω| on every kind of cell, and constants have no energy."""
    mesh = read_mesh(path)
    matrix, total = stiffness(mesh.points, blocks(mesh)), 0.0
    x = mesh.points[node_weights(mesh.points, blocks(mesh)) > 0]
    total = node_weights(mesh.points, blocks(mesh)).sum()
    assert np.abs(matrix @ np.ones(len(mesh.points))).max() < TIGHT * np.abs(matrix).max()
    assert difference(matrix.toarray(), matrix.T.toarray()) < TIGHT
    energy = mesh.points.T @ (matrix @ mesh.points)
    flat = {"sphere": None, "helix": None}.get(path.stem, np.linalg.matrix_rank(x - x[0], tol=1e-9))
    if flat == mesh.points.shape[1]:
        assert difference(energy, total * np.eye(len(energy))) < TIGHT
    else:  # a surface or a curve: the trace is the number of its own dimensions
        k = {"sphere": 2, "helix": 1}.get(path.stem, flat)
        assert np.trace(energy) == pytest.approx(k * total, rel=TIGHT)


def test_cells_without_measure_have_no_stiffness():
    """Of one point, of two, and of three on a line, which rounding sets beside it."""
    mesh, n = square(3), 16
    a, b = np.random.default_rng(0).normal(size=(2, 50, 1, 3))
    thirds = a + b * np.random.default_rng(1).random((50, 3, 1))
    points = np.vstack([mesh.points, thirds.reshape(-1, 3)])
    flat = np.vstack([[[0, 1, 0], [2, 2, 2]], n + np.arange(150).reshape(50, 3)])
    got = stiffness(points, [*blocks(mesh), ("triangle", flat)]).toarray()
    assert difference(got[:n, :n], stiffness(mesh.points, blocks(mesh)).toarray()) < TIGHT
    assert (got[n:] == 0).all()


# --- closed forms ---------------------------------------------------------------------------------


def signature(values: np.ndarray, squares: np.ndarray, times: int) -> np.ndarray:
    """The formula of the module's docstring; |Ω| φ² (n, modes) of ascending eigenvalues."""
    order = np.argsort(values, kind="stable")[:33]
    values, squares = values[order], squares[:, order]
    last = values[-1]
    result = np.zeros((len(squares), times))
    for j, t in enumerate(4 / last * 8 ** (np.arange(times) / max(times - 1, 1))):
        weights = [np.exp(-value * t) - np.exp(-last * t) for value in values]
        result[:, j] = squares @ weights / sum(weights)
    return result


def exact_line(x: np.ndarray, times: int) -> np.ndarray:
    k = np.arange(40)
    return signature((pi * k) ** 2, np.where(k, 2, 1) * np.cos(pi * x * k) ** 2, times)


def exact_square(x: np.ndarray, times: int) -> np.ndarray:
    k, j = (a.ravel() for a in np.meshgrid(np.arange(12), np.arange(12)))
    squares = (
        np.where(k, 2, 1)
        * np.where(j, 2, 1)
        * (np.cos(pi * x[:, [0]] * k) * np.cos(pi * x[:, [1]] * j)) ** 2
    )
    return signature(pi**2 * (k**2 + j**2), squares, times)


@pytest.mark.parametrize("grade", [1.0, 1.5])
def test_on_a_line(grade):
    errors = []
    for n in (100, 200, 400, 800):
        mesh = line(n, grade)
        errors.append(np.abs(heat(mesh) - exact_line(mesh.points, 4)).max())
    assert errors[-1] < 3e-2
    assert log2(errors[-2] / errors[-1]) > 0.95, errors


@pytest.mark.parametrize("make", [square, quads], ids=["triangles", "quads"])
def test_on_a_square(make):
    """At least first order, also at the corners, where the shares of the nodes are uneven."""
    errors = []
    for n in (12, 24, 48):
        mesh = make(n)
        errors.append(np.abs(heat(mesh) - exact_square(mesh.points, 4)).max())
    assert errors[-1] < 0.1
    assert log2(errors[-2] / errors[-1]) > 0.95, errors


def test_on_a_sphere_all_points_are_alike():
    """Each eigenvalue l(l+1) has 2l + 1 functions of constant sum of squares; Λ cuts none apart."""
    spread = []
    for n in (4, 8, 16):
        corners = np.array([[1, 0, 0], [0, 1, 0], [-1, 0, 0], [0, -1, 0], [0, 0, 1], [0, 0, -1]])
        faces = [(i, (i + 1) % 4, k) for i in range(4) for k in (4, 5)]
        steps = np.array([(i, j, n - i - j) for i in range(n + 1) for j in range(n + 1 - i)])
        points = np.concatenate([steps @ corners[list(face)] for face in faces]).astype(int)
        points, number = np.unique(points, axis=0, return_inverse=True)
        index = {(*ij,): k for k, ij in enumerate(steps[:, :2])}
        own = [
            [index[a] for a in cell]
            for i in range(n)
            for j in range(n - i)
            for cell in [
                ((i, j), (i + 1, j), (i, j + 1)),
                ((i + 1, j), (i + 1, j + 1), (i, j + 1)),
            ]
            if all(a in index for a in cell)
        ]
        cells = number.reshape(8, -1)[:, np.array(own)].reshape(-1, 3)
        points = points / np.linalg.norm(points, axis=1, keepdims=True)
        mesh = meshio.Mesh(points, [("triangle", cells)])
        spread.append(np.ptp(heat(mesh), axis=0).max())
        if n == 16:
            matrix, mass = stiffness(points, blocks(mesh)), node_weights(points, blocks(mesh))
            theta, phi = np.arccos(points[:, 2]), np.arctan2(points[:, 1], points[:, 0])
            harmonic = sph_harm_y(3, 2, theta, phi).real
            rayleigh = harmonic @ (matrix @ harmonic) / (harmonic**2 @ mass)
            assert rayleigh == pytest.approx(12, rel=0.02)
    assert spread[-1] < 0.05
    assert log2(spread[-2] / spread[-1]) > 0.95, spread


@pytest.mark.parametrize("make", [square, quads], ids=["triangles", "quads"])
@pytest.mark.parametrize("times", [1, 8])
def test_the_mean_is_one(make, times):
    mesh = make(10)
    values, mass = heat(mesh, times), node_weights(mesh.points, blocks(mesh))
    assert values.shape == (121, times)
    assert difference(mass @ values / mass.sum(), np.ones(times)) < TIGHT


def test_the_sparse_solver_finds_what_the_dense_one_does(monkeypatch):
    """On a square, whose eigenvalues come in pairs, and on one of two unequal parts."""
    one = square(16)
    two = np.vstack([one.points, 0.3 * one.points + 2])
    cells = one.cells[0].data
    parts = meshio.Mesh(two, [("triangle", np.vstack([cells, cells + len(one.points)]))])
    for mesh in (one, parts):
        monkeypatch.setattr(intrinsic, "_DENSE", 0)
        sparse = heat(mesh)
        monkeypatch.setattr(intrinsic, "_DENSE", 10**4)
        assert difference(sparse, heat(mesh)) < SPECTRAL


# --- what leaves it unchanged ---------------------------------------------------------------------


def orthogonal(seed: int, determinant: int) -> np.ndarray:
    q = np.linalg.qr(np.random.default_rng(seed).normal(size=(3, 3)))[0]
    q[:, 0] *= np.sign(np.linalg.det(q)) * determinant
    return q


MOTIONS = {
    "rotation": lambda x: x @ orthogonal(0, 1).T,
    "reflection": lambda x: x @ orthogonal(1, -1).T,
    "translation": lambda x: x + np.array([3.0, -2.0, 5.0]),
    "to millimetres": lambda x: 1000 * x,
    "to kilometres": lambda x: x / 1000,
}
# Below and above the number of nodes from which on the sparse solver takes over.
both_sizes = pytest.mark.parametrize("n", [8, 24])


@both_sizes
@pytest.mark.parametrize("motion", MOTIONS.values(), ids=MOTIONS)
def test_motions_and_units(n, motion):
    mesh = square(n, 1.3)
    assert difference(heat(moved(mesh, motion(mesh.points))), heat(mesh)) < SPECTRAL


@both_sizes
@pytest.mark.parametrize("make", [square, quads], ids=["triangles", "quads"])
@pytest.mark.parametrize("angle", [0.4, pi / 2, 3.0])
def test_folding(n, make, angle):
    """A sheet folded along a line of edges; its distances in space change, its own do not."""
    mesh = make(n)
    sheet = folded(mesh, angle)
    assert np.ptp(sheet.points[:, 2]) > 0.05
    assert difference(heat(sheet), heat(mesh)) < SPECTRAL


def test_stretching_is_told_from_folding():
    mesh = square(8)
    stretched = moved(mesh, mesh.points * [1.5, 1.0, 1.0])
    assert difference(heat(stretched), heat(mesh)) > 0.05


def test_rolling_up_a_fine_strip():
    """A strip of 4 x 1 on most of a cylinder: chords are shorter than arcs, by h² / 24 r²."""
    changes = []
    for n in (16, 32):
        mesh = quads(n)
        strip = moved(mesh, mesh.points * [4.0, 1.0, 0.0])
        x, y, _ = strip.points.T
        rolled = moved(mesh, np.column_stack([0.8 * np.cos(x / 0.8), y, 0.8 * np.sin(x / 0.8)]))
        changes.append(difference(heat(rolled), heat(strip)))
    assert changes[1] < 2e-3
    assert log2(changes[0] / changes[1]) > 1.8, changes


@both_sizes
def test_the_order_of_the_nodes(n):
    mesh = square(n)
    order = np.random.default_rng(0).permutation(len(mesh.points))
    place = np.argsort(order)
    other = meshio.Mesh(mesh.points[order], [("triangle", place[mesh.cells[0].data])])
    assert difference(heat(other), heat(mesh)[order]) < SPECTRAL


def test_the_number_of_nodes_does_not_matter():
    """At the same places of a coarse and a fine mesh, graded and not: the same to their error."""
    coarse, fine, graded = (heat(mesh) for mesh in (square(20), square(40), square(40, 1.5)))
    every = np.arange(41**2).reshape(41, 41)[::2, ::2].ravel()
    assert difference(coarse, fine[every]) < 0.05
    corners = np.arange(41**2).reshape(41, 41)[[0, 0, -1, -1], [0, -1, 0, -1]]
    assert difference(graded[corners], fine[corners]) < 0.05


def test_two_calls_are_one():
    mesh = square(24)
    assert np.array_equal(heat(mesh), heat(mesh))


# --- odd meshes -----------------------------------------------------------------------------------


def test_orphans_and_flat_cells():
    """Nodes of no cell feel no heat; a cell without measure changes nothing."""
    mesh = square(8)
    points = np.vstack([mesh.points, [[7.0, 7.0, 7.0]]])
    odd = meshio.Mesh(points, [*mesh.cells, ("triangle", np.array([[0, 1, 1]]))])
    got = heat(odd)
    assert (got[-1] == 0).all()
    assert difference(got[:-1], heat(mesh)) < SPECTRAL


def test_a_sliver_hurts_nobody():
    mesh = square(24)
    points = mesh.points.copy()
    points[100, :2] = points[101, :2] + [0.0, 1e-9]
    assert np.isfinite(heat(moved(mesh, points))).all()


def test_refusals():
    with pytest.raises(MeshError, match="heat needs more than 33 nodes of cells, got 25"):
        heat(square(4))
    vertices = meshio.Mesh(np.eye(50, 2), [("vertex", np.arange(50)[:, None])])
    with pytest.raises(MeshError, match="got points without cells"):
        heat(vertices)


# --- as a field -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["heat:0", "heat:wall", "heat:-2", "heat:1.5", "heat:²"])
def test_a_number_of_channels(name):
    assert is_derived(name)
    with pytest.raises(MeshError, match=rf"^field '{name}': heat takes a number .* heat:8, got"):
        derived_field(square(8), name, "points")


def test_as_a_derived_field():
    mesh = square(8)
    values = derived_field(mesh, "heat:3", "points")
    assert np.array_equal(values, heat(mesh, 3))
    mesh.point_data["h"] = values
    cells = derived_field(mesh, "heat:3", "cells")
    assert np.array_equal(cells, read_field(mesh, "h", "cells"))
    assert cells.shape == (128, 3)


def test_from_the_command_line(tmp_path):
    """Fitted with eight channels of it, and predicting with what it computes from a file."""
    torch.set_default_dtype(torch.float32)
    write_folder(tmp_path / "data", n=(6, 7))
    options = ["--channels", "8", "--heads", "2", "--layers", "1", "--epochs", "1"]
    fields = ["--inputs", "heat:8", "f", "--outputs", "g"]
    run = tmp_path / "run"
    assert cli.main(["fit", f"{tmp_path}/data", *fields, *options, "--out", str(run)]) == 0
    surrogate = load(run / "best.pt")
    assert surrogate.layout.inputs == {"heat:8": 8, "f": 1}
    out = tmp_path / "out.vtu"
    data = f"{tmp_path}/data/case_00.vtu"
    assert cli.main(["predict", str(run / "best.pt"), data, "--out", str(out)]) == 0
    assert np.isfinite(read_mesh(out).point_data["g_predicted"]).all()
