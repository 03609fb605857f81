"""The propose phase: ask a proposer and record what came of it, or wait until one may be asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flywheel.box.clock import utc_text
from flywheel.display.panel import STYLES
from flywheel.errors import FlywheelError
from flywheel.lever import Lever
from flywheel.loop.order import KINDS
from flywheel.loop.step import AskProposer, Rest
from flywheel.loop.wishes import Wish
from flywheel.loop.workshop import Workshop
from flywheel.propose import gathering
from flywheel.propose.ask import Outcome, ask
from flywheel.propose.attempt import FAILED

REST_S = 5.0


class Asker:
    """Asks on behalf of a night. `tell` notes what is waited for."""

    def __init__(self, shop: Workshop, *, tell: Callable[[str], None]) -> None:
        self._order, self._ledger, self._clock = shop.order, shop.ledger, shop.clock
        self._display, self._wishes = shop.display, shop.wishes
        self._do, self._tell = shop.do, tell
        self._fields: Mapping[str, Mapping[str, Any]] | None = None
        self._resting = ""

    def carry_out(self, step: AskProposer | Rest, levers: Sequence[Lever]) -> Wish | None:
        """Ask, or wait a little; a wish: the loop is to stop."""
        if isinstance(step, AskProposer):
            self._resting = ""
            return self._ask(step, levers)
        if step.why != self._resting:
            self._resting = step.why
            self._tell(step.why)
        return self._wishes.wait(REST_S)

    def _ask(self, step: AskProposer, levers: Sequence[Lever]) -> Wish | None:
        order = self._order
        proposer = next(one for one in order.proposers if one.name == step.proposer)
        self._do(f"asking {proposer.name} for levers", None)
        self._display.say(f"asking {proposer.name} for levers: {step.why}")
        if self._fields is None:
            self._fields = gathering.fields(order.fields, order.cwd)
        with self._ledger.reading() as connection:
            grounds = gathering.grounds(
                connection, levers, self._fields, KINDS, order.ledger
            )
            brief = gathering.brief(
                connection, grounds, proposer.name, order.terms.timeout_s, order.ledger
            )
        try:
            found = ask(
                proposer, brief, grounds, order.terms, order.ledger, clock=self._clock,
                wishes=self._wishes, take_patch=gathering.taker(order.ledger, order.cwd),
            )  # fmt: skip
        except (FlywheelError, OSError) as error:
            found = Outcome(FAILED, str(error))
        self._record(proposer.name, found)
        return found.wish

    def _record(self, name: str, found: Outcome) -> None:
        now_utc = utc_text(self._clock.now())
        with self._ledger.reading() as connection:
            phase = gathering.phase(connection)
        number = gathering.record(self._ledger, name, found, phase=phase, now_utc=now_utc)
        style = "" if found.outcome == "answered" else STYLES["void"]
        self._display.say(f"attempt {number}, {name}: {found.outcome}, {found.detail}", style)
        for one in found.verdicts:
            said = "" if one.admitted else f" refused: {one.reason}"
            if one.lever is not None:
                said = f" admitted: {one.lever.claim}"
            self._display.say(f"  {one.name}{said}")
