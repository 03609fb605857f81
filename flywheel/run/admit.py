"""The rules that make typed events a measurement.  Pure; a broken rule raises RefusedLogError.

Order matters only for which reason is shown: identity first, then coverage, then the arithmetic,
then the gates, so that a failed gate is reported for a log that is otherwise whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from flywheel import synthetic
from flywheel.lever import fingerprint
from flywheel.run.events import Event
from flywheel.run.manifest import Manifest
from flywheel.run.record import Arm, Gate, Header, Plain, Point, RunRecord
from flywheel.run.refusal import RefusedLogError

# No forward pass of any model takes less; a smaller figure is a broken timer.
LEAST_FORWARD_NS = 1_000
# Timed phases are disjoint parts of the log's own span; one percent for the reading of clocks.
SPAN_SLACK = 1.01
LOSSY_GATE = "lossy"


def record(
    kinds: Mapping[str, list[Any]], heartbeats: Sequence[Event], end: Event, manifest: Manifest
) -> RunRecord:
    """The record of a sealed log, once every rule holds."""
    header: Header = kinds["start"][0]
    _identity(header, manifest)
    _arms(header, manifest)
    _unchanged(header, end, manifest)
    for name in ("loaded", "memory"):
        if len(kinds[name]) != 1:
            raise RefusedLogError("event_missing", f"{len(kinds[name])} {name} events, not 1")
    span_ns = kinds["span"][1] - kinds["span"][0]
    _heartbeats(heartbeats, kinds["span"], manifest)
    plains: list[Plain] = kinds["plain"]
    points: list[Point] = kinds["point"]
    gates: list[Gate] = kinds["gate"]
    _controls(kinds["control"], manifest)
    _coverage(plains, points, gates, kinds["step_cost"], manifest)
    entries: tuple[Plain | Point, ...] = (*plains, *points)
    for entry in entries:
        _entry(entry, manifest)
    for point in points:
        _rounds(point, header.arm(point.arm))
    for plain in plains:
        _forwards(plain)
    _prompts_agree(entries)
    _span(entries, span_ns)
    _totals(end, kinds, manifest)
    lossy = manifest.lossy_arms
    _labels(gates, lossy)
    exact = [gate for gate in gates if gate.arm not in lossy]
    _gates(exact, points, plains, header.plan.plain_arms)
    return RunRecord(
        run_id=header.run_id,
        header=header,
        plains=tuple(plains),
        points=tuple(points),
        gates=tuple(gates),
        step_costs=tuple(kinds["step_cost"]),
        peak_rss_bytes=kinds["memory"][0],
        seal=end.digest("seal"),
        loaded=kinds["loaded"][0],
        controls=tuple(kinds["control"]),
    )


def _identity(header: Header, manifest: Manifest) -> None:
    config = manifest.config
    if header.run_id != manifest.run_id:
        raise RefusedLogError("run_id_mismatch", f"the log is of run {header.run_id}", 1)
    if header.protocol != config["protocol"]:
        raise RefusedLogError("protocol_mismatch", f"the log speaks protocol {header.protocol}", 1)
    if header.mode != "clean":
        raise RefusedLogError("not_clean", f"the engine ran in mode {header.mode}, not clean", 1)
    plan = header.plan
    wanted = {
        "arms": manifest.arm_names,
        "order": tuple(config["order"]),
        "plain_arms": tuple(config.get("plain_arms", ())),
        "prompts": tuple(config["prompts"]),
        "max_new_tokens": config["max_new_tokens"],
        "seed": config["seed"],
        "temperature": config.get("temperature", 0.0),
    }
    for name, value in wanted.items():
        if getattr(plan, name) != value:
            raise RefusedLogError("manifest_mismatch", f"the engine planned other {name}", 1)
    _synthetic(header, manifest)
    if (header.head is None) != (config.get("head") is None):
        raise RefusedLogError("manifest_mismatch", "the engine used another draft head", 1)
    seen = {
        "checkpoint_sha256": header.checkpoint.sha256,
        "source_sha256": header.engine.source_sha256,
        "suite_sha256": header.suite.sha256,
        "device_name": header.device.name,
    }
    for name, expected in (manifest.expected or {}).items():
        if name in seen and seen[name] != expected:
            raise RefusedLogError(
                "changed_underfoot", f"{name} is not what earlier runs of the campaign saw", 1
            )


def _synthetic(header: Header, manifest: Manifest) -> None:
    """Random weights are what was asked for, and nothing is drafted with them."""
    asked = synthetic.name_of(manifest.config.get("checkpoint", "")) is not None
    if header.synthetic != asked:
        used = "random weights" if header.synthetic else "a checkpoint's weights"
        raise RefusedLogError("manifest_mismatch", f"the engine used {used} unasked", 1)
    for arm in header.arms if asked else ():
        if arm.effective.get("draft_width") != 0:
            raise RefusedLogError(
                "synthetic_drafts", f"arm {arm.name} drafts, but random weights have no tau", 1
            )


def _same(left: object, right: object) -> bool:
    """Equal as JSON values: 1 and 1.0 are, 1 and true are not."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    return left == right


