"""Hands a notice to a process that delivers it, and returns at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from flywheel.notify.notice import Notice

LOG = "notify.log"


def send(targets: Sequence[str], notice: Notice, folder: Path) -> str | None:
    """Start the delivery; a sentence when that could not even be begun.

    The process has a session of its own, holds nothing of the loop's, and writes to `notify.log`
    in `folder`.
    """
    if not targets:
        return None
    root = Path(__file__).resolve().parents[2]
    paths = [str(root), os.environ.get("PYTHONPATH", "")]
    body = json.dumps({"notice": notice.to_json(), "targets": list(targets)}).encode()
    try:
        child = subprocess.Popen(
            # -P: what lies in the folder that the loop was started in is not taken for ours.
            [sys.executable, "-P", "-m", "flywheel.notify", str((folder / LOG).resolve())],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        # A notice is a few hundred bytes; a pipe holds them before anybody reads.
        assert child.stdin is not None
        with child.stdin:
            child.stdin.write(body)
    except OSError as error:
        return f"a notice could not be sent: {error.strerror}"
    return None
