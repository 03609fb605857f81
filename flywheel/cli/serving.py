"""`flywheel serve`: options to an order, signals to wishes, and what happens to lines."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from rich.text import Text

from flywheel import synthetic
from flywheel.box.clock import SystemClock, Window
from flywheel.cli import levers as cli_levers
from flywheel.cli.commands import (
    SERVER_VARIABLE,
    checkpoint_path,
    command_from,
    measured_checkpoint,
)
from flywheel.cli.terminal import console, emit, error_console
from flywheel.display.panel import forgiven
from flywheel.errors import UsageError
from flywheel.serve.address import Address
from flywheel.serve.chosen import Chosen, decision_number
from flywheel.serve.hosting import Asked, Host, Order
from flywheel.serve.server import SERVER_COMMAND, Server

KEY_VARIABLE = "FLYWHEEL_API_KEY"


def serve(
    path: Path,
    address: Address,
    *,
    checkpoint: Path | None,
    config: Path | None,
    at: str | None,
    run_window: str | None,
    drain_s: float,
    run_arguments: list[str],
    key_file: Path | None,
    options: list[str],
    json_: bool,
) -> int:
    """Host until told to stop; ``options`` are the server's own, as its command line has them."""
    measured = measured_checkpoint(path) if checkpoint is None and config is None else None
    served = checkpoint_path(checkpoint or measured)
    if synthetic.name_of(served) is not None:
        raise UsageError(f"{served} has random weights: there is nothing to serve.")
    order = Order(
        ledger=path,
        address=address,
        checkpoint=served,
        file=None if config is None else config.expanduser().resolve(),
        at=None if at is None else decision_number(at),
        window=None if run_window is None else Window.parse(run_window),
        run_arguments=tuple(run_arguments),
        drain_s=drain_s,
        command=command_from(SERVER_VARIABLE, SERVER_COMMAND),
        options=(*options, *(("--key-file", str(key_file)) if key_file is not None else ())),
        key=_key(key_file),
    )
    levers = cli_levers.known(path) if path.exists() else ()
    teller = _Teller(json_=json_)
    with _asked() as asked:
        host = Host(
            order, levers, clock=SystemClock(), asked=asked, say=teller.say, serving=teller.serving
        )
        host.run()
    return 0


class _Teller:
    """Lines for a person, or one document for a program: the first server that was opened.

    A terminal that is gone by now, which HUP may have told us of, ends no service.
    """

    def __init__(self, *, json_: bool) -> None:
        self._json = json_
        self._announced = False
        self._aside = error_console()

    def say(self, sentence: str) -> None:
        """What happens."""
        with forgiven():
            self._aside.print(Text(sentence), soft_wrap=True)

    def serving(self, server: Server, choice: Chosen, told: Mapping[str, Any], shown: str) -> None:
        """A server is open."""
        with forgiven():
            if not self._json:
                said = f"serving at {server.address.url}: {choice.label} ({shown})"
                console().print(Text(said), soft_wrap=True)
            elif not self._announced:
                emit({"url": server.address.url, "pid": server.child.pid,
                      "decision": choice.decision, "serving": choice.label, "proof": shown,
                      "health": told})  # fmt: skip
        self._announced = True


def _key(path: Path | None) -> str | None:
    """The key that the server will want, from where it reads it itself."""
    if path is None:
        return os.environ.get(KEY_VARIABLE, "").strip() or None
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the key file {path} cannot be read: {error}.") from error


@contextlib.contextmanager
def _asked() -> Iterator[Asked]:
    """What Ctrl-C, TERM (stop) and HUP (reload) ask for while the block is open."""
    asked = Asked()

    def on_signal(signum: int, _frame: FrameType | None) -> None:
        if signum == signal.SIGHUP:
            asked.reload = True
        else:
            asked.stop = True

    heard = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {one: signal.signal(one, on_signal) for one in heard}
    try:
        yield asked
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
