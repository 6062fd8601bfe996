"""The memory operator of examples/viscoelastic.py: its truth, its grids, causality, streaming."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from tolerances import ROUNDING, difference

pytest.importorskip("matplotlib", reason="needs the extra 'plot'")
sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

import viscoelastic
from opformer import Domain, Standardizer, Surrogate, collate, kernel_integral
from opformer.causal import Past
from opformer.evaluation import relative_l2
from opformer.layout import Layout
from opformer.testing import observed_order
from viscoelastic import CROWDED, END, TIMES, Case, grid

TIGHT = ROUNDING[torch.float64]
INTEGRATED = 1e-9  # the truth is integrated to ten digits
MODULI = np.array([0.4, 0.8, 0.3, 0.7])
NOTHING = np.zeros(1)
T = np.linspace(0, END, 101)


# The truth


def test_a_step_of_strain_relaxes():
    step = Case(0.5, MODULI, lambda t: np.full_like(t, 0.3), NOTHING)
    modulus = 0.5 + np.exp(-T[:, None] / TIMES) @ MODULI
    assert difference(step.stress(T), 0.3 * modulus) < INTEGRATED


@pytest.mark.parametrize("rate", [0.2, 2.0, 7.0])
def test_a_sine_of_strain(rate):
    r"""σ of each arm is g Re[iωτ/(1+iωτ) (-i e^{iωt})] and what decays from the start."""
    wave = Case(0.5, MODULI, lambda t: np.sin(rate * t), NOTHING)
    x = rate * TIMES
    t = T[:, None]
    arms = x * (np.cos(rate * t) + x * np.sin(rate * t) - np.exp(-t / TIMES)) / (1 + x**2)
    assert difference(wave.stress(T), 0.5 * np.sin(rate * T) + arms @ MODULI) < INTEGRATED


@pytest.mark.parametrize("seed", range(6))
def test_the_convolution(seed):
    """By adaptive quadrature, integrated by parts: G(0) ε(t) + ∫ G'(t - s) ε(s) ds."""
    problem = viscoelastic.case(seed)
    g = problem.moduli

    def integrand(s, t):
        return -(g / TIMES * np.exp(-(t - s) / TIMES)).sum() * problem.strain(np.asarray(s))

    for t in (0.05, 2.0, 6.5, END):
        ends = np.linspace(0, t, 101)
        memory = sum(
            quad(integrand, a, b, args=(t,), epsabs=1e-12, epsrel=1e-12)[0]
            for a, b in pairwise(ends)
        )
        at = np.array([t])
        expected = (problem.equilibrium + g.sum()) * problem.strain(at) + memory
        assert abs(problem.stress(at) - expected).item() < INTEGRATED


def test_the_dashpots_are_means_over_the_past():
    """Causal attention without scores, with an exponential kernel; it has order 2 on any grid."""
    problem = viscoelastic.case(3)
    errors, sizes = [], (200, 400, 800, 1600)
    for n in sizes:
        x = grid(n, problem, "events")
        t, domain = torch.from_numpy(x), Domain.from_points(x, rule="interval")
        rates = torch.from_numpy(1 / TIMES)[:, None, None]
        zero, strain = torch.zeros(4, n, 1), torch.from_numpy(problem.strain(x))[:, None]
        mean = kernel_integral(
            zero,
            zero,
            strain.expand(4, n, 1),
            domain.weights,
            factors=(rates.expand(4, n, 1), t[:, None].expand(4, n, 1)),
            past=Past(t, t, domain.weights),
        )[..., 0]
        errors.append(difference(mean * (1 - (-t * rates[..., 0]).exp()), problem.dashpots(x)))
    observed_order([1 / n for n in sizes], errors, at_least=1.8)
    assert errors[-1] < 5e-4


# The grids


@pytest.mark.parametrize("crowded", CROWDED)
def test_the_times(crowded):
    problem = viscoelastic.case(1)
    t = grid(200, problem, crowded)
    steps = np.diff(t)
    assert (t[0], t[-1], len(t)) == (0, END, 200)
    assert steps.min() > 0
    assert np.array_equal(t, grid(200, problem, crowded))
    assert not np.array_equal(t, grid(200, problem, crowded, seed=1))
    ratio = steps.max() / steps.min()
    assert 3 < ratio < 9 if crowded == "nowhere" else ratio > 20
    where = {"nowhere": 5, "start": 1.5, "end": 8.5}
    if crowded in where:
        assert abs(np.median(t) - where[crowded]) < 0.7
    else:
        near = np.abs(t[:, None] - problem.events).min(1) < 0.4
        everywhere = np.abs(T[:, None] - problem.events).min(1) < 0.4
        assert near.mean() > 2 * everywhere.mean()


