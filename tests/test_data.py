"""Files to samples and batches: nothing changed, nothing lost, every refusal with its reason."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import meshio
import numpy as np
import pytest
import torch
from cases import line, on_edge, smoothed, square, write_folder, write_square
from reading import boundary_weights
from tolerances import difference
from torch.utils.data import DataLoader

from opformer import (
    Domain,
    Layout,
    MeshDataset,
    MeshError,
    Sample,
    collate,
    quadrature,
    read_mesh,
    write_mesh,
)
from opformer import cases as cases_module
from opformer import measured as measured_module
from opformer.mesh import fields as fields_module
from opformer.mesh import parts as parts_module

MESHES = Path(__file__).parents[1] / "meshes"


def dataset(files, **options):
    return MeshDataset(files, **({"outputs": ["g"], "progress": False} | options))


def plain(files, **options):
    """The volume alone, where the boundary is beside the point."""
    return dataset(files, parts=(), **options)


def traction_file(path, n, grade=1.0, value=1.0, name="traction", inside=0.0):
    """A field of ``value`` on the whole boundary and of ``inside`` elsewhere."""
    mesh = square(n, grade)
    values = np.where(on_edge(mesh), value, inside)
    mesh.point_data = {name: np.c_[values, 0 * values], "f": mesh.points[:, 0] + 1}
    mesh.point_data["g"] = mesh.points[:, 1] + 2
    path.parent.mkdir(parents=True, exist_ok=True)
    mesh.write(path)
    return path


@pytest.fixture
def folder(tmp_path):
    return write_folder(tmp_path / "data")


@pytest.fixture
def traction(tmp_path):
    for i, n in enumerate((4, 6)):
        traction_file(tmp_path / "traction" / f"{i}.vtu", n, 1 + i, value=1.0 + i)
    return tmp_path / "traction"


# ---- what is read


def test_samples_hold_what_the_files_hold(folder):
    data = plain(folder, inputs=["v", "f"])
    assert len(data) == 4
    assert (data.dim, data.in_channels, data.out_channels, data.parameter_channels) == (2, 3, 1, 0)
    for sample, path in zip((data[i] for i in range(4)), sorted(folder.iterdir()), strict=True):
        mesh = meshio.read(path)
        whole = Domain.from_mesh(read_mesh(path))
        assert sample.name == path.name
        assert sample.size == len(mesh.points)
        assert (sample.source.points.numpy() == mesh.points[:, :2]).all()
        assert difference(sample.source.weights, whole.weights) < 1e-14
        expected = np.c_[mesh.point_data["v"][:, :2], mesh.point_data["f"]]
        assert (sample.fields.numpy() == expected).all()
        assert (sample.outputs[:, 0].numpy() == mesh.point_data["g"]).all()
        assert sample.parameters.shape == (0,)
        assert sample.part is None
        assert sample.fields.dtype == sample.outputs.dtype == torch.float64


def test_an_index_from_the_end_and_beyond(folder):
    data = dataset(folder)
    assert data[-1].name == "case_03.vtu"
    assert data[-1] is data[3]
    for index in (4, -5):
        with pytest.raises(IndexError, match="of 4"):
            data[index]


def test_iterating_ends(folder):
    assert [sample.name for sample in dataset(folder)] == [f"case_{i:02d}.vtu" for i in range(4)]


def test_other_files_in_the_folder_do_not_count(folder):
    for name in (".hidden.vtu", "notes.txt", "picture.png", "table.csv"):
        (folder / name).write_text("nothing")
    (folder / "more.vtu").mkdir()
    assert len(dataset(folder)) == 4


def test_a_file_that_others_list_is_no_case_of_its_own(folder):
    """The piece of a parallel file is read with that file."""
    whole = folder / "case_01.pvtu"
    piece = '<Piece Source="case_01.vtu"/>'
    whole.write_text(
        f'<VTKFile type="PUnstructuredGrid"><PUnstructuredGrid>{piece}'
        "</PUnstructuredGrid></VTKFile>"
    )
    data = dataset(folder)
    assert [path.name for path in data.files] == [
        "case_00.vtu", "case_01.pvtu", "case_02.vtu", "case_03.vtu"
    ]  # fmt: skip
    assert data[1].size == 36


def test_one_file_and_a_list_in_its_order(folder):
    files = sorted(folder.iterdir())
    assert [s.name for s in dataset(files[2])] == ["case_02.vtu"]
    assert [s.name for s in dataset([str(f) for f in files[2:0:-1]])] == [
        "case_02.vtu",
        "case_01.vtu",
    ]


def test_folders_in_a_list(folder, tmp_path):
    """Each in the order of its names, with files between them, and twice if asked for twice."""
    other = write_folder(tmp_path / "another", cases=2)
    names = [f"case_{i:02d}.vtu" for i in range(4)]
    files = dataset([folder, other]).files
    assert [file.parent for file in files] == [folder] * 4 + [other] * 2
    assert [file.name for file in files] == names + names[:2]
    single = folder / names[3]
    assert dataset([str(other), single, other]).files == [
        *sorted(other.iterdir()), single, *sorted(other.iterdir())
    ]  # fmt: skip
    assert "2 case(s) are given more than once" in dataset([other, single, other]).notes
    again = MeshDataset.from_layout([other, folder], dataset(folder).layout, progress=False)
    assert [sample.name for sample in again] == names[:2] + names


def test_no_inputs_is_the_geometry_alone(folder):
    data = plain(folder)
    assert data.in_channels == 0
    assert data[0].fields.shape == (25, 0)


def test_cell_inputs_are_moved_to_the_nodes_by_the_measure(folder):
    data = plain(folder, inputs=["c"])
    assert "field 'c' is moved to the points by the measure" in data.notes
    for path, sample in zip(sorted(folder.iterdir()), data, strict=True):
        mesh = read_mesh(path)
        cells = Domain.from_mesh(mesh, at="cells")
        exact = cells.integrate(torch.from_numpy(mesh.cell_data["c"][0]))
        assert difference(sample.source.integrate(sample.fields)[0], exact) < 1e-13
    assert not any("moved" in note for note in dataset(folder, inputs=["f"]).notes)


@pytest.mark.parametrize("first", [True, False])
def test_a_field_that_is_moved_in_one_file_only_is_noted_too(folder, first):
    """Whichever file that is: names of files decide nothing."""
    mesh = read_mesh(folder / "case_01.vtu")
    mesh.point_data["c"] = mesh.points[:, 0].copy()
    mesh.write(folder / f"case_0{9 * (not first)}.vtu")
    assert dataset(folder, inputs=["c"]).notes[1:] == [
        "field 'c' is moved to the points by the measure"
    ]


@pytest.mark.parametrize("at", [None, "cells"])
def test_samples_at_the_cells(folder, at):
    """By the first output, or because it was asked for."""
    data = plain(folder, inputs=["f"], outputs=["c"] if at is None else ["g"], at=at)
    assert data.layout.at == "cells"
    for path, sample in zip(sorted(folder.iterdir()), data, strict=True):
        mesh = read_mesh(path)
        cells = Domain.from_mesh(mesh, at="cells")
        assert (sample.source.weights == cells.weights).all()
        assert (sample.source.points == cells.points[:, :2]).all()
        nodal = Domain.from_mesh(mesh).integrate(torch.from_numpy(mesh.point_data["f"]))
        assert difference(sample.source.integrate(sample.fields)[0], nodal) < 1e-13


def test_parameters_are_numbers_of_the_case(folder):
    data = dataset(folder, inputs=["f"], parameters=["speed"])
    assert data.parameter_channels == 1
    got = torch.stack([sample.parameters for sample in data])
    assert difference(got, torch.tensor([[1.0], [4 / 3], [5 / 3], [2.0]])) < 1e-15


def test_a_parameter_on_cells_beside_nan_at_an_orphan(tmp_path):
    mesh = square(3)
    mesh.points = np.vstack([mesh.points, [[0.5, 0.5, 0]]])
    mesh.point_data = {"g": np.arange(17.0), "p": np.r_[np.full(16, 2.5), np.nan]}
    mesh.write(tmp_path / "orphan.vtu")
    assert dataset(tmp_path, parameters=["p"])[0].parameters.tolist() == [2.5]


@pytest.mark.parametrize("boundary", [True, False])
def test_cached_and_read_again_are_the_same(folder, traction, boundary):
    for files, inputs in ((folder, ["f", "c"]), (traction, ["f", "traction"])):
        cached, lazy = (
            dataset(files, inputs=inputs, parts=("boundary",) * boundary, cache=cache)
            for cache in (True, False)
        )
        assert cached.layout == lazy.layout
        assert cached.notes == lazy.notes
        assert cached[1] is cached[1]
        assert lazy[1] is not lazy[1]
        by_layout = MeshDataset.from_layout(files, lazy.layout, cache=False, progress=False)
        for other in (lazy, by_layout):
            for a, b in zip(cached, other, strict=True):
                same_sample(a, b)


def same_sample(a, b):
    assert a.name == b.name
    assert torch.equal(a.source.points, b.source.points)
    assert torch.equal(a.source.weights, b.source.weights)
    assert torch.equal(a.fields, b.fields)
    assert torch.equal(a.outputs, b.outputs)
    assert (a.part is None and b.part is None) or torch.equal(a.part, b.part)


@pytest.fixture
def calls(monkeypatch):
    """Counts of what is expensive: matrices by the type of their first cells, centroids, files."""
    counts = Counter()

    def watch(module, name, key):
        function = getattr(module, name)

        def watched(*args, **options):
            counts[key(*args)] += 1
            return function(*args, **options)

        monkeypatch.setattr(module, name, watched)

    for module in (quadrature, fields_module, measured_module):
        watch(module, "lumping", lambda points, blocks: f"matrix of {blocks[0][0]}s")
    watch(parts_module, "node_weights", lambda points, blocks: f"weights of {blocks[0][0]}s")
    watch(quadrature, "cell_weights", lambda *_: "centroids")
    watch(cases_module, "read_mesh", lambda path, step=None: path.name)
    return counts


@pytest.mark.parametrize("at", ["points", "cells"])
def test_each_measure_is_computed_once_a_file(folder, calls, at):
    """However many fields are moved, and be there a boundary or not."""
    options = {"inputs": ["f", "c"], "outputs": ["g", "v"], "parameters": ["speed"], "at": at}
    once = {"matrix of triangles": 1} | ({"centroids": 1} if at == "cells" else {})
    mesh = read_mesh(folder / "case_00.vtu")
    for boundary in (False, True):
        layout = dataset(folder, parts=("boundary",) * boundary, **options).layout
        calls.clear()
        layout.read(mesh)
        assert calls == once | ({"weights of lines": 1} if boundary else {})


def test_each_file_is_read_once_and_measured_once(folder, calls):
    """The first one too, which says what the layout is."""
    data = dataset(folder, inputs=["f", "c"], parameters=["speed"])
    names = {path.name: 1 for path in data.files}
    assert calls == names | {"matrix of triangles": 4, "weights of lines": 4}
    calls.clear()
    MeshDataset.from_layout(folder, data.layout, progress=False)
    assert calls == names | {"matrix of triangles": 4, "weights of lines": 4}
    calls.clear()
    lazy = dataset(folder, inputs=["f", "c"], cache=False)
    assert [calls[name] for name in names] == [1, 1, 1, 1]
    lazy[2]
    assert [calls[name] for name in names] == [1, 1, 2, 1]


def test_another_folder_by_the_layout(folder, tmp_path):
    data = dataset(folder, inputs=["f"], parameters=["speed"])
    other = write_folder(tmp_path / "other", cases=2)
    again = MeshDataset.from_layout(other, data.layout, progress=False)
    assert torch.equal(again[1].fields, data[1].fields)
    assert again.layout is data.layout
    assert (again.dim, again.out_channels) == (2, 1)


def test_a_bar_only_where_wanted(folder, capsys):
    dataset(folder, inputs=["f"])
    assert capsys.readouterr() == ("", "")
    dataset(folder, inputs=["f"], progress=True)
    assert "reading" in capsys.readouterr().err


# ---- what is refused


def test_a_missing_field_lists_those_there_are(folder):
    with pytest.raises(MeshError, match=r"case_00\.vtu: there is no field 'k'; .*'f'.*'c'"):
        dataset(folder, inputs=["k"])


def test_a_field_missing_in_a_later_file_names_the_file(folder):
    mesh = meshio.read(folder / "case_02.vtu")
    del mesh.point_data["f"]
    mesh.write(folder / "case_02.vtu")
    with pytest.raises(MeshError, match=r"case_02\.vtu: there is no field 'f'"):
        dataset(folder, inputs=["f"])


def test_nan_names_file_and_field(folder):
    values = np.ones(25)
    values[7] = np.nan
    write_square(folder / "case_09.vtu", 1.0, f=values)
    with pytest.raises(MeshError, match=r"case_09\.vtu: field 'f' is NaN .* first is 7"):
        dataset(folder, inputs=["f"])


def test_another_number_of_components(folder):
    write_square(folder / "case_09.vtu", 1.0, f=np.ones((25, 3)))
    with pytest.raises(MeshError, match=r"case_09\.vtu: field 'f' must have 1 .*got 3"):
        dataset(folder, inputs=["f"])


def test_a_parameter_that_varies(folder):
    with pytest.raises(MeshError, match=r"case_00\.vtu: parameter 'f' must .* constant"):
        dataset(folder, parameters=["f"])


def test_a_mesh_without_measure_is_named(folder):
    mesh = meshio.read(folder / "case_02.vtu")
    mesh.points[:, 0] = 0
    mesh.write(folder / "case_02.vtu")
    with pytest.raises(MeshError, match=r"case_02\.vtu: the total measure is zero"):
        dataset(folder, parameters=["speed"])


@pytest.mark.parametrize("options", [{"outputs": ["g"]}, {"outputs": []}])
def test_an_unknown_location_is_refused_with_fields_and_without(folder, options):
    with pytest.raises(MeshError, match=r"case_00\.vtu: at must be .*'nodes'"):
        dataset(folder, at="nodes", **options)


def test_a_damaged_file_is_named(folder):
    (folder / "case_01.vtu").write_text("<VTKFile>")
    with pytest.raises(MeshError, match=r"case_01\.vtu: cannot be read as vtu"):
        dataset(folder)


def test_no_files(tmp_path):
    with pytest.raises(MeshError, match="nowhere: no such file or folder"):
        dataset(tmp_path / "nowhere")
    (tmp_path / "notes.txt").write_text("nothing")
    with pytest.raises(MeshError, match="no mesh files in this folder"):
        dataset(tmp_path)
    with pytest.raises(MeshError, match="the list is empty"):
        dataset([])
    whole = write_folder(tmp_path / "whole", cases=1)
    with pytest.raises(MeshError, match=f"{tmp_path}: no mesh files in this folder"):
        dataset([whole, tmp_path])
    with pytest.raises(MeshError, match=r"gone\.vtu: no such file or folder"):
        dataset([whole, tmp_path / "gone.vtu"])


def test_a_string_is_no_list_of_names(folder):
    with pytest.raises(ValueError, match="inputs must be a list of names, got the string 'f'"):
        dataset(folder, inputs="f")


# ---- flat axes


def test_a_flat_axis_is_left_out_and_said(folder):
    data = dataset(folder)
    assert data.layout.axes == [0, 1]
    assert data.notes == ["axis z is flat in all 4 files and is left out"]


def test_an_axis_that_one_file_needs_stays(folder):
    mesh = meshio.read(folder / "case_01.vtu")
    mesh.points[:, 2] = mesh.points[:, 0]
    mesh.write(folder / "case_01.vtu")
    data = dataset(folder)
    assert data.layout.axes == [0, 1, 2]
    assert data[0].source.dim == 3
    assert data.notes == [
        "axis z is flat in 3 of 4 files, and is kept: look whether they lie in one plane"
    ]


@pytest.mark.parametrize("cache", [True, False])
def test_any_axis_may_be_flat(tmp_path, cache):
    """Also one before the others, whose numbers are then no longer those of the samples."""
    mesh = write_square(tmp_path / "a.vtu", 1.0)
    mesh.points = mesh.points[:, [2, 0, 1]]
    mesh.write(tmp_path / "a.vtu")
    data = dataset(tmp_path, cache=cache)
    assert data.layout.axes == [1, 2]
    assert data.notes == ["axis x is flat in all 1 files and is left out"]
    assert (data[0].inside.points[:25].numpy() == mesh.points[:, 1:]).all()
    bent = replace(data.layout, axes=[0, 1])
    with pytest.raises(MeshError, match=r"a\.vtu: axis z .* is not flat here"):
        MeshDataset.from_layout(tmp_path, bent, progress=False)


def test_where_all_is_flat_all_axes_stay(tmp_path):
    mesh = meshio.Mesh(np.ones((1, 3)), [("vertex", [[0]])], point_data={"g": np.ones(1)})
    mesh.write(tmp_path / "a.vtu")
    data = dataset(tmp_path, weights="equal")
    assert data.layout.axes == [0, 1, 2]
    assert data.notes == []


def test_plane_files_with_two_coordinates_and_with_three(tmp_path):
    """A third that is flat is left out; one that is not is missed in the other, by name."""
    pytest.importorskip("h5py")
    for name, columns in (("a.vtk", 3), ("b.xdmf", 2)):
        mesh = square(3)
        mesh.points = mesh.points[:, :columns]
        mesh.point_data = {"g": mesh.points[:, 0].copy()}
        mesh.write(tmp_path / name)
    a, b = dataset(tmp_path)
    assert torch.equal(a.source.points, b.source.points)
    mesh = read_mesh(tmp_path / "a.vtk")
    mesh.points[:, 2] = mesh.points[:, 0]
    mesh.write(tmp_path / "a.vtk")
    with pytest.raises(MeshError, match=r"b\.xdmf: .*axes \[0, 1, 2\] are needed, .* has 2"):
        dataset(tmp_path)


def test_a_mesh_of_fewer_coordinates(folder):
    layout = replace(dataset(folder).layout, axes=[0, 1, 2])
    mesh = square(4)
    mesh.points = mesh.points[:, :2]
    mesh.point_data = {"g": np.zeros(25)}
    with pytest.raises(MeshError, match=r"axes \[0, 1, 2\] are needed, the mesh has 2"):
        layout.read(mesh)


def test_a_mesh_that_is_bent_later_is_refused(folder):
    layout = dataset(folder).layout
    mesh = square(4)
    mesh.point_data = {"g": np.zeros(25)}
    assert layout.read(mesh).source.dim == 2
    mesh.points[3, 2] = 0.1
    with pytest.raises(MeshError, match="axis z was flat in the training set and is not flat here"):
        layout.read(mesh)


# ---- inputs on the boundary


def test_the_boundary_is_a_part_of_the_source(folder):
    """Without being asked for: its nodes come after the mesh's own, and a channel marks them."""
    data, alone = dataset(folder, inputs=["v", "f"]), plain(folder, inputs=["v", "f"])
    assert (bool(data.layout.parts), bool(alone.layout.parts)) == (True, False)
    assert data.layout.part_inputs == []
    assert (data.in_channels, alone.in_channels) == (4, 3)
    length = data.layout.parts["boundary"]
    assert length == pytest.approx(1 / 4, rel=1e-14)  # Σ|Ω| / Σ|Γ|
    for path, sample, whole in zip(data.files, data, alone, strict=True):
        weights = torch.from_numpy(boundary_weights(read_mesh(path)))
        on, n = weights > 0, whole.size
        assert (sample.size, sample.source.size) == (n, n + int(on.sum()))
        assert sample.on_parts.tolist() == [False] * n + [True] * int(on.sum())
        assert torch.equal(sample.source.points, torch.cat([p := whole.source.points, p[on]]))
        assert torch.equal(sample.source.weights[:n], whole.source.weights)
        assert difference(sample.source.weights[n:], length * weights[on]) < 1e-15
        assert difference(sample.source.weights[n:].sum(), length * 4) < 1e-14
        assert torch.equal(sample.fields[:, :3], torch.cat([f := whole.fields, f[on]]))
        assert torch.equal(sample.fields[:, 3], sample.on_parts.double())
        assert torch.equal(sample.outputs[:n], whole.outputs)
        for domain in (sample.inside, sample.domain):
            assert torch.equal(domain.points, sample.source.points)
            assert torch.equal(domain.weights[:n], whole.source.weights)
            assert not domain.weights[n:].any()


