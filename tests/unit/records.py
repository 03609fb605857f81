"""Fabricated records and a fabricated box, with effects that the test chooses.

`record` makes one RunRecord, `text_of` the log that parses back to it, `World` stands in for the
engine and `drive` runs a whole campaign against it through the real plan, judge and ledger.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import select

from flywheel.ledger import attempts, models, store, views
from flywheel.ledger.rows import PatchRow
from flywheel.ledger.store import Ledger
from flywheel.lever import Lever, canonical, fingerprint
from flywheel.loop import judge, plan, planned
from flywheel.patch import record as patch_record
from flywheel.run.manifest import Manifest, engine_config
from flywheel.run.parse import parse
from flywheel.run.record import (
    Arm,
    Asset,
    Clocks,
    Control,
    Device,
    EngineBuild,
    FirstDiff,
    Gate,
    Header,
    Loaded,
    Plain,
    Point,
    RunPlan,
    RunRecord,
    StepCost,
    SuiteRef,
)
from flywheel.sweep import Sweep

# No test pulls the plug, and waiting for the disk is most of a small ledger's time.
store.SYNCHRONOUS = "OFF"

NONCE = "0123456789abcdef" * 2
HEX = "ab" * 32
PROMPTS = (("code-0", "code"), ("code-1", "code"), ("prose-0", "prose"), ("prose-1", "prose"))
NOW = "2026-11-28T22:00:00Z"
TOKENS, ROUNDS, WIDTH = 33, 16, 3


def lever(name: str = "threads2", change: Mapping[str, object] | None = None, **more: Any) -> Lever:
    """A valid lever."""
    fields: dict[str, Any] = {
        "name": name,
        "kind": "config",
        "change": {"threads": 2} if change is None else change,
        "claim": "it is faster",
        "falsify": "it is not",
        "predicted_gain": 0.03,
        **more,
    }
    return Lever(**fields)


def arm(name: str, requested: Mapping[str, object]) -> Arm:
    """An arm as an engine with two defaults would resolve it."""
    effective = {"draft_width": WIDTH, "threads": 1, **requested}
    return Arm(name, dict(requested), effective, fingerprint(effective))


def header(
    run_id: str,
    arms: Mapping[str, Mapping[str, object]],
    order: str,
    prompts: Sequence[tuple[str, str]] = PROMPTS,
    *,
    seed: int = 1,
    source: str = HEX,
    device: str = "a cpu",
) -> Header:
    """The start event of a run of these arms."""
    return Header(
        protocol=1,
        run_id=run_id,
        engine=EngineBuild("1", None, None, source),
        checkpoint=Asset("/checkpoint", HEX),
        head=None,
        suite=SuiteRef("s", "1", HEX),
        device=Device("cpu", device, None, 2),
        clocks=Clocks("unmanaged", None),
        mode="clean",
        torch="2",
        plan=RunPlan(
            tuple(arms), tuple(order), tuple(arms), tuple(p for p, _ in prompts), TOKENS, seed
        ),
        arms=tuple(arm(name, requested) for name, requested in arms.items()),
    )


def point(name: str, prompt: str, category: str, repeat: int, ms: float, **more: Any) -> Point:
    """One repeat at `ms` per token."""
    fields: dict[str, Any] = {
        "arm": name,
        "prompt": prompt,
        "category": category,
        "repeat": repeat,
        "prompt_tokens": 10,
        "tokens": TOKENS,
        "rounds": ROUNDS,
        "forwards": ROUNDS,
        "prefill_ns": 2_000_000,
        "ttft_ns": 2_100_000,
        "decode_ns": round(ms * 1e6 * (TOKENS - 1)),
        "accepted_by_position": (10, 4, 2),
        "offered_by_position": (16, 16, 16),
        "max_committed": 3,
        "width": WIDTH,
        "tokens_sha256": fingerprint(prompt),
        "stop": "length",
        "counted": True,
        "excluded": None,
        "finite": True,
        **more,
    }
    return Point(**fields)


def record(
    run_id: str = "r1",
    *,
    arms: Mapping[str, Mapping[str, object]] | None = None,
    order: str = "ABBA",
    ms: Mapping[str, float] | Callable[[str, str, int], float] | None = None,
    prompts: Sequence[tuple[str, str]] = PROMPTS,
    seed: int = 1,
    source: str = HEX,
    device: str = "a cpu",
    gate_fails: str | None = None,
) -> RunRecord:
    """A complete run. `ms` gives ms/token per arm, or per (arm, category, place in the order).

    `gate_fails` names an arm whose first lossless gate fails.
    """
    arms = arms or {"A": {}, "B": {"threads": 2}}
    table = ms or {"A": 10.0, "B": 9.7}
    head = header(run_id, arms, order, prompts, seed=seed, source=source, device=device)

    def time_of(name: str, category: str, place: int) -> float:
        return table(name, category, place) if callable(table) else table[name]

    points, gates, plains = [], [], []
    for prompt, category in prompts:
        for name in arms:
            plains.append(_plain(name, prompt, category, 2 * time_of(name, category, 0)))
        seen: dict[str, int] = {}
        for place, name in enumerate(order):
            repeat = seen.get(name, 0)
            seen[name] = repeat + 1
            points.append(
                point(name, prompt, category, repeat, time_of(name, category, place))
            )
            bad = gate_fails == name and prompt == prompts[0][0] and repeat == 0
            diff = FirstDiff(5, 1, 2) if bad else None
            gates.append(Gate("lossless", name, prompt, repeat, TOKENS, not bad, diff))
    return RunRecord(
        run_id=run_id,
        header=head,
        plains=tuple(plains),
        points=tuple(points),
        gates=tuple(gates),
        step_costs=tuple(
            StepCost(name, width, 4_000_000 + 500_000 * width)
            for name in arms
            for width in range(1, WIDTH + 2)
        ),
        peak_rss_bytes=10**9,
        seal=HEX,
        loaded=Loaded(10**9, 10**8, 7),
        controls=tuple(Control(name, prompts[0][0], 1, True, True) for name in arms),
    )


def _plain(name: str, prompt: str, category: str, ms: float) -> Plain:
    return Plain(
        arm=name, prompt=prompt, category=category, prompt_tokens=10, tokens=TOKENS,
        forwards=TOKENS - 1, prefill_ns=2_000_000, ttft_ns=2_100_000,
        decode_ns=round(ms * 1e6 * (TOKENS - 1)), tokens_sha256=fingerprint(prompt),
        stop="length", distinct_4gram=0.9, counted=True, excluded=None, finite=True,
    )


def manifest_of(
    made: RunRecord, *, block_id: str = "b00001", null: bool = False, nonce: str = NONCE
) -> Manifest:
    """The manifest that the record answers."""
    where = made.header.plan
    config = engine_config(
        run_id=made.run_id, nonce=nonce, checkpoint=made.header.checkpoint.path, head=None,
        suite="/suite.json", prompts=where.prompts,
        arms={a.name: a.requested for a in made.header.arms}, order=where.order,
        plain_arms=where.plain_arms, max_new_tokens=where.max_new_tokens,
        seed=where.seed,
    )
    return Manifest(
        run_id=made.run_id, nonce=nonce, config=config, argv=("engine",), cwd="/",
        created_utc=NOW, timeout_s=60.0, block_id=block_id, null=null,
    )


def text_of(made: RunRecord, nonce: str = NONCE) -> str:
    """The sealed log of a record."""
    lines, digest = ["an engine, in prose"], hashlib.sha256()
    events = _events(made)
    for seq, event in enumerate(events):
        line = f"@{nonce} {json.dumps({'seq': seq, 't_ns': 10**9 * (seq + 1), **event})}"
        lines.append(line)
        digest.update(line.encode() + b"\n")
    kinds = ("plain", "point", "gate", "control", "step_cost")
    counts = {kind: sum(e["event"] == kind for e in events) for kind in kinds}
    end = {
        "event": "end", "seq": len(events), "t_ns": 10**9 * (len(events) + 1),
        "counts": {**counts, "events": len(events)},
        "tokens": sum(p.tokens for p in made.points),
        "rounds": sum(p.rounds for p in made.points),
        "checkpoint_sha256": made.header.checkpoint.sha256,
        "source_sha256": made.header.engine.source_sha256,
        "seal": digest.hexdigest(),
    }
    return "\n".join([*lines, f"@{nonce} {json.dumps(end)}"]) + "\n"


def _events(made: RunRecord) -> list[dict[str, Any]]:
    events = [
        {"event": "start", **_plain_dict(made.header)},
        {"event": "loaded", **_plain_dict(made.loaded)},
        *({"event": "control", **_plain_dict(c)} for c in made.controls),
        *({"event": "plain", **_plain_dict(p)} for p in made.plains),
    ]
    for measured, gate in zip(made.points, made.gates, strict=True):
        events.append({"event": "heartbeat", "phase": "points", "done": 1, "total": 8,
                       "load_1m": 1.0, "rss_bytes": 1, "mem_available_bytes": None})
        events.append({"event": "point", **_plain_dict(measured)})
        events.append({"event": "gate", **_plain_dict(gate)})
    events += [{"event": "step_cost", **_plain_dict(c)} for c in made.step_costs]
    return [*events, {"event": "memory", "peak_rss_bytes": made.peak_rss_bytes}]


def _plain_dict(value: Any) -> Any:
    if hasattr(value, "__slots__"):
        body = {n: _plain_dict(getattr(value, n)) for n in value.__slots__ if n != "line"}
        if "passed" in body:
            body["pass"] = body.pop("passed")
        return body
    if isinstance(value, tuple | list):
        return [_plain_dict(v) for v in value]
    return value


@dataclass
class World:
    """A box on which a configuration's true log time is the sum of its fields' effects.

    `effects` maps canonical {field: value} to a log effect (negative is faster); `sd` is the
    between-load sd of a hot effect, `load_sd` that of a load's level. `bend` may change a record.
    """

    effects: dict[str, float] = field(default_factory=dict)
    sd: float = 0.004
    load_sd: float = 0.01
    seed: int = 1
    bend: Callable[[plan.NextBlock, RunRecord], RunRecord] | None = None
    runs: int = 0
    fails: Callable[[plan.NextBlock], tuple[str, str] | None] | None = None

    def level(self, config: Mapping[str, object]) -> float:
        """True log ms/token."""
        return math.log(10.0) + sum(
            self.effects.get(canonical({k: v}), 0.0) for k, v in config.items()
        )

    def run(self, step: plan.NextBlock, load: plan.Load) -> RunRecord:
        """What the engine would log."""
        self.runs += 1
        dice = random.Random(f"{self.seed} {step.block_id} {load.slot}")
        shift, tilt = dice.gauss(0, self.load_sd), dice.gauss(0, self.sd)
        jitter = {c: dice.gauss(0, self.sd / 4) for _, c in PROMPTS}
        arms = dict(load.arms)

        def ms(name: str, category: str, place: int) -> float:
            moved = tilt + jitter[category] if name == "B" else 0.0
            return math.exp(self.level(arms[name]) + shift + moved + dice.gauss(0, 0.001))

        made = record(
            f"r{step.block_id[1:]}{load.slot}", arms=arms, order="".join(load.order), ms=ms,
            prompts=PROMPTS[::2],
            seed=step.seed,
        )
        return self.bend(step, made) if self.bend else made


def play(ledger: Ledger, step: plan.NextBlock, world: World) -> judge.Entered:
    """Plan, run and enter every load of one block, as the daemon would."""
    planned.plan_block(ledger, step, now_utc=NOW)
    entered = None
    for load in step.loads():
        made = world.run(step, load)
        manifest = manifest_of(made, block_id=step.block_id, null=step.null)
        planned.start_run(ledger, manifest, slot=load.slot, now_utc=NOW)
        failure = world.fails(step) if world.fails else None
        if failure is None:
            end = judge.RunEnd("ok", "", "", NOW, NOW, 60 * 10**9, 0)
            text = text_of(made)
            read = parse(text, manifest)
            assert isinstance(read, RunRecord), read
            entered = judge.enter(ledger, made.run_id, end, text, read, now_utc=NOW)
        else:
            outcome = "blocked" if failure[0] == "disk_full" else "void"
            end = judge.RunEnd(outcome, *failure, NOW, NOW, 10**9, 1)
            entered = judge.enter(ledger, made.run_id, end, "dead", None, now_utc=NOW)
            break
    assert entered is not None
    return entered


def drive(
    ledger: Ledger, levers: Sequence[Lever], world: World, *, most: int = 400, **options: Any
) -> plan.Stop:
    """Run until the plan stops; returns its reason."""
    for _ in range(most):
        with ledger.reading() as connection:
            view = views.load(connection)
            effective = views.effective_configs(connection)
        step = plan.next_step(view, levers, effective=effective, **options)
        if isinstance(step, plan.Stop):
            return step
        if isinstance(step, plan.PricedOut):
            planned.price_out(ledger, step, now_utc=NOW)
        else:
            play(ledger, step, world)
    raise AssertionError("the plan never stopped")


def an_attempt(ledger: Ledger) -> None:
    """A proposer was asked, and a sweep came of it."""
    attempts.record(
        ledger, "thinker", "answered", "one of one", phase=None, verdicts=[{"admitted": True}],
        admitted=[Sweep("s", "depth", "c", "f", 0.01, values=(1, 2))], transcript="t.json",
        sha256="0", wall_s=1.0, now_utc=NOW,
    )  # fmt: skip


def a_head(ledger: Ledger) -> None:
    """A head that was measured, put into service and broke there; its rows, without its files."""
    with ledger.transaction() as writer:
        block = writer.connection.execute(select(models.block.c.block_id)).scalars().first()
        decision = writer.connection.execute(select(models.decision.c.id)).scalars().first()
        writer.append(
            models.block_prompt, block_id=block, prompt="p", category="c", held_out=False, made=9,
            incumbent=4, candidate=3,
        )
        writer.append(
            models.head, name="h", variant_id=None, weights_sha256="", card={}, created_utc=NOW
        )
        writer.append(
            models.service_fault, what="engine", detail="RuntimeError", answers=1,
            decision_id=decision, config={}, created_utc=NOW,
        )
        writer.append(
            models.head_stage, head="h", decision_id=decision, outcome="live", detail="",
            signature={}, created_utc=NOW,
        )


def a_patch(ledger: Ledger) -> None:
    """A patch that was gated."""
    with ledger.transaction() as writer:
        variant = writer.connection.execute(select(models.variant.c.id)).scalars().first()
    row = PatchRow("p", str(variant), "admitted", HEX, "diff", "base", "revision", HEX,
                   HEX, {}, NOW)  # fmt: skip
    patch_record.enter(ledger, row)


__all__ = [
    "NOW", "World", "a_head", "a_patch", "drive", "lever", "manifest_of", "play", "record",
    "replace", "text_of",
]
