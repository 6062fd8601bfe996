"""What symmetry buys and costs: elastic bodies whose pose matters, in the plane and in space.

All models have the same width, layers, steps and bodies (examples/elasticity.py); the output is the
displacement, a vector. They are trained on bodies that lie alike, and again on random poses, and
tested on unseen bodies that lie as in training and on the same turned by random angles. A model
that turns with the space sees no difference between the two sets, so it is trained once.

Then: what the trained models make of motions of the space and of other units, beyond rounding; and
what a block of vectors, and each encoding, costs against a plain one, pair by pair.

    python benchmarks/symmetry.py [--quick] [FOLDER]    (bodies are made there if it has none)
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from _measure import paired
from torch import Tensor, nn

from opformer import Domain, MeshDataset, OperatorTransformer, evaluate, fit
from opformer import encodings as library
from opformer.augment import RandomPoses, move
from opformer.encodings import PositionalEncoding
from opformer.equivariant import EquivariantBlock, Tokens
from opformer.equivariant_model import EquivariantTransformer
from opformer.evaluation import relative_l2
from opformer.frames import FrameAveraging
from opformer.model import default_encoding
from opformer.motions import random_rotation, turn
from opformer.sample import Sample
from opformer.standardize import Standardizer
from opformer.surrogate import Surrogate
from opformer.transformer import EncoderBlock

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import elasticity

WIDTH, HIDDEN, HEADS, LAYERS = 64, 128, 4, 4
TOKENS = {2: Tokens(32, 16, 2), 3: Tokens(28, 12, 3)}  # of that width
NODES = {2: (200, 400), 3: (300, 600)}
UNSEEN = 10_000  # seeds of the test bodies start here
SYMMETRIC = ("frames", "equivariant")  # trained once: a pose is nothing to them
FAR = 1e6  # extents: the bodies are about 1 long


@dataclass(frozen=True)
class Budget:
    """Bodies to train and to test on, epochs, seed; pairs of timed calls, and their points."""

    train: int = 160
    test: int = 32
    epochs: int = 15
    rounds: int = 9
    points: int = 1024
    seed: int = 0


class Problem:
    """Bodies of one dimension: to train on, and to test on as they lie and turned."""

    def __init__(self, folder: Path, dim: int, budget: Budget) -> None:
        self.dim, self.budget = dim, budget
        train, test = (folder / f"{name}_{dim}d" for name in ("train", "test"))
        for path, first, cases in ((train, 0, budget.train), (test, UNSEEN, budget.test)):
            if len(list(path.glob("*.vtu"))) < cases:
                elasticity.write(path, range(first, first + cases), dim=dim, nodes=NODES[dim])
        files = sorted(train.glob("*.vtu"))[: budget.train]
        names = {"inputs": ["clamped", "traction"], "outputs": ["displacement"]}
        self.train = MeshDataset(files, **names, progress=False)
        self.kinds = self.train.layout.kinds
        files = sorted(test.glob("*.vtu"))[: budget.test]
        self.test = _items(MeshDataset.from_layout(files, self.train.layout, progress=False))
        torch.manual_seed(dim)
        self.turned = _items(RandomPoses(self.test, *self.kinds))

    def move(self, sample: Sample, q: Tensor, shift: Tensor | float = 0.0) -> Sample:
        """A body in another pose."""
        return move(sample, q, shift, inputs=self.kinds[0], outputs=self.kinds[1])

    def models(self) -> dict[str, Callable[[], nn.Module]]:
        """The models that are compared."""
        d, size = self.dim, {"heads": HEADS, "layers": LAYERS, "hidden": HIDDEN}
        translation = library.Compose(
            library.Rotary(d, HEADS, WIDTH // HEADS), library.GaussianBias(d, HEADS, WIDTH)
        )
        invariant = library.GaussianBias(d, HEADS, WIDTH, shift=False)

        def plain(encoding: PositionalEncoding | None = None) -> nn.Module:
            inputs, outputs = self.train.in_channels, self.train.out_channels
            return OperatorTransformer(
                d, inputs, outputs, channels=WIDTH, encoding=encoding, **size
            )

        def frames() -> nn.Module:
            # In the plane the load tells a direction; in space its own axes are all a body has.
            along = [0] if d == 2 else []
            return FrameAveraging(plain(), *self.kinds, along=along, reflections=False)

        def equivariant() -> nn.Module:
            width = {"channels": TOKENS[d].scalars, "vectors": TOKENS[d].vectors}
            return EquivariantTransformer(d, *self.kinds, **width, **size)

        return {
            "plain": plain,
            "translation-invariant": lambda: plain(deepcopy(translation)),
            "invariant kernels": lambda: plain(deepcopy(invariant)),
            "frames": frames,
            "equivariant": equivariant,
        }

    def fitted(self, make: Callable[[], nn.Module], *, poses: bool = False) -> Surrogate:
        """A model trained on the bodies as they lie, or in a new pose at every step."""
        torch.manual_seed(self.budget.seed)
        return fit(
            make(),
            RandomPoses(self.train, *self.kinds) if poses else self.train,
            layout=self.train.layout,
            epochs=self.budget.epochs,
            batch_size=4,
            samples_per_mesh=200,
            seed=self.budget.seed,
            progress=False,
        )

    def errors(self, surrogate: Surrogate) -> list[float]:
        """Relative L²(μ) errors of the displacement, on the bodies as they lie and turned."""
        rows = evaluate(surrogate, self.test, self.turned, progress=False).summary()
        return [row["fields"]["displacement"]["relative_l2"] for row in rows]


def accuracy(problem: Problem) -> dict[str, Surrogate]:
    """Print the errors of all models; returns those trained on bodies that lie alike."""
    print(f"\n## Relative L2(mu) error of the displacement, {problem.dim}-D, {problem.budget}\n")
    _row("trained, tested", "alike, alike", "alike, turned", "poses, alike", "poses, turned")
    trained, aligned = {}, {}
    for name, make in problem.models().items():
        began = time.perf_counter()
        trained[name] = problem.fitted(make)
        size = sum(p.numel() for p in trained[name].model.parameters())
        note = f"   {time.perf_counter() - began:.0f} s, {size} parameters"
        errors = problem.errors(trained[name])
        aligned[name] = errors[0]
        errors += errors if name in SYMMETRIC else problem.errors(problem.fitted(make, poses=True))
        _row(name, *(f"{error:.4f}" for error in errors), note)
    own = aligned.pop("equivariant")
    best = min(aligned, key=lambda name: aligned[name])
    print(
        f"\nequivariant / best other ({best}), trained and tested alike: {own / aligned[best]:.3f}"
    )
    return trained


def residuals(problem: Problem, trained: dict[str, Surrogate], bodies: int = 4) -> None:
    """Print by how much a trained model does not turn with the space: |G(Qu) - Q G(u)| / |G(u)|."""
    print(f"\n## Largest residual over {bodies} bodies and motions, {problem.dim}-D\n")
    _row("", "rotations", "reflections", "translations")
    mirror = torch.eye(problem.dim, dtype=torch.float64)
    mirror[0, 0] = -1
    for name, surrogate in trained.items():
        for precision in ("float64", "float32", "bfloat16") if name in SYMMETRIC else ("float64",):
            generator = torch.Generator().manual_seed(1)
            worst = [0.0, 0.0, 0.0]
            for sample in problem.test[:bodies]:
                q = random_rotation(problem.dim, generator=generator)
                shift = torch.randn(problem.dim, generator=generator)
                motions = ((q, 0.0), (q @ mirror, 0.0), (torch.eye(problem.dim), shift))
                for i, motion in enumerate(motions):
                    moved = problem.move(sample, *motion)
                    got = _predicted(surrogate, moved, precision)
                    wanted = _predicted(surrogate, sample, precision)
                    worst[i] = max(worst[i], _change(problem, got, wanted, motion[0], sample))
            _row(f"{name}, {precision}", *(f"{x:.1e}" for x in worst))


def units(problem: Problem, trained: dict[str, Surrogate], bodies: int = 4) -> None:
    """Print what changes far from the origin, and in other units, with the scales fitted anew."""
    print(f"\n## Largest change of the prediction, {problem.dim}-D\n")
    _row("", "one body far off", "all far off", "millimetres")
    eye = torch.eye(problem.dim)

    def moved(sample: Sample) -> Sample:
        return problem.move(sample, eye, FAR)

    def scaled(sample: Sample) -> Sample:
        weights = 1e3**problem.dim * sample.source.weights
        source = Domain(1e3 * sample.source.points, weights)
        return replace(sample, source=source, outputs=1e3 * sample.truth)

    for name, surrogate in trained.items():
        own, off, small = (_refitted(problem, surrogate, f) for f in (lambda s: s, moved, scaled))
        cases = ((own, moved, 1), (off, moved, 1), (small, scaled, 1e3))
        for precision in ("float64", "float32"):
            worst = [0.0] * len(cases)
            for sample in problem.test[:bodies]:
                y = _predicted(own, sample, precision)
                for i, (other, change, unit) in enumerate(cases):
                    got = _predicted(other, change(sample), precision) / unit
                    worst[i] = max(worst[i], _change(problem, got, y, eye, sample))
            _row(f"{name}, {precision}", *(f"{x:.1e}" for x in worst))


def cost(budget: Budget) -> None:
    """Print what blocks and encodings cost, forward and backward, against what has less of it."""
    n = budget.points
    print(f"\n## Cost, {n} points, width {WIDTH}, {HEADS} heads, forward and backward\n")
    _row("one block of vectors, 1 sample", "seconds", "/ no encoding", "/ Gaussian", "/ default")
    for dim, tokens in TOKENS.items():
        ours = _work(EquivariantBlock(tokens, HEADS, hidden=HIDDEN), dim, n)
        encodings = (
            None,
            library.GaussianBias(dim, HEADS, WIDTH),
            default_encoding(dim, WIDTH, HEADS),
        )
        others = [_work(_block(encoding), dim, n) for encoding in encodings]
        pairs = [paired(ours, other, budget.rounds) for other in others]
        _row(f"{dim}-D", f"{pairs[0][0]:.4f}", *(f"{ratio:.2f}" for _, ratio in pairs))
    print()
    _row("encoding, in one block", "seconds", "/ no encoding")
    e, d = WIDTH // HEADS, 3
    bare = _work(_block(None), d, n)
    encodings = {
        "Rotary": library.Rotary(d, HEADS, e),
        "GaussianBias": library.GaussianBias(d, HEADS),
        "GaussianBias, of the tokens": library.GaussianBias(d, HEADS, WIDTH),
        "DistanceBias, ExponentialDecay": library.DistanceBias(library.ExponentialDecay(HEADS)),
        "DistanceBias, PowerLaw": library.DistanceBias(library.PowerLaw(HEADS)),
        "DistanceBias, RadialBasis": library.DistanceBias(library.RadialBasis(HEADS)),
        "DistanceBias, RadialNetwork": library.DistanceBias(library.RadialNetwork(HEADS)),
        "DisplacementBias": library.DisplacementBias(d, HEADS),
        "LocalFrameBias": library.LocalFrameBias(d, HEADS),
        "Coordinates": library.Coordinates(d, WIDTH),
        "FourierFeatures": library.FourierFeatures(d, WIDTH),
        "the default of a model": default_encoding(d, WIDTH, HEADS),
    }
    for name, encoding in encodings.items():
        seconds, ratio = paired(_work(_block(encoding), d, n), bare, budget.rounds)
        _row(name, f"{seconds:.4f}", f"{ratio:.2f}")


class Embedded(nn.Module):
    """A block whose tokens are embedded first, as a model does once."""

    def __init__(self, encoding: PositionalEncoding) -> None:
        super().__init__()
        kernel = encoding.only("rotate", "factors", "bias")
        self.encoding, self.block = encoding, EncoderBlock(WIDTH, HEADS, encoding=kernel)

    def forward(self, x: Tensor, domain: Domain) -> Tensor:
        return self.block(self.encoding.embed(x, domain), domain)


def _block(encoding: PositionalEncoding | None) -> nn.Module:
    return EncoderBlock(WIDTH, HEADS) if encoding is None else Embedded(encoding)


def _work(block: nn.Module, dim: int, n: int) -> Callable[[], object]:
    generator = torch.Generator().manual_seed(n)
    x = torch.randn(1, n, WIDTH, generator=generator, requires_grad=True)
    points = 2 * torch.rand(1, n, dim, generator=generator) - 1
    domain = Domain(points, torch.rand(1, n, generator=generator))
    return lambda: block(x, domain).sum().backward()


def _items(data: Any) -> list[Sample]:
    return [data[i] for i in range(len(data))]


@torch.no_grad()
def _predicted(surrogate: Surrogate, sample: Sample, precision: str) -> Tensor:
    """In float64, in float32, or in float32 with bfloat16 where autocast takes it."""
    surrogate = deepcopy(surrogate)
    surrogate.model.to(torch.float64 if precision == "float64" else torch.float32)
    half = torch.autocast("cpu", torch.bfloat16) if precision == "bfloat16" else nullcontext()
    with half:
        return surrogate(sample).double()


def _change(problem: Problem, got: Tensor, y: Tensor, q: Tensor, sample: Sample) -> float:
    return relative_l2(got, turn(y, problem.kinds[1], q), sample.domain)[0].item()


def _refitted(
    problem: Problem, surrogate: Surrogate, change: Callable[[Sample], Sample]
) -> Surrogate:
    inputs, outputs = getattr(surrogate.model, "kinds", (None, None))
    samples = map(change, _items(problem.train))
    scale = Standardizer.fit(samples, inputs=inputs, outputs=outputs)
    return Surrogate(surrogate.model, scale, surrogate.layout)


def _row(name: str, *cells: str) -> None:
    print(f"{name:34}" + "".join(f"{cell:>18}" for cell in cells), flush=True)


def main() -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", default=Path("demo/elasticity"))
    parser.add_argument("--quick", action="store_true", help="go through the motions")
    parser.add_argument("--seed", type=int, default=0, help="of the fits")
    a = parser.parse_args()
    short = {"train": 8, "test": 3, "epochs": 2, "rounds": 3, "points": 256}
    budget = Budget(seed=a.seed, **(short if a.quick else {}))
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    for dim in (2, 3):
        problem = Problem(a.folder, dim, budget)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r"\d+ domain.s. have principal axes")  # a few do
            warnings.filterwarnings("ignore", "Mismatch dtype")  # of torch's RMS norm in bfloat16
            trained = accuracy(problem)
            residuals(problem, trained)
            units(problem, trained)
    cost(budget)


if __name__ == "__main__":
    main()
