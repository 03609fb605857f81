"""Where a server listens, and what it says there about itself."""

from __future__ import annotations

import errno
import http.client
import json
import socket
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

from flywheel.errors import Refused, UsageError


@dataclass(frozen=True, slots=True)
class Address:
    """Where the server listens."""

    host: str
    port: int

    def __post_init__(self) -> None:
        """UsageError for what names no address; an empty one would mean every address there is."""
        if not self.host or not self.host.isprintable() or set(self.host) & set(" /[]@?#%"):
            raise UsageError(f"--host {self.host!r} is no address; 127.0.0.1 is this machine.")

    @property
    def url(self) -> str:
        """The address as a client writes it."""
        shown = "127.0.0.1" if self.host in ("0.0.0.0", "::") else self.host
        return f"http://[{shown}]:{self.port}" if ":" in shown else f"http://{shown}:{self.port}"

    @property
    def family(self) -> socket.AddressFamily:
        """IPv6 for an address with colons."""
        return socket.AF_INET6 if ":" in self.host else socket.AF_INET

    def check_free(self) -> None:
        """Refused when another program listens there; UsageError where nobody can listen."""
        with socket.socket(self.family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((self.host, self.port))
            except OSError as error:
                where = f"port {self.port} of {self.host}"
                if error.errno == errno.EADDRINUSE:
                    raise Refused(f"{where} is taken by another program; choose --port.") from error
                raise UsageError(f"{where} cannot be listened on: {error.strerror}.") from error


def health(address: Address, timeout_s: float = 2.0) -> dict[str, Any] | None:
    """The JSON of a 200 answer from /health; None for anything else."""
    status, body = told(address, timeout_s)
    return body if status == 200 else None


def told(address: Address, timeout_s: float = 2.0) -> tuple[int, dict[str, Any]]:
    """Status and JSON of /health, whatever it is; status 0 where nobody answers."""
    try:
        with urllib.request.urlopen(f"{address.url}/health", timeout=timeout_s) as answer:
            return answer.status, _object(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            try:
                return error.code, _object(error.read())
            except (OSError, ValueError, http.client.HTTPException):
                return error.code, {}
    except (OSError, ValueError, http.client.HTTPException):  # something else than a web server
        return 0, {}


def _object(raw: bytes) -> dict[str, Any]:
    try:
        body = json.loads(raw or b"{}")
    except RecursionError:  # of brackets without end
        raise ValueError("nested too deeply") from None
    return body if isinstance(body, dict) else {}
