"""Several meshes as one: pieces of a parallel run, blocks of a file, parts of a time step.

Each has its own copy of the points where they meet. Points of different pieces become one if their
coordinates and the values of all common point fields are equal, bit for bit; else the seams would
count as boundary. Points of the same piece stay apart, so a crack inside a piece stays open.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import meshio
import numpy as np

from opformer._polyhedra import renumbered
from opformer.errors import MeshError

__all__ = ["merge"]

Where = Literal["point_data", "cell_data"]


def merge(pieces: Sequence[meshio.Mesh], *, fill: bool = False) -> meshio.Mesh:
    """Join clean meshes; their cells follow one another, their points too, but for doubles.

    Parameters
    ----------
    pieces
        Meshes as `clean` makes them.
    fill
        Whether a field may be missing from a piece; it is NaN there. By default it is refused.

    Raises
    ------
    MeshError
        If there are no pieces or they do not hold the same fields.

    Examples
    --------
    >>> left = meshio.Mesh([[0.0], [1.0]], [("line", np.array([[0, 1]]))])
    >>> right = meshio.Mesh([[1.0], [2.0]], [("line", np.array([[0, 1]]))])
    >>> merge([left, right]).points.ravel().tolist()
    [0.0, 1.0, 2.0]
    """
    if not pieces:
        raise MeshError("there are no cells")
    if not fill:
        _check_same_fields(pieces)
    first, numbers = _weld(pieces)
    return meshio.Mesh(
        np.concatenate([piece.points for piece in pieces])[first],
        [
            (block.type, renumbered(block.data, number))
            for piece, number in zip(pieces, numbers, strict=True)
            for block in piece.cells
        ],
        point_data={
            name: _point_field(pieces, numbers, len(first), name)
            for name in _names(pieces, "point_data")
        },
        cell_data={name: _cell_field(pieces, name) for name in _names(pieces, "cell_data")},
        field_data={
            name: data for piece in pieces[::-1] for name, data in piece.field_data.items()
        },
    )


def _names(pieces: Iterable[meshio.Mesh], where: Where) -> dict[str, None]:
    return {name: None for piece in pieces for name in getattr(piece, where)}


def _check_same_fields(pieces: Sequence[meshio.Mesh]) -> None:
    held = [(piece.point_data.keys(), piece.cell_data.keys()) for piece in pieces]
    if any(names != held[0] for names in held):
        raise MeshError("the pieces do not hold the same fields")


def _weld(pieces: Sequence[meshio.Mesh]) -> tuple[np.ndarray, list[np.ndarray]]:
    """Where each new point first occurs, and for each piece the new numbers of its points."""
    common = [n for n in _names(pieces, "point_data") if all(n in p.point_data for p in pieces)]
    rows = [
        np.column_stack(
            [piece.points, *(piece.point_data[n].reshape(len(piece.points), -1) for n in common)]
        ).astype(np.float64)
        for piece in pieces
    ]
    if len({row.shape[1] for row in rows}) > 1:
        raise MeshError("the points or fields have another number of components in each piece")
    keys = np.concatenate([np.column_stack([row, _repetitions(row)]) for row in rows])
    _, first, inverse = np.unique(_as_bytes(keys), return_index=True, return_inverse=True)
    order = np.argsort(first)  # as they come, not as they sort
    number = np.argsort(order)[inverse]
    return first[order], np.split(number, np.cumsum([len(row) for row in rows])[:-1])


def _repetitions(rows: np.ndarray) -> np.ndarray:
    """How many of the rows before it each row equals."""
    _, inverse, counts = np.unique(_as_bytes(rows), return_inverse=True, return_counts=True)
    result = np.empty(len(rows))
    starts = np.repeat(np.cumsum(counts) - counts, counts)
    result[np.argsort(inverse, kind="stable")] = np.arange(len(rows)) - starts
    return result


def _as_bytes(rows: np.ndarray) -> np.ndarray:
    rows = np.ascontiguousarray(rows + 0.0)  # -0.0 becomes 0.0
    return rows.view(np.dtype((np.void, rows.itemsize * rows.shape[1]))).ravel()


def _point_field(
    pieces: Sequence[meshio.Mesh], numbers: list[np.ndarray], n: int, name: str
) -> np.ndarray:
    held = [
        (number, piece.point_data[name])
        for piece, number in zip(pieces, numbers, strict=True)
        if name in piece.point_data
    ]
    kind = np.result_type(*(data.dtype for _, data in held))
    if len(held) < len(pieces):
        kind = np.result_type(kind, np.float32)
    field = np.full((n, *held[0][1].shape[1:]), np.nan if kind.kind == "f" else 0, kind)
    for number, data in held[::-1]:
        if data.shape[1:] != field.shape[1:]:
            raise MeshError(f"field {name!r} has another shape in each piece")
        field[number] = data
    return field


def _cell_field(pieces: Sequence[meshio.Mesh], name: str) -> list[np.ndarray]:
    shape = next(p.cell_data[name][0].shape[1:] for p in pieces if name in p.cell_data)
    return [
        data
        for piece in pieces
        for data in piece.cell_data.get(
            name, [np.full((len(block), *shape), np.nan) for block in piece.cells]
        )
    ]
