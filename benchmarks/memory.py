"""What time, not index, and the weights of its steps buy: a memory operator, in four ways.

The viscoelastic cases of examples/viscoelastic.py, trained on 24 to 64 random times. All models
start from the same seed and see the same batches:

- cells: the weights of the time steps, of the last cell the part that is past (the default);
- atoms: the same weights, each heard as a whole;
- equal: equal weights, heard as a whole: the causal attention of a language model;
- index: the weights, but ordered by the place in the array. It is a second coordinate of the
  points, so small that no kernel sees it, and the causal axis.

    python benchmarks/memory.py [--quick]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor, nn

from opformer import Domain, Sample, Surrogate
from opformer.evaluation import relative_l2

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from viscoelastic import END, UNSEEN, Unweighted, model, samples, train

PLACE = 1e-6  # seconds, from one place in the array to the next

WAYS: dict[str, Callable[[], nn.Module]] = {
    "cells": model,
    "atoms": lambda: model(atoms=True),
    "equal": lambda: Unweighted(model(atoms=True)),
    "index": lambda: model(dim=2, causal_axis=1),
}
# Rows of the table: how many times the times of the training, and where they crowd.
GRIDS = {
    "as trained": (1, "nowhere"),
    "2 times finer": (2, "nowhere"),
    "4 times": (4, "nowhere"),
    "8 times": (8, "nowhere"),
    "4 times, crowded at the start": (4, "start"),
    "4 times, crowded at the end": (4, "end"),
    "4 times, crowded at events": (4, "events"),
}


def placed(sample: Sample) -> Sample:
    """The case with the place in the array as a second coordinate."""
    t = sample.source.points
    place = PLACE * torch.arange(len(t)).to(t)[:, None]
    return replace(sample, source=Domain(torch.cat([t, place], 1), sample.source.weights))


def shuffled(sample: Sample) -> Sample:
    """The case with its times in random order."""
    order = torch.randperm(sample.size, generator=torch.Generator().manual_seed(sample.size))
    fields, outputs = sample.fields[order], sample.truth[order]
    return replace(sample, source=sample.source.take(order), fields=fields, outputs=outputs)


def answer(surrogate: Surrogate, source: Sample, target: Sample) -> Tensor:
    """Stress at the times of one grid, where the model knows the strain, from that on another."""
    asked = replace(source, target=target.source, target_fields=target.fields, outputs=None)
    return surrogate(asked)


def error(surrogate: Surrogate, sources: Sequence[Sample], targets: Sequence[Sample]) -> float:
    """Mean relative L²(μ) error."""
    return fmean(
        relative_l2(answer(surrogate, source, target), target.truth, target.source)[0].item()
        for source, target in zip(sources, targets, strict=True)
    )


def hindsight(surrogate: Surrogate, cases: Sequence[Sample]) -> float:
    """How far other strains in the second half move stresses in the first, over the largest."""
    changes = []
    for sample in cases:
        early = sample.source.points[:, 0] <= END / 2
        other = replace(sample, fields=torch.where(early[:, None], sample.fields, 1.0))
        change = (surrogate(other) - surrogate(sample))[early].abs().max()
        changes.append((change / sample.truth.abs().max()).item())
    return max(changes)


def main() -> None:
    """Train four times, and print one table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few cases and epochs")
    quick = parser.parse_args().quick
    cases, epochs, unseen = (32, 2, UNSEEN[:3]) if quick else (1200, 20, UNSEEN)
    data = samples(range(cases))
    sets = {name: samples(unseen, *grid) for name, grid in GRIDS.items()}
    mixed = [shuffled(sample) for sample in sets["as trained"]]
    columns = []
    for way, make in WAYS.items():
        by_index = way == "index"

        def seen(cases: Sequence[Sample], by_index: bool = by_index) -> list[Sample]:
            return [placed(sample) for sample in cases] if by_index else list(cases)

        began = time.perf_counter()
        surrogate = train(make(), seen(data), epochs)
        seconds = time.perf_counter() - began
        with torch.no_grad():
            column = {name: error(surrogate, seen(x), seen(x)) for name, x in sets.items()}
            column["as trained, times in any order"] = error(surrogate, seen(mixed), seen(mixed))
            coarse, fine = (seen(sets[name]) for name in ("as trained", "4 times"))
            column["as trained, asked at 4 times"] = error(surrogate, coarse, fine)
            column["any order: early moved by late"] = hindsight(surrogate, seen(mixed))
        columns.append(column | {"seconds of training": seconds})
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {len(unseen)} cases\n")
    print(f"{'':32}", *(f"{way:>8}" for way in WAYS))
    for row in columns[0]:
        print(f"{row:32}", *(f"{column[row]:8.4g}" for column in columns))


if __name__ == "__main__":
    main()
