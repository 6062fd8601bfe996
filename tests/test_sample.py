"""Samples refuse what would broadcast into garbage later, and name themselves."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from opformer import Domain, OperatorTransformer, Sample, Standardizer, collate, fit
from opformer.augment import move
from opformer.domain import as_target
from opformer.evaluation import relative_l2

DOMAIN = Domain(torch.rand(5, 2), torch.rand(5))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"fields": torch.zeros(5)}, r"sample 'a': fields must have shape \(5, 'channels'\), got"),
        ({"fields": torch.zeros(4, 1)}, r"fields must have shape \(5, 'channels'\), got \(4, 1\)"),
        ({"outputs": torch.zeros(5)}, r"outputs must have shape \(5, 'channels'\), got \(5,\)"),
        (
            {"outputs": torch.zeros(5, 1), "target": as_target(torch.rand(3, 2))},
            r"outputs must have shape \(3, 'channels'\), got \(5, 1\)",
        ),
        (
            {"target_fields": torch.zeros(5, 1), "target": as_target(torch.rand(3, 2))},
            r"target_fields must have shape \(3, 'channels'\), got \(5, 1\)",
        ),
        ({"target_fields": torch.zeros(5, 1)}, "sample 'a' has target_fields and no target"),
        ({"part": torch.zeros(4).long()}, r"part must have shape \(5,\), got \(4,\)"),
    ],
)
def test_shapes_that_do_not_fit(values, message):
    with pytest.raises(ValueError, match=message):
        Sample(DOMAIN, **({"fields": torch.zeros(5, 1)} | values), name="a")


def test_no_parameters_by_default():
    assert Sample(DOMAIN, torch.zeros(5, 1)).parameters.shape == (0,)


def test_fields_at_the_target_follow_it():
    """Into subsamples, batches and other poses."""
    points = torch.rand(6, 2)
    values = points[:, :1].clone()
    target = Domain(points, torch.rand(6))
    sample = Sample(DOMAIN, torch.zeros(5, 1), target=target, target_fields=values)
    part = sample.subsample(3)
    assert torch.equal(part.target_fields, part.target.points[:, :1])
    small = replace(sample, target=target.take(slice(4)), target_fields=values[:4])
    batch = collate([sample, small])
    assert torch.equal(batch.target_fields[1, :4], values[:4])
    assert (batch.target_fields[1, 4:] == 0).all()
    vector = replace(sample, fields=torch.zeros(5, 2), target_fields=points)
    quarter = torch.tensor([[0.0, -1.0], [1.0, 0.0]])
    turned = move(vector, quarter, inputs=["vector"], outputs=[])
    assert torch.equal(turned.target_fields, turned.target.points)


def test_a_standardizer_refuses_other_channels():
    """One channel would broadcast to the three that were fitted."""
    scale = Standardizer(2, 3, 2, 3)
    for method, width in (
        (scale.scale_fields, "3"),
        (scale.scale_parameters, "2"),
        (scale.unscale_outputs, "3"),
    ):
        with pytest.raises(ValueError, match=rf"must have {width} channels, got \(4, 1\)"):
            method(torch.zeros(4, 1))
    with pytest.raises(ValueError, match=r"points must have 2 channels, got \(4, 1\)"):
        scale.scale_domain(Domain(torch.zeros(4, 1), torch.ones(4)))


@pytest.mark.parametrize("name", ["fields", "outputs", "parameters"])
def test_values_that_are_not_finite_are_named_before_the_first_step(name):
    values = {
        "fields": torch.ones(5, 1),
        "outputs": torch.ones(5, 1),
        "parameters": torch.ones(1),
    }
    values[name] = values[name] * torch.nan
    samples = [Sample(DOMAIN, **values, name=f"case {i}") for i in range(3)]
    model = OperatorTransformer(2, 1, 1, parameter_channels=1, channels=8, heads=2, layers=1)
    with pytest.raises(ValueError, match=rf"sample 'case \d': {name} are NaN or infinite at \[0"):
        fit(model, samples, epochs=1, progress=False)


def test_an_error_is_taken_of_one_shape():
    with pytest.raises(ValueError, match=r"one shape, got \(5, 1\) and \(5,\)"):
        relative_l2(torch.zeros(5, 1), torch.zeros(5), DOMAIN)
