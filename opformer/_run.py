"""A run: epochs of training and validation, and the checkpoints that it goes on from."""

from __future__ import annotations

import csv
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader
from tqdm.auto import tqdm

from opformer._files import replacing
from opformer.checkpoint import load_checkpoint
from opformer.config import describe
from opformer.evaluation import relative_l2
from opformer.sample import Sample, collate
from opformer.surrogate import Surrogate

__all__ = ["Plan", "Run", "Steps", "loss"]


@dataclass(frozen=True)
class Plan:
    """What a run is made with beside its model and layout; it is resumed with the same."""

    cases: int
    validation_cases: int
    epochs: int
    batch_size: int
    learning_rate: float
    weight_decay: float
    clip: float
    samples_per_mesh: int | None
    seed: int


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

    def __init__(self, surrogate: Surrogate, train: Any, plan: Plan) -> None:
        self.surrogate, self.plan = surrogate, plan
        self.steps = Steps(train, plan.batch_size, plan.samples_per_mesh)
        self.optimizer = torch.optim.AdamW(
            surrogate.parameters(),
            lr=plan.learning_rate,
            weight_decay=plan.weight_decay,
            fused=True,
        )
        # Up in a tenth of the steps; in more if there are few: torch divides by those it goes up.
        total = max(2, plan.epochs * len(self.steps))
        self.schedule = OneCycleLR(
            self.optimizer, plan.learning_rate, total_steps=total, pct_start=max(0.1, 1.5 / total)
        )
        self.history: list[dict[str, float]] = []
        self.best, self.best_state = float("inf"), _copy(surrogate.state_dict())

    def bar(self, *, shown: bool) -> tqdm:
        """A bar of all steps, at those that are done."""
        done, total = (n * len(self.steps) for n in (len(self.history), self.plan.epochs))
        return tqdm(total=total, initial=done, desc="fitting", unit="step", disable=not shown)

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
        # What matters most first: a narrow terminal cuts off the end.
        shown = {"validation": mean, "best": self.best, "train": train_loss}
        bar.set_description(f"epoch {number}/{self.plan.epochs}")
        bar.set_postfix({name: f"{value:.4f}" for name, value in shown.items()})

    def save(self, out: Path) -> None:
        """Write the best and the last surrogate, and the history, each file whole."""
        # The best first: a run that is cut off here repeats an epoch, and never lacks its best.
        if self.history[-1]["validation"] == self.best:
            self.surrogate.save(out / "best.pt", epoch=len(self.history), best=self.best)
        self.surrogate.save(out / "last.pt", **self.state())
        path = out / "history.csv"
        with replacing(path) as temporary, open(temporary, "w", newline="", encoding="utf-8") as f:
            writer = csv.DictWriter(f, list(self.history[-1]))
            writer.writeheader()
            writer.writerows(self.history)

    def state(self) -> dict[str, Any]:
        """All that the next epoch depends on beside the surrogate, as plain data and tensors."""
        return {
            "epoch": len(self.history),
            "best": self.best,
            "history": self.history,
            "plan": asdict(self.plan),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "random": torch.get_rng_state(),
        }

    def restore(self, out: Path) -> None:
        """Go on where the run in ``out`` was left; sets the global random state, too.

        Raises
        ------
        ValueError
            If there is none, or it was made with another model, layout or plan.
        """
        last, best = (load_checkpoint(out / name) for name in ("last.pt", "best.pt"))
        if other := self._differences(last):
            raise ValueError(f"{out / 'last.pt'} cannot be resumed: {'; '.join(other)}")
        self.surrogate.load_state_dict(_weights(last))
        self.optimizer.load_state_dict(last["optimizer"])
        self.schedule.load_state_dict(last["schedule"])
        self.history = last["history"]
        self.best, self.best_state = best["best"], _weights(best)
        torch.set_rng_state(last["random"])

    def _differences(self, last: dict[str, Any]) -> list[str]:
        if missing := self.state().keys() - last.keys():
            return [f"it is not the state of a fit, {sorted(missing)} missing"]
        plan, model = asdict(self.plan), describe(self.surrogate.model)
        other = [
            f"{name} was {last['plan'].get(name)}, now {value}"
            for name, value in plan.items()
            if last["plan"].get(name) != value
        ]
        if last["plan"].get("epochs") != plan["epochs"]:
            other.append("a longer fit has another learning rate from its first step: begin anew")
        if {name: last["model"][name] for name in model} != model:
            other.append("the model was another")
        # As text: the order of the fields is that of the channels.
        if str(last["layout"]) != str(asdict(self.surrogate.layout)):
            other.append("the layout of the fields was another")
        return other

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
            nn.utils.clip_grad_norm_(self.surrogate.parameters(), self.plan.clip)
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


def _copy(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.detach().cpu().clone() for name, value in state.items()}


def _weights(checkpoint: dict[str, Any]) -> dict[str, Tensor]:
    """The state of a surrogate, from the parts that it saves."""
    return {
        f"{part}.{name}": value
        for part in ("model", "standardizer")
        for name, value in checkpoint[part]["state"].items()
    }
