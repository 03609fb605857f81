"""What of a night is worth telling people: promotions, kills of the guard, halts, and its end."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence

from flywheel.box.clock import Clock, count, utc_text
from flywheel.loop.judge import Entered
from flywheel.loop.order import Order, Session
from flywheel.notify import notice
from flywheel.notify.notice import Notice
from flywheel.notify.send import send
from flywheel.run.ingest import Ingested
from flywheel.run.manifest import Manifest
from flywheel.statistics.decide import Verdict

GUARD_KILLED = "guard_killed"


class Herald:
    """Sends notices to the order's targets and never waits; `say` is told what cannot be sent."""

    def __init__(self, order: Order, clock: Clock, say: Callable[[str], None]) -> None:
        self._order = order
        self._clock = clock
        self._say = say
        self._halted: str | None = None
        self.promotions = 0

    def entered(self, manifest: Manifest, got: Ingested, entered: Entered) -> None:
        """A run is in the ledger: tell of a promotion, and of a run that the guard had to end."""
        if got.end.code == GUARD_KILLED:
            lever, run_id = manifest.lever_name, manifest.run_id
            said = f"the guard ended run {run_id} ({lever}): {got.end.detail}"
            self._tell(notice.GUARD_KILL, said, run=run_id, lever=lever)
        if entered.verdict is not None:
            self.decided(manifest, entered.verdict, entered.findings)

    def decided(self, manifest: Manifest, verdict: Verdict, findings: Sequence[str]) -> None:
        """A lever has its verdict, `manifest` being its last run: tell of a promotion."""
        if verdict.ending != "promoted" or manifest.null:
            return
        self.promotions += 1
        lever = manifest.lever_name
        said = findings[0] if findings else f"{lever}: {verdict.sentence}"
        self._tell(
            notice.PROMOTION, said, run=manifest.run_id, lever=lever, gain=verdict.shrunk_gain,
            blocks=verdict.n,
        )  # fmt: skip

    def halted(self, reason: str) -> None:
        """The loop may not go on until a person has looked; told once."""
        if reason != self._halted:
            self._halted = reason
            self._tell(notice.HALT, reason)

    def ended(self, session: Session) -> None:
        """The night is over."""
        said = (
            f"the night is over after {count(session.runs, 'run')}, {session.ok} of them good, and "
            f"{count(self.promotions, 'promotion')}: {session.reason or 'it failed'}"
        )
        self._tell(
            notice.END, said, runs=session.runs, ok=session.ok, promotions=self.promotions,
            halted=session.halted, failed=session.failed,
        )  # fmt: skip

    def _tell(self, event: str, text: str, **facts: object) -> None:
        told = Notice(
            event, text, socket.gethostname(), str(self._order.ledger),
            utc_text(self._clock.now()), facts,
        )  # fmt: skip
        if (failure := send(self._order.notify, told, self._order.ledger.parent)) is not None:
            self._say(failure)
