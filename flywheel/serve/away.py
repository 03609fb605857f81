"""While the night has the device, whoever asks is told when the server is back."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from flywheel.serve.address import Address

# Of a body that is sent to nobody: read, so that the client reads the answer, and forgotten.
_DRAIN_BYTES = 16 << 20
_PATIENCE_S = 5.0


@contextlib.contextmanager
def answering(address: Address, back_s: Callable[[], float], back_at: str) -> Iterator[None]:
    """Answer 503 to everything while the block lasts; nobody answers where the port is taken.

    ``back_s`` gives the seconds until the server is expected, ``back_at`` the time of day.
    """
    try:
        server = _server(address, back_s, back_at)
    except OSError:
        yield
        return
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True, name="away")
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _server(address: Address, back_s: Callable[[], float], back_at: str) -> ThreadingHTTPServer:
    sentence = (
        f"This box is optimising its model and serves nobody until {back_at}; try again then."
    )

    class Handler(BaseHTTPRequestHandler):
        """One sentence for everybody."""

        timeout = _PATIENCE_S

        def do_GET(self) -> None:
            """The sentence, as JSON."""
            error = {"message": sentence, "type": "server_error", "param": None, "code": "away"}
            told: dict[str, Any] = {"status": "away", "message": sentence, "error": error}
            body = json.dumps(told).encode()
            self.send_response(503)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Retry-After", str(max(1, round(back_s()))))
            self.send_header("Connection", "close")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def do_POST(self) -> None:
            """The same, once the body is read."""
            left = _length(self.headers.get("Content-Length", "0"))
            while left and (piece := self.rfile.read(min(left, 1 << 16))):
                left -= len(piece)
            self.do_GET()

        do_HEAD = do_OPTIONS = do_DELETE = do_GET  # noqa: N815 - the library's names
        do_PUT = do_PATCH = do_POST  # noqa: N815

        def log_message(self, *_: object) -> None:
            """Nobody reads a log of refusals."""

    class Server(ThreadingHTTPServer):
        """On the family of the address."""

        address_family = address.family
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """A client that hung up, or never spoke HTTP, is nobody's trouble at night."""

    return Server((address.host, address.port), Handler)


def _length(told: str) -> int:
    """How much of a body to read, by what a client says of it."""
    digits = told.strip()
    if not (digits.isascii() and digits.isdecimal()):
        return 0
    return min(int(digits[:12]), _DRAIN_BYTES)
