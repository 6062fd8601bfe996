"""Fields at points and cells: moved by the measure, checked, added and reported."""

from __future__ import annotations

import meshio
import numpy as np
import pytest
from realdata import DATA, needs_data

from opformer.errors import MeshError
from opformer.mesh import (
    blocks,
    field_location,
    field_names,
    flat_axes,
    inspect_mesh,
    read_field,
    read_mesh,
    with_fields,
    write_mesh,
)
from opformer.quadrature import lumping, node_weights

# A unit square and a triangle of area 2; point 5 is in no cell, point 6 in a flat one only.
POINTS = np.array([[0.0, 0], [1, 0], [1, 1], [0, 1], [5, 0], [9, 9], [2, 0]])
CELLS = [
    ("line", np.array([[0, 1]])),
    ("quad", np.array([[0, 1, 2, 3]])),
    ("triangle", np.array([[1, 4, 2], [1, 6, 4]])),
]
AREAS = np.array([1.0, 2.0, 0.0])


def mesh(point_data=None, cell_data=None) -> meshio.Mesh:
    return meshio.Mesh(POINTS.copy(), CELLS, point_data=point_data, cell_data=cell_data)


def per_block(values) -> list[np.ndarray]:
    """Cell data of the three top cells, with a value that must not matter on the line."""
    values = np.asarray(values)
    line = np.full((1, *values.shape[1:]), 1e9)
    return [line, values[:1], values[1:]]


# --- reading --------------------------------------------------------------------------------------


def test_a_field_is_read_where_it_lives_as_float64_with_a_channel_axis():
    m = mesh({"n": np.arange(7, dtype=np.int32)}, {"k": per_block([1.0, 2, 3])})
    np.testing.assert_array_equal(read_field(m, "n", "points"), np.arange(7.0)[:, None])
    np.testing.assert_array_equal(read_field(m, "k", "cells"), [[1.0], [2], [3]])
    assert read_field(m, "n", "points").dtype == np.float64


def test_cells_to_points_is_the_mean_by_measure():
    m = mesh(cell_data={"k": per_block([1.0, 4.0, 7.0])})
    values = read_field(m, "k", "points")[:, 0]
    shared = (0.25 * 1 + (2 / 3) * 4) / (0.25 + 2 / 3)
    mean = (1 * 1 + 2 * 4) / 3  # for the points of no measure
    np.testing.assert_allclose(values, [1, shared, shared, 1, 4, mean, mean], rtol=1e-14)


def test_points_to_cells_is_the_mean_by_measure():
    f = np.array([1.0, 2, 3, 4, 5, 1e9, 1e9])
    values = read_field(mesh({"p": f}), "p", "cells")[:, 0]
    quad, triangle = (1 + 2 + 3 + 4) / 4, (2 + 5 + 3) / 3
    mean = (quad * 1 + triangle * 2) / 3
    np.testing.assert_allclose(values, [quad, triangle, mean], rtol=1e-14)


@pytest.mark.parametrize("source", ["points", "cells"])
def test_moving_keeps_constants_and_the_integral(source):
    rng = np.random.default_rng(0)
    one, noise = np.ones((7, 2)), rng.normal(size=(7, 2))
    if source == "points":
        m, at = mesh({"one": one, "f": noise}), "cells"
        weights, moved_weights = node_weights(POINTS, CELLS), AREAS
    else:
        m, at = mesh(cell_data={"one": per_block(one[:3]), "f": per_block(noise[:3])}), "points"
        weights, moved_weights = AREAS, node_weights(POINTS, CELLS)
    np.testing.assert_allclose(read_field(m, "one", at), 1, rtol=1e-14)
    moved = moved_weights @ read_field(m, "f", at)
    np.testing.assert_allclose(moved, weights @ read_field(m, "f", source), rtol=1e-13)


def test_a_matrix_that_is_known_already_is_used():
    """A field is moved by it: with the first column doubled, the quad's value counts twice."""
    f, k = np.arange(7.0), per_block([1.0, 4.0, 7.0])
    m, matrix = mesh({"p": f}, {"k": k}), lumping(POINTS, CELLS)
    for name in ("p", "k"):
        for at in ("points", "cells"):
            np.testing.assert_array_equal(
                read_field(m, name, at, matrix=matrix), read_field(m, name, at)
            )
    other = matrix * np.array([2.0, 1.0, 1.0])
    shared = (0.5 * 1 + (2 / 3) * 4) / (0.5 + 2 / 3)
    np.testing.assert_allclose(read_field(m, "k", "points", matrix=other)[1], [shared], rtol=1e-14)


def test_a_name_at_both_locations_is_taken_from_where_it_is_asked_for():
    m = mesh({"p": np.zeros(7)}, {"p": per_block([1.0, 1, 1])})
    assert read_field(m, "p", "points").max() == 0
    assert read_field(m, "p", "cells").min() == 1
    assert field_location(m, "p") == "points"


