"""Every code block of the README and the manual runs; every `opformer` command in them parses.

On the pages in RUN the `console` blocks run too, between the code blocks, in the same folder.
"""

from __future__ import annotations

import importlib
import re
import shlex
import shutil
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

from opformer.cli import main as opformer

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
RUN = {"data.md"}
SHELLS = ("console", "bash", "sh", "shell")
OPERATORS = tuple("|&;<>")  # what ends a command

# An optional `<!-- no-run: reason -->` line, the fence, its language, the code, the same fence.
BLOCK = re.compile(
    r"(?P<skip>^[ ]*<!-- no-run: \S.*-->\n)?"
    r"^(?P<fence>[ ]*`{3,})(?P<language>\w+)[^\n]*\n(?P<code>.*?)^(?P=fence)[ ]*$",
    re.MULTILINE | re.DOTALL,
)


class Block(NamedTuple):
    """A fenced block of a page."""

    language: str
    code: str
    line: int  # of its first line of code in the page
    skip: bool


def blocks(text: str) -> list[Block]:
    return [
        Block(
            match["language"],
            textwrap.dedent(match["code"]),
            text.count("\n", 0, match.start("code")) + 1,
            bool(match["skip"]),
        )
        for match in BLOCK.finditer(text)
    ]


def read(page: Path) -> list[Block]:
    return blocks(page.read_text(encoding="utf-8"))


def commands(block: Block) -> Iterator[list[str]]:
    """The arguments of each `opformer` command of a shell block."""
    lines = block.code.replace("\\\n", " ").splitlines()
    if any(line.startswith("$ ") for line in lines):  # then the other lines are output
        lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    for line in lines:
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words: list[str] = []
        for word in [*lexer, ";"]:
            if word[:1] not in OPERATORS:
                words.append(word)
                continue
            if words and Path(words[0]).name == "opformer":
                yield words[1:]
            words = []


def parses(arguments: list[str]) -> bool:
    from opformer.cli import build_parser

    try:
        build_parser().parse_args(arguments)
    except SystemExit as leave:
        return not leave.code  # --help and --version leave with 0
    return True


page_by_name = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


@page_by_name
def test_blocks_run(page, tmp_path, monkeypatch):
    """In order, in one namespace, in an empty folder with the repository's meshes/ in it."""
    if (ROOT / "meshes").is_dir():
        shutil.copytree(ROOT / "meshes", tmp_path / "meshes")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    # A real module, so that a class of a block is found again under its module's name.
    main = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    for block in read(page):
        if block.language == "python" and not block.skip:
            source = "\n" * (block.line - 1) + block.code  # a traceback shows the line of the page
            exec(compile(source, str(page), "exec"), main.__dict__)
        if block.language == "console" and page.name in RUN:
            for arguments in commands(block):
                assert opformer(arguments) == 0, f"line {block.line}: {shlex.join(arguments)}"


@page_by_name
def test_commands_parse(page):
    refused = [
        f"{page.name}:{block.line}: opformer {shlex.join(arguments)}"
        for block in read(page)
        if block.language in SHELLS
        for arguments in commands(block)
        if not parses(arguments)
    ]
    assert not refused


def test_every_page_is_covered():
    built = DOCS / "_build"
    found = {page for page in DOCS.rglob("*.md") if built not in page.parents}
    assert found == set(PAGES[1:])
    assert {"index", "start", "data", "theory", "extending", "api"} <= {page.stem for page in found}


@page_by_name
def test_every_block_is_seen(page):
    """A fence that the expression misses would be code that nothing runs."""
    text = page.read_text(encoding="utf-8")
    fence = r"^\s*(?:`{3,}|~{3,})\s*(?:python|py\b|\{code-block\}\s*python)"
    assert len(re.findall(fence, text, re.MULTILINE)) == sum(
        block.language == "python" for block in blocks(text)
    )


@pytest.mark.parametrize("name", ["README.md", "start.md", "data.md", "extending.md"])
def test_pages_show_code(name):
    (page,) = (page for page in PAGES if page.name == name)
    assert any(block.language == "python" and not block.skip for block in read(page))


@pytest.mark.parametrize("module", ["opformer", "opformer.encodings"])
def test_the_reference_is_complete(module):
    reference = (DOCS / "api.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\.\. auto\w+:: ([\w.]+)$", reference, re.MULTILINE))
    names = vars(importlib.import_module(module))
    public = {name for name in names["__all__"] if not isinstance(names[name], ModuleType)}
    assert {f"{module}.{name}" for name in public} <= listed


def test_blocks():
    plain = "a\n```python\nx = 1\n```\n"
    skipped = "<!-- no-run: a reason -->\n```python title\ny\n```\n"
    indented = "- b\n  ```bash\n  z\n  ```\n"
    assert blocks(plain + skipped + indented) == [
        Block("python", "x = 1\n", 3, False),
        Block("python", "y\n", 7, True),
        Block("bash", "z\n", 11, False),
    ]
    assert not blocks("<!-- no-run: -->\n```python\nx\n```\n")[0].skip, "a skip needs its reason"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("opformer inspect a.vtu  # what is in it\n", [["inspect", "a.vtu"]]),
        ("$ opformer fit a \\\n  --epochs 3\nopformer says\n", [["fit", "a", "--epochs", "3"]]),
        ("cd x && .venv/bin/opformer a | opformer b > c\n", [["a"], ["b"]]),
        ("pip install opformer\n", []),
    ],
)
def test_commands(code, expected):
    assert list(commands(Block("console", code, 1, False))) == expected
