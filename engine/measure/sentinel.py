"""Are the measuring program and its clocks still what they were? Asked throughout a run.

A patch runs in the process that measures it. What it may not touch on disk it could replace in
memory: a clock, the gate, the journal. So every trusted module is compared with its own source
again and again, and a run in which one differs is never sealed. This is a tripwire and no wall: it
is the loop's own clock and the comparison with the incumbent that a liar has to get past.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from engine.errors import EngineError

_CLOCKS = ("perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "time", "time_ns")
# Taken when this module is loaded, which is before any module that computes.
_KNOWN: dict[tuple[ModuleType, str], object] = {
    **{(time, name): getattr(time, name) for name in _CLOCKS},
    (hashlib, "sha256"): hashlib.sha256,
    (json, "dumps"): json.dumps,
    (json, "loads"): json.loads,
}
_TRUSTED = (
    "engine.measure", "engine.engine", "engine.suite", "engine.checkpoint", "engine.tokenizer",
    "engine.chat", "engine.config", "engine.sampling", "engine.identity", "engine.independence",
)  # fmt: skip


class TamperedError(EngineError):
    """Something of the measuring program is not its own any more."""


class Sentinel:
    """Remembers the source of the trusted modules; `check` raises when they part from it."""

    def __init__(self) -> None:
        self._trees: dict[str, ast.Module] = {}
        self._watched: frozenset[str] = frozenset()
        self._read: list[str] = []
        # Nothing takes a hook away again, whatever it replaces.
        sys.addaudithook(self._heard)

    def watch(self, *paths: Path) -> None:
        """From now on nobody may open these files: the plan of the run, its suite, its log."""
        self._watched = frozenset(os.path.realpath(path) for path in paths)

    def _heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open" or not self._watched or not isinstance(arguments[0], str | bytes):
            return
        path = os.path.realpath(os.fsdecode(arguments[0]))
        if path in self._watched:
            self._read.append(path)

    def check(self) -> None:
        """Raise TamperedError naming what was replaced, or read."""
        if self._read:
            raise TamperedError(f"the run is void: {Path(self._read[0]).name} was opened in it.")
        for (module, name), known in _KNOWN.items():
            if getattr(module, name, None) is not known:
                raise TamperedError(f"the run is void: {module.__name__}.{name} was replaced.")
        for name, module in sorted(sys.modules.items()):
            if name.startswith(_TRUSTED) and module is not None:
                for wrong in _replaced(module, self._tree(name, module)):
                    raise TamperedError(f"the run is void: {name}.{wrong} was replaced.")

    def _tree(self, name: str, module: ModuleType) -> ast.Module:
        if name not in self._trees:
            self._trees[name] = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))
        return self._trees[name]


def _replaced(module: ModuleType, tree: ast.Module) -> Iterator[str]:
    """Names of a module that are not what its source makes of them."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            for alias in node.names:
                whole = alias.name if alias.asname else alias.name.partition(".")[0]
                if getattr(module, alias.asname or whole, None) is not sys.modules.get(whole):
                    yield alias.asname or whole
        elif isinstance(node, ast.FunctionDef):
            if not _own(getattr(module, node.name, None), module, node):
                yield node.name
        elif isinstance(node, ast.ClassDef):
            held = getattr(module, node.name, None)
            members = vars(held) if isinstance(held, type) else {}
            for part in node.body:
                if isinstance(part, ast.FunctionDef) and not _own(
                    members.get(part.name), module, part
                ):
                    yield f"{node.name}.{part.name}"


def _own(value: Any, module: ModuleType, node: ast.FunctionDef) -> bool:
    """Whether a function is the one that a module's source defines at `node`."""
    if isinstance(value, property):
        value = value.fget
    elif isinstance(value, classmethod | staticmethod):
        value = value.__func__
    elif node.decorator_list and isinstance(value, FunctionType):
        value = getattr(value, "__wrapped__", value)
    if not isinstance(value, FunctionType):
        return False
    code = value.__code__
    first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
    return code.co_filename == module.__file__ and code.co_firstlineno == first
