"""`python -m flywheel.notify LOG`: deliver the notice on stdin to its targets, and try again.

Started by the loop and left alone. Each target has a thread, so one that hangs keeps no other
waiting; what was delivered, and what was not, is a line in LOG.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from flywheel.notify.notice import Notice
from flywheel.notify.target import NotDelivered, Target, parse

# Pauses between attempts: a service that restarts is back within minutes.
PAUSES_S = (1.0, 10.0, 60.0, 300.0)


def deliver(
    target: Target,
    notice: Notice,
    pauses_s: Sequence[float] = PAUSES_S,
    sleep: Callable[[float], None] = time.sleep,
) -> str | None:
    """Try until it arrives, or there is no use in trying; why it did not, or None."""
    for pause_s in (*pauses_s, None):
        try:
            target.deliver(notice)
        except NotDelivered as error:
            if error.lasting or pause_s is None:
                return str(error)
            sleep(pause_s)
        else:
            return None
    raise AssertionError("the last attempt has no pause after it")


def main(arguments: Sequence[str], read: Callable[[], str] = sys.stdin.read) -> int:
    """Deliver one notice everywhere; 1 when some target did not get it."""
    told = json.loads(read())
    notice, log = Notice.from_json(told["notice"]), Path(arguments[0])
    failed: list[str] = []
    turn = threading.Lock()

    def one(text: str) -> None:
        target = parse(text)
        why = deliver(target, notice)
        with turn:
            _write(log, notice, target.name, why)
            failed.extend([] if why is None else [why])

    threads = [threading.Thread(target=one, args=(text,)) for text in told["targets"]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return 1 if failed else 0


def _write(log: Path, notice: Notice, name: str, why: str | None) -> None:
    outcome = "delivered" if why is None else f"not delivered, {why}"
    # A full disk costs the line, and nothing else.
    with contextlib.suppress(OSError), log.open("a", encoding="utf-8") as stream:
        stream.write(f"{notice.when_utc} {notice.event}: {name}: {outcome}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