def _live(name: str, asked: object, effective: object) -> bool:
    """Whether a requested value is in effect; a zero leaves the choice to the engine."""
    if asked == 0 and type(asked) is int and name != "draft_width":
        return type(effective) is int
    return _same(asked, effective)


def _arms(header: Header, manifest: Manifest) -> None:
    names = tuple(arm.name for arm in header.arms)
    if names != manifest.arm_names:
        raise RefusedLogError("manifest_mismatch", f"the engine resolved the arms {names}", 1)
    for arm in header.arms:
        asked = manifest.arm_config(arm.name)
        if set(asked) != set(arm.requested) or not all(
            _same(arm.requested[name], value) for name, value in asked.items()
        ):
            raise RefusedLogError("manifest_mismatch", f"arm {arm.name} was not as requested", 1)
        if fingerprint(dict(arm.effective)) != arm.fingerprint:
            raise RefusedLogError(
                "fingerprint_mismatch", f"arm {arm.name}: fingerprint is not its configuration's", 1
            )
        if arm.effective.get("head") != manifest.head_sha256(arm.name):
            raise RefusedLogError(
                "manifest_mismatch", f"arm {arm.name} drafted with another head", 1
            )
        if arm.effective.get("source") != manifest.source_sha256(arm.name):
            raise RefusedLogError("manifest_mismatch", f"arm {arm.name} was run by other code", 1)
        for name, value in asked.items():
            if name not in arm.effective or not _live(name, value, arm.effective[name]):
                raise RefusedLogError(
                    "arm_not_live", f"arm {arm.name}: {name} was asked for but is not in effect", 1
                )
    # Arms of one load, and of the earlier loads of a cold block, under one rule.
    prints = dict(manifest.fingerprints or {})
    for arm in header.arms:
        if prints.setdefault(arm.name, arm.fingerprint) != arm.fingerprint:
            raise RefusedLogError(
                "fingerprint_mismatch", f"arm {arm.name} is not the arm of the earlier loads", 1
            )
    different = len(set(prints.values()))
    if manifest.null and different > 1:
        raise RefusedLogError("arms_differ", "the arms of a null lever differ", 1)
    if not manifest.null and different < len(prints):
        raise RefusedLogError(
            "arms_identical", "two arms have the same effective configuration", 1
        )


def _unchanged(header: Header, end: Event, manifest: Manifest) -> None:
    if end.digest("checkpoint_sha256") != header.checkpoint.sha256:
        raise RefusedLogError(
            "changed_underfoot", "the checkpoint changed during the run", end.line
        )
    if end.digest("source_sha256") != header.engine.source_sha256:
        raise RefusedLogError(
            "changed_underfoot", "the engine's source changed during the run", end.line
        )
    own = {a.name: a.effective["head"] for a in header.arms if "head" in a.effective}
    if end.body.get("heads", {}) != own:
        raise RefusedLogError("changed_underfoot", "a draft head changed during the run", end.line)
    # Engines of earlier versions did not take the suite's hash again.
    if "suite_sha256" in end.body and end.digest("suite_sha256") != header.suite.sha256:
        raise RefusedLogError("changed_underfoot", "the suite changed during the run", end.line)


