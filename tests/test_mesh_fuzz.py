"""Random meshes through every format, and damaged files of every format.

A damaged file is read as a mesh with a measure or refused with `MeshError`, in bounded time and
memory and without a word on stdout or stderr. Fields that a file no longer names and, in formats
without counts (see ``UNCOUNTED``), cells that it no longer lists cannot be missed.
"""

from __future__ import annotations

import re
import signal
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import meshio
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from opformer import Domain
from opformer._cells import TOPOLOGICAL_DIMENSION, reference_cell
from opformer._lagrange import LAGRANGE, lagrange_nodes
from opformer.errors import MeshError
from opformer.mesh import blocks, read_mesh, write_mesh
from opformer.mesh.clean import clean
from opformer.mesh.vtk import read_with_vtk
from opformer.quadrature import node_weights

LIMIT = 10.0  # seconds for one small file; VTK may have to start
ROOM = 500_000  # kilobytes of memory more than before


def examples(n: int) -> Any:
    """A run of n examples, always the same ones; the files of an example replace those before."""
    fixtures = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
    return settings(
        max_examples=n,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=fixtures,
    )


# --- random meshes --------------------------------------------------------------------------------

VTK_KINDS = sorted(TOPOLOGICAL_DIMENSION.keys() - {"polygon", "polyhedron", "pyramid14", *LAGRANGE})
FLAT = ["triangle", "quad"]
SOLID = ["tetra", "hexahedron", "wedge", "pyramid"]
LINEAR = FLAT + SOLID
KINDS = {
    ".vtu": [*VTK_KINDS, "polygon", *LAGRANGE],
    ".vtk": [kind for kind in VTK_KINDS if kind != "triangle7"],
    ".xdmf": ["line", *LINEAR],  # of quadratic cells only one kind at a time
}
NAMES = st.sampled_from(
    ["p", "wall shear", 'a<b & "c"', "Größe", "50%20", "∂u/∂x", "速度", "a'b>c"]
)
TEXTS = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=6)
DTYPES = ["f4", "f8", "i4", "i8", "u1", "bool"]
FIELD = st.tuples(st.sampled_from([1, 2, 3, 6, 9]), st.sampled_from(DTYPES))
FIELDS = st.dictionaries(NAMES | TEXTS, FIELD, max_size=3)


