"""Domain: reductions are integrals, a subsample is a coarser quadrature of the same measure."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from tolerances import ROUNDING, difference

from opformer import Domain, read_mesh, stack
from opformer.quadrature import cell_weights
from opformer.testing import observed_order

MESHES = Path(__file__).parents[1] / "meshes"
FILES = sorted(MESHES.glob("*.vtu"))
TIGHT = ROUNDING[torch.float64]


def line(n=400):
    """Midpoint rule on [0, 1]: exact for linear functions, error h²/24 f'' else."""
    x = (torch.arange(n) + 0.5) / n
    return Domain(x[:, None], torch.full((n,), 1 / n))


def grid(n, d=2):
    """Trapezoidal rule on the unit cube, n nodes along each axis."""
    x = torch.linspace(0, 1, n)
    w = torch.full((n,), 1 / (n - 1))
    w[[0, -1]] /= 2
    points = torch.cartesian_prod(*[x] * d).reshape(-1, d)
    return Domain(points, torch.cartesian_prod(*[w] * d).reshape(-1, d).prod(-1))


def cloud(n=50, d=2, *, null=0):
    weights = torch.rand(n) + 0.1
    weights[torch.randperm(n)[:null]] = 0
    return Domain(torch.rand(n, d), weights)


# Reductions


def test_reductions_in_closed_form():
    domain, x = line(), line().points[:, 0]
    assert domain.total == pytest.approx(1, rel=TIGHT)
    assert domain.integrate(x) == pytest.approx(1 / 2, rel=TIGHT)
    assert domain.integrate(x**2) == pytest.approx(1 / 3 - 1 / 12 / 400**2, rel=TIGHT)
    wide = Domain(domain.points, 5 * domain.weights)
    assert wide.integrate(x) == pytest.approx(5 / 2, rel=TIGHT)
    assert wide.mean(x) == pytest.approx(1 / 2, rel=TIGHT)
    # Sums of sines over equal steps are exact.
    s, c = (2 * math.pi * x).sin(), (2 * math.pi * x).cos()
    assert wide.inner(s, s) == pytest.approx(5 / 2, rel=TIGHT)
    assert abs(wide.inner(s, c)) < TIGHT
    assert wide.norm(s) == pytest.approx(math.sqrt(5 / 2), rel=TIGHT)


def test_reductions_with_channels():
    domain = line()
    x = domain.points[:, 0]
    f = torch.stack([x, torch.ones_like(x)], -1)
    assert difference(domain.integrate(f), [1 / 2, 1]) < TIGHT
    assert difference(domain.mean(f), [1 / 2, 1]) < TIGHT
    square = 1 / 3 - 1 / 12 / 400**2 + 1
    assert domain.inner(f, f) == pytest.approx(square, rel=TIGHT)
    assert domain.norm(f) == pytest.approx(math.sqrt(square), rel=TIGHT)
    matrices = f[:, :, None] * f[:, None, :]
    assert domain.integrate(matrices).shape == (2, 2)
    assert domain.integrate(matrices)[0, 1] == pytest.approx(1 / 2, rel=TIGHT)
    assert domain.norm(matrices) == pytest.approx(float(domain.norm(matrices.flatten(1))))


@pytest.mark.parametrize("name", ["integrate", "mean", "norm"])
@pytest.mark.parametrize("batch", [(3,), (2, 3)])
@pytest.mark.parametrize("channels", [(), (4,)])
def test_a_batch_is_a_loop(name, batch, channels):
    weights = torch.rand(*batch, 6).masked_fill(torch.rand(*batch, 6) < 0.3, 0)
    domain = Domain(torch.rand(*batch, 6, 2), weights)
    f = torch.randn(*batch, 6, *channels)
    got = getattr(domain, name)(f)
    for i in itertools.product(*map(range, batch)):
        one = getattr(Domain(domain.points[i], weights[i]), name)(f[i])
        assert difference(got[i], one) < TIGHT
    assert domain.total.shape == batch


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e300])
def test_null_points_count_as_nothing(value):
    domain = cloud(null=7)
    f = torch.randn(50, 3)
    bad = torch.where(domain.null[:, None], value, f)
    for name in ("integrate", "mean", "norm"):
        assert torch.equal(getattr(domain, name)(bad), getattr(domain, name)(f))
    assert torch.equal(domain.inner(bad, f), domain.inner(f, f))
    assert torch.equal(domain.zero_null(bad), f.masked_fill(domain.null[:, None], 0))


@pytest.mark.parametrize("name", ["integrate", "mean", "norm"])
def test_null_points_have_no_gradient(name):
    """NaN truth at an orphan node must not reach the gradient of a prediction there."""
    domain = cloud(null=7)
    truth = torch.randn(50, 3).masked_fill(domain.null[:, None], math.nan)
    prediction = torch.randn(50, 3, requires_grad=True)
    getattr(domain, name)(prediction - truth).sum().backward()
    assert prediction.grad.isfinite().all()
    assert (prediction.grad[domain.null] == 0).all()
    assert (prediction.grad[~domain.null] != 0).all()


def test_nan_where_there_is_measure_is_not_hidden():
    domain = cloud(null=7)
    f = torch.randn(50)
    f[torch.nonzero(~domain.null)[3]] = math.nan
    for name in ("integrate", "mean", "norm"):
        assert getattr(domain, name)(f).isnan()


def test_the_norm_at_zero():
    domain, f = line(10), torch.zeros(10, requires_grad=True)
    norm = domain.norm(f)
    norm.backward()
    assert norm == 0
    assert (f.grad == 0).all()


def test_no_measure():
    domain = Domain(torch.rand(4, 2), torch.zeros(4))
    f = torch.full((4, 2), math.nan)
    assert (domain.total, domain.norm(f)) == (0, 0)
    for name in ("integrate", "mean"):
        assert torch.equal(getattr(domain, name)(f), torch.zeros(2))
    assert domain.null.all()


def test_a_mean_knows_no_unit():
    domain, f = cloud(), torch.randn(50)
    for unit in (1e-300, 1e-30, 1e30, 1e300):
        scaled = Domain(domain.points, unit * domain.weights)
        assert difference(scaled.mean(f), domain.mean(f)) < TIGHT


def test_dtypes():
    """Weights stay float64; sums are taken there, and come back in the dtype of f."""
    domain = Domain(torch.rand(4, 2).float(), torch.tensor([1e-60, 1e-60, 2e-60, 0]))
    assert domain.points.dtype == torch.float32
    assert domain.weights.dtype == torch.float64
    assert domain.total == 4e-60
    assert domain.uniform().weights.tolist() == [1, 1, 1, 0]
    f = torch.tensor([1.0, 2, 3, 4])
    for dtype in (torch.float32, torch.bfloat16):
        assert domain.mean(f.to(dtype)).dtype == dtype
        assert domain.norm(f.to(dtype)).dtype == dtype
    assert domain.mean(f.int()) == 9 / 4
    assert domain.mean(f > 1) == 3 / 4
    assert domain.to(dtype=torch.float64).points.dtype == torch.float64
    assert domain.to(dtype=torch.bfloat16).weights.dtype == torch.float64
    assert Domain(torch.tensor([[0], [1]]), torch.ones(2)).points.dtype == torch.float64


def test_a_norm_does_not_underflow():
    """Squares of 1e-30 are zero in float32."""
    domain = line(10)
    f = torch.full((10, 1), 1e-30, dtype=torch.float32)
    assert float(domain.norm(f)) == pytest.approx(1e-30, rel=1e-6)


def test_many_small_parts_in_float32():
    """A million terms of 1e-6: a float32 running sum would be off by far more than one rounding."""
    n = 10**6
    domain = Domain(torch.zeros(n, 1, dtype=torch.float32), torch.full((n,), 1 / n))
    assert abs(float(domain.integrate(torch.full((n,), 0.1, dtype=torch.float32))) - 0.1) < 1e-8


def test_weights_carry_no_gradient():
    weights = torch.rand(4, requires_grad=True)
    assert not Domain(torch.rand(4, 2), weights).weights.requires_grad
    points = torch.rand(4, 2, requires_grad=True)
    assert Domain(points, weights).points.requires_grad


# Refusals


@pytest.mark.parametrize(
    ("points", "weights", "message"),
    [
        (torch.zeros(3, 2), [1, -0.5, 1], r"weights .* entry 1 is -0\.5 \(1 such"),
        (torch.zeros(3, 2), [1, 1, math.nan], "weights .* entry 2 is nan"),
        (torch.zeros(3, 2), [math.inf, 1, math.inf], r"weights .* entry 0 is inf \(2 such"),
        (torch.tensor([[0, 0], [0, math.nan]]), [1, 1], r"points .* entry 1 is \[0\.0, nan\]"),
        (torch.zeros(2, 2, 1), [[1, 1], [1, -1]], r"weights .* entry \(1, 1\) is -1"),
        (torch.zeros(3, 2), [1, 1], r"got \(3, 2\) and \(2,\)"),
        (torch.zeros(3), [1, 1, 1], r"got \(3,\) and \(3,\)"),
        (torch.zeros(2, 3, 2), [1, 1, 1], r"got \(2, 3, 2\) and \(3,\)"),
    ],
)
def test_refuses(points, weights, message):
    with pytest.raises(ValueError, match=message):
        Domain(points, torch.tensor(weights))


@pytest.mark.parametrize("name", ["integrate", "mean", "norm", "zero_null"])
def test_refuses_a_function_of_other_points(name):
    with pytest.raises(ValueError, match=r"axes \(5,\), got \(4, 2\)"):
        getattr(cloud(5), name)(torch.zeros(4, 2))


# Makers


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_from_mesh(file):
    mesh = read_mesh(file)
    nodes, cells = Domain.from_mesh(mesh), Domain.from_mesh(mesh, at="cells")
    assert nodes.points.shape == mesh.points.shape
    assert nodes.points.dtype == cells.points.dtype == torch.float64
    centroids, _ = cell_weights(mesh.points, [(b.type, b.data) for b in mesh.cells])
    assert np.array_equal(cells.points.numpy(), centroids)
    assert nodes.total == pytest.approx(float(cells.total), rel=TIGHT)
    assert nodes.total > 0
    # Both rules are exact for linear functions on the straight cells of these files.
    for nodal, cellwise in zip(
        nodes.integrate(nodes.points), cells.integrate(cells.points), strict=True
    ):
        assert float(nodal) == pytest.approx(float(cellwise), abs=1e-10, rel=1e-10)


def test_from_mesh_leaves_orphans_without_weight():
    domain = Domain.from_mesh(read_mesh(MESHES / "orphan_inverted.vtu"))
    assert torch.nonzero(domain.null).tolist() == [[2]]
    assert domain.total == pytest.approx(1, rel=TIGHT)


def test_from_mesh_refuses():
    with pytest.raises(ValueError, match="at must be 'points' or 'cells', got 'nodes'"):
        Domain.from_mesh(read_mesh(MESHES / "triangle.vtu"), at="nodes")


def test_from_points():
    x = torch.tensor([0.0, 1, 0.25, 0.75])
    for points in (x, x[:, None], x[:, None].float(), x[:, None].numpy()):
        domain = Domain.from_points(points, rule="interval")
        assert domain.points.shape == (4, 1)
        assert domain.points.dtype == torch.float64
        assert domain.weights.tolist() == [0.125, 0.125, 0.375, 0.375]
    square = Domain.from_points(grid(5).points, rule="delaunay")
    assert square.total == pytest.approx(1, rel=TIGHT)


def test_from_points_wants_a_rule():
    with pytest.raises(ValueError, match="rule"):
        Domain.from_points(torch.rand(5, 1))


def test_from_points_by_voronoi():
    x = torch.rand(40, 2, dtype=torch.float32)
    domain = Domain.from_points(x, rule="voronoi", bounds=[[0, -1], [1, 2]])
    assert domain.total == pytest.approx(3, rel=TIGHT)
    assert torch.equal(domain.points, x.double())
    text = Domain.from_points(x.bfloat16(), rule="voronoi").describe()
    assert text.endswith("ready")


def test_from_points_knows_what_float32_resolves():
    """A slanted line, far from the origin; in float64 its rounding errors are an extent."""
    t = torch.linspace(0, 1, 50, dtype=torch.float64)
    x = torch.stack([100 + t, 50 + t / 3], -1).float()
    domain = Domain.from_points(x, rule="delaunay")
    assert domain.total == pytest.approx(np.hypot(1, 1 / 3), rel=1e-5)  # float32 coordinates
    with pytest.raises(ValueError, match="on a line"):
        Domain.from_points(x.double(), rule="interval")


def test_from_points_copies():
    points = np.linspace(0, 1, 5)[:, None]
    domain = Domain.from_points(points, rule="interval")
    points[:] = 7
    assert domain.points.max() == 1


# Sets of points


def test_stack():
    domains = [cloud(5), cloud(3), cloud(4)]
    both = stack(domains)
    assert both.points.shape == (3, 5, 2)
    for i, domain in enumerate(domains):
        n = domain.size
        assert torch.equal(both.points[i, :n], domain.points)
        assert torch.equal(both.weights[i, :n], domain.weights)
        assert (both.weights[i, n:] == 0).all()
        assert (both.points[i, n:] == domain.points[-1]).all()
    assert difference(both.total, torch.stack([d.total for d in domains])) < TIGHT


@pytest.mark.parametrize(
    "domains", [[], [cloud(3, 2), cloud(3, 3)], [Domain(torch.rand(2, 3, 2), torch.rand(2, 3))]]
)
def test_stack_refuses(domains):
    with pytest.raises(ValueError, match="stack takes"):
        stack(domains)


@pytest.mark.parametrize(
    "index",
    [slice(1, 4), torch.tensor([3, 0]), torch.tensor([True, False, False, True, True, False])],
)
@pytest.mark.parametrize("batch", [(), (2,)])
def test_take(index, batch):
    domain = Domain(torch.rand(*batch, 6, 2), torch.rand(*batch, 6))
    part = domain.take(index)
    assert torch.equal(part.points, domain.points[..., index, :])
    assert torch.equal(part.weights, domain.weights[..., index])


# Subsamples


@pytest.mark.parametrize("method", ["random", "farthest"])
@pytest.mark.parametrize("d", [1, 2, 3])
def test_subsample_is_the_same_measure(method, d):
    domain = cloud(200, d, null=20)
    part = domain.subsample(30, method=method)
    index = part.index
    assert part.size == 30
    assert abs(float(part.total / domain.total) - 1) < TIGHT
    assert torch.equal(part.points, domain.points[index])
    assert (index.diff() > 0).all()
    assert not domain.null[index].any()
    # By brute force: the weight of a point goes to the kept one nearest to it.
    expected = torch.zeros(30)
    for x, w in zip(domain.points, domain.weights, strict=True):
        expected[((part.points - x) ** 2).sum(-1).argmin()] += w
    assert difference(part.weights, expected) < TIGHT


@pytest.mark.parametrize("method", ["random", "farthest"])
def test_subsample_with_coincident_points(method):
    """Five places of four copies each: whatever is kept has weight, and all of it is there."""
    domain = Domain(torch.rand(5, 2).repeat(4, 1), torch.rand(20) + 0.1)
    for n in (3, 5, 7, 20, 30):
        part = domain.subsample(n, method=method)
        index = part.index
        assert part.size == min(n, 20)
        assert len(set(index.tolist())) == part.size
        assert (part.weights > 0).all()
        assert abs(float(part.total / domain.total) - 1) < TIGHT


@pytest.mark.parametrize("method", ["random", "farthest"])
def test_subsample_of_no_fewer_points(method):
    domain = cloud(20, null=5)
    part = domain.subsample(17, method=method)
    index = part.index
    assert index.tolist() == torch.nonzero(~domain.null)[:, 0].tolist()
    assert torch.equal(part.weights, domain.weights[index])


def test_farthest_points_spread_out():
    """Greedy farthest points of a grid: their least distance beats that of random ones."""

    def least(method):
        points = grid(20).subsample(40, method=method).points
        return torch.pdist(points).min()

    assert least("farthest") > 0.1
    assert least("random") < 0.1


def test_subsample_follows_its_generator():
    def index(seed, method):
        generator = torch.Generator().manual_seed(seed)
        return cloud_.subsample(10, method=method, generator=generator).index.tolist()

    cloud_ = cloud(100)
    for method in ("random", "farthest"):
        assert index(1, method) == index(1, method)
        assert index(1, method) != index(2, method)


@pytest.mark.parametrize(("method", "d"), [("random", 1), ("random", 2), ("farthest", 2)])
def test_subsampled_integrals_converge(method, d):
    """The mean error falls like h² = n^(-2/d), where plain Monte Carlo has n^(-1/2).

    In one dimension the lumped weights are the trapezoidal rule. In more, what two neighbours carry
    is mirrored in their common face, so first-order errors nearly cancel, but for random ones of
    size n^(-1/2 - 1/d) in all, and those of the hull, n^(-2/d).
    """
    domain = grid({1: 8001, 2: 121}[d], d)
    f = (domain.points * torch.tensor([2.0, 3.0])[:d]).sum(-1).sin() + domain.points[:, 0] ** 2
    sizes, exact = [40, 80, 160, 320], domain.integrate(f)
    errors, plain = [], []
    for n in sizes:
        parts = [
            domain.subsample(n, method=method, generator=torch.Generator().manual_seed(seed))
            for seed in range(100 if method == "random" else 4)
        ]
        errors.append(np.mean([abs(float(p.integrate(f[p.index]) - exact)) for p in parts]))
        plain.append(np.mean([abs(float(f[p.index].mean() - exact)) for p in parts]))
    order = observed_order([1 / n for n in sizes], errors)
    assert order == pytest.approx(2 / d, abs=0.4)  # the spread of a mean over so few samples
    if method == "random":
        assert observed_order([1 / n for n in sizes], plain) == pytest.approx(1 / 2, abs=0.15)
    assert errors[-1] < plain[-1] / 5


@pytest.mark.parametrize(
    ("domain", "n", "method", "message"),
    [
        (cloud(5), 0, "random", "at least 1, got 0"),
        (cloud(5), 3, "first", "'random' or 'farthest', got 'first'"),
        (Domain(torch.rand(5, 2), torch.zeros(5)), 3, "random", "of 0 points"),
        (stack([cloud(5), cloud(5)]), 3, "random", r"one domain, got \(2, 5\)"),
    ],
)
def test_subsample_refuses(domain, n, method, message):
    with pytest.raises(ValueError, match=message):
        domain.subsample(n, method=method)


# Interpolation


@pytest.mark.parametrize("d", [1, 2, 3])
def test_interpolation_is_exact_at_points(d):
    domain, f = cloud(60, d), torch.randn(60, 3)
    assert difference(domain.interpolate(f, domain.points), f) < TIGHT
    far = Domain(1e6 + 1e-3 * domain.points, domain.weights)
    assert difference(far.interpolate(f, far.points), f) < TIGHT


@pytest.mark.parametrize("d", [1, 2, 3])
def test_interpolation_keeps_constants_and_bounds(d):
    domain, targets = cloud(60, d), 3 * torch.rand(80, d) - 1
    assert difference(domain.interpolate(torch.full((60, 1), 7.0), targets), [[7.0]] * 80) < TIGHT
    f = torch.rand(60, 1)
    values = domain.interpolate(f, targets)
    assert f.min() <= values.min()
    assert values.max() <= f.max()


@pytest.mark.parametrize("d", [1, 2, 3])
def test_interpolation_is_of_first_order(d):
    """On random clouds, in the mean over the interior: error ~ h = n^(-1/d)."""
    targets, sizes = 0.2 + 0.6 * torch.rand(400, d), [250, 1000, 4000, 16000]

    def f(x):
        return (3 * x).sum(-1, keepdim=True).sin()

    errors = []
    for n in sizes:
        domain = cloud(n, d)
        errors.append((domain.interpolate(f(domain.points), targets) - f(targets)).abs().mean())
    assert observed_order([n ** (-1 / d) for n in sizes], errors) > 0.85


@pytest.mark.parametrize("d", [1, 2, 3])
def test_interpolation_sees_neither_order_nor_axes(d):
    """On a regular grid too, where many neighbours are equally far: none of them is left out."""
    domain = grid(5, d)
    f = torch.randn(domain.size, 2)
    steps = torch.tensor([0, 0.5, 0.25, 0.1])
    targets = 0.25 + 0.25 * torch.cartesian_prod(*[steps] * d).reshape(-1, d)
    targets = torch.cat([targets, 3 * torch.rand(20, d) - 1])
    values = domain.interpolate(f, targets)
    for move in (lambda x: 1 - x, lambda x: x.flip(-1), lambda x: 2 + x.roll(1, -1)):
        moved = Domain(move(domain.points), domain.weights)
        assert difference(moved.interpolate(f, move(targets)), values) < 10 * TIGHT  # r is rounded
    for _ in range(5):
        order = torch.randperm(domain.size)
        assert difference(domain.take(order).interpolate(f[order], targets), values) < TIGHT


def test_coincident_points_count_once():
    domain, f, targets = cloud(30), torch.randn(30, 2), torch.rand(40, 2)
    points = torch.cat([domain.points, domain.points[:3], domain.points[:3]])
    weights = torch.cat([domain.weights, 2 * domain.weights[:3], torch.zeros(3)])
    copied = Domain(points, weights)
    same = torch.cat([f, f[:3], torch.full((3, 2), math.nan)])
    assert difference(copied.interpolate(same, targets), domain.interpolate(f, targets)) < TIGHT
    other = torch.cat([f, f[:3] + 3, torch.full((3, 2), math.nan)])
    mean = f.clone()
    mean[:3] += 2  # weights 1 and 2
    assert difference(copied.interpolate(other, targets), domain.interpolate(mean, targets)) < TIGHT


def test_null_points_are_not_read():
    domain, f, targets = cloud(30, null=8), torch.randn(30, 2), torch.rand(40, 2)
    f[domain.null] = math.nan
    f.requires_grad_()
    values = domain.interpolate(f, torch.cat([targets, domain.points]))
    alive = domain.take(~domain.null).interpolate(f[~domain.null], targets)
    assert difference(values[:40], alive) < TIGHT
    (gradient,) = torch.autograd.grad(values.sum(), f)
    assert values.isfinite().all()
    assert (gradient[domain.null] == 0).all()


@pytest.mark.parametrize("n", [1, 2, 3])
def test_interpolation_of_few_points(n):
    domain, f = cloud(n, 3), torch.randn(n, 1)
    assert difference(domain.interpolate(f, domain.points), f) < TIGHT
    far = domain.interpolate(f, 1e8 * torch.rand(4, 3))
    assert far.isfinite().all()
    assert (far >= f.min() - TIGHT).all()


def test_interpolation_without_measure():
    domain = Domain(torch.rand(4, 2), torch.zeros(4))
    assert torch.equal(
        domain.interpolate(torch.full((4, 2), math.nan), torch.rand(3, 2)), torch.zeros(3, 2)
    )


def test_interpolation_of_a_batch_is_a_loop():
    domains = [cloud(9), cloud(12)]
    both, f, targets = stack(domains), torch.randn(2, 12, 3), torch.rand(2, 5, 2)
    values = both.interpolate(f, targets)
    for i, domain in enumerate(domains):
        one = domain.interpolate(f[i, : domain.size], targets[i])
        assert difference(values[i], one) < TIGHT


# Description


def lines(domain):
    """The first word of each line, and what it says."""
    rows = [row.split(maxsplit=1) for row in domain.describe().splitlines()]
    return [row[0] for row in rows], " | ".join(row[1] for row in rows)


def test_describe_a_sound_domain():
    words, text = lines(grid(9))
    assert words == ["points", "extent", "measure", "weights", "verdict"]
    assert text == (
        "81 with 2 coordinates | x from 0 to 1, y from 0 to 1; spans 2 dimensions | 1 | "
        "0.00391 … 0.0156, largest/smallest 4 | ready"
    )


def test_describe_names_the_first_offender():
    domain = grid(9)
    points, weights = domain.points.double().clone(), domain.weights.clone()
    points[[40, 50]] = points[30].clone()
    weights[[7, 9, 60]] = 0
    weights[25] *= 101
    weights[71] /= 101
    text = Domain(points + 1e5, weights).describe()
    for found in (
        "3 points of weight 0 (first 7)",
        "2 points coincide with an earlier one (first 40)",
        "2 points of a weight out of proportion (first 25)",
        "the points lie 1.41e+05 times their size from the origin",
    ):
        assert f"look at     {found}: " in text
        assert found in text.splitlines()[-1]
    assert text.splitlines()[-1].startswith("verdict     ready; have a look: 3 points of weight 0")


def test_describe_takes_a_slowly_graded_domain_for_sound():
    """Weights that differ by 1e7, but not between neighbours."""
    domain = Domain.from_points(1.1 ** torch.arange(200, dtype=torch.float64), rule="interval")
    assert domain.weights.max() > 1e7 * domain.weights.min()
    assert domain.describe().splitlines()[-1] == "verdict     ready"


def test_describe_copies_without_weight_count_for_nothing():
    points = torch.tensor([[0.0, 0], [1, 0], [1, 0], [0, 1]])
    text = Domain(points, torch.tensor([0.5, 2, 0, 1])).describe()
    assert "coincide" not in text
    assert "1 points of weight 0 (first 2)" in text


def test_describe_counts_dimensions():
    t = torch.linspace(0, 1, 20, dtype=torch.float64)
    plane = torch.stack([t, t**2, t + t**2], -1)
    assert "spans 2 dimensions" in Domain(plane, t + 1).describe()
    far = torch.rand(20, 5)
    assert "x4 from" in Domain(far, t + 1).describe()
    assert "spans 0 dimensions" in Domain(far[:1], t[:1] + 1).describe()


@pytest.mark.parametrize("n", [0, 1, 20])
def test_describe_nothing(n):
    text = Domain(torch.zeros(n, 1), torch.zeros(n)).describe()
    assert text.splitlines()[-1].startswith("verdict     not ready: no point has a positive weight")


def test_describe_a_batch():
    domain = cloud(5)
    assert stack([domain, domain]).describe() == f"{domain.describe()}\n{domain.describe()}"


def test_complex_values_are_refused():
    domain = Domain(torch.rand(4, 1), torch.rand(4))
    for reduce in (domain.integrate, domain.mean, domain.norm):
        with pytest.raises(ValueError, match="f must be real"):
            reduce(torch.full((4,), 1j))
