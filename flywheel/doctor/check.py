"""One question about the box, one line of answer, and what to do about it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table
from rich.text import Text

OK, WARN, FAIL = "ok", "warn", "fail"
_STYLES = {OK: "green", WARN: "yellow", FAIL: "bold red"}


@dataclass(frozen=True, slots=True)
class Check:
    """One answer: ``state`` is ok, warn (the loop runs, but know this) or fail (it would not).

    ``advice`` says what to do; it is there exactly when the state is not ok.
    """

    name: str
    state: str
    said: str
    advice: str = ""


def fine(name: str, said: str) -> Check:
    """Nothing to do."""
    return Check(name, OK, said)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All answers, and how long they took."""

    checks: tuple[Check, ...]
    took_s: float = 0.0

    @property
    def healthy(self) -> bool:
        """No check failed."""
        return all(check.state != FAIL for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        """The diagnosis as a JSON object."""
        return {
            "healthy": self.healthy,
            "took_s": round(self.took_s, 2),
            "checks": [asdict(check) for check in self.checks],
        }

    def table(self) -> Table:
        """The diagnosis for a terminal; the advice stands under its finding."""
        table = Table.grid(padding=(0, 2))
        for _ in range(2):
            table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for check in self.checks:
            said = Text(check.said)
            if check.advice:
                said.append(f"\nto do: {check.advice}", style="dim")
            table.add_row(Text(check.state, style=_STYLES[check.state]), check.name, said)
        return table
