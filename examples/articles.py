"""The figures of docs/articles.md: what each part of the transformer means on a domain, measured.

One function for each figure returns its numbers, another draws them. ``articles.py OUT`` writes all
pictures into a folder, in about a minute; ``--quick`` trains hardly at all, to see that it runs.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any

import meshio
import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import ScalarFormatter
from matplotlib.tri import Triangulation
from PIL import Image
from torch import Tensor, nn

from opformer import (
    Attention,
    Domain,
    Encoder,
    OperatorTransformer,
    Sample,
    Surrogate,
    evaluate,
    fit,
    grid,
    kernel_integral,
)
from opformer.embedding import Embedding, token_domain
from opformer.encodings import (
    Compose,
    DistanceBias,
    ExponentialDecay,
    PowerLaw,
    Rotary,
    Sinusoidal,
)
from opformer.steps import attention_weights, similarity
from opformer.testing import observed_order

Numbers = dict[str, Any]
# Okabe and Ito's colours, which a colour-blind reader tells apart.
BLUE, ORANGE, GREEN, PURPLE, GREY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#777777"


def picture(*widths: float, height: float = 2.9) -> tuple[Figure, list[Any]]:
    """A figure 7 inches wide, with panels side by side."""
    figure = Figure(figsize=(7, height), layout="constrained")
    axes = figure.subplots(1, len(widths), width_ratios=widths, squeeze=False)[0]
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
    return figure, list(axes)


def save(figure: Figure, path: Path) -> None:
    """As a PNG of a palette: half the size, and no eye sees the difference."""
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=100)
    Image.open(buffer).convert("RGB").quantize(256).save(path, optimize=True)


def logarithmic(ax: Any, ticks: Sequence[float], **labels: Any) -> None:
    """Both axes logarithmic, with plain numbers along the first."""
    ax.set(xscale="log", yscale="log", **labels)
    plain(ax.xaxis, ticks)


def plain(axis: Any, ticks: Sequence[float]) -> None:
    axis.set_ticks(ticks)
    axis.set_ticks([], minor=True)
    axis.set_major_formatter(ScalarFormatter())


def curves(ax: Any, numbers: Numbers, x: str, styles: dict[str, tuple[str, str, str]]) -> None:
    """Numbers over others, each in its own style: marker and line, colour, label."""
    for name, (line, colour, label) in styles.items():
        ax.plot(numbers[x], numbers[name], line, color=colour, label=label or None)


def slope(ax: Any, x: Sequence[float], y: float, power: float, label: str) -> None:
    """A thin line of a power of x that ends at y."""
    ends = [y * (x[0] / x[-1]) ** power, y]
    ax.plot([x[0], x[-1]], ends, ":", color=GREY, lw=1)
    ax.annotate(label, (x[0], ends[0]), (2, -7), textcoords="offset points", va="top")


# A2: the scale of the embedding


def embedding() -> Numbers:
    """Root mean squares of words and of positions, for tokens of growing width."""
    widths, tokens, rows = [2**i for i in range(3, 11)], torch.arange(200), []
    for width in widths:
        torch.manual_seed(0)
        word = Embedding(200, width)(tokens).detach()
        place = Sinusoidal(1, width).table(token_domain(tokens >= 0).points)
        rows.append([rms(word / math.sqrt(width)), rms(word), rms(place)])
    plain, scaled, position = zip(*rows, strict=True)
    return {"widths": widths, "plain": plain, "scaled": scaled, "position": position}


def rms(x: Tensor) -> float:
    return float(x.double().square().mean().sqrt())


def draw_embedding(numbers: Numbers) -> Figure:
    figure, (ax,) = picture(1, height=2.7)
    styles = {
        "scaled": ("o-", BLUE, "word, times √d_model"),
        "position": ("s-", GREEN, "position"),
        "plain": ("^-", ORANGE, "word, as drawn"),
    }
    curves(ax, numbers, "widths", styles)
    logarithmic(ax, numbers["widths"], xlabel="d_model", ylabel="root mean square of a channel")
    ax.legend(frameon=False)
    return figure


# A3: the integral, its measure, and the scale of the scores


def warped(x: np.ndarray) -> np.ndarray:
    """Steps that grow twelvefold across the unit interval."""
    return np.expm1(2.5 * x) / np.expm1(2.5)


def pressed(x: np.ndarray) -> np.ndarray:
    """Cells pressed together along curves in the interior."""
    across = np.roll(np.cos(2 * np.pi * x), 1, axis=-1)
    return x + 0.1 * np.sin(2 * np.pi * x) * (1 + 0.5 * across)


def square(n: int, grading: Callable[[np.ndarray], np.ndarray]) -> meshio.Mesh:
    """The unit square in triangles, n nodes along each side."""
    t = np.linspace(0, 1, n)
    k = np.arange(n * n).reshape(n, n)
    a, b, c, d = (part.ravel() for part in (k[:-1, :-1], k[1:, :-1], k[1:, 1:], k[:-1, 1:]))
    points = grading(np.stack(np.meshgrid(t, t, indexing="ij"), -1)).reshape(-1, 2)
    return meshio.Mesh(points, [("triangle", np.vstack([np.c_[a, b, c], np.c_[a, c, d]]))])


def operator(source: Domain, target: Tensor, *, weighted: bool = True) -> Tensor:
    """Attention with smooth queries, keys and values: a fixed kernel integral on the square."""
    x, y = target.T
    q = 4 * torch.stack([(3 * x).sin(), (2 * y).cos(), x + y, x - y], -1)
    x, y = source.points.T
    k = torch.stack([(3 * x).cos(), (3 * y).sin(), x * y, y - 1], -1)
    v = torch.stack([(5 * x).sin() + y, (4 * x * y).cos()], -1)
    return kernel_integral(q[None], k[None], v[None], source.weights if weighted else None)[0]


def gauss(n: int) -> Domain:
    """Gauss-Legendre points of the square: the continuum, to all digits."""
    x, w = (torch.from_numpy(a) / 2 for a in np.polynomial.legendre.leggauss(n))
    points = torch.cartesian_prod(x + 0.5, x + 0.5)
    return Domain(points, torch.kron(w, w))


def convergence() -> Numbers:
    """Errors of the integral on finer and finer graded meshes, with log w and without."""
    sizes, target = [9, 17, 33, 65, 129], gauss(5).points
    h, exact = [1 / (n - 1) for n in sizes], operator(gauss(40), target)
    numbers: Numbers = {"h": h, "nodes": [n * n for n in sizes]}
    for name, grading in (("warped", warped), ("pressed", pressed)):
        domains = [Domain.from_mesh(square(n, grading)) for n in sizes]
        for key, weighted in ((name, True), (f"{name}_plain", False)):
            results = [operator(domain, target, weighted=weighted) for domain in domains]
            numbers[key] = [largest(y - exact) / largest(exact) for y in results]
        numbers[f"{name}_order"] = observed_order(h, numbers[name], at_least=1.8)
    return numbers


def largest(x: Tensor) -> float:
    return float(x.detach().abs().max())


def draw_convergence(numbers: Numbers) -> Figure:
    figure, (left, middle, right) = picture(1, 1, 1.9)
    for ax, grading, title in ((left, warped, "● graded"), (middle, pressed, "■ pressed together")):
        mesh = square(17, grading)
        ax.triplot(*mesh.points.T, mesh.cells[0].data, color=GREY, lw=0.5)
        ax.set_title(title, fontsize=9, loc="left")
        ax.set(aspect="equal", xlim=(0, 1), ylim=(0, 1))
        ax.set_axis_off()
    styles = {
        "warped_plain": ("o--", ORANGE, "softmax over the nodes"),
        "pressed_plain": ("s--", ORANGE, ""),
        "warped": ("o-", BLUE, "with log w"),
        "pressed": ("s-", BLUE, ""),
    }
    curves(right, numbers, "nodes", styles)
    slope(right, numbers["nodes"], numbers["warped"][-1] / 4, -1, "h²")
    logarithmic(right, numbers["nodes"], xlabel="nodes of the mesh", ylabel="relative error")
    right.legend(frameon=False, loc="center right", bbox_to_anchor=(1, 0.68))
    return figure


def saturation() -> Numbers:
    """Softmax over 64 random keys: how many count, and how much a score still moves it."""
    widths, m = [2**i for i in range(1, 12)], 64
    numbers: Numbers = {"widths": widths, "sources": m}
    for name, power in (("scaled", 0.0), ("plain", 0.5)):
        counts, slopes = [], []
        for width in widths:
            generator = torch.Generator().manual_seed(width)
            q, k = torch.randn(2, 512, m, width, generator=generator)
            a = attention_weights(similarity(q[:, :1], k) * width**power)[:, 0].double()
            counts.append(float(torch.special.entr(a).sum(-1).exp().mean()))
            jacobian = torch.diag_embed(a) - a[:, :, None] * a[:, None]
            slopes.append(float(torch.linalg.matrix_norm(jacobian).mean()))
        numbers |= {f"{name}_count": counts, f"{name}_slope": slopes}
    return numbers


def draw_saturation(numbers: Numbers) -> Figure:
    figure, axes = picture(1, 1, height=2.7)
    labels = {"count": "exp(entropy), sources", "slope": "norm of ∂α/∂p"}
    for ax, (key, label) in zip(axes, labels.items(), strict=True):
        styles = {
            f"scaled_{key}": ("o-", BLUE, "q·k / √d_k"),
            f"plain_{key}": ("s--", ORANGE, "q·k"),
        }
        curves(ax, numbers, "widths", styles)
        logarithmic(ax, numbers["widths"][1::3], xlabel="d_k", ylabel=label)
    plain(axes[0].yaxis, [1, 3, 10, 30])
    plain(axes[1].yaxis, [0.05, 0.1, 0.2, 0.3])
    axes[0].legend(frameon=False, loc="lower left")
    return figure


# A4: several kernels, and a kernel between two domains

BEHIND, AHEAD, WIDTH = 0.2, 0.1, 0.05


def waves(generator: torch.Generator) -> Callable[[Tensor], Tensor]:
    """A random smooth function of points (n, 1)."""
    k = 8 * torch.randn(1, 12, generator=generator, dtype=torch.float64)
    phase = 2 * math.pi * torch.rand(12, generator=generator, dtype=torch.float64)
    return lambda x: torch.cos(x @ k + phase).sum(-1, keepdim=True) / math.sqrt(6)


def case(generator: torch.Generator, n: int = 60) -> Sample:
    """Means of f about t - 0.2 and about t + 0.1, their difference, on n unequal points."""
    x = torch.rand(n, 1, generator=generator, dtype=torch.float64).square().sort(0).values
    x[0], x[-1] = 0, 1
    f, fine = waves(generator), grid(torch.linspace(0, 1, 801))

    def mean(about: float) -> Tensor:
        kernel = torch.exp(-(((fine.points.T - x - about) / WIDTH) ** 2) / 2) * fine.weights
        return kernel @ f(fine.points) / kernel.sum(1, keepdim=True)

    u = mean(-BEHIND) - mean(AHEAD)
    return Sample(Domain.from_points(x, rule="interval"), f(x), outputs=u)


def cases(seed: int, number: int, n: int = 60) -> list[Sample]:
    generator = torch.Generator().manual_seed(seed)
    return [case(generator, n) for _ in range(number)]


def network(layers: int, positions: bool = True) -> OperatorTransformer:
    """A small model; without positions it sees a set of values."""
    torch.manual_seed(0)
    encoding = Rotary(1, 2, 8, directions="axes") if positions else Compose()
    return OperatorTransformer(1, 1, 1, channels=16, heads=2, layers=layers, encoding=encoding)


@lru_cache
@torch.enable_grad()
def fitted(layers: int, positions: bool, epochs: int) -> Surrogate:
    options = {"batch_size": 16, "learning_rate": 1e-2, "progress": False}
    return fit(network(layers, positions), cases(0, 128), epochs=epochs, **options)


def lifted(
    model: OperatorTransformer, surrogate: Surrogate, sample: Sample
) -> tuple[Tensor, Domain]:
    """The tokens that the first block gets, and their domain in the model's coordinates."""
    scale = surrogate.standardizer
    domain = scale.scale_domain(sample.source).to(dtype=torch.float32)
    return model.lift(scale.scale_fields(sample.fields).float(), domain), domain


