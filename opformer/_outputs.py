"""What a surrogate says, as fields of a mesh, beside the truth if the mesh has it."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from opformer.errors import MeshError
from opformer.layout import Layout, as_components
from opformer.mesh import merge_points, read_field, with_fields

__all__ = ["with_outputs"]


def with_outputs(mesh: Any, y: Tensor, layout: Layout, *, overwrite: bool) -> Any:
    """A copy of the mesh with the outputs (n, out_channels) at its nodes or cells.

    An output whose name is taken, by the truth for instance, is called ``NAME_predicted``, and
    ``NAME_error`` is its difference from it.
    """
    if layout.merged and layout.at == "points":
        y = y[torch.from_numpy(merge_points(mesh)[1]).to(y.device)]
    fields: dict[str, np.ndarray] = {}
    for name, part in layout.split(y.cpu()).items():
        values = part.numpy()
        taken = name in mesh.point_data or name in mesh.cell_data
        fields[f"{name}_predicted" if taken else name] = _arrows(values)
        if taken and (truth := _truth(mesh, name, layout.at, values.shape[1])) is not None:
            fields[f"{name}_error"] = _arrows(values - truth)
    if layout.at == "points":
        return with_fields(mesh, point_data=fields, overwrite=overwrite)
    return with_fields(mesh, cell_data=fields, overwrite=overwrite)


def _truth(
    mesh: Any, name: str, at: Literal["points", "cells"], components: int
) -> np.ndarray | None:
    """A field that the mesh has, where the predictions are; None if it is no such field."""
    try:
        truth = as_components(read_field(mesh, name, at), components)
    except MeshError:  # NaN, or no numbers: there is nothing to compare with
        return None
    return truth if truth.shape[1] == components else None


def _arrows(values: np.ndarray) -> np.ndarray:
    """Vectors of two components get a third of zero: ParaView draws arrows of three."""
    return np.pad(values, ((0, 0), (0, 1))) if values.shape[1] == 2 else values
