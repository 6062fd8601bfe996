"""Three real folders: what is recognised in them, one epoch, and predictions on disk and back."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from cases import tiny_model
from realdata import DATA, needs_data
from tolerances import difference

from opformer import (
    MeshDataset,
    Standardizer,
    Surrogate,
    collate,
    evaluate,
    fit,
    load,
    read_mesh,
    write_mesh,
)

pytestmark = needs_data

FOLDERS = {
    "elastic_block": {
        "folder": "elastic_block/train",
        "fine": "elastic_block/test_fine",
        "fields": {"inputs": ["young", "traction"], "outputs": ["u"]},
    },
    "airfoil": {
        "folder": "airfoil/train_coarse",
        "fine": "airfoil/test_fine",
        "fields": {
            "inputs": ["wall_distance"],
            "outputs": ["U", "p", "nut"],
            "parameters": ["U_inf"],
        },
    },
    "holed_poisson": {
        "folder": "holed_poisson/train",
        "fine": "holed_poisson/test_fine",
        "fields": {"outputs": ["u"]},
    },
}
every_folder = pytest.mark.parametrize("name", FOLDERS)


def files(name, which="folder", count=3):
    return sorted((DATA / FOLDERS[name][which]).glob("*.vtu"))[:count]


def dataset(name, **options):
    return MeshDataset(files(name, **options), **FOLDERS[name]["fields"], progress=False)


@every_folder
def test_plane_meshes_with_z_left_out(name):
    data = dataset(name)
    assert data.layout.axes == [0, 1]
    assert "axis z is flat in all 3 files and is left out" in data.notes
    for sample, path in zip(data, data.files, strict=True):
        mesh = read_mesh(path)
        count = len(mesh.points) if data.layout.at == "points" else len(mesh.cells[0].data)
        assert sample.size == count
        assert (sample.inside.weights[: sample.size] > 0).all()


def test_the_block_has_cell_inputs_and_a_traction():
    data = dataset("elastic_block")
    assert data.layout.at == "points"
    assert data.layout.part_inputs == ["traction"]
    assert "field 'young' is moved to the points by the measure" in data.notes
    sample, mesh = data[0], read_mesh(data.files[0])
    edge = sample.on_parts
    traction = mesh.point_data["traction"][:, :2]
    loaded = np.abs(traction).any(axis=1)
    x = mesh.points[:, 0]
    assert (x[loaded] == x.max()).all()
    assert not sample.fields[~edge, 1:3].any()
    kept = sample.fields[edge, 1:3]
    assert (
        kept[kept.abs().any(1)].sort(0).values.numpy() == np.sort(traction[loaded], axis=0)
    ).all()


def test_the_load_on_the_block_is_that_on_its_refinement():
    """Integrated over the boundary; over the volume it halves with the mesh width."""
    path = files("elastic_block", "fine", 1)[0]
    pair = [DATA / "elastic_block" / folder / path.name for folder in ("test", "test_fine")]
    if not pair[0].is_file():
        pytest.skip(f"no {path.name} beside the fine one")

    def loads(**options):
        """∫ |t| and ∫ t on both meshes."""
        data = MeshDataset(pair, inputs=["traction"], outputs=["u"], progress=False, **options)
        return [
            torch.stack([s.source.integrate(f)[0] for f in (s.fields.abs(), s.fields)])
            for s in data
        ]

    coarse, fine = loads()
    # The load jumps at the corners, where a node belongs to a loaded side and a free one.
    assert ((fine - coarse) / coarse[0]).abs().max() < 0.05
    coarse, fine = loads(parts=())
    assert 0.4 < fine[0] / coarse[0] < 0.6


def test_the_airfoil_lives_on_cells_and_has_a_speed():
    data = dataset("airfoil")
    assert data.layout.at == "cells"
    assert data.layout.parameters == {"U_inf": 2}
    assert data.layout.part_inputs == []
    for sample in data:
        assert 20 <= sample.parameters.norm() <= 40
        areas = sample.source.weights[: sample.size]
        assert areas.max() / areas.min() > 100


def test_the_holed_square_is_its_geometry():
    data = dataset("holed_poisson")
    assert data.layout.inputs == {}
    assert data.in_channels == 1  # what is boundary: the hole is an input
    # The exact solution is zero on the boundary and positive inside.
    assert (data[0].outputs >= 0).all()


@every_folder
def test_fitted_written_and_read_back(name, tmp_path):
    """One epoch on random points; the loss is finite, and the file says what the model says."""
    data = dataset(name)
    model = tiny_model(
        data.dim,
        data.in_channels,
        data.out_channels,
        parameter_channels=data.parameter_channels,
    ).float()
    fit(
        model, data, validation=0.4, epochs=1, batch_size=1, samples_per_mesh=300, out=tmp_path,
        progress=False,
    )  # fmt: skip
    surrogate: Surrogate = load(tmp_path)
    coarse, fine = files(name)[-1], files(name, "fine", 1)[0]
    evaluation = evaluate(surrogate, coarse, fine, uniform=True, progress=False)
    assert all(np.isfinite(case.relative_l2) for case in evaluation.cases)
    assert evaluation.cases[-1].nodes > 3 * evaluation.cases[0].nodes
    prediction = surrogate.predict(fine)
    write_mesh(tmp_path / "prediction.vtu", prediction)
    again, original = read_mesh(tmp_path / "prediction.vtu"), read_mesh(fine)
    assert (again.points == original.points).all()
    for field in surrogate.layout.outputs:
        got, truth = values(again, f"{field}_predicted"), values(original, field)
        assert len(got) == len(truth)
        assert np.isfinite(got).all()
        assert (got == values(prediction, f"{field}_predicted").reshape(got.shape)).all()
        assert (values(again, field) == truth).all()


def values(mesh, name):
    return mesh.point_data[name] if name in mesh.point_data else mesh.cell_data[name][0]


@every_folder
@torch.no_grad()
def test_a_batch_of_real_cases_is_the_loop(name):
    data = dataset(name, count=2)
    thin = [s.subsample(200, torch.Generator().manual_seed(i)) for i, s in enumerate(data)]
    model = tiny_model(
        data.dim,
        data.in_channels,
        data.out_channels,
        parameter_channels=data.parameter_channels,
    )
    surrogate = Surrogate(model, Standardizer.fit(thin), data.layout).eval()
    y = surrogate(collate(thin))
    for i, sample in enumerate(thin):
        assert difference(y[i, : sample.source.size], surrogate(sample)) < 1e-11