@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("names", [("a", "b", "c"), ("c", "a", "b")])
def test_the_length_is_that_of_all_files(tmp_path, names, cache):
    """Σ|Ω| / Σ|Γ|, also where the first is closed, and to the last digit in any order."""
    shutil.copy(MESHES / "sphere.vtu", tmp_path / f"{names[0]}.vtu")
    for name, size in zip(names[1:], (1.7, 0.9), strict=True):
        mesh = square(4)
        mesh.points *= size
        mesh.point_data = {"u": mesh.points[:, 0]}
        mesh.write(tmp_path / f"{name}.vtu")
    data = dataset(tmp_path, outputs=["u"], cache=cache)
    sphere = 11.95489163076274  # meshes/README.md
    length = data.layout.parts["boundary"]
    assert length == pytest.approx((sphere + 1.7**2 + 0.9**2) / (4 * 1.7 + 4 * 0.9), rel=1e-13)
    turned = dataset(data.files[::-1], outputs=["u"], cache=cache)
    assert turned.layout == data.layout
    total = {sample.name[0]: sample.source.total for sample in data}
    expected = dict(zip(names, (sphere, 1.7**2 + 6.8 * length, 0.9**2 + 3.6 * length), strict=True))
    for name, measure in expected.items():
        assert difference(total[name], measure) < 1e-13
    again = MeshDataset.from_layout(data.files[1], data.layout, progress=False)
    assert torch.equal(again[0].source.weights, data[1].source.weights)


