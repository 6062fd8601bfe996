r"""A memory operator: the stress of a viscoelastic bar, from the history of its strain.

A generalised Maxwell material of moduli g and relaxation times τ, strained by ε(t) from t = 0 on,
bears the stress

    σ(t) = ∫₀ᵗ G(t - s) dε(s),      G(t) = g_∞ + Σᵢ gᵢ exp(-t/τᵢ),

where dε holds the jump to ε(0). The moduli, the relaxation spectrum, are random and known to the
model as global parameters. Histories are random too, waves or ramps and holds, and so are the times
at which the strain is known, at unequal steps. Each arm of the material is a spring in series with
a dashpot. The strain z of the dashpot is its memory [1]_: in other words a mean over the past under
an exponential kernel, which is what causal attention computes.

    τ z' = ε - z,   z(0) = 0,      σ = g_∞ ε + Σᵢ gᵢ (ε - zᵢ)

    z(t) = (1 - exp(-t/τ)) ∫₀ᵗ exp(-(t-s)/τ) ε(s) ds / ∫₀ᵗ exp(-(t-s)/τ) ds

1. Solve 1000 cases on 24 to 64 random times each, and unseen ones on up to 8 times as many, also
   crowded where something happens.
2. Fit two causal models, one with the weights of the time steps and one that sees equal weights.
3. Compare their errors on all those grids.
4. Stream: strain arrives value by value, and the model answers at once, as it does to the whole.

    python examples/viscoelastic.py [OUT] [--quick]

References
----------
.. [1] J. C. Simo, T. J. R. Hughes, Computational Inelasticity, Springer 1998, chapter 10.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from numpy.typing import NDArray
from scipy.integrate import solve_ivp
from torch import Tensor, nn

from opformer import Domain, OperatorTransformer, Sample, Surrogate, evaluate, fit
from opformer.encodings import Compose, Coordinates, FadingMemory

__all__ = ["CROWDED", "Case", "Unweighted", "case", "grid", "model", "samples", "stream", "train"]

Array = NDArray[np.float64]
Function = Callable[[Array], Array]

END = 10.0  # seconds
TIMES = np.array([0.3, 1.0, 3.0, 10.0])  # of relaxation
UNSEEN = range(10_000, 10_032)  # seeds of cases that no model is trained on
SHOWN = 20_016  # seed of the case that is drawn

# Where times are dense: what their density is in proportion to, at t, for a case with such events.
CROWDED: dict[str, Callable[[Array, Array], Array]] = {
    "nowhere": lambda t, events: np.ones_like(t),
    "start": lambda t, events: 1 / (0.2 + t),
    "end": lambda t, events: 1 / (0.2 + END - t),
    "events": lambda t, events: 0.1 + np.exp(-(_nearest(t, events) ** 2) / 0.2),
}


@dataclass(frozen=True)
class Case:
    """A material and the history of its strain.

    Parameters
    ----------
    equilibrium : float
        The modulus g_∞ that is left in the end.
    moduli : (4,) array
        Those of the arms, g.
    strain : function
        ε at times (n,).
    events : array
        Times at which something happens, and a test would look closely.
    """

    equilibrium: float
    moduli: Array
    strain: Function
    events: Array

    @cached_property
    def dashpots(self) -> Function:
        """Their strains z, (n,) to (4, n), by integration to ten digits."""
        return solve_ivp(
            lambda t, z: (self.strain(t) - z) / TIMES,
            (0, END),
            np.zeros(len(TIMES)),
            method="DOP853",
            rtol=1e-10,
            atol=1e-12,
            max_step=TIMES.min(),
            dense_output=True,
        ).sol

    def stress(self, t: Array) -> Array:
        """σ at times (n,)."""
        strain = self.strain(t)
        return self.equilibrium * strain + self.moduli @ (strain - self.dashpots(t))

    def sample(self, t: Array) -> Sample:
        """The case on a grid of time: strain and moduli to stress."""
        strain, stress = (torch.from_numpy(f(t))[:, None] for f in (self.strain, self.stress))
        moduli = torch.from_numpy(np.append(self.moduli, self.equilibrium))
        return Sample(Domain.from_points(t, rule="interval"), strain, moduli, outputs=stress)


def case(seed: int) -> Case:
    """Return the random problem of this seed."""
    rng = np.random.default_rng(seed)
    moduli = rng.uniform(1, 3) * rng.dirichlet(np.ones(len(TIMES) + 1))
    history = _waves if rng.random() < 0.5 else _ramps
    return Case(float(moduli[0]), moduli[1:], *history(rng))


def grid(n: int, problem: Case, crowded: str = "nowhere", seed: int = 0) -> Array:
    """Return n times from 0 to the end, with random steps about those of a density."""
    t = np.linspace(0, END, 4001)
    density = CROWDED[crowded](t, problem.events)
    share = np.append(0, np.cumsum(density[1:] + density[:-1]))
    place = np.append(0, np.cumsum(np.random.default_rng((seed, n)).uniform(0.2, 1.8, n - 1)))
    return np.interp(place / place[-1], share / share[-1], t)


def samples(seeds: Sequence[int], finer: int = 1, crowded: str = "nowhere") -> list[Sample]:
    """Cases on 24 to 64 random times each, or ``finer`` times as many."""
    found = []
    for seed in seeds:
        problem = case(seed)
        n = finer * int(np.random.default_rng(seed).integers(24, 65))
        found.append(problem.sample(grid(n, problem, crowded, seed)))
    return found


class Unweighted(nn.Module):
    """A model that sees all points of its source alike, as plain attention does."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, source: Domain, *arguments: Any, **options: Any) -> Tensor:
        """Call the model on the same points with equal weights."""
        return self.model(source.uniform(), *arguments, **options)


