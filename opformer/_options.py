"""What the options of the command line accept."""

from __future__ import annotations

import argparse

import torch

__all__ = ["assignment", "device", "positive"]


def positive(text: str) -> int:
    """A whole number, at least 1."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number, at least 1, got {text}")
    return value


def assignment(text: str) -> tuple[str, list[float]]:
    """``NAME=VALUE``, with commas between the values of a vector."""
    name, _, values = text.partition("=")
    try:
        return name, [float(value) for value in values.split(",")]
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"must be NAME=NUMBER, or NAME=NUMBER,NUMBER for a vector, got {text}"
        ) from error


def device(text: str) -> torch.device:
    """One that can be used here."""
    try:
        return torch.empty(0, device=text).device
    except Exception as error:  # torch raises RuntimeError, AssertionError, NotImplementedError
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise argparse.ArgumentTypeError(f"{text} cannot be used here ({reason})") from error