def test_the_boundary_weighs_as_much_as_the_volume(folder):
    """Over the training set together: that is what the length is for."""
    data = dataset(folder)
    inside = sum(sample.inside.total for sample in data)
    assert difference(sum(sample.source.total for sample in data), 2 * inside) < 1e-14


def test_the_boundary_of_samples_at_the_cells(folder):
    """Its nodes carry the inputs as they are there; the cells stay what they were."""
    data, alone = (make(folder, inputs=["v", "f"], at="cells") for make in (dataset, plain))
    for path, sample, whole in zip(data.files, data, alone, strict=True):
        mesh = read_mesh(path)
        weights = boundary_weights(mesh)
        on, n = weights > 0, whole.size
        assert n == len(mesh.cells[0].data)
        assert sample.size == n
        assert sample.on_parts.tolist() == [False] * n + [True] * int(on.sum())
        assert (sample.source.points[n:].numpy() == mesh.points[on, :2]).all()
        assert torch.equal(sample.source.weights[:n], whole.source.weights)
        assert difference(sample.source.weights[n:], weights[on] / 4) < 1e-14
        assert (sample.fields[n:, 2].numpy() == mesh.point_data["f"][on]).all()
        assert torch.equal(sample.fields[:n, :3], whole.fields)
        assert torch.equal(sample.fields[:, 3], sample.on_parts.double())
        assert torch.equal(sample.outputs[:n], whole.outputs)


