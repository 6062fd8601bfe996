"""The shipped contracts, held against everything here that they apply to."""

from __future__ import annotations

import pytest
import torch
from test_integral import PATHS

from opformer import OperatorTransformer, encodings
from opformer.encodings import (
    Compose,
    Coordinates,
    DisplacementBias,
    ExponentialDecay,
    FadingMemory,
    FourierFeatures,
    GaussianBias,
    LocalFrameBias,
    PositionalEncoding,
    PowerLaw,
    RadialBasis,
    RadialNetwork,
    Rotary,
    Sinusoidal,
)
from opformer.model import default_encoding
from opformer.testing import check_encoding, check_model, check_operator

HEADS, CHANNELS = 2, 24
EACH = CHANNELS // HEADS
both_dtypes = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)


class DistanceBias(PositionalEncoding):
    """A dense bias, fifteen lines: what a user writes."""

    symmetry = "E(d)"

    def __init__(self, heads):
        super().__init__()
        self.heads = heads
        self.slope = torch.nn.Parameter(torch.linspace(1, 3, heads))

    def bias(self, target, source):
        offset = target.points[..., :, None, :] - source.points[..., None, :, :]
        square = offset.square().sum(-1)[..., None, :, :]
        return -self.slope[:, None, None] * (square + 1e-6).sqrt()


ENCODINGS = {
    "none": lambda d: Compose(),
    "coordinates": lambda d: Coordinates(d, CHANNELS),
    "sinusoidal": lambda d: Sinusoidal(d, CHANNELS, unit=0.1),
    "fourier": lambda d: FourierFeatures(d, CHANNELS),
    "fourier, fitted": lambda d: FourierFeatures(d, CHANNELS, learnable=True),
    "rotary": lambda d: Rotary(d, HEADS, EACH),
    "rotary, fixed": lambda d: Rotary(d, HEADS, EACH, learnable=False),
    "rotary, axes": lambda d: Rotary(d, HEADS, EACH, directions="axes"),
    "memory": lambda d: FadingMemory(HEADS),
    "memory, first axis": lambda d: FadingMemory(HEADS, CHANNELS, axis=0),
    "gaussian": lambda d: GaussianBias(d, HEADS),
    "gaussian, width": lambda d: GaussianBias(d, HEADS, CHANNELS, shift=False),
    "gaussian, width and centre": lambda d: GaussianBias(d, HEADS, CHANNELS),
    "gaussian, anisotropic": lambda d: GaussianBias(d, HEADS, anisotropic=True),
    "gaussian, all options": lambda d: GaussianBias(d, HEADS, CHANNELS, anisotropic=True),
    "dense": lambda d: DistanceBias(HEADS),
    "displacement": lambda d: DisplacementBias(d, HEADS),
    "exponential": lambda d: encodings.DistanceBias(ExponentialDecay(HEADS)),
    "power": lambda d: encodings.DistanceBias(PowerLaw(HEADS)),
    "radial basis": lambda d: encodings.DistanceBias(RadialBasis(HEADS)),
    "radial network": lambda d: encodings.DistanceBias(RadialNetwork(HEADS)),
    "default": lambda d: default_encoding(d, CHANNELS, HEADS),
    "invariant": lambda d: Compose(GaussianBias(d, HEADS), DistanceBias(HEADS)),
    "everything": lambda d: Compose(
        default_encoding(d, CHANNELS, HEADS),
        Compose(Sinusoidal(d, CHANNELS, unit=0.1), DistanceBias(HEADS)),
    ),
}

MODELS = {
    "default": {},
    "decoder": {"decoder_layers": 2},
    "post-LN": {"norm_first": False},
    "post-LN decoder": {"norm_first": False, "decoder_layers": 1},
    "no qk_norm": {"qk_norm": False},
    "parameters": {"parameter_channels": 2},
    "parameters, decoder": {"parameter_channels": 2, "decoder_layers": 1},
    "geometry alone": {"in_channels": 0},
    "geometry alone, decoder": {"in_channels": 0, "decoder_layers": 1},
    "one layer": {"layers": 1, "hidden": 5},
    "in 1-D": {"dim": 1},
    "in 3-D": {"dim": 3},
    "translation": {"encoding": Compose(Rotary(2, HEADS, EACH), GaussianBias(2, HEADS, CHANNELS))},
    "E(d)": {"encoding": GaussianBias(2, HEADS, CHANNELS, shift=False)},
    "E(d) decoder": {"encoding": GaussianBias(2, HEADS), "decoder_layers": 1},
    "dense": {"encoding": Compose(Coordinates(2, CHANNELS), DistanceBias(HEADS))},
    "shipped dense": {
        "encoding": Compose(
            encodings.DistanceBias(RadialBasis(HEADS)),
            LocalFrameBias(2, HEADS),
            DisplacementBias(2, 2),
        )
    },
    "anisotropic, axes": {
        "encoding": Compose(
            Rotary(2, HEADS, EACH, directions="axes"),
            GaussianBias(2, HEADS, CHANNELS, anisotropic=True),
        )
    },
    "no position": {"encoding": Compose()},
}


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
@both_dtypes
def test_operators(path, dtype):
    check_operator(path, dtype=dtype, exact=path is PATHS["fused"])


@pytest.mark.parametrize("encoding", ENCODINGS.values(), ids=ENCODINGS)
@pytest.mark.parametrize("dim", [1, 2, 3])
@both_dtypes
def test_encodings(encoding, dim, dtype):
    check_encoding(encoding(dim), dim=dim, heads=HEADS, channels=CHANNELS, dtype=dtype)


@pytest.mark.parametrize("dim", [2, 3])
@both_dtypes
def test_local_frames(dim, dtype):
    """Which there are none of on a line."""
    for encoding in (LocalFrameBias(dim, HEADS), LocalFrameBias(dim, HEADS, length=2.0, hidden=8)):
        check_encoding(encoding, dim=dim, heads=HEADS, channels=CHANNELS, dtype=dtype)


@pytest.mark.parametrize("options", MODELS.values(), ids=MODELS)
@both_dtypes
def test_models(options, dtype):
    common = {"dim": 2, "in_channels": 2, "out_channels": 3, "heads": HEADS, "layers": 2}
    check_model(OperatorTransformer(**common | {"channels": CHANNELS} | options), dtype=dtype)
