"""Parameters from a table: numbers of whole cases that the mesh files do not hold.

As CSV a header, ``file`` or ``case`` first, then a row for each file with its name first; as JSON
``{file: {name: number}}``. A file is found by its name or by that without the extension.
"""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from math import isfinite
from pathlib import Path
from typing import Any

from opformer.errors import MeshError

__all__ = ["ParameterTable", "common_columns", "tables_of"]


@dataclass(frozen=True)
class ParameterTable:
    """A ``.csv`` or ``.json`` file that is read, and an entry checked, when it is first needed."""

    path: Path

    @cached_property
    def rows(self) -> dict[str, dict[str, Any]]:
        """The entries by file and name, as they are written; a MeshError if it is no such table."""
        read = _read_json if self.path.suffix.lower() == ".json" else _read_csv
        try:
            return read(self.path)
        except (OSError, ValueError, csv.Error) as error:
            raise MeshError(f"{self.path}: not a table of parameters ({error})") from error

    def numbers(self, file: Path, names: Iterable[str]) -> dict[str, float]:
        """The entries of a file's row; a MeshError names what is missing or no finite number."""
        return {name: self._number(file, name) for name in names}

    def row(self, file: Path) -> dict[str, Any]:
        """The entries of a file by name; none if it has no row."""
        return next((self.rows[key] for key in (file.name, file.stem) if key in self.rows), {})

    def _number(self, file: Path, name: str) -> float:
        row = self.row(file)
        if not row:
            raise MeshError(f"{self.path}: there is no row {file.name!r}, for parameter {name!r}")
        where = f"{self.path}: row {file.name!r}"
        if name not in row:
            raise MeshError(f"{where} has no column {name!r}; it has {', '.join(row) or 'none'}")
        if not _is_number(row[name]):
            raise MeshError(f"{where}, column {name!r}: expected a number, got {row[name]!r}")
        return float(row[name])


def tables_of(
    files: Sequence[Path], given: str | Path | None = None
) -> dict[Path, ParameterTable | None]:
    """The table of each file: the given one, or ``cases.csv`` or ``cases.json`` in its folder.

    Raises
    ------
    MeshError
        If the given one cannot be read, or is for two files of the same name.
    """
    if given is None:
        table_in = cache(_table_in)
        return {file: table_in(file.parent) for file in files}
    name, count = Counter(file.name for file in set(files)).most_common(1)[0]
    if count > 1:
        raise MeshError(f"{given}: {count} files are called {name}; put a cases.csv beside each")
    table = ParameterTable(Path(given))
    if not table.rows:
        raise MeshError(f"{given}: the table has no rows")
    return dict.fromkeys(files, table)


def common_columns(files: Sequence[Path]) -> list[str]:
    """The columns that have a number for each of the files, in the tables beside them.

    Raises
    ------
    MeshError
        If there is a table that cannot be read.
    """
    tables = tables_of(files)
    if not tables or None in tables.values():
        return []
    rows = [table.row(file) for file, table in tables.items() if table is not None]
    return [name for name in rows[0] if all(_is_number(row.get(name)) for row in rows)]


def _is_number(entry: Any) -> bool:
    try:
        return isfinite(float(entry))
    except (TypeError, ValueError):
        return False


def _table_in(folder: Path) -> ParameterTable | None:
    paths = (folder / name for name in ("cases.csv", "cases.json"))
    return next((ParameterTable(path) for path in paths if path.is_file()), None)


def _read_csv(path: Path) -> dict[str, dict[str, Any]]:
    with open(path, newline="", encoding="utf-8-sig") as file:
        lines = [[entry.strip() for entry in line] for line in csv.reader(file) if line]
    header = lines[0] if lines else []
    if not header or header[0] not in ("file", "case"):
        raise ValueError(
            f"the first column must be called 'file' or 'case', the header is {header}"
        )
    if len(set(header)) < len(header):
        raise ValueError(f"a column is there twice, the header is {header}")
    rows: dict[str, dict[str, Any]] = {}
    for name, *entries in lines[1:]:
        if name in rows:
            raise ValueError(f"row {name!r} is there twice")
        if len(entries) != len(header) - 1:
            raise ValueError(f"row {name!r} has {len(entries) + 1} of {len(header)} columns")
        rows[name] = dict(zip(header[1:], entries, strict=True))
    return rows


def _read_json(path: Path) -> dict[str, dict[str, Any]]:
    rows = json.loads(path.read_text(encoding="utf-8-sig"))
    if not isinstance(rows, dict) or not all(isinstance(row, dict) for row in rows.values()):
        raise ValueError("expected {file: {name: number}}")
    return rows
