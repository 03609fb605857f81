"""`python -m engine.server`: host one configuration on one address until told to stop."""

from __future__ import annotations

import argparse
import asyncio
import ipaddress
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn

from engine.errors import ConfigError, EngineError
from engine.server.deployment import CAPACITY, MEMORY_BYTES, Deployment
from engine.server.guard import VARIABLE, checked
from engine.server.limits import Limits

if TYPE_CHECKING:
    from engine.server.service import Service

DRAIN_POLL_S = 0.05
GRACE_S = 1  # for open connections; the worker gets half of that again
WRONG, FAILED = 2, 1
BACKLOG = 2048  # connections that nobody has accepted yet
# A word that whoever started the server proves it with, before anybody else is answered.
PROOF_VARIABLE = "FLYWHEEL_PROOF"
# The process that a server belongs to: without it nobody would ever end it.
HOST_VARIABLE = "FLYWHEEL_HOST_PID"
HOST_POLL_S = 1.0


class _Server(uvicorn.Server):
    """Uvicorn, except that open streams are ended on a signal and that obeying one is success."""

    def __init__(self, config: uvicorn.Config, service: Service, drain_s: float) -> None:
        super().__init__(config)
        self._service = service
        self._drain_s = drain_s
        self._draining: asyncio.Task[None] | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop; a second interrupt does not wait for anybody."""
        loop = asyncio.get_running_loop()
        if sig == signal.SIGTERM and self._drain_s > 0 and self._draining is None:
            self._draining = loop.create_task(self._drain())
            loop.call_soon_threadsafe(lambda: None)  # wakes a loop that waits for its sockets
            return
        if self.should_exit and sig == signal.SIGINT:
            self.force_exit = True
        self.should_exit = True
        loop.call_soon_threadsafe(self._service.close)

    async def _drain(self) -> None:
        """Let what is being answered come to its end, for so long."""
        self._service.drain()
        until_s = time.monotonic() + self._drain_s
        while self._service.busy and time.monotonic() < until_s:
            await asyncio.sleep(DRAIN_POLL_S)
        self.should_exit = True
        self._service.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve; exit status 0 after a signal, 2 for what cannot be served, 1 where it failed."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")

    def deployed() -> Deployment:
        return Deployment.load(
            options.config,
            checkpoint=options.checkpoint,
            head=options.head,
            name=options.name,
            memory_bytes=max(0, options.memory_mb) << 20,
            about=options.about,
            capacity=options.clients,
        )

    try:
        deployment = deployed()
        key = _key(options.key_file)
        listener = listen(options.host, options.port)
    except EngineError as error:
        print(error, file=sys.stderr)
        return WRONG
    # Seconds of imports: mistakes are told before them, and no loop of events waits for them.
    from engine.server import app as app
    from engine.server.service import Service

    limits = Limits(
        body_bytes=options.body_mb << 20, answer_s=options.timeout_s, ping_s=options.ping_s
    )
    proof = os.environ.pop(PROOF_VARIABLE, None)
    host = os.environ.pop(HOST_VARIABLE, "")
    service = Service(deployment, waiting_limit=options.queue, limits=limits, proof=proof)
    serving = serve(
        service,
        listener,
        key=key,
        origins=options.origin,
        deployed=deployed,
        drain_s=options.drain_s,
        host_pid=int(host) if host.isdecimal() else None,
    )
    return asyncio.run(serving)


async def serve(
    service: Service,
    listener: socket.socket,
    *,
    key: str | None = None,
    origins: Sequence[str] = (),
    deployed: Callable[[], Deployment] | None = None,
    drain_s: float = 0.0,
    host_pid: int | None = None,
) -> int:
    """Load and answer on a bound socket until a signal; the process's exit status.

    With `host_pid` it also ends, as after TERM, once that is no longer its parent.

    HUP switches to what `deployed` reads then; USR1 opens a server that waits to be proven.
    """
    from engine.server.app import create_app

    config = uvicorn.Config(
        create_app(service, key=key, origins=origins),
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE_S,
    )
    server = _Server(config, service, drain_s)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, service.open)
    if deployed is not None:
        loop.add_signal_handler(signal.SIGHUP, service.reload, deployed)
    watch = None if host_pid is None else loop.create_task(_end_with(host_pid, server))
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host

    def settled() -> None:
        if service.error is not None:
            server.should_exit = True
            return
        context = service.loaded.engine.config.context
        print(
            f"Serving {service.deployment.name} at http://{shown}:{port}/v1"
            f" (context {context} tokens). Ctrl-C ends it.",
            flush=True,
        )

    if key is None and not ipaddress.ip_address(host).is_loopback:
        print(f"Whoever reaches {shown} can use this server: it asks for no key.", file=sys.stderr)
    with server.capture_signals():  # from before there is a thread that a signal must end
        print(f"Loading {service.deployment.checkpoint} ...", flush=True)
        service.start(settled)
        await server.serve(sockets=[listener])
    if watch is not None:
        watch.cancel()
    if service.error is not None:
        print(service.error, file=sys.stderr)
        return WRONG if service.mistaken else FAILED
    service.close()
    if not service.join(GRACE_S / 2):
        # The engine is deep in one step; nothing of value is lost by not waiting for it.
        sys.stdout.flush()
        os._exit(0)
    return 0


async def _end_with(host_pid: int, server: _Server) -> None:
    while os.getppid() == host_pid:
        await asyncio.sleep(HOST_POLL_S)
    print(f"The host, process {host_pid}, has gone: this server ends.", file=sys.stderr, flush=True)
    server.handle_exit(signal.SIGTERM, None)


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens, so that a taken port is known before minutes of loading."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except (OSError, OverflowError) as error:
        listener.close()
        why = getattr(error, "strerror", None) or error
        raise EngineError(f"Cannot listen on {host} port {port}: {why}.") from None
    return listener


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m engine.server", description=__doc__)
    parser.add_argument("--config", type=Path, help="best.json; absent: the default configuration")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    parser.add_argument("--port", type=int, default=8000, help="0 takes a free one (%(default)s)")
    parser.add_argument("--checkpoint", type=Path, help="instead of the one in the config")
    parser.add_argument("--head", type=Path, help="folder of a separate draft head")
    parser.add_argument("--name", help="the model's id; absent: the checkpoint folder's name")
    parser.add_argument("--about", type=Path, help="JSON file that /about shows")
    parser.add_argument(
        "--drain-s",
        type=float,
        default=0.0,
        help="after TERM, seconds for answers in progress; a second one ends them (%(default)s)",
    )
    parser.add_argument(
        "--clients",
        type=_positive,
        default=CAPACITY,
        help="replies generated together (%(default)s)",
    )
    parser.add_argument("--queue", type=int, default=8, help="requests that may wait (%(default)s)")
    parser.add_argument(
        "--key-file",
        type=Path,
        help=f"file whose text clients must send as their key; {VARIABLE} in the environment does"
        " the same",
    )
    parser.add_argument(
        "--origin",
        action="append",
        default=[],
        help="a web origin whose pages may read answers (may be repeated; none)",
    )
    defaults = Limits()
    parser.add_argument(
        "--body-mb",
        type=_positive,
        default=defaults.body_bytes >> 20,
        help="MiB that a request may have (%(default)s)",
    )
    parser.add_argument(
        "--timeout-s",
        type=_seconds,
        default=defaults.answer_s,
        help="longest time for an answer (%(default)g)",
    )
    parser.add_argument(
        "--ping-s",
        type=_seconds,
        default=defaults.ping_s,
        help="silence after which a stream shows that it is alive (%(default)g)",
    )
    parser.add_argument(
        "--memory-mb",
        type=int,
        default=MEMORY_BYTES >> 20,
        help="MiB for beginnings of prompts, so that a conversation need not be read again from its"
        " start; 0 keeps none (%(default)s)",
    )
    return parser


def _key(path: Path | None) -> str | None:
    """The key that clients must have: from a file, or else from the environment."""
    if path is None:
        given = os.environ.get(VARIABLE)
        return None if given is None else checked(given)
    try:
        return checked(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"The key file {path} cannot be read: {error}.") from None


def _seconds(text: str) -> float:
    number = float(text)
    if not 0 < number < float("inf"):
        raise ValueError(text)
    return number


def _positive(text: str) -> int:
    if (number := int(text)) < 1:
        raise ValueError(text)
    return number
