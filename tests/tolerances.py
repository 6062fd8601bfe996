"""One table of tolerances; whoever needs a looser one says why at that place.

A tolerance bounds the largest difference over the largest value.
"""

from __future__ import annotations

import torch

# The same formula, evaluated in another order.
ROUNDING = {torch.float64: 1e-12, torch.float32: 1e-5}
# Its gradients: sums of differences that nearly cancel.
GRADIENT = {torch.float64: 1e-11, torch.float32: 1e-4}
# bfloat16 has 8 bits: inputs, kernel values and outputs are each rounded by up to 2^-9.
BFLOAT16 = 2**-7


def difference(got, expected):
    """Largest difference over the largest value; infinite where NaN or Inf is about."""
    got, expected = (torch.as_tensor(x).detach().double() for x in (got, expected))
    assert got.shape == expected.shape, f"{tuple(got.shape)} is not {tuple(expected.shape)}"
    if not (got.isfinite().all() and expected.isfinite().all()):
        return float("inf")
    if not expected.numel():
        return 0.0
    return float((got - expected).abs().max() / expected.abs().max().clamp(min=1e-300))
