"""The architecture, held over the syntax tree, so that imports inside functions count too."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "opformer"
FILES = sorted(PACKAGE.rglob("*.py"))

# Bottom to top. A module imports from lower rows, or from its own row if that makes no circle.
# A folder is one module here: what counts for `encodings` counts for `encodings/rotary.py`.
LEVELS = (
    ("errors", "config", "_files", "parameters", "motions"),
    (
        "quadrature",
        "_cells",
        "_facets",
        "_shapes",
        "_lagrange",
        "_polyhedra",
        "_alike",
        "_grouping",
        "_chunks",
        "_bare_points",
        "_voronoi",
    ),
    ("domain", "_describe", "_neighbors"),
    ("mesh", "grids"),
    ("integral", "_fused", "causal", "steps"),
    ("encodings",),
    ("attention",),
    ("transformer", "equivariant"),
    ("field_operator",),
    ("model", "sequence", "autoregressive", "embedding"),
    ("equivariant_model", "frames"),
    ("sample", "measured"),
    ("layout",),
    ("cases", "_findings"),
    ("data", "standardize", "augment"),
    ("checkpoint", "_outputs"),
    ("surrogate",),
    ("evaluation",),
    ("refinement", "plotting"),
    ("training", "_run"),
    ("testing", "_contracts", "_encoding_contracts"),
    ("__init__",),
    ("_options",),
    ("_prediction",),
    ("cli",),
    ("__main__",),
)
LEVEL = {module: level for level, modules in enumerate(LEVELS) for module in modules}

# What only one module knows.
OWNERS = {
    "meshio": "mesh",
    "pyvista": "mesh",
    "vtkmodules": "mesh",
    "matplotlib": "plotting",
    "torch.distributed": "distributed",
}
# What names no concrete model.
MODEL_FREE = ("sample", "layout", "cases", "data", "surrogate", "evaluation", "training", "_run")

MAX_MODULE_LINES = 300
MAX_FUNCTION_LINES = 60  # without the docstring


@cache
def tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"), str(file))


def dotted(file: Path) -> str:
    """`opformer.encodings.rotary`, and `opformer.encodings` for its `__init__.py`."""
    parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def module_of(name: str) -> str:
    """The entry of the table for a dotted name in opformer; the bare package is `__init__`."""
    return [*name.split("."), "__init__"][1]


def is_module(name: str) -> bool:
    path = PACKAGE.parent.joinpath(*name.split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def imports(file: Path) -> Iterator[tuple[int, str]]:
    """Line and dotted name of all that a file imports, wherever it stands and however spelled."""
    package = dotted(file) if file.name == "__init__.py" else dotted(file).rpartition(".")[0]
    for node in ast.walk(tree(file)):
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, alias.name) for alias in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                above = package.split(".")[: len(package.split(".")) - level + 1] if level else []
                base = ".".join([*above, *([module] if module else [])])
                for full in (f"{base}.{alias.name}" for alias in names):
                    inner = base.split(".")[0] == "opformer"  # else a name may well be a module
                    yield node.lineno, base if inner and not is_module(full) else full
            case ast.Call(
                func=ast.Name(id=called) | ast.Attribute(attr=called),
                args=[ast.Constant(value=str(name)), *_],
            ) if called in ("import_module", "__import__", "require"):
                yield node.lineno, name
            case ast.Attribute(value=ast.Name(id="torch"), attr="distributed"):
                yield node.lineno, "torch.distributed"


def inner_imports(file: Path) -> Iterator[tuple[int, str]]:
    yield from ((line, name) for line, name in imports(file) if name.split(".")[0] == "opformer")


def functions(file: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    yield from (node for node in ast.walk(tree(file)) if isinstance(node, kinds))


def length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    lines = function.end_lineno - function.lineno + 1
    match function.body[0]:
        case ast.Expr(value=ast.Constant(value=str())) as doc:
            lines -= doc.end_lineno - doc.lineno + 1
    return lines


every_file = pytest.mark.parametrize("file", FILES, ids=dotted)


def test_the_package_is_found():
    assert {"opformer", "opformer.errors"} <= {dotted(file) for file in FILES}


@every_file
def test_a_module_has_its_place(file):
    assert module_of(dotted(file)) in LEVEL, f"give {file.name} its row in LEVELS"


def test_no_row_is_left_behind():
    on_disk = {module_of(dotted(file)) for file in FILES} | {"__main__"}
    assert set(LEVEL) <= on_disk, f"rows without a module: {set(LEVEL) - on_disk}"


@every_file
def test_imports_go_one_way(file):
    own = LEVEL[module_of(dotted(file))]
    upward = [
        f"{file.name}:{line} imports {name}"
        for line, name in inner_imports(file)
        if LEVEL[module_of(name)] > own
    ]
    assert not upward


def test_no_circles():
    graph = {dotted(file): {name for _, name in inner_imports(file)} for file in FILES}
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


@every_file
@pytest.mark.parametrize(("library", "owner"), OWNERS.items())
def test_only_its_owner_imports(file, library, owner):
    found = [
        f"{file.name}:{line} imports {name}"
        for line, name in imports(file)
        if f"{name}.".startswith(f"{library}.") and module_of(dotted(file)) != owner
    ]
    assert not found, f"only {owner} may know {library}"


@pytest.mark.parametrize("module", MODEL_FREE)
def test_names_no_model(module):
    files = [file for file in FILES if module_of(dotted(file)) == module]
    assert files
    for file in files:
        found = [line for line, name in inner_imports(file) if module_of(name) == "model"]
        assert not found, f"{file.name} names a concrete model in lines {found}"


@every_file
def test_nothing_forbidden(file):
    """`assert` vanishes under -O, and a bare `except:` swallows KeyboardInterrupt."""
    found = [
        f"{file.name}:{node.lineno} {type(node).__name__}"
        for node in ast.walk(tree(file))
        if isinstance(node, ast.Assert) or (isinstance(node, ast.ExceptHandler) and not node.type)
    ]
    assert not found


@every_file
def test_size(file):
    assert len(file.read_text(encoding="utf-8").splitlines()) <= MAX_MODULE_LINES
    long = {f.name: length(f) for f in functions(file) if length(f) > MAX_FUNCTION_LINES}
    assert not long, f"over {MAX_FUNCTION_LINES} lines in {file.name}: {long}"


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("import meshio", "meshio"),
        ("def f():\n    from matplotlib import pyplot", "matplotlib.pyplot"),
        ("if TYPE_CHECKING:\n    import meshio as m", "meshio"),
        ("from . import errors", "opformer.errors"),
        ("from .errors import MeshError", "opformer.errors"),
        ("from opformer import errors", "opformer.errors"),
        ("from opformer import Domain", "opformer"),
        ("from opformer.errors import MeshError", "opformer.errors"),
        ("importlib.import_module('meshio')", "meshio"),
        ("require('matplotlib.pyplot', 'plot')", "matplotlib.pyplot"),
        ("torch.distributed.barrier()", "torch.distributed"),
        ("from torch import distributed", "torch.distributed"),
    ],
)
def test_the_scan_sees(source, name, monkeypatch):
    """Each spelling of an import is found, so the tests above can fail."""
    monkeypatch.setitem(globals(), "tree", lambda _: ast.parse(source))
    assert name in [found for _, found in imports(PACKAGE / "probe.py")]
