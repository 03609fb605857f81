"""The parser admits one honest log and refuses every bent one, with its reason and no exception."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from logs import HEX, NONCE, OTHER_NONCE, PROMPTS, bent, fingerprint, honest, manifest, sealed

from flywheel.run.exit_status import ExitStatus
from flywheel.run.parse import Refusal, parse
from flywheel.run.record import RunRecord

EXIT = ExitStatus(
    run_id="r1", status=0, signal=None, timed_out=False, stopped=False, duration_ns=1,
    started_utc="", ended_utc="", leftovers=0, group_empty=True, peak_rss_bytes=None,
    log_bytes=None, log_sha256=None, engine=None, supervisor=None,
)  # fmt: skip


def code(text: str, **fields: Any) -> str:
    result = parse(text, manifest(**fields))
    return result.code if isinstance(result, Refusal) else "ok"


def test_an_honest_log_becomes_a_record_with_the_lines_of_its_entries() -> None:
    text = sealed(honest())
    record = parse(text, manifest(), EXIT)
    assert isinstance(record, RunRecord), record
    assert (len(record.points), len(record.plains), len(record.gates)) == (8, 4, 8)
    assert len(record.step_costs) == 8
    assert record.loaded is not None
    assert record.loaded.tensors == 1
    line = text.split("\n")[record.points[0].line - 1]
    assert json.loads(line.split(" ", 1)[1])["event"] == "point"


def test_repeats_may_count_from_one() -> None:
    events = honest()
    for event in events:
        if "repeat" in event:
            event["repeat"] += 1
    assert code(sealed(events)) == "ok"


@pytest.mark.parametrize(
    ("kind", "number", "change", "expected"),
    [
        ("start", 0, {"run_id": "r2"}, "run_id_mismatch"),
        ("start", 0, {"protocol": 2}, "protocol_mismatch"),
        ("start", 0, {"mode": "profile"}, "not_clean"),
        ("start", 0, {"head": {"path": "/h", "sha256": HEX}}, "manifest_mismatch"),
        ("start", 0, {"torch": None}, "malformed_event"),
        ("start", 0, {"device": {"kind": "tpu"}}, "malformed_event"),
        ("start", 0, {"device": "cpu"}, "malformed_event"),
        ("start", 0, {"arms": [1]}, "malformed_event"),
        ("start", 0, {"arms": []}, "manifest_mismatch"),
        ("start", 0, {"plan": {"arms": 3}}, "malformed_event"),
        ("heartbeat", 0, {"t_ns": 1}, "clock_backwards"),
        ("heartbeat", 0, {"load_1m": -1}, "malformed_event"),
        ("heartbeat", 0, {"event": "rumour"}, "unknown_event"),
        ("heartbeat", 0, {"seq": 77}, "seq_broken"),
        ("loaded", 0, {"event": "start"}, "start_misplaced"),
        ("loaded", 0, {"load_ns": 1.5}, "malformed_event"),
        ("loaded", 0, {"load_ns": True}, "malformed_event"),
        ("loaded", 0, {"load_ns": 10**30}, "malformed_event"),
        ("memory", 0, {"event": "heartbeat", "phase": "x", "done": 0, "total": 0}, "event_missing"),
        ("control", 0, {"pass": False}, "control_failed"),
        ("control", 0, {"finite": False}, "not_finite"),
        ("control", 0, {"arm": "B"}, "control_missing"),
        ("control", 0, {"pass": 1}, "malformed_event"),
        ("plain", 0, {"tokens": 0}, "zero_tokens"),
        ("plain", 0, {"forwards": 7}, "counts_inconsistent"),
        ("plain", 0, {"prompt": "code-9"}, "plain_missing"),
        ("plain", 0, {"distinct_4gram": "0.9"}, "malformed_event"),
        ("point", 0, {"tokens": 0}, "zero_tokens"),
        ("point", 0, {"tokens": -1}, "malformed_event"),
        ("point", 0, {"tokens": "9"}, "malformed_event"),
        ("point", 0, {"tokens": 10}, "counts_inconsistent"),
        ("point", 0, {"tokens": 8}, "counts_inconsistent"),
        ("point", 0, {"finite": False}, "not_finite"),
        ("point", 0, {"repeat": 1}, "point_twice"),
        ("point", 0, {"repeat": 2}, "point_missing"),
        ("point", 0, {"prefill_ns": 0}, "impossible_rate"),
        ("point", 0, {"ttft_ns": 5}, "impossible_rate"),
        ("point", 0, {"decode_ns": 0}, "impossible_rate"),
        ("point", 0, {"decode_ns": 4000 - 1}, "impossible_rate"),
        ("point", 0, {"decode_ns": 10**14}, "impossible_rate"),
        ("point", 0, {"forwards": 5}, "counts_inconsistent"),
        ("point", 0, {"rounds": 9, "forwards": 9}, "counts_inconsistent"),
        ("point", 0, {"rounds": 0, "forwards": 0}, "counts_inconsistent"),
        ("point", 0, {"width": 4}, "counts_inconsistent"),
        ("point", 0, {"max_committed": 5}, "counts_inconsistent"),
        ("point", 0, {"max_committed": 1}, "counts_inconsistent"),
        ("point", 0, {"accepted_by_position": [1, 1, 1]}, "counts_inconsistent"),
        ("point", 0, {"accepted_by_position": [1, 2, 1]}, "counts_inconsistent"),
        ("point", 0, {"accepted_by_position": [4, 4, 4]}, "counts_inconsistent"),
        ("point", 0, {"accepted_by_position": [5, 0, 0]}, "counts_inconsistent"),
        ("point", 0, {"accepted_by_position": [3, 1]}, "counts_inconsistent"),
        ("point", 0, {"offered_by_position": [5, 4, 4]}, "counts_inconsistent"),
        ("point", 0, {"accepted_by_position": "310"}, "malformed_event"),
        ("point", 0, {"category": "other"}, "counts_inconsistent"),
        ("point", 0, {"prompt_tokens": 5}, "counts_inconsistent"),
        ("point", 0, {"counted": False}, "counts_inconsistent"),
        ("point", 0, {"excluded": "bored"}, "malformed_event"),
        ("point", 0, {"stop": "tired"}, "malformed_event"),
        ("point", 0, {"tokens_sha256": "xyz"}, "malformed_event"),
        ("point", 0, {"tokens_sha256": HEX}, "gate_contradicted"),
        ("gate", 0, {"pass": False}, "gate_failed"),
        ("gate", 0, {"compared": 8}, "gate_contradicted"),
        ("gate", 0, {"repeat": 5}, "gate_missing"),
        ("step_cost", 0, {"width": 2}, "step_cost_twice"),
        ("step_cost", 0, {"ns": 0}, "impossible_rate"),
        ("step_cost", 0, {"arm": "C"}, "step_cost_twice"),
    ],
)
def test_a_bent_event_is_refused(
    kind: str, number: int, change: dict[str, Any], expected: str
) -> None:
    assert code(bent(kind, number, lambda event: event.update(change))) == expected


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        ({"seal": HEX}, "seal_wrong"),
        ({"tokens": 1}, "counts_inconsistent"),
        ({"rounds": 1}, "counts_inconsistent"),
        ({"counts": {}}, "malformed_event"),
        ({"checkpoint_sha256": "cd" * 32}, "changed_underfoot"),
        ({"source_sha256": "cd" * 32}, "changed_underfoot"),
        ({"t_ns": 10**12}, "heartbeat_gap"),
    ],
)
def test_a_bent_end_is_refused(end: dict[str, Any], expected: str) -> None:
    assert code(sealed(honest(), end=end)) == expected


def test_a_count_that_is_off_by_one_is_refused() -> None:
    counts = {"plain": 4, "point": 8, "gate": 8, "control": 2, "step_cost": 8, "events": 3}
    assert code(sealed(honest(), end={"counts": counts})) == "counts_inconsistent"
    counts = {**counts, "point": 9}
    assert code(sealed(honest(), end={"counts": counts})) == "counts_inconsistent"


def test_an_event_left_out_is_refused_even_when_sealed_again() -> None:
    for kind, expected in (
        ("point", "point_missing"),
        ("gate", "gate_missing"),
        ("plain", "plain_missing"),
        ("control", "control_missing"),
        ("loaded", "event_missing"),
    ):
        events = honest()
        events.remove(next(event for event in events if event["event"] == kind))
        assert code(sealed(events)) == expected


def test_an_event_said_twice_is_refused() -> None:
    for kind in ("point", "gate", "plain"):
        events = honest()
        twin = next(event for event in events if event["event"] == kind)
        events.insert(events.index(twin), copy.deepcopy(twin))
        assert code(sealed(events)) == f"{kind}_twice"


def test_every_prefix_of_a_log_is_refused() -> None:
    text = sealed(honest())
    for cut in range(0, len(text) - 1, 97):
        assert code(text[:cut]) in ("log_empty", "truncated", "seal_missing")
    assert code(text[:-2]) == "truncated"


def test_a_changed_byte_in_an_event_breaks_the_seal() -> None:
    text = sealed(honest())
    assert code(text.replace('"load_ns": 5', '"load_ns": 6')) == "seal_wrong"


def test_what_follows_the_seal_voids_the_log() -> None:
    text = sealed(honest())
    late = f'@{NONCE} {{"event":"heartbeat","seq":99,"t_ns":1}}\n'
    assert code(text + late) == "event_after_end"


def test_lines_of_other_nonces_are_prose() -> None:
    text = sealed(honest())
    quoted = f'@{OTHER_NONCE} a prompt quotes @{NONCE} {{"event":"point","tokens":99}}\n'
    assert code(quoted + text + quoted) == "ok"
    assert code(sealed(honest(), nonce=OTHER_NONCE)) == "nonce_unknown"
    assert code(f' @{NONCE} {{"event":"end"}}\n') == "log_empty"


def test_json_that_python_would_forgive_is_refused() -> None:
    for text, expected in (
        ('{"event":"start","seq":NaN}', "not_finite"),
        ('{"event":"start","seq":1e999}', "not_finite"),
        ('{"event":"start","event":"end"}', "malformed_event"),
        ("[1]", "malformed_event"),
        ("[" * 100_000, "malformed_event"),
        ("1" * 5000, "malformed_event"),
    ):
        assert code(f"@{NONCE} {text}\n") == expected


def test_arms_are_what_was_asked_for_and_differ() -> None:
    def requested(event: dict[str, Any]) -> None:
        event["arms"][1]["requested"] = {"threads": 3}

    def not_live(event: dict[str, Any]) -> None:
        effective = {"draft_width": 3, "threads": 1}
        event["arms"][1].update(effective=effective, fingerprint=fingerprint(effective))

    def lying(event: dict[str, Any]) -> None:
        event["arms"][1]["fingerprint"] = HEX

    assert code(bent("start", 0, requested)) == "manifest_mismatch"
    assert code(bent("start", 0, not_live)) == "arm_not_live"
    assert code(bent("start", 0, lying)) == "fingerprint_mismatch"

    same = honest()
    same[0]["arms"][1] = {**same[0]["arms"][0], "name": "B", "requested": {"threads": 1}}
    arms: dict[str, dict[str, Any]] = {"A": {}, "B": {"threads": 1}}
    assert code(sealed(same), arms=arms) == "arms_identical"
    assert code(sealed(same), arms=arms, null=True) == "ok"
    assert code(sealed(honest()), null=True) == "arms_differ"


def test_a_zero_leaves_the_choice_to_the_engine_but_not_for_the_width() -> None:
    def auto(event: dict[str, Any]) -> None:
        event["arms"][1]["requested"] = {"threads": 0}
        effective = {"draft_width": 3, "threads": 8}
        event["arms"][1].update(effective=effective, fingerprint=fingerprint(effective))

    assert code(bent("start", 0, auto), arms={"A": {}, "B": {"threads": 0}}) == "ok"

    def widths(event: dict[str, Any]) -> None:
        event["arms"][1]["requested"] = {"draft_width": 0}

    assert code(bent("start", 0, widths), arms={"A": {}, "B": {"draft_width": 0}}) == "arm_not_live"


def test_true_is_not_one() -> None:
    def as_bool(event: dict[str, Any]) -> None:
        event["arms"][1]["requested"] = {"threads": True}
        effective = {"draft_width": 3, "threads": True}
        event["arms"][1].update(effective=effective, fingerprint=fingerprint(effective))

    arms: dict[str, dict[str, Any]] = {"A": {}, "B": {"threads": 1}}
    assert code(bent("start", 0, as_bool), arms=arms) == "manifest_mismatch"


def test_arms_of_earlier_loads_are_remembered() -> None:
    text = sealed(honest())
    mine = {arm["name"]: arm["fingerprint"] for arm in honest()[0]["arms"]}
    assert code(text, fingerprints=mine) == "ok"
    assert code(text, fingerprints={"A": HEX}) == "fingerprint_mismatch"
    assert code(text, fingerprints={"C": mine["A"]}) == "arms_identical"


def test_pins_of_the_campaign_hold() -> None:
    text = sealed(honest())
    good = {"checkpoint_sha256": HEX, "source_sha256": HEX, "suite_sha256": HEX,
            "device_name": "a cpu"}
    assert code(text, expected=good) == "ok"
    for name in good:
        assert code(text, expected={**good, name: "other"}) == "changed_underfoot"


def test_silence_and_load_are_bounded() -> None:
    text = sealed(honest())
    assert code(text, heartbeat_gap_s=2.5) == "heartbeat_gap"
    assert code(text, load_limit=1.5) == "ok"
    assert code(text, load_limit=0.5) == "host_busy"


def test_a_generation_that_ends_at_once_is_no_error() -> None:
    def short(event: dict[str, Any]) -> None:
        event.update(tokens=1, rounds=0, forwards=0, decode_ns=0, stop="eos", counted=False,
                     excluded="short", accepted_by_position=[0, 0, 0],
                     offered_by_position=[0, 0, 0], max_committed=0)

    events = honest()
    for event in events:
        if event["event"] in ("point", "plain") and event["prompt"] == "code-0":
            short(event)
            event.pop("rounds" if event["event"] == "plain" else "", None)
        if event["event"] == "gate" and event["prompt"] == "code-0":
            event["compared"] = 1
    assert code(sealed(events)) == "ok"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"status": 2}, "exit_status"),
        ({"status": None, "signal": 9}, "exit_signal"),
        ({"timed_out": True}, "timeout"),
        ({"stopped": True}, "stopped"),
        ({"leftovers": 2}, "group_left_behind"),
        ({"group_empty": False}, "group_left_behind"),
        ({"error": "no such file"}, "not_started"),
        ({"run_id": "r9"}, "run_id_mismatch"),
    ],
)
def test_the_supervisors_word_outranks_a_whole_log(change: dict[str, Any], expected: str) -> None:
    body = {**EXIT.to_json(), **change}
    status = ExitStatus.from_json(body)
    assert status is not None
    result = parse(sealed(honest()), manifest(), status)
    assert isinstance(result, Refusal)
    assert result.code == expected
    assert "line" not in str(Refusal("x", "y"))
    assert str(Refusal("x", "y", 3)) == "x: y (line 3)"


def test_a_failed_gate_in_a_sealed_log_stays_incorrect_whatever_the_exit() -> None:
    def fail(event: dict[str, Any]) -> None:
        event.update({"pass": False, "first_diff": {"index": 7, "plain": 1, "spec": 2}})

    status = ExitStatus.from_json({**EXIT.to_json(), "status": 1})
    result = parse(bent("gate", 3, fail), manifest(), status)
    assert isinstance(result, Refusal)
    assert (result.code, result.ending) == ("gate_failed", "incorrect")
    assert "token 7 is 2" in result.detail


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=300))
def test_garbage_bytes_are_a_refusal(data: bytes) -> None:
    prefixed = f"@{NONCE} ".encode() + data
    for text in (data, prefixed):
        assert isinstance(parse(text.decode("utf-8", "surrogateescape"), manifest()), Refusal)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_value_in_any_field_is_a_refusal_or_a_record(data: st.DataObject) -> None:
    events = honest()
    event = events[data.draw(st.integers(0, len(events) - 1))]
    field = data.draw(st.sampled_from(sorted(event)))
    event[field] = data.draw(JSON)
    text = sealed([{"event": "x", **one} for one in events])
    assert isinstance(parse(text, manifest()), Refusal | RunRecord)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_spliced_log_never_measures(data: st.DataObject) -> None:
    text = sealed(honest())
    at = data.draw(st.integers(0, len(text)))
    upto = data.draw(st.integers(at, min(len(text), at + 200)))
    new = data.draw(st.text(max_size=20))
    result = parse(text[:at] + new + text[upto:], manifest())
    if isinstance(result, RunRecord):
        # Only prose may differ, or the newline that ends the file.
        kept = [line for line in (text[:at] + new + text[upto:]).split("\n") if line[:1] == "@"]
        assert [line for line in kept if line.startswith(f"@{NONCE} ")] == [
            line for line in text.split("\n") if line.startswith(f"@{NONCE} ")
        ]


def test_arms_that_did_not_take_turns_as_planned_are_refused() -> None:
    events = honest()
    first = [n for n, e in enumerate(events) if e["event"] == "point" and e["prompt"] == PROMPTS[0]]
    a, b = first[0], first[1]
    events[a], events[b] = events[b], events[a]
    assert code(sealed(events)) == "order_not_followed"


def test_a_suite_whose_hash_changed_by_the_end_is_refused() -> None:
    assert code(sealed(honest(), end={"suite_sha256": HEX})) == "ok"
    assert code(sealed(honest(), end={"suite_sha256": "cd" * 32})) == "changed_underfoot"
    assert code(sealed(honest(), end={"suite_sha256": None})) == "malformed_event"
