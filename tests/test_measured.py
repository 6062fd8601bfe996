"""What a data set makes of measures: parts, derived fields, bare points, points of one place."""

from __future__ import annotations

from pathlib import Path

import meshio
import numpy as np
import pytest
import torch
from cases import on_edge, square, tiny_model
from tolerances import ROUNDING, difference

from opformer import Domain, MeshDataset, MeshError, fit, load, read_mesh, write_mesh
from opformer import measured as measured_module
from opformer.quadrature import point_weights

TIGHT = ROUNDING[torch.float64]


def dataset(files, **options):
    return MeshDataset(files, **({"outputs": ["g"], "progress": False} | options))


# ---- parts


def channel(path: Path, n: int = 4, inlet: bool = True) -> Path:
    """The square with lines on its sides: x = 0 is the inlet, the others are walls; f = y."""
    mesh = square(n)
    x, y, _ = mesh.points.T
    a, b = np.flatnonzero(x == 0), np.flatnonzero(x == 1)
    rows, tops = np.flatnonzero(y == 0), np.flatnonzero(y == 1)
    lines = np.vstack([np.c_[side[:-1], side[1:]] for side in (a, b, rows, tops)])
    core = (x[mesh.cells[0].data].max(axis=1) <= 0.5).astype(int)
    marks = (np.arange(len(lines)) < n).astype(int)
    load = np.where(x == 0, 1.0 + y, 0.0)
    written = meshio.Mesh(
        mesh.points,
        [mesh.cells[0], ("line", lines)],
        point_data={"f": y, "g": x, "load": load},
        cell_data={
            "inlet": [0 * core, marks if inlet else 0 * marks],
            "wall": [0 * core, 1 - marks],
            "core": [core, 0 * marks],
        },
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    written.write(path)
    return path


@pytest.mark.parametrize("cache", [True, False])
def test_each_part_has_its_own_measure_and_channel(tmp_path, cache):
    channel(tmp_path / "a.vtu")
    channel(tmp_path / "b.vtu", 6)
    data = dataset(tmp_path, inputs=["f"], parts=["inlet", "wall", "core"], cache=cache)
    # ℓ = |Ω| / (3 |Γ_k|): a third of the volume for each
    expected = {"inlet": 1 / 3, "wall": 1 / 9, "core": 2 / 3}
    assert data.layout.parts == pytest.approx(expected, rel=TIGHT)
    assert data.in_channels == 4
    for sample, n in zip(data, (4, 6), strict=True):
        counts = [(sample.part == k).sum().item() for k in range(4)]
        assert counts == [(n + 1) ** 2, n + 1, 3 * n + 1, (n // 2 + 1) * (n + 1)]
        assert sample.size == (n + 1) ** 2
        for k in range(4):
            total = sample.source.weights[sample.part == k].sum().item()
            assert total == pytest.approx(1 if k == 0 else 1 / 3, rel=TIGHT)
        marks = torch.nn.functional.one_hot(sample.part, 4)[:, 1:].double()
        assert torch.equal(sample.fields[:, 1:], marks)
        inlet = sample.source.points[sample.part == 1]
        assert (inlet[:, 0] == 0).all()
        assert difference(sample.fields[sample.part == 1, 0], inlet[:, 1]) < TIGHT


def test_a_load_lives_on_its_part(tmp_path):
    channel(tmp_path / "a.vtu")
    data = dataset(tmp_path, inputs=["load", "f"], parts=["inlet"])
    assert data.layout.part_inputs == ["load"]
    assert "input 'load' is zero off the parts inlet and lives there alone" in data.notes
    sample = data[0]
    assert not sample.fields[sample.part == 0, 0].any()
    integral = sample.source.integrate(sample.fields)[0] / data.layout.parts["inlet"]
    assert float(integral) == pytest.approx(1.5, rel=TIGHT)  # ∫ 1 + y over the inlet
    other = read_mesh(tmp_path / "a.vtu")
    other.point_data["load"][:] = 1.0
    with pytest.raises(MeshError, match=r"'load' must be zero off the parts inlet, and is not"):
        data.layout.read(other)


def test_a_part_that_is_empty_in_one_file(tmp_path):
    channel(tmp_path / "a.vtu")
    channel(tmp_path / "b.vtu", inlet=False)
    data = dataset(tmp_path, parts=["inlet"])
    assert [int(sample.on_parts.sum()) for sample in data] == [5, 0]
    assert data.layout.parts["inlet"] == pytest.approx(2.0, rel=TIGHT)


def test_a_part_that_is_not_there(tmp_path):
    channel(tmp_path / "a.vtu")
    with pytest.raises(MeshError, match=r"a\.vtu.*'outlet'.*boundary.*inlet.*wall"):
        dataset(tmp_path, parts=["outlet"])


@pytest.mark.parametrize("n", [8, 12, 40])
def test_a_subsample_keeps_the_measure_of_each_part(tmp_path, n):
    channel(tmp_path / "a.vtu")
    sample = dataset(tmp_path, inputs=["f"], parts=["inlet", "wall"])[0]
    few = sample.subsample(n, generator=torch.Generator().manual_seed(0))
    for k in range(3):
        kept, whole = (s.source.weights[s.part == k].sum().item() for s in (few, sample))
        assert kept == pytest.approx(whole, rel=TIGHT)
    assert (few.source.points[few.part == 1][:, 0] == 0).all()


# ---- fields of the geometry


def test_fields_of_the_geometry_as_inputs(tmp_path):
    channel(tmp_path / "a.vtu")
    data = dataset(tmp_path, inputs=["distance:boundary", "distance:inlet", "indicator:core"])
    assert data.layout.inputs == dict.fromkeys(data.layout.inputs, 1)
    sample = data[0]
    x, y = sample.inside.points[sample.part == 0].T
    expected = torch.stack([torch.minimum(x, 1 - x).minimum(y).minimum(1 - y), x, x <= 0.5], 1)
    assert difference(sample.fields[sample.part == 0, :3], expected) < TIGHT
    assert data.notes == ["axis z is flat in all 1 files and is left out"]


def test_normals_live_on_the_boundary(tmp_path):
    channel(tmp_path / "a.vtu")
    data = dataset(tmp_path, inputs=["normal:boundary"])
    assert data.layout.part_inputs == ["normal:boundary"]
    sample = data[0]
    assert data.layout.inputs == {"normal:boundary": 3}
    on = sample.on_parts
    x, normals = sample.source.points[on], sample.fields[on, :3]
    left = (x[:, 0] == 0) & (x[:, 1] > 0) & (x[:, 1] < 1)
    assert difference(normals[left], torch.tensor([-1.0, 0, 0]).expand(left.sum(), 3)) < TIGHT
    # ∫ x · n over the boundary is 2 |Ω|; the corners' normals are unit vectors, so not exact
    assert difference(normals.norm(dim=1), torch.ones(int(on.sum()))) < TIGHT


def test_fields_of_the_geometry_at_cells(tmp_path):
    channel(tmp_path / "a.vtu")
    data = dataset(tmp_path, inputs=["distance:inlet"], at="cells", parts=())
    sample = data[0]
    assert difference(sample.fields[:, 0], sample.source.points[:, 0]) < TIGHT


def test_a_field_of_the_file_has_precedence(tmp_path):
    mesh = square(3)
    mesh.point_data = {"distance:boundary": mesh.points[:, 1] + 5, "g": mesh.points[:, 0]}
    mesh.write(tmp_path / "a.vtu")
    data = dataset(tmp_path, inputs=["distance:boundary"], parts=())
    assert difference(data[0].fields[:, 0], mesh.points[:, 1] + 5) < TIGHT


# ---- bare points


def cloud(path: Path, n: int = 60, **more) -> np.ndarray:
    x = np.random.default_rng(n).random((n, 2))
    np.savez(path, points=x, g=x[:, 0], **more)
    return x


@pytest.mark.parametrize("rule", ["voronoi", "delaunay", "knn", "knn:2"])
def test_points_by_a_rule(tmp_path, rule):
    x = cloud(tmp_path / "a.npz")
    data = dataset(tmp_path, weights=rule)
    name, _, dim = rule.partition(":")
    expected = point_weights(x, name, dim=int(dim) if dim else None)
    assert difference(data[0].source.weights, expected) < TIGHT
    assert data.in_channels == 1  # of the boundary, which points do not have
    again = MeshDataset.from_layout(tmp_path, data.layout, progress=False)[0]
    assert torch.equal(again.source.weights, data[0].source.weights)


def test_points_with_weights_of_their_own(tmp_path):
    w = np.random.default_rng(1).random(60)
    cloud(tmp_path / "a.npz", weights=w, area=2 * w)
    assert difference(dataset(tmp_path)[0].source.weights, w) < TIGHT
    assert difference(dataset(tmp_path, weights="area")[0].source.weights, 2 * w) < TIGHT
    assert difference(dataset(tmp_path, weights="equal")[0].source.weights, np.ones(60)) < TIGHT


def test_points_need_a_measure(tmp_path):
    cloud(tmp_path / "a.npz")
    with pytest.raises(MeshError, match=r"a\.npz: the file has points and no cells.*--weights"):
        dataset(tmp_path)
    for weights in ("nearest", "knn:x"):
        with pytest.raises(MeshError, match=rf"a\.npz: weights '{weights}': neither .*\['g'\]"):
            dataset(tmp_path, weights=weights)
    with pytest.raises(MeshError, match=r"a\.npz: weights 'knn:7': dim must be between 1 and 2"):
        dataset(tmp_path, weights="knn:7")
    with pytest.raises(MeshError, match="points without cells have no cells to live at"):
        dataset(tmp_path, weights="knn", at="cells")


@pytest.mark.parametrize(("value", "got"), [(-1.0, "-1.0 at 3"), (np.nan, "NaN or infinite")])
def test_weights_that_are_none(tmp_path, value, got):
    w = np.ones(60)
    w[3] = value
    x = cloud(tmp_path / "a.npz")
    cells = {"cells_vertex": np.arange(60)[:, None]}
    np.savez(tmp_path / "a.npz", points=x, point_data_g=x[:, 0], point_data_w=w, **cells)
    with pytest.raises(MeshError, match=rf"a\.npz: .*'w'.*{got}"):
        dataset(tmp_path, weights="w")


def test_a_density_on_a_mesh(tmp_path):
    """A field that holds the weights stands for the cells' measure, where it lives."""
    mesh = square(3)
    mesh.point_data = {"g": mesh.points[:, 0], "mass": mesh.points[:, 1] + 1}
    mesh.cell_data = {"c": [np.arange(18.0)], "volume": [np.arange(18.0) + 1]}
    mesh.write(tmp_path / "a.vtu")
    at_points = dataset(tmp_path, weights="mass", parts=())[0]
    assert difference(at_points.source.weights, mesh.points[:, 1] + 1) < TIGHT
    at_cells = dataset(tmp_path, outputs=["c"], weights="volume", parts=())[0]
    assert difference(at_cells.source.weights, np.arange(18.0) + 1) < TIGHT
    with pytest.raises(MeshError, match=r"weights 'volume': there is no such field at the points"):
        dataset(tmp_path, weights="volume")
    with pytest.raises(MeshError, match=r"weights 'knn'.*rules are for points without cells"):
        dataset(tmp_path, weights="knn")


def test_points_from_fit_to_prediction(tmp_path):
    for k in range(4):
        cloud(tmp_path / f"{k}.npz", 30 + k)
    data = dataset(tmp_path, weights="voronoi")
    model = tiny_model(data.dim, data.in_channels, data.out_channels)
    fit(model, data, out=tmp_path / "run", validation=0.25, epochs=1, progress=False)
    surrogate = load(tmp_path / "run")
    found = surrogate.predict(tmp_path / "0.npz")
    write_mesh(tmp_path / "out.vtu", found)
    again = read_mesh(tmp_path / "out.vtu")
    assert len(again.point_data["g_predicted"]) == 30
    assert difference(surrogate.predict(again, overwrite=True).point_data["g_predicted"],
                      found.point_data["g_predicted"]) < TIGHT  # fmt: skip


# ---- points of one place


def torn(path: Path, n: int = 4) -> meshio.Mesh:
    """The square in two halves that share no node: a seam at x = 1/2, as of a parallel run."""
    mesh = square(n)
    right = mesh.points[mesh.cells[0].data].mean(axis=1)[:, 0] > 0.5
    seam = np.flatnonzero(mesh.points[:, 0] == 0.5)
    number = np.arange(len(mesh.points))
    number[seam] = len(mesh.points) + np.arange(len(seam))
    cells = mesh.cells[0].data.copy()
    cells[right] = number[cells[right]]
    points = np.vstack([mesh.points, mesh.points[seam]])
    torn = meshio.Mesh(points, [("triangle", cells)], point_data={"g": points[:, 0]})
    torn.write(path)
    return torn


def test_seams_are_no_boundary_where_points_are_merged(tmp_path):
    mesh = torn(tmp_path / "a.vtu")
    apart, one = (dataset(tmp_path, merged=merged) for merged in (False, True))
    sizes = [1 / data.layout.parts["boundary"] for data in (apart, one)]
    assert sizes == pytest.approx([6.0, 4.0], rel=TIGHT)
    assert [data[0].size for data in (apart, one)] == [30, 25]
    assert [float(data[0].inside.total) for data in (apart, one)] == pytest.approx([1, 1])
    whole = square(4)
    assert int(one[0].on_parts.sum()) == on_edge(whole).sum()
    model = tiny_model(2, 1, 1)
    surrogate = fit(model, [one[0], one[0]], validation=0.5, layout=one.layout, epochs=1,
                    progress=False)  # fmt: skip
    found = surrogate.predict(mesh)
    assert np.array_equal(found.points, mesh.points)
    values = found.point_data["g_predicted"]
    seam = np.flatnonzero(whole.points[:, 0] == 0.5)
    assert np.array_equal(values[25:], values[seam])
    merged = Domain(one[0].inside.points[:25], one[0].inside.weights[:25])
    assert difference(surrogate.predict(mesh, target=merged), values[:25]) < 1e-5  # in float32


@pytest.mark.parametrize("named", ["weights", "mass"])
def test_weights_of_points_that_are_merged_add_up(tmp_path, named):
    x = np.array([[0, 0], [1, 0], [1, 0], [2, 1], [0, 1.0]])
    w = np.array([1, 1, 3, 1, 1.0])
    np.savez(tmp_path / "a.npz", points=x, g=x[:, 0], **{named: w})
    data = dataset(tmp_path, merged=True, weights="" if named == "weights" else named)
    assert data[0].source.weights.tolist() == [1, 4, 1, 1]


def test_a_part_of_bare_points_has_their_weights(tmp_path):
    x = np.random.default_rng(0).random((200, 2)) ** [2, 1]
    inside = (x[:, 0] < 0.5).astype(float)
    np.savez(tmp_path / "a.npz", points=x, g=x[:, 0], inside=inside)
    sample = dataset(tmp_path, weights="voronoi", parts=["inside"])[0]
    weights = sample.source.weights
    expected = weights[sample.part == 0][torch.from_numpy(inside) == 1]
    assert difference(weights[sample.part == 1] / weights[sample.part == 1].sum(),
                      expected / expected.sum()) < TIGHT  # fmt: skip


def test_points_in_no_vertex_are_refused(tmp_path):
    x = np.random.default_rng(0).random((10, 2))
    u = np.where(np.arange(10) == 9, np.nan, 1.0)
    np.savez(tmp_path / "a.npz", points=x, point_data_g=u, cells_vertex=np.arange(5)[:, None])
    with pytest.raises(MeshError, match=r"a\.npz: 5 points are in no cell .*\(first 5\)"):
        dataset(tmp_path, weights="voronoi")


def test_a_cell_parameter_beside_weights_at_the_points(tmp_path):
    mesh = square(3)
    mesh.point_data = {"g": mesh.points[:, 0], "w": mesh.points[:, 1] + 1}
    mesh.cell_data = {"rho": [np.full(18, 7.0)]}
    mesh.write(tmp_path / "a.vtu")
    sample = dataset(tmp_path, weights="w", parameters=["rho"], parts=())[0]
    assert sample.parameters.tolist() == [7.0]


def test_fields_of_the_geometry_are_computed_once(tmp_path, monkeypatch):
    for name in "abc":
        channel(tmp_path / f"{name}.vtu")
    calls = []
    function = measured_module.derived_field
    monkeypatch.setattr(
        measured_module, "derived_field", lambda *args: calls.append(args[1:]) or function(*args)
    )
    dataset(tmp_path, inputs=["distance:boundary", "normal:boundary"])
    assert len(calls) == 6


def test_orphans_bend_no_flat_axis(tmp_path):
    mesh = square(3)
    points = np.vstack([mesh.points, [0.5, 0.5, 9.0]])
    orphan = meshio.Mesh(points, mesh.cells, point_data={"g": points[:, 0]})
    orphan.write(tmp_path / "a.vtu")
    data = dataset(tmp_path)
    assert data.layout.axes == [0, 1]
    assert data[0].inside.total == pytest.approx(1)


@pytest.mark.parametrize("at", ["points", "cells"])
def test_a_set_of_lower_cells_as_an_input_is_where_they_are(tmp_path, at):
    """On the cells that count it is zero; it must not be moved to the nodes as such."""
    channel(tmp_path / "a.vtu")
    data = dataset(tmp_path, inputs=["inlet"], at=at, parts=())
    same = dataset(tmp_path, inputs=["indicator:inlet"], at=at, parts=())
    assert difference(data[0].fields, same[0].fields) < TIGHT
    if at == "points":
        x = data[0].source.points[:, 0]
        assert torch.equal(data[0].fields[:, 0], (x == 0).double())
    assert not [note for note in data.notes if "inlet" in note]


def test_vectors_of_two_and_of_three_are_the_same(tmp_path):
    """ParaView and .vtk add a zero; that of a third component is no zero."""
    mesh = square(3)
    v = mesh.points[:, :2]
    for name, values in (("a", v), ("b", np.c_[v, 0 * v[:, :1]])):
        mesh.point_data = {"g": mesh.points[:, 0], "v": values}
        mesh.write(tmp_path / f"{name}.vtu")
    for first, size in (("a", 2), ("b", 3)):
        files = sorted(tmp_path.iterdir(), key=lambda path: path.stem != first)
        data = dataset(files, inputs=["v"])
        assert data.layout.inputs == {"v": size}
        assert torch.equal(data[0].fields[:, :size], data[1].fields[:, :size])
    mesh.point_data["v"] = np.c_[v, v[:, :1]]
    mesh.write(tmp_path / "b.vtu")
    with pytest.raises(MeshError, match=r"b\.vtu: field 'v' must have 2 component\(s\), got 3"):
        dataset(tmp_path, inputs=["v"])


def test_a_truth_at_the_other_location_is_compared_with(tmp_path):
    for k in range(3):
        mesh = square(3 + k)
        mesh.cell_data = {"p": [mesh.points[mesh.cells[0].data].mean(axis=1)[:, 0]]}
        mesh.write(tmp_path / f"{k}.vtu")
    data = dataset(tmp_path, outputs=["p"], at="points")
    model = tiny_model(data.dim, data.in_channels, data.out_channels)
    surrogate = fit(model, data, epochs=1, validation=0.34, progress=False)
    found = surrogate.predict(tmp_path / "0.vtu")
    assert set(found.point_data) == {"p_predicted", "p_error"}
    truth = found.point_data["p_predicted"] - found.point_data["p_error"]
    assert difference(truth, data[0].outputs[:16]) < 1e-6


def test_a_name_twice_is_refused(tmp_path):
    channel(tmp_path / "a.vtu")
    with pytest.raises(ValueError, match=r"inputs name a field twice: \['f', 'f'\]"):
        dataset(tmp_path, inputs=["f", "f"])
