"""STOP: a file next to the ledger that every waiting step looks for.

``flywheel stop`` addresses it to the daemon that runs now, so a leftover of that kind is known to
be stale; a file made by hand (``touch STOP``) is addressed to every daemon and stays until its
owner removes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flywheel.box import identity
from flywheel.box.clock import utc_text
from flywheel.box.identity import Identity
from flywheel.files import dump, read_json, write_atomic

FILE = "STOP"


@dataclass(frozen=True, slots=True)
class Stop:
    """A request to stop: ``now`` ends the run too; ``by_hand`` outlives the daemon."""

    now: bool
    by_hand: bool
    reason: str


def path_for(ledger: Path) -> Path:
    """Where the STOP file of a ledger lies."""
    return ledger.parent / FILE


def request(ledger: Path, daemon: Identity, *, now: bool) -> Path:
    """Ask that daemon to stop."""
    path = path_for(ledger)
    body = {"now": now, "daemon": daemon.to_json(), "asked_utc": utc_text()}
    write_atomic(path, dump(body))
    return path


def requested(ledger: Path, me: Identity | None = None) -> Stop | None:
    """The request that concerns this daemon (``me``; this process by default), if there is one."""
    path = path_for(ledger)
    if not path.exists():
        return None
    body = _body(path)
    if body is None:
        # Made by hand; the word "now" in it asks for the run to end too.
        try:
            now = path.is_file() and "now" in path.read_text(errors="replace").lower()
        except OSError:
            now = False
        return Stop(now, True, f"the file {path} asks the loop to stop")
    daemon = Identity.from_json(body.get("daemon"))
    now = body.get("now") is True
    if daemon is None:
        return Stop(now, True, f"the file {path} asks the loop to stop")
    if daemon != (me or identity.current()):
        return None
    return Stop(now, False, "flywheel stop --now" if now else "flywheel stop")


def clear(ledger: Path, me: Identity | None = None) -> None:
    """Remove a request that was addressed to one daemon and is honoured or stale by now."""
    path = path_for(ledger)
    body = _body(path)
    daemon = None if body is None else Identity.from_json(body.get("daemon"))
    if daemon is not None and (daemon == (me or identity.current()) or not alive(daemon)):
        path.unlink(missing_ok=True)


def clear_stale(ledger: Path) -> None:
    """Remove a request to a daemon that is gone; one to this daemon may have just been made."""
    body = _body(path_for(ledger))
    daemon = None if body is None else Identity.from_json(body.get("daemon"))
    if daemon is not None and not alive(daemon):
        path_for(ledger).unlink(missing_ok=True)


def _body(path: Path) -> dict[str, Any] | None:
    """What `flywheel stop` wrote; None for anything else, and a pipe is not waited for."""
    return read_json(path) if path.is_file() else None


def alive(daemon: Identity) -> bool:
    """Whether the daemon that a request names still runs."""
    return identity.is_alive(daemon)
