"""Exodus and CGNS, through VTK: blocks, sets, steps and fields of files written by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from reading import measure, refusal
from scipy.io import netcdf_file

from opformer.mesh import read_mesh, read_times

pytest.importorskip("pyvista", reason="VTK reads these formats")

# A hexahedron beside two wedges, and a point in no cell.
POINTS = np.array(
    [[x, y, z] for z in (0.0, 1.0) for y in (0.0, 1.0) for x in (0.0, 1.0, 2.0)] + [[9.0, 9, 9]]
)
HEXAHEDRON = np.array([[0, 1, 4, 3, 6, 7, 10, 9]])
WEDGES = np.array([[1, 2, 4, 7, 8, 10], [2, 5, 4, 8, 11, 10]])
P = np.arange(13.0) / 7


# --- Exodus ---------------------------------------------------------------------------------------


class Exodus:
    """A file in the classic form of netCDF; names of variables as in the Exodus II manual."""

    def __init__(self, path: Path) -> None:
        self.file = netcdf_file(str(path), "w", version=2)
        attributes = {"title": b"by hand", "version": np.float32(5.1)}
        attributes |= {"api_version": np.float32(5.1), "floating_point_word_size": np.int32(8)}
        attributes |= {"file_size": np.int32(1)}
        for name, value in attributes.items():
            setattr(self.file, name, value)
        self.file.createDimension("time_step", None)
        self.file.createDimension("len_name", 33)

    def dim(self, name: str, size: int) -> str:
        self.file.createDimension(name, size)
        return name

    def var(self, name: str, kind: str, dims: Sequence[str], values, /, **attributes) -> None:
        variable = self.file.createVariable(name, kind, dims)
        if dims[0] == "time_step":
            for k, row in enumerate(values):
                variable[k] = row
        else:
            variable[:] = values
        for key, value in attributes.items():
            setattr(variable, key, value)

    def names(self, name: str, dim: str, values: Sequence[str]) -> None:
        letters = np.zeros((len(values), 33), "S1")
        for k, value in enumerate(values):
            letters[k, : len(value)] = list(value)
        self.var(name, "c", (dim, "len_name"), letters)


@pytest.fixture
def exodus(tmp_path) -> Path:
    """Two steps; field p on nodes, k on both blocks, s on the second one only."""
    file = Exodus(tmp_path / "a.e")
    dims = {"num_dim": 3, "num_nodes": 13, "num_elem": 3, "num_el_blk": 2, "num_node_sets": 1}
    dims |= {"num_side_sets": 1, "num_nod_var": 1, "num_elem_var": 2}
    for name, size in dims.items():
        file.dim(name, size)
    file.var("time_whole", "d", ("time_step",), [0.5, 1.5])
    for axis, values in zip("xyz", POINTS.T, strict=True):
        file.var(f"coord{axis}", "d", ("num_nodes",), values)
    file.names("coor_names", "num_dim", ["x", "y", "z"])
    file.names("eb_names", "num_el_blk", ["fluid", "solid"])
    file.var("eb_status", "i", ("num_el_blk",), [1, 1])
    file.var("eb_prop1", "i", ("num_el_blk",), [1, 2], name=b"ID")
    for k, (kind, cells) in enumerate([(b"HEX8", HEXAHEDRON), (b"WEDGE", WEDGES)], 1):
        size = file.dim(f"num_el_in_blk{k}", len(cells))
        width = file.dim(f"num_nod_per_el{k}", cells.shape[1])
        file.var(f"connect{k}", "i", (size, width), cells + 1, elem_type=kind)
    file.names("ns_names", "num_node_sets", ["left"])
    file.var("ns_status", "i", ("num_node_sets",), [1])
    file.var("ns_prop1", "i", ("num_node_sets",), [10], name=b"ID")
    file.var("node_ns1", "i", (file.dim("num_nod_ns1", 4),), [1, 4, 7, 10])
    file.names("ss_names", "num_side_sets", ["wall"])
    file.var("ss_status", "i", ("num_side_sets",), [1])
    file.var("ss_prop1", "i", ("num_side_sets",), [20], name=b"ID")
    size = file.dim("num_side_ss1", 1)
    file.var("elem_ss1", "i", (size,), [1])
    file.var("side_ss1", "i", (size,), [4])  # x = 0
    file.names("name_nod_var", "num_nod_var", ["p"])
    file.var("vals_nod_var1", "d", ("time_step", "num_nodes"), [P, 2 * P])
    file.names("name_elem_var", "num_elem_var", ["k", "s"])
    file.var("elem_var_tab", "i", ("num_el_blk", "num_elem_var"), [[1, 0], [1, 1]])
    file.var("vals_elem_var1eb1", "d", ("time_step", "num_el_in_blk1"), [[3], [4]])
    file.var("vals_elem_var1eb2", "d", ("time_step", "num_el_in_blk2"), [[5, 6], [7, 8]])
    file.var("vals_elem_var2eb2", "d", ("time_step", "num_el_in_blk2"), [[1, 2], [3, 4]])
    file.file.close()
    return tmp_path / "a.e"


@pytest.mark.parametrize("suffix", [".e", ".exo", ".EX2"])
def test_steps_blocks_sets_and_fields_of_exodus(suffix, exodus):
    path = exodus.rename(exodus.with_suffix(suffix))
    assert read_times(path) == [0.5, 1.5]
    assert "2 steps, t = 0.5, 1.5" in refusal(path)
    mesh = read_mesh(path, step=1)
    np.testing.assert_array_equal(mesh.points, POINTS)  # all, in the order of the file
    assert [block.type for block in mesh.cells] == ["hexahedron", "wedge", "quad", "vertex"]
    np.testing.assert_array_equal(mesh.cells[0].data, HEXAHEDRON)
    assert {*mesh.cells[2].data[0]} == {0, 3, 6, 9}
    assert mesh.cells[3].data.ravel().tolist() == [0, 3, 6, 9]
    assert measure(mesh) == pytest.approx(2)
    np.testing.assert_array_equal(mesh.point_data["p"], 2 * P)
    cells = {name: np.concatenate(parts)[:4].tolist() for name, parts in mesh.cell_data.items()}
    np.testing.assert_array_equal(cells["k"], [4, 7, 8, np.nan])
    np.testing.assert_array_equal(cells["s"], [np.nan, 3, 4, np.nan])
    assert (cells["fluid"], cells["solid"]) == ([1, 0, 0, 0], [0, 1, 1, 0])
    assert cells["wall"] == [0, 0, 0, 1]
    assert mesh.cell_data["left"][3].tolist() == [1] * 4
    assert mesh.field_data["time"].tolist() == [1.5]


def test_damaged_files_are_refused(exodus, capfd):
    whole = exodus.read_bytes()
    for part in (whole[:100], whole[: len(whole) // 2], b"CDF\x02", b"\x89HDF\r\n\x1a\n"):
        exodus.write_bytes(part)
        refusal(exodus, step=0)
    assert capfd.readouterr() == ("", "")


# --- CGNS -----------------------------------------------------------------------------------------


def node(parent, name: str, label: str, data=None):
    """A node of the tree that CGNS lays over HDF5."""
    group = parent.create_group(name)
    group.attrs["flags"] = np.array([1], np.int32)
    codes = {"f8": "R8", "f4": "R4", "i4": "I4", "i1": "C1"}
    if isinstance(data, str):
        data = np.frombuffer(data.encode(), np.int8)
    kind = "MT" if data is None else codes[np.asarray(data).dtype.str[1:]]
    for key, text, size in (("label", label, 33), ("name", name, 33), ("type", kind, 3)):
        group.attrs.create(key, np.bytes_(text), dtype=f"S{size}")
    if data is not None:
        group.create_dataset(" data", data=data)
    return group


def section(zone, name: str, code: int, first: int, cells: np.ndarray) -> None:
    group = node(zone, name, "Elements_t", np.array([code, 0], np.int32))
    bounds = np.array([first, first + len(cells) - 1], np.int32)
    node(group, "ElementRange", "IndexRange_t", bounds)
    node(group, "ElementConnectivity", "DataArray_t", np.ravel(cells + 1).astype(np.int32))


@pytest.fixture
def cgns(tmp_path) -> Path:
    """One zone with sections of both types, the face x = 0 as "inlet", and two solutions."""
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.cgns", "w") as file:
        for key, text, size in (("label", "Root Node of HDF5 File", 33), ("type", "MT", 3)):
            file.attrs.create(key, np.bytes_(text), dtype=f"S{size}")
        file.attrs.create("name", np.bytes_("HDF5 MotherNode"), dtype="S33")
        for name, text in ((" format", "IEEE_LITTLE_32"), (" hdf5version", "HDF5 Version 1.8.17")):
            letters = np.frombuffer(text.encode().ljust(15, b"\0"), np.int8)
            file.create_dataset(name, data=letters)
        node(file, "CGNSLibraryVersion", "CGNSLibraryVersion_t", np.array([3.3], np.float32))
        base = node(file, "Base", "CGNSBase_t", np.array([3, 3], np.int32))
        zone = node(base, "Zone 1", "Zone_t", np.array([[12], [3], [0]], np.int32))
        node(zone, "ZoneType", "ZoneType_t", "Unstructured")
        coordinates = node(zone, "GridCoordinates", "GridCoordinates_t")
        for axis, values in zip("XYZ", POINTS[:12].T / 3, strict=True):
            node(coordinates, f"Coordinate{axis}", "DataArray_t", values.copy())
        section(zone, "hexahedra", 17, 1, HEXAHEDRON)
        section(zone, "wedges", 14, 2, WEDGES)
        section(zone, "inlet", 7, 4, np.array([[0, 3, 9, 6]]))
        nodal = node(zone, "nodal", "FlowSolution_t")
        node(nodal, "GridLocation", "GridLocation_t", "Vertex")
        node(nodal, "Pressure", "DataArray_t", P[:12])
        for k, axis in enumerate("XYZ"):
            node(nodal, f"Velocity{axis}", "DataArray_t", P[:12] + k)
        central = node(zone, "central", "FlowSolution_t")
        node(central, "GridLocation", "GridLocation_t", "CellCenter")
        node(central, "Density", "DataArray_t", np.array([1.0, 2, 3]))
    return tmp_path / "a.cgns"


def test_sections_and_solutions_of_cgns(cgns):
    mesh = read_mesh(cgns)
    np.testing.assert_array_equal(mesh.points, POINTS[:12] / 3)
    assert [block.type for block in mesh.cells] == ["hexahedron", "wedge", "quad"]
    assert measure(mesh) == pytest.approx(2 / 27)
    np.testing.assert_array_equal(mesh.point_data["Pressure"], P[:12])
    velocity = P[:12, None] + np.arange(3)
    np.testing.assert_array_equal(mesh.point_data["Velocity"], velocity)
    cells = {name: np.concatenate(parts).tolist() for name, parts in mesh.cell_data.items()}
    np.testing.assert_array_equal(cells["Density"], [1, 2, 3, np.nan])
    assert cells["inlet"] == [0, 0, 0, 1]
    assert cells["Zone 1"] == [1, 1, 1, 0]


def test_a_cut_or_foreign_file_is_refused(cgns, capfd):
    whole = cgns.read_bytes()
    for part in (whole[:600], whole[: len(whole) // 2], b"hello"):
        cgns.write_bytes(part)
        refusal(cgns)
    assert capfd.readouterr() == ("", "")
