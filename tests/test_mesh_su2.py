"""SU2's meshes: markers are sets, elements keep their order."""

from __future__ import annotations

import numpy as np
import pytest
from reading import measure, refusal

from opformer.mesh import read_mesh

SQUARE = """% a comment
NDIME= 2
NELEM = 3
5 0 1 2 0
9 0 2 3 4 1
5 1 5 2 2
NPOIN= 6 6
0 0 0
1 0 1
1 1 2
0 1 3
-1 1 4
2 0 5
NMARK= 2
MARKER_TAG= lower wall
MARKER_ELEMS= 2
3 0 1
3 1 5
MARKER_TAG= 7
MARKER_ELEMS= 1
3 3 4
"""


def test_markers_are_sets_and_elements_keep_their_order(tmp_path):
    path = tmp_path / "a.su2"
    path.write_text(SQUARE)
    mesh = read_mesh(path)
    np.testing.assert_array_equal(mesh.points, [[0, 0], [1, 0], [1, 1], [0, 1], [-1, 1], [2, 0]])
    assert [(b.type, b.data.tolist()) for b in mesh.cells] == [
        ("triangle", [[0, 1, 2]]),
        ("quad", [[0, 2, 3, 4]]),
        ("triangle", [[1, 5, 2]]),
        ("line", [[0, 1], [1, 5]]),
        ("line", [[3, 4]]),
    ]
    masks = {name: np.concatenate(parts).tolist() for name, parts in mesh.cell_data.items()}
    assert masks == {"lower wall": [0, 0, 0, 1, 1, 0], "7": [0, 0, 0, 0, 0, 1]}
    assert measure(mesh) == pytest.approx(0.5 + 1 + 0.5)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("NMARK= 2", "NMARK= 3", "3 markers announced, 2 found"),
        ("NDIME= 2", "NZONE= 2\nNDIME= 2", "2 zones: save each of them as a file"),
        ("NELEM = 3", "NELEM = 2", "'5 1 5 2 2' where NAME= is due"),
        ("NPOIN= 6 6", "NPOIN= 60000000000", "60000000000 points of dimension 2 announced"),
        ("9 0 2 3 4 1", "9 0 2 3", "type 9 does not have 4 nodes"),
        ("9 0 2 3 4 1", "8 0 2 3 4 1", "type 8 are not supported"),
        ("NDIME= 2", "", "points of dimension 0"),
        ("5 0 1 2 0", "5 0 1 99 0", "refers to points [0, 1, 99]"),
    ],
)
def test_what_is_wrong_is_said(old, new, words, tmp_path):
    path = tmp_path / "a.su2"
    path.write_text(SQUARE.replace(old, new, 1))
    assert words in refusal(path)