def _heartbeats(beats: Sequence[Event], span: Sequence[int], manifest: Manifest) -> None:
    marks = [span[0]]
    for beat in beats:
        marks.append(beat.integer("t_ns"))
        beat.text("phase")
        beat.integer("done")
        beat.integer("total")
        beat.maybe_integer("rss_bytes")
        beat.maybe_integer("mem_available_bytes")
        load = beat.maybe_number("load_1m")
        if manifest.load_limit is not None and load is not None and load > manifest.load_limit:
            raise RefusedLogError(
                "host_busy", f"load {load:.1f} passed {manifest.load_limit:.1f}", beat.line
            )
    marks.append(span[1])
    gap_s = max(after - before for before, after in zip(marks, marks[1:], strict=False)) / 1e9
    if gap_s > manifest.heartbeat_gap_s:
        raise RefusedLogError("heartbeat_gap", f"the engine was silent for {gap_s:.1f} s")


def _controls(controls: Sequence[Any], manifest: Manifest) -> None:
    counted = Counter(control.arm for control in controls)
    for name in manifest.arm_names:
        if counted[name] != 1:
            raise RefusedLogError(
                "control_missing", f"arm {name} has {counted[name]} first-token controls, not 1"
            )
    if len(counted) != len(manifest.arm_names):
        raise RefusedLogError("manifest_mismatch", "a first-token control of an unknown arm")
    for control in controls:
        if not control.finite:
            raise RefusedLogError("not_finite", f"arm {control.arm}: logits", control.line)
        if not control.passed:
            raise RefusedLogError(
                "control_failed", f"arm {control.arm}: wrong first token", control.line
            )


def _place(key: tuple[Any, ...]) -> str:
    names = ("arm", "prompt", "repeat")
    return ", ".join(f"{name} {value}" for name, value in zip(names, key, strict=False))


def _once(what: str, found: Sequence[tuple[Any, ...]], planned: Sequence[tuple[Any, ...]]) -> None:
    """Every planned key exactly once and nothing else."""
    counted = Counter(found)
    for key, times in counted.items():
        if times > 1:
            raise RefusedLogError(f"{what}_twice", f"{_place(key)}: {times} times")
    wanted = set(planned)
    for key in planned:
        if key not in counted:
            raise RefusedLogError(f"{what}_missing", _place(key))
    for key in counted:
        if key not in wanted:
            raise RefusedLogError(f"{what}_unplanned", _place(key))


def _coverage(
    plains: Sequence[Plain],
    points: Sequence[Point],
    gates: Sequence[Gate],
    step_costs: Sequence[Any],
    manifest: Manifest,
) -> None:
    # Repeats count from 0 or from 1, the same throughout.
    first = min((point.repeat for point in points), default=0)
    planned = [(arm, prompt, n + min(first, 1)) for arm, prompt, n in manifest.planned_points()]
    _once("plain", [(p.arm, p.prompt) for p in plains], manifest.planned_plains())
    _once("point", [(p.arm, p.prompt, p.repeat) for p in points], planned)
    _once("gate", [(g.arm, g.prompt, g.repeat) for g in gates], planned)
    _in_order(points, manifest)
    widths = Counter((cost.arm, cost.width) for cost in step_costs)
    for (arm, width), times in widths.items():
        if times > 1 or arm not in manifest.arm_names:
            raise RefusedLogError("step_cost_twice", f"arm {arm}, width {width}: {times} times")
    for cost in step_costs:
        if cost.ns < LEAST_FORWARD_NS:
            raise RefusedLogError("impossible_rate", f"a step of {cost.ns} ns", cost.line)


