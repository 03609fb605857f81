"""A stand-in for an engine that is hard to end: deaf to TERM, with a child in its group, one in a
session of its own, and an orphan in another.  It writes their pids, its own first."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

SLEEP = ["sleep", "60"]
# A child that leaves a grandchild behind.
FORK = (
    "import subprocess; print(subprocess.Popen(['sleep', '60'], start_new_session=True,"
    " stdout=subprocess.DEVNULL).pid)"
)


def main() -> None:
    """Found the family and sleep."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen(SLEEP).pid
    apart = subprocess.Popen(SLEEP, start_new_session=True).pid
    orphan = subprocess.check_output([sys.executable, "-c", FORK])
    target = Path(sys.argv[1])
    part = target.with_suffix(".part")
    part.write_text(f"{os.getpid()} {child} {apart} {int(orphan)}")
    part.rename(target)
    time.sleep(60)


if __name__ == "__main__":
    main()
