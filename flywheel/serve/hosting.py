"""Days and nights of a host: serve the best, hand the device over in the window, come back.

A day is one server, proven before it answers anybody. A night is one `flywheel run`, a process of
its own. Neither begins before the other has given the device back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flywheel.box.clock import Clock, Window, utc_text
from flywheel.box.lease import Lease
from flywheel.errors import FlywheelError, LedgerError, Refused, UsageError
from flywheel.heads.archive import root_of
from flywheel.ledger import views
from flywheel.ledger.store import Ledger
from flywheel.lever import Lever
from flywheel.loop import handover
from flywheel.serve import chosen as choosing, proof as proving, story
from flywheel.serve.address import Address, told as asked_health
from flywheel.serve.chosen import Chosen
from flywheel.serve.faults import FaultKeeper, FaultLog, of_exit
from flywheel.serve.night import Night
from flywheel.serve.proof import NotReproduced
from flywheel.serve.server import SERVER_COMMAND, Server, Setup

POLL_S = 0.25
REFUSED_S = 5.0  # before a refusal is tried again
LOG = "serve.log"
# A server that dies is started again, but not for ever.
RESTARTS, RESTARTS_WITHIN_S = 3, 3600.0


@dataclass(frozen=True, slots=True)
class Order:
    """What `flywheel serve` was asked for. At most one of ``file`` and ``at`` pins the choice."""

    ledger: Path
    address: Address
    checkpoint: Path
    file: Path | None = None
    at: int | None = None
    window: Window | None = None
    run_arguments: tuple[str, ...] = ()
    drain_s: float = 30.0
    command: tuple[str, ...] = SERVER_COMMAND
    options: tuple[str, ...] = ()  # the server's own, as its command line has them
    key: str | None = None  # what clients must send, and so the proof too

    def __post_init__(self) -> None:
        pins = [name for name, pin in (("--config", self.file), ("--at", self.at)) if pin]
        if len(pins) > 1:
            raise UsageError("--config and --at both say what to serve; give one of them.")
        if pins and self.window is not None:
            raise UsageError(f"--run-window comes back with the new best; {pins[0]} excludes it.")
        if self.run_arguments and self.window is None:
            raise UsageError("what follows -- goes to flywheel run, which needs --run-window.")

    @property
    def folder(self) -> Path:
        """Where the ledger lies, and beside it what this host writes."""
        return self.ledger.parent


@dataclass(slots=True)
class Asked:
    """What signals have asked for so far."""

    stop: bool = False
    reload: bool = False


class _Again(Exception):  # noqa: N818 - no error: the day begins anew
    """Start the server again, once this one has drained."""


class Host:
    """One `flywheel serve`.

    ``say`` is told what happens, in sentences; ``serving`` gets what each new server says of itself
    once it is open.
    """

    def __init__(
        self,
        order: Order,
        levers: Sequence[Lever],
        *,
        clock: Clock,
        asked: Asked,
        say: Callable[[str], None],
        serving: Callable[[Server, Chosen, Mapping[str, Any], str], None],
    ) -> None:
        self.order = order
        self._levers = levers
        self._clock = clock
        self._asked = asked
        self._say = say
        self._serving = serving
        self._crashes: deque[float] = deque()
        self._worked = False  # in the window that is open now
        self._proven: Chosen | None = None  # the last one that was open
        self._instead: Chosen | None = None  # of the best, until there may be another one
        self._faults = FaultKeeper(order.ledger, say, lambda: not asked.stop)

    def run(self) -> None:
        """Serve until asked to stop. Raises what makes serving impossible.

        Once it has served, nobody may be there to see a refusal: then it waits, or goes on with
        what it has served before.
        """
        self._choose()  # what cannot be chosen is said before the device is taken
        said = ""
        while not self._asked.stop:
            try:
                self._turn()
            except _Again:
                continue
            except NotReproduced as error:
                self._fall_back(error)
            except Refused as error:
                if self._proven is None:
                    raise
                if str(error) != said:
                    self._say(f"{error} Waiting for that to pass.")
                said = str(error)
                self._rest(REFUSED_S)

    def _turn(self) -> None:
        """A day or a night."""
        if self._night_is_due():
            self._worked = True
            self._instead = None
            self._night()
        else:
            self._day()

    def _fall_back(self, error: NotReproduced) -> None:
        """After a refusal of something new, serve what was good enough before."""
        if self._proven is None or self._instead is not None:
            raise error
        self._instead = self._proven
        self._say(f"{error} Serving {self._proven.label} as before.")

    def _rest(self, seconds: float) -> None:
        until_s = self._clock.monotonic_s() + seconds
        while not self._asked.stop and self._clock.monotonic_s() < until_s:
            self._clock.sleep(POLL_S)

    # -- the day ---------------------------------------------------------------------------

    def _day(self) -> None:
        choice = self._instead or self._choose()
        order = self.order
        about = order.folder / story.FILE if order.ledger.exists() else None
        setup = Setup(
            order.address, order.folder / LOG, about, order.drain_s, order.command, order.options
        )

        def left() -> Path:
            self._tell(choice, "being proven")
            return choice.write(order.folder)

        began_s = self._clock.monotonic_s()
        with self._drained(Server.start(left, setup)) as server:
            self._record_takeover(server.lease)
            log = server.fault_log()
            try:
                told = server.wait_ready(stopped=lambda: self._asked.stop)
                if told is None:
                    return
                shown = self._prove(server, told)
                self._tell(choice, shown)
                if told.get("status") == "proving":
                    told = server.open()
                took_s = self._clock.monotonic_s() - began_s
                self._say(f"open {took_s:.1f} s after it was started, the proof included.")
                self._serving(server, choice, told, shown)
                self._proven = choice
                self._watch(server, log, choice, shown)
            finally:
                self._faults.keep(log.news(), choice)
                self._faults.settle()

    @contextmanager
    def _drained(self, server: Server) -> Iterator[Server]:
        """The server while the block lasts; how long its end took is said."""
        try:
            yield server
        finally:
            until_s = self._clock.monotonic_s()
            server.close()
            took_s = self._clock.monotonic_s() - until_s
            self._say(f"drained, ended and the device given back in {took_s:.1f} s.")

    def _watch(self, server: Server, log: FaultLog, choice: Chosen, shown: str) -> None:
        """Until there is a reason to end the day."""
        while not self._asked.stop and not self._night_is_due():
            status = server.child.poll()
            if self._faults.keep(log.news(), choice):
                self._tell(choice, shown)
            if status is not None:
                self._crashed(server, status, choice)
            if self._asked.reload:
                self._asked.reload = False
                choice, shown = self._reload(server, choice, shown)
            self._clock.sleep(POLL_S)

    def _crashed(self, server: Server, status: int, choice: Chosen) -> None:
        self._faults.keep((of_exit(status, server.last_words()),), choice)
        now_s = self._clock.monotonic_s()
        self._crashes.append(now_s)
        while now_s - self._crashes[0] > RESTARTS_WITHIN_S:
            self._crashes.popleft()
        said = f"the server left with status {status}; see {self.order.folder / LOG}."
        if len(self._crashes) > RESTARTS:
            raise FlywheelError(said)
        self._say(f"{said} It is started again.")
        raise _Again

    def _reload(self, server: Server, before: Chosen, shown_before: str) -> tuple[Chosen, str]:
        """Serve what is best by now, in the same process where that is possible.

        What is served then, and what was shown of it.
        """
        self._instead = None
        choice = self._choose()
        if choice == before:
            self._say(f"nothing new to serve: it is {before.label}.")
            return before, shown_before
        choice.write(self.order.folder)
        if (refused := server.reload()) is not None:
            self._say(f"a reload will not do ({refused.rstrip('.')}): the server is restarted.")
            raise _Again
        try:
            shown = self._prove(server, asked_health(self.order.address)[1])
        except NotReproduced as error:
            before.write(self.order.folder)
            server.reload()
            self._say(f"{error} Still serving {before.label}.")
            return before, shown_before
        self._tell(choice, shown)
        self._proven = choice
        self._say(f"now serving {choice.label} ({shown}).")
        return choice, shown

    # -- the night -------------------------------------------------------------------------

    def _night_is_due(self) -> bool:
        window = self.order.window
        if window is None:
            return False
        is_open = window.contains(self._clock.now())
        self._worked = self._worked and is_open
        return is_open and not self._worked

    def _night(self) -> None:
        order = self.order
        assert order.window is not None
        arguments = ("--checkpoint", str(order.checkpoint), *order.run_arguments)
        night = Night(order.ledger, order.address, order.window, arguments, self._clock)
        self._say(f"handing the device over until {order.window.closes:%H:%M}.")
        self._say(night.attend(lambda: self._asked.stop))

    # -- what both need --------------------------------------------------------------------

    def _choose(self) -> Chosen:
        order = self.order
        if order.file is not None:
            return choosing.of_file(order.file, order.checkpoint)
        with _reading(order.ledger) as ledger, ledger.reading() as connection:
            view = views.load(connection)
            return choosing.of_ledger(view, order.checkpoint, root_of(order.ledger), order.at)

    def _prove(self, server: Server, told: Mapping[str, Any]) -> str:
        """What was shown; a ledger that is not there yet can show nothing."""
        if not self.order.ledger.exists():
            return "unproven: there is no ledger"
        headers = {proving.HEADER: server.word}
        if self.order.key is not None:
            headers["Authorization"] = f"Bearer {self.order.key}"
        with _reading(self.order.ledger) as ledger:
            return proving.prove(ledger, server.address, told, headers).said

    def _tell(self, choice: Chosen, shown: str) -> None:
        """Leave the account for the server's page, where there is a ledger to tell of."""
        if not self.order.ledger.exists():
            return
        try:
            with _reading(self.order.ledger) as ledger:
                told = story.tell(ledger, self._levers, choice, shown)
        except LedgerError as error:  # a page less is no reason to serve nobody
            self._say(f"the page has nothing to tell: {error}")
            return
        story.write(self.order.folder, told)

    def _record_takeover(self, lease: Lease) -> None:
        """Tell the ledger whose abandoned lease was taken; if it refuses, serving goes on."""
        if lease.takeover is None:
            return
        try:
            opened = Ledger.open(self.order.ledger, create=False)
            try:
                handover.record(opened, lease, now_utc=utc_text(), say=self._say)
            finally:
                opened.close()
        except LedgerError as error:
            self._say(f"the takeover of the device is not on record: {error}")


@contextmanager
def _reading(path: Path) -> Iterator[Ledger]:
    """A copy of the ledger in memory, however long it is looked at."""
    if not path.exists():
        raise UsageError(f"there is no ledger at {path}; flywheel run makes one.")
    ledger = Ledger.read(path, private=True)
    try:
        yield ledger
    finally:
        ledger.close()
