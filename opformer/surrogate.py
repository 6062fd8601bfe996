"""A fitted operator in physical units: the model, its scales, and the names of its fields."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from opformer.checkpoint import load_checkpoint, save_checkpoint
from opformer.config import build, describe
from opformer.data import Case
from opformer.domain import Domain, as_target
from opformer.layout import Layout, Parameters
from opformer.mesh import with_fields
from opformer.sample import Sample
from opformer.standardize import Standardizer

__all__ = ["Surrogate", "load"]


class Surrogate(nn.Module):
    """What :func:`opformer.fit` returns and :func:`opformer.load` reads.

    Parameters
    ----------
    model : nn.Module
        Called as ``model(source, fields, target=None, parameters=None, target_fields=None)``, in
        scaled coordinates and fields.
    standardizer : Standardizer
    layout : Layout
        Names and components of the fields, their location, the axes in use.
    """

    def __init__(self, model: nn.Module, standardizer: Standardizer, layout: Layout) -> None:
        super().__init__()
        self.model, self.standardizer, self.layout = model, standardizer, layout

    @property
    def device(self) -> torch.device:
        """Where the surrogate computes; ``surrogate.to(device)`` moves it."""
        return self.standardizer.length.device

    def forward(self, sample: Sample, *, uniform: bool = False) -> Tensor:
        """Outputs (..., n, out_channels) at the sample's target, in physical units.

        ``uniform`` lets the model see equal weights instead of the measure: the ablation that shows
        what it buys.
        """
        scale = self.standardizer
        source = scale.scale_domain(sample.source.uniform() if uniform else sample.source)
        fields, parameters = (
            scale.scale_fields(sample.fields),
            scale.scale_parameters(sample.parameters),
        )
        if sample.target is None:
            return scale.unscale_outputs(self.model(source, fields, None, parameters))
        target = scale.scale_domain(sample.target)
        # Read off the volume alone: at a point of the boundary there is a source of each measure.
        nearby = scale.scale_fields(sample.inside.interpolate(sample.fields, sample.target.points))
        return scale.unscale_outputs(
            self.model(source, fields, target, parameters, target_fields=nearby)
        )

    @torch.no_grad()
    def predict(
        self,
        mesh: Any,
        *,
        parameters: Parameters | None = None,
        target: Domain | Tensor | None = None,
        chunk: int | None = None,
    ) -> Any:
        """Fields on a mesh.

        Parameters
        ----------
        mesh : meshio.Mesh, or path of a mesh file
            With the input fields of the layout.
        parameters : dict of name to number, or numbers, optional
            Needed for those that the mesh does not hold; others are overridden.
        target : Domain, or Tensor of points (n, d), optional
            Other points, in the mesh's units and on the axes of the layout; the result is then a
            tensor (n, out_channels) there.
        chunk : int, optional
            Evaluate that many targets at a time; the result does not depend on it.

        Returns
        -------
        meshio.Mesh
            A copy with the output fields added. One whose name is taken, by the truth for instance,
            is called ``NAME_predicted``. Vectors of two components get a third of zero: ParaView
            draws arrows of three.

        Raises
        ------
        MeshError
            If the mesh or one of its fields cannot be used.
        """
        named: AbstractContextManager[None] = nullcontext()
        if isinstance(mesh, str | Path):
            case = Case(Path(mesh))
            mesh, named = case.mesh(), case.named()
        if unknown := (parameters or {}).keys() - self.layout.parameters.keys():
            known = ", ".join(self.layout.parameters) or "none"
            raise ValueError(f"unknown parameters {sorted(unknown)}; the surrogate has {known}")
        with named:
            sample = self.layout.read(mesh, outputs=False, parameters=parameters).to(self.device)
        if target is not None:
            target = self._checked(as_target(target)).to(self.device)
            if chunk is None:
                return self(replace(sample, target=target))
            nearby = sample.inside.interpolate(sample.fields, target.points)
            return self._decode(sample, target, nearby, chunk)
        own = slice(sample.size)  # the points of the boundary measure come after the mesh's own
        if chunk is None:
            return self._with_fields(mesh, self(sample)[own])
        y = self._decode(sample, sample.source.take(own), sample.fields[own], chunk)
        return self._with_fields(mesh, y)

    def save(self, path: str | Path, **more: Any) -> None:
        """Write all that :func:`opformer.load` needs to one file; ``more`` is kept beside it."""
        state = {
            "layout": asdict(self.layout),
            "model": {**describe(self.model), "state": self.model.state_dict()},
            "standardizer": {
                **describe(self.standardizer),
                "state": self.standardizer.state_dict(),
            },
        }
        save_checkpoint(path, {**state, **more})

    def _checked(self, target: Domain) -> Domain:
        if target.dim != self.standardizer.dim:
            axes = ", ".join("xyz"[axis] for axis in self.layout.axes)
            raise ValueError(f"target must have the coordinates {axes}, got {target.dim} of them")
        return target

    def _decode(self, sample: Sample, target: Domain, fields: Tensor, chunk: int | None) -> Tensor:
        scale, model = self.standardizer, cast(Any, self.model)
        if not hasattr(model, "encode"):
            raise ValueError(
                f"chunk needs a model with encode and decode, {type(model).__name__} has none"
            )
        state = model.encode(
            scale.scale_domain(sample.source),
            scale.scale_fields(sample.fields),
            scale.scale_parameters(sample.parameters),
        )
        y = model.decode(state, scale.scale_domain(target), scale.scale_fields(fields), chunk=chunk)
        return scale.unscale_outputs(y)

    def _with_fields(self, mesh: Any, y: Tensor) -> Any:
        at_points = self.layout.at == "points"
        taken = mesh.point_data if at_points else mesh.cell_data
        fields = {
            f"{name}_predicted" if name in taken else name: _arrows(part.cpu().numpy())
            for name, part in self.layout.split(y).items()
        }
        if at_points:
            return with_fields(mesh, point_data=fields, overwrite=True)
        return with_fields(mesh, cell_data=fields, overwrite=True)


def _arrows(values: np.ndarray) -> np.ndarray:
    return np.pad(values, ((0, 0), (0, 1))) if values.shape[1] == 2 else values


def load(path: str | Path) -> Surrogate:
    """Read a surrogate from a run folder (its ``best.pt``) or from a checkpoint file.

    Raises
    ------
    ValueError
        If there is none, the file is damaged (see :func:`opformer.checkpoint.load_checkpoint`), or
        its model is of a class that has not been imported, or that has changed since.
    """
    path = Path(path)
    path = path / "best.pt" if path.is_dir() else path
    state = load_checkpoint(path)
    missing = {"layout", "model", "standardizer"} - state.keys()
    if missing:
        raise ValueError(f"{path}: not a surrogate, {sorted(missing)} missing")
    try:
        model, standardizer = (_restored(state[name]) for name in ("model", "standardizer"))
        layout = Layout(**state["layout"])
    except (ValueError, RuntimeError, TypeError, KeyError) as error:
        raise ValueError(f"{path}: {' '.join(str(error).split())}") from error
    return Surrogate(model, cast(Standardizer, standardizer), layout).eval()


def _restored(config: dict[str, Any]) -> nn.Module:
    module = build(config)
    module.load_state_dict(config["state"])
    return module
