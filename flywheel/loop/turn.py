"""Whether another run may begin now, and the waiting while it may not yet."""

from __future__ import annotations

from collections.abc import Callable

from flywheel.box.clock import Clock, Window, count, span_text
from flywheel.loop.order import Order, Session
from flywheel.loop.wishes import Wish, Wishes

BLOCKED_LIMIT = 3
LOOK_AGAIN_S = 1.0


class Turn:
    """Budgets end the night; a shut window and the pause after a failure are waited out.

    ``load_s`` tells how long a load is expected to take (0: not known yet), ``tell`` is given what
    is being waited for.
    """

    def __init__(
        self,
        order: Order,
        session: Session,
        wishes: Wishes,
        clock: Clock,
        *,
        load_s: Callable[[], float],
        tell: Callable[[str], None],
    ) -> None:
        self._order = order
        self._session = session
        self._wishes = wishes
        self._clock = clock
        self._load_s = load_s
        self._tell = tell
        self._pauses: dict[str, float] = {}  # variant: no sooner than this monotonic second

    def pause(self, variant_id: str, seconds: float) -> None:
        """Begin no run of that variant for so long."""
        self._pauses[variant_id] = self._clock.monotonic_s() + seconds

    def over(self) -> Wish | None:
        """Why no further run will begin in this session; None while one may."""
        if (wish := self._wishes.heard()) is not None:
            return wish
        limit, session = self._order.budget_runs, self._session
        if limit is not None and session.runs >= limit:
            return Wish("done", f"the budget of {count(limit, 'run')} is spent", False)
        if session.blocked_in_a_row >= BLOCKED_LIMIT:
            session.failed = True
            return Wish("done", f"{BLOCKED_LIMIT} runs in a row could not be run", False)
        left_s = self._wishes.left_s()
        if left_s is not None and left_s < self._load_s():
            return Wish("done", "the time left is too short for another run", False)
        window, load_s = self._order.window, self._load_s()
        if window is not None and load_s > window.length_s:
            return Wish(
                "done",
                f"a run takes {span_text(load_s)}, longer than the window {window} is open",
                False,
            )
        return None

    def wait(self, variant_id: str, loads: int = 1) -> Wish | None:
        """Wait until that many loads of a variant may begin, or for a reason to stop."""
        told = ""
        while (why := self._not_yet(variant_id, loads)) is not None:
            if why != told:
                self._tell(why)
                told = why
            if (wish := self._wishes.wait(LOOK_AGAIN_S)) is not None:
                return wish
        return None

    def _not_yet(self, variant_id: str, loads: int) -> str | None:
        if self._pauses.get(variant_id, 0.0) > self._clock.monotonic_s():
            return "a pause before the next attempt"
        self._pauses.pop(variant_id, None)
        window = self._order.window
        if window is None:
            return None
        left_s = window.left_s(self._clock.now())
        # Before the first load nothing is known but that the window must be open.
        if left_s > 0 and left_s >= self._wanted_s(window, loads):
            return None
        return f"waiting for the window {window}"

    def _wanted_s(self, window: Window, loads: int) -> float:
        """A block belongs into one window; one that no window could hold is run load by load."""
        one_s = self._load_s()
        return one_s * loads if one_s * loads <= window.length_s else one_s
