"""Whether a foreign decode log may become measurements: every reason against it, gravest first.

Pure. A log counts only when it is whole, its gates pass on our own reading of them, no instrument
was on, its numbers agree with each other, and it was measured under the frozen protocol.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from flywheel.foreign import laws, suite
from flywheel.foreign.record import DecodeLog, Marker, Match, Point
from flywheel.run.refusal import Refusal

# What killed the engine or made it lie comes before what merely follows from that.
_GRAVITY = (
    "engine_died", "sanitizer", "ended_while_loading", "open_point", "no_end", "impossible_rate",
    "not_lossless", "gate_failed", "line_ends", "not_utf8", "cut_line", "malformed_line",
    "out_of_order", "too_many_points", "too_many_rounds", "capture_run", "instrumented",
    "implausible_base", "other_weights", "inconsistent", "duplicate_point",
    "gate_missing", "no_base", "other_ruler",
)  # fmt: skip
_CRASH = re.compile(r"^cuda \S+ (?:an )?(.+?)(?: was encountered)?$")


def reasons(log: DecodeLog) -> tuple[Refusal, ...]:
    """Why the log is no measurement; empty when it is one."""
    if not log.checkpoint:
        return (Refusal("not_a_log", "no engine ever started in this file", 0),)
    found = (*_ending(log), *log.broken, *_gates(log), *_conditions(log), *laws.broken(log),
             *_ruler(log))
    return gravest_first(found)


def gravest_first(found: tuple[Refusal, ...]) -> tuple[Refusal, ...]:
    """The reasons in the order in which a reader wants them; equals stay as they came."""
    return tuple(sorted(found, key=lambda r: _GRAVITY.index(r.code)))


def _ending(log: DecodeLog) -> Iterator[Refusal]:
    done, still = len(log.complete_points), log.open_point
    where = f"after {done} complete points"
    if still is not None:
        where = f"inside the point of prompt {still.prompt}"
    tail = "" if log.end_line else "; no end marker"
    for crash in log.marked("crash"):
        yield Refusal("engine_died", f"{_cause(crash)} {where}{tail}", crash.line)
    for line in log.marked("sanitizer")[:1]:
        rate = log.base.tok_s
        slow = "" if rate is None else f", plain decode at {float(rate):.2f} tok/s"
        yield Refusal("sanitizer", f"it ran under a memory checker{slow}", line.line)
    if log.end_line or log.marked("crash"):
        return
    if not log.loaded or not log.points:
        yield Refusal("ended_while_loading", "no point and no end marker: it ended while loading",
                      log.lines)
    elif still is not None:
        yield Refusal("open_point", f"it ends {where}; no end marker", log.lines)
    else:
        yield Refusal("no_end", f"it ends {where} without its end marker", log.lines)


def _cause(crash: Marker) -> str:
    match = _CRASH.match(crash.text)
    return match[1] if match else crash.text


def _gates(log: DecodeLog) -> Iterator[Refusal]:
    base, match = log.base, log.match
    if base.first is None:
        yield Refusal("gate_missing", "the first decoded token was never compared", 0)
    elif not base.first_passed or not base.first == base.expected == suite.CONTROL_TOKEN:
        yield Refusal("gate_failed", f"the first token is {base.first} where {base.expected} was "
                      f"expected; the control's is {suite.CONTROL_TOKEN}", 0)
    if match is None:
        yield Refusal("gate_missing", "rows were never compared with single decodes", 0)
    elif match.equal != match.of or match.of == 0:
        yield Refusal("gate_failed", f"MATCH {match.equal}/{match.of}, whatever the line says",
                      match.line)
    yield from _lossless(log.points, match)


def _lossless(points: tuple[Point, ...], match: Match | None) -> Iterator[Refusal]:
    though = " although the match line says PASS" if match and match.equal == match.of else ""
    gates = [(p, p.lossless) for p in points if p.lossless is not None]
    for point, gate in gates:
        if gate.differs_at is not None:
            yield Refusal(
                "not_lossless", f"prompt {point.prompt} leaves plain decode at token "
                f"{gate.differs_at} ({gate.plain}, not {gate.spec}){though}", gate.line)
    if points and not gates:
        yield Refusal("gate_missing", "no point was compared with plain decode", 0)


def _conditions(log: DecodeLog) -> Iterator[Refusal]:
    done = log.complete_points
    tokens = "/".join(sorted({str(p.asked) for p in log.points}))
    for marker in log.marked("capture")[:1]:
        mean = sum(float(p.exact_tau) for p in done) / len(done) if done else 0.0
        yield Refusal("capture_run", f"a capture of hidden states: {tokens} tokens a point, a "
                      f"transient ({mean:.2f} tokens/forward), not the suite", marker.line)
    for marker in log.marked("instrument")[:1]:
        yield Refusal("instrumented", f"an instrument was on: {marker.text.split(']')[0][1:]}",
                      marker.line)
    for marker in log.marked("overlay")[:1]:
        yield Refusal("other_weights", "it ran on other weights than the checkpoint's", marker.line)
    for marker in log.marked("adaptive_width")[:1]:
        yield Refusal("other_ruler", "width: it changed during the run", marker.line)
    rate = log.base.tok_s
    if rate is not None and rate < suite.LEAST_BASE_TOK_S:
        yield Refusal("implausible_base", f"plain decode at {float(rate):.2f} tok/s",
                      log.base.line)
    if log.base.line == 0 and log.points:
        yield Refusal("no_base", "plain decode has no rate to compare with", 0)


def _ruler(log: DecodeLog) -> Iterator[Refusal]:
    if not log.points:
        return
    for field, mine, frozen, line in _fields(log):
        if mine != frozen:
            yield Refusal("other_ruler", f"{field}: {mine} is not {frozen}", line)


def _fields(log: DecodeLog) -> Iterator[tuple[str, object, object, int]]:
    """(field, as measured, as frozen, line) for everything that makes two such logs comparable."""
    frozen = suite.FROZEN
    for name in ("width", "adapt_k", "tokens", "passes"):
        attribute = "asked" if name == "tokens" else name
        values = {getattr(p, attribute): p.line for p in reversed(log.points)}
        wanted = getattr(frozen, name)
        other = next((v for v in values if v != wanted), wanted)
        yield name, _plain(other), _plain(wanted), values.get(other, 0)
    mine = tuple((p.prompt, p.prompt_tokens) for p in log.points)
    theirs = tuple((p.number, p.tokens) for p in (suite.CONTROL, *suite.PROMPTS))
    if mine != theirs:
        missing = [n for n, _ in theirs if n not in {m for m, _ in mine}]
        told = f"{len(mine)} prompts" + (f" without {missing}" if missing else "")
        yield "prompts", told, f"the frozen {len(theirs)} in their order", log.points[0].line


def _plain(value: object) -> object:
    return value if isinstance(value, int) else float(value)  # type: ignore[arg-type]