def errors(surrogate: Surrogate) -> list[float]:
    """Relative errors on new cases of 60 points, and of 240."""
    evaluation = evaluate(surrogate, cases(1, 24), cases(1, 24, 240), progress=False)
    return [row["fields"]["output"]["relative_l2"] for row in evaluation.summary()]


@torch.no_grad()
def heads(epochs: int = 30) -> Numbers:
    """The kernels of the two heads of a fitted layer, and where they have their weight."""
    surrogate = fitted(1, True, epochs)
    (sample,) = cases(2, 1, 120)
    x, domain = lifted(surrogate.model, surrogate, sample)
    block = surrogate.model.encoder.blocks[0]
    alpha = block.attention.kernel(block.attention_norm(x), domain).double()
    t = sample.source.points
    lag = alpha * sample.source.weights @ t - t  # (h, n, 1)
    inside = (t > 0.4) & (t < 0.8)  # where no kernel is cut off by an end
    return {
        "t": t[:, 0],
        "alpha": alpha,
        "lag": [float(x[inside].mean()) for x in lag],
        "errors": errors(surrogate),
    }


def edges(t: Tensor) -> np.ndarray:
    """Borders of the cells about points of a line."""
    middle = (t[1:] + t[:-1]) / 2
    return torch.cat([t[:1], middle, t[-1:]]).numpy()