def test_the_boundary_of_a_line_is_its_ends():
    data = dataset(MESHES / "line.vtu", outputs=["u"])
    sample = data[0]
    length = sample.inside.total
    assert sample.on_parts.sum() == 2
    assert data.layout.parts["boundary"] == pytest.approx(float(length) / 2, rel=1e-14)
    assert difference(sample.source.weights[sample.on_parts], [length / 2, length / 2]) < 1e-14
    ends = sample.source.points[sample.on_parts]
    assert difference(ends.sort(0).values, torch.stack(sample.inside.points.aminmax(dim=0))) == 0


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("sphere", {"at": "points"}),
        ("sphere", {"at": "cells"}),
        ("vertex", {"at": "points", "weights": "equal"}),
    ],
)
def test_no_boundary_adds_no_points(name, options):
    data = dataset(MESHES / f"{name}.vtu", outputs=["u"], **options)
    sample, whole = data[0], plain(MESHES / f"{name}.vtu", outputs=["u"], **options)[0]
    assert data.layout.parts["boundary"] == 1.0
    assert data.in_channels == 1
    assert sample.on_parts.tolist() == [False] * whole.size
    assert sample.fields.tolist() == [[0.0]] * whole.size
    assert sample.size == whole.size
    for domain in (sample.source, sample.inside, sample.domain):
        assert torch.equal(domain.points, whole.source.points)
        assert torch.equal(domain.weights, whole.source.weights)
    assert torch.equal(sample.outputs, whole.outputs)


