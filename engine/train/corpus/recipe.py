"""An open function and what becomes of it when its names are chosen."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

_HINT = re.compile(r": \w+(\[(?:[^\[\]]|\[[^\]]*\])*\])?")


@dataclass(frozen=True, slots=True)
class Recipe:
    """An open function: ``$xs``, ``$x``, ``$f``, ``$n`` are filled by ``fill``."""

    names: str
    params: str
    returns: str
    doc: str
    body: str
    how: str
    inputs: str
    wrong: tuple[str, str, str] = ("", "", "")
    guard: str = ""
    purpose: str = ""


@dataclass(frozen=True, slots=True)
class Function:
    """A filled-in function. ``arguments`` are literals that suit its parameters."""

    name: str
    params: str
    returns: str
    doc: str
    body: str
    how: str
    purpose: str
    arguments: tuple[str, ...]
    wrong: tuple[str, str, str]
    guard: str

    def source(
        self, *, hints: bool = True, doc: bool = True, guard: bool = False, broken: bool = False
    ) -> str:
        """Python source of the function in one of its states."""
        params = self.params if hints else _HINT.sub("", self.params)
        arrow = f" -> {self.returns}" if hints else ""
        lines = [f"def {self.name}({params}){arrow}:"]
        if doc:
            lines.append(f'    """{self.doc}"""')
        if guard and self.guard:
            lines += [f"    {line}" for line in self.guard.split("\n")]
        body = self.body.replace(*self.wrong[:2], 1) if broken else self.body
        lines += [f"    {line}" for line in body.split("\n")]
        return "\n".join(lines)

    def call(self, *, shown: str = "") -> str:
        """A call of the function with its arguments."""
        return f"{shown or self.name}({', '.join(self.arguments)})"


def run(source: str, expression: str) -> Any:
    """Value of ``expression`` after ``source``; both are this module's own text."""
    scope: dict[str, Any] = {}
    exec(source, scope)
    return eval(expression, scope)
