r"""Errors against the mesh width, and the observed order of convergence.

.. math:: h = \Bigl(\frac{\mu(\Omega)}{n}\Bigr)^{1/d}, \qquad
   p = \frac{\log(e_1/e_2)}{\log(h_1/h_2)}.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from opformer.domain import Domain
from opformer.evaluation import relative_l2
from opformer.sample import Sample

__all__ = ["Refinement", "observed_orders", "refinement_study"]


@dataclass(frozen=True)
class Refinement:
    """Error against mesh width; the order between neighbours is log(e₁/e₂)/log(h₁/h₂)."""

    h: list[float]
    nodes: list[int]
    errors: list[float]
    reference: str

    @property
    def orders(self) -> list[float]:
        """Observed order between each mesh and the one before it."""
        return observed_orders(self.h, self.errors)

    def __str__(self) -> str:
        lines = [f"{'nodes':>8}  {'h':>10}  {'error':>10}  {'order':>6}"]
        for n, h, e, p in zip(self.nodes, self.h, self.errors, [None, *self.orders], strict=True):
            lines.append(
                f"{n:8d}  {h:10.4g}  {e:10.4g}  " + (f"{p:6.2f}" if p is not None else " " * 6)
            )
        return "\n".join([*lines, f"relative L2(μ) against {self.reference}"])


def refinement_study(
    operator: Callable[[Sample], Tensor],
    samples: Iterable[Sample],
    *,
    labels: bool = True,
    dim: int | None = None,
) -> Refinement:
    r"""How the error of an operator, or the operator itself, moves as one case is refined.

    Parameters
    ----------
    operator : function of a sample that returns (n, out_channels) at its target
        A :class:`Surrogate` is one: its errors are taken field by field, and their mean is
        reported, so that units do not mix. Without a layout all channels are one field.
    samples : the same case on finer and finer meshes
        A :class:`MeshDataset` of those files, for instance.
    labels : bool
        True: the error against each sample's outputs, on its own mesh. False: no truth is needed;
        the outputs are compared at the points of the first mesh with those of the finest, which
        shows how far the operator itself moves: its quadrature error, of order 2 for smooth inputs
        on P1 weights. The inputs at those points are those of the first mesh.
    dim : int, optional
        Dimension of the domain; by default the number of coordinates. A surface in space has 2.

    Returns
    -------
    Refinement
        With :math:`h=(\mu(\Omega)/n)^{1/d}` of each source. Without labels the finest mesh is the
        reference and has no row.

    Raises
    ------
    ValueError
        If there are too few meshes, or labels are wanted and a sample has no outputs.
    """
    device = getattr(operator, "device", None)
    samples = [sample if device is None else sample.to(device) for sample in samples]
    least = 1 if labels else 2
    if len(samples) < least:
        raise ValueError(f"a refinement study needs {least} meshes at least, got {len(samples)}")
    rows, reference = samples, "the truth, each mesh by itself"
    with torch.no_grad():
        if labels:
            errors = [_error(operator, operator(s), s.truth, s.domain) for s in samples]
        else:
            probe = samples[0].inside
            known = samples[0].fields
            values = [
                operator(replace(s, target=probe, target_fields=known, outputs=None))
                for s in samples
            ]
            errors = [_error(operator, y, values[-1], probe) for y in values[:-1]]
            rows, reference = samples[:-1], f"the operator on {samples[-1].size} nodes"
    h = [float((s.inside.total / s.size) ** (1 / (dim or s.source.dim))) for s in rows]
    return Refinement(h, [s.size for s in rows], errors, reference)


def observed_orders(h: Sequence[float], errors: Sequence[float]) -> list[float]:
    """log(e₁/e₂)/log(h₁/h₂) of neighbours; NaN where an error is zero or the width the same."""
    steps = torch.tensor([h, errors], dtype=torch.float64).log().diff()
    return [
        float(e / w) if w.isfinite() and e.isfinite() and w != 0 else float("nan")
        for w, e in steps.T
    ]


def _error(operator: Any, prediction: Tensor, truth: Tensor, domain: Domain) -> float:
    """Relative L²(μ) error, mean over the fields that the operator's layout tells apart."""
    layout = getattr(operator, "layout", None)
    split = layout.split if layout is not None else lambda y: {"all": y}
    predictions, truths = split(prediction), split(truth)
    return fmean(float(relative_l2(predictions[n], truths[n], domain)[0]) for n in truths)