def _in_order(points: Sequence[Point], manifest: Manifest) -> None:
    """Arms take turns as planned: the palindrome is what cancels a drift of the machine."""
    wanted, found = list(manifest.config["order"]), dict[str, list[str]]()
    for point in points:
        found.setdefault(point.prompt, []).append(point.arm)
    for prompt, arms in found.items():
        if arms != wanted:
            raise RefusedLogError(
                "order_not_followed", f"prompt {prompt}: the arms ran as {' '.join(arms)}"
            )


def _entry(entry: Plain | Point, manifest: Manifest) -> None:
    """What holds for a generation of either kind."""
    where = f"arm {entry.arm}, prompt {entry.prompt}"
    if entry.tokens == 0:
        raise RefusedLogError("zero_tokens", f"{where}: nothing was generated", entry.line)
    if not entry.finite:
        raise RefusedLogError("not_finite", f"{where}: logits", entry.line)
    limit = manifest.config["max_new_tokens"]
    if entry.tokens > limit or (entry.stop == "length" and entry.tokens != limit):
        raise RefusedLogError(
            "counts_inconsistent", f"{where}: {entry.tokens} tokens of {limit}", entry.line
        )
    if entry.counted != (entry.excluded is None):
        raise RefusedLogError(
            "counts_inconsistent", f"{where}: counted and excluded disagree", entry.line
        )
    if entry.prefill_ns < LEAST_FORWARD_NS:
        raise RefusedLogError("impossible_rate", f"{where}: prefill took no time", entry.line)
    if entry.ttft_ns < entry.prefill_ns:
        raise RefusedLogError(
            "impossible_rate", f"{where}: first token before the end of prefill", entry.line
        )
    if entry.decode_ns < entry.forwards * LEAST_FORWARD_NS:
        raise RefusedLogError(
            "impossible_rate",
            f"{where}: {entry.forwards} forwards in {entry.decode_ns} ns",
            entry.line,
        )


def _forwards(plain: Plain) -> None:
    if plain.forwards != plain.tokens - 1:
        raise RefusedLogError(
            "counts_inconsistent",
            f"arm {plain.arm}, prompt {plain.prompt}: {plain.tokens} plain tokens "
            f"in {plain.forwards} forwards",
            plain.line,
        )


def _rounds(point: Point, arm: Arm) -> None:
    """Committed tokens, rounds, forwards and positions must tell one story."""

    def wrong(what: str) -> RefusedLogError:
        where = f"arm {point.arm}, prompt {point.prompt}, repeat {point.repeat}"
        return RefusedLogError("counts_inconsistent", f"{where}: {what}", point.line)

    if point.rounds != point.forwards:
        raise wrong(f"{point.rounds} rounds but {point.forwards} forwards")
    declared = arm.effective.get("draft_width")
    if type(declared) is int and declared != point.width:
        raise wrong(f"width {point.width} where the arm's is {declared}")
    if point.max_committed > point.width + 1:
        raise wrong(f"a round committed {point.max_committed} at width {point.width}")
    committed = point.tokens - 1
    if committed > 0 and not 1 <= point.rounds <= committed:
        raise wrong(f"{committed} tokens in {point.rounds} rounds")
    if committed > point.rounds * max(1, point.max_committed):
        raise wrong(f"{committed} tokens in {point.rounds} rounds of at most {point.max_committed}")
    accepted, offered = point.accepted_by_position, point.offered_by_position
    if len(accepted) != len(offered) or any(accepted[point.width :] + offered[point.width :]):
        raise wrong("positions beyond the width")
    if any(a > o for a, o in zip(accepted, offered, strict=True)):
        raise wrong("more accepted than offered")
    for series in (accepted, offered):
        if any(later > sooner for sooner, later in zip(series, series[1:], strict=False)):
            raise wrong("a later position was reached more often than an earlier one")
    if any(count > point.rounds for count in offered[:1]):
        raise wrong("more offers than rounds")
    # A round commits what it accepted and one token more; only the last may be cut short, by EOS
    # or the limit.
    excess = point.rounds + sum(accepted) - committed
    if committed > 0 and not 0 <= excess <= point.width:
        raise wrong(f"{committed} tokens where rounds and acceptances make {excess:+d} more")


