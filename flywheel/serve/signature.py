"""What the ledger has on record of a configuration: tokens and acceptances that must come again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, select

from flywheel import suite
from flywheel.errors import FlywheelError
from flywheel.files import read_json
from flywheel.ledger import models, views
from flywheel.ledger.store import log_text
from flywheel.run.manifest import Manifest
from flywheel.run.parse import parse
from flywheel.run.record import Point, RunRecord

PROMPTS = 2  # of a run: more would show nothing that one in two categories does not
LOOKED_AT = 20  # runs, the newest first


@dataclass(frozen=True, slots=True)
class Prompt:
    """One recorded generation, and the conversation that it answered."""

    point: Point
    messages: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Signature:
    """Recorded generations of one configuration in one run, and what they were computed on."""

    run_id: str
    max_new_tokens: int
    machine: Mapping[str, str]
    prompts: tuple[Prompt, ...]

    @property
    def tokens(self) -> int:
        """All tokens that it holds."""
        return sum(prompt.point.tokens for prompt in self.prompts)


@dataclass(frozen=True, slots=True)
class Reply:
    """What a server gave for a recorded prompt."""

    prompt_tokens: int
    tokens: int
    tokens_sha256: str
    rounds: int
    offered: tuple[int, ...]
    accepted: tuple[int, ...]


def recorded(
    connection: Connection, fingerprint: str, checkpoint_sha256: str, machine: Mapping[str, str]
) -> Signature | None:
    """The newest run that measured a configuration, on this machine if there is one.

    None when no run of it on that checkpoint is on record with a suite that is still there.
    """
    elsewhere = None
    for run_id, arm in _runs(connection, fingerprint):
        found = _signature(connection, run_id, arm, checkpoint_sha256)
        if found is not None and found.machine == machine:
            return found
        elsewhere = elsewhere or found
    return elsewhere


def differs(prompt: Prompt, reply: Reply) -> str | None:
    """In what a reply is not the recorded one; None when it is the same to the last acceptance."""
    point = prompt.point
    if reply.prompt_tokens != point.prompt_tokens:
        return f"reads {reply.prompt_tokens} prompt tokens, not {point.prompt_tokens}"
    if (reply.tokens, reply.tokens_sha256) != (point.tokens, point.tokens_sha256):
        return f"gives {reply.tokens} other tokens than the {point.tokens} on record"
    if reply.rounds != point.rounds:
        return f"takes {reply.rounds} rounds, not {point.rounds}"
    for what, mine, theirs in (
        ("offers", reply.offered, point.offered_by_position),
        ("accepts", reply.accepted, point.accepted_by_position),
    ):
        pairs = zip_longest(mine, theirs, fillvalue=0)
        for place, (here, there) in enumerate(pairs, 1):
            if here != there:
                return f"{what} {here} drafts at position {place}, not {there}"
    return None


def _runs(connection: Connection, fingerprint: str) -> list[tuple[str, str]]:
    """Good runs of a configuration and its arm in them, the newest first."""
    arm, end = models.arm.c, models.run_end.c
    query = (
        select(arm.run_id, arm.name)
        .join(models.run_end, end.run_id == arm.run_id)
        .where(arm.fingerprint == fingerprint, end.outcome == "ok")
        .order_by(end.ended_utc.desc())
        .limit(LOOKED_AT)
    )
    return [(row.run_id, row.name) for row in connection.execute(query)]


def _signature(
    connection: Connection, run_id: str, arm: str, checkpoint_sha256: str
) -> Signature | None:
    manifest = Manifest.from_json(views.manifest(connection, run_id))
    try:
        text = log_text(connection, run_id)
    except FlywheelError:
        return None
    record = parse(text or "", manifest)
    if not isinstance(record, RunRecord) or record.header.checkpoint.sha256 != checkpoint_sha256:
        return None
    entries = _entries(Path(str(manifest.config["suite"])), record.header.suite.sha256)
    if record.header.plan.temperature:
        return None  # the proof asks greedily
    prompts = tuple(_prompts(record, arm, entries))
    if not prompts:
        return None
    machine = {"device": record.header.device.name, "torch": record.header.torch}
    return Signature(run_id, record.header.plan.max_new_tokens, machine, prompts)


def _entries(named: Path, sha256: str) -> dict[str, Mapping[str, Any]]:
    """The prompts of a suite by id, from its own file or the shipped one; none if neither is it."""
    shipped = suite.embedded(suite.DEFAULT_SUITE)
    for path in (named, shipped):
        body = read_json(path)
        if body is not None and suite.body_sha256(body) == sha256:
            return {p["id"]: p for p in body["prompts"]}
    return {}


def _prompts(
    record: RunRecord, arm: str, known: Mapping[str, Mapping[str, Any]]
) -> Iterator[Prompt]:
    """One generation of each category, as far as they are plain conversations."""
    seen: set[str] = set()
    for point in record.points:
        entry = known.get(point.prompt)
        if point.arm != arm or point.category in seen or entry is None:
            continue
        if not suite.askable(entry):
            continue
        seen.add(point.category)
        yield Prompt(point, tuple(entry["messages"]))
        if len(seen) == PROMPTS:
            return
