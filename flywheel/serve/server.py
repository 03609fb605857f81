"""The server's process: under the device lease, in a group of its own, gone when it is closed."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flywheel.box import host, identity, tenants
from flywheel.box.identity import Identity
from flywheel.box.lease import Lease, device_path
from flywheel.errors import FlywheelError, Refused, UsageError
from flywheel.serve.address import Address, health, told
from flywheel.serve.faults import FaultLog

SERVER_COMMAND = (sys.executable, "-m", "engine.server")
READY_TIMEOUT_S = 600.0
RELOAD_TIMEOUT_S = 120.0
GRACE_S = 10.0
MISTAKEN = 2  # a server's status where it was asked for what cannot be
POLL_S = 0.2
# The word that requests of the proof bring, before a server answers anybody else.
PROOF_VARIABLE = "FLYWHEEL_PROOF"
# The server ends by itself when this process has gone without ending it.
HOST_VARIABLE = "FLYWHEEL_HOST_PID"


@dataclass(frozen=True, slots=True)
class Setup:
    """How a server is started. ``drain_s`` is what answers in progress get at the end."""

    address: Address
    log: Path
    about: Path | None = None
    drain_s: float = 0.0
    command: tuple[str, ...] = SERVER_COMMAND
    options: tuple[str, ...] = ()  # more of the server's own

    def argv(self, config: Path) -> list[str]:
        """The command that serves a configuration."""
        about = () if self.about is None else ("--about", str(self.about))
        drain = ("--drain-s", f"{self.drain_s:g}") if self.drain_s > 0 else ()
        host, port = self.address.host, str(self.address.port)
        return [
            *self.command, "--config", str(config), "--host", host, "--port", port, *about, *drain,
            *self.options,
        ]  # fmt: skip


class Server:
    """A started server; leave its ``with`` block and its whole group is gone."""

    def __init__(
        self,
        child: subprocess.Popen[bytes],
        lease: Lease,
        setup: Setup,
        log_start_bytes: int,
        word: str,
    ) -> None:
        self.child = child
        self.address = setup.address
        self.lease = lease
        self.word = word
        self._setup, self._log_start_bytes = setup, log_start_bytes
        self._identity: Identity | None = identity.of(child.pid, zombie=True)

    @classmethod
    def start(
        cls, config: Callable[[], Path], setup: Setup, *, lease_path: Path | None = None
    ) -> Server:
        """Take the lease and start the server; Refused when the device or the port is taken.

        ``config`` leaves the file that the server reads. It is called once both are ours: until
        then that file is another server's.
        """
        address, word = setup.address, secrets.token_hex(16)
        lease = Lease.acquire(lease_path or device_path(), f"flywheel serve on {address.url}")
        try:
            if (other := tenants.before_launch(host.gpus())) is not None:
                raise Refused(other)
            _check(address)
            argv = setup.argv(config())
            with setup.log.open("ab") as stream:
                began_bytes = stream.tell()
                child = subprocess.Popen(
                    argv,
                    env={
                        **os.environ, "PYTHONUNBUFFERED": "1", PROOF_VARIABLE: word,
                        HOST_VARIABLE: str(os.getpid()),
                    },
                    stdin=subprocess.DEVNULL,
                    stdout=stream,
                    stderr=stream,
                    start_new_session=True,
                )
        except OSError as error:
            lease.release()
            raise FlywheelError(f"the server could not be started: {error}.") from error
        except FlywheelError:
            lease.release()
            raise
        return cls(child, lease, setup, began_bytes, word)

    def fault_log(self) -> FaultLog:
        """The faults that its log tells of."""
        return FaultLog(self._setup.log, self._log_start_bytes)

    def last_words(self) -> str:
        """The last line that this server wrote to its log."""
        with self._setup.log.open("rb") as stream:
            stream.seek(self._log_start_bytes)
            lines = stream.read().decode("utf-8", "replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def wait_ready(
        self, timeout_s: float = READY_TIMEOUT_S, *, stopped: Callable[[], bool] = lambda: False
    ) -> dict[str, Any] | None:
        """What /health says once the model is loaded; None when ``stopped`` said so before.

        FlywheelError when the server dies or is never ready.
        """
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if stopped():
                return None
            if (status := self.child.poll()) is not None:
                said = self.last_words() or "it said nothing"
                if status == MISTAKEN:
                    raise UsageError(f"this cannot be served: {said}")
                raise FlywheelError(
                    f"the server left with status {status} before it was ready: {said}"
                )
            answered, body = told(self.address)
            if answered == 200 or body.get("status") == "proving":
                if self.child.poll() is not None:
                    raise FlywheelError("another process answers for the server, which has died.")
                return body
            time.sleep(POLL_S)
        raise FlywheelError(f"the server was not ready within {timeout_s:.0f} s.")

    def open(self, timeout_s: float = RELOAD_TIMEOUT_S) -> dict[str, Any]:
        """Let everybody in, now that it is proven; what /health says then."""
        deadline = time.monotonic() + timeout_s
        self.child.send_signal(signal.SIGUSR1)
        while time.monotonic() < deadline and self.child.poll() is None:
            if (answer := health(self.address)) is not None:
                return answer
            time.sleep(POLL_S)
        raise FlywheelError(f"the server did not open: {self.last_words() or 'it said nothing'}")

    def reload(self, timeout_s: float = RELOAD_TIMEOUT_S) -> str | None:
        """Have it read its configuration again, streams going on; why not, or None when it did."""
        deadline = time.monotonic() + timeout_s
        before = _reloads(told(self.address)[1])
        self.child.send_signal(signal.SIGHUP)
        while time.monotonic() < deadline and self.child.poll() is None:
            now = _reloads(told(self.address)[1])
            if now.get("count") != before.get("count"):
                return now.get("refused")
            time.sleep(POLL_S)
        return "it did not answer the request to reload"

    def close(self) -> None:
        """End the server's group and give the lease back."""
        if self._identity is not None:
            if self.child.poll() is None:
                os.killpg(self.child.pid, signal.SIGTERM)
                try:
                    self.child.wait(self._setup.drain_s + GRACE_S)
                except subprocess.TimeoutExpired:
                    os.killpg(self.child.pid, signal.SIGKILL)
                    self.child.wait(GRACE_S)
            identity.end_group(self._identity, 1.0)
        self.lease.release()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _reloads(body: dict[str, Any]) -> dict[str, Any]:
    found = body.get("reloads")
    return found if isinstance(found, dict) else {}


def _check(address: Address) -> None:
    """Nobody may be at the address: a stale server there would answer for ours.

    An address that is not this machine's is a mistake, and is not asked anything.
    """
    taken = Refused(f"something already answers at {address.url}/health.")
    try:
        address.check_free()
    except Refused as refused:
        raise taken if told(address, 0.5)[0] else refused from None
    if told(address, 0.5)[0]:
        raise taken
