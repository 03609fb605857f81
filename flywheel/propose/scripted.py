"""`python -m flywheel.propose.scripted FILE`: answers out of a file, one after another.

For tests, and for nights whose ideas a person wrote down before. The file is JSON: an object with
`answers`, a list; the brief's `attempt` says which one is given, and the last stands for all later
ones. A lever may have a `when`: an object of fields and values that the incumbent must have for the
lever to be proposed, so that a file can say what is worth trying once something else has won.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def answer(script: Mapping[str, Any], brief: Mapping[str, Any]) -> dict[str, Any]:
    """What the script says to a brief; LookupError when it holds no answer. Pure."""
    answers = script["answers"]
    place = min(int(brief.get("attempt", 1)), len(answers)) - 1
    chosen = dict(answers[place])
    if "levers" in chosen:
        config = brief.get("incumbent", {}).get("config", {})
        chosen["levers"] = [_bare(one) for one in chosen["levers"] if _now(one, config)]
    return chosen


def _now(lever: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    when = lever.get("when", {})
    return all(name in config and config[name] == value for name, value in when.items())


def _bare(lever: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in lever.items() if name != "when"}


def main(arguments: Sequence[str]) -> int:
    """Answer the brief on stdin."""
    parser = argparse.ArgumentParser(
        prog="python -m flywheel.propose.scripted",
        description="Answers a brief on stdin with what a file holds.",
        epilog="Example: flywheel run --proposer 'python -m flywheel.propose.scripted ideas.json'",
    )
    parser.add_argument("file", type=Path, help="JSON: an object with a list `answers`.")
    file = parser.parse_args(arguments).file
    try:
        script = json.loads(file.read_text(encoding="utf-8"))
        brief = json.loads(sys.stdin.read())
        said = answer(script, brief)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        sys.stderr.write(f"{file} is no script of answers: {error!r}\n")
        return 2
    sys.stdout.write(json.dumps(said) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
