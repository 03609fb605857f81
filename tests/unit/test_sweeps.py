"""Sweeps: every value is screened, one is confirmed; a search remembers nothing but the ledger."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from records import NOW, World, drive, lever, play

from flywheel import declared
from flywheel.cli import app as cli
from flywheel.errors import LeverError
from flywheel.ledger import views
from flywheel.ledger.rebuild import rebuild
from flywheel.ledger.store import Ledger
from flywheel.ledger.views import View
from flywheel.lever import canonical
from flywheel.loop import plan, planned
from flywheel.loop.ranking import decided
from flywheel.loop.sweeping import expand
from flywheel.statistics.campaign import QUICK
from flywheel.sweep import Sweep


def sweep(name: str = "chunk", field: str = "prefill_chunk", **more: Any) -> Sweep:
    return Sweep(name, field, "longer is warmer", "none is faster", 0.02, **more)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """A ledger with a quick campaign."""
    opened = Ledger.open(tmp_path / "ledger.db")
    planned.open_campaign(opened, QUICK, start={}, box="box", now_utc=NOW)
    yield opened
    opened.close()


def see(ledger: Ledger) -> View:
    with ledger.reading() as connection:
        return views.load(connection)


def live(ledger: Ledger, sweeps: list[Sweep], world: World, most: int = 200) -> None:
    """Drive a campaign whose levers are read anew before every choice."""
    for _ in range(most):
        view = see(ledger)
        step = plan.next_step(view, expand(sweeps, view))
        if isinstance(step, plan.Stop):
            return
        assert isinstance(step, plan.NextBlock)
        play(ledger, step, world)
    raise AssertionError("the plan never stopped")


def tried(ledger: Ledger) -> dict[object, Any]:
    return {next(iter(v.lever.change.values())): v for v in see(ledger).variants
            if v.purpose == "lever"}  # fmt: skip


def test_a_categorical_grid_is_screened_whole_and_its_best_is_confirmed(ledger: Ledger) -> None:
    moe = sweep("moe", "moe", values=("fused", "dense", "loop"))
    drive(ledger, expand([moe], None), World({'{"moe":"dense"}': -0.06, '{"moe":"fused"}': -0.03}))
    found = tried(ledger)
    assert set(found) == {"fused", "dense", "loop"}
    assert all(v.screened is not None for v in found.values())
    assert found["dense"].decision.promoted
    assert found["fused"].decision.code in ("family", "screened_out")
    tests = [v for v in found.values() if v.decision.test is not None]
    assert tests == [found["dense"]]
    assert rebuild(ledger).same


def test_a_sweep_is_one_trial_of_its_family_however_many_values_it_has(ledger: Ledger) -> None:
    lost = sweep("lost", "a", values=("x", "y", "z"))
    won = sweep("won", "b", values=("x", "y"))
    drive(ledger, expand([lost, won], None), World({'{"b":"y"}': -0.06}))
    past = {one.family: one for one in decided(see(ledger))}
    assert len(decided(see(ledger))) == 2
    assert past["lost"].gain is None
    assert past["won"].gain == pytest.approx(0.06, abs=0.02)
    assert past["lost"].loads >= 3


def test_a_search_asks_for_one_value_at_a_time_and_confirms_the_best(ledger: Ledger) -> None:
    chunk = sweep(low=16, high=1024, log=True, trials=6)

    class Bowl(dict[str, float]):
        """Best at 128, and worse the further away."""

        def get(self, key: str, default: Any = None) -> Any:
            body = json.loads(key)
            if "prefill_chunk" not in body:
                return default
            octaves = abs(len(bin(body["prefill_chunk"])) - len(bin(128)))
            return -0.08 + 0.03 * octaves

    live(ledger, [chunk], World(Bowl()))
    found = tried(ledger)
    assert 2 <= len(found) <= 6
    assert all(isinstance(value, int) and 16 <= value <= 1024 for value in found)
    assert all(v.screened is not None for v in found.values())
    won = [value for value, v in found.items() if v.decision.promoted]
    assert len(won) == 1
    best = max(found, key=lambda value: found[value].screened.answer.gain)
    assert won == [best]
    assert sum(v.decision.test is not None for v in found.values()) == 1


def test_the_same_history_asks_for_the_same_value(ledger: Ledger) -> None:
    chunk = sweep(low=1, high=64)
    first = expand([chunk], see(ledger))
    assert len(first) == 1
    assert first == expand([chunk], see(ledger))
    live(ledger, [chunk], World(), most=200)
    view = see(ledger)
    assert expand([chunk], view) == expand([chunk], view)
    assert len({x.identity for x in expand([chunk], view)}) == len(expand([chunk], view)) == 8


def test_a_search_of_cold_levers_asks_for_two_at_a_time() -> None:
    assert len(expand([sweep(low=0.0, high=1.0, hot=False)], None)) == 2


def test_a_small_range_is_searched_until_it_is_used_up(ledger: Ledger) -> None:
    live(ledger, [sweep(low=1, high=3, trials=8)], World())
    assert set(tried(ledger)) == {1, 2, 3}


def test_a_dead_value_is_no_number_and_the_search_goes_on(ledger: Ledger) -> None:
    world = World(fails=lambda step: ("gate_failed", "x") if step.purpose == "lever" else None)
    live(ledger, [sweep(low=1, high=64, trials=3)], world)
    assert len(tried(ledger)) == 3
    assert not any(v.decision.promoted for v in tried(ledger).values())


@pytest.mark.parametrize(
    "more",
    [{}, {"values": (1, 1)}, {"low": 1}, {"low": 2, "high": 1}, {"low": "a", "high": 2},
     {"low": 0, "high": 2, "log": True}, {"low": 1, "high": 9, "trials": 1},
     {"values": (1,), "low": 1, "high": 2}, {"values": (1,), "needs": ("luck",)},
     {"low": True, "high": 3}, {"low": 1, "high": 10**400}, {"low": -1e308, "high": 1e308}],
)  # fmt: skip
def test_a_sweep_that_makes_no_sense_is_refused(more: dict[str, Any]) -> None:
    with pytest.raises(LeverError):
        sweep(**more)


def test_a_search_goes_on_when_its_ends_were_moved(ledger: Ledger) -> None:
    live(ledger, [sweep(low=1, high=3, trials=8)], World())
    (found,) = expand([sweep(low=10, high=12, trials=4)], see(ledger))[3:]
    assert 10 <= found.change["prefill_chunk"] <= 12  # type: ignore[operator]


def test_a_declared_sweep_is_read_as_it_was_declared(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    one, two = sweep(values=("a", "b"), hot=False), sweep("s", "x", low=1, high=8, log=True)
    declared.add_sweep(path, one, ())
    declared.add(path, lever("single", {"y": 1}), ())
    declared.add_sweep(path, two, ())
    assert declared.sweeps(path) == (one, two)
    assert [x.name for x in declared.read(path)] == ["single"]
    with pytest.raises(LeverError, match="declared already"):
        declared.add_sweep(path, one, ("chunk",))


def test_the_command_declares_and_the_list_shows_its_levers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = ("--ledger", str(tmp_path / "ledger.db"), "--json")
    words = ("--claim", "c", "--falsify", "f", "--predicted-gain", "0.01")
    grid = ("levers", "sweep", "zeta", "zeta_field", "--values", "1,2,x", *words, *ledger)
    assert cli.main(list(grid)) == 0
    assert json.loads(capsys.readouterr().out)["values"] == [1, 2, "x"]
    search = ("levers", "sweep", "eta", "eta_field", "--between", "1", "64", "--log", *words)
    assert cli.main([*search, *ledger]) == 0
    assert json.loads(capsys.readouterr().out)["search"] is True
    assert cli.main(["levers", "list", *ledger]) == 0
    names = [one["name"] for one in json.loads(capsys.readouterr().out)["levers"]]
    assert {"zeta.1", "zeta.2", "zeta.x"} < set(names)
    assert sum(name.startswith("eta.") for name in names) == 1
    assert cli.main(list(grid)) == 2
    assert "zeta is declared already" in capsys.readouterr().out
    assert cli.main(["levers", "sweep", "n", "f", *words, *ledger]) == 2
    assert cli.main(["levers", "sweep", "n", "f", "--values", "1,,2", *words, *ledger]) == 2
    assert "between commas" in capsys.readouterr().out
    far = ("--between", "1", "1" + "0" * 400)
    assert cli.main(["levers", "sweep", "n", "f", *far, *words, *ledger]) == 2
    assert "none beyond 2^53" in capsys.readouterr().out
    capsys.readouterr()


def test_what_is_declared_is_one_line_of_plain_json(tmp_path: Path) -> None:
    path = declared.add_sweep(tmp_path / "ledger.db", sweep(low=1, high=8), ())
    assert path.read_text() == canonical(json.loads(path.read_text())) + "\n"
