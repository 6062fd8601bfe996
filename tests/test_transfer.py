"""The headline: trained on coarse meshes of many densities, as accurate on fine ones.

The operator is a normalised Gaussian smoothing on [0, 1]; every case has a grid of its own of 24 to
64 nodes that crowd towards 0, some more, some less. The tests have eight times the nodes, and other
gradings.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from cases import line, smoothed, tiny_model

from opformer import evaluate, fit
from opformer.evaluation import relative_l2

MESHES = {"as trained": (44, 1.5), "fine": (352, 1.5), "even": (352, 1.0), "graded": (352, 3.0)}


def sample(n, grade, seed):
    return smoothed(line(n, grade, jitter=0.8, seed=seed), seed)


def train(samples):
    """A fit in float32, as users have it."""
    torch.manual_seed(0)
    model = tiny_model(1, 1, 1, channels=16).float()
    return fit(model, samples, epochs=30, batch_size=10, learning_rate=1e-2, progress=False)


@pytest.fixture(scope="module")
def training_set():
    generator = torch.Generator().manual_seed(0)
    sizes = torch.randint(24, 65, (200,), generator=generator).tolist()
    grades = (1 + torch.rand(200, generator=generator)).tolist()
    return [sample(*mesh, seed) for seed, mesh in enumerate(zip(sizes, grades, strict=True))]


@pytest.fixture(scope="module")
def test_sets():
    """The same unseen functions on each kind of mesh."""
    return {name: [sample(*mesh, 10_000 + i) for i in range(20)] for name, mesh in MESHES.items()}


@pytest.fixture(scope="module")
def errors(training_set, test_sets):
    """Relative errors, with the measure and with all weights equal, by kind of mesh."""
    surrogate = train(training_set)
    rows = evaluate(surrogate, *test_sets.values(), uniform=True, progress=False).summary()
    return {name: row["fields"]["output"] for name, row in zip(MESHES, rows, strict=True)}


def test_it_learned_the_operator(errors):
    assert errors["as trained"]["relative_l2"] < 0.04


@pytest.mark.parametrize("mesh", ["fine", "even", "graded"])
def test_the_error_holds_on_other_meshes(errors, mesh):
    assert errors[mesh]["relative_l2"] <= 1.10 * errors["as trained"]["relative_l2"]


@pytest.mark.parametrize(("mesh", "factor"), [("as trained", 3), ("fine", 3), ("graded", 6)])
def test_it_is_the_measure_that_does_it(errors, mesh, factor):
    """The same model is far off where its attention counts nodes instead."""
    assert errors[mesh]["relative_l2_uniform"] > factor * errors[mesh]["relative_l2"]


@pytest.mark.slow
def test_a_plain_softmax_does_not_transfer(training_set, test_sets):
    """Trained and evaluated with equal weights; judged under the same measure as the other."""

    def blind(s):
        return replace(s, source=s.source.uniform(), target=s.source)

    surrogate = train([blind(s) for s in training_set])
    with torch.no_grad():
        error = {
            name: sum(relative_l2(surrogate(blind(s)), s.outputs, s.source)[0] for s in samples)
            for name, samples in test_sets.items()
        }
    assert error["graded"] > 1.5 * error["as trained"]
