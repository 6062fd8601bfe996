"""What :func:`opformer.testing.check_encoding` asks of the hooks, outside an attention."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import cast

import torch
from torch import Tensor

from opformer._contracts import Case, ContractError, same
from opformer._fused import fits
from opformer.config import build, describe
from opformer.domain import stack
from opformer.encodings import PositionalEncoding
from opformer.integral import kernel_integral

__all__ = ["check_dtypes", "check_factors", "check_hooks", "check_rebuilt"]

# float32 against float64: rounded coordinates meet wave numbers and slopes of up to about 100.
PRECISION = 1e-4


def check_hooks(encoding: PositionalEncoding, case: Case, heads: int) -> None:
    """Shapes and dtypes of what the hooks return, for one sample and for a batch."""
    for source, features, target, tokens in (case, _twice(case)):
        x = _heads(tokens, heads)
        n, m, lead = target.size, source.size, tuple(tokens.shape[:-2])
        _like("embed", encoding.embed(features, source), features)
        _like("rotate", encoding.rotate(x, target), x)
        factors = encoding.factors(target, source, tokens)
        if factors is not None:
            _check_factor_shapes(factors, (*lead, heads, n), (*lead, heads, m))
        bias, shape = encoding.bias(target, source), (*lead, heads, n, m)
        if bias is not None and not fits(tuple(bias.shape), shape):
            raise ContractError(
                f"bias: expected shape (..., h, n, m) = {shape}, got {tuple(bias.shape)}"
            )


@torch.no_grad()
def check_factors(encoding: PositionalEncoding, case: Case, heads: int) -> None:
    """The kernel with the factors is that with their product as its bias."""
    factors = encoding.factors(case.target, case.source, case.tokens)
    if factors is not None:
        x, q = _heads(case.features, heads), _heads(case.tokens, heads)
        by_factors = kernel_integral(q, x, x, case.source.weights, factors=factors)
        bias = factors[0] @ factors[1].mT
        dense = kernel_integral(q, x, x, case.source.weights, bias=bias)
        same("factors (against their product as a bias)", by_factors, dense, case)


@torch.no_grad()
def check_dtypes(encoding: PositionalEncoding, case: Case, heads: int) -> None:
    """What the same parameters give in float32 and in float64."""
    single = _to(case, torch.float32)
    double = _to(single, torch.float64)
    encoding = deepcopy(encoding).float()
    check_hooks(encoding, single, heads)
    got = list(_outputs(encoding, single, heads))
    encoding = encoding.double()
    for (hook, y), (_, expected) in zip(got, _outputs(encoding, double, heads), strict=True):
        same(f"{hook} (float32 against float64)", y.double(), expected, single, PRECISION)


@torch.no_grad()
def check_rebuilt(encoding: PositionalEncoding, case: Case, heads: int) -> None:
    """What a checkpoint keeps: the class, the arguments of its constructor, and the state."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)  # what is drawn anew must be in the state, or it is lost
        try:
            config = describe(encoding)
            again = build(config)
            again.to(case.features.dtype).load_state_dict(encoding.state_dict())
        except (TypeError, RuntimeError) as error:
            raise ContractError(f"describe, build, load_state_dict: {error}") from error
    for name, value in config["arguments"].items():
        if (found := describe(again)["arguments"][name]) != value:
            raise ContractError(
                f"describe, build: argument {name!r} is {value!r} at first and {found!r} when "
                "built again: store it as it was given"
            )
    rebuilt = _outputs(cast(PositionalEncoding, again), case, heads)
    for (hook, y), (_, expected) in zip(rebuilt, _outputs(encoding, case, heads), strict=True):
        same(f"describe, build, load_state_dict ({hook})", y, expected, case, 0.0)


def _outputs(encoding: PositionalEncoding, case: Case, heads: int) -> Iterator[tuple[str, Tensor]]:
    """What each hook makes of a case; factors as their product."""
    source, features, target, tokens = case
    yield "embed", encoding.embed(features, source)
    yield "rotate", encoding.rotate(_heads(tokens, heads), target)
    if (factors := encoding.factors(target, source, tokens)) is not None:
        yield "factors", factors[0] @ factors[1].mT
    if (bias := encoding.bias(target, source)) is not None:
        yield "bias", bias


def _heads(x: Tensor, heads: int) -> Tensor:
    return x.unflatten(-1, (heads, -1)).transpose(-3, -2)  # (..., h, n, e)


def _twice(case: Case) -> Case:
    """A batch of two."""
    source, target = (stack([domain] * 2) for domain in (case.source, case.target))
    features, tokens = (torch.stack([x] * 2) for x in (case.features, case.tokens))
    return Case(source, features, target, tokens)


def _to(case: Case, dtype: torch.dtype) -> Case:
    source, target = (domain.to(dtype=dtype) for domain in (case.source, case.target))
    return Case(source, case.features.to(dtype), target, case.tokens.to(dtype))


def _check_factor_shapes(factors: object, *leading: tuple[int, ...]) -> None:
    shapes = [tuple(f.shape) for f in factors] if isinstance(factors, tuple) else []
    expected = [(*lead, shapes[0][-1] if shapes else 1) for lead in leading]
    if len(shapes) != 2 or not all(map(_exactly, shapes, expected)):
        raise ContractError(f"factors: expected a pair of shapes {expected}, got {shapes}")


def _like(hook: str, got: Tensor, given: Tensor) -> None:
    if got.shape != given.shape or got.dtype != given.dtype:
        raise ContractError(
            f"{hook}: expected what it was given, {tuple(given.shape)} in {given.dtype}, "
            f"got {tuple(got.shape)} in {got.dtype}"
        )


def _exactly(shape: tuple[int, ...], expected: tuple[int, ...]) -> bool:
    """Whether a shape broadcasts to another, but for the last two axes, which must be there."""
    return shape[-2:] == expected[-2:] and fits(shape, expected)