def draw_heads(numbers: Numbers) -> Figure:
    figure, axes = picture(1, 1, height=3.3)
    t, ends = edges(numbers["t"]), np.array([0.0, 1.0])
    for alpha, ax, title in zip(numbers["alpha"], axes, ("one head", "the other"), strict=True):
        image = ax.pcolormesh(t, t, alpha, cmap="cividis", vmin=0, vmax=12)
        for lag in (-BEHIND, AHEAD):
            ax.plot(ends + lag, ends, "--", color="white", lw=0.9)
        ax.set(aspect="equal", xlim=(0, 1), ylim=(1, 0), xlabel="source s")
        ax.set_title(title, fontsize=10)
    axes[0].set_ylabel("target t")
    figure.colorbar(image, ax=axes, label="kernel α(t, s), per unit length", extend="max")
    return figure


def circle(n: int) -> tuple[Domain, Tensor]:
    """Nodes at unequal distances on the unit circle, with lengths as weights, and their angles."""
    angle = 2 * math.pi / n * torch.arange(n, dtype=torch.float64)
    angle = angle + 0.6 * angle.sin()
    points = torch.stack([angle.cos(), angle.sin()], -1)
    k = np.arange(n)
    return Domain.from_mesh(meshio.Mesh(points, [("line", np.c_[k, np.roll(k, -1)])])), angle


