"""The options of the command line, and what they accept."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

__all__ = ["add_data", "add_device", "add_evaluation", "add_prediction", "add_training", "watched"]


def add_data(parser: argparse.ArgumentParser) -> None:
    """What a data set is read from, and how: the arguments of :class:`opformer.MeshDataset`."""
    parser.add_argument("data", nargs="+", type=Path, help="folders of mesh files, or files")
    parser.add_argument(
        "--inputs",
        nargs="+",
        default=[],
        metavar="FIELD",
        help="none: the geometry is the input; also distance:PART, normal:PART, indicator:PART, "
        "heat:K, and of time series first:FIELD, previous:FIELD",
    )
    parser.add_argument("--outputs", nargs="+", required=True, metavar="FIELD")
    parser.add_argument(
        "--parameters",
        nargs="+",
        default=[],
        metavar="FIELD",
        help="fields that are constant over each file, data of it (time), or columns of a table",
    )
    _add_table(parser)
    parser.add_argument(
        "--at", choices=["points", "cells"], help="default: where the first output lives"
    )
    _add_measure(parser)
    _add_series(parser)


def add_training(parser: argparse.ArgumentParser) -> None:
    """The model and how it is fitted."""
    parser.add_argument("--out", type=Path, required=True, metavar="RUN", help="folder of the run")
    parser.add_argument(
        "--validation", default="0.1", metavar="DATA", help="a folder, or a share of the data [0.1]"
    )
    parser.add_argument("--epochs", type=positive, default=100, help="[100]")
    parser.add_argument("--batch-size", type=positive, default=4, help="[4]")
    parser.add_argument("--learning-rate", type=float, default=2e-3, help="the largest [0.002]")
    parser.add_argument(
        "--samples-per-mesh",
        type=positive,
        metavar="N",
        help="train on N random points of each mesh, new every step",
    )
    parser.add_argument("--channels", type=positive, default=64, help="width of the tokens [64]")
    parser.add_argument("--heads", type=positive, default=4, help="kernels of each block [4]")
    parser.add_argument("--layers", type=positive, default=4, help="blocks [4]")
    parser.add_argument(
        "--equivariant",
        action="store_true",
        help="a model whose vectors and tensors turn with the space, exactly",
    )
    parser.add_argument(
        "--causal",
        nargs="?",
        const="t",
        choices=["t", "x", "y", "z"],
        help="nothing at a time depends on inputs at later times; time is t of a --trajectory [t], "
        "or a coordinate of the meshes",
    )
    parser.add_argument("--seed", type=int, default=0, help="[0]")
    again = parser.add_mutually_exclusive_group()
    again.add_argument("--overwrite", action="store_true", help="replace the run that is in RUN")
    again.add_argument(
        "--resume", action="store_true", help="go on with the run in RUN, under the same options"
    )


def add_evaluation(parser: argparse.ArgumentParser) -> None:
    """What is evaluated, and how."""
    parser.add_argument("run", type=Path, metavar="RUN")
    parser.add_argument(
        "data", nargs="+", type=Path, help="folders with the fields of the fit, outputs included"
    )
    _add_table(parser)
    parser.add_argument("--out", type=Path, help="folder of evaluation.json, .csv and .png [RUN]")
    parser.add_argument(
        "--no-ablation",
        action="store_true",
        help="leave out the comparison with all weights set equal (half the time)",
    )
    add_device(parser)


def add_prediction(parser: argparse.ArgumentParser) -> None:
    """What is predicted, and where it goes."""
    parser.add_argument("run", type=Path, metavar="RUN")
    parser.add_argument(
        "mesh",
        nargs="+",
        type=Path,
        help="a mesh file with the input fields, a time series or its numbered files, or a folder",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        required=True,
        help=".vtu, .vtk or .xdmf; .pvd for a time series; a folder for a folder",
    )
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="replace files, and fields of an earlier prediction",
    )
    parser.add_argument(
        "--parameter",
        nargs="+",
        type=assignment,
        default=[],
        metavar="NAME=VALUE",
        help="values of parameters, needed where the mesh does not hold them",
    )
    parser.add_argument("--chunk", type=positive, help="evaluate that many points at a time")
    add_device(parser)


def add_device(parser: argparse.ArgumentParser) -> None:
    """Where to compute."""
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", type=device, default=default, help=f"[{default}]")


def watched() -> bool:
    """Bars are for a terminal; a log file gets a line for each epoch."""
    return sys.stderr.isatty()


def positive(text: str) -> int:
    """A whole number, at least 1."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number, at least 1, got {text}")
    return value


def assignment(text: str) -> tuple[str, list[float]]:
    """``NAME=VALUE``, with commas between the values of a vector."""
    name, _, values = text.partition("=")
    try:
        return name, [float(value) for value in values.split(",")]
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"must be NAME=NUMBER, or NAME=NUMBER,NUMBER for a vector, got {text}"
        ) from error


def device(text: str) -> torch.device:
    """One that can be used here."""
    try:
        return torch.empty(0, device=text).device
    except Exception as error:  # torch raises RuntimeError, AssertionError, NotImplementedError
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise argparse.ArgumentTypeError(f"{text} cannot be used here ({reason})") from error


def _add_table(parser: argparse.ArgumentParser) -> None:
    """Where the numbers are that the files do not hold."""
    parser.add_argument(
        "--parameters-file",
        type=Path,
        metavar="TABLE",
        help=".csv or .json with the parameters of each file [cases.csv or .json in its folder]",
    )


def _add_measure(parser: argparse.ArgumentParser) -> None:
    parts = parser.add_mutually_exclusive_group()
    parts.add_argument(
        "--parts",
        nargs="+",
        metavar="PART",
        help="what has a measure of its own in the source: named sets of the files [boundary]",
    )
    parts.add_argument(
        "--no-boundary",
        dest="parts",
        action="store_const",
        const=[],
        help="leave the boundary and its measure out of the source",
    )
    parser.add_argument(
        "--weights",
        default="",
        metavar="RULE",
        help="of points without cells: voronoi, delaunay, interval, knn:2 for a surface, equal, "
        "or a field that holds them",
    )
    parser.add_argument(
        "--merge", action="store_true", help="points of one place are one: seams are no boundary"
    )


def _add_series(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--steps", default=":", metavar="A:B:C", help="which steps of time series are taken [all]"
    )
    parser.add_argument(
        "--numbered",
        action="store_true",
        help="NAME_001.vtu, NAME_002.vtu, … are the steps of one time series",
    )
    parser.add_argument(
        "--trajectory",
        action="store_true",
        help="a time series is one case in space and time, not a case for each step",
    )
