"""The parts of :mod:`opformer.testing`: random cases, one function for each group of contracts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from opformer.causal import Past
from opformer.domain import Domain, stack
from opformer.encodings.base import SYMMETRIES
from opformer.motions import turn

# Largest difference over the largest value. Motions of the domain also round the coordinates.
TOLERANCE = {
    torch.float64: {"default": 1e-12, "constant": 1e-12, "symmetry": 1e-10},
    torch.float32: {"default": 1e-5, "constant": 1e-6, "symmetry": 1e-5},
}
# What a broken symmetry must change at least, so that a promise of none can be told from one.
BROKEN = 1e-4


class ContractError(AssertionError):
    """A contract does not hold."""


class Case(NamedTuple):
    """Random input of a check."""

    source: Domain
    features: Tensor
    target: Domain
    tokens: Tensor

    def __str__(self) -> str:
        n, m, d = self.target.size, self.source.size, self.source.dim
        return f"{m} sources, {n} targets, d = {d}, {self.features.dtype}"


# Outputs (..., n, c) at the target of features on the source.
Apply = Callable[[Domain, Tensor, Domain, Tensor], Tensor]


def random_cases(
    dim: int,
    channels: int,
    target_channels: int,
    dtype: torch.dtype,
    generator: torch.Generator,
    size: int = 23,
) -> list[Case]:
    """Weights spread over three decades; as many targets as sources, and fewer."""

    def draw(n: int, channels: int) -> tuple[Tensor, Tensor]:
        points = 2 * torch.rand(n, dim, dtype=dtype, generator=generator) - 1
        return points, torch.randn(n, channels, dtype=dtype, generator=generator)

    cases = []
    for n in (size, 7):
        weights = 10 ** (3 * torch.rand(size, dtype=torch.float64, generator=generator) - 3)
        points, features = draw(size, channels)
        targets, tokens = draw(n, target_channels)
        cases.append(
            Case(Domain(points, weights), features, Domain(targets, torch.zeros(n)), tokens)
        )
    return cases


def perturb(module: nn.Module, generator: torch.Generator) -> None:
    """Move the parameters, so that what is zero at the start hides nothing."""
    with torch.no_grad():
        for p in module.parameters():
            if p.requires_grad:
                p.add_(0.1 * torch.randn(p.shape, dtype=p.dtype, generator=generator))


def check_measure(apply: Apply, cases: Sequence[Case]) -> None:
    """C1 to C4, and C6."""
    for case in cases:
        source, features, target, tokens = case
        y, m = apply(*case), source.size
        copies = torch.cat([torch.arange(m), torch.tensor([4, 4])])
        shares = torch.ones(m + 2, dtype=torch.float64).masked_fill(copies == 4, 1 / 3)
        split = Domain(source.points[copies], source.weights[copies] * shares)
        same("C1 split", apply(split, features[copies], target, tokens), y, case)
        points = torch.cat([source.points, source.points[:2] + 0.1])
        null = Domain(points, torch.cat([source.weights, source.weights.new_zeros(2)]))
        for value in (0.0, 1e3, torch.nan, torch.inf):
            padded = torch.cat([features, features.new_full((2, features.shape[1]), value)])
            same(f"C2 null (features of {value})", apply(null, padded, target, tokens), y, case)
        order = torch.arange(m - 1, -1, -1)
        permuted = apply(source.take(order), features[order], target, tokens)
        same("C3 permute (sources)", permuted, y, case)
        order = torch.arange(target.size - 1, -1, -1)
        permuted = apply(source, features, target.take(order), tokens[order])
        same("C3 permute (targets)", permuted, y[order], case)
        for c in (1e-12, 1e12):
            scaled = replace(source, weights=c * source.weights)
            same(f"C4 scale (by {c})", apply(scaled, features, target, tokens), y, case)
        _check_dead(apply, case)
    _check_batch(apply, *cases)


def check_targets(apply: Apply, case: Case) -> None:
    """C8 and C11."""
    parts = [
        apply(case.source, case.features, case.target.take(rows), case.tokens[rows])
        for rows in (slice(0, 3), slice(3, None))
    ]
    same("C8 chunk, C11 target", torch.cat(parts), apply(*case), case)


def check_causal(apply: Apply, case: Case, axis: int, atoms: bool) -> None:
    """C13: what is earlier hears no later field, bit for bit, and knows nothing of later points."""
    source, features, target, tokens = case
    times, now = source.points[:, axis], target.points[:, axis].median()
    early = target.points[:, axis] <= now
    other = case._replace(
        features=torch.where(times[:, None] > now, 1 - features, features),
        tokens=torch.where(early[:, None], tokens, 1 - tokens),
    )
    same("C13 causal (fields)", apply(*other)[early], apply(*case)[early], case, 0.0)
    last = times[times <= now].amax()
    past = Past(last[None], times, source.weights, atoms=atoms)
    cut = past.restrict(None, slice(None), slice(None))[0, 0].exp()
    ending, early = replace(source, weights=source.weights * cut), times <= last
    whole = apply(source, features, source, features)[early]
    same("C13 causal (domain)", apply(ending, features, source, features)[early], whole, case)


def check_symmetry(apply: Apply, case: Case, declared: str, *, strict: bool = True) -> None:
    """C10; ``strict``: the next larger group does not hold, so no empty promise is a way out."""
    y, rank = apply(*case), SYMMETRIES.index(declared)
    tolerance = TOLERANCE[case.features.dtype]["symmetry"]
    for group, name, motion in _motions(case.source.dim, case.source.points.dtype):
        source, target = (replace(d, points=motion(d.points)) for d in (case.source, case.target))
        moved = apply(source, case.features, target, case.tokens)
        if rank >= SYMMETRIES.index(group):
            same(f"C10 symmetry ({declared} declared, {name})", moved, y, case, tolerance)
        elif strict and difference(moved, y) < BROKEN:
            raise ContractError(
                f"C10 symmetry: {declared!r} is declared, but {name} changes nothing ({case})"
            )
        else:
            return


@torch.no_grad()
def equivariance(net: Any, parameters: Tensor, case: Case, declared: str) -> dict[str, float]:
    """C10 of a model whose outputs turn: the residual under each motion of the declared group."""
    source, features, target, tokens = case
    inputs, outputs = net.kinds
    residuals = {}
    for group, name, motion in _motions(source.dim, source.points.dtype):
        if SYMMETRIES.index(group) > SYMMETRIES.index(declared):
            continue
        zero = torch.zeros(1, source.dim, dtype=source.points.dtype)
        q = (motion(torch.eye(source.dim).to(zero)) - motion(zero)).T  # of x ↦ q x + a
        places = [replace(d, points=motion(d.points)) for d in (source, target)]
        found = []
        for there, f in ((None, None), (target, tokens)):
            y = net(source, features, there, parameters, target_fields=f)
            moved = net(
                places[0],
                turn(features, inputs, q),
                None if there is None else places[1],
                parameters,
                target_fields=None if f is None else turn(f, inputs, q),
            )
            expected = turn(y, outputs, q)
            tolerance = TOLERANCE[features.dtype]["symmetry"]
            same(f"C10 symmetry ({declared} declared, {name})", moved, expected, case, tolerance)
            found.append(difference(moved, expected))
        residuals[name] = max(found)
    return residuals


def check_alive(module: nn.Module, run: Callable[[], Tensor], case: Case) -> None:
    """C12, the gradients: above what rounding leaves of a zero."""
    module.zero_grad()
    y = run()
    (y * torch.linspace(-1, 2, y.numel(), dtype=y.dtype).reshape(y.shape)).sum().backward()
    gradients = {name: p.grad for name, p in module.named_parameters() if p.requires_grad}
    largest = {name: 0.0 if g is None else float(g.abs().max()) for name, g in gradients.items()}
    rounding = 100 * torch.finfo(y.dtype).eps * max(largest.values(), default=0.0)
    for name, size in largest.items():
        if not rounding < size < torch.inf:
            raise ContractError(f"C12 alive: the largest gradient of {name} is {size:.1e} ({case})")
    module.zero_grad()


def check_blocks(model: nn.Module, run: Callable[[], Tensor], case: Case) -> None:
    """C12, the blocks: changing any member of a module list changes the output."""
    lists = [(name, m) for name, m in model.named_modules() if isinstance(m, nn.ModuleList)]
    blocks = [(f"{name}.{i}", block) for name, blocks in lists for i, block in enumerate(blocks)]
    with torch.no_grad():
        y = run()
        for name, block in blocks:
            kept = deepcopy(block.state_dict())
            for parameter in block.parameters():
                parameter.mul_(1.1)
            changed = difference(run(), y)
            block.load_state_dict(kept)
            if kept and not changed > 0:
                raise ContractError(f"C12 alive: changing {name} changes nothing ({case})")


def check_coincident(apply: Apply, case: Case) -> None:
    """C2: finite gradients with respect to the positions where targets lie on sources."""
    points = case.source.points.clone().requires_grad_()
    domain = Domain(points, case.source.weights)
    y = apply(domain, case.features, domain, case.features)
    _check_gradient("gradients at coincident points", y, points, case)


def difference(a: Tensor, b: Tensor) -> float:
    """Largest difference over the largest value of b."""
    a, b = a.detach(), b.detach()
    return float((a - b).abs().max() / b.abs().max().clamp(min=1e-30))


def same(
    contract: str, got: Tensor, expected: Tensor, case: Case, tolerance: float | None = None
) -> None:
    """Raise unless two outputs agree."""
    bound = TOLERANCE[case.features.dtype]["default"] if tolerance is None else tolerance
    if got.shape != expected.shape:
        shapes = f"{tuple(got.shape)}, expected {tuple(expected.shape)}"
        raise ContractError(f"{contract}: shape {shapes} ({case})")
    found = difference(got, expected)
    if not found <= bound:
        raise ContractError(
            f"{contract}: relative difference {found:.2e}, allowed {bound:.0e} ({case})"
        )


def _check_dead(apply: Apply, case: Case) -> None:
    """C2, all sources of measure zero: finite values and gradients."""
    features = case.features.clone().requires_grad_()
    source = replace(case.source, weights=torch.zeros_like(case.source.weights))
    y = apply(source, features, case.target, case.tokens)
    if not y.isfinite().all():
        raise ContractError(f"C2 null: all weights zero give values that are not finite ({case})")
    _check_gradient("gradients with all weights zero", y, features, case)


def _check_gradient(name: str, y: Tensor, x: Tensor, case: Case) -> None:
    if y.requires_grad and x.numel():
        (gradient,) = torch.autograd.grad(y.square().sum(), x, allow_unused=True)
        if gradient is not None and not gradient.isfinite().all():
            raise ContractError(f"C2 null: {name} are not finite ({case})")


def _check_batch(apply: Apply, first: Case, second: Case) -> None:
    """C6, with a second sample that is padded with NaN."""
    source, features, target, tokens = second
    second = Case(source.take(slice(11)), features[:11], target, tokens)

    def together(one: Case, two: Case) -> Tensor:
        def joined(a: Tensor, b: Tensor, fill: float) -> Tensor:
            return torch.stack([a, torch.cat([b, a.new_full(a[len(b) :].shape, fill)])])

        return apply(
            stack([one.source, two.source]),
            joined(one.features, two.features, torch.nan),
            stack([one.target, two.target]),
            joined(one.tokens, two.tokens, 0.0),
        )

    y = together(first, second)
    same("C6 batch (first sample)", y[0], apply(*first), first)
    same("C6 batch (padded sample)", y[1, : second.target.size], apply(*second), second)
    other = Case(
        replace(second.source, points=second.source.points / 2),
        second.features + 1,
        replace(second.target, points=second.target.points / 2),
        second.tokens - 1,
    )
    same("C6 batch (neighbour changed)", together(first, other)[0], y[0], first, tolerance=0.0)


def _motions(dim: int, dtype: torch.dtype) -> Iterator[tuple[str, str, Callable[[Tensor], Tensor]]]:
    """The smallest group that holds each motion, its name, and the motion."""
    generator = torch.Generator().manual_seed(1)
    shift = torch.randn(dim, generator=generator, dtype=torch.float64).to(dtype)
    turn = torch.linalg.qr(torch.randn(dim, dim, generator=generator, dtype=torch.float64))[0]
    turn[:, 0] *= torch.linalg.det(turn).sign()
    mirror = turn.clone()
    mirror[:, 0] *= -1
    yield "translation", "translation", lambda x: x + shift
    if dim > 1:
        yield "SE(d)", "rotation", lambda x: x @ turn.to(dtype).T
    yield "E(d)", "reflection", lambda x: x @ mirror.to(dtype).T
