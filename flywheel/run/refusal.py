"""Why a log is not a measurement: a code for the ledger and a sentence for the reader."""

from __future__ import annotations

from dataclasses import dataclass

# Only a failed lossless gate speaks about the lever; everything else is the run's own misfortune.
_INCORRECT = frozenset({"gate_failed"})


@dataclass(frozen=True, slots=True)
class Refusal:
    """``code`` is a short snake_case word; ``line`` the 1-based line of the log, 0 for none."""

    code: str
    detail: str
    line: int = 0

    @property
    def ending(self) -> str:
        """The ending that this refusal leads to: ``incorrect`` or ``void``."""
        return "incorrect" if self.code in _INCORRECT else "void"

    def __str__(self) -> str:
        where = f" (line {self.line})" if self.line else ""
        return f"{self.code}: {self.detail}{where}"


class RefusedLogError(Exception):
    """Carries a refusal out of the parser's checks; it never leaves ``parse``."""

    def __init__(self, code: str, detail: str, line: int = 0) -> None:
        super().__init__(detail)
        self.refusal = Refusal(code, detail, line)
