"""Which lines of a run's log its numbers stand on, and how the run is repeated. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# A page holds the lines that numbers came from, not the whole log.
LINE_BYTES = 700
LAST_LINES = 6


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line: its number from 1, its text without the nonce, and whether it is a failed check."""

    number: int
    text: str
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Evidence:
    """A run's manifest in short, as (word, text), and the lines kept of `total` in its log."""

    manifest: tuple[tuple[str, str], ...]
    lines: tuple[LogLine, ...]
    total: int

    @property
    def span(self) -> tuple[int, int] | None:
        """First and last line kept; None without any."""
        return (self.lines[0].number, self.lines[-1].number) if self.lines else None


def evidence(manifest: Mapping[str, Any], text: str | None, *, ok: bool, most: int) -> Evidence:
    """At most `most` lines: of a good run its points and end, of a dead one how it ended."""
    lines = (text or "").splitlines()
    nonce = f"@{manifest.get('nonce', '')} "
    found = [_line(n, line, nonce) for n, line in enumerate(lines, 1)]
    failed = [one for one, event in found if one.failed]
    if ok:
        kept = [one for one, event in found if event in ("point", "end")]
    else:
        kept = [one for one, _ in found[-LAST_LINES:]]
    wanted = {one.number: one for one in [*failed[:most], *_both_ends(kept, most)]}
    return Evidence(essentials(manifest), tuple(wanted[n] for n in sorted(wanted)), len(lines))


def _both_ends(lines: list[LogLine], most: int) -> list[LogLine]:
    """All of them, or the first and the last few."""
    if len(lines) <= most:
        return lines
    return [*lines[: most - most // 3], *lines[len(lines) - most // 3 :]]


def _line(number: int, line: str, nonce: str) -> tuple[LogLine, str]:
    if not line.startswith(nonce) or len(nonce) < 4:
        return LogLine(number, _cut(line)), ""
    body = line.removeprefix(nonce)
    try:
        event = json.loads(body)
    except ValueError:
        return LogLine(number, _cut(body)), ""
    if not isinstance(event, dict):
        return LogLine(number, _cut(body)), ""
    return LogLine(number, _cut(body), event.get("pass") is False), str(event.get("event", ""))


def _cut(text: str) -> str:
    return text if len(text) <= LINE_BYTES else text[:LINE_BYTES] + " …"


def essentials(manifest: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """What one needs to know of a manifest, as (word, text); unknown fields are left out."""
    config = manifest.get("config") or {}
    prompts = config.get("prompts") or ()
    words = [
        ("lever", manifest.get("lever_name")),
        ("made", manifest.get("created_utc")),
        *((f"arm {arm['name']}", json.dumps(arm["config"], sort_keys=True))
          for arm in config.get("arms") or ()),
        ("order", " ".join(config.get("order") or ())),
        ("prompts", f"{len(prompts)}: {', '.join(prompts[:6])}" + (" …" if prompts[6:] else "")
         if prompts else None),
        ("tokens", config.get("max_new_tokens")),
        ("seed", config.get("seed")),
        ("checkpoint", config.get("checkpoint")),
        ("head", config.get("head")),
        ("suite", config.get("suite")),
        ("limit", f"{manifest['timeout_s']:g} s" if "timeout_s" in manifest else None),
    ]  # fmt: skip
    return tuple((word, str(value)) for word, value in words if value not in (None, ""))


def repeat_command(run_id: str) -> str:
    """The command that repeats a run from the ledger alone."""
    config = f"flywheel report run {run_id} --config > {run_id}.json"
    return f"{config} && python -m engine.measure --config {run_id}.json --log {run_id}.log"
