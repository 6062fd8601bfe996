"""The sections of a file of Gmsh, as arrays; see `opformer.mesh.gmsh`."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from meshio._common import num_nodes_per_cell
from meshio.gmsh.common import _gmsh_to_meshio_type

from opformer.errors import MeshError
from opformer.mesh.gmsh_numbers import Form, Numbers, read_header

__all__ = ["Block", "Data", "Sections", "read_sections"]

_LOSSES = {
    "ElementNodeData": "values at the corners of elements: save them as NodeData or ElementData",
    "ParametricNodes": "nodes with parameters: save without them",
    "NOD": "version 1: save as version 4.1",
    "GhostElements": "ghost elements: save without the partition",
}
_Groups = dict[tuple[int, int], list[int]]  # (dimension, entity): its physical groups


class Block(NamedTuple):
    """Elements of one type: their numbers, groups, entity, and nodes by number."""

    kind: str
    ids: np.ndarray
    groups: np.ndarray  # (n, any number), 0 is none
    entities: np.ndarray
    nodes: np.ndarray


class Data(NamedTuple):
    """A field: one row of values for each of some nodes or elements."""

    at_nodes: bool
    name: str
    time: float
    ids: np.ndarray
    values: np.ndarray


@dataclass
class Sections:
    """What a file holds: nodes, elements, names of groups by (dimension, number), fields."""

    ids: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    points: np.ndarray = field(default_factory=lambda: np.empty((0, 3)))
    blocks: list[Block] = field(default_factory=list)
    names: dict[tuple[int, int], str] = field(default_factory=dict)
    data: list[Data] = field(default_factory=list)


def read_sections(data: bytes) -> Sections:
    """Take a file apart.

    Raises
    ------
    MeshError
        If it is damaged, or holds what a mesh cannot.
    """
    form = read_header(data)
    found = Sections()
    groups: _Groups = {}
    seen: dict[str, bytes] = {}
    for name, body in _sections(data):
        if name in _LOSSES:
            raise MeshError(_LOSSES[name])
        if name in ("Nodes", "Elements") and seen.setdefault(name, body) is not body:
            if seen[name] != body:
                raise MeshError(f"there are several meshes in the file: a second ${name}")
            continue  # Gmsh appends a view with its mesh
        match name:
            case "PhysicalNames":
                found.names |= _names(body)
            case "NodeData" | "ElementData":
                found.data.append(_data(name, body, form))
            case "Nodes":
                numbers = _numbers(body, form)
                found.ids, found.points = _nodes(numbers, form.version)
                numbers.finish()
            case "Elements":
                numbers = _numbers(body, form)
                found.blocks += _elements(numbers, form, groups)
                numbers.finish()
            case "Entities" | "PartitionedEntities" if form.version >= 4:
                numbers = _numbers(body, form)
                groups |= _entities(numbers, form.version, name == "PartitionedEntities")
                numbers.finish()
    return found


def _sections(data: bytes) -> Iterator[tuple[str, bytes]]:
    at = 0
    while found := re.compile(rb"^\$(\w+)[ \t\r]*\n", re.M).search(data, at):
        name, start = found[1], found.end()
        at = data.find(b"$End" + name, start)
        if at < 0:
            raise MeshError(f"the file ends early: ${name.decode()} is not closed")
        yield name.decode(), data[start:at]
        at += len(name) + 4


def _names(body: bytes) -> dict[tuple[int, int], str]:
    """Names by (dimension, number)."""
    count, *lines = body.decode().strip().splitlines()
    found = [re.fullmatch(r'\s*(\d+)\s+(-?\d+)\s+"(.*)"\s*', line) for line in lines]
    names = {(int(f[1]), abs(int(f[2]))): f[3] for f in found if f}
    if len(names) != int(count):
        raise MeshError(f"{int(count)} physical groups announced, {len(names)} found")
    return names


def _numbers(body: bytes, form: Form) -> Numbers:
    if form.binary and form.version < 4:  # the count is a line of text
        count, _, body = body.partition(b"\n")
        body = np.array(int(count), f"{form.order}u8").tobytes() + body
    return Numbers(body, form)


# --- nodes and elements ---------------------------------------------------------------------------


def _nodes(numbers: Numbers, version: float) -> tuple[np.ndarray, np.ndarray]:
    if version < 4:
        return numbers.numbered(numbers.sizes()[0], 3)
    count, total = numbers.sizes(4 if version > 4 else 2)[:2]
    ids, points = [np.empty(0, np.int64)], [np.empty((0, 3))]
    for _ in range(count):
        first, second, parametric = numbers.ints(3)
        (n,) = numbers.sizes()
        width = 3 + (parametric and (first if version > 4 else second))
        if version > 4:
            ids.append(numbers.sizes(n))
            points.append(numbers.floats(n * width).reshape(n, width)[:, :3])
        else:
            own, x = numbers.numbered(n, width)
            ids.append(own)
            points.append(x[:, :3])
    found = np.concatenate(ids)
    if len(found) != total:
        raise MeshError(f"{total} nodes announced, {len(found)} found")
    return found, np.concatenate(points)


def _entities(numbers: Numbers, version: float, partitioned: bool) -> _Groups:
    """The physical groups of every entity; where it is, and what bounds it, is passed over."""
    groups: _Groups = {}
    if partitioned:
        numbers.sizes()
        numbers.ints(2 * numbers.sizes()[0])  # ghosts
    for dim, count in enumerate(numbers.sizes(4)):
        for _ in range(count):
            (entity,) = numbers.ints()
            if partitioned:
                numbers.ints(2)
                numbers.ints(numbers.sizes()[0])
            numbers.floats(3 if dim == 0 and version > 4 else 6)
            groups[dim, int(entity)] = np.abs(numbers.ints(numbers.sizes()[0])).tolist()
            if dim:
                numbers.ints(numbers.sizes()[0])
    return groups


def _elements(numbers: Numbers, form: Form, groups: _Groups) -> Iterator[Block]:
    if form.version < 4:
        yield from (_legacy_binary if form.binary else _legacy_text)(numbers)
        return
    newest = form.version > 4
    count, total = numbers.sizes(4 if newest else 2)[:2]
    for _ in range(count):
        first, second, code = numbers.ints(3)
        dim, entity = (first, second) if newest else (second, first)
        (n,) = numbers.sizes()
        kind, width = _kind(code)
        rows = (numbers.sizes if newest else numbers.ints)(n * (1 + width)).reshape(n, 1 + width)
        own = np.array([groups.get((int(dim), int(entity)), [])], np.int64)
        yield Block(kind, rows[:, 0], np.repeat(own, n, 0), np.full(n, entity), rows[:, 1:])
        total -= n
    if total:
        raise MeshError(f"the file is damaged: it lacks {total} of its elements")


def _legacy_binary(numbers: Numbers) -> Iterator[Block]:
    (total,) = numbers.sizes()
    while total > 0:
        code, n, tags = numbers.ints(3)
        kind, width = _kind(code)
        if n < 1 or tags < 0:
            raise MeshError(f"the file is damaged: {n} elements with {tags} tags")
        yield _legacy_block(kind, numbers.ints(n * (1 + tags + width)).reshape(n, -1), 1, tags)
        total -= n


def _legacy_text(numbers: Numbers) -> Iterator[Block]:
    """Runs of elements with the same type and number of tags, by a window that grows with them."""
    (total,) = numbers.sizes()
    values, window = numbers.rest(), 64
    while total > 0 and len(values) > 2:
        kind, width = _kind(values[1])
        step = 3 + max(int(values[2]), 0) + width
        rows = values[: min(total, window, len(values) // step) * step].reshape(-1, step)
        other = np.flatnonzero((rows[:, 1:3] != values[1:3]).any(axis=1))
        n = other[0] if len(other) else len(rows)
        if not n:
            break
        yield _legacy_block(kind, rows[:n], 3, step - 3 - width)
        total, values, window = total - n, values[n * step :], 64 if len(other) else 2 * window
    if total or len(values):
        raise MeshError("the file is damaged: the elements are not as many as announced")


def _legacy_block(kind: str, rows: np.ndarray, first: int, tags: int) -> Block:
    """Of the tags the first is the physical group, the second the entity."""
    groups, entities = rows[:, first : first + min(tags, 1)], rows[:, first + 1 : first + 2]
    entity = entities[:, 0] if tags > 1 else np.zeros(len(rows), np.int64)
    return Block(kind, rows[:, 0], np.abs(groups), entity, rows[:, first + tags :])


def _kind(code: int) -> tuple[str, int]:
    if int(code) not in _gmsh_to_meshio_type:
        raise MeshError(f"elements of Gmsh's type {code} are not supported")
    kind = _gmsh_to_meshio_type[int(code)]
    return kind, num_nodes_per_cell[kind]


def _data(section: str, body: bytes, form: Form) -> Data:
    stream = io.BytesIO(body)
    texts, reals, integers = (
        [stream.readline().decode().strip() for _ in range(_few(stream.readline()))]
        for _ in range(3)
    )
    width, n, rest = int(integers[1]), int(integers[2]), stream.read()
    if n < 0 or not 0 < width <= len(rest):
        raise MeshError(f"the file is damaged: {n} values of {width} components")
    ids, values = Numbers(rest, form).numbered(n, width)
    time = float(reals[0]) if reals else 0.0
    values = values[:, 0] if width == 1 else values
    return Data(section == "NodeData", texts[0].strip('"'), time, ids, values)


def _few(line: bytes) -> int:
    if not 0 <= (n := int(line)) <= 100:
        raise MeshError(f"the file is damaged: a field with {n} tags")
    return n
