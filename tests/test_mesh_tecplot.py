"""Tecplot's text files: zones, packings, repeated numbers, and what cannot be read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from reading import boundary_weights, measure, refusal

from opformer.mesh import read_mesh

ZONES = """TITLE = "two zones"
# a comment
VARIABLES = "X", "Y", "pressure coeff"
ZONE T="fluid", N=4, E=2, F=FEPOINT, ET=TRIANGLE
0 0 1
1 0 2
1 1 3
0 1 4
1 2 3
1 3 4
ZONE T="solid", N=4, E=1, F=FEPOINT, ET=QUADRILATERAL
1 0 2
2 0 5
2 1 6
1 1 3
1 2 3 4
"""
BLOCK = """VARIABLES = "X" "Y" "p" "k"
ZONE NODES=4, ELEMENTS=2,
 DATAPACKING=BLOCK, ZONETYPE=FETRIANGLE,
 VARLOCATION=([4]=CELLCENTERED), SOLUTIONTIME=0.5, DT=(SINGLE SINGLE SINGLE SINGLE)
0 1 1 0
2*0 2*1.0
1D0 2 3,4
7 8
1 2 3
1 3 4
"""
GRID = 'VARIABLES = "x [m]" "Y" "Z" "p"\nZONE I=3, J=2, K=2, DATAPACKING=POINT\n' + "\n".join(
    f"{x} {y} {z} {x + 10 * y + 100 * z}" for z in (0, 1) for y in (0, 1) for x in (0, 1, 2)
)


def write(path: Path, content: str) -> Path:
    path.write_text(content)
    return path


def test_all_zones_are_read_and_joined(tmp_path):
    mesh = read_mesh(write(tmp_path / "a.dat", ZONES))
    assert len(mesh.points) == 6
    assert measure(mesh) == pytest.approx(2)
    assert boundary_weights(mesh).sum() == pytest.approx(6)  # the seam does not count
    np.testing.assert_array_equal(mesh.point_data["pressure coeff"], [1, 2, 3, 4, 5, 6])
    assert [part.tolist() for part in mesh.cell_data["fluid"]] == [[1, 1], [0]]
    assert [part.tolist() for part in mesh.cell_data["solid"]] == [[0, 0], [1]]


def test_blocks_of_numbers_some_of_them_at_the_cells(tmp_path):
    mesh = read_mesh(write(tmp_path / "A.TEC", BLOCK))
    np.testing.assert_array_equal(mesh.points, [[0, 0], [1, 0], [1, 1], [0, 1]])
    assert mesh.point_data["p"].tolist() == [1, 2, 3, 4]
    assert mesh.cell_data["k"][0].tolist() == [7, 8]
    assert mesh.field_data["time"].tolist() == [0.5]


def test_a_structured_zone_is_a_grid_of_hexahedra(tmp_path):
    mesh = read_mesh(write(tmp_path / "a.dat", GRID))
    assert [(block.type, len(block)) for block in mesh.cells] == [("hexahedron", 2)]
    assert measure(mesh) == pytest.approx(2)
    np.testing.assert_array_equal(mesh.point_data["p"], mesh.points @ [1, 10, 100])


def test_a_structured_zone_may_be_flat(tmp_path):
    lines = GRID.splitlines()
    flat = "\n".join([lines[0], lines[1].replace("K=2, ", ""), *lines[2:8]])
    mesh = read_mesh(write(tmp_path / "a.dat", flat))
    assert mesh.cells[0].data.tolist() == [[0, 1, 4, 3], [1, 2, 5, 4]]


def test_steps_in_time_are_refused(tmp_path):
    zone = "ZONE" + BLOCK.partition("ZONE")[2]
    later = zone.replace("SOLUTIONTIME=0.5", "SOLUTIONTIME=0.75")
    assert "2 steps in time" in refusal(write(tmp_path / "a.dat", BLOCK + later))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (
            BLOCK[:-6],
            "a zone of 4 points and 2 cells with 4 variables has 20 numbers, found are 17",
        ),
        (ZONES[: ZONES.rindex("1 2 3 4")], "has 16 numbers, found are 12"),
        (BLOCK.replace("NODES=4", "NODES=4000000000"), "found are 20"),
        (BLOCK.replace("2*0", "2000000000*0"), "2000000000 times 0"),
        (BLOCK.replace("1 3 4\n", "1 3 9\n"), "refers to points [0, 2, 8]"),
        (BLOCK.replace("1 3 4\n", "1 3 3.5\n"), "no whole number"),
        (BLOCK.replace("FETRIANGLE", "FEPOLYGON"), "type POLYGON are not supported"),
        (BLOCK.replace("DATAPACKING=BLOCK, ", ""), "DATAPACKING must be POINT or BLOCK"),
        (BLOCK.replace('"X"', '"A"'), "no variables are called x, y, z; there are A, Y, p, k"),
        (BLOCK.replace('"k"', '"p"'), "two variables have the same name"),
        (BLOCK.replace("DT=(", "VARSHARELIST=([1]=1), DT=("), "VARSHARELIST is not supported"),
        ("hello", "there are no VARIABLES"),
        ('VARIABLES = "X"\n', "there are no zones"),
    ],
)
def test_what_is_wrong_is_said(content, words, tmp_path):
    assert words in refusal(write(tmp_path / "a.dat", content))