def model(dim: int = 1, **options: Any) -> OperatorTransformer:
    """Two causal layers of four kernels that fade with the time that has passed."""
    torch.manual_seed(0)
    fading = FadingMemory(4, axis=0, lengths=(0.05, 2.0))
    return OperatorTransformer(
        dim,
        in_channels=1,
        out_channels=1,
        parameter_channels=len(TIMES) + 1,
        channels=32,
        heads=4,
        layers=2,
        encoding=Compose(Coordinates(dim, 32), fading),
        activation="swiglu",  # moduli times strains: it multiplies
        **{"causal_axis": 0} | options,
    )


def train(net: nn.Module, data: Sequence[Sample], epochs: int) -> Surrogate:
    """Fit a model to cases, of which some are held out."""
    return fit(net, data, validation=0.05, epochs=epochs, batch_size=16, learning_rate=6e-3)


def stream(surrogate: Surrogate, sample: Sample) -> Tensor:
    """Stress (n, 1), one by one: told the strain at a time, the model says the stress there."""
    state, found = None, []
    for n in range(1, sample.size + 1):
        so_far = Domain.from_points(sample.source.points[:n], rule="interval")
        strain = sample.fields[n - 1 : n]
        y, state = surrogate.step(so_far, strain, sample.parameters, state=state)
        found.append(y)
    return torch.cat(found)


# Random histories


def _waves(rng: np.random.Generator) -> tuple[Function, Array]:
    """Four waves, of three seconds at least."""
    rates, phases = 2 * np.pi * rng.uniform(0.03, 0.33, 4), rng.uniform(0, 2 * np.pi, 4)
    amplitudes = rng.normal(size=4) / 2

    def strain(t: Array) -> Array:
        return np.sin(np.multiply.outer(t, rates) + phases) @ amplitudes

    return strain, rng.uniform(0, END, 3)


def _ramps(rng: np.random.Generator) -> tuple[Function, Array]:
    """Three to five smooth ramps, of one second or two, and holds in between."""
    n = rng.integers(3, 6)
    start, length = rng.uniform(-1, 0.9 * END, n), rng.uniform(1, 2, n)
    heights = rng.normal(size=n)

    def strain(t: Array) -> Array:
        x = np.clip(np.subtract.outer(t, start) / length, 0, 1)
        return (x - np.sin(2 * np.pi * x) / (2 * np.pi)) @ heights

    return strain, start + length / 2


def _nearest(t: Array, events: Array) -> Array:
    return np.abs(np.subtract.outer(t, events)).min(-1)


# Comparison and picture

Errors = dict[tuple[str, str], dict[int, float]]


def compare(surrogates: dict[str, Surrogate], seeds: Sequence[int]) -> Errors:
    """Print the errors of the models, on grids that crowd nowhere or at events, by their times."""
    found: Errors = {}
    for crowded in ("nowhere", "events"):
        sets = [samples(seeds, finer, crowded) for finer in (1, 2, 4, 8)]
        for name, surrogate in surrogates.items():
            rows = evaluate(surrogate, *sets, progress=False).summary()
            found[name, crowded] = {
                round(row["nodes_mean"]): row["fields"]["output"]["relative_l2"] for row in rows
            }
    print("relative error of the stress with so many times")
    print(f"{'':24}", *(f"{n:8}" for n in found["weights", "nowhere"]))
    for (name, crowded), errors in found.items():
        print(f"{name + ', ' + crowded:24}", *(f"{error:8.4f}" for error in errors.values()))
    return found


