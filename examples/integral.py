"""The operator alone: a kernel integral on a graded grid, against its closed form.

With the log-kernel p(t, s) = a s on Ω = [0, 1] and v(s) = s,

    y = ∫ e^{as} s ds / ∫ e^{as} ds = 1 / (1 - e^{-a}) - 1 / a.

The softmax over the nodes gives this number where the scores get the logarithm of the quadrature
weights, and converges to it with order 2. Without weights it integrates against the density of the
nodes, and no refinement helps.
"""

from __future__ import annotations

import math

import torch

from opformer import Domain, kernel_integral
from opformer.testing import observed_order

A = 3.0
EXACT = 1 / (1 - math.exp(-A)) - 1 / A


def integral(n: int, *, weighted: bool = True) -> float:
    """Evaluate y on n nodes that crowd towards 0."""
    x = torch.linspace(0, 1, n, dtype=torch.float64).square()[:, None]  # (n, 1)
    domain = Domain.from_points(x, rule="interval")
    q = torch.full((1, 1, 1), A, dtype=torch.float64)  # one head, one target, one channel
    y = kernel_integral(q, x[None], x[None], domain.weights if weighted else None)
    return y.item()


def main() -> None:
    """Print both errors on finer and finer grids, and hold the weighted one to its order."""
    nodes = [17, 33, 65, 129, 257]
    errors = [abs(integral(n) - EXACT) for n in nodes]
    print(f"exact value {EXACT:.10f}\n nodes   error, weighted   error, plain softmax")
    for n, error in zip(nodes, errors, strict=True):
        print(f"{n:6d}   {error:15.2e}   {abs(integral(n, weighted=False) - EXACT):20.2e}")
    order = observed_order([1 / n for n in nodes], errors, at_least=1.9)
    print(f"observed order {order:.2f}")
    assert errors[-1] < 3e-5
    assert abs(integral(257, weighted=False) - EXACT) > 0.05


if __name__ == "__main__":
    main()
