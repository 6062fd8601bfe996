"""The command ``opformer``: inspect, fit, evaluate, predict.

What goes wrong on the user's side ends with status 2 and one line.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import torch

from opformer import plotting
from opformer._options import assignment, device, positive
from opformer.checkpoint import load_checkpoint
from opformer.data import MeshDataset
from opformer.evaluation import evaluate
from opformer.mesh import check_writable, field_names, inspect_path, write_mesh
from opformer.model import OperatorTransformer
from opformer.surrogate import load
from opformer.training import fit

__all__ = ["build_parser", "main"]

Action: TypeAlias = Callable[[argparse.Namespace], None]
Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    options = build_parser().parse_args(arguments)
    try:
        options.action(options)
    except (ValueError, ImportError, OSError, FloatingPointError) as error:
        print(f"opformer {options.command}: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"opformer {options.command}: interrupted", file=sys.stderr)
        return 130
    return 0


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="opformer",
        description="Fit surrogates on mesh files, evaluate them on finer ones, write predictions.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for add in (_add_inspect, _add_fit, _add_evaluate, _add_predict):
        add(commands)
    return parser


def _command(
    commands: Commands, name: str, action: Action, text: str, example: str
) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        name,
        help=text,
        description=text,
        epilog=f"example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(action=action)
    return parser


def _add_inspect(commands: Commands) -> None:
    parser = _command(
        commands,
        "inspect",
        _inspect,
        "Say what a mesh file, or a folder of them, holds.",
        "opformer inspect plate.vtu",
    )
    parser.add_argument("mesh", nargs="+", type=Path, help="mesh files, or folders of them")


def _add_fit(commands: Commands) -> None:
    parser = _command(
        commands,
        "fit",
        _fit,
        "Fit a surrogate on a folder of mesh files, one file a case.",
        "opformer fit DATA --inputs conductivity --outputs temperature --out RUN",
    )
    parser.add_argument("data", nargs="+", type=Path, help="folders of mesh files, or files")
    parser.add_argument(
        "--inputs", nargs="+", default=[], metavar="FIELD", help="none: the geometry is the input"
    )
    parser.add_argument("--outputs", nargs="+", required=True, metavar="FIELD")
    parser.add_argument(
        "--parameters",
        nargs="+",
        default=[],
        metavar="FIELD",
        help="fields that are constant over each file, data of it, or columns of a table",
    )
    parser.add_argument(
        "--parameters-file",
        type=Path,
        metavar="TABLE",
        help=".csv or .json with the parameters of each file [cases.csv or .json in its folder]",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="RUN", help="folder of the run")
    parser.add_argument(
        "--at", choices=["points", "cells"], help="default: where the first output lives"
    )
    parser.add_argument(
        "--no-boundary",
        action="store_true",
        help="leave the boundary and its measure out of the source",
    )
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
    parser.add_argument("--seed", type=int, default=0, help="[0]")
    again = parser.add_mutually_exclusive_group()
    again.add_argument("--overwrite", action="store_true", help="replace the run that is in RUN")
    again.add_argument(
        "--resume", action="store_true", help="go on with the run in RUN, under the same options"
    )
    _add_device(parser)


def _add_evaluate(commands: Commands) -> None:
    parser = _command(
        commands,
        "evaluate",
        _evaluate,
        "Errors on folders of mesh files, the same shapes on finer meshes for instance.",
        "opformer evaluate RUN TEST TEST_FINE",
    )
    parser.add_argument("run", type=Path, metavar="RUN")
    parser.add_argument(
        "data", nargs="+", type=Path, help="folders with the fields of the fit, outputs included"
    )
    parser.add_argument("--out", type=Path, help="folder of evaluation.json, .csv and .png [RUN]")
    parser.add_argument(
        "--no-ablation",
        action="store_true",
        help="leave out the comparison with all weights set equal (half the time)",
    )
    _add_device(parser)


def _add_predict(commands: Commands) -> None:
    parser = _command(
        commands,
        "predict",
        _predict,
        "Write the predicted fields beside those of a mesh file.",
        "opformer predict RUN new.vtu -o prediction.vtu",
    )
    parser.add_argument("run", type=Path, metavar="RUN")
    parser.add_argument("mesh", type=Path, help="a mesh file with the input fields")
    parser.add_argument("-o", "--output", type=Path, required=True, help=".vtu, .vtk or .xdmf")
    parser.add_argument(
        "--parameter",
        nargs="+",
        type=assignment,
        default=[],
        metavar="NAME=VALUE",
        help="values of parameters, needed where the mesh does not hold them",
    )
    parser.add_argument("--chunk", type=positive, help="evaluate that many points at a time")
    _add_device(parser)


def _add_device(parser: argparse.ArgumentParser) -> None:
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", type=device, default=default, help=f"[{default}]")


def _inspect(options: argparse.Namespace) -> None:
    for path in options.mesh:
        print(inspect_path(path, progress=_watched()))


def _fit(options: argparse.Namespace) -> None:
    _check_run(options.out, resume=options.resume, overwrite=options.overwrite)
    data = MeshDataset(
        options.data,
        inputs=options.inputs,
        outputs=options.outputs,
        parameters=options.parameters,
        parameters_file=options.parameters_file,
        at=options.at,
        boundary=not options.no_boundary,
        progress=_watched(),
    )
    size = data[0].size
    print(f"{len(data)} cases, {size} {data.layout.at} in the first, {data.dim} coordinates")
    for note in data.notes:
        print(f"note: {note}")
    torch.manual_seed(options.seed)
    model = OperatorTransformer(
        data.dim,
        data.in_channels,
        data.out_channels,
        parameter_channels=data.parameter_channels,
        channels=options.channels,
        heads=options.heads,
        layers=options.layers,
    )
    fit(
        model,
        data,
        validation=_validation(options.validation, data),
        out=options.out,
        resume=options.resume,
        epochs=options.epochs,
        batch_size=options.batch_size,
        learning_rate=options.learning_rate,
        samples_per_mesh=options.samples_per_mesh,
        seed=options.seed,
        device=options.device,
        progress=_watched(),
        report=None if _watched() else _print_epoch,
    )
    best = load_checkpoint(options.out / "best.pt")
    print(f"best validation error {best['best']:.4f} in epoch {best['epoch']} of {options.epochs}")
    print(f"wrote best.pt, last.pt and history.* to {options.out}")


def _check_run(out: Path, *, resume: bool, overwrite: bool) -> None:
    """Before the data are read: is there a run to resume, or one that must not be lost."""
    if resume:
        load_checkpoint(out / "last.pt")
    elif not overwrite and any((out / name).exists() for name in ("last.pt", "best.pt")):
        raise ValueError(
            f"{out} holds a run already: --resume goes on with it, --overwrite replaces it"
        )


def _validation(text: str, data: MeshDataset) -> float | MeshDataset:
    try:
        return float(text)
    except ValueError:
        return MeshDataset.from_layout(text, data.layout, progress=_watched())


def _evaluate(options: argparse.Namespace) -> None:
    surrogate = load(options.run).to(options.device)
    out = options.out or (options.run if options.run.is_dir() else options.run.parent)
    out.mkdir(parents=True, exist_ok=True)  # now, not after the work
    evaluation = evaluate(
        surrogate, *options.data, uniform=not options.no_ablation, progress=_watched()
    )
    print(evaluation)
    evaluation.write_json(out / "evaluation.json")
    evaluation.write_csv(out / "evaluation.csv")
    if plotting.available():
        plotting.plot_errors(evaluation, out / "evaluation.png")
    else:
        print("no picture: pip install 'opformer[plot]' draws evaluation.png")
    print(f"wrote evaluation.* to {out}")


def _predict(options: argparse.Namespace) -> None:
    if check_writable(options.output).resolve() == options.mesh.resolve():
        raise ValueError(f"{options.output} is the input itself: name another file for the output")
    surrogate = load(options.run).to(options.device)
    mesh = surrogate.predict(options.mesh, parameters=dict(options.parameter), chunk=options.chunk)
    write_mesh(options.output, mesh)
    at_points, at_cells = (", ".join(names) or "none" for names in field_names(mesh))
    print(f"wrote {options.output}: point fields {at_points}; cell fields {at_cells}")


def _watched() -> bool:
    """Bars are for a terminal; a log file gets a line for each epoch."""
    return sys.stderr.isatty()


def _print_epoch(row: Mapping[str, float]) -> None:
    print("  ".join(f"{name} {value:.4g}" for name, value in row.items()), flush=True)
