r"""Scales of a training set, stored with the model: what physical units are to a network.

.. math:: \hat x = \frac{x-x_0}{L}, \qquad \hat f = \frac{f-\bar f}{\sigma_f}, \qquad
   \bar f = \frac{\sum_i\int f_i\,d\mu_i}{\sum_i\mu_i(\Omega_i)}, \qquad
   \sigma_f^2 = \frac{\sum_i\int (f_i-\bar f)^2\,d\mu_i}{\sum_i\mu_i(\Omega_i)}

with L half the longest side of the box around all training points: one factor for all axes. For a
model that turns with the space the components of a vector have no mean, and one deviation, their
root mean square: any other scale would single out a direction. So does a tensor, but for its trace.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from opformer.domain import Domain
from opformer.motions import split
from opformer.sample import Sample

__all__ = ["Standardizer"]

STRANGE = 30.0  # times the box around the training's meshes, or one part of it
FAR = 3.0  # of these boxes

# A channel whose deviation is this small a part of its mean is constant: the rest is rounding.
CONSTANT = 1e-9


class Standardizer(nn.Module):
    """Coordinates by one isotropic factor, channels by mean and deviation under μ; all in float64.

    Parameters
    ----------
    dim, in_channels, parameter_channels, out_channels : int
        Sizes; the scales are the identity until they are fitted or loaded.
    """

    center: Tensor
    length: Tensor
    fields_mean: Tensor
    fields_std: Tensor
    parameters_mean: Tensor
    parameters_std: Tensor
    outputs_mean: Tensor
    outputs_std: Tensor

    def __init__(
        self, dim: int, in_channels: int, parameter_channels: int, out_channels: int
    ) -> None:
        super().__init__()
        self.dim, self.in_channels = dim, in_channels
        self.parameter_channels, self.out_channels = parameter_channels, out_channels
        self.register_buffer("center", torch.zeros(dim, dtype=torch.float64))
        self.register_buffer("length", torch.ones((), dtype=torch.float64))
        sizes = {"fields": in_channels, "parameters": parameter_channels, "outputs": out_channels}
        for name, size in sizes.items():
            self.register_buffer(f"{name}_mean", torch.zeros(size, dtype=torch.float64))
            self.register_buffer(f"{name}_std", torch.ones(size, dtype=torch.float64))

    @classmethod
    def fit(
        cls,
        samples: Iterable[Sample],
        *,
        inputs: Sequence[str] | None = None,
        outputs: Sequence[str] | None = None,
    ) -> Standardizer:
        """Take the statistics of a training set (one pass).

        Points of measure zero do not count, for the box neither. ``inputs`` and ``outputs`` say
        what the channels are, "scalar", "vector" or "tensor"; without them each is by itself.

        Raises
        ------
        ValueError
            If there are no samples, or one has no outputs, no measure, or values not finite.
        """
        corners: list[Tensor] = []
        moments = {name: _Moments() for name in ("fields", "parameters", "outputs")}
        for i, sample in enumerate(samples):
            sample = sample if sample.name else replace(sample, name=f"number {i}")
            for domain in (sample.source, sample.domain):
                corners += _corners(domain, sample.name)
            moments["fields"].add(sample.source, _finite(sample, "fields", sample.source))
            moments["outputs"].add(sample.domain, _finite(sample, "outputs", sample.domain))
            one = Domain(torch.zeros(1, 1), torch.ones(1))
            moments["parameters"].add(one, _finite(sample, "parameters", one)[None])
        if not corners:
            raise ValueError("statistics need at least one sample, got none")
        low, high = torch.stack(corners).aminmax(dim=0)
        extent = (high - low).max()
        self = cls(len(low), *(moment.size for moment in moments.values()))
        state = {"center": (low + high) / 2, "length": torch.where(extent > 0, extent / 2, 1.0)}
        for name, moment in moments.items():
            mean, std = moment.mean_and_std()
            kinds = {"fields": inputs, "outputs": outputs}.get(name)
            if kinds is not None:
                mean, std = _isotropic(mean, std, kinds, len(low))
            std = torch.where(std > CONSTANT * mean.abs(), std, 1.0)
            state[f"{name}_mean"], state[f"{name}_std"] = mean, std
        self.load_state_dict(state)
        return self

    def scale_domain(self, domain: Domain) -> Domain:
        """The domain in coordinates of about [-1, 1]; taken in float64, before any cast."""
        points = _checked(domain.points.double(), "points", self.center)
        return Domain((points - self.center) / self.length, domain.weights)

    def scale_fields(self, f: Tensor) -> Tensor:
        """Input fields in deviations from their mean."""
        return (_checked(f, "fields", self.fields_mean) - self.fields_mean) / self.fields_std

    def scale_parameters(self, p: Tensor) -> Tensor:
        """Parameters in deviations from their mean."""
        p = _checked(p, "parameters", self.parameters_mean)
        return (p - self.parameters_mean) / self.parameters_std

    def unscale_outputs(self, y: Tensor) -> Tensor:
        """Outputs of the model in physical units."""
        return _checked(y, "outputs", self.outputs_mean) * self.outputs_std + self.outputs_mean

    def oddity(self, domain: Domain, *, fixed: bool) -> str:
        """What is strange about a domain beside those of the training, or nothing.

        ``fixed``: whether its place counts too, for a model that knows where it is.
        """
        low, high = (corner.to(self.center.device) for corner in _corners(domain, ""))
        box = 2 * self.length
        size = float((high - low).max() / box)
        if not 1 / STRANGE < size < STRANGE:
            return (
                f"the mesh is {size:.3g} times as large as the box of the training: "
                "is it in another unit of length?"
            )
        away = float(((low + high) / 2 - self.center).abs().max() / box)
        if fixed and away > FAR:
            return (
                f"the mesh lies {away:.3g} boxes of the training away from it, where the model "
                "knows nothing: are coordinates, or times, counted from elsewhere?"
            )
        return ""


class _Moments:
    """Running integrals of f and of its spread, merged case by case so that no digits cancel.

    Reference: Chan, Golub and LeVeque, The American Statistician 37 (1983) 242-247.
    """

    def __init__(self) -> None:
        self.total = self.mean = self.spread = torch.zeros((), dtype=torch.float64)
        self.size = 0

    def add(self, domain: Domain, f: Tensor) -> None:
        f = domain.zero_null(f.double())
        mean = domain.mean(f)
        step, joined = mean - self.mean, self.total + domain.total
        share = domain.total / joined
        self.spread = self.spread + domain.integrate((f - mean).square())
        self.spread = self.spread + self.total * share * step.square()
        self.mean, self.total, self.size = self.mean + share * step, joined, f.shape[-1]

    def mean_and_std(self) -> tuple[Tensor, Tensor]:
        return self.mean, (self.spread / self.total).sqrt()


def _isotropic(mean: Tensor, std: Tensor, kinds: Sequence[str], dim: int) -> tuple[Tensor, Tensor]:
    """Scales that turn with the space: one for all components, and no mean but of what stays."""
    means, deviations = [], []
    pairs = zip(split(mean, kinds, dim), split(std, kinds, dim), strict=True)
    for (kind, m), (_, s) in pairs:
        if kind == "tensor":  # the trace has a mean
            center = m.unflatten(-1, (dim, dim)).diagonal().mean() * torch.eye(dim).to(m).flatten()
        else:
            center = m if kind == "scalar" else torch.zeros_like(m)
        size = (s.square() + (m - center).square()).mean().sqrt()
        means.append(center)
        deviations.append(size.expand_as(s))
    return torch.cat([mean[:0], *means]), torch.cat([std[:0], *deviations])


def _checked(x: Tensor, name: str, scale: Tensor) -> Tensor:
    """``x`` with as many channels as were fitted: one of another number could broadcast."""
    if x.shape[-1] != len(scale):
        raise ValueError(f"{name} must have {len(scale)} channels, got {tuple(x.shape)}")
    return x


def _finite(sample: Sample, name: str, domain: Domain) -> Tensor:
    """Values of a sample that statistics can be taken of."""
    values = sample.truth if name == "outputs" else getattr(sample, name)
    bad = (
        domain.zero_null(values if name != "parameters" else values[None]).isfinite().logical_not()
    )
    if bad.any():
        where = torch.nonzero(bad)[0].tolist()
        raise ValueError(f"sample {sample.name!r}: {name} are NaN or infinite at {where}")
    return values


def _corners(domain: Domain, name: str) -> tuple[Tensor, Tensor]:
    """The two corners of the box around the points that have a measure."""
    points = domain.points[~domain.null].double()
    if not len(points):
        raise ValueError(f"sample {name!r} has measure zero")
    low, high = points.aminmax(dim=0)
    return low, high
