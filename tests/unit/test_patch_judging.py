"""What is held against a patched engine: other tokens, a memory, the suite alone, its clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from logs import NONCE, honest, sealed
from records import record

from flywheel.errors import LeverError
from flywheel.lever import Lever
from flywheel.patch import compare
from flywheel.run.record import Plain, Point, RunRecord
from flywheel.run.stopwatch import SLACK_NS, Look, Stopwatch, contradiction

FRESH = (("edge/3", "code"), ("fresh/0", "code"), ("suite/a", "code"), ("suite/b", "prose"))


def answered(arm: str = "B", ms: Callable[[str, str, int], float] | None = None) -> RunRecord:
    """One arm's answers to a gate."""
    return record(arms={arm: {}}, order=arm * 2, ms=ms or {arm: 10.0}, prompts=FRESH)


def bent(
    made: RunRecord,
    plain: Callable[[Plain], Plain] = lambda p: p,
    point: Callable[[Point], Point] = lambda p: p,
) -> RunRecord:
    return replace(
        made, plains=tuple(map(plain, made.plains)), points=tuple(map(point, made.points))
    )


def first(found: tuple[compare.Wrong, ...]) -> str:
    return f"{found[0].word}: {found[0].sentence}" if found else ""


OTHER = "0" * 64


@pytest.mark.parametrize(
    ("word", "plain"),
    [
        ("longer", lambda p: replace(p, tokens=p.tokens + 1, tokens_sha256=OTHER)),
        ("shorter", lambda p: replace(p, tokens=p.tokens - 1, tokens_sha256=OTHER)),
        ("different", lambda p: replace(p, tokens_sha256=OTHER)),
        ("degenerate", lambda p: replace(p, tokens_sha256=OTHER, distinct_4gram=0.1)),
    ],
)
def test_other_tokens_are_called_what_they_are(word: str, plain: Callable[[Plain], Plain]) -> None:
    mine, theirs = answered("A"), bent(answered(), plain)
    assert first(compare.outputs([mine], [theirs])).startswith(f"{word}: prompt edge/3 (10 tokens)")


def test_one_token_of_one_repeat_is_enough() -> None:
    def last(point: Point) -> Point:
        is_last = (point.prompt, point.repeat) == ("suite/b", 1)
        return replace(point, tokens_sha256=OTHER) if is_last else point

    said = first(compare.outputs([answered("A")], [answered(), bent(answered(), point=last)]))
    assert said.startswith("different: prompt suite/b (10 tokens), speculative decode")


def test_equal_answers_at_equal_speed_are_honest() -> None:
    mine, theirs = answered("A"), answered("B", lambda *_: 6.0)
    assert compare.outputs([mine], [theirs]) == ()
    assert compare.remembered(mine, theirs) == ()
    assert compare.suite_only(mine, theirs) == ()


def test_other_rounds_the_second_time_are_a_memory() -> None:
    def fewer(point: Point) -> Point:
        return replace(point, rounds=point.rounds - point.repeat)

    said = first(compare.remembered(answered("A"), bent(answered(), point=fewer)))
    assert said == "remembers: prompt edge/3, arm B: 15 rounds the second time, 16 the first"


def test_a_second_time_that_takes_half_the_first_is_a_memory() -> None:
    theirs = answered("B", lambda arm, category, place: 10.0 - 5.0 * place)
    assert first(compare.remembered(answered("A"), theirs)).startswith("remembers: the second time")
    # What the incumbent does as well is no deed of the patch.
    mine = answered("A", lambda arm, category, place: 10.0 - 5.0 * place)
    assert compare.remembered(mine, theirs) == ()


def test_a_generation_that_the_box_held_up_is_no_memory() -> None:
    def stalled(point: Point) -> Point:
        late = (point.prompt, point.repeat) == ("fresh/0", 0)
        return replace(point, decode_ns=point.decode_ns * 30) if late else point

    theirs = bent(answered(), point=stalled)
    assert compare.remembered(answered("A"), theirs) == ()
    more = (*FRESH, ("fresh/1", "code"), ("fresh/2", "prose"))
    mine, theirs = (
        record(arms={arm: {}}, order=arm * 2, ms={arm: 10.0}, prompts=more) for arm in "AB"
    )
    assert compare.suite_only(mine, bent(theirs, point=stalled)) == ()


