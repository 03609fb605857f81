"""The consistency laws of a decode log: what its numbers must be to each other. Pure.

Printed values are compared within the half unit that their rounding allows, never closer.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from flywheel.foreign.record import DecodeLog, Point, Round, TableRow
from flywheel.foreign.suite import PRINTED_TOKENS
from flywheel.run.refusal import Refusal

# Half of the last printed digit, and a little for the binary value behind it.
_HALF_CENT = Fraction(5001, 1_000_000)
_HALF_TENTH = Fraction(50_001, 1_000_000)


def broken(log: DecodeLog) -> Iterator[Refusal]:
    """Every law that the log breaks, in the order of its lines."""
    yield from _base(log)
    yield from _match(log)
    yield from _plan(log)
    for point in log.points:
        yield from _rounds(point)
        if point.complete:
            yield from _closed(point, log)
    yield from _control(log)
    yield from _table(log)


def _wrong(detail: str, line: int) -> Refusal:
    return Refusal("inconsistent", detail, line)


def _base(log: DecodeLog) -> Iterator[Refusal]:
    base = log.base
    if base.line == 0:
        return
    if base.tokens != base.step_tokens or len(base.tokens) != log.checked_tokens:
        yield _wrong("the generated tokens are not those of the steps", base.line)
    if base.first is not None and base.tokens and base.first != base.tokens[0]:
        yield _wrong("the first token is not that of step 0", base.line)
    warm = base.step_us[1:]
    if base.averaged != len(warm) or not warm:
        yield _wrong(f"the base rate averages {base.averaged} steps of {len(warm)}", base.line)
    elif base.ms_per_token is not None and not _near(
        Fraction(sum(warm), 1000 * len(warm)), base.ms_per_token, 2 * _HALF_TENTH
    ):
        yield _wrong("the base rate is not the mean of its steps", base.line)
    if not _reciprocal(base.ms_per_token, base.tok_s):
        yield _wrong("the base's ms/token and tok/s disagree", base.line)


def _match(log: DecodeLog) -> Iterator[Refusal]:
    match = log.match
    if match is None:
        return
    equal = sum(a == b for a, b in zip(match.verify, match.decode, strict=False))
    if equal != match.equal or len(match.verify) != match.of or len(match.decode) != match.of:
        yield _wrong(f"MATCH {match.equal}/{match.of}, but {equal} of the printed tokens agree",
                     match.line)
    if match.decode != log.base.tokens[: match.of]:
        yield _wrong("the tokens matched are not those decoded", match.line)


def _plan(log: DecodeLog) -> Iterator[Refusal]:
    seen: set[int] = set()
    for point in log.points:
        if point.prompt in seen:
            yield Refusal("duplicate_point", f"prompt {point.prompt} was measured twice",
                          point.line)
        seen.add(point.prompt)
    if log.end_line and log.planned != tuple(p.width for p in log.points):
        yield _wrong(f"{len(log.planned)} points were planned and {len(log.points)} came, "
                     "or with other widths", log.end_line)


def _rounds(point: Point) -> Iterator[Refusal]:
    length = point.prompt_tokens - 1
    for expected, one in enumerate(point.rounds, 1):
        for detail in _round(point, one, expected, length):
            yield _wrong(f"prompt {point.prompt}, round {one.number}: {detail}", one.line)
        length = one.length


def _round(point: Point, one: Round, expected: int, length: int) -> Iterator[str]:
    if one.number != expected:
        yield f"it is not round {expected}"
    if one.tokens != one.accepted + 1:
        yield f"{one.accepted} accepted do not make {one.tokens} tokens"
    if one.accepted > one.offered or one.offered != one.rows - 1:
        yield f"{one.accepted} of {one.offered} accepted in {one.rows} rows"
    if one.tokens > one.rows or one.rows > point.width + 1:
        yield f"{one.tokens} tokens from {one.rows} rows at width {point.width}"
    if one.length != length + one.tokens:
        yield f"the length went from {length} to {one.length}"
    if one.time_us <= 0:
        yield "it took no time"
    if one.margins and len(one.margins) != point.width:
        yield f"{len(one.margins)} margins at width {point.width}"


def _closed(point: Point, log: DecodeLog) -> Iterator[Refusal]:
    if not point.ms_per_token or not point.tok_s:
        yield Refusal("impossible_rate", f"prompt {point.prompt}: a rate of "
                      f"{_said(point.tok_s)} tok/s, {_said(point.ms_per_token)} ms/token",
                      point.closed_line)
    for detail in _sums(point):
        yield _wrong(f"prompt {point.prompt}: {detail}", point.closed_line)
    if point.base_tok_s != log.base.tok_s:
        yield _wrong(f"prompt {point.prompt}: it is compared with another base rate",
                     point.closed_line)


def _sums(point: Point) -> Iterator[str]:
    rounds, generated = point.rounds, point.generated or 0
    if (total := sum(r.tokens for r in rounds)) != generated:
        yield f"its rounds make {total} tokens, the header says {generated}"
    if len(rounds) != point.verifies:
        yield f"{len(rounds)} rounds, the header says {point.verifies} verifies"
    if generated < point.asked or (rounds and generated - rounds[-1].tokens >= point.asked):
        yield f"{generated} tokens are not the first to reach {point.asked}"
    if any(r.tokens > point.most for r in rounds):
        yield f"a round made more than the printed maximum of {point.most}"
    if point.tau is None or not _near(point.exact_tau, point.tau, _HALF_CENT):
        yield "its mean tokens/verify is not tokens over verifies"
    if len(point.first_tokens) != min(PRINTED_TOKENS, generated):
        yield f"{len(point.first_tokens)} tokens are printed"
    if point.ms_per_token and point.tok_s and not _reciprocal(point.ms_per_token, point.tok_s):
        yield "its ms/token and tok/s disagree"
    # The first round is in neither sum: it pays for what the later ones find ready.
    timed, tokens = rounds[1:], sum(r.tokens for r in rounds[1:])
    if tokens and point.ms_per_token is not None:
        mean = Fraction(sum(r.time_us for r in timed), 1000 * tokens)
        slack = _HALF_TENTH + _HALF_TENTH * len(timed) / tokens
        if not _near(mean, point.ms_per_token, slack):
            yield f"its rounds take {float(mean):.1f} ms/token, the rate line says otherwise"


def _control(log: DecodeLog) -> Iterator[Refusal]:
    """The comparison with plain decode, made again from the printed tokens."""
    for point in log.points:
        gate = point.lossless
        if gate is None or gate.differs_at is not None:
            continue
        spec, plain = point.first_tokens[: gate.compared], log.base.tokens[: gate.compared]
        if spec != plain or not plain:
            yield Refusal("not_lossless", "the gate says PASS, but the printed tokens differ",
                          gate.line)


def _table(log: DecodeLog) -> Iterator[Refusal]:
    done = log.complete_points
    if not log.table:
        if log.end_line and len(done) > 1:
            yield _wrong("several points and no closing table", log.end_line)
        return
    if log.table_base_tok_s != log.base.tok_s:
        yield _wrong("the table is compared with another base rate", log.table[0].line)
    if len(log.table) != len(done):
        yield _wrong(f"{len(log.table)} rows for {len(done)} points", log.table[-1].line)
    for row, point in zip(log.table, done, strict=False):
        if differing := _differs(row, point):
            yield _wrong(f"the table's row for prompt {row.prompt} has another {differing} than "
                         "its point", row.line)


def _differs(row: TableRow, point: Point) -> str:
    pairs = {
        "prompt": (row.prompt, point.prompt),
        "width": (row.width, point.width),
        "draft passes": (row.passes, point.passes),
        "adaptK": (row.effective_adapt_k, point.adapt_k),
        "tau": (row.tau, point.tau),
        "ms/token": (row.ms_per_token, point.ms_per_token),
        "tok/s": (row.tok_s, point.tok_s),
    }
    return ", ".join(name for name, (mine, its) in pairs.items() if mine != its)


def _said(value: Fraction | None) -> str:
    return "none" if value is None else f"{float(value):.2f}"


def _near(left: Fraction, right: Fraction, slack: Fraction) -> bool:
    return abs(left - right) <= slack


def _reciprocal(ms: Fraction | None, tok_s: Fraction | None) -> bool:
    """Whether both printed numbers can be roundings of one rate."""
    if ms is None or tok_s is None or ms <= _HALF_TENTH:
        return False
    low, high = 1000 / (ms + _HALF_TENTH), 1000 / (ms - _HALF_TENTH)
    return low - _HALF_CENT <= tok_s <= high + _HALF_CENT
