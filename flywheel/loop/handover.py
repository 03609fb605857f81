"""Taking the device, also from a run of this ledger that is just letting go of it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

from flywheel.box import device
from flywheel.box.clock import Clock
from flywheel.box.lease import Lease, device_path, holder
from flywheel.errors import LeaseBusy
from flywheel.ledger import takeovers
from flywheel.ledger.store import Ledger
from flywheel.loop.wishes import Wish, Wishes

PURPOSE = "flywheel run"
# A supervisor that has left its word, or whose run was taken from it, is gone within this time.
PATIENCE_S = 15.0


def take(homes: Collection[Path], wishes: Wishes, clock: Clock) -> Lease | Wish:
    """The device's lease; LeaseBusy names who has it.

    A supervisor of this ledger's own runs, of which none is open any more, is waited for: their
    directories lie in one of `homes`.
    """
    path = device_path()
    until_s = clock.monotonic_s() + PATIENCE_S
    was_free = False
    while True:
        try:
            return Lease.acquire(path, PURPOSE)
        except LeaseBusy:
            held = holder(path)
            # Free by now: it was let go of in this instant, or an orphan sits on the device.
            ours = not was_free if held is None else _of(held.run_dir, homes)
            was_free = held is None
            if not ours or clock.monotonic_s() >= until_s:
                raise
        if (wish := wishes.wait(0.2)) is not None:
            return wish


def record(ledger: Ledger, taken: Lease, *, now_utc: str, say: Callable[[str], None]) -> None:
    """A lease that nobody gave back was taken: the history says from whom, and the proof."""
    if (takeover := taken.takeover) is None:
        return
    say(f"the device was not given back by {takeover.previous}: {takeover.proof}")
    takeovers.record(
        ledger,
        path=str(taken.path),
        device=device.key(),
        previous=takeover.previous.to_json(),
        proof=takeover.proof,
        now_utc=now_utc,
    )


def _of(run_dir: str | None, homes: Collection[Path]) -> bool:
    above = () if run_dir is None else Path(run_dir).resolve().parents
    return any(home.resolve() in above for home in homes)
