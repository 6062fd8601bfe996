"""Positional encodings: how position enters the kernel."""

from opformer.encodings.absolute import Coordinates, FourierFeatures, Sinusoidal
from opformer.encodings.base import Compose, PositionalEncoding
from opformer.encodings.relative import GaussianBias
from opformer.encodings.rotary import Rotary

__all__ = [
    "Compose",
    "Coordinates",
    "FourierFeatures",
    "GaussianBias",
    "PositionalEncoding",
    "Rotary",
    "Sinusoidal",
]