def test_names_and_locations():
    m = mesh({"p": np.zeros(7)}, {"k": per_block([1.0, 1, 1])})
    assert field_names(m) == (["p"], ["k"])
    assert (field_location(m, "p"), field_location(m, "k")) == ("points", "cells")


def test_a_missing_name_lists_what_there_is():
    m = mesh({"p": np.zeros(7)}, {"k": per_block([1.0, 1, 1])})
    for call in (
        lambda: read_field(m, "pressure", "points"),
        lambda: field_location(m, "pressure"),
    ):
        with pytest.raises(MeshError, match=r"'pressure'.*point fields: \['p'\].*cell.*\['k'\]"):
            call()


def test_an_unknown_location_is_refused():
    with pytest.raises(MeshError, match="'nodes'"):
        read_field(mesh({"p": np.zeros(7)}), "p", "nodes")


def test_tensors_are_flattened_row_after_row():
    stress = np.arange(63.0).reshape(7, 3, 3)
    values = read_field(mesh({"s": stress}), "s", "points")
    assert values.shape == (7, 9)
    np.testing.assert_array_equal(values[:, 5], stress[:, 1, 2])


def test_nan_where_there_is_measure_is_refused_with_its_place():
    f = np.ones((7, 2))
    f[[2, 4], 1] = np.nan, np.inf
    for at in ("points", "cells"):
        with pytest.raises(MeshError, match="'v' is NaN or infinite at 2 points, the first is 2"):
            read_field(mesh({"v": f}), "v", at)
    m = mesh(cell_data={"k": per_block([1.0, np.nan, 1.0])})
    for at in ("points", "cells"):
        with pytest.raises(MeshError, match="'k' is NaN or infinite at 1 cells, the first is 1"):
            read_field(m, "k", at)


def test_nan_where_there_is_no_measure_does_no_harm():
    f = np.array([1.0, 2, 3, 4, 5, np.nan, np.inf])
    np.testing.assert_array_equal(read_field(mesh({"p": f}), "p", "points")[:, 0], f)
    clean = np.array([1.0, 2, 3, 4, 5, 0, 0])
    np.testing.assert_array_equal(
        read_field(mesh({"p": f}), "p", "cells"), read_field(mesh({"p": clean}), "p", "cells")
    )
    m = mesh(cell_data={"k": per_block([1.0, 4.0, np.nan])})
    assert np.isfinite(read_field(m, "k", "points")).all()


def test_complex_text_and_wrong_lengths_are_refused():
    m = mesh({"c": np.ones(7, complex), "t": np.array(list("abcdefg")), "p": np.ones(7)})
    for name in "ct":
        with pytest.raises(MeshError, match=f"'{name}' must hold real numbers"):
            read_field(m, name, "points")
    m.point_data["p"] = np.ones(5)
    with pytest.raises(MeshError, match="'p' has 5 rows for 7 points"):
        read_field(m, "p", "points")
    m.cell_data["k"] = [np.ones(1), np.ones(2), np.ones(2)]
    with pytest.raises(MeshError, match="'k' has 4 rows for 3 cells"):
        read_field(m, "k", "cells")
    m.cell_data["k"] = [np.ones(1), np.ones((1, 2)), np.ones(2)]
    with pytest.raises(MeshError, match="another shape"):
        read_field(m, "k", "cells")


def test_a_field_on_cells_without_any_measure_cannot_be_moved():
    flat = meshio.Mesh(
        np.array([[0.0, 0], [1, 0], [2, 0]]),
        [("triangle", np.array([[0, 1, 2]]))],
        point_data={"p": np.ones(3)},
    )
    with pytest.raises(MeshError, match="measure of the cells is zero"):
        read_field(flat, "p", "cells")


@needs_data
def test_a_real_cell_field_is_moved_to_the_points_with_its_integral():
    m = read_mesh(DATA / "elastic_block" / "test" / "case_400.vtu")
    matrix = lumping(m.points, blocks(m))
    on_cells, on_points = read_field(m, "young", "cells"), read_field(m, "young", "points")
    np.testing.assert_allclose(matrix.sum(1) @ on_points, matrix.sum(0) @ on_cells, rtol=1e-12)
    assert on_cells.min() - 1e-9 <= on_points.min() < on_points.max() <= on_cells.max() + 1e-9


# --- adding ---------------------------------------------------------------------------------------


def test_fields_are_added_to_a_copy():
    m = mesh({"p": np.zeros(7)}, {"k": per_block([1.0, 1, 1])})
    more = with_fields(m, point_data={"q": np.ones((7, 2))}, cell_data={"c": np.arange(3.0)})
    assert field_names(m) == (["p"], ["k"])
    assert field_names(more) == (["p", "q"], ["k", "c"])
    assert more.point_data["q"].shape == (7, 2)
    np.testing.assert_array_equal(read_field(more, "c", "cells")[:, 0], [0, 1, 2])


