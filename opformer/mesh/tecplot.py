"""Tecplot's text format, .dat or .tec: zones of finite elements or of structured grids.

``VARIABLES`` names the columns, x, y and z among them. Every ``ZONE`` has a header
of ``KEY=VALUE`` pairs and then numbers, point by point (POINT) or variable by variable (BLOCK); of
these some may belong to the cells (VARLOCATION). Numbers may be repeated: ``3*0.5``. meshio reads
the first zone only and never returns from a truncated file, VTK reads in single precision, so the
files are read here. Zones are joined where they meet; each with a title is a set of cells.

Reference: the Tecplot data format guide, chapter "ASCII data".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import prod
from pathlib import Path

import meshio
import numpy as np

from opformer.errors import MeshError
from opformer.mesh.clean import clean
from opformer.mesh.merge import merge

__all__ = ["read_tecplot"]

_CELLS = {
    "LINESEG": ("line", 2),
    "TRIANGLE": ("triangle", 3),
    "QUADRILATERAL": ("quad", 4),
    "TETRAHEDRON": ("tetra", 4),
    "BRICK": ("hexahedron", 8),
}
_HEADER = re.compile(r"^\s*(TITLE|VARIABLES|ZONE|TEXT|GEOMETRY|DATASETAUXDATA|FILETYPE)\b", re.I)
_PAIR = re.compile(r'(\w+)\s*=\s*("[^"]*"|\([^()]*(?:\([^()]*\)[^()]*)*\)|[^\s,]+)')
_COUNTS = (("NODES", "N"), ("ELEMENTS", "E"))
_MANY = 10**7  # equal numbers in a row


def read_tecplot(path: Path) -> meshio.Mesh:
    """Read all zones of a file as one mesh.

    Raises
    ------
    MeshError
        If the file is damaged, or its zones are steps in time.
    """
    names: list[str] = []
    zones: list[tuple[str, float | None, meshio.Mesh]] = []
    for keyword, header, numbers in _records(path):
        if keyword == "VARIABLES":
            found = re.findall(r'"([^"]*)"|([^\s,"]+)', header.partition("=")[2])
            names = [(quoted or plain).strip() for quoted, plain in found]
        elif keyword == "ZONE":
            zones.append(_zone(names, header, numbers))
    if not zones:
        raise MeshError("there are no zones")
    if len(times := {time for _, time, _ in zones if time is not None}) > 1:
        raise MeshError(f"the zones are {len(times)} steps in time: save every step as a file")
    meshes = [clean(mesh) for _, _, mesh in zones]
    titles = [title for title, _, _ in zones]
    for own, mesh in zip(titles, meshes, strict=True) if len({*titles}) > 1 else ():
        for title in filter(None, titles):
            mask = [np.full(len(block), title == own, np.uint8) for block in mesh.cells]
            mesh.cell_data.setdefault(title, mask)
    mesh = merge(meshes, fill=True) if len(meshes) > 1 else meshes[0]
    if times:
        mesh.field_data["time"] = np.array([*times])
    return mesh


def _records(path: Path) -> Iterator[tuple[str, str, np.ndarray]]:
    """Keyword, header and numbers, of each part that begins with a keyword."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    lines = [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
    starts = [k for k, line in enumerate(lines) if _HEADER.match(line)]
    if not starts or starts[0]:
        raise MeshError("there are no VARIABLES")
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        keyword = _HEADER.match(lines[start])[1].upper()  # type: ignore[index]
        header = start + 1
        while header < end and not _is_number(re.split(r"[\s,*]+", lines[header].strip())[0]):
            header += 1
        if keyword != "ZONE":
            header = end
        yield keyword, " ".join(lines[start:header]), _numbers(" ".join(lines[header:end]))


def _is_number(text: str) -> bool:
    return (
        re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([deDE]?[+-]?\d+)?|[+-]?(nan|inf)\w*", text)
        is not None
    )


def _numbers(text: str) -> np.ndarray:
    tokens = text.replace(",", " ").split()
    try:
        return np.array(tokens, dtype=np.float64)
    except ValueError:  # repeated ones, or as Fortran writes them
        return np.array([number for token in tokens for number in _repeated(token)])


def _repeated(token: str) -> list[float]:
    count, star, value = token.partition("*")
    if star and int(count) > _MANY:
        raise MeshError(f"the file is damaged: {count} times {value}")
    return [float(re.sub("[dD]", "e", value or token))] * (int(count) if star else 1)


