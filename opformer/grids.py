r"""Tensor-product grids: the weight of a point is the product of those along the axes.

At the nodes of an axis the trapezoidal rule, :math:`w_i=\tfrac12(x_{i+1}-x_{i-1})` with half a step
at the ends, which integrates piecewise linear functions exactly; at the centres of its cells the
midpoint rule, :math:`w_i=x_{i+1}-x_i`. The axes may be graded.
"""

from __future__ import annotations

from functools import reduce

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.nn.functional import pad

from opformer.domain import Domain

__all__ = ["grid"]


def grid(*axes: ArrayLike, cells: bool = False) -> Domain:
    r"""Domain of a tensor-product grid, regular or graded.

    The points come in the order of ``values.reshape(-1)`` for an array ``values`` that has the axes
    of the grid in this order: the last one runs fastest.

    Parameters
    ----------
    *axes : arrays (n₁,), (n₂,), …
        The coordinates of the nodes along each axis, ascending.
    cells : bool
        Points at the centres of the cells between the nodes, n - 1 along each axis, rather than at
        the nodes.

    Raises
    ------
    ValueError
        If there is no axis, or one is not a row of two numbers or more that ascend.

    Examples
    --------
    >>> plate = grid([0.0, 1.0, 2.0], [0.0, 0.5])
    >>> plate.weights.tolist()
    [0.125, 0.125, 0.25, 0.25, 0.125, 0.125]
    >>> plate.total.item()
    1.0
    """
    if not axes:
        raise ValueError("grid needs the coordinates along one axis at least, got none")
    rules = [_rule(x, i, cells) for i, x in enumerate(axes)]
    points = torch.stack(torch.meshgrid(*(x for x, _ in rules), indexing="ij"), -1)
    weights = reduce(torch.kron, (w for _, w in rules))
    return Domain(points.flatten(0, -2), weights)


def _rule(axis: ArrayLike, number: int, cells: bool) -> tuple[Tensor, Tensor]:
    """Points and weights along one axis."""
    # Lists by way of numpy: torch would read them in float32, where late times fall together.
    x = torch.as_tensor(axis if isinstance(axis, Tensor) else np.asarray(axis, dtype=float))
    x = x.detach().cpu().double()
    if x.ndim != 1 or len(x) < 2:
        raise ValueError(
            f"axis {number} must be a row of two ascending numbers or more, "
            f"got shape {tuple(x.shape)}"
        )
    ascending = x.diff() > 0
    if not ascending.all():
        i = int(ascending.logical_not().nonzero()[0])
        raise ValueError(
            f"axis {number} must ascend: entries {i} and {i + 1} are {x[i]:g} and {x[i + 1]:g}"
        )
    steps = x.diff()
    if cells:
        return (x[1:] + x[:-1]) / 2, steps
    return x, (pad(steps, (0, 1)) + pad(steps, (1, 0))) / 2
