"""A proposer as a process: what it gets, what it said, and its end. It is never trusted.

It runs in a session of its own, without the loop's environment, descriptors or device, and, where
the kernel allows it, without a network and with everything but its own folder read-only (``cage``).
It is ended, with all that it started, at its time limit, when it says too much, or when the loop is
to stop.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from flywheel.box import identity
from flywheel.box.clock import Clock
from flywheel.errors import UsageError
from flywheel.loop.wishes import Wish, Wishes
from flywheel.propose.attempt import Terms

MOST_BYTES = 4 << 20
GRACE_S = 1.0
LOOK_AGAIN_S = 0.25
# What a program needs to start at all; nothing of it is a secret.
_PLAIN = ("PATH", "LANG", "LC_ALL", "TZ", "VIRTUAL_ENV", "SSL_CERT_FILE", "SSL_CERT_DIR")
_PACKAGES = Path(__file__).resolve().parents[2]
# How a usage limit is said by a program that answers nothing: "temporary failure", try later.
TEMPORARY = 75


@dataclass(frozen=True, slots=True)
class Exchange:
    """One run of a proposer. `ended` says why it was ended, and is empty when it left by itself."""

    sent: str
    stdout: str
    stderr: str
    status: int | None
    wall_s: float
    ended: str = ""
    wish: Wish | None = None

    @property
    def last_words(self) -> str:
        """The last line that it said beside its answer."""
        lines = [line.strip() for line in self.stderr.splitlines() if line.strip()]
        return lines[-1][:300] if lines else "it said nothing"


def environment(folder: Path, terms: Terms, outer: Mapping[str, str]) -> dict[str, str]:
    """What a proposer's environment holds: a few plain variables, and those named in the terms.

    UsageError for a named variable that is not set.
    """
    home = str(folder)
    found = {name: outer[name] for name in _PLAIN if name in outer}
    found |= {"HOME": home, "TMPDIR": home, "CUDA_VISIBLE_DEVICES": ""}
    found["PYTHONPATH"] = str(_PACKAGES)
    for name in terms.environment:
        if name not in outer:
            raise UsageError(f"--proposer-env names {name}, which is not set.")
        found[name] = outer[name]
    return found


def caged(
    argv: Sequence[str], folder: Path, terms: Terms, shielded: Sequence[Path]
) -> tuple[str, ...]:
    """The command line that shuts a program in: no network unless the terms say so."""
    words = [sys.executable, "-P", "-m", "flywheel.propose.cage", "--write", str(folder)]
    words += ["--parent", str(os.getpid())]
    for path in shielded:
        words += ["--read-only", str(path)]
    return (*words, *(("--network",) if terms.network else ()), "--", *argv)


def exchange(
    argv: Sequence[str],
    sent: str,
    folder: Path,
    *,
    variables: Mapping[str, str],
    timeout_s: float,
    clock: Clock,
    wishes: Wishes | None = None,
) -> Exchange:
    """Run a program in `folder` with `sent` on its stdin, to its end or to ours."""
    began_s = clock.monotonic_s()
    with contextlib.ExitStack() as open_:
        try:
            # Files without a name: what lies in its folder is the program's own, to remove or to
            # replace by a pipe or a link, and nothing there is opened by us.
            given, out, err = (
                open_.enter_context(tempfile.TemporaryFile(dir=folder)) for _ in range(3)
            )
            given.write(sent.encode())
            given.seek(0)
            child = subprocess.Popen(
                argv, cwd=folder, env=dict(variables), stdin=given, stdout=out, stderr=err,
                start_new_session=True,
            )  # fmt: skip
        except (OSError, ValueError) as error:
            return Exchange(sent, "", "", None, 0.0, f"it cannot be started: {error}")
        born = identity.of(child.pid, zombie=True)
        ended, wish = "", None
        try:
            ended, wish = _attend(child, (out, err), began_s + timeout_s, timeout_s, clock, wishes)
        finally:
            _end(child, born)
        wall_s = clock.monotonic_s() - began_s
        return Exchange(sent, _read(out), _read(err), child.returncode, wall_s, ended, wish)


def _attend(
    child: subprocess.Popen[bytes],
    files: Sequence[IO[bytes]],
    until_s: float,
    timeout_s: float,
    clock: Clock,
    wishes: Wishes | None,
) -> tuple[str, Wish | None]:
    while child.poll() is None:
        if wishes is None:
            clock.sleep(LOOK_AGAIN_S)
        elif (wish := wishes.wait(LOOK_AGAIN_S)) is not None:
            return f"the loop was to stop: {wish.reason}", wish
        if any(os.fstat(one.fileno()).st_size > MOST_BYTES for one in files):
            return f"it said more than {MOST_BYTES >> 20} MiB", None
        if clock.monotonic_s() > until_s:
            return f"it took longer than {timeout_s:.0f} s", None
    return "", None


def _end(child: subprocess.Popen[bytes], born: identity.Identity | None) -> None:
    """End it and all that it started, also what it left behind in other groups."""
    if born is not None:
        identity.end_family(born, born, GRACE_S)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(0 if child.returncode is not None else GRACE_S)
    if born is not None and child.returncode is None:
        identity.end_group(born, GRACE_S)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(GRACE_S)


def _read(file: IO[bytes]) -> str:
    # From the start, wherever a program that still holds the file has moved to.
    try:
        return os.pread(file.fileno(), MOST_BYTES, 0).decode("utf-8", "replace")
    except OSError:
        return ""


def outer_environment() -> Mapping[str, str]:
    """The environment that a person started flywheel in."""
    return os.environ