def test_with_and_without_a_boundary_in_one_folder(tmp_path):
    """A closed surface and an open one are samples of the same channels, and one batch."""
    sphere = read_mesh(MESHES / "sphere.vtu")
    sphere.write(tmp_path / "a.vtu")
    triangles = sphere.cells[0].data
    upper = sphere.points[triangles, 2].mean(1) > 0
    cap = meshio.Mesh(sphere.points, [("triangle", triangles[upper])], point_data=sphere.point_data)
    cap.write(tmp_path / "b.vtu")
    closed, opened = samples = list(dataset(tmp_path, outputs=["u"]))
    assert not closed.on_parts.any()
    assert opened.on_parts.any()
    batch = collate(samples)
    assert batch.on_parts.sum(1).tolist() == [0, int(opened.on_parts.sum())]
    assert difference(batch.inside.total, torch.stack([s.inside.total for s in samples])) < 1e-14


def test_a_boundary_input_is_recognised(traction):
    data = dataset(traction, inputs=["f", "traction"])
    assert data.layout.part_inputs == ["traction"]
    assert "input 'traction' is zero off the boundary and lives there alone" in data.notes
    assert data.in_channels == 1 + 2 + 1
    assert data.layout.parts["boundary"] == pytest.approx(1 / 4, rel=1e-14)  # |Ω| / |Γ|
    for sample, n in zip(data, (4, 6), strict=True):
        nodes, edge = (n + 1) ** 2, 4 * n
        assert sample.size == nodes
        assert sample.source.size == nodes + edge
        assert sample.on_parts.tolist() == [False] * nodes + [True] * edge
        assert torch.equal(sample.fields[:, -1], sample.on_parts.double())
        assert not sample.fields[:nodes, 1:3].any()
        # The other input stays where it was.
        assert difference(sample.fields[:, 0], sample.source.points[:, 0] + 1) < 1e-15


def test_a_boundary_input_is_integrated_over_the_boundary(traction, tmp_path):
    """Constants exactly, on any mesh; over the volume alone they would vanish with the width."""
    layout = dataset(traction, inputs=["traction"]).layout
    for n, grade in ((4, 1.0), (8, 1.0), (16, 2.0)):
        path = traction_file(tmp_path / "fine" / f"{n}.vtu", n, grade)
        sample = layout.read(read_mesh(path))
        # ∫ over the boundary, of length 4, of t = (1, 0), in units of ℓ = 1/4
        assert difference(sample.source.integrate(sample.fields[:, :2]), [1.0, 0.0]) < 1e-13
        assert difference(sample.inside.total, 1.0) < 1e-14
        assert difference(sample.source.total, 1.0 + 0.25 * 4) < 1e-14


