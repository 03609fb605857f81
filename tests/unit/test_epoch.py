"""When a campaign goes on, and when it gives way to a new one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from records import NOW, World, lever, play

from flywheel.ledger import views
from flywheel.ledger.rows import View
from flywheel.ledger.store import Ledger
from flywheel.loop import plan, planned
from flywheel.loop.detach import words
from flywheel.loop.epoch import declare, ends
from flywheel.loop.halting import Evidence
from flywheel.loop.order import HeadOrder, Order
from flywheel.statistics.campaign import FULL, QUICK


def order(folder: Path, **fields: object) -> Order:
    made = Order(folder / "ledger.db", folder, folder / "s.json", ("p",), 8, settings=QUICK)
    return replace(made, **fields)  # type: ignore[arg-type]


@pytest.fixture
def view(tmp_path: Path) -> View:
    """A campaign on box b with one run."""
    ledger = Ledger.open(tmp_path / "ledger.db")
    planned.open_campaign(ledger, QUICK, start={}, box="b", now_utc=NOW)
    with ledger.reading() as connection:
        step = plan.next_step(views.load(connection), [lever()])
    assert isinstance(step, plan.NextBlock)
    play(ledger, step, World())
    with ledger.reading() as connection:
        seen = views.load(connection)
    ledger.close()
    return seen


def why(view: View, asked: Order, box: str = "b", *settled: Evidence) -> str | None:
    assert view.campaign is not None
    return ends(view, view.campaign, asked, box, frozenset(settled))


def test_a_campaign_goes_on_until_something_it_stands_on_changes(
    tmp_path: Path, view: View
) -> None:
    run_id = view.blocks()[0].runs[0].id
    asked = order(tmp_path)
    assert why(view, asked) is None
    assert why(view, asked, "b", ("incumbent_incorrect", run_id)) is None
    assert why(view, asked, "b", ("ruler_changed", "a run of another campaign")) is None
    assert why(view, asked, "b", ("ruler_changed", run_id)) == (
        "a person resumed after ruler_changed"
    )
    assert why(view, asked, "c") == "it was measured on another box (b), and this is c"
    assert view.campaign is not None
    last = {"checkpoint": str(asked.checkpoint), "suite": str(asked.suite)}
    assert ends(view, view.campaign, asked, "b", frozenset(), last) is None
    moved = {**last, "checkpoint": "/models/other"}
    assert ends(view, view.campaign, asked, "b", frozenset(), moved) == (
        f"another checkpoint was asked for: {tmp_path}"
    )
    # A head that was judged by other prompts was judged by another ruler.
    files = [tmp_path / "a.json", tmp_path / "b.json"]
    for path in files:
        path.write_text(json.dumps({"prompts": [{"id": path.stem}]}))
    mine = replace(asked, heads=replace(asked.heads, suite=files[0]))
    judged = {**last, "of_judges": list(mine.judges)}
    assert ends(view, view.campaign, mine, "b", frozenset(), judged) is None
    others = (replace(mine, holdout=files[1]), replace(mine, heads=HeadOrder(suite=files[1])))
    for other in others:
        said = ends(view, view.campaign, other, "b", frozenset(), judged)
        assert said is not None
        assert said.startswith("heads are to be judged by another suite or hold-out")
        assert ends(view, view.campaign, other, "b", frozenset(), last) is None
    assert why(view, order(tmp_path, settings=FULL)) == "a campaign full was declared"
    assert why(view, order(tmp_path, new_campaign=True)) == "a new campaign was declared"


def test_the_first_campaign_of_a_ledger_closes_none(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path / "ledger.db")
    for expected in (None, None):
        with ledger.reading() as connection:
            seen = views.load(connection)
        said = declare(ledger, seen, order(tmp_path), frozenset(), now_utc=NOW)
        assert said is expected
    with ledger.reading() as connection:
        assert len(views.load(connection).campaigns) == 1
    ledger.close()


def test_options_are_said_again_as_they_were_given() -> None:
    options = {"quick": True, "new_campaign": False, "window": None, "only": ["a", "b"],
               "budget_hours": 0.5, "ledger": Path("/l.db")}  # fmt: skip
    assert words(options) == [
        "--quick", "--only", "a", "--only", "b", "--budget-hours", "0.5", "--ledger", "/l.db",
    ]  # fmt: skip
