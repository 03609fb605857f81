"""Training of the backbone."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from engine.errors import NumericsError
from engine.train.data import Batch, Rows, Split
from engine.train.model import Model
from engine.train.optimiser import Optimiser, Rates
from engine.train.progress import Progress, memory, say
from engine.train.schedule import Budget, Shape

_Z_WEIGHT = 1e-4
_SETTLING_STEPS = 4  # compilation happens in the first


@dataclass(frozen=True, slots=True)
class Plan:
    """How to train the backbone."""

    batch: int = 32
    length: int = 1024
    seed: int = 1
    emphasis: float = 1.5  # weight of the assistant's tokens
    open_share: float = 0.2  # rows that see across documents: practice at long range
    muon: bool = True
    rates: Rates = field(default_factory=Rates)
    shape: Shape = field(default_factory=Shape)
    save_every_steps: int = 0
    evaluate_at: tuple[float, ...] = (0.25, 0.5, 0.75)


def losses(hidden: Tensor, head: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Weighted cross-entropy plus a small penalty on the normaliser; the bare one (nats)."""
    logits = linear(hidden, head).float()
    normaliser = logits.logsumexp(-1)
    bare = normaliser - logits.gather(-1, targets[..., None]).squeeze(-1)
    total = (weights * (bare + _Z_WEIGHT * normaliser.square())).sum() / weights.sum()
    counted = (weights > 0).float()
    return total, ((bare * counted).sum() / counted.sum()).detach()


class Trainer:
    """State of a backbone training: parameters, moments, step. `step` is a pure function of it."""

    def __init__(self, model: Model, corpus: Split, plan: Plan) -> None:
        self.model, self.plan = model, plan
        self.rows = Rows(
            corpus, plan.batch, plan.length, seed=plan.seed,
            emphasis=plan.emphasis, open_share=plan.open_share,
        )  # fmt: skip
        self.optimiser = Optimiser(model.backbone, plan.rates, muon=plan.muon)
        self.step_number, self.fraction = 0, 0.0
        self.use(compiled=model.compiled)

    def use(self, *, compiled: bool) -> None:
        """Choose compiled or plain functions."""
        self.model.use(compiled=compiled)
        self.losses = torch.compile(losses, dynamic=False) if compiled else losses

    def loss(self, batch: Batch, *, sparse: bool) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
        """Loss to minimise, bare cross-entropy, indexer divergence, expert loads."""
        w = self.model.weights
        trace = self.model.forward.run(w, batch.ids, batch.starts, sparse=sparse)
        total, bare = self.losses(trace.hidden, w.head, batch.targets, batch.weights)
        return total + trace.divergence, bare, trace.divergence.detach(), trace.loads

    def step(self, fraction: float) -> dict[str, Tensor]:
        """One update; device scalars of what happened."""
        shape = self.plan.shape
        self.optimiser.prepare(shape.factor(self.step_number, fraction))
        batch = self.rows.batch(self.step_number)
        phase = (fraction >= shape.quantise_from, fraction >= shape.sparse_from)
        scalars = self.update(batch, *phase)
        self.step_number, self.fraction = self.step_number + 1, fraction
        return scalars

    def update(self, batch: Batch, quantised: bool, sparse: bool) -> dict[str, Tensor]:
        """What a step does on the device; it never waits for it."""
        backbone = self.model.backbone
        backbone.refresh(quantised=quantised)
        backbone.clear()
        total, bare, divergence, loads = self.loss(batch, sparse=sparse)
        total.backward()
        norm = self.optimiser.update()
        self.model.balance(loads, self.optimiser.control[0])
        return {"loss": bare, "index": divergence, "norm": norm}

    def rehearse(self) -> None:
        """One forward and backward pass; falls back to plain functions if compilation fails."""
        try:
            self._pass()
        except Exception as error:
            if not self.model.compiled:
                raise
            say(f"compilation failed, going on without it: {type(error).__name__}: {error}"[:2000])
            torch._dynamo.reset()
            self.use(compiled=False)
            self._pass()

    def _pass(self) -> None:
        self.model.backbone.refresh(quantised=False)
        self.model.backbone.clear()
        self.loss(self.rows.batch(0), sparse=False)[0].backward()

    def state(self) -> dict[str, Any]:
        """Everything an exact resume needs."""
        return {
            "step": self.step_number, "fraction": self.fraction,
            "master": self.model.backbone.master, "draft": self.model.draft.master,
            "tables": self.model.tables, "optimiser": self.optimiser.state(),
        }  # fmt: skip

    def restore(self, path: Path) -> None:
        """Continue from a file that `save` wrote."""
        state = torch.load(path, map_location=self.model.device, weights_only=True)
        self.step_number, self.fraction = int(state["step"]), float(state["fraction"])
        self.model.backbone.master.copy_(state["master"])
        self.model.draft.master.copy_(state["draft"])
        for name, table in state["tables"].items():
            self.model.tables[name].copy_(table)
        self.optimiser.restore(state["optimiser"])

    def save(self, path: Path) -> None:
        """Write the state, never leaving half a file."""
        partial = path.with_suffix(".partial")
        torch.save(self.state(), partial)
        partial.replace(path)


def train(
    trainer: Trainer, budget: Budget, out: Path, evaluate: Any | None = None
) -> list[dict[str, float]]:
    """Run to the end of `budget`; `evaluate()` -> dict is called at the planned points.

    The model is left rounded as it will be exported. Returns the history.
    """
    plan = trainer.plan
    trainer.rehearse()
    progress = Progress("backbone", plan.batch * plan.length)
    points = [p for p in plan.evaluate_at if p > trainer.fraction]
    first = trainer.step_number
    while (fraction := budget.fraction(trainer.step_number)) < 1.0:
        scalars = trainer.step(fraction)
        progress.add(**scalars)
        done = trainer.step_number
        if done == first + _SETTLING_STEPS:
            _wait(trainer.model.device)
            budget.settled()
        if points and fraction >= points[0] and evaluate is not None:
            points.pop(0)
            progress.history.append({"step": done, "fraction": fraction, **evaluate()})
        if plan.save_every_steps and done % plan.save_every_steps == 0:
            trainer.save(out / "resume.pt")
        if progress.due():
            _report(progress, trainer, fraction)
        elif done % 8 == 0:
            _wait(trainer.model.device)  # the clock must not run ahead of the device
    if progress._count:
        _report(progress, trainer, min(trainer.fraction, 1.0))
    trainer.fraction = 1.0
    trainer.model.refresh(quantised=True)
    return progress.history


def _report(progress: Progress, trainer: Trainer, fraction: float) -> None:
    factor = trainer.plan.shape.factor(trainer.step_number, fraction)
    peak = " ".join(f"{k} {v}" for k, v in memory(trainer.model.device).items())
    progress.line(trainer.step_number, fraction, factor, peak)
    loss = progress.history[-1]["loss"]
    if loss != loss:
        raise NumericsError("The training loss is not a number any more; nothing was exported.")


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