def test_a_linear_boundary_input_on_a_refined_mesh(tmp_path):
    """The rule is the trapezoidal one on each side: exact for t = x there."""
    integrals = []
    for n in (3, 6, 12):
        mesh = square(n)
        mesh.point_data = {
            "t": np.where(on_edge(mesh), mesh.points[:, 0], 0),
            "g": mesh.points[:, 0],
        }
        mesh.write(tmp_path / f"{n}.vtu")
        data = dataset(tmp_path / f"{n}.vtu", inputs=["t"])
        sample = data[0]
        integrals.append(sample.source.integrate(sample.fields)[0] / data.layout.parts["boundary"])
    assert difference(torch.stack(integrals), torch.full((3,), 0.5 + 0.5 + 1.0)) < 1e-13


def test_the_other_inputs_are_known_on_the_boundary_too(traction):
    sample = dataset(traction, inputs=["f", "traction"])[1]
    assert difference(sample.fields[:, 0], sample.source.points[:, 0] + 1) < 1e-15
    weights = torch.from_numpy(boundary_weights(read_mesh(traction / "1.vtu")))
    on = weights > 0
    assert torch.equal(sample.source.points[sample.on_parts], sample.inside.points[: len(on)][on])
    assert difference(sample.source.weights[sample.on_parts], weights[on] / 4) < 1e-14


def test_outputs_are_not_judged_on_the_boundary_copies(traction):
    sample = dataset(traction, inputs=["traction"])[0]
    assert (sample.domain.weights[sample.on_parts] == 0).all()
    spoiled = sample.outputs.clone()
    spoiled[sample.on_parts] = 1e6
    assert sample.domain.norm(spoiled) == sample.domain.norm(sample.outputs)
    assert difference(sample.domain.integrate(sample.outputs)[0], 2.5) < 1e-13


@pytest.mark.parametrize("at", ["points", "cells"])
def test_the_load_on_one_side_is_that_on_a_refinement(tmp_path, at):
    """Derived: the rule is the trapezoidal one on each side, so a hat that is zero at the corners
    is exact where its tip is a node; a constant spills half an edge round each of two corners."""
    integrals, widths = [], (1 / 4, 1 / 8, 1 / 16)
    for i, width in enumerate(widths):
        mesh = square(round(1 / width))
        x, y, _ = mesh.points.T
        loaded = np.isclose(x, 1)
        mesh.point_data = {
            "hat": np.where(loaded, np.minimum(y, 1 - y), 0),
            "one": np.where(loaded, 1.0, 0),
            "g": x,
        }
        mesh.write(tmp_path / f"{i}.vtu")
    data = dataset(tmp_path, inputs=["hat", "one"], at=at)
    assert data.layout.part_inputs == ["hat", "one"]
    integrals = torch.stack([sample.source.integrate(sample.fields) for sample in data]) * 4
    assert difference(integrals[:, 0], torch.full((3,), 1 / 4)) < 1e-12
    assert difference(integrals[:, 1], 1 + torch.tensor(widths)) < 1e-12
    assert difference(integrals[:, 2], torch.full((3,), 4.0)) < 1e-12  # the length of Γ


def test_no_boundary_input_where_it_is_not_zero_inside(traction):
    """In one file only: it is a field of the volume then, everywhere."""
    traction_file(traction / "9.vtu", 4, inside=1e-3)
    data = dataset(traction, inputs=["f", "traction"])
    assert data.layout.part_inputs == []
    for sample, path in zip(data, data.files, strict=True):
        expected = read_mesh(path).point_data["traction"]
        assert (sample.fields[: sample.size, 1:3].numpy() == expected).all()


def test_no_boundary_input_where_it_is_zero_everywhere(tmp_path):
    traction_file(tmp_path / "0.vtu", 4, value=0.0)
    assert dataset(tmp_path, inputs=["traction"]).layout.part_inputs == []


def test_no_boundary_input_where_no_node_is_inside(traction, tmp_path):
    """All nodes of a square of two triangles are on its boundary: any field is zero inside."""
    coarse = traction_file(tmp_path / "coarse.vtu", 1)
    assert dataset(coarse, inputs=["f", "traction"]).layout.part_inputs == []
    both = dataset([*sorted(traction.iterdir()), coarse], inputs=["f", "traction"])
    assert both.layout.part_inputs == ["traction"]
    assert difference(both[2].source.integrate(both[2].fields[:, 1]), 1.0) < 1e-13


def test_recognised_with_nan_at_an_orphan(tmp_path):
    mesh = square(4)
    mesh.points = np.vstack([mesh.points, [[9.0, 9.0, 0]]])
    edge = np.append(on_edge(square(4)), False)
    mesh.point_data = {"t": np.where(edge, 1.0, 0.0), "g": np.ones(26)}
    mesh.point_data["t"][-1] = np.nan
    mesh.write(tmp_path / "0.vtu")
    data = dataset(tmp_path, inputs=["t"])
    assert data.layout.part_inputs == ["t"]
    assert data[0].size == 26
    assert data[0].on_parts.sum() == 16
    mesh.point_data["t"][:-1] = 0  # and what is at an orphan is no load
    mesh.write(tmp_path / "0.vtu")
    assert dataset(tmp_path, inputs=["t"]).layout.part_inputs == []