def test_the_same_case_on_another_grid():
    coarse, fine = (viscoelastic.samples([5], finer)[0] for finer in (1, 4))
    assert fine.size == 4 * coarse.size
    assert torch.equal(coarse.parameters, fine.parameters)
    t, s = (sample.source.points[:, 0].numpy() for sample in (coarse, fine))
    for values in ("fields", "outputs"):
        of_coarse, of_fine = (getattr(x, values)[:, 0].numpy() for x in (coarse, fine))
        assert np.abs(np.interp(t, s, of_fine) - of_coarse).max() < 0.05
    for sample in (coarse, fine):
        assert abs(sample.source.total.item() - END) < TIGHT * END


# Causality and streaming


@pytest.fixture(scope="module")
def data():
    return viscoelastic.samples(range(24))


def surrogate(data, trained, **options):
    net = viscoelastic.model(**options)
    if trained:
        return viscoelastic.train(net, data, epochs=2).double()
    layout = Layout({"input": 1}, {"output": 1}, {"parameter": 5}, axes=[0])
    return Surrogate(net, Standardizer.fit(data), layout).double().eval()


every_state = pytest.mark.parametrize("trained", [False, True], ids=["untrained", "trained"])
every_kind = pytest.mark.parametrize("crowded", CROWDED)


def unseen(crowded, n=40):
    problem = viscoelastic.case(viscoelastic.UNSEEN[0])
    return problem.sample(grid(n, problem, crowded))


@every_state
@pytest.mark.parametrize("atoms", [False, True], ids=["cells", "atoms"])
@pytest.mark.parametrize("order", ["in order", "in any order"])
def test_no_later_strain_moves_an_earlier_stress(data, trained, atoms, order):
    """Bit for bit, and with a gradient of exactly zero."""
    net, sample = surrogate(data, trained, atoms=atoms), unseen("nowhere")
    index = torch.arange(40) if order == "in order" else torch.randperm(40)
    fields = sample.fields[index].requires_grad_()
    sample = replace(sample, source=sample.source.take(index), fields=fields, outputs=None)
    stress, t = net(sample), sample.source.points[:, 0]
    for now in (0.0, 2.0, 7.0):
        early = t <= now
        other = torch.where(early[:, None], fields, 10 * torch.randn(40, 1))
        moved = net(replace(sample, fields=other))
        assert torch.equal(moved[early], stress[early])
        assert not (moved[~early] == stress[~early]).any()
        (gradient,) = torch.autograd.grad(stress[early].sum(), fields, retain_graph=True)
        assert (gradient[~early] == 0).all()
        assert (gradient[early] != 0).all()


@every_state
def test_a_loss_at_early_times_has_no_gradient_at_later_ones(data, trained):
    """As in training: of a batch of different grids, padded."""
    net, batch = surrogate(data, trained), collate(data[:4])
    early = batch.source.points[..., 0] <= 4.0
    fields = batch.fields.clone().requires_grad_()
    judged = replace(batch.source, weights=batch.source.weights.masked_fill(~early, 0))
    errors, _ = relative_l2(net(replace(batch, fields=fields)), batch.outputs, judged)
    (gradient,) = torch.autograd.grad(errors.mean(), fields)
    assert (gradient[~early] == 0).all()
    assert (gradient[early] != 0).all()


@every_state
@every_kind
def test_one_by_one_is_all_at_once(data, trained, crowded):
    net, sample = surrogate(data, trained), unseen(crowded)
    with torch.no_grad():
        whole = net(sample)
    streamed = viscoelastic.stream(net, sample)
    assert difference(streamed, whole) < TIGHT
    assert streamed.std() > 0.01


@every_state
@every_kind
def test_a_few_at_a_time(data, trained, crowded):
    net, sample = surrogate(data, trained), unseen(crowded)
    scale, state, found = net.standardizer, None, []
    for start, stop in pairwise([0, 3, 4, 11, 30, 40]):
        so_far = Domain.from_points(sample.source.points[:stop], rule="interval")
        strain = scale.scale_fields(sample.fields[start:stop])
        parameters = scale.scale_parameters(sample.parameters)
        y, state = net.model.step(scale.scale_domain(so_far), strain, parameters, state=state)
        found.append(scale.unscale_outputs(y).detach())
    with torch.no_grad():
        assert difference(torch.cat(found), net(sample)) < TIGHT


# Other grids


def moves(net, crowded):
    """How far the stress at the times of a grid moves with each halving of all its steps."""
    problem = viscoelastic.case(viscoelastic.UNSEEN[0])
    t, values = grid(100, problem, crowded), []
    for k in range(5):
        with torch.no_grad():
            values.append(net(problem.sample(t))[:: 2**k])
        t = np.sort(np.append(t, (t[1:] + t[:-1]) / 2))
    return [difference(*pair) for pair in pairwise(values[1:])]


@every_kind
def test_why_the_error_is_flat(data, crowded):
    """With the past part of a cell alone a model converges with order 2, else with order 1."""
    h = [1 / 2, 1 / 4, 1 / 8]
    cells, atoms = (moves(surrogate(data, False, atoms=a), crowded) for a in (False, True))
    observed_order(h, cells, at_least=1.8)
    assert observed_order(h, atoms) < 1.5
    assert 3 * cells[-1] < atoms[-1]
