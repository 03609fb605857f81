"""A fault as data: what is injected, how, and what the loop must make of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flywheel.selftest.scene import Scene


class NotPermitted(Exception):  # noqa: N818 - reads as the fact that it is
    """This box does not let the fault be injected; the sentence says what is missing."""


@dataclass(frozen=True, slots=True)
class Fault:
    """``outcome`` is what the ledger must say of the run, ``codes`` the reasons it may give.

    A fault that must not hurt ends ``ok``: the run counts, once.  ``ending`` is there where the
    fault is the lever's own doing and closes it; ``slow`` faults take more than a few seconds.
    """

    name: str
    noun: str
    injected: str
    outcome: str
    codes: tuple[str, ...]
    inject: Callable[[Scene], None]
    ending: str | None = None
    slow: bool = False
    hot_pattern: str = "BAAB"

    @property
    def harmless(self) -> bool:
        """Whether the run is good in spite of it."""
        return self.outcome == "ok"

    @property
    def attempts(self) -> int:
        """How many of the lever's attempts it may cost: none for what is the box's own fault."""
        return 0 if self.outcome in ("ok", "blocked") else 1
