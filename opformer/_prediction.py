"""The command ``opformer predict``: what is written where, checked before any work."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from opformer._options import watched
from opformer.cases import time_of
from opformer.mesh import (
    check_writable,
    check_writable_series,
    field_names,
    listed_files,
    mesh_files,
    series_files,
    steps_of,
    write_mesh,
    write_series,
)
from opformer.surrogate import Surrogate, load

__all__ = ["predict"]


def predict(options: argparse.Namespace) -> None:
    """Write the predicted fields of a mesh, of a time series, or of each file of a folder."""
    if any(path.is_dir() for path in options.mesh):
        _predict_folder(options)
        return
    output: Path = options.output
    collection = output.suffix.lower() == ".pvd"
    (check_writable_series if collection else check_writable)(output)
    _check_output([output], options)
    surrogate = load(options.run).to(options.device)
    count = len(surrogate.series(options.mesh))
    several = count > 1 or surrogate.layout.trajectory
    if several != collection:
        what = "a time series is written as .pvd" if several else ".pvd is for a time series"
        raise ValueError(f"{output}: {what}, and the input has {count} step(s)")
    _check_output(series_files(output, count) if several else [], options)
    found = _predicted(surrogate, options.mesh, options)
    if isinstance(found, list):
        write_series(output, found, [time_of(mesh) for mesh in found])
    else:
        write_mesh(output, found)
    mesh = found[0] if isinstance(found, list) else found
    at_points, at_cells = (", ".join(names) or "none" for names in field_names(mesh))
    print(f"wrote {output}: point fields {at_points}; cell fields {at_cells}")


def _predict_folder(options: argparse.Namespace) -> None:
    """Each file of a folder by itself, into another folder."""
    if len(options.mesh) > 1 or options.output.suffix or options.output.is_file():
        raise ValueError("to predict a folder give it alone, and a folder for -o")
    files = [file for file in mesh_files(options.mesh[0]) if steps_of(file) == [None]]
    outputs = [options.output / f"{file.stem}.vtu" for file in files]
    _check_output(outputs, argparse.Namespace(**{**vars(options), "mesh": files}))
    surrogate = load(options.run).to(options.device)
    options.output.mkdir(parents=True, exist_ok=True)
    for file, output in zip(
        tqdm(files, desc="predicting", unit="file", disable=not watched(), leave=False),
        outputs,
        strict=True,
    ):
        write_mesh(output, _predicted(surrogate, file, options))
    print(f"wrote {len(files)} file(s) to {options.output}")


def _predicted(surrogate: Surrogate, mesh: Any, options: argparse.Namespace) -> Any:
    return surrogate.predict(
        mesh,
        parameters=dict(options.parameter),
        chunk=options.chunk,
        overwrite=options.overwrite,
        progress=watched(),
    )


def _check_output(files: list[Path], options: argparse.Namespace) -> None:
    """Nothing that is read is written over, and what is there only where that is wanted."""
    read = {path.resolve() for mesh in options.mesh for path in (mesh, *listed_files(mesh))}
    for file in files:
        if file.resolve() in read:
            raise ValueError(f"{file} is the input itself: name another file for the output")
        if file.exists() and not options.overwrite:
            raise ValueError(f"{file} is there already: --overwrite replaces it")