def disc() -> tuple[Tensor, Tensor, Tensor]:
    """Points of the disc up to radius 0.9, with radius and angle."""
    r = torch.linspace(0, 0.9, 19, dtype=torch.float64)[1:].repeat_interleave(72)
    angle = torch.arange(72, dtype=torch.float64).mul(2 * math.pi / 72).repeat(18)
    return torch.stack([r * angle.cos(), r * angle.sin()], -1), r, angle


def harmonic() -> Numbers:
    """Laplace's equation in a disc: attention from the boundary, with the kernel 1 / |t - s|²."""
    sizes, (points, r, angle) = [32, 64, 128, 256, 512], disc()
    exact = 0.7 * r * angle.sin() + r**3 * (3 * angle).cos()
    target, kernel = Domain(points, torch.zeros(len(points))), DistanceBias(inverse_square())
    numbers: Numbers = {"nodes": sizes, "exact": exact, "points": points}
    for n in sizes:
        boundary, at = circle(n)
        q, k = torch.zeros(1, len(points), 8).double(), torch.zeros(1, n, 8).double()
        v = (0.7 * at.sin() + (3 * at).cos())[None, :, None]
        bias = kernel.bias(target, boundary).detach()
        for name, weights in (("weighted", boundary.weights), ("plain", None)):
            u = kernel_integral(q, k, v, weights, bias=bias)[0, :, 0]
            numbers.setdefault(name, []).append(largest((u - exact)[r <= 0.75]))
            if n == 64 and weights is not None:
                numbers |= {"u": u, "boundary": boundary.points}
    h, error = [1 / n for n in sizes[1:]], numbers["weighted"][1:]
    numbers["order"] = observed_order(h, error, at_least=1.8)
    return numbers


def inverse_square() -> PowerLaw:
    """The profile -2 log r, but for a constant and a tiny core."""
    return PowerLaw(1, length=1e-6, powers=(2.0, 2.0)).double()


def draw_harmonic(numbers: Numbers) -> Figure:
    figure, (left, right) = picture(1.15, 1.35)
    values = {"cmap": "RdBu_r", "levels": np.linspace(-1.75, 1.75, 15)}
    u = numbers["u"]
    image = left.tricontourf(Triangulation(*numbers["points"].T.numpy()), u, **values)
    left.plot(*numbers["boundary"].T, ".", color="black", ms=4)
    left.set(aspect="equal")
    left.set_axis_off()
    figure.colorbar(image, ax=left, label="u", shrink=0.8, ticks=[-1.5, 0, 1.5])
    styles = {
        "plain": ("s--", ORANGE, "equal weights"),
        "weighted": ("o-", BLUE, "lengths as weights"),
    }
    curves(right, numbers, "nodes", styles)
    slope(right, numbers["nodes"], numbers["weighted"][-1] / 2.5, -2, "h²")
    logarithmic(right, numbers["nodes"], xlabel="nodes on the boundary", ylabel="largest error")
    right.legend(frameon=False, loc="center right", bbox_to_anchor=(1, 0.7))
    return figure


