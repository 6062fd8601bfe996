"""Fitting: one loop, from samples to a surrogate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import index
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset, Subset

from opformer import plotting
from opformer._run import Plan, Run, loss
from opformer.checkpoint import load_checkpoint
from opformer.config import describe
from opformer.layout import Layout
from opformer.sample import Sample
from opformer.standardize import Standardizer
from opformer.surrogate import Surrogate

__all__ = ["fit", "loss"]


def fit(
    model: nn.Module,
    train: Sequence[Sample] | Dataset[Sample],
    *,
    validation: Sequence[Sample] | Dataset[Sample] | float = 0.1,
    out: str | Path | None = None,
    resume: bool = False,
    epochs: int = 100,
    batch_size: int = 4,
    learning_rate: float = 2e-3,
    weight_decay: float = 1e-4,
    clip: float = 1.0,
    samples_per_mesh: int | None = None,
    layout: Layout | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
    progress: bool = True,
    report: Callable[[dict[str, float]], None] | None = None,
) -> Surrogate:
    """Fit a model to a data set by its relative L²(μ) error in physical units.

    AdamW, one cycle of the learning rate, clipped gradients. After each epoch the model is
    validated; the best one is returned.

    Parameters
    ----------
    model : nn.Module
        :class:`opformer.OperatorTransformer`, or anything that is called like it and describes
        itself.
    train : MeshDataset, or a sequence of samples
    validation : data, or a share of ``train`` to hold out
        Chosen by ``seed``; a time series as a whole, so that no step is judged by its neighbours.
    out : path, optional
        Folder for ``best.pt``, ``last.pt`` (with the state of the optimiser), ``history.csv``, all
        written after each epoch, and, with the extra ``plot``, ``history.png``.
    resume : bool
        Go on from the ``last.pt`` in ``out``, with the same data and arguments: the result is that
        of a fit that was never interrupted, on the CPU bit for bit. One that is complete already is
        returned as it is.
    epochs, batch_size : int
    learning_rate, weight_decay : float
        The largest rate of the cycle; decay of AdamW.
    clip : float
        Largest norm of the gradient.
    samples_per_mesh : int, optional
        Train on that many random points of each mesh, new ones at every step, with re-lumped
        weights.
    layout : Layout, optional
        Names of the fields; that of ``train`` by default.
    seed : int
        Same seed, same result, on one machine. The global random state is left as it was.
    device : str or torch.device
    progress : bool
        Show a bar.
    report : function of a dict, optional
        Called after each epoch with its row of the history.

    Returns
    -------
    Surrogate
        In evaluation mode, on the CPU.

    Raises
    ------
    ValueError
        If there are not enough cases, they have no outputs, the data sets have other layouts than
        the fit, or there is nothing to resume, or it was made with other arguments.
    TypeError
        If the model cannot be described, and is to be written (see :mod:`opformer.config`).
    FloatingPointError
        If the loss stops being finite.
    """
    if epochs < 1:
        raise ValueError(f"epochs must be at least 1, got {epochs}")
    _prepare(out, model, resume)
    layout = layout or _layout(train)
    _check_layout("train", train, layout)
    _check_layout("validation", validation, layout)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(index(seed))
        train, validation = _hold_out(train, validation)
        plan = Plan(  # of plain numbers, for a checkpoint: a sweep may well give those of numpy
            cases=len(train),  # type: ignore[arg-type]
            validation_cases=len(validation),  # type: ignore[arg-type]
            epochs=index(epochs),
            batch_size=index(batch_size),
            learning_rate=float(learning_rate),
            weight_decay=float(weight_decay),
            clip=float(clip),
            samples_per_mesh=None if samples_per_mesh is None else index(samples_per_mesh),
            seed=index(seed),
        )
        inputs, outputs = getattr(model, "kinds", (None, None))
        scale = Standardizer.fit(
            (train[i] for i in range(len(train))),  # type: ignore[arg-type]
            inputs=inputs,
            outputs=outputs,
        )
        run = Run(Surrogate(model, scale, layout).to(device), train, plan)
        if out is not None and resume:
            run.restore(Path(out))
        with run.bar(shown=progress) as bar:
            while len(run.history) < epochs:
                run.epoch(validation, bar)
                if out is not None:
                    run.save(Path(out))
                if report is not None:
                    report(run.history[-1])
    if out is not None and plotting.available():
        plotting.plot_history(run.history, Path(out) / "history.png")
    run.surrogate.load_state_dict(run.best_state)
    return run.surrogate.to("cpu").eval()


def _prepare(out: str | Path | None, model: nn.Module, resume: bool) -> None:
    """Find out now, not after the first epoch, what cannot be written or resumed."""
    if out is not None:
        describe(model)
        if resume:
            load_checkpoint(Path(out) / "last.pt")
        Path(out).mkdir(parents=True, exist_ok=True)
    elif resume:
        raise ValueError("resume needs out, the folder of the run")


def _hold_out(train: Any, validation: Any) -> tuple[Any, Any]:
    """Training and validation data; where a number is given, that share of the first is second."""
    if not isinstance(validation, float | int):
        if not (len(train) and len(validation)):
            raise ValueError(
                f"fit needs cases to train and to validate, got {len(train)} and {len(validation)}"
            )
        return train, validation
    groups = getattr(train, "groups", None) or list(range(len(train)))
    if len(set(groups)) == 1:  # a single series: some of its steps
        groups = list(range(len(train)))
    count = len(set(groups))
    held = max(1, round(validation * count))
    if not 0 < validation < 1 or held >= count:
        raise ValueError(
            f"validation={validation} of {count} case(s) leaves none to train or to validate: "
            "give more, or validation data of their own"
        )
    order = torch.randperm(count).tolist()
    chosen = set(order[:held])
    parts = [[i for i, g in enumerate(groups) if (g in chosen) is kept] for kept in (False, True)]
    return Subset(train, parts[0]), Subset(train, parts[1])


def _own_layout(data: Any) -> Layout | None:
    """The layout that a data set was read with, also where the data are a part of one."""
    while isinstance(data, Subset):
        data = data.dataset
    return getattr(data, "layout", None)


def _check_layout(name: str, data: Any, layout: Layout) -> None:
    own = _own_layout(data)
    if own is not None and own != layout:
        raise ValueError(
            f"{name} has another layout than the fit: read it with "
            f"MeshDataset.from_layout(files, layout); expected {layout}, got {own}"
        )


def _layout(data: Any) -> Layout:
    """The names of the data's fields; plain ones for bare samples."""
    own = _own_layout(data)
    if own is not None:
        return own
    if not len(data):
        raise ValueError("fit needs cases, got none")
    sample: Sample = data[0]
    if sample.part is not None:
        raise ValueError(
            "the samples have parts, such as a boundary, and train has no layout that says so: "
            "give fit the layout they were read with, layout="
        )
    inputs, parameters = sample.fields.shape[-1], sample.parameters.shape[-1]
    return Layout(
        inputs={"input": inputs} if inputs else {},
        outputs={"output": 0 if sample.outputs is None else sample.outputs.shape[-1]},
        parameters={"parameter": parameters} if parameters else {},
        axes=list(range(sample.source.dim)),
    )
