"""`python -m engine.measure --config C.json --log L.log`: measure, seal, exit 0; else say why."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from engine.errors import EngineError
from engine.measure.journal import Journal
from engine.measure.plan import Plan
from engine.measure.sentinel import Sentinel


def main() -> int:
    """Exit codes: 0 measured and sealed, 2 refused or failed with one sentence on stderr."""
    parser = argparse.ArgumentParser(
        prog="python -m engine.measure",
        description="Load a checkpoint once, measure every arm over a suite, seal a log.",
        epilog="example: python -m engine.measure --config run/config.json --log run/run.log",
    )
    parser.add_argument("--config", type=Path, required=True, help="JSON file of the plan")
    parser.add_argument("--log", type=Path, required=True, help="log to write (replaced)")
    arguments = parser.parse_args()
    sentinel = Sentinel()  # before anything that a patch may touch is loaded
    try:
        plan = Plan.load(arguments.config)
        with Journal(arguments.log, plan.nonce, plan.heartbeat_s) as journal:
            journal.say(
                f"measure {plan.run_id}: {len(plan.arms)} arms, {len(plan.prompts)} prompts"
            )
            try:
                from engine.measure.program import run  # torch loads while the heart beats

                run(plan, journal, sentinel)
            except EngineError as error:
                journal.say(f"failed: {error}")
                raise
            journal.say("done")
    except EngineError as error:
        print(f"engine.measure: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(
            f"engine.measure: the log {arguments.log} cannot be written: {error}.", file=sys.stderr
        )
        return 2
    return 0
