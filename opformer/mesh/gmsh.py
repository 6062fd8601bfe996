"""Gmsh's own format, .msh of version 2, 4.0 or 4.1, as text or binary.

A file is a row of sections ``$Name … $EndName``: nodes and elements with numbers in any order, the
physical groups they belong to, and data by number of node or element. meshio takes the data in the
order of the elements, forgets the names of groups in most versions and believes every count, so the
sections are read here (see `opformer.mesh.gmsh_sections`). Groups with a name become sets of cells;
a node or element without a value is NaN.

Reference: the Gmsh manual, section "MSH file format" and its legacy versions.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from pathlib import Path

import meshio
import numpy as np
from meshio.gmsh.common import _gmsh_to_meshio_order

from opformer.errors import MeshError
from opformer.mesh.gmsh_sections import Block, Data, read_sections
from opformer.quadrature import TOPOLOGICAL_DIMENSION

__all__ = ["is_gmsh", "read_gmsh"]

# Second-order cells whose edges and faces Gmsh numbers otherwise, and meshio does not turn.
_ORDER = {
    "wedge18": [*range(6), 6, 9, 7, 12, 14, 13, 8, 10, 11, 15, 17, 16],
    "pyramid14": [*range(5), 5, 8, 10, 6, 7, 9, 11, 12, 13],
}


def is_gmsh(path: Path) -> bool:
    """Whether a .msh file begins as one of Gmsh does; Ansys has the extension too."""
    with open(path, "rb") as file:
        return file.read(1000).lstrip().startswith(b"$")


def read_gmsh(path: Path) -> meshio.Mesh:
    """Read a file of Gmsh.

    Raises
    ------
    MeshError
        If the file is damaged, or holds what a mesh cannot.
    """
    sections = read_sections(path.read_bytes())
    if not len(sections.ids) or not sections.blocks:
        raise MeshError("there are no nodes, or no elements")
    node = _Finder(sections.ids, "node")
    runs = groupby(sections.blocks, lambda block: block.kind)
    blocks = [_joined(list(run)) for _, run in runs]
    ids = np.concatenate([block.ids for block in blocks])
    blocks, places = _without_copies(blocks)
    mesh = meshio.Mesh(sections.points, [(b.kind, _turned(b.kind, node(b.nodes))) for b in blocks])
    if any(b.entities.any() for b in blocks):
        mesh.cell_data["gmsh:geometrical"] = [b.entities for b in blocks]
    if any(b.groups.any() for b in blocks):
        mesh.cell_data["gmsh:physical"] = [b.groups[:, 0] for b in blocks]
    mesh.cell_sets = _sets(sections.names, blocks)
    _add_data(mesh, sections.data, node, lambda: _Finder(ids, "element", places))
    return mesh


class _Finder:
    """Where nodes or elements are, by their numbers."""

    def __init__(self, ids: np.ndarray, what: str, places: np.ndarray | None = None) -> None:
        order = np.argsort(ids, kind="stable")
        self._ids, self._what = ids[order], what
        self._places = order if places is None else places[order]
        if (twice := self._ids[1:][np.diff(self._ids) == 0]).size:
            raise MeshError(f"there is more than one {what} {twice[0]}")

    def __call__(self, wanted: np.ndarray) -> np.ndarray:
        at = np.searchsorted(self._ids, wanted).clip(max=len(self._ids) - 1)
        if (missing := wanted[self._ids[at] != wanted]).size:
            raise MeshError(
                f"something refers to {self._what} {missing.flat[0]}, which is not there"
            )
        return self._places[at]


def _joined(run: list[Block]) -> Block:
    width = max(1, *(block.groups.shape[1] for block in run))
    padded = [np.pad(b.groups, ((0, 0), (0, width - b.groups.shape[1]))) for b in run]
    ids, entities, nodes = (
        np.concatenate([getattr(b, name) for b in run]) for name in ("ids", "entities", "nodes")
    )
    return Block(run[0].kind, ids, np.concatenate(padded), entities, nodes)


def _without_copies(blocks: list[Block]) -> tuple[list[Block], np.ndarray]:
    """Join what version 2 writes once for each group of an element; and where each of them went."""
    sizes = np.array([len(block.ids) for block in blocks])
    starts = np.cumsum(sizes) - sizes
    first, groups = np.arange(sizes.sum()), [block.groups[:, :1] for block in blocks]
    extra = np.unique(np.concatenate(groups))
    for kind in {block.kind for block in blocks} if len(extra) > 1 else ():
        own = [k for k, block in enumerate(blocks) if block.kind == kind]
        here = np.concatenate([starts[k] + np.arange(sizes[k]) for k in own])
        key = np.vstack([np.column_stack([blocks[k].entities, blocks[k].nodes]) for k in own])
        group = np.concatenate([groups[k] for k in own])
        _, earliest, inverse = np.unique(key, axis=0, return_index=True, return_inverse=True)
        if len(np.unique(np.column_stack([key, group]), axis=0)) == len(key):
            first[here] = here[earliest][inverse.ravel()]
    kept = first == np.arange(len(first))
    if kept.all():
        return blocks, first
    held = np.zeros((len(first), len(extra)), np.int64)
    which = np.searchsorted(extra, np.concatenate(groups)[:, 0])
    held[first, which] = extra[which]
    slices = [slice(start, start + size) for start, size in zip(starts, sizes, strict=True)]
    parts = [
        Block(block.kind, *(data[kept[part]] for data in (block.ids, all_groups, *block[3:])))
        for block, part in zip(blocks, slices, strict=True)
        for all_groups in [np.column_stack([block.groups, held[part]])]
        if kept[part].any()
    ]
    return parts, (np.cumsum(kept) - 1)[first]


def _turned(kind: str, nodes: np.ndarray) -> np.ndarray:
    return nodes[:, _ORDER[kind]] if kind in _ORDER else _gmsh_to_meshio_order(kind, nodes)


def _sets(names: dict[tuple[int, int], str], blocks: list[Block]) -> dict[str, list[np.ndarray]]:
    """The cells of each named group; groups of several dimensions may share a name."""
    sets: dict[str, list[np.ndarray]] = {}
    for (dim, group), name in names.items():
        members = [
            np.flatnonzero((b.groups == group).any(axis=1))
            if TOPOLOGICAL_DIMENSION.get(b.kind) == dim
            else np.empty(0, np.int64)
            for b in blocks
        ]
        before = sets.get(name, members)
        sets[name] = [np.union1d(old, new) for old, new in zip(before, members, strict=True)]
    return sets


def _add_data(
    mesh: meshio.Mesh, data: list[Data], node: _Finder, elements: Callable[[], _Finder]
) -> None:
    *ends, n_cells = np.cumsum([len(block) for block in mesh.cells])
    for part in data:
        held = mesh.point_data if part.at_nodes else mesh.cell_data
        if part.name in held:
            raise MeshError(f"field {part.name!r} comes more than once: save every step as a file")
        rows, find = (len(mesh.points), node) if part.at_nodes else (n_cells, elements())
        field = np.full((rows, *part.values.shape[1:]), np.nan)
        field[find(part.ids)] = part.values
        held[part.name] = field if part.at_nodes else np.split(field, ends)
        mesh.field_data["time"] = np.array([part.time])
