"""Input files of Abaqus and CalculiX, .inp.

A line that begins with ``*`` is a keyword with parameters, the lines after it are its data, and
``**`` is a comment. Nodes and elements have numbers of their own. A model may consist of parts that
instances place in space: moved by a vector, then turned by an angle about an axis through two
points. Without parts the file itself is one. meshio forgets all nodes but the last ones, places
nothing and does not know most elements, so the files are read here.

Sets of nodes and elements are kept; surfaces are not, and it says so. Keywords that make nodes or
elements by a rule are refused, as are coordinates that are not Cartesian.

Reference: the Abaqus keywords reference guide, ``*NODE``, ``*ELEMENT``, ``*NSET``, ``*INSTANCE``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import meshio
import numpy as np
from meshio._common import num_nodes_per_cell
from scipy.spatial.transform import Rotation

from opformer.errors import MeshError
from opformer.mesh.messages import say

__all__ = ["read_abaqus"]

_PLANE = "(?:CPS|CPE|CPEG|CAX|CGAX|DC2D|DCAX|AC2D|ACAX|M3D|SFM3D|S|DS|STRI|R3D)"
_SOLID = "(?:C3D|DC3D|DCC3D|AC3D|EC3D|COH3D|SC)"
_TYPES = {
    "line": "(?:(?:T2D|T3D|DC1D|AC1D|R2D|FRAME2D|FRAME3D)2|(?:B|PIPE)[23][13])",
    **{"triangle": f"{_PLANE}3", "quad": f"{_PLANE}4", "triangle6": f"(?:{_PLANE}6|STRI65)"},
    **{
        "quad8": f"{_PLANE}8",
        "quad9": f"{_PLANE}9",
        "tetra": f"{_SOLID}4",
        "pyramid": f"{_SOLID}5",
    },
    **{"wedge": f"{_SOLID}6", "hexahedron": f"{_SOLID}8", "tetra10": f"{_SOLID}10"},
    **{"wedge15": f"{_SOLID}15", "hexahedron20": f"{_SOLID}20"},
}
_MADE_BY_RULE = {"NGEN", "NFILL", "NCOPY", "NMAP", "ELGEN", "ELCOPY", "SYSTEM"}
_DEPTH = 10  # of files that include one another


class _Block(NamedTuple):
    """A keyword with its parameters and the lines of its data."""

    keyword: str
    parameters: dict[str, str]
    lines: list[str]


@dataclass
class _Part:
    """Nodes, elements and sets of a part, by their numbers; names of sets in capitals."""

    nodes: dict[int, list[float]] = field(default_factory=dict)
    elements: list[tuple[str, np.ndarray]] = field(default_factory=list)  # number, nodes
    sets: dict[tuple[str, str], list[int]] = field(default_factory=dict)  # by kind and name

    def members(self, kind: str, texts: list[str]) -> list[int]:
        """The numbers that a set lists, those of other sets included."""
        found: list[int] = []
        for text in texts:
            if text.isdigit():
                found.append(int(text))
            elif ":" in text:  # as GENERATE has it
                found += self._range(kind, *map(int, text.split(":")))
            elif (kind, text.upper()) in self.sets:
                found += self.sets[kind, text.upper()]
            else:
                raise MeshError(f"a set lists {text!r}, which is no number and no set before it")
        return found

    def _range(self, kind: str, first: int, last: int, step: int = 1) -> range:
        count = len(self.nodes) if kind == "NSET" else sum(len(rows) for _, rows in self.elements)
        numbers = range(first, last + 1, step)
        if len(numbers) > count:
            raise MeshError(f"a set lists {len(numbers)} numbers, but there are {count}")
        return numbers


@dataclass
class _Instance:
    """A part where it is placed, and sets that are defined for this copy alone."""

    part: _Part
    sets: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    motion: list[list[float]] = field(default_factory=list)


def read_abaqus(path: Path) -> meshio.Mesh:
    """Read an input file.

    Raises
    ------
    MeshError
        If the file is damaged, or its mesh is not in it as it is.
    """
    return _Model().read(path)


class _Model:
    def __init__(self) -> None:
        self.root = self.scope = _Part()
        self.parts: dict[str, _Part] = {}
        self.instances: dict[str, _Instance] = {}
        self.names: dict[str, str] = {}  # of sets, as they are written

    def read(self, path: Path) -> meshio.Mesh:
        blocks = list(_blocks(path, _DEPTH))
        for block in blocks:
            self._take(block)
        if any(block.keyword == "SURFACE" for block in blocks):
            say(["surfaces are not read; sets of nodes and elements are"])
        instances = [*self.instances.values()]
        return self._mesh(instances + [_Instance(self.root)] * bool(self.root.nodes))

    def _take(self, block: _Block) -> None:
        keyword, parameters, lines = block
        if keyword in _MADE_BY_RULE:
            raise MeshError(f"*{keyword} is not supported: write the model with all of its nodes")
        match keyword:
            case "PART":
                self.scope = self.parts[parameters["NAME"].upper()] = _Part()
            case "END PART":
                self.scope = self.root
            case "INSTANCE":
                motion = [[float(x) for x in _split(line)] for line in lines]
                part = self.parts[parameters["PART"].upper()]
                self.instances[parameters["NAME"].upper()] = _Instance(part, motion=motion)
            case "NODE":
                self._take_nodes(block)
            case "ELEMENT":
                self._take_elements(block)
            case "NSET" | "ELSET":
                self._take_set(block)

    def _take_nodes(self, block: _Block) -> None:
        if block.parameters.get("SYSTEM", "R").upper() != "R":
            raise MeshError("coordinates that are not Cartesian are not supported")
        rows = [line.split(",") for line in block.lines]
        numbers = [int(row[0]) for row in rows]
        for number, row in zip(numbers, rows, strict=True):
            x = [float(text) if text.strip() else 0.0 for text in row[1:4]]
            if self.scope.nodes.setdefault(number, x) != x:
                raise MeshError(f"node {number} is there twice, at two places")
        self._name("NSET", block.parameters, numbers)

    def _take_elements(self, block: _Block) -> None:
        name = block.parameters.get("TYPE", "").upper()
        kinds = [kind for kind, names in _TYPES.items() if re.match(rf"{names}(?!\d)", name)]
        if not kinds:
            raise MeshError(f"elements of type {name!r} are not supported")
        numbers = [int(text) for line in block.lines for text in _split(line)]
        width = 1 + num_nodes_per_cell[kinds[0]]
        if not numbers or len(numbers) % width:
            raise MeshError(f"elements of type {name} need {width} numbers each")
        rows = np.array(numbers).reshape(-1, width)
        self.scope.elements.append((kinds[0], rows))
        self._name("ELSET", block.parameters, rows[:, 0].tolist())

    def _take_set(self, block: _Block) -> None:
        keyword, parameters, lines = block
        texts = [text for line in lines for text in _split(line)]
        if keyword == "NSET" and "ELSET" in parameters:
            raise MeshError("a set of nodes by a set of elements is not supported: list the nodes")
        if "GENERATE" in parameters:
            texts = [":".join(_split(line)) for line in lines]
        if "INSTANCE" in parameters:
            instance = self.instances[parameters["INSTANCE"].upper()]
            self._name(keyword, parameters, instance.part.members(keyword, texts), instance.sets)
            return
        for text in [text for text in texts if "." in text]:  # INSTANCE.NAME
            instance = self.instances[text.partition(".")[0].upper()]
            member = instance.part.members(keyword, [text.partition(".")[2]])
            self._name(keyword, parameters, member, instance.sets)
        own = self.scope.members(keyword, [text for text in texts if "." not in text])
        self._name(keyword, parameters, own)

    def _name(
        self,
        kind: str,
        parameters: dict[str, str],
        numbers: list[int],
        sets: dict[tuple[str, str], list[int]] | None = None,
    ) -> None:
        if name := parameters.get(kind):
            self.names.setdefault(name.upper(), name)
            sets = self.scope.sets if sets is None else sets
            sets.setdefault((kind, name.upper()), []).extend(numbers)

    def _mesh(self, instances: list[_Instance]) -> meshio.Mesh:
        points = [np.empty((0, 3))]
        cells: list[tuple[str, np.ndarray]] = []
        nodes: dict[str, list[int]] = {}
        elements: dict[str, list[list[int]]] = {}  # of a block and a row in it
        flat = all(len(x) < 3 for i in instances for x in i.part.nodes.values())
        for instance in instances:
            part = instance.part
            node = {n: k for k, n in enumerate(part.nodes, sum(map(len, points)))}
            points.append(_placed(part.nodes, instance.motion))
            element: dict[int, tuple[int, int]] = {}
            for kind, rows in part.elements:
                element |= {n: (len(cells), row) for row, n in enumerate(rows[:, 0].tolist())}
                cells.append((kind, _look_up(node, rows[:, 1:].ravel().tolist(), "node")))
                cells[-1] = (kind, cells[-1][1].reshape(len(rows), -1))
            for (kind, name), numbers in [*part.sets.items(), *instance.sets.items()]:
                if kind == "NSET":
                    nodes.setdefault(name, []).extend(_look_up(node, numbers, "node").tolist())
                else:
                    found = _look_up(element, numbers, "element").reshape(-1, 2).tolist()
                    elements.setdefault(name, []).extend(found)
        return meshio.Mesh(
            np.concatenate(points)[:, : 2 if flat else 3],
            cells,
            point_sets={self.names[name]: np.array(own, int) for name, own in nodes.items()},
            cell_sets={
                self.names[name]: [own[own[:, 0] == k, 1] for k in range(len(cells))]
                for name, lists in elements.items()
                for own in [np.array(lists, int).reshape(-1, 2)]
            },
        )


def _look_up(places: Mapping[int, Any], numbers: list[int], what: str) -> np.ndarray:
    try:
        return np.array([places[number] for number in numbers], dtype=np.int64)
    except KeyError as error:
        raise MeshError(f"something refers to {what} {error}, which is not there") from error


def _placed(nodes: dict[int, list[float]], motion: list[list[float]]) -> np.ndarray:
    points = np.zeros((len(nodes), 3))
    for width in {len(x) for x in nodes.values()}:
        own = [k for k, x in enumerate(nodes.values()) if len(x) == width]
        points[own, :width] = [x for x in nodes.values() if len(x) == width]
    if motion:
        points += (motion[0] + [0.0] * 3)[:3]
    if len(motion) > 1:
        *axis, angle = motion[1]
        a, b = np.array(axis).reshape(2, 3)
        direction = (b - a) / np.linalg.norm(b - a)
        points = a + Rotation.from_rotvec(np.radians(angle) * direction).apply(points - a)
    return points


# --- the text -------------------------------------------------------------------------------------


def _split(line: str) -> list[str]:
    return [text.strip() for text in line.split(",") if text.strip()]


def _blocks(path: Path, depth: int) -> Iterator[_Block]:
    if not depth:
        raise MeshError(f"files include one another more than {_DEPTH} times")
    block = None
    lines = iter(_data_lines(path))
    for line in lines:
        if not line.startswith("*"):
            if block is None:
                raise MeshError(f"{line[:20]!r} belongs to no keyword")
            block.lines.append(line)
            continue
        if block:
            yield block
        while line.rstrip().endswith(",") and (more := next(lines, None)):
            line = line.rstrip() + more
        keyword, *rest = line[1:].split(",")
        pairs = [text.partition("=") for text in rest]
        parameters = {key.strip().upper(): value.strip().strip('"') for key, _, value in pairs}
        block = _Block(" ".join(keyword.upper().split()), parameters, [])
        if block.keyword == "INCLUDE":
            yield from _blocks(path.parent / parameters["INPUT"], depth - 1)
        elif "INPUT" in parameters and block.keyword in ("NODE", "ELEMENT", "NSET", "ELSET"):
            block.lines.extend(_data_lines(path.parent / parameters["INPUT"]))
    if block:
        yield block


def _data_lines(path: Path) -> list[str]:
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return [line for line in lines if line.strip() and not line.lstrip().startswith("**")]
