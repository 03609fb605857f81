"""A night that runs out of declared levers finds its own in a profile, and tries them."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace
from pathlib import Path

from nights import SMALL, night, opened, order, view

from flywheel.ledger.rebuild import rebuild
from flywheel.loop import profiler
from flywheel.statistics.campaign import Phases

DOCUMENT = {
    "config": {"backend": "torch", "threads": 1},
    "phases": [{"path": "step", "ms": 10.0}],
    "ranking": [{"name": "head", "ms": 4.0, "ms_to_gain": 3.0}],
}


def test_what_the_profile_leads_to_is_tried_and_the_end_is_said(tmp_path: Path) -> None:
    program = tmp_path / "profile.py"
    program.write_text(f"print({json.dumps(json.dumps(DOCUMENT))})\n")
    out = io.StringIO()
    asked = order(
        tmp_path, "--effect", "threads=2:0.8", profile=(sys.executable, str(program)),
        settings=replace(SMALL, phases=Phases()),
    )  # fmt: skip
    with opened(asked) as ledger:
        session = night(asked, ledger, [], out).run()
        found = view(ledger)
        assert rebuild(ledger).same
    tried = {v.lever.name: v.decision for v in found.variants if v.purpose == "lever"}
    assert tried["threads.2"] is not None, out.getvalue()
    assert tried["threads.2"].promoted
    assert [row.phase for row in found.phases] == [
        "exhaust", "exploit", "exhaust", "propose", "done",
    ]  # fmt: skip
    assert session.reason.endswith("done: nobody is there to propose a lever")
    assert "a new lever, from head: threads -> 2" in out.getvalue()
    assert len(list((tmp_path / profiler.FOLDER).iterdir())) == 2