def _zone(
    names: list[str], header: str, numbers: np.ndarray
) -> tuple[str, float | None, meshio.Mesh]:
    """Title, time and mesh."""
    pairs = {key.upper(): value.strip('"') for key, value in _PAIR.findall(header[4:])}
    if shared := {"PASSIVEVARLIST", "VARSHARELIST", "CONNECTIVITYSHAREZONE"} & pairs.keys():
        raise MeshError(f"{shared.pop()} is not supported: save each zone with all variables")
    packing = _word(pairs, "DATAPACKING", "F")
    if packing not in ("POINT", "BLOCK"):
        raise MeshError(f"DATAPACKING must be POINT or BLOCK, got {packing or 'none'}")
    kind = _word(pairs, "ZONETYPE", "ET") or "ORDERED"
    shape = [int(pairs.get(axis, 1)) for axis in "IJK"]
    if kind == "ORDERED":
        n_points, n_cells = prod(shape), prod(max(n - 1, 1) for n in shape)
    elif kind in _CELLS:
        n_points, n_cells = (int(_word(pairs, *keys) or 0) for keys in _COUNTS)
    else:
        raise MeshError(f"zones of type {kind} are not supported")
    at_cells = _at_cells(pairs.get("VARLOCATION", ""), len(names))
    counts = [n_cells if k in at_cells else n_points for k in range(len(names))]
    ends = np.cumsum(counts)
    width = 0 if kind == "ORDERED" else _CELLS[kind][1]
    if min(n_points, n_cells) < 1 or sum(counts) + width * n_cells != len(numbers):
        raise MeshError(
            f"a zone of {n_points} points and {n_cells} cells with {len(names)} variables has "
            f"{sum(counts) + width * n_cells} numbers, found are {len(numbers)}"
        )
    columns = np.split(numbers, ends)[:-1]
    if packing == "POINT":
        columns = [*numbers[: ends[-1]].reshape(-1, len(names)).T]
    nodes = numbers[ends[-1] :].reshape(n_cells, width)
    cells = _structured(shape) if not width else (_CELLS[kind][0], _whole(nodes) - 1)
    time = float(pairs["SOLUTIONTIME"]) if "SOLUTIONTIME" in pairs else None
    return pairs.get("T", "").strip(), time, _mesh(names, columns, at_cells, cells)


def _word(pairs: dict[str, str], *keys: str) -> str:
    found = [pairs[key] for key in keys if key in pairs]
    return found[0].upper().removeprefix("FE") if found else ""


def _at_cells(location: str, n: int) -> set[int]:
    """Which variables belong to the cells: ([4-6,8]=CELLCENTERED), or one word for each."""
    cells: set[int] = set()
    parts = re.findall(r"\[([\d,\s-]+)\]\s*=\s*(\w+)", location)
    for numbers, word in parts:
        for part in numbers.split(","):
            first, _, last = part.partition("-")
            if word.upper() == "CELLCENTERED":
                cells |= {*range(int(first) - 1, min(int(last or first), n))}
    words = [] if parts else re.findall(r"\w+", location.upper())
    return cells | {k for k, word in enumerate(words) if word == "CELLCENTERED"}


def _structured(shape: list[int]) -> tuple[str, np.ndarray]:
    """The cells of a grid whose first index runs fastest."""
    axes = [n for n in shape[::-1] if n > 1]
    square = [(0, 0), (0, 1), (1, 1), (1, 0)]
    kind, corners = {
        0: ("vertex", [()]),
        1: ("line", [(0,), (1,)]),
        2: ("quad", square),
        3: ("hexahedron", [(k, *corner) for k in (0, 1) for corner in square]),
    }[len(axes)]
    node = np.arange(prod(axes)).reshape(axes)
    parts = [
        node[tuple(slice(k, k + n - 1) for k, n in zip(corner, axes, strict=True))].ravel()
        for corner in corners  # type: ignore[attr-defined]
    ]
    return kind, np.column_stack(parts)


def _whole(nodes: np.ndarray) -> np.ndarray:
    if not (np.abs(nodes) < 2**53).all() or (nodes % 1).any():
        raise MeshError("a number of a node is no whole number")
    return nodes.astype(np.int64)


def _mesh(
    names: list[str], columns: list[np.ndarray], at_cells: set[int], cells: tuple[str, np.ndarray]
) -> meshio.Mesh:
    if len({*names}) < len(names):
        raise MeshError("two variables have the same name")
    axes = [
        [k for k, name in enumerate(names) if re.fullmatch(axis, name, re.I) and k not in at_cells]
        for axis in (rf"(coordinate\s*)?{letter}(\W.*)?" for letter in "xyz")
    ]
    if not axes[0] or (axes[2] and not axes[1]):
        raise MeshError(f"no variables are called x, y, z; there are {', '.join(names)}")
    used = [found[0] for found in axes if found]
    fields = [k for k in range(len(names)) if k not in used]
    return meshio.Mesh(
        np.column_stack([columns[k] for k in used]),
        [cells],
        point_data={names[k]: columns[k] for k in fields if k not in at_cells},
        cell_data={names[k]: [columns[k]] for k in fields if k in at_cells},
    )
