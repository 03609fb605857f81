"""Training of a draft head on captured states: steps that can be taken up again bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from engine.errors import NumericsError
from engine.heads import losses
from engine.heads.captured import Batch, Draw, Room, fresh
from engine.heads.head import Head
from engine.heads.pace import Pace
from engine.heads.recipe import Recipe
from engine.heads.recorded import LENGTHS, Ahead, Recorded
from engine.heads.stage import StageRefused
from engine.train.forward import Blocks, Forward
from engine.train.optimiser import Optimiser, Rates
from engine.train.progress import Progress

MUON_RATIO = 5.0
_SETTLED = 4  # steps after which a tensor without a gradient is taken to have none


class Data(Protocol):
    """Captured sequences, as `Captured` reads them."""

    def batch(self, number: int, draw: Draw, room: Room = fresh) -> Batch:
        """Batch `number`, on the host, in memory from `room`."""
        ...


class Trainer:
    """Parameters, moments and step number; `step` is a pure function of them and the recipe.

    On a GPU batches are made ahead and steps `recorded` as graphs, unless the experts are packed:
    then a step waits for the device to know who chose them.
    """

    def __init__(self, head: Head, data: Data, recipe: Recipe, *, recorded: bool = True) -> None:
        block = head.geometry.dspark_block_size
        recipe.require_fit(block)
        self.head, self.data, self.recipe = head, data, recipe
        self.width = recipe.width or block
        self.forward = Forward(head.geometry, head.device, rounding=True)
        self.start = head.as_it_is() if recipe.anchor else None
        rates = Rates(matrix=recipe.rate * MUON_RATIO, adam=recipe.rate)
        muon = recipe.optimiser == "muon"
        self.optimiser = Optimiser(head.parameters, rates, muon=muon)
        self.step_number = 0
        self.graded: set[str] = set()
        multiple = LENGTHS if head.device.type == "cuda" else 1
        self._draw = Draw(recipe.batch, recipe.anchors, recipe.seed, multiple)
        self._batch: Callable[[int], Batch] = self.batch
        self._update: Callable[[Batch], dict[str, Tensor]] = self.update
        if recorded and head.device.type == "cuda":
            self._batch = Ahead(self.batch)
            if not head.packed:
                self._update = Recorded(self.update, head.device)

    def step(self) -> dict[str, Tensor]:
        """One update; device scalars of what happened, which hold until the next."""
        batch = self._batch(self.step_number)
        self.optimiser.prepare(self.recipe.factor(self.step_number))
        scalars = self._update(batch)
        if self.step_number < _SETTLED:
            self._note_gradients()
        self.step_number += 1
        return scalars

    def batch(self, number: int, room: Room = fresh) -> Batch:
        """The batch of a step, on the host."""
        return self.data.batch(number, self._draw, room)

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """What the device does in a prepared step. Never waits, but for packed experts."""
        parameters = self.head.parameters
        parameters.refresh(quantised=True)
        parameters.clear()
        loss, scalars = self.loss(batch.to(self.head.device))
        loss.backward()
        return scalars | {"norm": self.optimiser.update()}

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """The recipe's loss on one batch."""
        weights = self.head.weights
        where = losses.slots(batch, self.forward, weights, self.width)
        mine = losses.drafted(weights, self._blocks(batch), where, hass_from=self.recipe.hass_from)
        start = None
        if self.start is not None:
            with torch.no_grad():
                blocks = self._blocks(batch, starting=True)
                start = losses.drafted(self.start, blocks, where)
        return losses.total(self.recipe, mine, where, start)

    def without_gradient(self) -> tuple[str, ...]:
        """Trained tensors that no step has given a gradient yet."""
        return tuple(e.name for e in self.head.trained if e.name not in self.graded)

    def save(self, path: Path) -> None:
        """Leave everything an exact resume needs, whole."""
        partial = path.with_suffix(".partial")
        torch.save(
            {
                "step": self.step_number, "master": self.head.parameters.master,
                "optimiser": self.optimiser.state(), "graded": sorted(self.graded),
            },
            partial,
        )  # fmt: skip
        partial.replace(path)

    def restore(self, path: Path) -> None:
        """Go on from a file that `save` wrote; StageRefused when step and moments disagree."""
        state: dict[str, Any] = torch.load(path, map_location=self.head.device, weights_only=True)
        if state["step"] != state["optimiser"]["steps"]:
            raise StageRefused(f"{path} is of step {state['step']}, its optimiser of another.")
        self.step_number = int(state["step"])
        self.head.parameters.master.copy_(state["master"])
        self.optimiser.restore(state["optimiser"])
        self.graded = set(state["graded"])

    def _blocks(self, batch: Batch, *, starting: bool = False) -> Blocks:
        weights = self.start if starting else self.head.weights
        assert weights is not None
        taps = batch.taps.to(self.head.dtype)
        return self.forward.draft(weights, taps, batch.ids, batch.anchors)

    def _note_gradients(self) -> None:
        for name, leaf in self.head.parameters.leaves.items():
            if leaf.grad is not None and bool((leaf.grad != 0).any()):
                self.graded.add(name)


def train(trainer: Trainer, *, save: Path, save_every: int = 100) -> list[dict[str, float]]:
    """Take the steps that are left, saving now and then; the head is left rounded.

    Returns the history. Raises NumericsError when the loss stops being finite.
    """
    recipe = trainer.recipe
    progress = Progress("train", recipe.batch * recipe.anchors * trainer.width, unit="drafts")
    pace = Pace("train", recipe.steps, "steps", trainer.step_number)
    while trainer.step_number < recipe.steps:
        scalars = trainer.step()
        progress.add(**scalars)
        pace.done = done = trainer.step_number
        if progress.due() or done == recipe.steps:
            progress.line(done, done / recipe.steps, recipe.factor(done), pace.left())
            if not torch.isfinite(torch.tensor(progress.history[-1]["loss"])):
                raise NumericsError(f"The loss of step {done} is not finite.")
        if done % save_every == 0 and done < recipe.steps:
            trainer.save(save)
    trainer.head.parameters.refresh(quantised=True)
    return progress.history
