"""A small honest log, built event by event, that tests bend in one place and seal again."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable
from typing import Any

from flywheel.run.manifest import Manifest, engine_config

NONCE = "0123456789abcdef" * 2
OTHER_NONCE = "f" * 32
HEX = "ab" * 32
PROMPTS = ("code-0", "prose-0")
Event = dict[str, Any]


def manifest(**changes: Any) -> Manifest:
    """The manifest that the honest log answers."""
    config = engine_config(
        run_id="r1",
        nonce=NONCE,
        checkpoint="/checkpoint",
        head=None,
        suite="/suite.json",
        prompts=PROMPTS,
        arms=changes.pop("arms", {"A": {}, "B": {"threads": 2}}),
        order=("A", "B", "B", "A"),
        plain_arms=("A", "B"),
        max_new_tokens=9,
        seed=1,
    )
    fields: dict[str, Any] = {
        "run_id": "r1",
        "nonce": NONCE,
        "config": config,
        "argv": ("engine",),
        "cwd": "/",
        "created_utc": "2026-11-28T22:00:00Z",
        "timeout_s": 60.0,
        **changes,
    }
    return Manifest(**fields)


def fingerprint(value: Any) -> str:
    """What an engine would call this configuration."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _arm(name: str, requested: Event) -> Event:
    effective = {"draft_width": 3, "threads": 1, **requested}
    return {
        "name": name,
        "requested": requested,
        "effective": effective,
        "fingerprint": fingerprint(effective),
    }


def _generation(arm: str, prompt: str) -> Event:
    return {
        "arm": arm,
        "prompt": prompt,
        "category": prompt[:-2],
        "prompt_tokens": 4,
        "tokens": 9,
        "prefill_ns": 1_000_000,
        "ttft_ns": 1_100_000,
        "decode_ns": 8_000_000,
        "tokens_sha256": fingerprint(prompt),
        "stop": "length",
        "counted": True,
        "excluded": None,
        "finite": True,
    }


def honest() -> list[Event]:
    """Every event but the end, without seq and time."""
    start = {
        "event": "start",
        "protocol": 1,
        "run_id": "r1",
        "engine": {
            "version": "1",
            "git_revision": None,
            "git_dirty": None,
            "source_sha256": HEX,
        },
        "checkpoint": {"path": "/checkpoint", "sha256": HEX},
        "head": None,
        "suite": {"name": "s", "version": "1", "sha256": HEX},
        "device": {"kind": "cpu", "name": "a cpu", "driver": None, "cores": 2},
        "clocks": {"policy": "unmanaged", "mhz": None},
        "mode": "clean",
        "torch": "2",
        "plan": {
            "arms": ["A", "B"],
            "order": ["A", "B", "B", "A"],
            "plain_arms": ["A", "B"],
            "prompts": list(PROMPTS),
            "max_new_tokens": 9,
            "seed": 1,
        },
        "arms": [_arm("A", {}), _arm("B", {"threads": 2})],
    }
    events: list[Event] = [
        start,
        {"event": "loaded", "load_ns": 5, "weights_bytes": 10, "tensors": 1},
    ]
    for arm in "AB":
        events.append(
            {
                "event": "control",
                "arm": arm,
                "prompt": PROMPTS[0],
                "token": 1,
                "finite": True,
                "pass": True,
            }
        )
    for prompt in PROMPTS:
        for arm in "AB":
            events.append(
                {
                    "event": "plain",
                    **_generation(arm, prompt),
                    "forwards": 8,
                    "distinct_4gram": 0.9,
                }
            )
        for arm, repeat in (("A", 0), ("B", 0), ("B", 1), ("A", 1)):
            events.append({"event": "heartbeat", "phase": "points", "done": 1, "total": 8,
                           "load_1m": 1.0, "rss_bytes": 1, "mem_available_bytes": None})
            events.append(
                {
                    "event": "point",
                    **_generation(arm, prompt),
                    "repeat": repeat,
                    "rounds": 4,
                    "forwards": 4,
                    "accepted_by_position": [3, 1, 0],
                    "offered_by_position": [4, 4, 4],
                    "max_committed": 3,
                    "width": 3,
                }
            )
            events.append(
                {
                    "event": "gate",
                    "kind": "lossless",
                    "arm": arm,
                    "prompt": prompt,
                    "repeat": repeat,
                    "compared": 9,
                    "pass": True,
                    "first_diff": None,
                }
            )
    for arm in "AB":
        for width in range(1, 5):
            events.append({"event": "step_cost", "arm": arm, "width": width, "ns": 500_000})
    events.append({"event": "memory", "peak_rss_bytes": 1000})
    return events


def sealed(events: list[Event], *, nonce: str = NONCE, end: Event | None = None) -> str:
    """The log of these events: numbered, timed one second apart, counted and sealed."""
    lines, digest = ["an engine, in prose"], hashlib.sha256()
    for seq, event in enumerate(events):
        body = {"seq": seq, "t_ns": 1_000_000_000 * (seq + 1), **event}
        line = f"@{nonce} {json.dumps(body)}"
        lines.append(line)
        digest.update(line.encode() + b"\n")
    points = [event for event in events if event["event"] == "point"]
    kinds = ("plain", "point", "gate", "control", "step_cost")
    counts = {kind: sum(event["event"] == kind for event in events) for kind in kinds}

    def total(name: str) -> int:
        return sum(p[name] for p in points if type(p.get(name)) is int)

    body = {
        "event": "end",
        "seq": len(events),
        "t_ns": 1_000_000_000 * (len(events) + 1),
        "counts": {**counts, "events": len(events)},
        "tokens": total("tokens"),
        "rounds": total("rounds"),
        "checkpoint_sha256": HEX,
        "source_sha256": HEX,
        "seal": digest.hexdigest(),
        **(end or {}),
    }
    lines.append(f"@{nonce} {json.dumps(body)}")
    return "\n".join(lines) + "\n"


def bent(kind: str, number: int, change: Callable[[Event], object]) -> str:
    """The honest log with the ``number``-th event of a kind changed in place."""
    events = copy.deepcopy(honest())
    change([event for event in events if event["event"] == kind][number])
    return sealed(events)