def test_cell_fields_come_per_top_cell_per_cell_or_per_block():
    top = with_fields(mesh(), cell_data={"k": np.arange(6.0).reshape(3, 2)}).cell_data["k"]
    assert np.isnan(top[0]).all()
    np.testing.assert_array_equal(top[2], [[2, 3], [4, 5]])
    every = with_fields(mesh(), cell_data={"k": np.arange(4)}).cell_data["k"]
    assert [part.tolist() for part in every] == [[0], [1], [2, 3]]
    listed = with_fields(mesh(), cell_data={"k": [[0.0], [1.0], [2.0, 3.0]]}).cell_data["k"]
    assert [part.tolist() for part in listed] == [[0], [1], [2, 3]]


@pytest.mark.parametrize(
    "bad", [np.ones(5), np.ones((1, 6)), np.float64(1), [np.ones(1)], [1, 2, 3]]
)
def test_cell_fields_that_do_not_fit_are_refused(bad):
    with pytest.raises(MeshError, match="'k' has shape"):
        with_fields(mesh(), cell_data={"k": bad})


def test_point_fields_that_do_not_fit_are_refused():
    for bad in (np.ones(6), np.float64(1), np.ones((1, 7))):
        with pytest.raises(MeshError, match=r"'p' has shape \(.*\) for 7 points"):
            with_fields(mesh(), point_data={"p": bad})


def test_a_taken_name_is_replaced_only_on_request():
    m = mesh({"p": np.zeros(7)}, {"k": per_block([1.0, 1, 1])})
    new = {"point_data": {"p": np.ones(7)}, "cell_data": {"k": np.zeros(3)}}
    with pytest.raises(MeshError, match=r"\['k', 'p'\].*overwrite=True"):
        with_fields(m, **new)
    assert read_field(with_fields(m, **new, overwrite=True), "p", "points").min() == 1
    assert "p" in with_fields(m, cell_data={"p": np.zeros(3)}).cell_data  # the other location


# --- geometry and report --------------------------------------------------------------------------


@pytest.mark.parametrize(("noise", "flat"), [(0.0, [2]), (1e-9, [2]), (1e-4, [])])
def test_an_axis_is_flat_relative_to_the_extent(noise, flat):
    rng = np.random.default_rng(0)
    points = np.column_stack([rng.random((50, 2)), 3.0 + noise * rng.random(50)])
    for scale in (1e-6, 1.0, 1e6):
        assert flat_axes(scale * points) == flat


def test_the_report_counts_and_places_what_is_odd(tmp_path):
    points = np.array([[0.0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0], [9, 9, 0], [1, 0, 0]])
    cells = [
        ("line", np.array([[0, 1]])),
        ("triangle", np.array([[0, 1, 2], [0, 3, 2], [0, 5, 0]])),
    ]
    fields = {"p": np.array([1.0, 2, 3, np.nan, 5, 6]), "v": np.ones((6, 2))}
    write_mesh(tmp_path / "a.vtu", meshio.Mesh(points, cells, point_data=fields))
    report = inspect_mesh(tmp_path / "a.vtu")
    assert (report.points, report.cells) == (6, {"line": 1, "triangle": 3})
    assert (report.ambient, report.intrinsic, report.flat) == (3, 2, [2])
    assert report.measure == pytest.approx(1)
    assert report.spread == pytest.approx(2)  # 1/3 on the diagonal, 1/6 beside it
    assert report.weightless == 2
    quality = report.quality
    assert (quality.inverted, quality.first_inverted) == (1, 1)
    assert (quality.degenerate, quality.first_degenerate) == (1, 2)
    assert (quality.orphans, quality.first_orphan) == (1, 4)
    assert (quality.duplicates, quality.first_duplicate) == (1, 5)
    p, v = report.fields
    assert (p.location, p.components, p.minimum, p.maximum, p.not_finite) == ("points", 1, 1, 6, 1)
    assert v.components == 2
    text = str(report)
    assert "area        1" in text
    assert "axis z is flat" in text
    assert "1 inverted cells (first 1)" in text
    assert report.verdict.startswith("not ready: field 'p' is NaN")
    assert text.endswith(report.verdict)


def test_a_sound_mesh_is_ready_and_one_without_fields_says_so():
    sound = meshio.Mesh(POINTS[:4], CELLS[1:2], point_data={"p": np.zeros(4)})
    assert inspect_mesh(sound).verdict == "ready to fit"
    bare = inspect_mesh(meshio.Mesh(POINTS[:4], CELLS[1:2]))
    assert bare.verdict == "geometry alone, no field to fit"


def test_the_report_survives_text_fields_and_cells_without_measure():
    flat = meshio.Mesh(
        np.array([[0.0, 0], [1, 0], [2, 0]]),
        [("triangle", np.array([[0, 1, 2]]))],
        point_data={"t": np.array(["a", "b", "c"])},
    )
    verdict = inspect_mesh(flat).verdict
    assert "the cells have no measure" in verdict
    assert "'t' must hold real numbers" in verdict
