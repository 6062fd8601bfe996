"""A fitted operator in physical units: predictions on meshes, and one file that holds it all."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from cases import tiny_model, write_folder, write_square
from test_data import traction_file
from tolerances import difference

from opformer import (
    Domain,
    MeshDataset,
    MeshError,
    OperatorTransformer,
    Standardizer,
    Surrogate,
    collate,
    load,
    read_mesh,
    write_mesh,
)
from opformer.checkpoint import load_checkpoint, save_checkpoint
from opformer.encodings import GaussianBias, PositionalEncoding

MESHES = Path(__file__).parents[1] / "meshes"

ENCODING = """
import torch
from torch import nn
from opformer.encodings import PositionalEncoding

class Decay(PositionalEncoding):
    symmetry = "E(d)"

    def __init__(self, heads):
        super().__init__()
        self.heads = heads
        self.rate = nn.Parameter(torch.linspace(1, 2, heads))

    def bias(self, target, source):
        distance = torch.cdist(target.points, source.points)
        return -self.rate[:, None, None] * distance
"""


def surrogate_for(data, **options):
    """A model with random weights and the scales of the data."""
    model = tiny_model(
        data.dim,
        data.in_channels,
        data.out_channels,
        parameter_channels=data.parameter_channels,
        **({"layers": 2} | options),
    )
    return Surrogate(model, Standardizer.fit(data), data.layout).eval()


@pytest.fixture
def data(tmp_path):
    folder = write_folder(tmp_path / "data", cases=3)
    return MeshDataset(
        folder,
        inputs=["f", "c"],
        outputs=["v", "g"],
        parameters=["speed"],
        progress=False,
    )


@pytest.fixture
def surrogate(data):
    return surrogate_for(data)


@pytest.fixture
def mesh(data):
    return read_mesh(data.files[1])


# ---- the call


@torch.no_grad()
def test_a_batch_is_the_loop_over_its_cases(surrogate, data):
    y = surrogate(collate(list(data)))
    for i, sample in enumerate(data):
        assert difference(y[i, : sample.source.size], surrogate(sample)) < 1e-12


@torch.no_grad()
def test_units_of_length_and_fields_do_not_matter(surrogate, data, tmp_path):
    """Everything in other units: the same scaled numbers, the answer in the other units."""
    for path in data.files:
        mesh = read_mesh(path)
        mesh.points = 1e3 * mesh.points + [2e4, -1e4, 0]
        mesh.point_data["f"] = 1e5 + 1e2 * mesh.point_data["f"]
        for name in ("v", "g"):
            mesh.point_data[name] = 3 - 1e-3 * mesh.point_data[name]
        write_mesh(tmp_path / path.name, mesh)
    files = [tmp_path / path.name for path in data.files]
    other = MeshDataset(
        files,
        inputs=["f", "c"],
        outputs=["v", "g"],
        parameters=["speed"],
        progress=False,
    )
    again = Surrogate(surrogate.model, Standardizer.fit(other), other.layout)
    scaled = (
        surrogate(data[1]) - surrogate.standardizer.outputs_mean
    ) / surrogate.standardizer.outputs_std
    expected = again.standardizer.outputs_mean + scaled * again.standardizer.outputs_std
    assert difference(again(other[1]), expected) < 1e-9


@torch.no_grad()
def test_uniform_is_a_domain_of_equal_weights(surrogate, data):
    sample = data[1]
    plain = Domain(sample.source.points, torch.full((sample.source.size,), 0.1))
    scale = surrogate.standardizer
    expected = scale.unscale_outputs(
        surrogate.model(
            scale.scale_domain(plain),
            scale.scale_fields(sample.fields),
            None,
            scale.scale_parameters(sample.parameters),
        )
    )
    assert difference(surrogate(sample, uniform=True), expected) < 1e-12
    assert difference(surrogate(sample, uniform=True), surrogate(sample)) > 1e-4


# ---- prediction on a mesh


def test_a_prediction_is_a_copy_with_more_fields(surrogate, data, mesh):
    before = {name: values.copy() for name, values in mesh.point_data.items()}
    result = surrogate.predict(mesh)
    assert mesh.point_data.keys() == before.keys()
    assert (result.points == mesh.points).all()
    assert (result.cells[0].data == mesh.cells[0].data).all()
    for name, values in before.items():
        assert (result.point_data[name] == values).all()
    assert (result.cell_data["c"][0] == mesh.cell_data["c"][0]).all()
    assert result.point_data.keys() - before.keys() == {
        f"{name}_{what}" for name in "vg" for what in ("predicted", "error")
    }
    with torch.no_grad():
        y = surrogate(data[1])[:36].numpy()
    # Vectors of two components get a third, for ParaView.
    assert (result.point_data["v_predicted"] == np.c_[y[:, :2], np.zeros(36)]).all()
    assert (result.point_data["g_predicted"] == y[:, 2:]).all()
    assert (result.point_data["g_error"] == y[:, 2:] - before["g"][:, None]).all()
    assert (result.point_data["v_error"][:, :2] == y[:, :2] - before["v"][:, :2]).all()


def test_plain_names_where_the_truth_is_unknown(surrogate, mesh):
    del mesh.point_data["v"], mesh.point_data["g"]
    result = surrogate.predict(mesh)
    assert {"v", "g"} <= result.point_data.keys()
    assert result.point_data["g"].shape == (36, 1)


def test_from_a_file(surrogate, data, mesh):
    a, b = surrogate.predict(mesh), surrogate.predict(str(data.files[1]))
    assert (a.point_data["g_predicted"] == b.point_data["g_predicted"]).all()
    with pytest.raises(MeshError, match=r"nowhere\.vtu: there is no such file"):
        surrogate.predict("nowhere.vtu")


@pytest.mark.parametrize("chunk", [1, 7, 36, 1000])
def test_in_chunks(surrogate, mesh, chunk):
    whole, part = surrogate.predict(mesh), surrogate.predict(mesh, chunk=chunk)
    for name in ("v_predicted", "g_predicted"):
        assert difference(part.point_data[name], whole.point_data[name]) < 1e-12


def test_chunks_bound_the_number_of_targets(surrogate, mesh, monkeypatch):
    sizes = []
    at = surrogate.model.encoder.at

    def watched(x, *args, **kwargs):
        sizes.append(len(x))
        return at(x, *args, **kwargs)

    monkeypatch.setattr(surrogate.model.encoder, "at", watched)
    surrogate.predict(mesh, chunk=10)
    assert sizes == [10, 10, 10, 6]


def test_renumbered_nodes(surrogate, mesh):
    order = np.random.default_rng(0).permutation(len(mesh.points))
    other = read_mesh_like(mesh, order)
    a, b = (surrogate.predict(m).point_data["g_predicted"] for m in (mesh, other))
    assert difference(b, a[order]) < 1e-11


def read_mesh_like(mesh, order):
    """The same mesh with its nodes in another order."""
    new = np.empty_like(order)
    new[order] = np.arange(len(order))
    return type(mesh)(
        mesh.points[order],
        [("triangle", new[mesh.cells[0].data])],
        point_data={name: values[order] for name, values in mesh.point_data.items()},
        cell_data=mesh.cell_data,
    )


def test_at_points_anywhere(surrogate, data, mesh):
    """At nodes it is the prediction there; elsewhere no other target matters; in any chunks."""
    with torch.no_grad():
        nodal = surrogate(data[1])[:36]
    inside = torch.rand(9, 2) * 0.8 + 0.1
    points = torch.cat([data[1].source.points[:36], inside])
    target = Domain(points, torch.zeros(len(points)))
    y = surrogate.predict(mesh, target=target)
    assert y.shape == (36 + 9, 3)
    assert difference(y[:36], nodal) < 1e-11
    assert difference(surrogate.predict(mesh, target=target, chunk=4), y) < 1e-12
    one = surrogate.predict(mesh, target=target.take(slice(40, 41)))
    assert difference(one, y[40:41]) < 1e-11
    with torch.no_grad():
        called = surrogate(type(data[1])(**(vars(data[1]) | {"target": target, "outputs": None})))
    assert difference(called, y) < 1e-12


def test_a_target_of_other_coordinates(surrogate, mesh):
    with pytest.raises(ValueError, match="target must have the coordinates x, y, got 3 of them"):
        surrogate.predict(mesh, target=Domain(torch.zeros(2, 3), torch.zeros(2)))


def test_orphan_nodes_get_a_prediction_and_change_nothing(surrogate, mesh):
    other = read_mesh_like(mesh, np.arange(len(mesh.points)))
    other.points = np.vstack([mesh.points, [[0.4, 0.6, 0.0]]])
    for name, values in mesh.point_data.items():
        other.point_data[name] = np.concatenate([values, np.full_like(values[:1], np.nan)])
    other.point_data["speed"][-1] = -7.0  # no constant, but on a set of measure zero
    a, b = (surrogate.predict(m).point_data["g_predicted"] for m in (mesh, other))
    assert np.isfinite(b).all()
    assert difference(b[:-1], a) < 1e-12


def test_cells(tmp_path):
    folder = write_folder(tmp_path / "data", cases=2)
    data = MeshDataset(folder, inputs=["f"], outputs=["c"], progress=False)
    surrogate = surrogate_for(data)
    mesh = read_mesh(data.files[0])
    result = surrogate.predict(mesh)
    with torch.no_grad():
        assert (result.cell_data["c_predicted"][0] == surrogate(data[0])[:32].numpy()).all()
    assert (
        difference(
            surrogate.predict(mesh, chunk=5).cell_data["c_predicted"][0],
            result.cell_data["c_predicted"][0],
        )
        < 1e-12
    )
    write_mesh(tmp_path / "out.vtu", result)
    again = read_mesh(tmp_path / "out.vtu")
    assert (
        difference(again.cell_data["c_predicted"][0], result.cell_data["c_predicted"][0][:, 0])
        < 1e-15
    )


@pytest.mark.parametrize("boundary", [True, False])
@pytest.mark.parametrize("output", ["g", "c"])
def test_a_prediction_has_the_rows_of_the_mesh(tmp_path, output, boundary):
    """The points that the boundary measure adds are sources alone, in whatever chunks."""
    folder = write_folder(tmp_path / "data", cases=2)
    data = MeshDataset(
        folder, inputs=["f"], outputs=[output], parts=("boundary",) * boundary, progress=False
    )
    surrogate = surrogate_for(data)
    for path, sample in zip(data.files, data, strict=True):
        rows = sample.size
        assert (sample.source.size > rows) == boundary
        with torch.no_grad():
            expected = surrogate(sample)[:rows]
        for chunk in (None, 7, rows, rows + 1):
            result = surrogate.predict(path, chunk=chunk)
            fields = result.point_data if output == "g" else result.cell_data
            got = fields[f"{output}_predicted"]
            assert difference(got if output == "g" else got[0], expected) < 1e-12


@torch.no_grad()
def test_the_boundary_is_seen(data):
    """The shape is an input: the measure of Γ alone changes the answer."""
    surrogate, sample = surrogate_for(data), data[1]
    weights = torch.where(sample.on_parts, 4 * sample.source.weights, sample.source.weights)
    other = replace(sample, source=Domain(sample.source.points, weights))
    assert difference(surrogate(other), surrogate(sample)) > 1e-3


@torch.no_grad()
def test_a_closed_surface():
    path = MESHES / "sphere.vtu"
    data = MeshDataset(path, outputs=["u"], progress=False)
    surrogate = surrogate_for(data)
    result = surrogate.predict(path).point_data["u_predicted"]
    assert difference(result, surrogate(data[0])) < 1e-12
    assert result.shape == (66, 1)
    alone = MeshDataset(path, outputs=["u"], parts=(), progress=False)
    assert torch.equal(alone[0].source.weights, data[0].source.weights)


def test_boundary_inputs(tmp_path):
    """The copies on the boundary are sources, and no rows of the prediction."""
    for i, n in enumerate((4, 6)):
        traction_file(tmp_path / f"{i}.vtu", n, 1 + i)
    data = MeshDataset(tmp_path, inputs=["f", "traction"], outputs=["g"], progress=False)
    surrogate = surrogate_for(data)
    mesh = read_mesh(data.files[1])
    result = surrogate.predict(mesh)
    assert result.point_data["g_predicted"].shape == (49, 1)
    chunked = surrogate.predict(mesh, chunk=10)
    assert difference(chunked.point_data["g_predicted"], result.point_data["g_predicted"]) < 1e-12
    nodes = Domain(torch.from_numpy(mesh.points[:, :2]), torch.zeros(49))
    assert (
        difference(surrogate.predict(mesh, target=nodes), result.point_data["g_predicted"]) < 1e-11
    )
    mesh.point_data["traction"] = 3 * mesh.point_data["traction"]
    assert (
        difference(
            surrogate.predict(mesh).point_data["g_predicted"], result.point_data["g_predicted"]
        )
        > 1e-3
    )
    mesh.point_data["traction"] = mesh.point_data["traction"] + 1
    with pytest.raises(MeshError, match="input 'traction' must be zero off the boundary"):
        surrogate.predict(mesh)


def test_a_mesh_without_the_field(surrogate, mesh):
    del mesh.point_data["f"]
    with pytest.raises(MeshError, match=r"there is no field 'f'; point fields: .*'speed'"):
        surrogate.predict(mesh)


def test_a_prediction_replaces_an_earlier_one_where_asked_and_nothing_else(surrogate, mesh):
    once = surrogate.predict(mesh)
    once.point_data["g_predicted"] = 0 * once.point_data["g_predicted"]
    with pytest.raises(MeshError, match=r"already holds .*'g_predicted'.*overwrite=True"):
        surrogate.predict(once)
    again = surrogate.predict(once, overwrite=True)
    assert again.point_data.keys() == once.point_data.keys()
    assert np.array_equal(again.point_data["g"], mesh.point_data["g"])
    assert np.array_equal(
        again.point_data["g_predicted"], surrogate.predict(mesh).point_data["g_predicted"]
    )


# ---- one file


def test_saved_and_loaded(surrogate, mesh, tmp_path):
    surrogate.save(tmp_path / "run" / "best.pt", epoch=7)
    assert load_checkpoint(tmp_path / "run" / "best.pt")["epoch"] == 7
    expected = surrogate.predict(mesh).point_data["g_predicted"]
    for path in (tmp_path / "run", str(tmp_path / "run" / "best.pt")):
        again = load(path)
        assert not again.training
        assert again.layout == surrogate.layout
        assert (again.predict(mesh).point_data["g_predicted"] == expected).all()


def run_python(code, *paths):
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *map(str, paths)],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=False,
    )


def test_a_fresh_process_needs_the_file_alone(data, tmp_path):
    """In float32, as users have it; bit for bit."""
    torch.set_default_dtype(torch.float32)
    surrogate = surrogate_for(data)
    write_square(tmp_path / "new.vtu", 1.4, n=7, grade=2)
    expected = surrogate.predict(tmp_path / "new.vtu")
    surrogate.save(tmp_path / "best.pt")
    for path in data.files:
        path.unlink()
    code = (
        "import sys, opformer; a, b, c = sys.argv[1:];"
        "opformer.write_mesh(c, opformer.load(a).predict(b))"
    )
    done = run_python(code, tmp_path / "best.pt", tmp_path / "new.vtu", tmp_path / "out.vtu")
    assert done.returncode == 0, done.stderr
    got = read_mesh(tmp_path / "out.vtu")
    for name in ("v_predicted", "g_predicted"):
        assert (got.point_data[name] == expected.point_data[name].squeeze()).all()


def test_an_encoding_of_the_user(data, tmp_path, monkeypatch):
    """Refused until its module is imported: a file decides nothing about imports."""
    (tmp_path / "my_encoding.py").write_text(ENCODING)
    monkeypatch.syspath_prepend(str(tmp_path))
    import my_encoding

    surrogate = surrogate_for(data, encoding=my_encoding.Decay(2))
    surrogate.save(tmp_path / "best.pt")
    expected = surrogate.predict(data.files[0]).point_data["g_predicted"]
    assert (
        load(tmp_path / "best.pt").predict(data.files[0]).point_data["g_predicted"] == expected
    ).all()
    monkeypatch.delitem(sys.modules, "my_encoding")
    message = r"best\.pt: class 'my_encoding:Decay' is not known: import the module"
    with pytest.raises(ValueError, match=message):
        load(tmp_path / "best.pt")


class Local(PositionalEncoding):
    """For a model that has changed since it was saved."""

    def __init__(self, heads):
        super().__init__()
        self.heads = heads
        self.gain = torch.nn.Parameter(torch.ones(heads))

    def bias(self, target, source):
        return self.gain[:, None, None] * source.points[..., 0]


def test_a_class_that_has_changed(data, tmp_path, monkeypatch):
    surrogate_for(data, encoding=Local(2)).save(tmp_path / "best.pt")

    def other(self, heads):
        PositionalEncoding.__init__(self)
        self.heads, self.gain = heads, torch.nn.Parameter(torch.ones(heads + 1))

    monkeypatch.setattr(Local, "__init__", other)
    with pytest.raises(ValueError, match=r"best\.pt: .*size mismatch") as caught:
        load(tmp_path / "best.pt")
    assert "\n" not in str(caught.value)


def test_no_surrogate_in_the_file(tmp_path):
    with pytest.raises(ValueError, match=r"best\.pt: no such checkpoint"):
        load(tmp_path)
    save_checkpoint(tmp_path / "best.pt", {"model": {}})
    with pytest.raises(ValueError, match=r"not a surrogate, \['layout', 'standardizer'\] missing"):
        load(tmp_path)


def test_a_model_that_cannot_be_described(data, tmp_path):
    class Inside(OperatorTransformer):
        pass

    surrogate = Surrogate(Inside(2, 5, 4, channels=8, heads=2), Standardizer.fit(data), data.layout)
    with pytest.raises(TypeError, match="top of a module"):
        surrogate.save(tmp_path / "best.pt")
    assert not (tmp_path / "best.pt").exists()


@pytest.mark.parametrize("unit", [1000.0, 0.001])
def test_a_mesh_in_another_unit_is_said(surrogate, mesh, unit):
    surrogate.predict(mesh)
    mesh.points = mesh.points * unit
    with pytest.warns(UserWarning, match="times as large as the box of the training: is it in an"):
        surrogate.predict(mesh)


def test_a_mesh_elsewhere_is_told(data, mesh):
    """Unless the model sees offsets alone, and says the same there."""
    moved = copy.deepcopy(mesh)
    moved.points = moved.points + np.array([40.0, 0, 0])
    with pytest.warns(UserWarning, match="the mesh lies .* boxes of the training away from it"):
        surrogate_for(data).predict(moved)
    free = surrogate_for(data, encoding=GaussianBias(2, 2))
    there, here = (free.predict(m).point_data["g_predicted"] for m in (moved, mesh))
    assert difference(there, here) < 1e-9