@pytest.mark.parametrize("what", ["decode_ns", "rounds"])
def test_what_is_better_for_the_suite_alone_is_no_better(what: str) -> None:
    def known(point: Point) -> Point:
        easy = point.prompt.startswith("suite/")
        return replace(point, **{what: getattr(point, what) // 2}) if easy else point

    theirs = bent(answered(), point=known)
    assert first(compare.suite_only(answered("A"), theirs)).startswith("suite_only: ")
    assert compare.suite_only(theirs, theirs) == ()


# -- the clock -----------------------------------------------------------------------------


def looks_of(text: str, *, late_ns: int = 0) -> list[Look]:
    """What one sees who looks once a second while the log of `logs.sealed` is written."""
    found, length = [], 0
    for number, line in enumerate(text.split("\n")[:-1]):
        length += len(line.encode()) + 1
        seen_ns = 1_000_000_000 * number + late_ns
        found.append(Look(seen_ns + 1, seen_ns + 900_000_000, length))
    return found


def timed() -> str:
    """An honest log whose generations fill the seconds that it says passed."""
    events = honest()
    for place, event in enumerate(events):
        if event["event"] in ("plain", "point"):
            beat = events[place - 1]["event"] == "heartbeat"
            event["decode_ns"] = (2 if beat else 1) * 1_000_000_000 - 2_000_000
    return sealed(events)


def test_an_honest_clock_is_believed() -> None:
    text = timed()
    assert contradiction(text, NONCE, looks_of(text)) is None


def test_a_clock_that_runs_slow_is_seen_from_outside() -> None:
    text = timed()
    slow = looks_of(text)
    # By our clock everything came a tenth of its time later than the log says.
    late = [Look(int(x.first_ns * 1.1), int(x.last_ns * 1.1), x.length_bytes) for x in slow]
    said = contradiction(text, NONCE, late)
    assert said is not None
    assert "older than it can be" in said


def test_a_log_from_the_future_is_seen() -> None:
    text = timed()
    said = contradiction(text, NONCE, looks_of(text, late_ns=-3_000_000_000))
    assert said is not None
    assert "had not come yet" in said


def test_a_busy_moment_is_no_lie() -> None:
    text = timed()
    assert contradiction(text, NONCE, looks_of(text, late_ns=SLACK_NS - 1_000_000)) is None


def test_timers_that_leave_time_unaccounted_for_are_seen() -> None:
    events = honest()
    for event in events:
        if event["event"] in ("plain", "point"):
            event["decode_ns"] = 400_000_000
    text = sealed(events)
    said = contradiction(text, NONCE, looks_of(text))
    assert said is not None
    assert "its timers do not agree" in said


def test_a_stopwatch_notes_when_a_length_was_seen_first_and_last(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    watch = Stopwatch(log)
    watch.look()
    log.write_text("one\n")
    watch.look()
    watch.look()
    log.write_text("one\ntwo\n")
    watch.look()
    assert [look.length_bytes for look in watch.looks] == [0, 4, 8]
    assert watch.looks[1].first_ns < watch.looks[1].last_ns < watch.looks[2].first_ns


# -- in a block ----------------------------------------------------------------------------


def test_full_length_answers_are_compared_again_in_every_block() -> None:
    def load(arm: str) -> RunRecord:
        return record(arms={arm: {}}, order=arm * 2, ms={arm: 10.0})

    loads = [load("A"), load("B"), load("B"), load("A")]
    assert compare.block(loads) is None
    loads[2] = bent(loads[2], lambda p: replace(p, tokens_sha256=OTHER))
    assert (compare.block(loads) or "").startswith("different: prompt code-0")


def test_a_patch_lever_names_a_diff_and_is_cold() -> None:
    body = {"name": "p", "kind": "patch", "claim": "c", "falsify": "f", "predicted_gain": 0.1}
    made = Lever(**body, change={"patch": "a" * 64}, hot=False)
    assert made.label() == "patch aaaaaaaaaaaa"
    assert made.applied({"threads": 2}, "v0003") == {"threads": 2, "patch": "p-v0003"}
    for change, hot in (({"patch": "a" * 64}, True), ({"patch": "x"}, False), ({"a": 1}, False)):
        with pytest.raises(LeverError, match="the hash of a diff"):
            Lever(**body, change=change, hot=hot)
