"""`python -m flywheel.propose.agent [--code FOLDER] -- COMMAND ...`: asks a coding agent's command.

The agent gets the brief as text on stdin, works in a folder of its own (with `--code` a copy of the
repository) and answers in `answer.json` there, or in what it prints. What it changed in the copy
becomes a patch proposal, with the words of `patch.json` if it left one.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flywheel.propose import prompt

ANSWER, PATCH, COPY = "answer.json", "patch.json", "code"
# How agents say that there is no more to be had today; the exit status tells nothing of it.
LIMIT = re.compile(
    r"(usage|rate|session|weekly|message) limit|too many requests|quota (is )?(exceeded|reached)"
    r"|resource.?exhausted|overloaded",
    re.IGNORECASE,
)
_TOLD = 400_000


def instructions(brief: Mapping[str, Any], *, code: bool) -> str:
    """The whole text that the agent gets on stdin. Pure."""
    parts = [
        prompt.system(brief, _TOLD),
        f"Write your answer to {ANSWER} in this folder: one JSON document of this schema:\n"
        + json.dumps(brief.get("schema", {})),
        "The brief as JSON is in brief.json.",
    ]
    if code:
        parts.append(
            f"The code is in {COPY}/. To propose a change of code, change it there (not what "
            f"measures, nor tests) and write {PATCH}: a JSON object with name, claim, falsify and "
            "predicted_gain. One change only."
        )
    parts.append(prompt.user(brief, _TOLD))
    if (back := brief.get("told_back")) is not None:
        parts.append("Your last answer has the wrong form:\n" + "\n".join(back["errors"]))
    return "\n\n".join(parts)


def assembled(text: str | None, printed: str, patch: Mapping[str, Any] | None) -> str:
    """The answer to print: the agent's own, with the patch that it made beside it. Pure."""
    found = text if text is not None else prompt.found_json(printed)
    if patch is None:
        return found if found is not None else printed
    try:
        body = json.loads(found) if found is not None else {}
    except ValueError:
        return found or printed
    if not isinstance(body, dict):
        return found or printed
    levers = body.get("levers", [])
    return json.dumps({**body, "levers": [*(levers if isinstance(levers, list) else []), patch]})


def limit_in(status: int, said: str) -> str | None:
    """The line in which a failed agent speaks of its usage limit; None where it does not. Pure."""
    if status == 0:
        return None
    return next((line.strip()[:300] for line in said.splitlines() if LIMIT.search(line)), None)


def main(arguments: Sequence[str]) -> int:
    """Answer the brief on stdin."""
    parser = argparse.ArgumentParser(
        prog="python -m flywheel.propose.agent",
        description="Answers a brief on stdin with what a coding agent's command line proposes.",
        epilog="Example: flywheel run --proposer-network --proposer-env AGENT_KEY "
        "--proposer 'helper=agent --code . -- my-agent --print'",
    )
    parser.add_argument("--code", type=Path, help="A git repository that it may work on a copy of.")
    parser.add_argument("command", nargs="+", help="The agent's command, after --.")
    options = parser.parse_args(arguments)
    try:
        brief = json.loads(sys.stdin.read())
    except ValueError as error:
        sys.stderr.write(f"stdin holds no brief: {error}\n")
        return 2
    here = Path.cwd()
    if options.code is not None and (why := _copy(options.code, here / COPY)) is not None:
        sys.stderr.write(f"{options.code} cannot be copied: {why}\n")
        return 1
    (here / "brief.json").write_text(json.dumps(brief, indent=1), encoding="utf-8")
    for name in (ANSWER, PATCH):
        (here / name).unlink(missing_ok=True)
    return _ask(options.command, instructions(brief, code=options.code is not None), here)


def _ask(command: Sequence[str], text: str, here: Path) -> int:
    try:
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, errors="replace", check=False
        )
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        return 1
    sys.stderr.write(done.stderr)
    if (why := limit_in(done.returncode, done.stdout + done.stderr)) is not None:
        sys.stdout.write(json.dumps({"limited": {"why": why}}) + "\n")
        return 0
    if done.returncode != 0:
        sys.stderr.write(f"\n{done.stdout[-2000:]}\n{command[0]} left with {done.returncode}\n")
        return 1
    # What it printed besides is told too: the transcript keeps what led to an answer.
    sys.stderr.write(done.stdout)
    answer = here / ANSWER
    own = answer.read_text(encoding="utf-8", errors="replace") if answer.is_file() else None
    sys.stdout.write(assembled(own, done.stdout, _patch(here)) + "\n")
    return 0


def _copy(code: Path, copy: Path) -> str | None:
    """Clone a repository without its history's remotes; why it cannot be, or None."""
    if copy.exists():  # a second try goes on with what the first one did
        return None
    done = _git("clone", "--quiet", "--no-hardlinks", str(code.resolve()), str(copy))
    if done.returncode == 0:
        _git("-C", str(copy), "remote", "remove", "origin")
        return None
    return (done.stderr.strip().splitlines() or ["git failed"])[-1]


def _patch(here: Path) -> dict[str, Any] | None:
    """What it changed in its copy, as a proposal; None when it changed nothing."""
    copy = here / COPY
    if not copy.is_dir():
        return None
    _git("-C", str(copy), "add", "--all")
    diff = _git("-C", str(copy), "diff", "--cached", "--no-color", "--no-ext-diff", "HEAD").stdout
    if not diff.strip():
        return None
    try:
        words = json.loads((here / PATCH).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        words = {}
    return {**(words if isinstance(words, dict) else {}), "kind": "patch", "diff": diff}


def _git(*words: str) -> subprocess.CompletedProcess[str]:
    # Whatever hooks or drivers a repository names are none of ours to run.
    safe = ("-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false")
    return subprocess.run(
        ["git", *safe, *words], capture_output=True, text=True, errors="replace", check=False
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
