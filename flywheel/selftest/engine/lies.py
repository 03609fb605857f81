"""Lies: events that a broken engine would write.  Each bends one event of an honest log."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flywheel.selftest.engine.journal import sha

Body = dict[str, Any]
DIFFERENCE = {"index": 7, "plain": 11, "spec": 12}


@dataclass(frozen=True, slots=True)
class Lie:
    """What becomes of one event: ``which`` counts events of that kind, -1 is the last."""

    event: str
    change: Callable[[Body], list[Body]]
    which: int = -1


def _set(event: str, which: int = -1, **fields: Any) -> Lie:
    return Lie(event, lambda body: [{**body, **fields}], which)


def _bent(event: str, field: str, change: Callable[[Any], Any], which: int = -1) -> Lie:
    return Lie(event, lambda body: [{**body, field: change(body[field])}], which)


def _missing(event: str, which: int = -1) -> Lie:
    return Lie(event, lambda _: [], which)


def _twice(event: str, which: int = -1) -> Lie:
    return Lie(event, lambda body: [body, body], which)


def _plan(**fields: Any) -> Lie:
    return Lie("start", lambda body: [{**body, "plan": {**body["plan"], **fields}}])


def _arms(change: Callable[[Body], Body]) -> Lie:
    return Lie("start", lambda body: [{**body, "arms": [change(a) for a in body["arms"]]}])


def _counted(name: str) -> Lie:
    def change(counts: Body) -> Body:
        return {**counts, name: counts[name] + 1}

    return _bent("end", "counts", change)


def _another(digest: str) -> str:
    return sha(digest)


LIES: dict[str, Lie] = {
    # Numbers
    "zero_tokens": _set("point", tokens=0, rounds=0, forwards=0),
    "negative_tokens": _set("point", tokens=-40),
    "wrong_tokens": _bent("point", "tokens", lambda n: n - 1),
    "too_many_tokens": _bent("point", "tokens", lambda n: n + 1),
    "text_tokens": _bent("point", "tokens", str),
    "true_tokens": _set("point", tokens=True),
    "huge_number": _set("point", decode_ns=10**400),
    "nan": _set("point", decode_ns=float("nan")),
    "inf": _set("point", decode_ns=float("inf")),
    "minus_inf": _set("point", decode_ns=float("-inf")),
    "zero_time": _set("point", decode_ns=0),
    "negative_time": _bent("point", "decode_ns", lambda n: -n),
    "impossible_time": _set("point", decode_ns=10**15),
    "too_fast": Lie("point", lambda b: [{**b, "decode_ns": b["forwards"] * 3}]),
    "no_prefill": _set("point", prefill_ns=0),
    "first_token_early": _set("point", ttft_ns=1),
    "sum": _bent("point", "accepted_by_position", lambda n: [0] * len(n)),
    "over_width": Lie("point", lambda b: [{**b, "max_committed": b["width"] + 2}]),
    "rounds": _bent("point", "forwards", lambda n: n + 1),
    "more_accepted": Lie(
        "point", lambda b: [{**b, "accepted_by_position": [b["rounds"] + 1] * b["width"]}]
    ),
    "other_width": _bent("point", "width", lambda n: n + 1),
    "not_finite": _set("point", finite=False),
    "plain_not_finite": _set("plain", finite=False),
    "plain_forwards": _bent("plain", "forwards", lambda n: n + 3),
    "category_changes": _set("point", category="another"),
    "fast_step": _set("step_cost", ns=1),
    # Coverage
    "point_missing": _missing("point"),
    "point_twice": _twice("point"),
    "plain_missing": _missing("plain"),
    "plain_twice": _twice("plain"),
    "gate_missing": _missing("gate"),
    "gate_twice": _twice("gate"),
    "control_missing": _missing("control"),
    "memory_missing": _missing("memory"),
    "unplanned_prompt": _set("point", prompt="another-9"),
    # Gates
    "gate": Lie("gate", lambda body: [{**body, "pass": False, "first_diff": DIFFERENCE}]),
    "gate_contradicted": _set("gate", first_diff=DIFFERENCE),
    "gate_partial": _set("gate", compared=3),
    "other_tokens": _bent("point", "tokens_sha256", _another),
    "control": Lie("control", lambda body: [{**body, "pass": False}]),
    "control_not_finite": _set("control", finite=False),
    # Identity
    "wrong_run_id": _set("start", run_id="r-other"),
    "wrong_protocol": _bent("start", "protocol", lambda n: n + 1),
    "profile": _set("start", mode="profile"),
    "other_plan": Lie(
        "start", lambda b: [{**b, "plan": {**b["plan"], "order": b["plan"]["order"][:-1]}}]
    ),
    "other_seed": _plan(seed=987654321),
    "wrong_fingerprint": _arms(lambda arm: {**arm, "fingerprint": sha("?")}),
    "other_request": _arms(lambda arm: {**arm, "requested": {**arm["requested"], "extra": 1}}),
    "start_twice": _twice("start"),
    "unknown_event": Lie("memory", lambda b: [b, {**b, "event": "surprise"}]),
    # The end
    "counts": _counted("point"),
    "event_count": _bent("end", "counts", lambda n: {**n, "events": n["events"] + 2}),
    "token_sum": _bent("end", "tokens", lambda n: n + 1),
    "seal_missing": _missing("end"),
    "seal_wrong": _set("end", seal=sha("wrong")),
    "checkpoint": _set("end", checkpoint_sha256=sha("new")),
    "source": _set("end", source_sha256=sha("new")),
    # The host
    "busy": _set("heartbeat", load_1m=10_000.0),
}
