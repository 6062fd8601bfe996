"""Every file of examples/ runs to its end, short; each asserts a number of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))

# How each example is run short. "OUT" stands for an empty folder.
ARGUMENTS = {
    "articles.py": ["OUT", "--quick"],
    "demo.py": ["--quick"],  # writes to demo/ of the working directory
    "elasticity.py": ["OUT", "--cases", "2", "--dim", "3", "--nodes", "60", "120"],
    "integral.py": [],
    "new_encoding.py": [],
    "plates.py": ["OUT", "--cases", "3", "--nodes", "200", "300", "--workers", "1"],
    "sequence.py": ["OUT", "--quick"],
    "viscoelastic.py": ["OUT", "--quick"],
    "which_encoding.py": [],
}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_runs(example, tmp_path):
    assert example.name in ARGUMENTS, f"add {example.name} to ARGUMENTS in {Path(__file__).name}"
    out = str(tmp_path / "out")
    arguments = [out if argument == "OUT" else argument for argument in ARGUMENTS[example.name]]
    run = subprocess.run(
        [sys.executable, "-W", "error", str(example), *arguments],
        cwd=tmp_path,
        env={**os.environ, "MPLBACKEND": "Agg"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, f"{example.name}\n{run.stdout}\n{run.stderr}"


def test_every_example_is_collected():
    assert {example.name for example in EXAMPLES} == set(ARGUMENTS)
