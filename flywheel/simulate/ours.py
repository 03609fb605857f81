"""Whole campaigns by our own rule, with the functions that the loop decides by."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from flywheel.simulate.box import Machine
from flywheel.simulate.outcome import Outcome
from flywheel.simulate.truth import Truth
from flywheel.statistics import screen
from flywheel.statistics.band import Series, log_gain, pool
from flywheel.statistics.block import PATTERNS, BlockEstimate, abba
from flywheel.statistics.campaign import FULL, Budget, Settings
from flywheel.statistics.decide import Evidence, Verdict, decide

NULL = Truth(0.0)
# Where a canary stands among the items of its dozen; the plan draws it, here it is fixed.
PLACE = 6


class Campaign:
    """One campaign on one machine. `fixed` orders every cold block ABBA instead of at random."""

    def __init__(
        self, machine: Machine, coins: Sequence[bool], settings: Settings = FULL,
        *, hot: bool = False, fixed: bool = False,
    ) -> None:
        self.machine = machine
        self.settings = settings
        self.budget = Budget(settings)
        self.hot = hot
        self.fixed = fixed
        self.base = 0.0
        self._coins = coins
        self._history: list[Series] = []
        self._blocks = 0
        # The last load, while it was one of the incumbent: the next bracket begins with it.
        self._incumbent: float | None = None

    def run(self, truth: Sequence[Truth]) -> Outcome:
        """Calibrate, then try every lever in order, canaries among them."""
        self._calibrate()
        items: list[tuple[int | None, Truth]] = []
        for i, one in enumerate(truth):
            if i % (self.settings.canary_every - 1) == PLACE:
                items.append((None, NULL))
            items.append((i, one))
        claims: dict[int, float] = {}
        wrong = 0
        for place, verdict in self._hot(items) if self.hot else self._cold(items):
            if verdict.ending != "promoted":
                continue
            if place is None:
                wrong += 1
            else:
                assert verdict.shrunk_gain is not None
                claims[place] = log_gain(verdict.shrunk_gain)
        return Outcome(
            tuple(t.gain for t in truth), claims, self.machine.loads, self.budget.tests,
            sum(place is None for place, _ in items), wrong,
        )

    def decide(self, one: Truth) -> float | None:
        """Confirm one lever, after the nulls where it is the first: its claimed log gain, or None.

        None of a lever that was not promoted.
        """
        if not self._history:
            self._calibrate()
        verdict = self._confirm(one, null=False)
        if verdict.ending != "promoted":
            return None
        assert verdict.shrunk_gain is not None
        return log_gain(verdict.shrunk_gain)

    def _calibrate(self) -> None:
        blocks = self.settings.calibration if self.hot else self.settings.cold_calibration
        made = [self._block(NULL) for _ in range(blocks)]
        self._remember(made, null=True)

    def _hot(self, items: Sequence[tuple[int | None, Truth]]) -> list[tuple[int | None, Verdict]]:
        """Screen by one block while more levers wait than there are tests left."""
        decided = []
        for i, (place, one) in enumerate(items):
            scarce = place is not None and len(items) - i > self.budget.left
            if scarce and not self._screen_hot(one):
                continue
            decided.append((place, self._confirm(one, null=place is None)))
        return decided

    def _screen_hot(self, one: Truth) -> bool:
        gain = -self.machine.hot(one.gain, one.times)
        return screen.screen_hot(gain, pool(self._history), self.settings.rule).passed

    def _cold(self, items: Sequence[tuple[int | None, Truth]]) -> list[tuple[int | None, Verdict]]:
        """Screen two at a time; confirm what passes before the next two. Canaries are confirmed."""
        decided: list[tuple[int | None, Verdict]] = []
        waiting: list[tuple[int | None, Truth]] = []
        for place, one in items:
            if place is None:
                decided.append((None, self._confirm(one, null=True)))
                continue
            waiting.append((place, one))
            if len(waiting) == 2:
                passed = self._screen([t for _, t in waiting])
                decided += [(p, self._confirm(t, null=False))
                            for (p, t), goes_on in zip(waiting, passed, strict=True) if goes_on]
                waiting = []
        # Alone between two incumbents, a screen costs what a block does.
        return decided + [(p, self._confirm(t, null=False)) for p, t in waiting]

    def _screen(self, pair: Sequence[Truth]) -> list[bool]:
        first = self._load(NULL) if self._incumbent is None else self._incumbent
        costs = [first, *(self._load(one) for one in pair), self._load(NULL)]
        self._incumbent = costs[-1]
        return [s.passed for s in screen.screen(costs, pool(self._history), self.settings.rule)]

    def _confirm(self, one: Truth, *, null: bool) -> Verdict:
        blocks: list[BlockEstimate] = []
        while True:
            blocks.append(self._block(one))
            own = Series((), self._blocks - len(blocks), _contrasts(blocks))
            past = pool([*self._history, own])
            evidence = Evidence(tuple(blocks), past, self.budget.alpha_t)
            verdict = decide(evidence, self.settings.rule)
            if verdict.ending is not None:
                break
        if verdict.code != "arms_probably_identical":
            self._remember(blocks, null=null)
        promoted = verdict.ending == "promoted"
        self.budget = self.budget.after(promoted)
        if promoted:
            self.base += one.gain
        return verdict

    def _remember(self, blocks: Sequence[BlockEstimate], *, null: bool) -> None:
        first = self._blocks - len(blocks)
        effects = tuple(b.effect for b in blocks)
        self._history.append(Series(effects, first, _contrasts(blocks), null))

    def _block(self, one: Truth) -> BlockEstimate:
        self._incumbent = None
        coin = self.fixed or self._coins[self._blocks % len(self._coins)]
        self._blocks += 1
        if self.hot:
            return _estimate(self.machine.hot(one.gain, one.times), None)
        pattern = PATTERNS[0] if coin else PATTERNS[1]
        costs = [self._load(NULL if arm == "A" else one) for arm in pattern]
        return _estimate(*abba(costs, pattern))

    def _load(self, one: Truth) -> float:
        return self.machine.load(self.base + one.gain, one.times)


def _contrasts(blocks: Sequence[BlockEstimate]) -> tuple[float, ...]:
    return tuple(b.contrast for b in blocks if b.contrast is not None)


def _estimate(effect: float, contrast: float | None) -> BlockEstimate:
    loads = 1 if contrast is None else 4
    return BlockEstimate(effect, contrast, 0.0, 1, math.log(10), "ms_per_token", loads=loads)


def with_rule(**changes: object) -> Settings:
    """The full campaign with another rule, for questions of the kind `what if`."""
    return replace(FULL, rule=replace(FULL.rule, **changes))  # type: ignore[arg-type]
