"""Which rows of numbers are equal, and which points may be near one another, without comparing all.

Rows are found equal in a hash table, in linear time; points can only be near one another where
their projections on a line are.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

__all__ = ["equal_rows", "maybe_near", "packed"]

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio: Knuth's hashing
_ROUNDING = 1e-14  # of a projection, relative


def equal_rows(words: Sequence[np.ndarray]) -> np.ndarray:
    """For each row the number of a row equal to it, the same number for all that are equal.

    Every row writes its number into a table at the place of its hash, and the last one stays there.
    Who finds an equal row has its number; the others, of that hash by chance, go on without it.

    Parameters
    ----------
    words : sequence of int64 arrays (m,)
        The columns of the rows.
    """
    count = len(words[0])
    bits = count.bit_length() + 1
    table = np.empty(2**bits, dtype=np.int32 if bits < 32 else np.int64)
    numbers = np.arange(count, dtype=table.dtype)
    leaders, rows = numbers, words
    while len(rows[0]):
        places = _places(rows, bits)
        table[places] = numbers
        found = table.take(places)
        if len(found) == count:
            leaders = found
        else:
            leaders[numbers] = found
        same = [row == word.take(found) for row, word in zip(rows, words, strict=True)]
        lost = np.flatnonzero(~np.logical_and.reduce(same))
        numbers, rows = numbers[lost], [row[lost] for row in rows]
    return leaders


def packed(columns: Sequence[np.ndarray], base: int) -> list[np.ndarray]:
    """Rows of numbers from 0 to ``base`` - 1 in few columns: as many to an int64 as it holds."""
    room = max(int(62 / np.log2(base + 1)), 1)
    words = []
    for start in range(0, len(columns), room):
        word = columns[start]
        for column in columns[start + 1 : start + room]:
            word = word * base + column
        words.append(word)
    return words


def maybe_near(points: np.ndarray, radius: float) -> np.ndarray:
    """Ascending indices of points (n, d), all those within ``radius`` of another and a few more.

    Points that are not finite are near none.
    """
    indices = np.flatnonzero(np.isfinite(points).all(axis=1))
    direction = np.random.default_rng(0).random(points.shape[1]) / points.shape[1]
    projection = np.zeros(len(indices))
    for column, slope in zip(points.T, direction, strict=True):  # of equal points exactly equal
        x = column[indices]
        projection += slope * (x - x.min(initial=np.inf))
    order = np.argsort(projection)
    sorted_ = projection[order]
    close = np.diff(sorted_) <= radius + _ROUNDING * sorted_[1:]
    near = np.append(close, False) | np.append(False, close)
    return np.sort(indices[order[near[: len(order)]]])


def _places(words: Sequence[np.ndarray], bits: int) -> np.ndarray:
    """Where each row belongs in a table of 2^bits."""
    mixed = words[0].view(np.uint64) * _MULTIPLIER
    for word in words[1:]:
        mixed = ((mixed ^ (mixed >> np.uint64(32))) + word.view(np.uint64)) * _MULTIPLIER
    mixed >>= np.uint64(64 - bits)
    return mixed.view(np.int64)
