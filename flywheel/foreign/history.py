"""Foreign history in the ledger: appended once a file, and read back or read again.

The tables hang on no run, block or lever, so that nothing imported can reach a decision.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Connection, select

from flywheel.errors import LedgerError, UsageError
from flywheel.foreign import arms
from flywheel.foreign.reading import READER_VERSION, Reading, reread
from flywheel.foreign.ruler import ForeignRuler
from flywheel.ledger import models
from flywheel.ledger.writer import Writer
from flywheel.run.measurement import Measurement
from flywheel.run.refusal import Refusal


@dataclass(frozen=True, slots=True)
class Imported:
    """The newest reading of one stored file."""

    reading: int
    sha256: str
    kind: str
    name: str
    reader: int
    outcome: str
    refusal: Refusal | None
    ruler: ForeignRuler | None
    facts: Mapping[str, Any]
    created_utc: str


def append(writer: Writer, found: Reading, now_utc: str) -> str:
    """Store a file and what it says, all or nothing; `added`, `known`, or `read again`.

    A file that is known by its hash is read again only by a newer reader. One that is no log is not
    kept at all: `ignored`.
    """
    if not found.recognised:
        return "ignored"
    source, connection = found.source, writer.connection
    query = select(models.foreign_reading.c.id).where(
        models.foreign_reading.c.sha256 == source.sha256,
        models.foreign_reading.c.reader == READER_VERSION,
    )
    if connection.execute(query).first() is not None:
        return "known"
    new = writer.append_once(
        models.foreign_log, "sha256",
        sha256=source.sha256, kind=found.kind, name=source.name, size_bytes=source.size_bytes,
        text_zlib=source.text_zlib, created_utc=now_utc,
    )  # fmt: skip
    _append_reading(writer, found, now_utc)
    return "added" if new else "read again"


def _append_reading(writer: Writer, found: Reading, now_utc: str) -> None:
    first = None if found.ok else found.reasons[0]
    outcome = "ok" if first is None else "refused"
    number = writer.append(
        models.foreign_reading,
        sha256=found.source.sha256, reader=READER_VERSION, outcome=outcome,
        code="" if first is None else first.code, detail="" if first is None else first.detail,
        line=0 if first is None else first.line, ruler_id=_ruler_id(writer, found, now_utc),
        facts={**found.facts(), "reasons": [str(r) for r in found.reasons[:20]]},
        created_utc=now_utc,
    )  # fmt: skip
    writer.append_all(
        models.foreign_measurement,
        [{"reading_id": number, "outcome": outcome, **asdict(m)} for m in found.measurements()],
    )
    if found.ok and isinstance(found.log, arms.Table):
        writer.append_all(models.foreign_verdict, _verdicts(number, found.log))


def _ruler_id(writer: Writer, found: Reading, now_utc: str) -> int | None:
    ruler, table = found.ruler(), models.foreign_ruler
    if ruler is None:
        return None
    writer.append_once(
        table, "identity", identity=ruler.identity, name=ruler.label, fields=ruler.as_dict(),
        created_utc=now_utc,
    )  # fmt: skip
    query = select(table.c.id).where(table.c.identity == ruler.identity)
    return int(writer.connection.execute(query).scalar_one())


def _verdicts(reading: int, table: arms.Table) -> list[dict[str, Any]]:
    return [
        {
            "reading_id": reading, "outcome": "ok", "world": world, "position": position,
            "arm": v.arm.name, "stated": v.arm.stated, "ending": v.ending, "sentence": v.said,
            "details": {
                "incumbent": v.incumbent or None,
                "width": v.arm.width,
                "needs": None if v.ruling is None else float(v.ruling.needs),
                "gain": None if v.ruling is None else float(v.ruling.gain),
            },
        }
        for world in (arms.AS_IT_STOOD, arms.BY_THE_RULE)
        for position, v in enumerate(arms.judge(table, world))
    ]  # fmt: skip


def imported(connection: Connection) -> tuple[Imported, ...]:
    """Every stored file with its newest reading, in the order imported."""
    log, reading, ruler = models.foreign_log, models.foreign_reading, models.foreign_ruler
    query = (
        select(reading, log.c.kind, log.c.name, ruler.c.fields)
        .select_from(reading.join(log).outerjoin(ruler))
        .order_by(reading.c.id)
    )
    found: dict[str, Imported] = {}
    for r in connection.execute(query):
        found[r.sha256] = Imported(
            r.id, r.sha256, r.kind, r.name, r.reader, r.outcome,
            None if r.outcome == "ok" else Refusal(r.code, r.detail, r.line),
            None if r.fields is None else ForeignRuler.from_dict(json.loads(r.fields)),
            json.loads(r.facts), r.created_utc,
        )  # fmt: skip
    return tuple(found.values())


def named(connection: Connection, name: str) -> Imported:
    """The one imported file of that name, or whose hash starts so. Raises UsageError."""
    every = imported(connection)
    found = [i for i in every if i.name == name]
    if not found and len(name) >= 6:
        found = [i for i in every if i.sha256.startswith(name)]
    if len(found) != 1:
        told = "no imported file is" if not found else f"{len(found)} imported files are"
        raise UsageError(f"{told} named {name}; flywheel import list shows them with their hashes.")
    return found[0]


def measurements(connection: Connection, reading: int) -> tuple[Measurement, ...]:
    """Every number of one reading, in the order entered."""
    table = models.foreign_measurement
    return tuple(
        Measurement(r.arm, r.prompt, r.category, r.repeat, r.metric, r.numerator, r.denominator,
                    r.unit, bool(r.counted), r.line)
        for r in connection.execute(
            select(table).where(table.c.reading_id == reading).order_by(table.c.id)
        )
    )  # fmt: skip


def stored(connection: Connection, sha256: str) -> Reading:
    """A stored file read again from its bytes. Raises LedgerError when they are damaged."""
    table = models.foreign_log
    row = connection.execute(select(table).where(table.c.sha256 == sha256)).one()
    try:
        raw = zlib.decompress(row.text_zlib)
    except zlib.error as error:
        raise LedgerError(f"the stored file {row.name} is damaged: {error}") from error
    if hashlib.sha256(raw).hexdigest() != sha256:
        raise LedgerError(f"the stored file {row.name} does not match its hash")
    return reread(row.kind, row.name, raw)


def differences(connection: Connection) -> tuple[str, ...]:
    """Every stored file that is damaged, or that this reader reads otherwise than recorded."""
    out = []
    for one in imported(connection):
        try:
            again = stored(connection, one.sha256)
        except LedgerError as error:
            out.append(str(error))
            continue
        if one.reader == READER_VERSION and (said := _differs(connection, one, again)):
            out.append(f"{one.name} {said}")
    return tuple(out)


def _differs(connection: Connection, one: Imported, again: Reading) -> str:
    refusal = None if again.ok else again.reasons[0]
    if refusal != one.refusal:
        return f"was {one.refusal or 'ok'}, now {refusal or 'ok'}"
    if again.measurements() != measurements(connection, one.reading):
        return "now gives other numbers"
    if _verdicts_differ(connection, one.reading, again):
        return "now has other verdicts"
    return "" if again.ruler() == one.ruler else "now has another ruler"


def _verdicts_differ(connection: Connection, reading: int, again: Reading) -> bool:
    table = models.foreign_verdict
    query = select(table.c.world, table.c.arm, table.c.ending).where(table.c.reading_id == reading)
    was = sorted(tuple(row) for row in connection.execute(query))
    # As when it was entered: a table that is refused is judged in no world.
    table_of = again.log if again.ok and isinstance(again.log, arms.Table) else None
    now = [] if table_of is None else _verdicts(reading, table_of)
    return was != sorted((v["world"], v["arm"], v["ending"]) for v in now)
