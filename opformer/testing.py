"""The contracts of this library as checks that users import for their own parts.

Each check runs an operator, an encoding or a model on random domains and raises a
:class:`ContractError` that says which contract failed, by how much, and for which input.

C1 split: coincident copies that share a weight change nothing. C2 null: a point of weight zero
changes nothing, NaN included. C3 permute: the order of the points is only an order. C4 scale: only
ratios of weights count. C5 uniform: with equal weights the operator is plain attention. C6 batch:
samples of a padded batch do not see each other. C7 constant: the mean of a constant is that
constant. C8 chunk: evaluation in parts is evaluation. C10 symmetry: what an encoding declares
holds, and no more. C11 target: targets do not see each other. C12 alive: every parameter matters.
C13 causal: neither later fields nor the later domain, of a model with a ``causal_axis``.
(C9, consistency under refinement, is :func:`observed_order` of a
:func:`opformer.refinement_study`.)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from opformer._contracts import (
    TOLERANCE,
    ContractError,
    check_alive,
    check_blocks,
    check_causal,
    check_coincident,
    check_measure,
    check_symmetry,
    check_targets,
    equivariance,
    perturb,
    random_cases,
    same,
)
from opformer._encoding_contracts import check_dtypes, check_factors, check_hooks, check_rebuilt
from opformer.attention import Attention
from opformer.config import build, describe
from opformer.domain import Domain
from opformer.encodings import PositionalEncoding
from opformer.encodings.base import SYMMETRIES
from opformer.motions import channels_of

__all__ = [
    "TOLERANCE",
    "ContractError",
    "check_encoding",
    "check_equivariance",
    "check_model",
    "check_operator",
    "observed_order",
]


def check_operator(
    operator: Callable[..., Tensor],
    *,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
    exact: bool = True,
) -> None:
    """Hold an operator, called like :func:`opformer.kernel_integral`, to C1-C8.

    Parameters
    ----------
    operator : function (q, k, v, weights) -> y
        If it takes ``chunk`` or ``source_chunk``, they are tried as well.
    dtype : torch.float64 or torch.float32
    seed : int
    exact : bool
        Whether C5 is meant bit for bit, as it is for an operator that calls the fused kernel.

    Raises
    ------
    ContractError
        Naming the contract.
    """
    heads, width = 2, 8
    optional = [c for c in ("chunk", "source_chunk") if c in inspect.signature(operator).parameters]

    def split(x: Tensor) -> tuple[Tensor, ...]:
        return x.unflatten(-1, (-1, heads, width)).movedim(-3, 0).transpose(-3, -2).unbind(0)

    def apply(source: Domain, features: Tensor, target: Domain, tokens: Tensor) -> Tensor:
        (q,), (k, v) = split(tokens), split(features)
        return operator(q, k, v, source.weights).transpose(-3, -2).flatten(-2)

    generator = torch.Generator().manual_seed(seed)
    cases = random_cases(2, 2 * heads * width, heads * width, dtype, generator)
    check_measure(apply, cases)
    for case in cases:
        (q,), (k, v), w = split(case.tokens), split(case.features), case.source.weights
        dead = operator(q, k, v, torch.zeros_like(w))
        same("C2 null (all weights zero)", dead, torch.zeros_like(q), case)
        # With a batch axis: without one, torch takes another path than the fused kernel.
        plain = F.scaled_dot_product_attention(q[None], k[None], v[None])[0]
        uniform = operator(q, k, v, torch.full_like(w, 0.3))
        same("C5 uniform", uniform, plain, case, 0.0 if exact else None)
        constant = torch.arange(1, 1 + width, dtype=dtype)
        mean = operator(q, k, constant.expand_as(v), w)
        same("C7 constant", mean, constant.expand_as(q), case, TOLERANCE[dtype]["constant"])
        for name in optional:
            part = operator(q, k, v, w, **{name: 3})
            same(f"C8 chunk ({name}=3)", part, operator(q, k, v, w), case)


def check_encoding(
    encoding: PositionalEncoding,
    *,
    dim: int,
    heads: int,
    channels: int,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
) -> None:
    """Hold an encoding to the contracts inside an attention, and to the symmetry that it declares.

    Also: its hooks return arrays of the right shapes, twice the same; ``factors`` may be read as
    the bias that is their product; in float32 and in float64 it is one function; and described,
    built again and given its ``state_dict`` it is what it was. Its parameters are moved off their
    initial values first.

    Parameters
    ----------
    encoding : PositionalEncoding
    dim : int
        Number of coordinates.
    heads, channels : int
        Of the attention; ``channels`` is the width of its tokens.
    dtype : torch.float64 or torch.float32
    seed : int

    Raises
    ------
    ContractError
        Naming the contract: also if the symmetry declared is smaller than the one there is.
    """
    if encoding.symmetry not in SYMMETRIES:
        raise ContractError(f"C10 symmetry: must be one of {SYMMETRIES}, is {encoding.symmetry!r}")
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        encoding = deepcopy(encoding)
        attention = Attention(channels, heads, encoding=encoding).to(dtype)
    perturb(encoding, generator)

    def apply(source: Domain, features: Tensor, target: Domain, tokens: Tensor) -> Tensor:
        memory = encoding.embed(source.zero_null(features), source)
        return attention(encoding.embed(tokens, target), target, memory, source)

    cases = random_cases(dim, channels, channels, dtype, generator)
    for case in cases:
        check_hooks(encoding, case, heads)
        check_factors(encoding, case, heads)
        same("determinism (two calls)", apply(*case), apply(*case), case, 0.0)
        check_targets(apply, case)
        check_symmetry(apply, case, encoding.symmetry)
    check_measure(apply, cases)
    check_alive(attention, lambda: apply(*cases[0]), cases[0])
    check_coincident(apply, cases[0])
    for case in cases:
        check_dtypes(encoding, case, heads)
        check_rebuilt(encoding, case, heads)


def check_model(
    model: nn.Module,
    *,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
    size: int = 23,
    symmetry: str | None = None,
) -> None:
    """Hold a model, called like :class:`opformer.OperatorTransformer`, to the contracts.

    A copy is checked, in evaluation mode and with its parameters moved off their initial values.

    Parameters
    ----------
    model : nn.Module
        With ``dim``, ``in_channels``, ``parameter_channels`` and ``symmetry``.
    dtype : torch.float64 or torch.float32
    seed, size : int
    symmetry : str, optional
        That the whole model keeps; by default ``model.symmetry``.

    Raises
    ------
    ContractError
        Naming the contract.
    """
    generator = torch.Generator().manual_seed(seed)
    net, parameters = _moved(model, dtype, generator)

    def apply(source: Domain, features: Tensor, target: Domain, tokens: Tensor) -> Tensor:
        batch = source.weights.shape[:-1]
        given = parameters.expand(*batch, -1)
        return net(source, features, target, given, target_fields=tokens)

    channels = net.in_channels
    cases = random_cases(net.dim, channels, channels, dtype, generator, size)
    for case in cases:
        check_targets(apply, case)
        declared = net.symmetry if symmetry is None else symmetry
        check_symmetry(apply, case, declared, strict=False)
    if getattr(net, "causal_axis", None) is not None:
        for case in cases:
            check_causal(apply, case, net.causal_axis, net.atoms)
    check_measure(apply, cases)
    case = cases[0]
    case = case._replace(target=case.source, tokens=case.features)
    whole = net(case.source, case.features, None, parameters)
    same("C11 target (the source's own points)", apply(*case), whole, case)
    check_alive(net, lambda: apply(*cases[0]), case)
    check_blocks(net, lambda: apply(*cases[0]), case)
    again = build(describe(net)).to(dtype).eval()
    again.load_state_dict(net.state_dict())
    rebuilt = again(case.source, case.features, None, parameters)
    same("describe, build", rebuilt, whole, case, 0.0)


def check_equivariance(
    model: nn.Module,
    *,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
    size: int = 23,
    symmetry: str | None = None,
) -> dict[str, float]:
    """Hold a model of vectors and tensors to its symmetry: its outputs turn with the space.

    A copy is checked, in evaluation mode and with its parameters moved off their initial values, at
    its own points and at others.

    Parameters
    ----------
    model : nn.Module
        With ``dim``, ``parameter_channels`` and ``kinds``, what its input and output channels are.
    dtype : torch.float64 or torch.float32
    seed, size : int
    symmetry : "translation", "SE(d)" or "E(d)", optional
        By default ``model.symmetry``.

    Returns
    -------
    dict of "translation", "rotation", "reflection" to the largest relative residual

    Raises
    ------
    ContractError
        Naming the motion.
    """
    generator = torch.Generator().manual_seed(seed)
    net, parameters = _moved(model, dtype, generator)
    channels = sum(channels_of(kind, net.dim) for kind in net.kinds[0])
    case = random_cases(net.dim, channels, channels, dtype, generator, size)[1]
    return equivariance(net, parameters, case, net.symmetry if symmetry is None else symmetry)


def _moved(model: nn.Module, dtype: torch.dtype, generator: torch.Generator) -> tuple[Any, Tensor]:
    """A copy to be checked, its parameters off their initial values, and random global inputs."""
    net: Any = deepcopy(model).to(dtype).eval()
    perturb(net, generator)
    return net, torch.randn(net.parameter_channels, dtype=dtype, generator=generator)


def observed_order(
    h: Sequence[float], errors: Sequence[float], *, at_least: float | None = None
) -> float:
    """Slope of log(error) over log(h), by least squares; C9 asks for 1.8 with P1 weights.

    Raises
    ------
    ContractError
        If it is less than ``at_least``.

    Examples
    --------
    >>> round(observed_order([0.4, 0.2, 0.1], [0.16, 0.04, 0.01]), 6)
    2.0
    """
    x, y = (torch.tensor(v, dtype=torch.float64).log() for v in (h, errors))
    x, y = x - x.mean(), y - y.mean()
    order = float((x * y).sum() / x.square().sum())
    if at_least is not None and not order >= at_least:
        raise ContractError(
            f"C9 consistency: observed order {order:.2f}, expected at least {at_least}; "
            f"errors {[f'{e:.2e}' for e in errors]}"
        )
    return order
