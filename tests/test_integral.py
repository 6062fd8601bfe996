"""Every path of the operator against a definition of its own, written as loops over numbers."""

from __future__ import annotations

import itertools
import math
from contextlib import contextmanager

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tolerances import BFLOAT16, GRADIENT, ROUNDING, difference
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from opformer import _fused, kernel_integral
from opformer.integral import log_density, merge, partial_integral

H, N, M, E, R = 2, 5, 7, 4, 3
DTYPES = [torch.float64, torch.float32]


def oracle(q, k, v, w, factors, bias, g):
    """y and the gradients of sum(g y), sample by sample, head by head, target by target.

    With a_s the kernel: dy = sum_s a_s (dv_s + (v_s - y) dp_s), p_s the exponent.
    """
    batch, (h, n, e), m = q.shape[:-3], q.shape[-3:], k.shape[-2]
    y = np.zeros((*batch, h, n, v.shape[-1]))
    dq, dk, dv, dp = (
        np.zeros(q.shape),
        np.zeros(k.shape),
        np.zeros(v.shape),
        np.zeros((*y.shape[:-1], m)),
    )
    w = np.broadcast_to(np.ones(m) if w is None else w, (*batch, m))
    alive = [np.flatnonzero(w[b]) for b in itertools.product(*map(range, batch))]
    for number, (*b, i, t) in enumerate(itertools.product(*map(range, y.shape[:-1]))):
        at, row, s = (*b, i), (*b, i, t), alive[number // (h * n)]
        p = np.array([q[row] @ k[(*at, j)] / math.sqrt(e) for j in s])
        if factors is not None:
            p += [factors[0][row] @ factors[1][(*at, j)] for j in s]
        if bias is not None:
            p += bias[row][s]
        if not len(s) or p.max() == -np.inf:
            continue
        a = w[tuple(b)][s] * np.exp(p - p.max())
        a /= a.sum()
        for j, weight in zip(s, a, strict=True):
            y[row] += weight * v[(*at, j)]
        for j, weight in zip(s, a, strict=True):
            dp[(*row, j)] = weight * (g[row] @ (v[(*at, j)] - y[row]))
            dq[row] += dp[(*row, j)] * k[(*at, j)] / math.sqrt(e)
            dk[(*at, j)] += dp[(*row, j)] * q[row] / math.sqrt(e)
            dv[(*at, j)] += weight * g[row]
    out = {"y": y, "q": dq, "k": dk, "v": dv}
    if factors is not None:
        out["fq"], out["fk"] = dp @ factors[1], np.swapaxes(dp, -1, -2) @ factors[0]
    if bias is not None:
        out["bias"] = dp
    return out


@contextmanager
def channels():
    """The weights as channels, as on CUDA."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_fused, "_needs_channels", lambda q: True)
        yield


def carried(*args, **options):
    with channels():
        return kernel_integral(*args, **options)


def all_rows(bias, past):
    rows = bias(slice(None)) if callable(bias) else bias
    return rows if past is None else past.restrict(rows, slice(None), slice(None))


def merged(q, k, v, weights=None, *, bias=None, factors=None, past=None):
    """Three shards, interleaved, in another order than that of the sources."""
    rows = all_rows(bias, past)
    return merge(
        partial_integral(
            q,
            k[..., s, :],
            v[..., s, :],
            None if weights is None else weights[..., s],
            bias=None if rows is None else rows[..., s],
            factors=factors and (factors[0], factors[1][..., s, :]),
        )
        for s in (slice(2, None, 3), slice(0, None, 3), slice(1, None, 3))
    )[0]


def dense(q, k, v, weights=None, *, bias=None, factors=None, past=None):
    return partial_integral(q, k, v, weights, bias=all_rows(bias, past), factors=factors)[0]


def by(**chunks):
    return lambda *args, **options: kernel_integral(*args, **options, **chunks)


PATHS = {
    "fused": kernel_integral,
    "carried": carried,
    "chunk": by(chunk=2),
    "chunk of one": by(chunk=1),
    "source_chunk": by(source_chunk=3),
    "both chunks": by(chunk=3, source_chunk=2),
    "merged": merged,
    "definition": dense,
}
every_path = pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
WEIGHTS = ("none", "uniform", "graded", "nulls")


def weights_of(kind, *batch):
    w = 10 ** (4 * torch.rand(*batch, M) - 4)
    match kind:
        case "none":
            return None
        case "uniform":
            return torch.full_like(w, 0.3)
        case "nulls":
            w[..., ::3] = 0
    return w


def inputs(batch=(), c=E, *, factors=True, bias=True, dtype=torch.float64):
    """Tensors that want a gradient, rounded to the dtype."""
    shapes = {"q": (H, N, E), "k": (H, M, E), "v": (H, M, c)}
    shapes |= {"fq": (H, N, R), "fk": (H, M, R)} if factors else {}
    shapes |= {"bias": (H, N, M)} if bias else {}
    return {
        name: torch.randn(*batch, *shape).to(dtype).requires_grad_()
        for name, shape in shapes.items()
    }


def run(path, x, w, *, lazy=False):
    bias = x.get("bias")
    given = (lambda rows: bias[..., rows, :]) if lazy else bias
    factors = (x["fq"], x["fk"]) if "fq" in x else None
    return path(x["q"], x["k"], x["v"], w, bias=given, factors=factors)


def expected(x, w, g):
    x = {name: tensor.detach().double().numpy() for name, tensor in x.items()}
    factors = (x["fq"], x["fk"]) if "fq" in x else None
    w = None if w is None else w.double().numpy()
    return oracle(x["q"], x["k"], x["v"], w, factors, x.get("bias"), g.double().numpy())


def check(path, x, w, *, lazy=False):
    y = run(path, x, w, lazy=lazy)
    g = torch.randn_like(y)
    gradients = torch.autograd.grad(y, list(x.values()), g)
    want, dtype = expected(x, w, g), x["q"].dtype
    assert y.dtype == x["v"].dtype
    assert difference(y, want["y"]) < ROUNDING[dtype]
    for name, gradient in zip(x, gradients, strict=True):
        assert difference(gradient, want[name]) < GRADIENT[dtype], name


# Against the definition


@every_path
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("factors", [False, True], ids=["", "factors"])
@pytest.mark.parametrize("bias", ["", "bias", "callable"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values_and_gradients(path, weights, factors, bias, dtype):
    x = inputs(factors=factors, bias=bool(bias), dtype=dtype)
    check(path, x, weights_of(weights), lazy=bias == "callable")


@every_path
@pytest.mark.parametrize("batch", [(3,), (2, 3)])
@pytest.mark.parametrize("shared", [False, True], ids=["", "shared"])
@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
def test_batches(path, batch, shared, bias):
    """Weights of each sample, or one set (m,) for all."""
    check(path, inputs(batch, bias=bias), weights_of("nulls", *(() if shared else batch)))


@every_path
@pytest.mark.parametrize("c", [1, 3, 8, 9])
@pytest.mark.parametrize("weights", WEIGHTS)
def test_widths_that_differ(path, c, weights):
    check(path, inputs((2,), c, factors=False, bias=False), weights_of(weights))


@every_path
def test_a_sample_with_equal_weights_beside_one_without(path):
    w = torch.stack([torch.full((M,), 0.5), weights_of("graded")])
    check(path, inputs((2,)), w)


@every_path
@pytest.mark.parametrize("shape", [(N, M), (1, N, M), (H, 1, M), (2, 1, N, M), (2, 1, 1, M)])
@pytest.mark.parametrize("lazy", [False, True], ids=["", "callable"])
def test_a_bias_is_broadcast(path, shape, lazy):
    x, bias = inputs((2,), bias=False), torch.randn(*shape)
    full, w = bias.expand(2, H, N, M), weights_of("graded")

    def rows(t):
        return bias[..., t, :] if bias.shape[-2] > 1 else bias

    y = path(x["q"], x["k"], x["v"], w, bias=rows if lazy else bias, factors=(x["fq"], x["fk"]))
    assert difference(y, run(dense, x | {"bias": full}, w)) < ROUNDING[torch.float64]


@every_path
def test_factors_are_broadcast(path):
    """One pair for all samples, one for all heads."""
    x, w = inputs((3,), bias=False, factors=False), weights_of("graded")
    fq, fk = torch.randn(H, N, R), torch.randn(3, 1, M, R)
    full = {"fq": fq.expand(3, -1, -1, -1), "fk": fk.expand(-1, H, -1, -1)}
    y = path(x["q"], x["k"], x["v"], w, factors=(fq, fk))
    assert difference(y, run(dense, x | full, w)) < ROUNDING[torch.float64]


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("bias", [False, True])
def test_gradcheck(weights, bias):
    x, w = inputs(bias=bias), weights_of(weights)
    names = list(x)
    assert torch.autograd.gradcheck(
        lambda *values: run(kernel_integral, dict(zip(names, values, strict=True)), w),
        list(x.values()),
    )


@every_path
def test_a_gaussian_in_closed_form(path):
    """Equal keys, b = -(x_s - x_t)² / 2, dμ = dx on [-9, 9]: the mean of cos is e^(-1/2) cos t."""
    s, t = torch.linspace(-9, 9, 2001), torch.tensor([-1.0, 0.0, 0.5])
    fq = torch.stack([t, torch.ones(3), -(t**2) / 2], -1)[None]
    fk = torch.stack([s, -(s**2) / 2, torch.ones(2001)], -1)[None]
    q, k, v = torch.zeros(1, 3, E), torch.zeros(1, 2001, E), s.cos()[None, :, None]
    w = torch.full((2001,), 18 / 2000)
    w[[0, -1]] /= 2
    y = path(q, k, v, w, factors=(fq, fk))[0, :, 0]
    assert difference(y, math.exp(-1 / 2) * t.cos()) < 1e-10  # half-width of the interval: 9 σ


# The measure


@every_path
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
@pytest.mark.parametrize("factors", [False, True], ids=["", "factors"])
def test_dead_sources(path, dtype, bias, factors):
    """A sample whose sources all have weight zero gets 0, beside one that is alive."""
    x = inputs((2,), bias=bias, factors=factors, dtype=dtype)
    w = torch.stack([torch.zeros(M), weights_of("graded")])
    y = run(path, x, w)
    assert (y[0] == 0).all()
    assert (y[1] != 0).all()
    for name, gradient in zip(x, torch.autograd.grad(y.sum(), list(x.values())), strict=True):
        assert (gradient[0] == 0).all(), name
        assert gradient.isfinite().all(), name
    check(path, x, w)


@every_path
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e30])
@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
def test_what_null_sources_hold_is_not_read(path, value, bias):
    x, w = inputs(bias=bias), weights_of("nulls")
    null = (w == 0)[:, None]
    clean = run(path, x, w)
    bad = {
        name: t.detach().masked_fill(null, value) if name in ("k", "v", "fk") else t.detach()
        for name, t in x.items()
    }
    bad = {name: t.requires_grad_() for name, t in bad.items()}
    y = run(path, bad, w)
    assert torch.equal(y, clean)
    for name, gradient in zip(bad, torch.autograd.grad(y.sum(), list(bad.values())), strict=True):
        assert gradient.isfinite().all(), name
        if name in ("k", "v", "fk"):
            assert (gradient.masked_select(null) == 0).all(), name


@every_path
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_null_source_does_not_win_where_the_others_are_far(path, dtype):
    """A Gaussian at 40 lengths: all exponents are about -10⁶, and a null source stays at none."""
    gamma, x = 1e3, torch.linspace(0, 1, M)
    fq = torch.tensor([[[2 * gamma * 40, -gamma, -gamma * 1600]]], dtype=dtype)
    fk = torch.stack([x, x**2, torch.ones(M)], -1)[None].to(dtype)
    w = torch.ones(M)
    w[-2:] = torch.tensor([0.5, 0.0])
    q, k = torch.zeros(1, 1, E, dtype=dtype), torch.zeros(1, M, E, dtype=dtype)
    v = torch.ones(1, M, 1, dtype=dtype)
    assert path(q, k, v, w, factors=(fq, fk)).item() == pytest.approx(1)


@every_path
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_only_ratios_of_weights_count(path, dtype):
    x, w = inputs(dtype=dtype), weights_of("nulls")
    y = run(path, x, w)
    for c in (1e-300, 1e-27, 1e-12, 1e12, 1e300):
        assert difference(run(path, x, c * w), y) < ROUNDING[dtype]
    single = (1e-27 * w).float()
    bound = ROUNDING[torch.float32]  # that of the weights
    assert difference(run(path, x, single), y) < bound


@every_path
def test_coincident_copies_share_a_weight(path):
    x, w = inputs(bias=False), weights_of("graded")
    copies = torch.tensor([0, 1, 2, 2, 2, 3, 4, 5, 6])
    shares = torch.tensor([1, 1, 0.5, 0.2, 0.3, 1, 1, 1, 1])
    split = x | {name: x[name][..., copies, :] for name in ("k", "v", "fk")}
    y = run(path, split, w[copies] * shares)
    assert difference(y, run(path, x, w)) < ROUNDING[torch.float64]


@pytest.mark.parametrize("weights", ["none", "uniform"])
@pytest.mark.parametrize("dtype", [*DTYPES, torch.bfloat16], ids=str)
def test_equal_weights_are_plain_attention_bit_for_bit(weights, dtype):
    x = inputs((2,), factors=False, bias=False, dtype=dtype)
    plain = F.scaled_dot_product_attention(x["q"], x["k"], x["v"])
    assert torch.equal(run(kernel_integral, x, weights_of(weights)), plain)


def test_equal_weights_beside_padding_are_not_plain_attention():
    x, w = inputs(factors=False, bias=False), torch.tensor([1.0] * 5 + [0, 0])
    y = run(kernel_integral, x, w)
    short = run(kernel_integral, x | {name: x[name][..., :5, :] for name in "kv"}, w[:5])
    assert difference(y, short) < ROUNDING[torch.float64]


@every_path
@pytest.mark.parametrize("weights", WEIGHTS)
def test_a_row_of_minus_infinity_gives_zero(path, weights):
    x, w = inputs(), weights_of(weights)
    with torch.no_grad():
        x["bias"][0, 2] = -math.inf
        x["bias"][1, 3, 1:] = -math.inf
    y = run(path, x, w)
    g = torch.randn_like(y)
    gradients = torch.autograd.grad(y, list(x.values()), g)
    assert (y[0, 2] == 0).all()
    assert difference(y, expected(x, w, g)["y"]) < ROUNDING[torch.float64]
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_no_gradient_to_the_weights():
    x, w = inputs(), weights_of("graded").requires_grad_()
    y = run(kernel_integral, x, w)
    assert torch.autograd.grad(y.sum(), w, allow_unused=True) == (None,)


@every_path
def test_no_sources(path):
    x = {name: t[..., :0, :] if name in ("k", "v", "fk") else t for name, t in inputs().items()}
    x["bias"] = x["bias"][..., :0]
    assert torch.equal(run(path, x, torch.zeros(0)), torch.zeros(H, N, E))


@every_path
def test_no_targets(path):
    x = inputs(bias=False)
    x = {name: t[..., :0, :] if name in ("q", "fq") else t for name, t in x.items()}
    assert run(path, x, weights_of("graded")).shape == (H, 0, E)


# Parts


@pytest.mark.parametrize("weights", WEIGHTS)
def test_shards_merge_to_the_whole(weights):
    x, w = inputs(bias=False, factors=False), weights_of(weights)
    q, k, v = x.values()
    y, lse = partial_integral(q, k, v, w)
    p = q @ k.mT / math.sqrt(E) + (0 if w is None else w.log())
    assert difference(lse, p.logsumexp(-1)) < ROUNDING[torch.float64]
    for cuts in ([0, 3, 7], [0, 1, 2, 7], [0, 0, 7], [0, 7]):
        parts = [slice(a, b) for a, b in itertools.pairwise(cuts)]
        shards = [
            partial_integral(q, k[..., s, :], v[..., s, :], None if w is None else w[s])
            for s in parts
            if s.stop > s.start
        ]
        got = merge(shards)
        assert difference(got[0], y) < ROUNDING[torch.float64]
        assert difference(got[1], lse) < ROUNDING[torch.float64]


def test_merge_is_associative():
    x, w = inputs(bias=False, factors=False), weights_of("graded")
    q, k, v = x.values()
    a, b, c = (
        partial_integral(q, k[..., s, :], v[..., s, :], w[s])
        for s in (slice(0, 2), slice(2, 5), slice(5, 7))
    )
    for one, two in zip(merge([merge([a, b]), c]), merge([a, merge([b, c])]), strict=True):
        assert difference(one, two) < ROUNDING[torch.float64]


def test_dead_shards():
    x = inputs(bias=False, factors=False)
    q, k, v = x.values()
    dead = partial_integral(q, k, v, torch.zeros(M))
    assert (dead[1] == -math.inf).all()
    alive = partial_integral(q, k, v, weights_of("graded"))
    for one, two in zip(merge([dead, alive, dead]), alive, strict=True):
        assert difference(one, two) < ROUNDING[torch.float64]
    both = merge([dead, dead])
    assert (both[0] == 0).all()
    assert (both[1] == -math.inf).all()
    gradients = torch.autograd.grad(both[0].sum() + merge([dead, alive])[0].sum(), [q, k, v])
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_log_density():
    w = weights_of("nulls", 3)
    w[1] = 0
    centred, log_mean = log_density(w.float().requires_grad_())
    assert centred.dtype == log_mean.dtype == torch.float64
    assert not centred.requires_grad
    assert difference((centred + log_mean[:, None]).exp(), w.float()) < 1e-15
    alive = centred[[0, 2]].exp()
    assert difference(alive.sum(-1) / (alive > 0).sum(-1), torch.ones(2)) < 1e-15
    assert (centred[1] == -math.inf).all()
    assert log_mean[1] == 0
    assert (log_density(torch.full((5,), 7e-200))[0] == 0).all()
    assert difference(log_density(1e-200 * w)[0].exp(), centred.exp()) < ROUNDING[torch.float32]


# Memory


class Largest(TorchDispatchMode):
    """Numel of the largest tensor that any operation returns, forward and backward."""

    entries = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        sizes = [
            x.untyped_storage().nbytes() // x.element_size()
            for x in tree_leaves(out)
            if isinstance(x, torch.Tensor)
        ]
        self.entries = max(self.entries, *sizes, 0)
        return out


@pytest.mark.parametrize("weights", ["none", "graded"])
@pytest.mark.parametrize("path", [kernel_integral, carried], ids=["mask", "channels"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_factors_and_weights_need_no_matrix(weights, path, dtype):
    n, m, e, r = 600, 500, 8, 4
    q, k, v = (torch.randn(1, 1, size, e, dtype=dtype, requires_grad=True) for size in (n, m, m))
    factors = torch.randn(1, n, r, dtype=dtype), torch.randn(1, m, r, dtype=dtype)
    w = None if weights == "none" else torch.rand(m)
    with Largest() as seen:
        path(q, k, v, w, factors=factors).sum().backward()
    # Channels and some more; the CPU kernel's own blocks count as well.
    assert seen.entries < n * m / 8


def test_a_bias_is_made_chunk_by_chunk(monkeypatch):
    """Also by default, where a whole one would be large, and once more in the backward pass."""
    monkeypatch.setattr(_fused, "BIAS_ENTRIES", 2 * 50 * H * 100)
    q, k, v = (torch.randn(2, H, 100, 8, requires_grad=True) for _ in range(3))
    slope, calls = torch.ones((), requires_grad=True), []

    def bias(rows):
        calls.append((rows.start, rows.stop))
        t = torch.arange(100.0)
        return -slope * (t[rows, None] - t).abs().expand(2, H, -1, -1)

    with Largest() as seen:
        y = kernel_integral(q, k, v, torch.rand(100), bias=bias)
        assert calls == [(0, 50), (50, 100)]
        y.sum().backward()
    assert sorted(calls) == [(0, 50), (0, 50), (50, 100), (50, 100)]
    assert seen.entries <= 2 * H * 50 * 100
    assert slope.grad.abs() > 0
    with torch.no_grad():
        calls.clear()
        kernel_integral(q, k, v, bias=bias, chunk=30)
        assert calls == [(0, 30), (30, 60), (60, 90), (90, 100)]


# Precision


def test_float64_weights_with_float32_inputs():
    x = inputs(dtype=torch.float32)
    for path in PATHS.values():
        y = run(path, x, weights_of("graded").double())
        assert y.dtype == torch.float32
        assert y.isfinite().all()


@pytest.mark.parametrize("factors", [False, True], ids=["", "factors"])
@every_path
def test_bfloat16(path, factors):
    x = inputs((2,), 8, factors=factors, bias=False, dtype=torch.bfloat16)
    w = weights_of("nulls", 2)
    y = run(path, x, w)
    assert y.dtype == torch.bfloat16
    assert difference(y, expected(x, w, torch.zeros_like(y))["y"]) < BFLOAT16
    gradients = torch.autograd.grad(y.sum(), list(x.values()))
    assert all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize("e", [8, 24, 40, 64])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_keeps_the_weights(e, dtype):
    """Cells of 1e-27 spread over six decades: each w is off by less than 1 %.

    log w alone, in bfloat16, would be off by up to 2^-9 · 14, which is 3 % of w.
    """
    m = 64
    w = 1e-27 * 10 ** (6 * torch.rand(m) - 3)
    q, k = torch.zeros(1, 1, e, dtype=dtype), torch.zeros(1, m, e, dtype=dtype)
    mean = kernel_integral(q, k, torch.eye(m, dtype=dtype)[None], w)[0, 0].double()
    assert mean.sum() == pytest.approx(1, abs=0.01)
    large = w > 1e-3 * w.max()  # what is smaller is below the smallest float16
    assert ((mean / (w / w.sum()) - 1).abs()[large] < 0.01).all()


@pytest.mark.parametrize("path", ["fused", "carried", "chunk", "source_chunk", "definition"])
def test_autocast_leaves_factors_alone(path):
    """Factor channels of size γR² = 400 cancel: in bfloat16 the exponent would be off by one."""
    x = 2 * torch.rand(20, 2, dtype=torch.float32) - 1
    gamma, ones = 200.0, torch.ones(20, 1, dtype=torch.float32)
    square = (x**2).sum(-1, keepdim=True)
    fq = torch.cat([2 * gamma * x, -gamma * ones, -gamma * square], -1).expand(H, -1, -1)
    fk = torch.cat([x, square, ones], -1).expand(H, -1, -1)
    q, k, v = torch.randn(3, H, 20, E, dtype=torch.float32)
    w = torch.rand(20)
    exact = dense(q.double(), k.double(), v.double(), w, factors=(fq.double(), fk.double()))
    with torch.autocast("cpu", torch.bfloat16):
        y = PATHS[path](q, k, v, w, factors=(fq, fk))
    assert y.dtype == torch.float32
    assert difference(y, exact) < 1e-4  # eps γR² = 5e-5


def test_autocast_without_factors():
    x = inputs((2,), 8, factors=False, bias=False, dtype=torch.float32)
    w = weights_of("graded")
    with torch.autocast("cpu", torch.bfloat16):
        y = run(kernel_integral, x, w)
    assert y.dtype == torch.float32
    assert difference(y, expected(x, w, torch.zeros_like(y))["y"]) < 2 * BFLOAT16  # inputs too


# Refusals

Q, K, V = torch.zeros(2, H, N, E), torch.zeros(2, H, M, E), torch.zeros(2, H, M, 3)


@pytest.mark.parametrize("function", [kernel_integral, partial_integral])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((Q[0, 0], K[0, 0], V[0, 0]), r"must fit, got \(5, 4\)"),
        ((Q, K[:1], V), r"must fit, got \(2, 2, 5, 4\), \(1, 2, 7, 4\)"),
        ((Q, K[..., :3], V), r"must fit, .* \(2, 2, 7, 3\)"),
        ((Q, K, V[:, :, :6]), r"must fit, .* \(2, 2, 6, 3\)"),
        ((Q, K[:, :1], V), "must fit"),
        ((Q, K, V, torch.ones(6)), r"weights must be \(2, 7\) .* got \(6,\)"),
        ((Q, K, V, torch.ones(1)), r"weights must be \(2, 7\) .* got \(1,\)"),
        ((Q, K, V, torch.ones(3, 7)), r"weights must be \(2, 7\) .* got \(3, 7\)"),
        ((Q, K, V, torch.ones(2, H, 7)), r"weights must be \(2, 7\) .* got \(2, 2, 7\)"),
        ((Q, K, V, torch.tensor([1.0] * 6 + [-1])), r"not negative, entry \[6\]"),
        ((Q, K, V, torch.tensor([1.0, math.nan] + [1] * 5)), r"finite .* entry \[1\]"),
        ((Q, K, V, torch.tensor([math.inf] + [1.0] * 6)), r"finite .* entry \[0\]"),
    ],
)
def test_refuses(function, arguments, message):
    with pytest.raises(ValueError, match=message):
        function(*arguments)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"factors": (Q[..., :2], K[..., :3])}, "factors of the sources must be .* 7, 2"),
        ({"factors": (Q[:, :, :4], K)}, "factors of the targets must be .* 5, 4"),
        ({"factors": (Q, K[:, :, :6])}, "factors of the sources"),
        ({"factors": (Q, K[:, :, :1])}, "factors of the sources"),
        ({"bias": torch.zeros(H, M, N)}, r"bias must be .* \(2, 2, 5, 7\), .* got \(2, 5, 5\)"),
        ({"bias": torch.zeros(3, N, M)}, "bias must be"),
        ({"bias": torch.zeros(2, 2, H, N, M)}, "bias must be"),
        ({"bias": lambda rows: torch.zeros(H, 1, N)}, "bias must be"),
        ({"chunk": 0}, "at least 1 point, got 0"),
        ({"chunk": -1}, "at least 1 point, got -1"),
        ({"source_chunk": 0}, "at least 1 point, got 0"),
    ],
)
def test_refuses_options(options, message):
    with pytest.raises(ValueError, match=message):
        kernel_integral(Q, K, V, torch.rand(7), **options)


def test_a_boolean_bias_is_refused():
    """Added as 0 and 1 it would mask nothing."""
    q, k = torch.zeros(1, 2, 4), torch.zeros(1, 2, 4)
    with pytest.raises(ValueError, match=r"must be floating, got torch.bool; for a mask use"):
        kernel_integral(q, k, k, bias=torch.ones(1, 2, 2, dtype=torch.bool))
