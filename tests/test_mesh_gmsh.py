"""Gmsh's files: groups, order of nodes and data, every version, and what cannot be read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from reading import measure, refusal

from opformer._cells import reference_cell
from opformer.mesh import read_mesh

# A unit square, its nodes numbered 10, 30, 20, 40 in a circle. Line 1 is in group "inlet", both
# triangles in "plate", the second in group 5 too, which has no name.
NAMES = '$PhysicalNames\n2\n1 3 "inlet side"\n2 4 "plate"\n$EndPhysicalNames\n'
CORNERS = ["0 0 0", "1 0 0", "1 1 0", "0 1 0"]
NUMBERED = "\n".join(f"{n} {x}" for n, x in zip((10, 30, 20, 40), CORNERS, strict=True))
DATA = (
    '$NodeData\n1\n"temp"\n1\n0.5\n3\n0\n1\n3\n20 2\n10 1\n30 3\n$EndNodeData\n'
    '$ElementData\n1\n"flux"\n1\n0.5\n3\n0\n3\n2\n9 4 5 6\n8 1 2 3\n$EndElementData\n'
)
ENTITIES = {
    "4.0": "$Entities\n0 1 2 0\n1 0 0 0 1 0 0 1 3 0\n1 0 0 0 1 1 0 1 4 0\n"
    "2 0 0 0 1 1 0 2 4 5 0\n$EndEntities\n",
}
ENTITIES["4.1"] = ENTITIES["4.0"]


def text(version: str) -> str:
    """The same mesh in each version."""
    head = f"$MeshFormat\n{version.replace('4.0', '4')} 0 8\n$EndMeshFormat\n{NAMES}"
    if version == "2.2":
        nodes = f"4\n{NUMBERED}\n"
        # an element in two groups is written twice
        elements = (
            "4\n7 1 2 3 1 10 30\n8 2 2 4 1 10 30 20\n9 2 2 4 2 10 20 40\n10 2 2 5 2 10 20 40\n"
        )
    elif version == "4.0":
        head += ENTITIES[version]
        nodes = f"1 4\n1 2 0 4\n{NUMBERED}\n"
        elements = "3 3\n1 1 1 1\n7 10 30\n1 2 2 1\n8 10 30 20\n2 2 2 1\n9 10 20 40\n"
    else:
        head += ENTITIES[version]
        nodes = "1 4 10 40\n2 1 0 4\n10\n30\n20\n40\n" + "\n".join(CORNERS) + "\n"
        elements = "3 3 7 9\n1 1 1 1\n7 10 30\n2 1 2 1\n8 10 30 20\n2 2 2 1\n9 10 20 40\n"
    return f"{head}$Nodes\n{nodes}$EndNodes\n$Elements\n{elements}$EndElements\n{DATA}"


def write(path: Path, content: str) -> Path:
    path.write_text(content)
    return path


@pytest.mark.parametrize("version", ["2.2", "4.0", "4.1"])
def test_groups_have_names_and_data_go_by_number(version, tmp_path):
    mesh = read_mesh(write(tmp_path / "a.msh", text(version)))
    np.testing.assert_array_equal(mesh.points, [[0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0]])
    assert [(block.type, block.data.tolist()) for block in mesh.cells] == [
        ("line", [[0, 1]]),
        ("triangle", [[0, 1, 2], [0, 2, 3]]),
    ]
    assert measure(mesh) == pytest.approx(1)
    cells = {name: [part.tolist() for part in parts] for name, parts in mesh.cell_data.items()}
    assert cells["inlet side"] == [[1], [0, 0]]
    assert cells["plate"] == [[0], [1, 1]]
    assert cells["gmsh:physical"] == [[3], [4, 4]]
    assert cells["gmsh:geometrical"] == [[1], [1, 2]]
    np.testing.assert_array_equal(mesh.point_data["temp"], [1, 3, 2, np.nan])
    np.testing.assert_array_equal(mesh.cell_data["flux"][1], [[1, 2, 3], [4, 5, 6]])
    assert np.isnan(mesh.cell_data["flux"][0]).all()
    assert mesh.field_data["time"].tolist() == [0.5]


def test_the_number_4_is_version_40_or_41_as_its_nodes_say(tmp_path):
    path = write(tmp_path / "a.msh", text("4.1").replace("\n4.1 0 8", "\n4 0 8"))
    assert measure(read_mesh(path)) == pytest.approx(1)


def binary_41(order: str) -> bytes:
    """Two triangles in each byte order; sizes of 8 bytes."""

    def pack(kind: str, *values: float) -> bytes:
        return np.array(values, f"{order}{kind}").tobytes()

    nodes = pack("u8", 1, 4, 1, 4) + pack("i4", 2, 1, 0) + pack("u8", 4, 1, 2, 3, 4)
    nodes += pack("f8", 0, 0, 0, 1, 0, 0, 1, 1, 0, 0, 1, 0)
    elements = pack("u8", 1, 2, 1, 2) + pack("i4", 2, 1, 2) + pack("u8", 2)
    elements += pack("u8", 1, 1, 2, 3, 2, 1, 3, 4)
    values = b"".join(pack("i4", n) + pack("f8", n / 3) for n in (4, 3, 2, 1))
    return (
        b"$MeshFormat\n4.1 1 8\n" + pack("i4", 1) + b"\n$EndMeshFormat\n"
        b"$Nodes\n" + nodes + b"\n$EndNodes\n$Elements\n" + elements + b"\n$EndElements\n"
        b'$NodeData\n1\n"p"\n1\n0\n3\n0\n1\n4\n' + values + b"\n$EndNodeData\n"
    )


@pytest.mark.parametrize("order", ["<", ">"])
def test_binary_files_of_either_byte_order(order, tmp_path):
    path = tmp_path / "a.msh"
    path.write_bytes(binary_41(order))
    mesh = read_mesh(path)
    assert measure(mesh) == pytest.approx(1)
    np.testing.assert_array_equal(mesh.point_data["p"], np.arange(1, 5) / 3)


def test_a_huge_count_is_refused_at_once(tmp_path):
    path = tmp_path / "a.msh"
    small, large = (np.array([1, n, 1, n], "<u8").tobytes() for n in (4, 2**40))
    path.write_bytes(binary_41("<").replace(small, large))
    assert "1099511627776 nodes announced, 4 found" in refusal(path)


# Where Gmsh has the middles of edges and faces: each by the corners around it (Gmsh's manual,
# "Node ordering").
EDGES = {
    "line3": "01",
    "triangle6": "01 12 20",
    "quad8": "01 12 23 30",
    "quad9": "01 12 23 30 0123",
    "tetra10": "01 12 20 03 23 13",
    "wedge15": "01 02 03 12 14 25 34 35 45",
    "wedge18": "01 02 03 12 14 25 34 35 45 0143 0352 1254",
    "pyramid13": "01 03 04 12 14 23 24 34",
    "pyramid14": "01 03 04 12 14 23 24 34 0123",
    "hexahedron20": "01 03 04 12 15 23 26 37 45 47 56 67",
    "hexahedron27": "01 03 04 12 15 23 26 37 45 47 56 67 0321 0154 0473 1265 2376 4567 01234567",
}
CODES = {
    **{"line3": 8, "triangle6": 9, "quad9": 10, "tetra10": 11, "hexahedron27": 12, "wedge18": 13},
    **{"pyramid14": 14, "quad8": 16, "hexahedron20": 17, "wedge15": 18, "pyramid13": 19},
}


@pytest.mark.parametrize("kind", EDGES)
def test_nodes_of_quadratic_cells_come_in_the_order_of_the_reference_cell(kind, tmp_path):
    nodes = reference_cell(kind).nodes
    n_corners = len(nodes) - len(EDGES[kind].split())
    corners = np.pad(nodes, ((0, 0), (0, 3 - nodes.shape[1])))[:n_corners]
    middles = [corners[[int(c) for c in around]].mean(axis=0) for around in EDGES[kind].split()]
    points = np.vstack([corners, *middles])
    rows = "\n".join(f"{k} {x} {y} {z}" for k, (x, y, z) in enumerate(points, 1))
    numbers = " ".join(map(str, range(1, len(points) + 1)))
    path = write(
        tmp_path / "a.msh",
        f"$MeshFormat\n2.2 0 8\n$EndMeshFormat\n$Nodes\n{len(points)}\n{rows}\n$EndNodes\n"
        f"$Elements\n1\n1 {CODES[kind]} 2 0 1 {numbers}\n$EndElements\n",
    )
    mesh = read_mesh(path)
    assert mesh.cells[0].type == kind
    np.testing.assert_allclose(mesh.points[mesh.cells[0].data[0], : nodes.shape[1]], nodes)


def test_groups_on_some_entities_only_do_not_matter(tmp_path):
    content = text("4.1").replace("2 0 0 0 1 1 0 2 4 5 0", "2 0 0 0 1 1 0 0 0")
    mesh = read_mesh(write(tmp_path / "a.msh", content))
    assert mesh.cell_data["plate"][1].tolist() == [1, 0]
    assert mesh.cell_data["gmsh:physical"][1].tolist() == [4, 0]


def test_a_partitioned_mesh_keeps_its_groups(tmp_path):
    partitioned = (
        "$PartitionedEntities\n2\n0\n0 0 2 0\n"
        "1 2 1 1 1 0 0 0 1 1 0 1 4 0\n2 2 1 1 2 0 0 0 1 1 0 1 4 0\n$EndPartitionedEntities\n"
    )
    content = text("4.1").replace(ENTITIES["4.1"], partitioned)
    mesh = read_mesh(write(tmp_path / "a.msh", content))
    assert mesh.cell_data["plate"][1].tolist() == [1, 1]


def test_a_view_that_is_appended_with_its_mesh_is_a_field(tmp_path):
    whole = text("4.1")
    mesh, data = whole.removesuffix(DATA), DATA
    path = write(tmp_path / "a.msh", mesh + mesh + data)
    assert measure(read_mesh(path)) == pytest.approx(1)
    other = mesh.replace("1 1 0\n0 1 0", "1 1 0\n0 2 0")
    assert "a second $Nodes" in refusal(write(path, mesh + other))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("9 10 20 40", "9 10 20 44", "refers to node 44"),
        ("30 3\n$EndNodeData", "31 3\n$EndNodeData", "refers to node 31"),
        ("10\n30\n20\n40", "10\n30\n20\n20", "more than one node 20"),
        ("1 4 10 40", "1 5 10 40", "5 nodes announced, 4 found"),
        ("3 3 7 9", "3 4 7 9", "lacks 1 of its elements"),
        ("3 3 7 9", "2 2 7 9", "more numbers than announced"),
        ("3 3 7 9", "4 4 7 9", "ends early"),
        ("8 10 30 20", "8 10 30 2.5", "no whole number"),
        ("2 1 2 1\n8", "2 1 77 1\n8", "type 77 are not supported"),
        ("$EndElements", "", "$Elements is not closed"),
        ("$NodeData", "$ElementNodeData\n$EndElementNodeData\n$NodeData", "corners of elements"),
        ("4.1 0 8", "1 0 8", "version 1.0 is not supported"),
        ("$Elements", "$Comments", "$Comments is not closed"),
        ('2 4 "plate"\n', "", "2 physical groups announced, 1 found"),
        ("\n3\n0\n1\n3\n20 2", "\n3\n0\n1\n4\n20 2", "ends early"),
    ],
)
def test_what_is_wrong_is_said(old, new, words, tmp_path):
    assert old in text("4.1")
    message = refusal(write(tmp_path / "a.msh", text("4.1").replace(old, new, 1)))
    assert message.startswith(f"{tmp_path / 'a.msh'}: cannot be read as gmsh: ")
    assert words in message


def test_steps_of_a_field_are_refused(tmp_path):
    assert "'temp' comes more than once" in refusal(write(tmp_path / "a.msh", text("4.1") + DATA))
