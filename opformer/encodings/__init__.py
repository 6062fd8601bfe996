"""Positional encodings: how position enters the kernel."""

from opformer.encodings.absolute import Coordinates, FourierFeatures, Sinusoidal
from opformer.encodings.base import Compose, PositionalEncoding
from opformer.encodings.displacement import DisplacementBias, LocalFrameBias
from opformer.encodings.distance import (
    DistanceBias,
    ExponentialDecay,
    PowerLaw,
    Profile,
    RadialBasis,
    RadialNetwork,
)
from opformer.encodings.memory import FadingMemory
from opformer.encodings.relative import GaussianBias
from opformer.encodings.rotary import Rotary

__all__ = [
    "Compose",
    "Coordinates",
    "DisplacementBias",
    "DistanceBias",
    "ExponentialDecay",
    "FadingMemory",
    "FourierFeatures",
    "GaussianBias",
    "LocalFrameBias",
    "PositionalEncoding",
    "PowerLaw",
    "Profile",
    "RadialBasis",
    "RadialNetwork",
    "Rotary",
    "Sinusoidal",
]
