"""Side-by-side measurement: two things in turn, medians, and the median of their ratios."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median


def paired(a: Callable[[], object], b: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Seconds of a (median), and the median of a/b over pairs run one after the other."""
    a(), b()
    pairs = [(seconds(a), seconds(b)) for _ in range(repeats)]
    return median(x for x, _ in pairs), median(x / y for x, y in pairs)


def seconds(f: Callable[[], object]) -> float:
    began = time.perf_counter()
    f()
    return time.perf_counter() - began


def peak_memory(f: Callable[[], object]) -> float:
    """Largest growth of this process while f runs, in MiB (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak of the imports
    before = _status("VmRSS")
    f()
    return (_status("VmHWM") - before) / 1024


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


def in_fresh_process(*arguments: str) -> float:
    """Run this script again with arguments; it must print one number, which is returned."""
    command = [sys.executable, sys.argv[0], *arguments]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