def test_without_the_boundary_a_traction_is_a_field_like_any_other(traction):
    data = plain(traction, inputs=["f", "traction"])
    assert data.layout.part_inputs == []
    assert data.layout.parts == {}
    assert data.notes == ["axis z is flat in all 2 files and is left out"]
    for sample, path in zip(data, data.files, strict=True):
        mesh = read_mesh(path)
        assert sample.part is None
        assert sample.domain is sample.inside is sample.source
        assert sample.size == sample.source.size == len(mesh.points)
        assert (sample.fields[:, 1:].numpy() == mesh.point_data["traction"]).all()


def test_a_boundary_input_that_is_not_zero_inside_later(traction, tmp_path):
    layout = dataset(traction, inputs=["traction"]).layout
    other = traction_file(tmp_path / "other.vtu", 4, inside=1e-3)
    with pytest.raises(
        MeshError, match=r"other\.vtu: input 'traction' must be zero off the boundary, and is not"
    ):
        MeshDataset.from_layout(other, layout, progress=False)


def test_a_boundary_input_in_samples_at_the_cells(traction):
    data = dataset(traction, inputs=["traction"], at="cells")
    sample = data[0]
    assert data.layout.part_inputs == ["traction"]
    assert sample.size == 32
    assert sample.source.size == 32 + 16
    assert not sample.fields[:32].any()
    assert difference(sample.source.integrate(sample.fields[:, 0]), 1.0) < 1e-13
    assert difference(sample.domain.integrate(sample.outputs)[0], 2.5) < 1e-13


def test_a_traction_on_a_mesh_without_a_boundary(traction):
    """None is no load; one that is somewhere is off the boundary there."""
    layout = replace(dataset(traction, inputs=["traction"]).layout, axes=[0, 1, 2])
    sphere = read_mesh(MESHES / "sphere.vtu")
    sphere.point_data = {"traction": np.zeros((len(sphere.points), 2)), "g": sphere.points[:, 0]}
    sample = layout.read(sphere)
    assert not sample.on_parts.any()
    assert not sample.fields.any()
    sphere.point_data["traction"][3] = 1
    with pytest.raises(MeshError, match="input 'traction' must be zero off the boundary"):
        layout.read(sphere)


# ---- subsamples and batches


@pytest.mark.parametrize("n", [1, 7, 30])
def test_a_subsample_keeps_both_measures(traction, n):
    sample = dataset(traction, inputs=["f", "traction"])[1]
    part = sample.subsample(n)
    for boundary in (False, True):
        kept, whole = (s.source.weights[s.on_parts == boundary].sum() for s in (part, sample))
        assert difference(kept, whole) < 1e-12
    assert abs(part.source.size - n) <= 2
    assert difference(part.fields[:, 0], part.source.points[:, 0] + 1) < 1e-15
    assert torch.equal(part.fields[:, -1], part.on_parts.double())
    assert (
        difference(part.outputs[~part.on_parts][:, 0], part.inside.points[~part.on_parts][:, 1] + 2)
        < 1e-15
    )


def test_a_subsample_of_a_mesh_without_a_boundary():
    sample = dataset(MESHES / "sphere.vtu", outputs=["u"])[0]
    part = sample.subsample(20)
    assert part.source.size == part.size == 20
    assert part.on_parts.tolist() == [False] * 20
    assert difference(part.source.total, sample.source.total) < 1e-14


def test_a_subsample_of_a_plain_sample():
    sample = smoothed(line(40, 2.0), seed=1)
    generator = torch.Generator().manual_seed(3)
    part = sample.subsample(11, generator)
    assert part.source.size == 11
    assert difference(part.source.total, sample.source.total) < 1e-14
    again = sample.subsample(11, torch.Generator().manual_seed(3))
    assert torch.equal(part.fields, again.fields)
    where = (sample.source.points == part.source.points[5]).all(1).nonzero().item()
    assert part.fields[5] == sample.fields[where]
    assert part.outputs[5] == sample.outputs[where]


def test_a_subsample_of_another_target():
    source, target = smoothed(line(40), 1), smoothed(line(30, 2.0), 1)
    sample = Sample(source.source, source.fields, torch.zeros(0), target.source, target.outputs)
    part = sample.subsample(9)
    assert part.target.size == part.source.size == len(part.outputs) == 9
    assert difference(part.target.total, 1.0) < 1e-14
    index = [(sample.target.points == x).all(1).nonzero().item() for x in part.target.points]
    assert torch.equal(part.outputs, sample.outputs[index])
    assert part.domain is part.target


def test_collate_pads_with_measure_zero(folder):
    samples = list(plain(folder, inputs=["f"], parameters=["speed"]))
    batch = collate(samples)
    assert batch.name == "case_00.vtu,case_01.vtu,case_02.vtu,case_03.vtu"
    assert batch.parameters.shape == (4, 1)
    assert torch.equal(
        batch.source.weights == 0, torch.arange(49) >= torch.tensor([[25], [36], [49], [25]])
    )
    for i, sample in enumerate(samples):
        n = sample.size
        assert torch.equal(batch.source.points[i, :n], sample.source.points)
        assert torch.equal(batch.fields[i, :n], sample.fields)
        assert torch.equal(batch.outputs[i, :n], sample.outputs)
    norms = torch.stack([sample.domain.norm(sample.outputs) for sample in samples])
    assert difference(batch.domain.norm(batch.outputs), norms) < 1e-14


