"""Input files of Abaqus: parts, instances, sets, includes, and what cannot be read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from reading import measure, refusal

from opformer.mesh import read_mesh

PLATE = """*Heading
** a comment
*Part, name=plate
*Node, nset=every
 1, 0., 0.
 2, 1., 0.
 3, 1., 1.
 4, 0., 1.
*Element, type=CPE4R, elset=body
 7, 1, 2, 3, 4
*Nset, nset=left, generate
1, 4, 3
*Elset, elset=Twice
body, 7
*End Part
"""
ASSEMBLY = """*Assembly, name=Assembly
*Instance, name=plate-1, part=plate
*End Instance
*Instance, name=plate-2, part=PLATE
 2., 0., 0.
 2., 0., 0., 2., 0., 1., 90.
*End Instance
*Node
 1, 9., 9., 0.
*Nset, nset=reference
1
*Nset, nset=tip, instance=plate-2
 3,
*Elset, elset=first
plate-1.7
*End Assembly
*Step
*Node Output
U,
*End Step
"""
TRIANGLE = "*NODE\n1,0,0\n2,1,0\n3,0,1\n*ELEMENT, TYPE=S3\n1,1,2,3\n"


def write(path: Path, content: str) -> Path:
    path.write_text(content)
    return path


def test_instances_are_placed_and_their_sets_kept(tmp_path):
    """The second copy is moved by 2 along x and turned by 90° about the axis x = 2."""
    mesh = read_mesh(write(tmp_path / "a.inp", PLATE + ASSEMBLY))
    corners = [[0, 0], [1, 0], [1, 1], [0, 1], [2, 0], [2, 1], [1, 1], [1, 0], [9, 9]]
    np.testing.assert_allclose(mesh.points, np.pad(corners, ((0, 0), (0, 1))), atol=1e-15)
    assert [block.data.tolist() for block in mesh.cells] == [[[0, 1, 2, 3]], [[4, 5, 6, 7]]]
    assert measure(mesh) == pytest.approx(2)
    points = {name: np.flatnonzero(mask).tolist() for name, mask in mesh.point_data.items()}
    assert points == {"every": [*range(8)], "left": [0, 3, 4, 7], "tip": [6], "reference": [8]}
    cells = {name: np.concatenate(parts).tolist() for name, parts in mesh.cell_data.items()}
    assert cells == {"body": [1, 1], "Twice": [1, 1], "first": [1, 0]}


def test_nodes_in_several_blocks_are_all_there(tmp_path):
    mesh = read_mesh(
        write(
            tmp_path / "a.inp",
            TRIANGLE + "*NODE\n4, 1., 1.\n*ELEMENT, TYPE=CPS3, ELSET=second\n2, 2, 4, 3\n",
        )
    )
    assert measure(mesh) == pytest.approx(1)
    assert [part.tolist() for part in mesh.cell_data["second"]] == [[0], [1]]


def test_other_files_are_included(tmp_path):
    (tmp_path / "nodes.txt").write_text("1,0,0\n2,1,0\n** here\n3,0,1\n")
    (tmp_path / "more.inp").write_text("*ELEMENT, TYPE=S3\n1,1,2,3\n")
    content = '*NODE, INPUT=nodes.txt\n*INCLUDE, INPUT=more.inp\n*NSET,\n NSET="a b"\n2\n'
    mesh = read_mesh(write(tmp_path / "a.inp", content))
    assert measure(mesh) == pytest.approx(0.5)
    assert mesh.point_data["a b"].tolist() == [0, 1, 0]


def test_surfaces_are_left_out_with_a_warning(tmp_path):
    path = write(tmp_path / "a.inp", TRIANGLE + "*SURFACE, NAME=s\n1, S2\n")
    with pytest.warns(UserWarning, match="surfaces are not read"):
        read_mesh(path)


@pytest.mark.parametrize(
    ("name", "kind", "n"),
    [
        ("T3D2", "line", 2),
        ("B31", "line", 2),
        ("CPS3", "triangle", 3),
        ("S4R5", "quad", 4),
        ("CPE4RH", "quad", 4),
        ("CAX4P", "quad", 4),
        ("DC2D4", "quad", 4),
        ("M3D4R", "quad", 4),
        ("STRI65", "triangle6", 6),
        ("CPE6M", "triangle6", 6),
        ("S8R", "quad8", 8),
        ("C3D4H", "tetra", 4),
        ("C3D5", "pyramid", 5),
        ("C3D6", "wedge", 6),
        ("C3D8R", "hexahedron", 8),
        ("DC3D10", "tetra10", 10),
        ("C3D10MH", "tetra10", 10),
        ("C3D15", "wedge15", 15),
        ("C3D20RH", "hexahedron20", 20),
    ],
)
def test_elements_are_known_by_family_and_number_of_nodes(name, kind, n, tmp_path):
    nodes = "".join(f"{k}, {k % 3}., {k % 5}., {k}.\n" for k in range(1, n + 1))
    numbers = ",\n".join(map(str, [1, *range(1, n + 1)]))  # one on each line
    path = write(tmp_path / "a.inp", f"*NODE\n{nodes}*ELEMENT, TYPE={name}\n{numbers}\n")
    assert [(b.type, b.data.tolist()) for b in read_mesh(path).cells] == [(kind, [[*range(n)]])]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (TRIANGLE.replace("S3", "B32"), "type 'B32' are not supported"),
        (TRIANGLE.replace("S3", "C3D27"), "type 'C3D27' are not supported"),
        (TRIANGLE.replace("1,1,2,3", "1,1,2"), "S3 need 4 numbers each"),
        (TRIANGLE.replace("1,1,2,3", "1,1,2,5"), "refers to node 5"),
        (TRIANGLE + "*NODE\n1, 0, 7\n", "node 1 is there twice"),
        (TRIANGLE + "*NGEN\n1, 3, 1\n", "*NGEN is not supported: write the model with all"),
        (TRIANGLE.replace("*NODE", "*NODE, SYSTEM=C"), "not Cartesian"),
        (TRIANGLE + "*NSET, NSET=a, GENERATE\n1, 1000000000\n", "lists 1000000000 numbers"),
        (TRIANGLE + "*ELSET, ELSET=a\nother\n", "lists 'other', which is no number and no set"),
        (TRIANGLE + "*ELSET, ELSET=a\n9\n", "refers to element 9"),
        (TRIANGLE + "*NSET, NSET=a, ELSET=b\n", "list the nodes"),
        (TRIANGLE + "*INCLUDE, INPUT=a.inp\n", "include one another"),
        ("*NODE\n1,0,0\n*ELEMENT, TYPE=S3,", "S3 need 4 numbers each"),
        ("hello", "'hello' belongs to no keyword"),
    ],
)
def test_what_is_wrong_is_said(content, words, tmp_path):
    assert words in refusal(write(tmp_path / "a.inp", content))
