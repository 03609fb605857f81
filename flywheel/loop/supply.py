"""The levers as they are declared at this moment, and those that a person wants tried first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from flywheel import priority
from flywheel.errors import FlywheelError, LeverError
from flywheel.ledger.rows import View
from flywheel.lever import Lever

# Given the history, which holds the levers that nobody declared, all that may be tried.
Declared = Callable[[View], Sequence[Lever]]


class Supply:
    """Reads both anew whenever it is asked. What cannot be read is said once, and stays as it was.

    `declared` reads the levers and adds those that came by themselves; `say` is told what is wrong
    with a file.
    """

    def __init__(self, ledger: Path, declared: Declared, say: Callable[[str], None]) -> None:
        self._ledger = ledger
        self._declared = declared
        self._say = say
        self._levers: tuple[Lever, ...] = ()
        self._first: tuple[str, ...] = ()
        self._told: set[str] = set()

    def levers(self, view: View) -> tuple[Lever, ...]:
        """Every lever that may be tried by this history."""
        try:
            self._levers = tuple(self._declared(view))
        except FlywheelError as error:
            self._complain(str(error))
        return self._levers

    def first(self) -> tuple[str, ...]:
        """The names that go first; one that no lever of this run has is said, and ignored."""
        try:
            self._first = priority.read(self._ledger)
        except LeverError as error:
            self._complain(str(error))
        known = {name for lever in self._levers for name in (lever.name, lever.sweep)}
        for name in self._first:
            if name not in known:
                said = "which no lever of this run is called"
                self._complain(f"{priority.FILE} names {name}, {said}")
        return self._first

    def _complain(self, sentence: str) -> None:
        if sentence not in self._told:
            self._told.add(sentence)
            self._say(sentence)
