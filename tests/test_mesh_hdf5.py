"""MED and MOAB's files: groups, fields on some cells, and what cannot be read."""

from __future__ import annotations

import sys
from pathlib import Path

import meshio
import numpy as np
import pytest
from reading import measure, refusal

from opformer.mesh import read_mesh

h5py = pytest.importorskip("h5py")

POINTS = np.array([[0.0, 0], [1, 0], [1, 1], [0, 1]])
CELLS = [("line", np.array([[0, 1]])), ("triangle", np.array([[0, 1, 2], [0, 2, 3]]))]


def med(path: Path) -> Path:
    """By meshio: families -1 (a), -2 (a and b) of cells, 1 (corner) of points."""
    mesh = meshio.Mesh(
        POINTS,
        CELLS,
        point_data={"p": np.arange(4.0), "point_tags": np.array([0, 1, 0, 0])},
        cell_data={
            "k": [np.array([7.0]), np.array([1.0, 2])],
            "cell_tags": [np.array([0]), np.array([-1, -2])],
        },
    )
    mesh.point_tags = {1: ["corner"]}
    mesh.cell_tags = {-1: ["a"], -2: ["a", "b"]}
    meshio.med.write(path, mesh)
    return path


def test_groups_of_med_are_sets(tmp_path):
    mesh = read_mesh(med(tmp_path / "a.med"))
    np.testing.assert_array_equal(mesh.points, POINTS)
    assert measure(mesh) == pytest.approx(1)
    assert mesh.point_data["p"].tolist() == [0, 1, 2, 3]
    assert mesh.point_data["corner"].tolist() == [0, 1, 0, 0]
    cells = {name: [part.tolist() for part in parts] for name, parts in mesh.cell_data.items()}
    assert cells == {"k": [[7], [1, 2]], "a": [[0], [1, 1]], "b": [[0], [0, 1]]}


def test_a_field_or_a_group_on_some_types_of_cells_only(tmp_path):
    path = med(tmp_path / "a.med")
    with h5py.File(path, "a") as file:
        (step,) = file["CHA/k"].values()
        del step["MAI.SE2"]
        (grid,) = file["ENS_MAA/mesh"].values()
        del grid["MAI/SE2/FAM"]
    mesh = read_mesh(path)
    assert np.isnan(mesh.cell_data["k"][0]).all()
    assert mesh.cell_data["k"][1].tolist() == [1, 2]
    assert mesh.cell_data["a"][1].tolist() == [1, 1]


def test_several_steps_are_several_fields(tmp_path):
    path = med(tmp_path / "a.med")
    with h5py.File(path, "a") as file:
        (name,) = file["CHA/p"]
        file.copy(f"CHA/p/{name}", f"CHA/p/{name[:-1]}2")
        file[f"CHA/p/{name[:-1]}2"].attrs["PDT"] = 0.5
    assert {"p[0] - 0", "p[1] - 0.5"} < read_mesh(path).point_data.keys()


def test_cells_and_meshes_that_med_may_hold_and_we_do_not(tmp_path):
    path = med(tmp_path / "a.med")
    with h5py.File(path, "a") as file:
        (grid,) = file["ENS_MAA/mesh"].values()
        grid["MAI"].move("TR3", "POG")
    assert "MED's types ['POG'] are not supported" in refusal(path)
    with h5py.File(path, "a") as file:
        file.copy("ENS_MAA/mesh", "ENS_MAA/other")
    assert "there must be one mesh in a file, there are 2" in refusal(path)


@pytest.mark.parametrize("name", ["a.med", "a.h5m"])
def test_without_h5py_the_extra_is_named(name, tmp_path, monkeypatch):
    (tmp_path / name).write_bytes(b"\x89HDF")
    monkeypatch.setitem(sys.modules, "h5py", None)
    assert "h5py is needed: pip install 'opformer[hdf5]'" in refusal(tmp_path / name)


def test_tags_of_moab_are_fields_of_the_cells(tmp_path):
    path = tmp_path / "a.h5m"
    meshio.h5m.write(path, meshio.Mesh(np.pad(POINTS, ((0, 0), (0, 1))), CELLS[1:]))
    with h5py.File(path, "a") as file:
        file["tstt/elements/Tri3"].require_group("tags")["k"] = np.array([1.0, 2])
    mesh = read_mesh(path)
    assert measure(mesh) == pytest.approx(1)
    assert mesh.cell_data["k"][0].tolist() == [1, 2]
    with h5py.File(path, "a") as file:
        file["tstt/tags"].require_group("NAME")
    with pytest.warns(UserWarning, match="named sets are not read"):
        read_mesh(path)