def test_collate_of_boundary_samples(traction):
    samples = list(dataset(traction, inputs=["traction"]))
    batch = collate(samples)
    assert batch.on_parts.sum(1).tolist() == [16, 24]
    assert difference(batch.inside.total, torch.ones(2)) < 1e-14
    expected = torch.stack([s.source.integrate(s.fields) for s in samples])
    assert difference(batch.source.integrate(batch.fields), expected) < 1e-14


def test_collate_of_targets():
    samples = [smoothed(line(n), 1) for n in (12, 9)]
    samples = [
        Sample(s.source, s.fields, s.parameters, t, torch.ones(t.size, 2))
        for s, t in zip(samples, (line(5), line(31)), strict=True)
    ]
    batch = collate(samples)
    assert batch.target.weights.shape == (2, 31)
    assert batch.outputs.shape == (2, 31, 2)
    assert difference(batch.domain.integrate(batch.outputs), torch.ones(2, 2)) < 1e-14


@pytest.mark.parametrize("name", ["outputs", "target", "part"])
def test_collate_refuses_a_mixture(name):
    one = smoothed(line(9), 1)
    full = Sample(
        one.source, one.fields, one.parameters, line(9), one.outputs, torch.zeros(9, dtype=bool)
    )
    part = Sample(**(vars(full) | {name: None}))
    with pytest.raises(ValueError, match=f"{name} must be given for all .* got 1 of 2"):
        collate([full, part])


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_data_loader(folder, workers):
    data = dataset(folder, inputs=["f"], cache=workers == 0)
    loader = DataLoader(data, batch_size=2, collate_fn=collate, num_workers=workers)
    batches = list(loader)
    assert [batch.name for batch in batches] == [
        "case_00.vtu,case_01.vtu",
        "case_02.vtu,case_03.vtu",
    ]
    assert torch.equal(batches[1].fields, collate([data[2], data[3]]).fields)


def test_truth_and_moving():
    sample = smoothed(line(9), 1)
    assert sample.truth is sample.outputs
    with pytest.raises(ValueError, match="'case 7' has no outputs"):
        Sample(sample.source, sample.fields, torch.zeros(0), name="case 7").truth  # noqa: B018
    moved = sample.to("cpu")
    assert vars(moved).keys() == vars(sample).keys()
    assert torch.equal(moved.fields, sample.fields)
    assert moved.name == sample.name


@pytest.mark.parametrize("boundary", [True, False])
def test_the_channels_are_those_of_the_samples(folder, boundary):
    """The one that says what is boundary counts as an input."""
    options = {"inputs": ["v", "f"], "outputs": ["c", "g"], "parameters": ["speed"]}
    data = dataset(folder, parts=("boundary",) * boundary, **options)
    sample = data[0]
    assert (data.in_channels, data.out_channels) == (3 + boundary, 2)
    for owner in (data, data.layout):
        assert owner.dim == sample.source.dim
        assert owner.in_channels == sample.fields.shape[1]
        assert owner.out_channels == sample.outputs.shape[1]
        assert owner.parameter_channels == len(sample.parameters)


def test_layout_splits_by_field():
    layout = Layout(outputs={"u": 2, "p": 1})
    y = torch.arange(12.0).reshape(2, 2, 3)
    parts = layout.split(y)
    assert list(parts) == ["u", "p"]
    assert torch.equal(torch.cat(list(parts.values()), -1), y)


def test_the_folder_can_go_once_it_is_cached(folder):
    data = dataset(folder, inputs=["f"])
    shutil.rmtree(folder)
    assert len(collate(list(data)).fields) == 4


def series(folder: Path, steps: int = 3) -> Path:
    """A ParaView collection: the field f grows in time, on one mesh."""
    mesh = square(4)
    rows = []
    for k in range(steps):
        name = f"step{k}.vtu"
        write_mesh(folder / name, mesh, point_data={"f": mesh.points[:, 0] * (1.0 + k)})
        rows.append(f'<DataSet timestep="{0.5 * k}" part="0" file="{name}"/>')
    path = folder / "run.pvd"
    path.write_text(
        '<VTKFile type="Collection" version="0.1"><Collection>'
        + "".join(rows)
        + "</Collection></VTKFile>"
    )
    return path


@pytest.mark.parametrize("whole_folder", [True, False])
@pytest.mark.parametrize("cache", [True, False])
def test_the_steps_of_a_series_are_cases_and_time_a_parameter(tmp_path, whole_folder, cache):
    path = series(tmp_path)
    data = MeshDataset(
        tmp_path if whole_folder else path,
        outputs=["f"],
        parameters=["time"],
        parts=(),
        cache=cache,
        progress=False,
    )
    assert [sample.name for sample in data] == [f"run.pvd step {k}" for k in range(3)]
    assert [sample.parameters.tolist() for sample in data] == [[0.0], [0.5], [1.0]]
    x = square(4).points[:, :1]
    for k, sample in enumerate(data):
        assert np.array_equal(sample.outputs.numpy(), x * (1.0 + k))
    again = MeshDataset.from_layout(path, data.layout, progress=False)
    assert [sample.parameters.tolist() for sample in again] == [[0.0], [0.5], [1.0]]


def test_a_fault_in_a_step_is_named(tmp_path):
    path = series(tmp_path)
    with pytest.raises(MeshError, match=r"run\.pvd step 0.*'g'"):
        MeshDataset(path, outputs=["f"], inputs=["g"], progress=False)


def test_a_number_of_the_file_that_is_not_there(tmp_path):
    with pytest.raises(MeshError, match=r"run\.pvd.*no field 'Re'"):
        MeshDataset(series(tmp_path), outputs=["f"], parameters=["Re"], progress=False)
