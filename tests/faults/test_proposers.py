"""A night that asks a proposer: real processes, a real ledger, and answers that are not trusted."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import patches
from nights import SMALL, night, opened, order, view

from flywheel.ledger.rebuild import rebuild
from flywheel.ledger.rows import View
from flywheel.loop.order import Session
from flywheel.propose import transcript
from flywheel.propose.attempt import Terms
from flywheel.propose.proposer import Proposer
from flywheel.statistics.campaign import Phases

PROFILE = {
    "config": {"backend": "torch", "threads": 1},
    "phases": [{"path": "step", "ms": 10.0}],
    "ranking": [{"name": "nowhere", "ms": 4.0, "ms_to_gain": 3.0}],
}


def idea(**more: Any) -> dict[str, Any]:
    """A lever as a proposer would name it."""
    return {
        "kind": "config", "name": "more.threads", "field": "threads", "value": 2,
        "claim": "cores stand idle", "falsify": "no faster", "predicted_gain": 0.05, **more,
    }  # fmt: skip


def asked_night(
    root: Path, program: str, *, terms: Terms | None = None, **more: Any
) -> tuple[Session, View, str]:
    """A night with no lever declared and one proposer, which is this Python program."""
    script, profile = root / "proposer.py", root / "profile.py"
    script.write_text(program)
    profile.write_text(f"print({json.dumps(json.dumps(PROFILE))})\n")
    out = io.StringIO()
    asked = order(
        root, "--effect", "threads=2:0.8", profile=(sys.executable, str(profile)),
        settings=replace(SMALL, phases=Phases()), terms=terms or Terms(timeout_s=20.0),
        proposers=(Proposer("thinker", (sys.executable, str(script))),), **more,
    )  # fmt: skip
    with opened(asked) as ledger:
        session = night(asked, ledger, [], out).run()
        assert rebuild(ledger).same
        return session, view(ledger), out.getvalue()


ANSWERS = """
import json, sys
brief = json.load(sys.stdin)
levers = {levers!r} if brief["attempt"] == 1 else []
print(json.dumps({{"levers": levers}}))
"""


def test_what_a_proposer_offers_is_measured_and_its_origin_is_on_record(tmp_path: Path) -> None:
    offers = [idea(), idea(name="again"), idea(name="precise", field="numerics", value="exact")]
    session, found, said = asked_night(tmp_path, ANSWERS.format(levers=offers))
    tried = {v.lever.name: v.decision for v in found.variants if v.purpose == "lever"}
    assert tried["more.threads"] is not None, said
    assert tried["more.threads"].promoted
    assert [(p.lever.name, p.origin) for p in found.proposals] == [
        ("more.threads", "proposer:thinker")
    ]
    first, second = found.attempts
    assert (first.outcome, first.admitted, first.refused) == ("answered", 1, 2)
    assert "is the same change as more.threads" in first.verdicts[1]["reason"]
    assert "numerics says what is computed" in first.verdicts[2]["reason"]
    assert [row.phase for row in found.phases] == [
        "exhaust", "propose", "exploit", "exhaust", "propose", "done",
    ]  # fmt: skip
    assert (second.outcome, second.admitted) == ("answered", 0)
    assert session.reason.endswith("done: thinker proposed nothing new")
    assert all(transcript.state(tmp_path / "ledger.db", a) == "whole" for a in found.attempts)
    assert not list((tmp_path / "proposals").glob("*/work"))


def test_a_proposed_patch_is_gated_and_measured_like_any_patch(tmp_path: Path) -> None:
    profile = tmp_path / "profile.py"
    profile.write_text(f"print({json.dumps(json.dumps(PROFILE))})\n")
    asked = patches.order_in(
        tmp_path, profile=(sys.executable, str(profile)), terms=Terms(timeout_s=20.0),
        settings=replace(SMALL, phases=Phases()),
    )  # fmt: skip
    offers = [
        {"kind": "patch", "name": name, "diff": text, "claim": "fewer products",
         "falsify": "no faster", "predicted_gain": 0.2}
        for name, text in (
            ("faster", patches.faster(asked.cwd)),
            ("clock", patches.diff(asked.cwd, "FACTOR = 1.0", "import time")),
            ("tests", "--- a/tests/x.py\n+++ b/tests/x.py\n@@ -1 +1 @@\n-a\n+b\n"),
            ("stale", patches.faster(asked.cwd).replace("1.0", "9.0")),
        )
    ]  # fmt: skip
    script = tmp_path / "proposer.py"
    script.write_text(ANSWERS.format(levers=offers))
    asked = replace(asked, proposers=(Proposer("thinker", (sys.executable, str(script))),))
    _, found, said = patches.session(asked, ())
    first = found.attempts[0]
    assert [one["admitted"] for one in first.verdicts] == [True, False, False, False], said
    reasons = [one["reason"] for one in first.verdicts[1:]]
    assert "it imports time: it would read the clock" in reasons[0]
    assert "tests/x.py: no patch may touch it" in reasons[1]
    assert "does not apply" in reasons[2]
    tried = {v.lever.name: v.decision for v in found.variants if v.purpose == "lever"}
    assert tried["faster"] is not None, said
    assert tried["faster"].promoted, said


def test_a_usage_limit_is_waited_out_and_is_no_attempt(tmp_path: Path) -> None:
    program = (
        "import json, sys\n"
        "brief = json.load(sys.stdin)\n"
        "if brief['attempt'] == 1:\n"
        "    print(json.dumps({'limited': {'why': 'come back', 'retry_after_s': 2}}))\n"
        "elif brief['attempt'] == 2: sys.exit(75)\n"
        "else: print(json.dumps({'levers': []}))\n"
    )
    terms = Terms(timeout_s=20.0, attempts=1, pauses_s=(1.0,))
    session, found, out = asked_night(tmp_path, program, terms=terms)
    assert [a.outcome for a in found.attempts] == ["limited", "limited", "answered"]
    assert found.attempts[0].retry_s == 2.0
    assert "thinker is at its usage limit until" in out
    assert session.reason.endswith("done: thinker proposed nothing new")