def draw_errors(found: Errors, ax: Any) -> None:
    """Draw the errors against the number of times."""
    colors, lines = {"weights": "C0", "equal weights": "C3"}, {"nowhere": "o-", "events": "s--"}
    where = {"nowhere": "times as in training", "events": "crowded at events"}
    for (name, crowded), errors in found.items():
        label = f"{name}, {where[crowded]}"
        ax.loglog(*zip(*errors.items(), strict=True), lines[crowded], c=colors[name], label=label)
    ax.minorticks_off()
    ax.set(xlabel="number of times", ylabel="relative error of the stress", ylim=(0.02, 0.6))
    ax.set_xticks([*found["weights", "nowhere"]], [*found["weights", "nowhere"]])
    ax.set_yticks([0.02, 0.05, 0.1, 0.2, 0.5], ["2 %", "5 %", "10 %", "20 %", "50 %"])
    ax.grid(c="0.9")
    ax.legend(frameon=False, loc="upper left")


def draw_stream(surrogate: Surrogate, problem: Case, t: Array, top: Any, bottom: Any) -> float:
    """Draw truth and answers; returns how far those to the stream are from those to the whole."""
    sample, fine = problem.sample(t), np.linspace(0, END, 1000)
    whole, streamed = surrogate(sample).detach(), stream(surrogate, sample)
    top.plot(fine, problem.strain(fine), c="0.7")
    top.plot(t, problem.strain(t), "k.", ms=3)
    top.set(ylabel="strain", xticklabels=[])
    bottom.plot(fine, problem.stress(fine), c="0.85", lw=7, label="truth")
    bottom.plot(t, whole, c="C0", lw=2, label="model, told all at once")
    bottom.plot(t, streamed, ".", c="C1", ms=6, label="model, told one by one")
    bottom.set(xlabel="time, s", ylabel="stress")
    bottom.legend(frameon=False)
    return float((whole - streamed).abs().max())


def check(found: Errors) -> None:
    """With weights the error is flat, on grids unlike those of the training too; else it is not."""
    (first, *finer), (_, *graded) = (found["weights", c].values() for c in ("nowhere", "events"))
    assert first < 0.06, first
    assert max(finer) < 1.1 * first, finer
    assert max(graded) < 1.2 * first, graded
    assert min(found["equal weights", "nowhere"].values()) > 1.3 * first, found
    assert min(found["equal weights", "events"].values()) > 3 * first, found


def main() -> None:
    """Fit, compare, stream, draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, nargs="?", default=Path("demo"))
    parser.add_argument("--quick", action="store_true", help="few cases and epochs, no claims")
    options = parser.parse_args()
    cases, epochs, unseen = (32, 2, UNSEEN[:2]) if options.quick else (1000, 16, UNSEEN)
    began = time.perf_counter()
    data = samples(range(cases))
    print(f"data solved after {time.perf_counter() - began:.0f} s")
    surrogates = {
        "weights": train(model(), data, epochs),
        "equal weights": train(Unweighted(model(atoms=True)), data, epochs),
    }
    print(f"models fitted after {time.perf_counter() - began:.0f} s")
    errors = compare(surrogates, unseen)
    figure, axes = plt.subplot_mosaic(
        [["strain", "errors"], ["stress", "errors"]],
        figsize=(11, 4.5),
        height_ratios=[1, 2],
        layout="constrained",
    )
    draw_errors(errors, axes["errors"])
    surrogate, problem = surrogates["weights"].double(), case(SHOWN)
    t = grid(80, problem, "events")
    difference = draw_stream(surrogate, problem, t, axes["strain"], axes["stress"])
    options.out.mkdir(parents=True, exist_ok=True)
    figure.savefig(options.out / "viscoelastic.png", dpi=150)
    print(f"one by one is all at once, to {difference:.0e}")
    print(f"the picture is in {options.out}/ ({time.perf_counter() - began:.0f} s)")
    assert difference < 1e-12
    if not options.quick:
        check(errors)


if __name__ == "__main__":
    main()