@st.composite
def meshes(draw: st.DrawFn, kinds: list[str], dims: tuple[int, ...] = (1, 2, 3)) -> meshio.Mesh:
    """Blocks of slightly bent cells, some twice, with orphans and numbers in no order."""
    dim = draw(st.sampled_from(dims))
    possible = [kind for kind in kinds if TOPOLOGICAL_DIMENSION[kind] <= dim]
    runs = draw(st.lists(st.sampled_from(possible), min_size=1, max_size=4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    points, cells = [np.empty((0, dim))], []
    for kind in runs:
        count, first = rng.integers(1, 4), sum(map(len, points))
        x = [placed(rng, corners(kind, first), dim) for _ in range(count)]
        nodes = first + np.arange(count * len(x[0])).reshape(count, -1)
        cells.append((kind, np.vstack([nodes, nodes[: rng.integers(2)]])))
        points += x
    points.append(rng.normal(size=(draw(st.integers(0, 2)), dim)))
    everything = np.concatenate(points)
    number = rng.permutation(len(everything))
    return meshio.Mesh(
        everything[np.argsort(number)], [(kind, number[nodes]) for kind, nodes in cells]
    )


def corners(kind: str, n: int) -> np.ndarray:
    if kind in LAGRANGE:
        return lagrange_nodes(LAGRANGE[kind], 3 + n % 2)
    if kind != "polygon":
        return reference_cell(kind).nodes
    angles = np.arange(5 + n % 3) * 2 * np.pi / (5 + n % 3)
    return np.column_stack([np.cos(angles), np.sin(angles)])


def placed(rng: np.random.Generator, x: np.ndarray, dim: int) -> np.ndarray:
    axes = np.linalg.qr(rng.normal(size=(dim, dim)))[0][: x.shape[1]]
    return x @ axes + 0.02 * rng.normal(size=(len(x), dim)) + 3 * rng.normal(size=dim)


def field(rng: np.random.Generator, n: int, components: int, dtype: str) -> np.ndarray:
    shape = (n,) if components == 1 else (n, components)
    return (100 * rng.random(shape) * rng.integers(2, size=shape)).astype(dtype)


def rows(mesh: meshio.Mesh) -> list[tuple[str, list[int]]]:
    return [(kind, nodes) for kind, cells in blocks(mesh) for nodes in np.asarray(cells).tolist()]


def kept(data: np.ndarray, suffix: str) -> np.ndarray:
    """What the docstring of `opformer.mesh.write` promises of an original field."""
    if suffix == ".vtk" and data.shape[1:] == (2,):
        data = np.pad(data, ((0, 0), (0, 1)))
    if suffix == ".xdmf" or (suffix == ".vtk" and data.dtype.kind != "f"):
        return data.astype({"b": "u8", "u": "u8", "i": "i8", "f": "f8"}[data.dtype.kind])
    return data.astype("u1") if data.dtype.kind == "b" else data


def assert_same_array(found: np.ndarray, expected: np.ndarray) -> None:
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected, strict=True)


def assert_same_mesh(back: meshio.Mesh, mesh: meshio.Mesh, suffix: str) -> None:
    missing = 3 - mesh.points.shape[1]
    np.testing.assert_array_equal(back.points, np.pad(mesh.points, ((0, 0), (0, missing))))
    assert rows(back) == rows(mesh)
    assert back.point_data.keys() == mesh.point_data.keys()
    assert back.cell_data.keys() == mesh.cell_data.keys()
    for name, values in mesh.point_data.items():
        assert_same_array(back.point_data[name], kept(values, suffix))
    for name, parts in mesh.cell_data.items():
        found = np.concatenate(back.cell_data[name])
        assert_same_array(found, kept(np.concatenate(parts), suffix))
    assert_same_weights(back, mesh)


def draw_written(data: st.DataObject, suffix: str, path: Path) -> meshio.Mesh:
    if suffix == ".xdmf":
        pytest.importorskip("h5py")
    mesh = data.draw(meshes(KINDS[suffix]))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    sizes = [len(block) for block in mesh.cells]
    for name, (components, dtype) in data.draw(FIELDS).items():
        mesh.point_data[name] = field(rng, len(mesh.points), components, dtype)
    for name, (components, dtype) in data.draw(FIELDS).items():
        mesh.cell_data[name] = [field(rng, n, components, dtype) for n in sizes]
    write_mesh(path, mesh)
    return mesh


def assert_same_weights(
    found: meshio.Mesh, expected: meshio.Mesh, tolerance: float = 1e-12
) -> None:
    weights = node_weights(expected.points, blocks(expected))
    assert weights.sum() > 0
    np.testing.assert_allclose(
        node_weights(found.points, blocks(found)), weights, rtol=0, atol=tolerance * weights.sum()
    )


@pytest.mark.parametrize("suffix", KINDS)
@examples(40)
@given(data=st.data())
def test_a_written_mesh_is_read_back_with_everything(suffix, tmp_path, capfd, data):
    path = tmp_path / f"a{suffix}"
    mesh = draw_written(data, suffix, path)
    assert_same_mesh(read_mesh(path), mesh, suffix)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("suffix", [".vtu", ".vtk"])
@examples(20)
@given(data=st.data())
def test_vtk_and_so_paraview_reads_what_is_written(suffix, tmp_path, data):
    pytest.importorskip("pyvista")
    path = tmp_path / f"a{suffix}"
    mesh = draw_written(data, suffix, path)
    assert_same_mesh(clean(read_with_vtk(path)[0]), mesh, suffix)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", KINDS)
@examples(1000)
@given(data=st.data())
def test_many_written_meshes_are_read_back(suffix, tmp_path, data):
    path = tmp_path / f"a{suffix}"
    mesh = draw_written(data, suffix, path)
    assert_same_mesh(read_mesh(path), mesh, suffix)


# --- files by meshio ------------------------------------------------------------------------------


class Format(NamedTuple):
    """How meshio writes a format, and what of a mesh it keeps."""

    extension: str
    kinds: list[str]
    options: Mapping[str, Any] = MappingProxyType({})
    single: bool = False  # one block of cells only
    dims: tuple[int, ...] = (3,)
    tolerance: float = 1e-12
    points: bool = True  # kept with their numbers
    turned: bool = False  # cells may start at another node
    needs: str = "numpy"


BOTH = (2, 3)
FORMATS = {
    "abaqus": Format("inp", [*FLAT, "tetra", "hexahedron", "tetra10"]),
    "ansys": Format("msh", LINEAR, {"file_format": "ansys"}),
    "ansys ascii": Format("msh", LINEAR, {"file_format": "ansys", "binary": False}),
    "avs": Format("avs", LINEAR),
    "dolfin": Format("xml", ["triangle", "tetra"], single=True),
    "flac3d": Format("f3grid", SOLID, turned=True),
    "gmsh 2.2": Format("msh", [*LINEAR, "triangle6", "tetra10"], {"file_format": "gmsh22"}),
    "gmsh 4.1": Format("msh", [*LINEAR, "hexahedron20"], {"file_format": "gmsh"}, single=True),
    "gmsh 4.1 ascii": Format("msh", LINEAR, {"file_format": "gmsh", "binary": False}, single=True),
    "h5m": Format("h5m", ["triangle", "tetra"], single=True, needs="h5py"),
    "med": Format("med", LINEAR, single=True, dims=BOTH, needs="h5py"),
    "medit": Format("mesh", LINEAR, single=True, dims=BOTH),
    "medit binary": Format("meshb", LINEAR, single=True, dims=BOTH),
    # 12 significant digits in the 16 characters of a number
    "nastran": Format("bdf", LINEAR, tolerance=1e-9),
    "netgen": Format("vol", LINEAR),
    "netgen gz": Format("vol.gz", LINEAR),
    "obj": Format("obj", FLAT),
    "off": Format("off", ["triangle"], single=True),
    "permas": Format("post", [*FLAT, "tetra", "hexahedron"]),
    "ply": Format("ply", FLAT),
    "ply ascii": Format("ply", FLAT, {"binary": False}),
    "stl": Format("stl", ["triangle"], {"binary": True}, points=False, tolerance=1e-5),  # float32
    "stl ascii": Format("stl", ["triangle"], {"binary": False}, points=False),
    "su2": Format("su2", FLAT, single=True, dims=(2,)),
    "su2 solid": Format("su2", SOLID, single=True),
    "tecplot": Format("dat", [*FLAT, "tetra", "hexahedron"], single=True),
    "tetgen": Format("ele", ["tetra"], single=True),
    "ugrid": Format("lb8.ugrid", LINEAR, single=True),
    "vtk 4.2": Format("vtk", LINEAR, {"file_format": "vtk42"}),
    "vtk 5.1": Format("vtk", LINEAR, {"file_format": "vtk"}),
    "vtk ascii": Format("vtk", LINEAR, {"binary": False}),
    "vtu": Format("vtu", LINEAR),
    "vtu ascii": Format("vtu", LINEAR, {"binary": False}, tolerance=1e-9),  # 12 digits
    "vtu lzma": Format("vtu", LINEAR, {"compression": "lzma"}),
    "xdmf": Format("xdmf", LINEAR, {"data_format": "XML"}, needs="h5py"),
    "xdmf binary": Format("xdmf", LINEAR, {"data_format": "Binary"}, needs="h5py"),
    "xdmf hdf": Format("xdmf", LINEAR, {"data_format": "HDF"}, needs="h5py"),
}
# No count and no mark of the end; a file cut between two cells is a file.
UNCOUNTED = {"abaqus", "flac3d", "obj"}


def written(mesh: meshio.Mesh, name: str, folder: Path) -> Path:
    """The file of a mesh, and what meshio says about writing it left out."""
    form = FORMATS[name]
    pytest.importorskip(form.needs)
    path = folder / f"a.{form.extension}"
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")
        patch.setattr(meshio._common.Console, "print", lambda *_, **__: None)
        meshio.write(path, mesh, **form.options)
    return path


@pytest.mark.parametrize("name", FORMATS)
@examples(5)
@given(data=st.data())
def test_what_meshio_writes_is_read(name, tmp_path, capfd, data):
    form = FORMATS[name]
    mesh = data.draw(meshes(form.kinds, form.dims))
    if form.single:
        mesh = meshio.Mesh(mesh.points, mesh.cells[:1])
    if name == "nastran":
        mesh.points += 50.0  # meshio has no room for a sign
    back = read_mesh(written(mesh, name, tmp_path))
    if form.points:
        dim = mesh.points.shape[1]
        np.testing.assert_allclose(back.points[:, :dim], mesh.points, rtol=form.tolerance)
        order = sorted if form.turned else list
        found, expected = (sorted((k, order(c)) for k, c in rows(m)) for m in (back, mesh))
        assert found == expected
        assert_same_weights(back, mesh, form.tolerance)
    else:
        found, expected = (Domain.from_mesh(m).total.item() for m in (back, mesh))
        assert found == pytest.approx(expected, rel=form.tolerance)
        assert [kind for kind, _ in rows(back)] == [kind for kind, _ in rows(mesh)]
    assert capfd.readouterr() == ("", "")


# --- damaged files --------------------------------------------------------------------------------

POINTS = np.array([[0.0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0], [0.3, 0.4, 1 / 3], [2, 0, 0.1]])
SMALL = {
    "both": meshio.Mesh(
        POINTS,
        [("triangle", np.array([[0, 1, 2], [0, 2, 3]])), ("quad", np.array([[1, 5, 4, 2]]))],
    ),
    "triangle": meshio.Mesh(POINTS, [("triangle", np.array([[0, 1, 2], [0, 2, 3], [1, 5, 2]]))]),
    "tetra": meshio.Mesh(POINTS, [("tetra", np.array([[0, 1, 2, 4], [0, 2, 3, 4]]))]),
}
FIELDLESS = {"dolfin", "gmsh 4.1 ascii", "h5m"}  # meshio would not read them back
EDIT = st.tuples(
    st.sampled_from(["flip", "insert", "delete"]),
    st.floats(0, 1, exclude_max=True),
    st.binary(min_size=1, max_size=1),
)
CUT = st.floats(0, 1, exclude_max=True)
TOKEN = re.compile(rb"<[^>]*>|[^\s<>=\"',/()]+")
VALUES = "nan -1 0 1e400 1e-400 3.5 x inf 2000000000 4000000000 99999999999 18446744073709551615"
REPLACEMENT = st.tuples(CUT, st.sampled_from([b"", *VALUES.encode().split()]))


class TooLongError(BaseException):
    """Nobody catches it as an exception."""


@contextmanager
def time_limit() -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise TooLongError(f"over {LIMIT} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, LIMIT)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def edited(content: bytes, edits: list[tuple[str, float, bytes]]) -> bytes:
    for kind, where, byte in edits:
        at = int(where * len(content))
        rest = content[at if kind == "insert" else at + 1 :]
        content = content[:at] + (b"" if kind == "delete" else byte) + rest
    return content


@contextmanager
def memory_limit() -> Iterator[None]:
    resource = pytest.importorskip("resource")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < ROOM


def outcome(path: Path) -> meshio.Mesh | None:
    """The mesh, with its measure looked at, or None if it is refused."""
    with time_limit(), memory_limit(), warnings.catch_warnings():
        # What the library says about a file is in order; what others say is not.
        warnings.filterwarnings("ignore", re.escape(str(path)), UserWarning)
        try:
            mesh = read_mesh(path)
            Domain.from_mesh(mesh)
        except MeshError:
            return None
    return mesh


def small(name: str, folder: Path) -> tuple[Path, meshio.Mesh]:
    """A file of a few cells with a field at the points, and what it holds."""
    form = FORMATS[name]
    several = {"triangle", "quad"} < {*form.kinds, "mixed"} and not form.single
    kind = "both" if several else "triangle" if "triangle" in form.kinds else "tetra"
    mesh = SMALL[kind].copy()
    if name == "su2":
        mesh.points = mesh.points[:, :2]
    if name not in FIELDLESS:
        mesh.point_data = {"p": np.arange(6.0) / 3}
    path = written(mesh, name, folder)
    return path, read_mesh(path)


def damage(name: str, folder: Path, edits: list[tuple[str, float, bytes]]) -> None:
    path, _ = small(name, folder)
    path.write_bytes(edited(path.read_bytes(), edits))
    outcome(path)


def replaced(content: bytes, where: float, value: bytes) -> bytes:
    """One word, number or tag is another one."""
    tokens = list(TOKEN.finditer(content))
    token = tokens[int(where * len(tokens))]
    return content[: token.start()] + value + content[token.end() :]


def misprint(name: str, folder: Path, where: float, value: bytes) -> None:
    path, _ = small(name, folder)
    path.write_bytes(replaced(path.read_bytes(), where, value))
    outcome(path)


def cut(name: str, folder: Path, where: float) -> None:
    path, whole = small(name, folder)
    content = path.read_bytes()
    path.write_bytes(content[: int(where * len(content))])
    mesh = outcome(path)
    if mesh is not None and name not in UNCOUNTED:
        assert len(mesh.points) == len(whole.points)
        assert rows(mesh) == rows(whole)


needs_alarm = pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="no SIGALRM here")


@needs_alarm
@pytest.mark.parametrize("name", FORMATS)
@examples(12)
@given(edits=st.lists(EDIT, min_size=1, max_size=3))
def test_a_file_with_other_bytes_is_read_or_refused(name, tmp_path, capfd, edits):
    damage(name, tmp_path, edits)
    assert capfd.readouterr() == ("", "")


@needs_alarm
@pytest.mark.parametrize("name", FORMATS)
@examples(15)
@given(change=REPLACEMENT)
def test_a_file_with_another_word_or_number_is_read_or_refused(name, tmp_path, capfd, change):
    misprint(name, tmp_path, *change)
    assert capfd.readouterr() == ("", "")


@needs_alarm
@pytest.mark.parametrize("name", FORMATS)
@examples(12)
@given(where=CUT)
@example(where=0.999)
@example(where=0.9)
def test_a_truncated_file_is_refused_or_has_all_its_cells(name, tmp_path, capfd, where):
    cut(name, tmp_path, where)
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
@needs_alarm
@pytest.mark.parametrize("name", FORMATS)
@examples(200)
@given(edits=st.lists(EDIT, min_size=1, max_size=3))
def test_many_files_with_other_bytes(name, tmp_path, capfd, edits):
    damage(name, tmp_path, edits)
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
@needs_alarm
@pytest.mark.parametrize("name", FORMATS)
@examples(300)
@given(change=REPLACEMENT)
def test_many_files_with_another_word_or_number(name, tmp_path, capfd, change):
    misprint(name, tmp_path, *change)
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
@needs_alarm
@pytest.mark.parametrize("name", FORMATS)
@examples(100)
@given(where=CUT)
def test_many_truncated_files(name, tmp_path, capfd, where):
    cut(name, tmp_path, where)
    assert capfd.readouterr() == ("", "")
