"""Where the real data lies: beside the checkout, or where OPFORMER_DATA says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_BESIDE = Path(__file__).resolve().parents[2] / "shared" / "data"
_FOLDER = Path(os.environ.get("OPFORMER_DATA", _BESIDE))

DATA: Path | None = _FOLDER if _FOLDER.is_dir() else None

needs_data = pytest.mark.skipif(
    DATA is None, reason=f"no real data in {_FOLDER}; set OPFORMER_DATA to its folder"
)
