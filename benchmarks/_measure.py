"""Side-by-side measurement: two things in turn, medians, and the median of their ratios."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Callable
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


def peak_memory() -> float:
    """Largest resident set of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def in_fresh_process(*arguments: str) -> float:
    """Run this script again with arguments; it must print one number, which is returned."""
    command = [sys.executable, sys.argv[0], *arguments]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
