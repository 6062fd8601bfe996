"""Modules as plain data: described, written as JSON, built again, they are the same function."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch import nn

from opformer import Attention, Domain, OperatorTransformer
from opformer.config import build, describe
from opformer.encodings import (
    Compose,
    Coordinates,
    FourierFeatures,
    GaussianBias,
    PositionalEncoding,
    Rotary,
    Sinusoidal,
)

MODULES = [
    Coordinates(2, 8),
    Sinusoidal(2, 8, unit=0.5, base=100.0),
    FourierFeatures(2, 8, frequencies=5, length=0.3, learnable=True),
    Rotary(2, 4, 16, wavelengths=(0.2, 3.0), learnable=False),
    GaussianBias(2, 4, 8, shift=False, lengths=(0.3, 0.7)),
    GaussianBias(2, 4),
    Compose(),
    Compose(Coordinates(2, 8), Compose(Rotary(2, 4, 16), GaussianBias(2, 4))),
    Attention(8, 2),
    Attention(8, 4, encoding=Rotary(2, 4, 2), qk_norm=False),
    OperatorTransformer(2, 1, 3, channels=8, heads=2, layers=1),
    OperatorTransformer(
        3,
        0,
        1,
        parameter_channels=2,
        channels=12,
        heads=2,
        layers=2,
        decoder_layers=1,
        hidden=5,
        encoding=Compose(Sinusoidal(3, 12), Rotary(3, 2, 6)),
        norm_first=False,
        qk_norm=False,
    ),
]


class Plain(PositionalEncoding):
    """Without a constructor of its own, as a user's first encoding may be."""

    def embed(self, features, domain):
        return features + domain.points.sum(-1, keepdim=True)


class Forgetful(nn.Module):
    def __init__(self, size):
        super().__init__()


class Hiding(nn.Module):
    def __init__(self, **options):
        super().__init__()


class Anything(nn.Module):
    def __init__(self, thing):
        super().__init__()
        self.thing = thing


@pytest.mark.parametrize("module", MODULES, ids=lambda m: type(m).__name__)
def test_round_trip(module):
    config = json.loads(json.dumps(describe(module)))
    again = build(config)
    assert type(again) is type(module)
    assert describe(again) == config
    assert str(again) == str(module)
    again.load_state_dict(module.state_dict())  # the same names and shapes
    assert config == describe(again), "parameters are no part of it"


def test_the_same_function():
    model, source = MODULES[-1].double(), Domain(torch.rand(9, 3), torch.rand(9))
    again = build(describe(model))
    again.load_state_dict(model.state_dict())
    parameters = torch.randn(2)
    assert torch.equal(again(source, None, None, parameters), model(source, None, None, parameters))


def test_description_is_readable():
    assert describe(Compose(Rotary(2, 4, 16, learnable=False))) == {
        "class": "opformer.encodings.base:Compose",
        "arguments": {
            "encodings": [
                {
                    "class": "opformer.encodings.rotary:Rotary",
                    "arguments": {
                        "dim": 2,
                        "heads": 4,
                        "channels": 16,
                        "wavelengths": [0.5, 8.0],
                        "directions": "random",
                        "learnable": False,
                    },
                }
            ]
        },
    }


def test_a_class_without_a_constructor():
    assert isinstance(build(describe(Plain())), Plain)
    assert isinstance(build(describe(Compose(Plain()))).encodings[0], Plain)


def test_numpy_scalars_become_numbers():
    """`torch.load` refuses them by default."""
    encoding = Sinusoidal(np.int64(2), 8, unit=np.float64(0.5), base=np.float32(16))
    arguments = describe(encoding)["arguments"]
    assert [type(value) for value in arguments.values()] == [int, int, float, float]
    assert describe(build(describe(encoding))) == describe(encoding)


@pytest.mark.parametrize(
    "name",
    [
        "nowhere:Thing",
        "opformer.encodings.rotary:Wheel",
        "opformer.config:build",  # no class
        "pathlib:Path",  # no module
        "os:system",
        "",
        "opformer.encodings.rotary",
    ],
)
def test_refuses_unknown_classes(name):
    with pytest.raises(ValueError, match=f"class {name!r} is not known: import the module"):
        build({"class": name, "arguments": {}})


def test_nothing_is_imported():
    with pytest.raises(ValueError, match="not known"):
        build({"class": "this:Zen", "arguments": {}})
    with pytest.raises(ValueError, match="not known"):
        build({"class": "torch.ao.quantization.fx.nowhere:Zen", "arguments": {}})


def test_refuses_what_cannot_be_saved():
    with pytest.raises(TypeError, match="Forgetful must store its argument 'size'"):
        describe(Forgetful(3))
    with pytest.raises(TypeError, match="Hiding must name all arguments"):
        describe(Hiding())
    with pytest.raises(TypeError, match=r"Anything\.thing must be .* got function"):
        describe(Anything(lambda x: x))
    with pytest.raises(TypeError, match=r"Anything\.thing must be .* got Tensor"):
        describe(Anything([1, torch.zeros(2)]))

    class Local(nn.Module):
        pass

    with pytest.raises(TypeError, match="Local must be defined at the top of a module"):
        describe(Local())
