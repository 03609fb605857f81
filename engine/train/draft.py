"""Training of the draft head on the finished, rounded backbone."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from engine.train.data import Batch, Rows, Split
from engine.train.forward import confidence, markov
from engine.train.model import Model
from engine.train.optimiser import Optimiser, Rates
from engine.train.progress import Progress, memory
from engine.train.schedule import Budget, Shape

_CROSS_ENTROPY, _TOTAL_VARIATION = 0.1, 0.9
_DECAY_SLOTS = 5.0
_SETTLING_STEPS = 4


@dataclass(frozen=True, slots=True)
class DraftPlan:
    """How to train the draft head."""

    batch: int = 32
    length: int = 1024
    anchors: int = 48
    seed: int = 2
    emphasis: float = 3.0
    rates: Rates = field(default_factory=Rates)
    muon: bool = True
    shape: Shape = field(default_factory=lambda: Shape(warm_steps=50, decay_from=0.3))


class DraftTrainer:
    """State of a draft-head training."""

    def __init__(self, model: Model, corpus: Split, plan: DraftPlan) -> None:
        self.model, self.plan = model, plan
        self.rows = Rows(
            corpus, plan.batch, plan.length, seed=plan.seed, emphasis=plan.emphasis, open_share=0.0
        )
        self.optimiser = Optimiser(model.draft, plan.rates, muon=plan.muon)
        self.step_number = 0

    def step(self, fraction: float) -> dict[str, Tensor]:
        """One update; device scalars of what happened."""
        factor = self.plan.shape.factor(self.step_number, fraction)
        self.model.draft.refresh(quantised=True)
        self.model.draft.clear()
        loss, scalars = self.loss(self.rows.batch(self.step_number))
        loss.backward()
        self.optimiser.prepare(factor)
        scalars["norm"] = self.optimiser.update()
        self.step_number += 1
        return scalars

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss over random anchors: distribution losses by slot, and the confidence's."""
        g, model, weights = self.model.geometry, self.model, self.model.frozen()
        # The same compiled functions as in training; nothing of the backbone keeps its gradient.
        trace = model.forward.run(model.weights, batch.ids, batch.starts)
        taps, hidden = trace.taps.detach(), trace.hidden.detach()
        anchors = self._anchors(batch)
        blocks = model.plain.draft(weights, taps, batch.ids, anchors, batch.starts)
        at = anchors[..., None] + 1 + torch.arange(g.dspark_block_size, device=anchors.device)
        rows = torch.arange(len(at), device=at.device)[:, None, None]
        bias, embedded = markov(weights, batch.ids[rows, at])
        guess = torch.log_softmax(blocks.base + bias, -1)
        with torch.no_grad():
            wanted = torch.softmax(model.plain.logits(weights, hidden[rows, at]), -1)
        crossed = -(wanted * guess).sum(-1)
        varied = 0.5 * (wanted - guess.exp()).abs().sum(-1)
        same = batch.starts[rows, at] == batch.starts.gather(1, anchors)[..., None]
        count = batch.weights[rows, at] * same
        slots = torch.arange(g.dspark_block_size, device=at.device)
        weight = count * torch.exp(-slots / _DECAY_SLOTS)
        weight = weight / weight.sum().clamp_min(1e-6)
        main = (weight * (_CROSS_ENTROPY * crossed + _TOTAL_VARIATION * varied)).sum()
        trust = confidence(weights, blocks.hidden.detach(), embedded.detach())
        sure = binary_cross_entropy_with_logits(trust, 1.0 - varied.detach(), reduction="none")
        sure = (weight * sure).sum()
        return main + sure, {
            "loss": main.detach(),
            "overlap": 1.0 - (weight * varied).sum().detach(),
            "confidence": sure.detach(),
        }

    def _anchors(self, batch: Batch) -> Tensor:
        length = batch.ids.shape[1] - self.model.geometry.dspark_block_size
        shape = (len(batch.ids), self.plan.anchors)
        random = torch.Generator().manual_seed(self.plan.seed * 9_176_867 + self.step_number)
        drawn = torch.randint(0, max(1, length - 1), shape, generator=random)
        return drawn.to(batch.ids.device)


def train(trainer: DraftTrainer, budget: Budget) -> list[dict[str, float]]:
    """Run to the end of `budget`; the model is left rounded. Returns the history."""
    progress = Progress("draft", trainer.plan.batch * trainer.plan.length)
    device = trainer.model.device
    while (fraction := budget.fraction(trainer.step_number)) < 1.0:
        progress.add(**trainer.step(fraction))
        done = trainer.step_number
        if done % 8 == 0 or done == _SETTLING_STEPS:
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            if done >= _SETTLING_STEPS:
                budget.settled()
        if progress.due():
            progress.line(done, fraction, trainer.plan.shape.factor(done, fraction))
    if progress._count:
        progress.line(trainer.step_number, 1.0, trainer.plan.shape.last, _peak(device))
    trainer.model.refresh(quantised=True)
    return progress.history


def _peak(device: torch.device) -> str:
    values: dict[str, Any] = memory(device)
    return " ".join(f"{k} {v}" for k, v in values.items() if not math.isnan(v))
