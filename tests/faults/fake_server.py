"""A stand-in for the engine's server: answers /health, opens, reloads and leaves as that does."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

told: dict[str, Any] = {"status": "proving", "reloads": {"count": 0, "refused": None}}


class Handler(BaseHTTPRequestHandler):
    """Says how it is."""

    def do_GET(self) -> None:
        body = json.dumps(told).encode()
        well = 200 if told["status"] == "ok" else 503
        self.send_response(well if self.path == "/health" else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", type=Path)
    parser.add_argument("--about", type=Path)
    parser.add_argument("--drain-s")
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    parser.add_argument("--die", action="store_true")
    parser.add_argument("--stubborn", action="store_true", help="refuses to reload")
    args = parser.parse_args()
    if args.die:
        sys.exit(4)

    def read(*_: object) -> None:
        told["config"] = json.loads(args.config.read_text())["config"]

    def reload(*_: object) -> None:
        refused = "Another dtype needs a restart." if args.stubborn else None
        told["reloads"] = {"count": told["reloads"]["count"] + 1, "refused": refused}
        if not args.stubborn:
            read()

    signal.signal(signal.SIGUSR1, lambda *_: told.update(status="ok"))
    signal.signal(signal.SIGHUP, reload)
    if args.config.exists():
        read()
    HTTPServer((args.host, args.port), Handler).serve_forever()
