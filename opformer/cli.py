"""The command ``opformer``: inspect, fit, evaluate, predict.

What goes wrong on the user's side ends with status 2 and one line.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import torch
from torch import nn

from opformer import __version__, plotting
from opformer._options import (
    add_data,
    add_device,
    add_evaluation,
    add_prediction,
    add_training,
    watched,
)
from opformer._prediction import predict
from opformer.checkpoint import load_checkpoint
from opformer.data import MeshDataset
from opformer.equivariant_model import EquivariantTransformer
from opformer.evaluation import evaluate
from opformer.mesh import (
    inspect_path,
)
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
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            warnings.showwarning = lambda message, *_: print(f"warning: {message}", file=sys.stderr)
            options.action(options)
    except (ValueError, ImportError, OSError, FloatingPointError) as error:
        print(f"opformer {options.command}: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"opformer {options.command}: interrupted{_remedy(options)}", file=sys.stderr)
        return 130
    return 0


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="opformer",
        description="Fit surrogates on mesh files, evaluate them on finer ones, write predictions.",
    )
    parser.add_argument("--version", action="version", version=f"opformer {__version__}")
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
    add_data(parser)
    add_training(parser)
    add_device(parser)


def _add_evaluate(commands: Commands) -> None:
    parser = _command(
        commands,
        "evaluate",
        _evaluate,
        "Errors on folders of mesh files, the same shapes on finer meshes for instance.",
        "opformer evaluate RUN TEST TEST_FINE",
    )
    add_evaluation(parser)


def _add_predict(commands: Commands) -> None:
    parser = _command(
        commands,
        "predict",
        predict,
        "Write the predicted fields beside those of a mesh file.",
        "opformer predict RUN new.vtu -o prediction.vtu",
    )
    add_prediction(parser)


def _inspect(options: argparse.Namespace) -> None:
    for path in options.mesh:
        print(inspect_path(path, progress=watched()))


def _fit(options: argparse.Namespace) -> None:
    _check_run(options.out, resume=options.resume, overwrite=options.overwrite)
    if options.causal and options.equivariant:
        raise ValueError("--causal is not for --equivariant models: time is no direction of space")
    data = MeshDataset(
        options.data,
        inputs=options.inputs,
        outputs=options.outputs,
        parameters=options.parameters,
        parameters_file=options.parameters_file,
        at=options.at,
        parts=_parts(options),
        weights=options.weights,
        merged=options.merge,
        steps=options.steps,
        numbered=options.numbered,
        trajectory=options.trajectory,
        progress=watched(),
    )
    size = data[0].size
    cases = "1 case" if len(data) == 1 else f"{len(data)} cases"
    print(f"{cases}, {size} {data.layout.at} in the first, {data.dim} coordinates")
    for note in data.notes:
        print(f"note: {note}")
    torch.manual_seed(options.seed)
    model = _model(data, options)
    fit(
        model,
        data,
        validation=_validation(options, data),
        out=options.out,
        resume=options.resume,
        epochs=options.epochs,
        batch_size=options.batch_size,
        learning_rate=options.learning_rate,
        samples_per_mesh=options.samples_per_mesh,
        seed=options.seed,
        device=options.device,
        progress=watched(),
        report=None if watched() else _print_epoch,
    )
    best = load_checkpoint(options.out / "best.pt")
    print(f"best validation error {best['best']:.4f} in epoch {best['epoch']} of {options.epochs}")
    print(f"wrote best.pt, last.pt and history.* to {options.out}")


def _model(data: MeshDataset, options: argparse.Namespace) -> nn.Module:
    sizes = {name: getattr(options, name) for name in ("channels", "heads", "layers")}
    sizes["parameter_channels"] = data.parameter_channels
    if not options.equivariant:
        sizes["causal_axis"] = _causal_axis(data, options.causal)
        return OperatorTransformer(data.dim, data.in_channels, data.out_channels, **sizes)
    inputs, outputs = data.layout.kinds
    vectors = options.heads * max(1, options.channels // (4 * options.heads))
    return EquivariantTransformer(data.dim, inputs, outputs, vectors=vectors, **sizes)


def _parts(options: argparse.Namespace) -> list[str]:
    """The parts of the source; where a coordinate of the meshes is time its ends are none."""
    if options.causal in (None, "t"):
        return ["boundary"] if options.parts is None else list(options.parts)
    if "boundary" in (options.parts or ()):
        raise ValueError(
            f"--causal {options.causal}: the boundary of the meshes holds the end of time, which "
            "is not known before; name parts without it, or none"
        )
    return list(options.parts or [])


def _causal_axis(data: MeshDataset, name: str | None) -> int | None:
    names = ["xyz"[axis] for axis in data.layout.axes] + ["t"] * data.layout.trajectory
    if name is not None and name not in names:
        raise ValueError(
            f"--causal {name}: the coordinates are {', '.join(names)} (t is that of a --trajectory)"
        )
    if name in ("x", "y", "z") and data.layout.at == "cells":
        raise ValueError(f"--causal {name} needs the outputs at the nodes of time, not in cells")
    return None if name is None else names.index(name)


def _check_run(out: Path, *, resume: bool, overwrite: bool) -> None:
    """Before the data are read: is there a run to resume, or one that must not be lost."""
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file: --out is the folder of the run")
    if resume:
        load_checkpoint(out / "last.pt")
    elif not overwrite and any((out / name).exists() for name in ("last.pt", "best.pt")):
        raise ValueError(
            f"{out} holds a run already: --resume goes on with it, --overwrite replaces it"
        )


def _validation(options: argparse.Namespace, data: MeshDataset) -> float | MeshDataset:
    text = options.validation
    try:
        return float(text)
    except ValueError:
        held = MeshDataset.from_layout(
            text, data.layout, parameters_file=options.parameters_file, progress=watched()
        )
    both = {path.resolve() for path in data.files} & {path.resolve() for path in held.files}
    if both:
        print(f"note: {len(both)} file(s) are trained on and validated with")
    return held


def _evaluate(options: argparse.Namespace) -> None:
    surrogate = load(options.run).to(options.device)
    out = options.out or (options.run if options.run.is_dir() else options.run.parent)
    out.mkdir(parents=True, exist_ok=True)  # now, not after the work
    evaluation = evaluate(
        surrogate,
        *options.data,
        parameters_file=options.parameters_file,
        uniform=not options.no_ablation,
        progress=watched(),
    )
    print(evaluation)
    evaluation.write_json(out / "evaluation.json")
    evaluation.write_csv(out / "evaluation.csv")
    if plotting.available():
        plotting.plot_errors(evaluation, out / "evaluation.png")
    else:
        print("no picture: pip install 'opformer[plot]' draws evaluation.png")
    print(f"wrote evaluation.* to {out}")


def _remedy(options: argparse.Namespace) -> str:
    if options.command == "fit" and (options.out / "last.pt").exists():
        return "; the same command with --resume goes on after the last complete epoch"
    return ""


def _print_epoch(row: Mapping[str, float]) -> None:
    print("  ".join(f"{name} {value:.4g}" for name, value in row.items()), flush=True)