def _prompts_agree(entries: Sequence[Plain | Point]) -> None:
    seen: dict[str, tuple[str, int]] = {}
    for entry in entries:
        fact = (entry.category, entry.prompt_tokens)
        if seen.setdefault(entry.prompt, fact) != fact:
            raise RefusedLogError(
                "counts_inconsistent",
                f"prompt {entry.prompt} changes its category or length",
                entry.line,
            )


def _span(entries: Sequence[Plain | Point], span_ns: int) -> None:
    timed_ns = sum(entry.prefill_ns + entry.decode_ns for entry in entries)
    if timed_ns > span_ns * SPAN_SLACK:
        raise RefusedLogError(
            "impossible_rate",
            f"{timed_ns / 1e9:.1f} s of timed work in a log that spans {span_ns / 1e9:.1f} s",
        )


def _totals(end: Event, kinds: Mapping[str, list[Any]], manifest: Manifest) -> None:
    counts = end.part("counts")
    for name in ("plain", "point", "gate", "control", "step_cost"):
        if counts.integer(name) != len(kinds[name]):
            raise RefusedLogError(
                "counts_inconsistent",
                f"the seal counts {counts.integer(name)} {name} events, the log {len(kinds[name])}",
                end.line,
            )
    # Whether the seal counts itself is the engine's choice; either way it must be the whole log.
    if counts.integer("events") not in (end.integer("seq"), end.integer("seq") + 1):
        raise RefusedLogError("counts_inconsistent", "the seal counts other events", end.line)
    for name in ("tokens", "rounds"):
        total = sum(getattr(point, name) for point in kinds["point"])
        if end.integer(name) != total:
            raise RefusedLogError(
                "counts_inconsistent", f"the seal sums {end.integer(name)} {name}, the log {total}",
                end.line,
            )


def _labels(gates: Sequence[Gate], lossy: frozenset[str]) -> None:
    """An arm is lossy when it was asked to be, and says so; any other answers for every token."""
    for gate in gates:
        if (gate.kind == LOSSY_GATE) != (gate.arm in lossy):
            word = "lossy" if gate.kind == LOSSY_GATE else "lossless"
            raise RefusedLogError(
                "manifest_mismatch", f"arm {gate.arm} is {word}, which was not asked for", gate.line
            )


def _gates(
    gates: Sequence[Gate],
    points: Sequence[Point],
    plains: Sequence[Plain],
    plain_arms: Sequence[str],
) -> None:
    """Every gate passed, over every token; an arm without plain decode answers to the first's."""
    for gate in gates:
        if not gate.passed:
            diff = gate.first_diff
            what = "" if diff is None else (
                f": token {diff.index} is {diff.spec}, plain decode says {diff.plain}"
            )
            raise RefusedLogError(
                "gate_failed", f"{gate.kind}, arm {gate.arm}, prompt {gate.prompt}{what}", gate.line
            )
    tokens = {(point.arm, point.prompt, point.repeat): point for point in points}
    plain_of = {(plain.arm, plain.prompt): plain for plain in plains}
    for gate in gates:
        point = tokens[gate.arm, gate.prompt, gate.repeat]
        if gate.compared != point.tokens or gate.first_diff is not None:
            raise RefusedLogError(
                "gate_contradicted",
                f"the gate of prompt {gate.prompt} compared {gate.compared} of {point.tokens}",
                gate.line,
            )
        plain = plain_of.get((gate.arm, gate.prompt))
        if plain is None and plain_arms:
            plain = plain_of.get((plain_arms[0], gate.prompt))
        if plain is not None and plain.tokens_sha256 != point.tokens_sha256:
            raise RefusedLogError(
                "gate_contradicted",
                f"the gate of prompt {gate.prompt} passed but the tokens differ",
                gate.line,
            )
