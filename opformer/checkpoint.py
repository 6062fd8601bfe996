"""Checkpoints: one file of tensors, numbers and strings, written whole or not at all.

``torch.load(..., weights_only=True)`` reads it, so that nothing in a file is ever executed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from opformer._files import replacing

__all__ = ["FORMAT", "load_checkpoint", "save_checkpoint"]

FORMAT = 1


def save_checkpoint(path: str | Path, state: dict[str, Any]) -> None:
    """Write ``state`` (tensors, numbers, strings, lists and dicts of them) to one file."""
    with replacing(path) as temporary:
        torch.save({"format": FORMAT, **state}, temporary)


def load_checkpoint(path: str | Path) -> dict[str, Any]:
    """Read a checkpoint onto the CPU; nothing in it is executed.

    Raises
    ------
    ValueError
        If the file is missing, damaged, no checkpoint of this library, or of a later format.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"{path}: no such checkpoint")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # from a damaged file torch raises about anything
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise ValueError(f"{path}: not a checkpoint, or damaged ({reason[:80]})") from error
    if not isinstance(state, dict) or not isinstance(state.get("format"), int):
        raise ValueError(f"{path}: not a checkpoint of opformer")
    if state["format"] > FORMAT:
        raise ValueError(
            f"{path}: format {state['format']} is newer than this version reads ({FORMAT}): "
            "update opformer"
        )
    return state
