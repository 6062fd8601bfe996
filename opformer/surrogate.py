"""A fitted operator in physical units: the model, its scales, and the names of its fields."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from opformer._outputs import with_outputs
from opformer.cases import Step, series_of, time_of
from opformer.checkpoint import load_checkpoint, save_checkpoint
from opformer.config import build, describe
from opformer.domain import Domain, as_target
from opformer.layout import Layout
from opformer.measured import Parameters
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
        target = sample.target
        nearby = sample.target_fields
        nearby = scale.scale_fields(self._nearby(sample, target) if nearby is None else nearby)
        return scale.unscale_outputs(
            self.model(source, fields, scale.scale_domain(target), parameters, target_fields=nearby)
        )

    @torch.no_grad()
    def predict(
        self,
        mesh: Any,
        *,
        parameters: Parameters | None = None,
        target: Domain | Tensor | None = None,
        chunk: int | None = None,
        overwrite: bool = False,
        progress: bool = False,
    ) -> Any:
        """Fields on a mesh, or on the steps of a time series.

        Parameters
        ----------
        mesh : meshio.Mesh, path of a mesh file, or a list of either: the steps of a time series
            With the input fields of the layout.
        parameters : dict of name to number, or numbers, optional
            Needed for those that the mesh does not hold; others are overridden.
        target : Domain, or Tensor of points (n, d), optional
            Other points, in the mesh's units and on the axes of the layout (of a trajectory, the
            time is the last); the result is then a tensor (n, out_channels) there.
        chunk : int, optional
            Evaluate that many targets at a time; the result does not depend on it.
        overwrite : bool
            Whether fields of the mesh that are called as the results may be replaced.
        progress : bool
            Show a bar over the steps of a time series.

        Returns
        -------
        meshio.Mesh, or a list of them for the steps of a time series
            A copy with the output fields added. One whose name is taken, by the truth for instance,
            is called ``NAME_predicted``, and ``NAME_error`` is its difference from it. Vectors of
            two components get a third of zero: ParaView draws arrows of three.

        Raises
        ------
        MeshError
            If the mesh or one of its fields cannot be used.
        """
        if unknown := (parameters or {}).keys() - self.layout.parameters.keys():
            known = ", ".join(self.layout.parameters) or "none"
            raise ValueError(f"unknown parameters {sorted(unknown)}; the surrogate has {known}")
        steps = self.series(mesh)
        cases = [steps] if self.layout.trajectory else [[step] for step in steps]
        if target is not None and len(cases) > 1:
            raise ValueError(f"target needs one case, got a time series of {len(cases)} steps")
        found: list[Any] = []
        hidden = not progress or len(cases) == 1
        for case in tqdm(cases, desc="predicting", unit="step", disable=hidden, leave=False):
            sample, meshes, sizes = self._sample(case, parameters)
            if target is not None:
                return self._at(sample, self._checked("target", as_target(target)), chunk)
            y = self._at_nodes(sample, chunk)
            for step, part in zip(meshes, y.split(sizes), strict=True):
                found.append(with_outputs(step, part, self.layout, overwrite=overwrite))
        return found if len(found) > 1 or self.layout.trajectory else found[0]

    @torch.no_grad()
    def step(
        self,
        source: Domain,
        fields: Tensor,
        parameters: Tensor | None = None,
        *,
        state: Any = None,
    ) -> tuple[Tensor, Any]:
        """Answer as data arrive: :meth:`opformer.OperatorTransformer.step` in physical units.

        ``source`` are all points so far, the new ones last, on the axes of the layout (of a
        trajectory, the time is the last); ``fields`` (n, in_channels) are those of the new ones.

        Returns
        -------
        Tensor, shape (n, out_channels), at the new points, and the state for the next step
        """
        scale, model = self.standardizer, cast(Any, self.model)
        if not hasattr(model, "step"):
            raise ValueError(f"a model with steps is needed, {type(model).__name__} has none")
        source = scale.scale_domain(self._checked("source", source))
        fields = scale.scale_fields(fields.to(self.device))
        if parameters is not None:
            parameters = scale.scale_parameters(parameters.to(self.device))
        y, state = model.step(source, fields, parameters, state=state)
        return scale.unscale_outputs(y), state

    def series(self, mesh: Any) -> list[Any]:
        """What :meth:`predict` takes the ``mesh`` for: the steps of a series, or one mesh."""
        several = mesh if isinstance(mesh, list | tuple) else [mesh]
        if any(isinstance(one, Sample) for one in several):
            raise ValueError("expected meshes or their files; for a Sample call surrogate(sample)")
        paths = [Path(one) for one in several if isinstance(one, str | Path)]
        if not paths:
            return list(several)
        if len(paths) < len(several):
            raise ValueError("expected meshes, or the paths of their files, and got both")
        series = series_of(paths, self.layout, together=len(paths) > 1)
        if len(series) != 1:
            raise ValueError(
                "several files must be the steps of one time series, of one name but for the "
                f"number at its end, got {', '.join(map(str, paths))}"
            )
        return list(series[0])

    def _sample(
        self, steps: list[Any], parameters: Parameters | None
    ) -> tuple[Sample, list[Any], list[int]]:
        """A case to predict, its meshes, and how many rows of the result belong to each."""
        samples, meshes, times = [], [], []
        for step in steps:
            known = isinstance(step, Step)
            with step.named() if known else nullcontext():
                mesh = step.mesh() if known else step
                complete = step.complete(mesh, self.layout.inputs) if known else step
                samples.append(self.layout.read(complete, outputs=False, parameters=parameters))
                times.append(time_of(mesh, self.layout))
            meshes.append(mesh)
        sample = self.layout.join(samples, times, "") if self.layout.trajectory else samples[0]
        fixed = getattr(self.model, "symmetry", "none") == "none"
        if odd := self.standardizer.oddity(sample.source, fixed=fixed):
            warnings.warn(odd, stacklevel=3)
        return sample.to(self.device), meshes, [part.size for part in samples]

    def _at_nodes(self, sample: Sample, chunk: int | None) -> Tensor:
        own = slice(sample.size)  # the points of the measures of parts come after the mesh's own
        if chunk is None:
            return self(sample)[own]
        return self._decode(sample, sample.source.take(own), sample.fields[own], chunk)

    def _at(self, sample: Sample, target: Domain, chunk: int | None) -> Tensor:
        if chunk is None:
            return self(replace(sample, target=target))
        return self._decode(sample, target, self._nearby(sample, target), chunk)

    def _nearby(self, sample: Sample, target: Domain) -> Tensor:
        """The input fields at other points."""
        model = cast(Any, self.model)
        causal = getattr(model, "causal_axis", None) is not None
        if causal and sample.fields.shape[-1] and not getattr(model, "decoder_layers", 0):
            raise ValueError(
                "a causal surrogate is read at its own points only: input fields interpolated at a "
                "target between them would look ahead. A Sample may bring them (target_fields)"
            )
        # Off the volume alone: at a point of the boundary there is a source of each measure.
        return sample.inside.interpolate(sample.fields, target.points)

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

    def _checked(self, name: str, domain: Domain) -> Domain:
        """A domain on the axes of the layout, as the standardizer knows them."""
        if domain.dim != self.standardizer.dim:
            axes = ["xyz"[axis] for axis in self.layout.axes] + ["t"] * self.layout.trajectory
            raise ValueError(
                f"{name} must have the coordinates {', '.join(axes)}, got {domain.dim} of them"
            )
        if not self.layout.trajectory:
            return domain.to(self.device)
        scales = torch.ones(domain.dim, dtype=torch.float64)
        scales[-1] = self.layout.velocity
        scaled = domain.points * scales.to(domain.points.device)
        return replace(domain, points=scaled).to(self.device)

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