# A5: masks

LENGTH = 0.5


def memory(*, atoms: bool = False) -> Attention:
    """Attention that is a fading memory alone: the kernel exp(-(t - s) / 0.5) of the past."""
    encoding = DistanceBias(ExponentialDecay(1, lengths=(LENGTH, LENGTH)))
    attention = Attention(1, 1, encoding=encoding, causal_axis=0, atoms=atoms).double()
    for name, p in attention.named_parameters():
        if "encoding" not in name:
            nn.init.constant_(p, float(name in ("value.weight", "out.weight")))
    return attention.requires_grad_(False)


def remembered(t: Tensor, k: float = 6.0) -> Tensor:
    """The exact integral of cos(k s) under that memory, for t > 0."""
    rate, e = 1 / LENGTH, (t / LENGTH).exp()
    whole = e * (rate * (k * t).cos() + k * (k * t).sin()) - rate
    return whole / (rate**2 + k**2) / ((e - 1) / rate)


def times(n: int, seed: int = 0) -> Domain:
    """A time grid on [0, 1], with steps that are random and grow."""
    t = torch.linspace(0, 1, n, dtype=torch.float64)
    move = torch.rand(n - 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    t[1:-1] += 0.8 / n * (move - 0.5)
    return Domain.from_points(t**1.5, rule="interval")


def masks() -> Numbers:
    """How much of each source a target hears, where the two lie on different time grids."""
    source, target = times(14), times(11, seed=1)
    x, y = torch.ones(14, 1).double(), torch.ones(11, 1).double()
    flat = Domain(source.points, source.weights)
    shares = []
    for atoms in (False, True):
        attention = memory(atoms=atoms)
        attention.encoding = Compose()
        alpha = attention.kernel(y, target, x, flat)[0]
        shares.append(alpha / alpha[:, :1])  # the first source is in the past of them all
    by_index = torch.ones(11, 14).tril()
    wrong = (by_index != 0) != (shares[1] != 0)
    return {
        "s": source.points[:, 0],
        "t": target.points[:, 0],
        "cell": shares[0],
        "atom": shares[1],
        "index": by_index,
        "wrong": int(wrong.sum()),
        "pairs": wrong.numel(),
    }


def draw_masks(numbers: Numbers) -> Figure:
    figure, axes = picture(1, 1, 1, height=2.5)
    s, t = edges(numbers["s"]), edges(numbers["t"])
    titles = ("by time, cells cut at t", "by time, whole atoms", "by index")
    for ax, name, title in zip(axes, ("cell", "atom", "index"), titles, strict=True):
        image = ax.pcolormesh(
            s, t, numbers[name], cmap="Blues", vmin=0, vmax=1.5, edgecolor="white", lw=0.4
        )
        ax.plot([0, 1], [0, 1], color=ORANGE, lw=1.3)
        ax.plot(numbers["t"], numbers["t"], "o", color=ORANGE, ms=3)
        ax.set(aspect="equal", xlim=(0, 1), ylim=(1, 0), xlabel="source's time s")
        ax.set(xticks=[0, 0.5, 1], yticks=[0, 0.5, 1])
        ax.set_title(title, fontsize=10)
    axes[0].set_ylabel("target's time t")
    figure.colorbar(image, ax=axes, label="share that counts", shrink=0.72, ticks=[0, 0.5, 1, 1.5])
    return figure


def volterra() -> Numbers:
    """Errors of the memory on finer time grids: cells that are cut, atoms, and equal weights."""
    sizes = [20, 40, 80, 160, 320, 640]
    variants = {
        "cell": (memory(), Domain),
        "atom": (memory(atoms=True), Domain),
        "plain": (memory(atoms=True), lambda points, weights: Domain(points, weights > 0)),
    }
    numbers: Numbers = {"nodes": sizes}
    for name, (attention, measure) in variants.items():
        for n in sizes:
            at = times(n, seed=n)
            t = at.points[1:]
            y = attention((6 * at.points).cos(), measure(at.points, at.weights))
            numbers.setdefault(name, []).append(largest(y[1:] - remembered(t)))
            if n == 20:
                numbers |= {"t": at.points[:, 0], f"y_{name}": y[:, 0]}
    h = [1 / n for n in sizes]
    numbers["cell_order"] = observed_order(h, numbers["cell"], at_least=1.8)
    numbers["atom_order"] = observed_order(h, numbers["atom"])
    return numbers


def draw_volterra(numbers: Numbers) -> Figure:
    figure, (left, right) = picture(1, 1.15)
    t = torch.linspace(0.001, 1, 400, dtype=torch.float64)
    left.plot(t, remembered(t), color="black", lw=1, label="exact")
    styles = {
        "cell": ("o-", BLUE, "cells cut at t"),
        "atom": ("^-", PURPLE, "whole atoms"),
        "plain": ("s-", ORANGE, "equal weights"),
    }
    curves(right, numbers, "nodes", styles)
    for name, (line, colour, _) in styles.items():
        left.plot(numbers["t"], numbers[f"y_{name}"], line[0], color=colour, ms=4, mfc="none")
    left.set(xlabel="time t", ylabel="y(t), of cos 6s")
    left.legend(frameon=False)
    slope(right, numbers["nodes"], numbers["cell"][-1] / 2.5, -2, "h²")
    logarithmic(right, numbers["nodes"], xlabel="nodes in time", ylabel="largest error")
    right.legend(frameon=False, loc="lower left")
    return figure


# A6: corrections and their gradients


@torch.no_grad()
def corrections(epochs: int = 20) -> Numbers:
    """What each block adds to its input, in L²(μ): attention and feed-forward, before and after."""
    surrogate = fitted(4, True, epochs)
    numbers: Numbers = {"errors": errors(surrogate)}
    for name, model in (("drawn", network(4)), ("fitted", surrogate.model)):
        rows = [shares(model, surrogate, sample) for sample in cases(1, 8)]
        numbers[name] = np.mean(rows, axis=0)  # (blocks, attention and feed-forward)
    return numbers


def shares(model: OperatorTransformer, surrogate: Surrogate, sample: Sample) -> list[list[float]]:
    """The norms of the two corrections over that of what they are added to, block by block."""
    rows, (x, domain) = [], lifted(model, surrogate, sample)
    for block in model.encoder.blocks:
        a = block.attention(block.attention_norm(x), domain)
        f = block.feed_forward(block.feed_forward_norm(x + a))
        rows.append([float(domain.norm(z) / domain.norm(to)) for z, to in ((a, x), (f, x + a))])
        x = x + a + f
    return rows


def draw_corrections(numbers: Numbers) -> Figure:
    figure, axes = picture(1, 1, height=2.7)
    axes[1].sharey(axes[0])
    place = np.arange(1, 5)
    for i, (ax, title) in enumerate(zip(axes, ("attention", "feed-forward"), strict=True)):
        ax.bar(place - 0.19, numbers["drawn"][:, i], 0.36, color=GREY, label="as drawn")
        ax.bar(place + 0.19, numbers["fitted"][:, i], 0.36, color=BLUE, label="fitted")
        ax.set(xlabel="block", xticks=place)
        ax.set_title(title, fontsize=10)
    axes[0].set_ylabel("size of the correction\nover that of its input")
    axes[1].legend(frameon=False)
    return figure


def gradients(depths: Sequence[int] = (2, 4, 8, 16, 32, 64), seeds: int = 4) -> Numbers:
    """Norms of the gradient at initialisation (Xavier), of all weights and block by block."""
    numbers: Numbers = {"depths": list(depths)}
    for name, norm_first in (("pre", True), ("post", False)):
        for depth in depths:
            rows = [gradient(depth, norm_first, seed) for seed in range(seeds)]
            blocks = np.exp(np.mean(np.log(rows), axis=0))  # the geometric mean over the draws
            total = np.sqrt((np.array(rows) ** 2).sum(1)).mean()
            numbers.setdefault(f"{name}_total", []).append(float(total))
            numbers.setdefault(f"{name}_last", []).append(float(blocks[-1]))
        numbers[f"{name}_blocks"] = blocks
    return numbers


def gradient(depth: int, norm_first: bool, seed: int) -> list[float]:
    """The norm of the gradient of a mean square error, for each block of a deep encoder."""
    torch.manual_seed(seed)
    options = {"qk_norm": False, "hidden": 128, "activation": "relu"}
    encoder = Encoder(depth, 32, 4, norm_first=norm_first, **options)
    for p in encoder.parameters():
        if p.ndim == 2:
            nn.init.xavier_uniform_(p)
    for layer in encoder.modules():
        if isinstance(layer, nn.Linear) and layer.bias is not None:
            nn.init.zeros_(layer.bias)
    x, truth = torch.randn(2, 32, 32)
    domain = grid(torch.linspace(0, 1, 32))
    (encoder(x, domain) - truth).square().mean().backward()
    return [
        math.sqrt(sum(float(p.grad.square().sum()) for p in block.parameters()))
        for block in encoder.blocks
    ]


def draw_gradients(numbers: Numbers) -> Figure:
    figure, (left, right) = picture(1, 1)
    styles = {"post_total": ("s--", ORANGE, "Post-LN"), "pre_total": ("o-", BLUE, "Pre-LN")}
    curves(left, numbers, "depths", styles)
    styles = {"post_blocks": ("--", ORANGE, "Post-LN"), "pre_blocks": ("-", BLUE, "Pre-LN")}
    curves(right, numbers | {"block": range(1, numbers["depths"][-1] + 1)}, "block", styles)
    logarithmic(
        left, numbers["depths"], xlabel="number of blocks", ylabel="gradient norm, all weights"
    )
    left.legend(frameon=False)
    plain(left.yaxis, [0.5, 1, 2, 4])
    right.set(
        xlabel=f"block, of {numbers['depths'][-1]}", ylabel="gradient norm, one block", yscale="log"
    )
    right.legend(frameon=False)
    plain(right.yaxis, [0.1, 0.3, 1])
    return figure


# A8: positions


def distances() -> Numbers:
    """The product of two sinusoidal positions over their offset, whatever the first one is."""
    lag = torch.arange(0, 101, dtype=torch.float64)
    numbers: Numbers = {"lag": lag, "widths": [32, 128, 512]}
    for width in numbers["widths"]:
        table = Sinusoidal(1, width).table
        rows = [
            table(lag[:, None] + t) @ table(torch.tensor([[float(t)]]).double()).T for t in (0, 700)
        ]
        numbers[width] = rows[0][:, 0] * 2 / width
        numbers[f"{width}_moved"] = largest(rows[1] - rows[0]) * 2 / width
        numbers[f"{width}_rise"] = largest(numbers[width] - numbers[width].cummin(0).values)
    far = torch.arange(1.0, 10001.0, dtype=torch.float64)[:, None]
    product = Sinusoidal(1, 512).table(far) @ Sinusoidal(1, 512).table(far[:1] * 0).T
    numbers["closest"] = float((512 - 2 * product).clamp(min=0).sqrt().min())
    return numbers


def draw_distances(numbers: Numbers) -> Figure:
    figure, (ax,) = picture(1, height=2.7)
    for width, colour in zip(numbers["widths"], (ORANGE, GREEN, BLUE), strict=True):
        ax.plot(numbers["lag"], numbers[width], color=colour, label=f"d_model = {width}")
    ax.set(xlabel="offset t − s", ylabel="⟨p(t), p(s)⟩ / (d_model/2)", ylim=(0, 1.02))
    ax.legend(frameon=False)
    return figure


TERMS = ("content × content", "content × position", "position × content", "position × position")
KINDS, TOKENS, CHANNELS, LAG = 4, 24, 32, 3


def sentences(
    task: str, generator: torch.Generator, size: int = 32
) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens of a kind and a mark, what is asked at each place, and where that has an answer."""
    kind = torch.randint(KINDS, (size, TOKENS), generator=generator)
    mark = torch.randint(2, (size, TOKENS), generator=generator)
    sign = 2.0 * mark - 1
    if task == "earlier":  # the mark of the token three places before
        return 2 * kind + mark, sign.roll(LAG, -1), torch.arange(TOKENS) >= LAG
    same = (kind[:, :, None] == kind[:, None]).to(sign)  # the mean mark of the same kind
    mean = (same @ sign.unsqueeze(-1)).squeeze(-1) / same.sum(-1)
    return 2 * kind + mark, mean, torch.arange(TOKENS) >= 0


def terms(steps: int = 250) -> Numbers:
    """Shares of the four terms in the scores, as drawn and after two tasks."""
    torch.manual_seed(0)
    words, attention = Embedding(2 * KINDS, CHANNELS), Attention(CHANNELS, 1, qk_norm=False)
    numbers: Numbers = {"drawn": expansion(words, attention)}
    with torch.no_grad():
        words.weight /= math.sqrt(CHANNELS)
    numbers["unscaled"] = expansion(words, attention)
    for task in ("earlier", "same"):
        numbers[task], numbers[f"{task}_error"] = learned(task, steps)
    return numbers


def learned(task: str, steps: int) -> tuple[list[float], float]:
    """One attention fitted to one task: the shares, and the mean square error over that of 0."""
    torch.manual_seed(0)
    words, attention = Embedding(2 * KINDS, CHANNELS), Attention(CHANNELS, 1, qk_norm=False)
    parts = nn.ModuleList([words, attention, nn.Linear(CHANNELS, 1)])
    optimiser = torch.optim.Adam(parts.parameters(), lr=5e-3)
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        tokens, truth, asked = sentences(task, generator)
        domain = token_domain(tokens >= 0)
        x = Sinusoidal(1, CHANNELS).embed(words(tokens), domain)
        answer = parts[2](attention(x, domain)).squeeze(-1)
        loss = (answer - truth)[:, asked].square().mean() / truth[:, asked].square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return expansion(words, attention), loss.item()


@torch.no_grad()
def expansion(words: Embedding, attention: Attention) -> list[float]:
    """Mean squares of the four terms, without their means over s, over the sum of all four."""
    tokens = sentences("same", torch.Generator().manual_seed(2))[0]
    content = words(tokens)
    place = Sinusoidal(1, CHANNELS).table(token_domain(tokens >= 0).points).to(content)
    queries = attention.query(content), place @ attention.query.weight.T
    sizes = []
    for q in queries:
        for x in (content, place):
            p = similarity(q, attention.key(x))
            sizes.append(float((p - p.mean(-1, keepdim=True)).square().mean()))
    return [size / sum(sizes) for size in sizes]


def draw_terms(numbers: Numbers) -> Figure:
    figure, (ax,) = picture(1, height=2.5)
    rows = {
        "as drawn, without √d_model": "unscaled",
        "as drawn": "drawn",
        "learned: “three places before”": "earlier",
        "learned: “of the same kind”": "same",
    }
    left = np.zeros(len(rows))
    for i, (term, colour) in enumerate(
        zip(TERMS, (BLUE, "#56B4E9", "#F0E442", ORANGE), strict=True)
    ):
        width = np.array([numbers[name][i] for name in rows.values()])
        ax.barh(list(rows), width, left=left, color=colour, label=term, height=0.66)
        left += width
    ax.set(xlim=(0, 1), xlabel="share of the squared scores")
    ax.invert_yaxis()
    figure.legend(frameon=False, loc="outside upper center", ncols=4, fontsize=8, handlelength=1)
    return figure


@torch.no_grad()
def positions(epochs: int = 30) -> Numbers:
    """The same model with positions and without, on a new case."""
    (sample,) = cases(3, 1, 120)
    numbers: Numbers = {"t": sample.source.points[:, 0], "truth": sample.outputs[:, 0]}
    for name, known in (("with", True), ("without", False)):
        surrogate = fitted(1, known, epochs)
        numbers[name] = surrogate(sample)[:, 0]
        numbers[f"{name}_error"] = errors(surrogate)[0]
    return numbers


def draw_positions(numbers: Numbers) -> Figure:
    figure, (ax,) = picture(1, height=2.7)
    ax.plot(numbers["t"], numbers["truth"], color="black", lw=1, label="truth")
    ax.plot(
        numbers["t"], numbers["with"], "o", color=BLUE, ms=4, mfc="none", label="with positions"
    )
    ax.plot(numbers["t"], numbers["without"], "s", color=ORANGE, ms=3, label="without")
    ax.set(xlabel="t", ylabel="u(t)")
    ax.legend(frameon=False, ncols=3, loc="upper center", bbox_to_anchor=(0.5, 1.17))
    return figure


FIGURES: dict[str, tuple[Callable[..., Numbers], Callable[[Numbers], Figure]]] = {
    "embedding": (embedding, draw_embedding),
    "convergence": (convergence, draw_convergence),
    "saturation": (saturation, draw_saturation),
    "heads": (heads, draw_heads),
    "harmonic": (harmonic, draw_harmonic),
    "masks": (masks, draw_masks),
    "volterra": (volterra, draw_volterra),
    "corrections": (corrections, draw_corrections),
    "gradients": (gradients, draw_gradients),
    "distances": (distances, draw_distances),
    "terms": (terms, draw_terms),
    "positions": (positions, draw_positions),
}
QUICK = {
    "heads": {"epochs": 1},
    "corrections": {"epochs": 1},
    "gradients": {"depths": (2, 4), "seeds": 1},
    "terms": {"steps": 2},
    "positions": {"epochs": 1},
}


def main() -> None:
    """Compute and draw them all, and print the numbers that are few."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="folder of the pictures")
    parser.add_argument("--quick", action="store_true", help="hardly train")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # on small tensors faster than several
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name, (compute, draw) in FIGURES.items():
        numbers = compute(**(QUICK.get(name, {}) if arguments.quick else {}))
        save(draw(numbers), arguments.out / f"{name}.png")
        few = {k: v for k, v in numbers.items() if isinstance(v, int | float)}
        print(name, *(f"{k}={v:.4g}" for k, v in few.items()))


if __name__ == "__main__":
    main()
