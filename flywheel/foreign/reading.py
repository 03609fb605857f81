"""One file of foreign history: what it is, whether it counts, and its numbers.

Every number keeps its line and stays a ratio of integers.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from flywheel.foreign import admission, arms, decode_log, guard_log, suite
from flywheel.foreign.arms import Table
from flywheel.foreign.figures import figures, first_eos
from flywheel.foreign.guard_log import GuardLog
from flywheel.foreign.record import DecodeLog, Point
from flywheel.foreign.ruler import METRIC, ForeignRuler, of_log
from flywheel.foreign.source import MOST_BYTES, Source, Stream, opened
from flywheel.run.measurement import Measurement
from flywheel.run.refusal import Refusal

# Raised whenever a file may read otherwise than before; the ledger keeps the older readings.
READER_VERSION = 2


@dataclass(frozen=True, slots=True)
class Reading:
    """`kind` is decode, guard, arms or unknown; a file with a reason against it owns no number."""

    source: Source
    kind: str
    log: DecodeLog | GuardLog | Table | None
    reasons: tuple[Refusal, ...]

    @property
    def ok(self) -> bool:
        """Whether it may own numbers."""
        return not self.reasons

    @property
    def recognised(self) -> bool:
        """Whether it is a log at all, and so worth keeping even when refused."""
        return self.kind != "unknown"

    def ruler(self) -> ForeignRuler | None:
        """The ruler of a decode log that counts."""
        return of_log(self.log) if self.ok and isinstance(self.log, DecodeLog) else None

    def facts(self) -> dict[str, object]:
        """What the file says as a whole, as plain JSON."""
        if isinstance(self.log, GuardLog):
            return self.log.as_dict()
        if isinstance(self.log, Table):
            return arms.facts(self.log)
        if not isinstance(self.log, DecodeLog):
            return {}
        told: dict[str, object] = {
            "head": self.log.head or None,
            "checkpoint": self.log.checkpoint.rsplit("/", 1)[-1] or None,
            "complete_points": len(self.log.complete_points),
            "quoted_gate_lines": list(self.log.quoted),
        }
        return {**told, **figures(self.log).as_dict()} if self.ok else told

    def measurements(self) -> tuple[Measurement, ...]:
        """Every number of a file that counts; nothing of one that does not."""
        if not self.ok:
            return ()
        if isinstance(self.log, GuardLog):
            return tuple(_guarded(self.log))
        if isinstance(self.log, Table):
            return tuple(_tabled(self.log))
        return tuple(_decoded(self.log)) if isinstance(self.log, DecodeLog) else ()


def read(path: Path) -> Reading:
    """Read a file in one pass. Raises UsageError when it cannot be read; never for what it says."""
    with opened(path) as stream:
        return _read(stream)


def read_arms(path: Path) -> Reading:
    """Read a table of arms. Raises UsageError when it cannot be read; never for what it says."""
    # JSON may be all on one line.
    with opened(path, most_line_bytes=MOST_BYTES) as stream:
        return _read_arms(stream)


def reread(kind: str, name: str, raw: bytes) -> Reading:
    """The same from the stored bytes of a file."""
    if kind == "arms":
        return _read_arms(Stream(io.BytesIO(raw), name, most_line_bytes=MOST_BYTES))
    return _read(Stream(io.BytesIO(raw), name))


def _read_arms(stream: Stream) -> Reading:
    found = arms.parse("\n".join(text for _, text in stream.lines()))
    source = stream.source()
    # JSON proves by itself that it is whole: a last line without an end is no cut.
    spoilt = source.broken if source.broken and source.broken.code != "cut_line" else None
    if isinstance(found, Table):
        return Reading(source, "arms", found, () if spoilt is None else (spoilt,))
    kind = "unknown" if found.code == "not_a_table" else "arms"
    if kind == "unknown" and source.form:
        found = Refusal(found.code, source.form)
    return Reading(source, kind, None, (found, *(() if spoilt is None else (spoilt,))))


def _read(stream: Stream) -> Reading:
    decode, guard, guarded = decode_log.Reader(), guard_log.Reader(), None
    for line, text in stream.lines():
        if guarded is None and text.strip():
            guarded = text.startswith(guard_log.PREFIX)
        (guard if guarded else decode).feed(line, text)
    return _judged(stream.source(), guard.log() if guarded else decode.log())


def _judged(source: Source, log: DecodeLog | GuardLog) -> Reading:
    against = () if source.broken is None else (source.broken,)
    if isinstance(log, GuardLog):
        return Reading(source, "guard", log, (*against, *log.broken))
    found = admission.reasons(log)
    if not log.checkpoint:
        if source.form:
            found = tuple(Refusal(r.code, source.form) for r in found)
        return Reading(source, "unknown", None, (*found, *against))
    return Reading(source, "decode", log, admission.gravest_first((*against, *found)))


def _decoded(log: DecodeLog) -> Iterator[Measurement]:
    base = log.base
    yield _of(log, None, "ar_tok_s", base.tok_s, "token/s", True, base.line)
    for point in log.complete_points:
        ends = first_eos(point)
        of_suite = point.prompt != suite.CONTROL.number
        clean = of_suite and ends is None
        yield Measurement(
            log.head, str(point.prompt), suite.category(point.prompt), 0, METRIC,
            point.generated or 0, point.verifies, "token/forward", clean, point.closed_line,
        )  # fmt: skip
        printed = f"{METRIC}_printed"
        yield _of(log, point, printed, point.tau, "token/forward", clean, point.closed_line)
        yield _of(log, point, "tok_s", point.tok_s, "token/s", of_suite, point.closed_line)
        if ends is not None:
            yield Measurement(
                log.head, str(point.prompt), suite.category(point.prompt), 0, "first_eos", ends, 1,
                "token", of_suite, point.closed_line,
            )


def _tabled(table: Table) -> Iterator[Measurement]:
    for arm in table.arms:
        pairs = ((f"{METRIC}_stated", arm.tau, "token/forward"),
                 ("tok_s_stated", arm.tok_s, "token/s"))
        for metric, value, unit in pairs:
            if value is not None:
                yield Measurement(arm.name, "", "", arm.width or 0, metric, value.numerator,
                                  value.denominator, unit, False, 0)


def _of(
    log: DecodeLog, point: Point | None, metric: str, value: Fraction | None, unit: str,
    counted: bool, line: int,
) -> Measurement:  # fmt: skip
    exact = value or Fraction()
    number = "" if point is None else str(point.prompt)
    kind = "" if point is None else suite.category(point.prompt)
    return Measurement(log.head, number, kind, 0, metric, exact.numerator, exact.denominator, unit,
                       counted, line)


def _guarded(log: GuardLog) -> Iterator[Measurement]:
    for number, session in enumerate(log.sessions):
        kill = session.kill
        seen = {
            "low_water": (session.low_water_mb, "megabyte"),
            "peak_fall": (session.peak_fall_mb_s, "megabyte/s"),
            "killed_at": (kill.before_mb if kill else None, "megabyte"),
            "after_kill": (kill.after_mb if kill else None, "megabyte"),
        }
        for metric, (value, unit) in seen.items():
            if value is not None:
                yield Measurement(session.pattern, session.started, session.ending, number, metric,
                                  value, 1, unit, session.armed, session.line)
