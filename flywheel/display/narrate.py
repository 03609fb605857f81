"""The lines that a night leaves behind: what was launched, how it ended, what it means."""

from __future__ import annotations

import math

from flywheel.display.panel import STYLES, Display
from flywheel.loop import plan
from flywheel.loop.judge import Entered
from flywheel.run.ingest import Ingested
from flywheel.run.manifest import Manifest
from flywheel.statistics.band import gain_fraction
from flywheel.statistics.block import BlockEstimate
from flywheel.statistics.decide import Verdict


def label(step: plan.NextBlock) -> str:
    """What a block compares."""
    if step.purpose == "anchor":
        return "best against the frozen first"
    label = step.lever.label()
    if not step.screen:
        return label
    return f"screen of {label}" + (f" and {step.mate.lever.label()}" if step.mate else "")


def finished(display: Display, manifest: Manifest, got: Ingested, entered: Entered) -> None:
    """One run: its outcome, its block's verdict and the findings that came of it."""
    run_id = manifest.run_id
    if got.refusal is not None:
        word = "incorrect" if got.refusal.ending == "incorrect" else got.end.outcome
        display.say(f"{run_id}  {word}: {got.refusal}", STYLES.get(word, STYLES["void"]))
    elif entered.void is not None:
        display.say(f"{run_id}  void: {entered.void}", STYLES["void"])
    elif entered.screened:
        said = "; ".join(one.sentence for one in entered.screened)
        display.say(f"{run_id}  ok: {said}, {_took(got)}")
    elif entered.estimate is not None:
        display.say(f"{run_id}  ok: {_gain(entered.estimate)}, {_took(got)}")
    else:
        display.say(f"{run_id}  ok: a load of its block, {_took(got)}")
    if entered.verdict is not None:
        _verdict(display, manifest, entered.verdict)
    for sentence in entered.findings:
        display.say(f"finding: {sentence}")


def _gain(estimate: BlockEstimate) -> str:
    if estimate.metric == "tau":
        return f"tau {math.expm1(estimate.gain) * 100:+.2f} %"
    return f"{gain_fraction(estimate.gain) * 100:+.2f} % of the time saved"


def _took(got: Ingested) -> str:
    return f"{got.end.wall_ns / 1e9:.1f} s"


def _verdict(display: Display, manifest: Manifest, verdict: Verdict) -> None:
    if verdict.ending is None:
        display.show(band=verdict.sentence)
        return
    display.show(band="")
    name = manifest.lever_name or "the lever"
    display.say(f"{verdict.ending}  {name}: {verdict.sentence}", STYLES[verdict.ending])
