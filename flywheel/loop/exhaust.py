"""The exhaust phase: profile the incumbent, and record the levers that its residuals lead to."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flywheel.box.clock import Clock, utc_text
from flywheel.errors import RecordError
from flywheel.knob import Knob
from flywheel.ledger import phases
from flywheel.ledger.store import Ledger
from flywheel.lever import Lever
from flywheel.loop import profiler, residuals
from flywheel.loop.order import Order
from flywheel.loop.step import TakeProfile
from flywheel.loop.wishes import Wish, Wishes


def exhaust(
    order: Order,
    ledger: Ledger,
    step: TakeProfile,
    knobs: Sequence[Knob],
    known: Sequence[Lever],
    *,
    lease_fds: Sequence[int],
    wishes: Wishes,
    clock: Clock,
    say: Callable[[str], None],
) -> Wish | None:
    """Take the profile that the plan asked for; a wish: stop, and nothing is recorded.

    `known` are the levers that were declared, proposed or tried before. A profile that cannot be
    had is recorded as well, with its reason: the loop goes on without it.
    """
    say(f"profiling the incumbent: {step.why}")
    try:
        document = profiler.take(
            order, step.config, step.rows, lease_fds=lease_fds, wishes=wishes, clock=clock
        )
        if isinstance(document, Wish):
            return document
        top = residuals.ranked(document)[0].phase
        led_to = residuals.levers(document, knobs, known)
    except RecordError as error:
        now_utc = utc_text(clock.now())
        phases.not_profiled(ledger, step.config, str(error), now_utc=now_utc)
        return None
    now_utc = utc_text(clock.now())
    phases.profiled(ledger, step.config, document, top, led_to, now_utc=now_utc)
    for lever, phase in led_to:
        say(f"a new lever, from {phase}: {lever.label()}")
    return None
