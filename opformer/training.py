"""Fitting: one loop, from samples to a surrogate."""

from __future__ import annotations

import csv
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, Dataset, Subset
from tqdm.auto import tqdm

from opformer import plotting
from opformer.checkpoint import replacing
from opformer.evaluation import relative_l2
from opformer.layout import Layout
from opformer.sample import Sample, collate
from opformer.standardize import Standardizer
from opformer.surrogate import Surrogate

__all__ = ["fit", "loss"]


def fit(
    model: nn.Module,
    train: Sequence[Sample] | Dataset[Sample],
    *,
    validation: Sequence[Sample] | Dataset[Sample] | float = 0.1,
    out: str | Path | None = None,
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
        Chosen by ``seed``.
    out : path, optional
        Folder for ``best.pt``, ``last.pt`` (with the state of the optimiser), ``history.csv``, all
        written after each epoch, and, with the extra ``plot``, ``history.png``.
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
        If there are not enough cases, or they have no outputs.
    FloatingPointError
        If the loss stops being finite.
    """
    if epochs < 1:
        raise ValueError(f"epochs must be at least 1, got {epochs}")
    if out is not None:
        Path(out).mkdir(parents=True, exist_ok=True)  # now, not after the first epoch
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        layout = layout or _layout(train)
        train, validation = _hold_out(train, validation)
        scale = Standardizer.fit(train[i] for i in range(len(train)))  # type: ignore[arg-type]
        surrogate = Surrogate(model, scale, layout).to(device)
        steps = Steps(train, batch_size, samples_per_mesh)
        run = Run(surrogate, steps, epochs, learning_rate, weight_decay, clip)
        bar = tqdm(total=epochs * len(steps), desc="fitting", unit="step", disable=not progress)
        with bar:
            for _ in range(epochs):
                run.epoch(validation, bar)
                if out is not None:
                    run.save(Path(out))
                if report is not None:
                    report(run.history[-1])
    if out is not None and plotting.available():
        plotting.plot_history(run.history, Path(out) / "history.png")
    surrogate.load_state_dict(run.best_state)
    return surrogate.to("cpu").eval()


def loss(surrogate: Surrogate, batch: Sample) -> Tensor:
    """What is minimised: relative L²(μ) error in physical units, mean over cases and fields."""
    return torch.stack(list(_errors(surrogate, batch).values())).mean()


class Steps(DataLoader):
    """Shuffled batches, of random points of each mesh where asked."""

    def __init__(self, data: Any, batch_size: int, samples_per_mesh: int | None) -> None:
        def together(samples: list[Sample]) -> Sample:
            if samples_per_mesh is not None:
                samples = [
                    s.subsample(samples_per_mesh) if s.source.size > samples_per_mesh else s
                    for s in samples
                ]
            return collate(samples)

        super().__init__(data, batch_size, shuffle=True, collate_fn=together)


class Run:
    """The state of a fit: what one epoch changes and a checkpoint holds."""

    def __init__(
        self,
        surrogate: Surrogate,
        steps: Steps,
        epochs: int,
        learning_rate: float,
        weight_decay: float,
        clip: float,
    ) -> None:
        self.surrogate, self.steps, self.clip = surrogate, steps, clip
        self.optimizer = torch.optim.AdamW(
            surrogate.parameters(), lr=learning_rate, weight_decay=weight_decay, fused=True
        )
        # Up in a tenth of the steps; in more if there are few: torch divides by those it goes up.
        total = max(2, epochs * len(steps))
        self.schedule = OneCycleLR(
            self.optimizer, learning_rate, total_steps=total, pct_start=max(0.1, 1.5 / total)
        )
        self.history: list[dict[str, float]] = []
        self.best, self.best_state = float("inf"), _copy(surrogate.state_dict())

    def epoch(self, validation: Any, bar: tqdm) -> None:
        """Train once over the data, validate, and keep the best."""
        began, rate = time.perf_counter(), float(self.schedule.get_last_lr()[0])
        train_loss = self._train(bar)
        errors = self._validate(validation)
        mean = sum(errors.values()) / len(errors)
        number = len(self.history) + 1
        row = {"epoch": number, "learning_rate": rate, "train": train_loss, "validation": mean}
        if len(errors) > 1:
            row |= {f"validation {name}": error for name, error in errors.items()}
        self.history.append(row | {"seconds": time.perf_counter() - began})
        if mean <= self.best:
            self.best, self.best_state = mean, _copy(self.surrogate.state_dict())
        shown = {"train": train_loss, "validation": mean, "best": self.best}
        bar.set_postfix(epoch=number, **{name: f"{value:.4f}" for name, value in shown.items()})

    def save(self, out: Path) -> None:
        """Write the best and the last surrogate, and the history, each file whole."""
        progress = {
            "epoch": len(self.history),
            "best": self.best,
            "history": self.history,
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "random": torch.get_rng_state(),
        }
        self.surrogate.save(out / "last.pt", **progress)
        if self.history[-1]["validation"] == self.best:
            self.surrogate.save(out / "best.pt", epoch=len(self.history), best=self.best)
        path = out / "history.csv"
        with replacing(path) as temporary, open(temporary, "w", newline="", encoding="utf-8") as f:
            writer = csv.DictWriter(f, list(self.history[-1]))
            writer.writeheader()
            writer.writerows(self.history)

    def _train(self, bar: tqdm) -> float:
        self.surrogate.train()
        total, count = 0.0, 0
        for batch in self.steps:
            error = loss(self.surrogate, batch.to(self.surrogate.device))
            if not error.isfinite():
                raise FloatingPointError(
                    f"the loss is {error.item()} in epoch {len(self.history) + 1} "
                    f"({batch.name}); lower the learning rate"
                )
            self.optimizer.zero_grad()
            error.backward()
            nn.utils.clip_grad_norm_(self.surrogate.parameters(), self.clip)
            self.optimizer.step()
            self.schedule.step()
            total, count = total + error.item() * len(batch.fields), count + len(batch.fields)
            bar.update()
        return total / count

    @torch.no_grad()
    def _validate(self, validation: Any) -> dict[str, float]:
        """Mean over the cases, each by itself: what it says must not depend on a batch."""
        self.surrogate.eval()
        rows = [
            _errors(self.surrogate, collate([validation[i]]).to(self.surrogate.device))
            for i in range(len(validation))
        ]
        return {name: sum(row[name].item() for row in rows) / len(rows) for name in rows[0]}


def _errors(surrogate: Surrogate, batch: Sample) -> dict[str, Tensor]:
    """Relative errors by field, mean over the batch."""
    split = surrogate.layout.split
    predictions, truths = split(surrogate(batch)), split(batch.truth)
    return {
        name: relative_l2(predictions[name], truth, batch.domain)[0].mean()
        for name, truth in truths.items()
    }


def _hold_out(train: Any, validation: Any) -> tuple[Any, Any]:
    """Training and validation data; where a number is given, that share of the first is second."""
    if not isinstance(validation, float | int):
        if not (len(train) and len(validation)):
            raise ValueError(
                f"fit needs cases to train and to validate, got {len(train)} and {len(validation)}"
            )
        return train, validation
    held = max(1, round(validation * len(train)))
    if not 0 < validation < 1 or held >= len(train):
        raise ValueError(
            f"validation={validation} of {len(train)} cases leaves none to train or to validate"
        )
    order = torch.randperm(len(train)).tolist()
    return Subset(train, sorted(order[held:])), Subset(train, sorted(order[:held]))


def _layout(data: Any) -> Layout:
    """The names of the data's fields, also where it is a part; plain ones for bare samples."""
    whole = data.dataset if isinstance(data, Subset) else data
    if hasattr(whole, "layout"):
        return whole.layout
    if not len(data):
        raise ValueError("fit needs cases, got none")
    sample = data[0]
    return Layout(
        inputs={"input": sample.fields.shape[-1]},
        outputs={"output": 0 if sample.outputs is None else sample.outputs.shape[-1]},
        parameters={"parameter": sample.parameters.shape[-1]},
        axes=list(range(sample.source.dim)),
    )


def _copy(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.detach().cpu().clone() for name, value in state.items()}
