"""Hosts the best configuration: one server process, under the device lease, proven by /health."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flywheel.box import host, identity, tenants
from flywheel.box.identity import Identity
from flywheel.box.lease import Lease, device_path
from flywheel.errors import FlywheelError, Refused, UsageError

SERVER_COMMAND = (sys.executable, "-m", "engine.server")
READY_TIMEOUT_S = 600.0
GRACE_S = 10.0


@dataclass(frozen=True, slots=True)
class Address:
    """Where the server listens."""

    host: str
    port: int

    @property
    def url(self) -> str:
        """The address as a client writes it."""
        shown = "127.0.0.1" if self.host in ("0.0.0.0", "::") else self.host
        return f"http://[{shown}]:{self.port}" if ":" in shown else f"http://{shown}:{self.port}"


def health(address: Address, timeout_s: float = 2.0) -> dict[str, Any] | None:
    """The JSON of a 200 answer from /health; None for anything else."""
    try:
        with urllib.request.urlopen(f"{address.url}/health", timeout=timeout_s) as answer:
            body = json.loads(answer.read() or b"{}") if answer.status == 200 else None
    except (OSError, ValueError):
        return None
    return body if isinstance(body, dict) else ({} if body is not None else None)


def argv(config: Path, address: Address, command: tuple[str, ...] = SERVER_COMMAND) -> list[str]:
    """The command that serves a configuration."""
    return [
        *command, "--config", str(config), "--host", address.host, "--port", str(address.port),
    ]  # fmt: skip


def check_free(address: Address) -> None:
    """Refused when another program listens there; UsageError where nobody can listen."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address.host, address.port))
        except OSError as error:
            where = f"port {address.port} of {address.host}"
            if error.errno == errno.EADDRINUSE:
                raise Refused(f"{where} is taken by another program; choose --port.") from error
            raise UsageError(f"{where} cannot be listened on: {error.strerror}.") from error


class Server:
    """A started server; leave its ``with`` block and its whole group is gone."""

    def __init__(
        self,
        child: subprocess.Popen[bytes],
        lease: Lease,
        address: Address,
        log: Path,
        log_start_bytes: int,
    ) -> None:
        self.child = child
        self.address = address
        self.lease = lease
        self._log, self._log_start_bytes = log, log_start_bytes
        self._identity: Identity | None = identity.of(child.pid, zombie=True)

    @classmethod
    def start(
        cls,
        config: Path,
        address: Address,
        *,
        log: Path,
        command: tuple[str, ...] = SERVER_COMMAND,
        lease_path: Path | None = None,
    ) -> Server:
        """Take the lease and start the server; Refused when the device or the port is taken."""
        lease = Lease.acquire(lease_path or device_path(), f"flywheel serve on {address.url}")
        try:
            if (other := tenants.before_launch(host.gpus())) is not None:
                raise Refused(other)
            # A stale server on the port would answer for ours.
            if health(address, 0.5) is not None:
                raise Refused(f"something already answers at {address.url}/health.")
            check_free(address)
            with log.open("ab") as stream:
                began_bytes = stream.tell()
                child = subprocess.Popen(
                    argv(config, address, command),
                    env={**os.environ, "PYTHONUNBUFFERED": "1"},
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
        return cls(child, lease, address, log, began_bytes)

    def last_words(self) -> str:
        """The last line that this server wrote to its log."""
        with self._log.open("rb") as stream:
            stream.seek(self._log_start_bytes)
            lines = stream.read().decode("utf-8", "replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def wait_ready(
        self, timeout_s: float = READY_TIMEOUT_S, *, stopped: Callable[[], bool] = lambda: False
    ) -> dict[str, Any]:
        """What /health says once it answers; FlywheelError when the server dies or never does."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and not stopped():
            if (status := self.child.poll()) is not None:
                raise FlywheelError(
                    f"the server left with status {status} before it was ready: "
                    f"{self.last_words() or 'it said nothing'}"
                )
            if (answer := health(self.address)) is not None:
                if self.child.poll() is not None:
                    raise FlywheelError("another process answers for the server, which has died.")
                return answer
            time.sleep(0.2)
        raise FlywheelError(f"the server was not ready within {timeout_s:.0f} s.")

    def wait(self, stopped: Callable[[], bool]) -> int | None:
        """Block until the server leaves (its status) or ``stopped`` says so (None)."""
        while not stopped():
            try:
                return self.child.wait(0.5)
            except subprocess.TimeoutExpired:
                continue
        return None

    def close(self) -> None:
        """End the server's group and give the lease back."""
        if self._identity is not None:
            if self.child.poll() is None:
                os.killpg(self.child.pid, signal.SIGTERM)
                try:
                    self.child.wait(GRACE_S)
                except subprocess.TimeoutExpired:
                    os.killpg(self.child.pid, signal.SIGKILL)
                    self.child.wait(GRACE_S)
            identity.end_group(self._identity, 1.0)
        self.lease.release()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
