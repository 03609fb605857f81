"""A made-up history of any size: the shape of full nights, written without running anything.

Every run measures two arms on all prompts of a full suite in ABBA order, as a hot block of a full
campaign does; three blocks make a decision. The numbers are noise.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from flywheel.ledger import models
from flywheel.ledger.store import Ledger
from flywheel.ledger.writer import Writer
from flywheel.lever import Lever, canonical, fingerprint, null_lever
from flywheel.loop import planned
from flywheel.ruler import Ruler
from flywheel.run.manifest import Manifest, engine_config
from flywheel.statistics.campaign import FULL

PROMPTS = tuple(f"category-{i % 8}-{i // 8}" for i in range(48))
ORDER = ("A", "B", "B", "A")
WIDTH, STEP_WIDTHS = 5, range(1, 7)
BLOCKS_EACH, LEVERS_EACH = 3, 130
RUN_S, LOGS = 180, 8
ENDINGS = ("rejected",) * 13 + ("inconclusive",) * 6 + ("promoted",)
_BEGAN = datetime(2026, 1, 1, 22, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Fabricated:
    """How much was made up."""

    campaigns: int
    variants: int
    runs: int
    measurements: int


def fabricate(ledger: Ledger, measurements: int, *, seed: int = 1) -> Fabricated:
    """Fill an empty ledger with at least so many measurements."""
    maker = _Maker(ledger, random.Random(seed))
    while maker.measurements < measurements:
        maker.campaign(measurements)
    return Fabricated(maker.campaigns, maker.variants, maker.runs, maker.measurements)


@dataclass(frozen=True, slots=True)
class Log:
    """A made-up log as the ledger stores it."""

    sha256: str
    size_bytes: int
    text_zlib: bytes


class _Maker:
    def __init__(self, ledger: Ledger, dice: random.Random) -> None:
        self.ledger = ledger
        self.dice = dice
        self.campaigns = self.variants = self.runs = self.measurements = self.tests = 0
        self.promotions = 0
        self.incumbent: dict[str, Any] = {}
        self.logs = [make_log(dice, PROMPTS) for _ in range(LOGS)]

    def campaign(self, wanted: int) -> None:
        """One epoch: nulls, then levers, each with its decision, as long as more is wanted."""
        if self.campaigns:
            planned.close_campaign(self.ledger, self.campaigns, "spent", now_utc=self.now())
        self.campaigns = planned.open_campaign(
            self.ledger, FULL, start=self.incumbent, box="made up", now_utc=self.now()
        )
        self.tests = self.promotions = 0
        ruler = _ruler()
        with self.ledger.transaction() as writer:
            writer.append_once(
                models.ruler, "identity", identity=ruler.identity, name=ruler.name,
                fields=ruler.as_dict(), created_utc=self.now(),
            )
        self._variant(null_lever(), "null", FULL.calibration)
        for number in range(LEVERS_EACH):
            if self.measurements >= wanted:
                return
            purpose = "canary" if number % 12 == 11 else "lever"
            lever = null_lever() if purpose == "canary" else _lever(self.variants)
            self._variant(lever, purpose, BLOCKS_EACH)

    def now(self) -> str:
        """The moment up to which history was made up."""
        return (_BEGAN + timedelta(seconds=RUN_S * self.runs)).strftime("%Y-%m-%dT%H:%M:%SZ")

    def _variant(self, lever: Lever, purpose: str, blocks: int) -> None:
        self.variants += 1
        variant_id = f"v{self.variants:04d}"
        candidate = {**self.incumbent, **lever.change}
        with self.ledger.transaction() as writer:
            writer.append_once(
                models.lever, "identity", identity=lever.identity, name=lever.name,
                kind=lever.kind, change=dict(lever.change), claim=lever.claim,
                falsify=lever.falsify, predicted_gain=lever.predicted_gain,
                ceiling=lever.ceiling, hot=lever.hot, family=lever.family, is_null=lever.null,
                metric=lever.metric, created_utc=self.now(),
            )
            writer.append(
                models.variant, id=variant_id, campaign_id=self.campaigns,
                lever_identity=lever.identity, purpose=purpose, incumbent=self.incumbent,
                candidate=candidate, from_decision=None, predicted_gain=lever.predicted_gain,
                why="made up", created_utc=self.now(),
            )
            planned = [self._block(writer, variant_id, n, candidate) for n in range(1, blocks + 1)]
            if purpose != "null":
                self._decide(writer, lever, variant_id, planned)

    def _block(
        self, writer: Writer, variant_id: str, number: int, candidate: Mapping[str, Any]
    ) -> str:
        serial = self.runs + 1
        block_id = f"b{serial:05d}"
        writer.append(
            models.block_plan, serial=serial, id=block_id, variant_id=variant_id, number=number,
            hot=True, pattern="ABBA", seed=serial, why="made up", created_utc=self.now(),
        )
        began = self.now()
        self.runs += 1
        self.measurements += append_run(
            writer, self.dice, block_id=block_id, arms={"A": self.incumbent, "B": dict(candidate)},
            prompts=PROMPTS, log=self.dice.choice(self.logs), began=began, ended=self.now(),
        )  # fmt: skip
        effect = self.dice.gauss(0, 0.01)
        writer.append(
            models.block, block_id=block_id, ruler_id=1, source_sha256="ab" * 32,
            metric="ms_per_token", effect=effect, contrast=None,
            within_sd=0.01, prompt_sd=0.01, level_log_ms=math.log(8) + self.dice.gauss(0, 0.01),
            prompts=len(PROMPTS), loads=1, tokens=len(PROMPTS) * 256,
            categories=[[f"category-{i}", effect] for i in range(8)], created_utc=self.now(),
        )
        return block_id

    def _decide(self, writer: Writer, lever: Lever, variant_id: str, planned: list[str]) -> None:
        ending = "rejected" if lever.null else self.dice.choice(ENDINGS)
        self.tests += 1
        number = writer.append(
            models.decision, variant_id=variant_id, ending=ending, code="made_up",
            sentence="made up", is_null=lever.null, n=len(planned), mean=0.01, low=0.0, high=0.02,
            nu=20.0, e_value=1.0, alpha_t=0.001, test=self.tests,
            promotions_before=self.promotions, rule_version=FULL.rule.version,
            rule=FULL.rule.as_dict(), details={}, supersedes=None, created_utc=self.now(),
        )
        writer.append_all(
            models.decision_block, [{"decision_id": number, "block_id": b} for b in planned]
        )
        writer.append(
            models.finding, variant_id=variant_id, decision_id=number, sentence="made up",
            evidence={"blocks": planned, "runs": []}, created_utc=self.now(),
        )
        if ending == "promoted":
            self.promotions += 1
            self.incumbent = {**self.incumbent, **lever.change}


def append_run(
    writer: Writer,
    dice: random.Random,
    *,
    block_id: str,
    arms: Mapping[str, Mapping[str, Any]],
    prompts: Sequence[str],
    log: Log,
    began: str,
    ended: str,
) -> int:
    """A finished run of a planned block: how it ended, its log, arms and numbers; how many."""
    run_id = f"r{block_id[1:]}-{dice.randrange(16**6):06x}"
    writer.append(
        models.run, id=run_id, block_id=block_id, slot=0, created_utc=began,
        manifest=_manifest(run_id, block_id, arms, prompts, began).to_json(),
    )
    writer.append(
        models.run_end, run_id=run_id, outcome="ok", code="", detail="", exit_status=0,
        started_utc=began, ended_utc=ended, wall_ns=RUN_S * 10**9,
        evidence=_evidence(run_id, began, ended),
    )
    writer.append(
        models.log, run_id=run_id, sha256=log.sha256, size_bytes=log.size_bytes,
        text_zlib=log.text_zlib,
    )
    writer.append_all(models.arm, [_arm(run_id, name, config) for name, config in arms.items()])
    common = {"run_id": run_id, "outcome": "ok"}
    rows = [{**common, **row} for row in _measurements(dice, prompts)]
    writer.append_all(models.measurement, rows)
    return len(rows)


def _lever(number: int) -> Lever:
    return Lever(
        name=f"made-up-{number}", kind="config", change={f"field_{number % 40}": number},
        claim="it is faster", falsify="it is not", predicted_gain=0.01,
    )  # fmt: skip


def _ruler() -> Ruler:
    return Ruler(
        name="full", suite="made up", suite_sha256="ab" * 32, prompts=PROMPTS, max_new_tokens=256,
        sampling="greedy", checkpoint_sha256="ab" * 32, device="made up", driver=None, cores=16,
        clock_policy="unknown", protocol=1,
    )


def _manifest(
    run_id: str,
    block_id: str,
    arms: Mapping[str, Mapping[str, Any]],
    prompts: Sequence[str],
    now_utc: str,
) -> Manifest:
    config = engine_config(
        run_id=run_id, nonce="ab" * 16, checkpoint="/checkpoint", head=None, suite="/suite",
        prompts=tuple(prompts), arms=arms, order=ORDER, plain_arms=("A",), max_new_tokens=256,
        seed=1,
    )
    return Manifest(
        run_id=run_id, nonce="ab" * 16, config=config, argv=("engine",), cwd="/",
        created_utc=now_utc, timeout_s=3600.0, block_id=block_id,
    )


def _evidence(run_id: str, began: str, ended: str) -> dict[str, Any]:
    who = {"boot_id": "00000000-0000-0000-0000-000000000000", "pid": 1, "start_ticks": 1}
    return {
        "exit": {
            "run_id": run_id, "status": 0, "signal": None, "timed_out": False, "stopped": False,
            "duration_ns": RUN_S * 10**9, "started_utc": began, "ended_utc": ended,
            "leftovers": 0, "group_empty": True, "peak_rss_bytes": 10**9, "log_bytes": 1,
            "log_sha256": None, "engine": who, "supervisor": who, "error": None,
            "guard": {"verdict": "left", "low_water_bytes": 8 << 30, "memory_back": True},
        }
    }


def _arm(run_id: str, name: str, config: Mapping[str, Any]) -> dict[str, Any]:
    effective = {f"field_{i}": 0 for i in range(40)} | dict(config)
    return {
        "run_id": run_id, "name": name, "outcome": "ok", "requested": canonical(dict(config)),
        "effective": effective, "fingerprint": fingerprint(effective),
    }


def _measurements(dice: random.Random, prompts: Sequence[str]) -> Iterator[dict[str, Any]]:
    """What `measurement.measurements` makes of such a run."""
    line = 10

    def row(
        arm: str, prompt: str, repeat: int, metric: str, ratio: tuple[int, int], unit: str
    ) -> dict[str, Any]:
        return {
            "arm": arm, "prompt": prompt, "category": prompt.rpartition("-")[0], "repeat": repeat,
            "metric": metric, "numerator": ratio[0], "denominator": ratio[1], "unit": unit,
            "counted": True, "line": line,
        }

    for prompt in prompts:
        line += 1
        ns = round(8e6 * 255 * dice.gauss(1, 0.01))
        yield row("A", prompt, 0, "plain_time", (2 * ns, 255), "ns/token")
        for place, arm in enumerate(ORDER):
            line += 2
            repeat = int(place > 1)
            yield row(arm, prompt, repeat, "time", (ns + place, 255), "ns/token")
            yield row(arm, prompt, repeat, "tau", (255, 75), "token/round")
            yield row(arm, prompt, repeat, "prefill", (ns // 20, 400), "ns/token")
            yield row(arm, prompt, repeat, "ttft", (ns // 20, 1), "ns")
    for arm in ("A", "B"):
        for width in STEP_WIDTHS:
            if width <= WIDTH:
                accepted = (9000 // width, 9600)
                yield row(arm, "", width, "accepted", accepted, "accepted/offered")
            yield row(arm, "", width, "step_cost", (10**7 + width, 1), "ns")
    yield row("", "", 0, "peak_rss", (10**9, 1), "byte")
    yield row("", "", 0, "load", (10**10, 1), "ns")


def make_log(dice: random.Random, prompts: Sequence[str]) -> Log:
    """A log of the size and the texture of a real one."""
    lines = []
    for seq in range(9 * len(prompts)):
        body = {
            "event": "point", "seq": seq, "t_ns": dice.randrange(10**15), "rounds": 75,
            "prompt": prompts[seq % len(prompts)], "arm": ORDER[seq % 4], "tokens": 256,
            "decode_ns": dice.randrange(10**9, 10**10), "prefill_ns": dice.randrange(10**9),
            "accepted_by_position": [dice.randrange(75) for _ in range(WIDTH)],
            "tokens_sha256": f"{dice.randrange(16**64):064x}",
        }  # fmt: skip
        lines.append(f"@{'ab' * 16} {json.dumps(body)}")
    raw = "\n".join(lines).encode()
    return Log(hashlib.sha256(raw).hexdigest(), len(raw), zlib.compress(raw, 9))
