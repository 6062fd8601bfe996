"""C9: a deep model on finer and finer graded meshes converges like its quadrature, in second order.

The limit is the operator on the continuum, known to ten digits by Gauss-Legendre points: another
quadrature of the same measure, so another domain for the same model.
"""

from __future__ import annotations

from itertools import permutations, product

import numpy as np
import pytest
import torch
from test_contracts import DistanceBias
from tolerances import difference

from opformer import Domain, OperatorTransformer
from opformer.encodings import (
    Compose,
    Coordinates,
    FourierFeatures,
    GaussianBias,
    Rotary,
    Sinusoidal,
)
from opformer.model import default_encoding
from opformer.quadrature import node_weights
from opformer.testing import observed_order

C, HEADS = 24, 2
ENCODINGS = {
    "coordinates": lambda d: Coordinates(d, C),
    "default": lambda d: default_encoding(d, C, HEADS),
    "invariant": lambda d: Compose(Rotary(d, HEADS, C // HEADS), GaussianBias(d, HEADS)),
    "sinusoidal": lambda d: Sinusoidal(d, C, unit=0.3),
    "fourier": lambda d: FourierFeatures(d, C),
    "dense": lambda d: Compose(Coordinates(d, C), DistanceBias(HEADS)),
}


def graded(x):
    """Steps that grow twelvefold across the unit interval: areas by 150 : 1."""
    return np.expm1(2.5 * x) / np.expm1(2.5)


def power(x):
    """A step of zero at one end, in the limit."""
    return x**1.5


def wiggle(x):
    """Cells pressed together along curves in the interior."""
    across = np.roll(np.cos(2 * np.pi * x), 1, axis=-1)
    return x + 0.08 * np.sin(2 * np.pi * x) * (1 + 0.5 * across)


GRADINGS = {"graded": graded, "power": power, "wiggle": wiggle}


def mesh(n, d, grading):
    """The unit cube, n nodes along each axis, as simplices (Kuhn), moved by a map of the cube."""
    index = np.arange(n**d).reshape((n,) * d)
    cells = []
    for order in permutations(range(d)):
        corner = np.zeros((d + 1, d), dtype=int)
        for step, axis in enumerate(order):
            corner[step + 1 :, axis] += 1
        cells.append(
            np.stack([index[tuple(slice(c, n - 1 + c) for c in at)].ravel() for at in corner], -1)
        )
    points = grading(np.stack(np.meshgrid(*[np.linspace(0, 1, n)] * d, indexing="ij"), -1))
    points = points.reshape(-1, d)
    kind = {1: "line", 2: "triangle", 3: "tetra"}[d]
    weights = node_weights(points, [(kind, np.concatenate(cells))])
    return Domain(torch.from_numpy(points), torch.from_numpy(weights))


def gauss(n, d):
    x, w = np.polynomial.legendre.leggauss(n)
    points = np.array(list(product((x + 1) / 2, repeat=d)))
    weights = np.array([np.prod(ws) for ws in product(w / 2, repeat=d)])
    return Domain(torch.from_numpy(points), torch.from_numpy(weights))


def field(x):
    """A smooth input, the same function on every mesh."""
    return torch.stack([(3 * x.sum(-1)).sin(), (4 * x[..., 0]).cos() * (x[..., -1] + 1)], -1)


def model(d, seed, encoding, **options):
    """Random weights: a deep operator whose kernels are far from constant."""
    torch.manual_seed(seed)
    options = {"channels": C, "heads": HEADS, "layers": 4} | options
    return OperatorTransformer(d, 2, 3, encoding=ENCODINGS[encoding](d), **options)


@torch.no_grad()
def outputs(net, source, probe):
    """At the probe, whose input fields are known, so that nothing is interpolated."""
    state = net.encode(source, field(source.points))
    return net.decode(state, probe, field(probe.points))


def study(net, d, sizes, grading, exact):
    """Errors with the weights, and without, against the continuum by ``exact`` points an axis."""
    probe, h = gauss(4, d), [1 / (n - 1) for n in sizes]
    limit = outputs(net, gauss(exact, d), probe)
    meshes = [mesh(n, d, grading) for n in sizes]
    weighted = [difference(outputs(net, m, probe), limit) for m in meshes]
    plain = [difference(outputs(net, m.uniform(), probe), limit) for m in meshes]
    # Itself far more exact than the finest mesh.
    assert difference(outputs(net, gauss(exact - 4, d), probe), limit) < weighted[-1] / 10
    return h, weighted, plain


@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("grading", GRADINGS.values(), ids=GRADINGS)
def test_the_meshes_are_meshes(d, grading):
    """Nothing is folded or left out, and they are far from uniform."""
    at = mesh(9, d, grading)
    assert at.total == pytest.approx(1, rel=1e-12)
    assert not at.null.any()
    inner = ((at.points > 0) & (at.points < 1)).all(-1)
    assert at.weights[inner].max() > 1.5**d * at.weights[inner].min()


PLANE, FINE = [5, 9, 17, 33], [5, 9, 17, 33, 65]
CASES = [  # coordinates, nodes an axis, Gauss points an axis, encoding, grading, seed
    (2, FINE, 36, "default", "graded", 0),
    (2, FINE, 36, "default", "graded", 1),
    (2, FINE, 36, "default", "power", 0),
    (2, FINE, 36, "default", "wiggle", 0),
    *[(2, PLANE, 34, name, "graded", s) for name in ENCODINGS if name != "default" for s in (0, 1)],
    *[(1, [9, 17, 33, 65, 129], 44, "default", name, s) for name in GRADINGS for s in (0, 1)],
    (3, [5, 9, 13, 17], 14, "coordinates", "graded", 0),
    (3, [5, 9, 13, 17], 14, "coordinates", "power", 0),
]


@pytest.mark.parametrize(("d", "sizes", "exact", "encoding", "grading", "seed"), CASES)
def test_second_order(d, sizes, exact, encoding, grading, seed):
    check(model(d, seed, encoding), d, sizes, exact, grading)


@pytest.mark.parametrize(
    "options",
    [
        {"decoder_layers": 2},
        {"norm_first": False},
        {"norm_first": False, "decoder_layers": 1},
        {"qk_norm": False},
    ],
    ids=str,
)
def test_second_order_of_other_models(options):
    """The geometric mean over random models: a single one may be lucky on a coarse mesh."""
    sizes, logs = [9, 17, 33], []
    for seed in range(4):
        net = model(2, seed, "default", **options)
        h, weighted, _ = study(net, 2, sizes, graded, 36)
        logs.append(np.log(weighted))
    observed_order(h, np.exp(np.mean(logs, axis=0)), at_least=1.8)


@pytest.mark.slow
@pytest.mark.parametrize("grading", GRADINGS)
def test_second_order_up_to_16641_nodes(grading):
    """From 17² on: the largest cells of the graded 9² are wider than the narrowest kernels."""
    check(model(2, 2, "default"), 2, [17, 33, 65, 129], 40, grading)


def check(net, d, sizes, exact, grading):
    h, weighted, plain = study(net, d, sizes, GRADINGS[grading], exact)
    observed_order(h, weighted, at_least=1.8)
    assert weighted[-1] < 10 * h[-1] ** 2
    # The same nodes with equal weights are another measure, whose operator is another.
    assert observed_order(h, plain) < 0.5
    assert plain[-1] > 10 * weighted[-1]
