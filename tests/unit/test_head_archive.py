"""Archived heads: whole, verified, listed, packed and released."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from head_arms import (
    CATEGORIES,
    HELD,
    SUITE,
    better,
    campaign,
    forged,
    head,
    measure,
    promoted,
    see,
    steady,
)
from records import NOW

from flywheel.cli import app as cli, heads as cli_heads
from flywheel.errors import HeadError, UsageError
from flywheel.heads import archive, gates, model_card, numbers, record as recording
from flywheel.heads.ladder import ladder
from flywheel.ledger.rows import VariantRow
from flywheel.ledger.store import Ledger
from flywheel.loop import plan
from flywheel.report import heads_md


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with campaign(tmp_path) as opened:
        yield opened


def test_the_archive_overwrites_nothing_and_notes_once(ledger: Ledger, tmp_path: Path) -> None:
    forged(ledger, "mine")
    root = archive.root_of(ledger.path)
    card = archive.card_of(root, "mine")
    with pytest.raises(UsageError, match="nothing there is overwritten"):
        forged(ledger, "mine")
    assert archive.card_of(root, "mine") == card
    for path in (root / "mine").iterdir():
        assert not path.stat().st_mode & 0o222
    archive.note(root, "mine", "staged.json", {"n": 1})
    archive.note(root, "mine", "staged.json", {"n": 2})
    assert json.loads((root / "mine" / "staged.json").read_text()) == {"n": 1}
    with pytest.raises(UsageError, match="cannot name a head"):
        archive.archive(root, "../x", {}, {}, now_utc=NOW)
    with pytest.raises(HeadError, match=r"no model\.safetensors"):
        archive.archive(root, "other", {}, {}, now_utc=NOW)


def test_verify_finds_what_is_gone_changed_or_unknown(ledger: Ledger) -> None:
    for name in ("whole", "bent", "gone", "short"):
        forged(ledger, name)
    root, rows = archive.root_of(ledger.path), {r.name: r for r in see(ledger).heads}
    weights = root / "bent" / archive.WEIGHTS
    text = weights.read_text()
    weights.chmod(0o644)
    weights.write_text(text.upper())
    os.rename(root / "gone", root / "renamed")
    (root / "short" / archive.LOG).unlink()
    assert archive.problems(root, rows["whole"], full=True) == ()
    assert archive.problems(root, rows["bent"], full=False) == ()
    assert archive.problems(root, rows["bent"], full=True) == (
        "bent: model.safetensors has other bytes",
    )
    assert archive.problems(root, rows["gone"], full=False) == ("gone: its folder is gone",)
    assert archive.problems(root, rows["short"], full=False) == ("short: train.log is gone",)
    assert archive.strangers(root, set(rows)) == ("renamed: the ledger does not know it",)


def test_a_head_archived_before_a_crash_is_entered_once(ledger: Ledger) -> None:
    forged(ledger, "mine")
    card = archive.card_of(archive.root_of(ledger.path), "mine")
    recording.enter(ledger, card, None)
    assert [row.name for row in see(ledger).heads] == ["mine"]


def test_a_release_needs_promotion_proof_floors_and_hold_out(ledger: Ledger) -> None:
    promoted(ledger, head())
    view = see(ledger)
    assert gates.shortfalls(view, numbers.standings(view)[0]) == ()


def test_a_head_short_of_a_floor_is_told_by_how_much(ledger: Ledger) -> None:
    def copied_less(prompt: str, category: str) -> int:
        slower = 2 if category == "long_context" else -2
        return steady(prompt, category) + slower

    measure(ledger, plan.next_step(see(ledger), [head()]), copied_less)
    view = see(ledger)
    found = gates.shortfalls(view, numbers.standings(view)[0])
    mine = numbers.measured(view.variants[0])
    assert mine is not None
    short = (
        mine.before.categories["long_context"] - Fraction(2, 10)
        - mine.candidate.categories["long_context"]
    )  # fmt: skip
    assert short > 0
    assert any(s.startswith("long_context (reconstructive)") and f"{float(short):.4f}" in s
               for s in found)  # fmt: skip
    assert any("promoted" in s for s in found)


def test_without_the_stock_head_beside_it_nothing_is_released(ledger: Ledger) -> None:
    promoted(ledger, head())
    second = head("head.b", anchor=0.0)
    measure(ledger, plan.next_step(see(ledger), [second]), better(5))
    view = see(ledger)
    mine = numbers.standings(view)[1]
    assert mine.measured is not None
    assert numbers.stock_beside(view, mine.measured) is not None
    other = replace(mine.measured, block=replace(mine.measured.block, source_sha256="cd" * 32))
    found = gates.shortfalls(view, replace(mine, measured=other))
    assert "the stock head was not measured under its ruler and code" in found


def flywheel(*words: str) -> int:
    return cli.main(list(words))


def test_list_and_show_print_the_categories_first(
    ledger: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    name = promoted(ledger, head())
    assert flywheel("heads", "list", "--ledger", str(ledger.path)) == 0
    shown = capsys.readouterr().out
    assert name in shown
    assert "live" in shown
    assert flywheel("heads", "show", name, "--ledger", str(ledger.path)) == 0
    card = capsys.readouterr().out
    assert card.index("code_edit") < card.index("| mean") < card.index("Verdict")
    assert flywheel("heads", "show", name, "--ledger", str(ledger.path), "--json") == 0
    body = json.loads(capsys.readouterr().out)
    assert len(body["prompts"]) == len(SUITE) + len(HELD)
    assert flywheel("heads", "show", "none", "--ledger", str(ledger.path)) == 2


def test_the_ladder_has_the_best_arm_first_and_its_categories(
    ledger: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("heads", "ladder", "--ledger", str(ledger.path))
    assert flywheel(*words) == 0
    assert "no head was measured yet" in capsys.readouterr().out
    levers = [head("head.a"), head("head.b", anchor=0.0)]
    for candidate in (steady, better(2)):
        measure(ledger, plan.next_step(see(ledger), levers), candidate)
    assert flywheel(*words, "--json") == 0
    body = json.loads(capsys.readouterr().out)
    assert [arm["name"] for arm in body["arms"]] == ["head.b-v0002", "head.a-v0001"]
    assert [arm["status"] for arm in body["arms"]] == ["undecided", "rejected"]
    assert [line["name"] for line in body["best"]["suite"]] == [*sorted(CATEGORIES), "all"]
    assert body["best"]["hold-out"][-1]["prompts"] == len(HELD)
    assert body["stage_seconds"]["train"] == [60.0, 60.0]
    assert flywheel(*words) == 0
    assert "stage" in capsys.readouterr().out


def test_a_card_shows_what_only_the_hold_out_asks(ledger: Ledger) -> None:
    promoted(ledger, head())
    view = see(ledger)
    mine = numbers.standings(view)[0]
    assert mine.measured is not None
    rows = tuple(r for r in mine.measured.rows if r.held_out or r.category != "reasoning")
    fewer = replace(mine, measured=replace(mine.measured, rows=rows))
    card = archive.card_of(archive.root_of(ledger.path), mine.name)
    lines = model_card.render(fewer, card, None, ()).splitlines()
    (line,) = (x for x in lines if x.startswith("| reasoning "))
    assert [bool(cell.strip()) for cell in line.split("|")[2:-1]] == [False, False, True, True]


def test_nothing_of_the_ladder_is_cut_off_on_a_narrow_terminal(
    ledger: Ledger, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "44")
    measure(ledger, plan.next_step(see(ledger), [head("head.a")]), better(2))
    assert flywheel("heads", "ladder", "--ledger", str(ledger.path)) == 0
    shown = capsys.readouterr().out
    assert "\u2026" not in shown
    assert f"{ladder(see(ledger))[0].incumbent_tau:.3f}" in shown


def test_heads_of_another_suite_stand_apart_on_the_ladder(
    ledger: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    levers = [head("head.a"), head("head.b", anchor=0.0)]
    for candidate in (steady, better(2)):
        measure(ledger, plan.next_step(see(ledger), levers), candidate)
    view = see(ledger)
    best = ladder(view)[0]
    assert (best.name, {rung.suite for rung in ladder(view)}) == ("head.b-v0002", {best.suite})
    # The lower one was measured last, and on other prompts that are named alike.
    one, two = view.variants
    swapped = [
        replace(v, blocks=(replace(v.blocks[-1], serial=serial, ruler_id=ruler),))
        for v, serial, ruler in ((one, 9, 99), (two, 1, v_ruler(two)))
    ]
    ruler = replace(view.rulers[v_ruler(two)], suite_sha256="cd" * 32)
    other = replace(view, variants=tuple(swapped), rulers={**view.rulers, 99: ruler})
    found = ladder(other)
    assert [rung.name for rung in found] == ["head.a-v0001", "head.b-v0002"]
    assert found[0].suite == f"{ruler.suite} cdcdcdcd"
    table = cli_heads._arms(found)
    assert [column.header for column in table.columns][-1] == "suite"
    assert flywheel("heads", "ladder", "--json", "--ledger", str(ledger.path)) == 0
    assert {arm["suite"] for arm in json.loads(capsys.readouterr().out)["arms"]} == {best.suite}


def v_ruler(variant: VariantRow) -> int:
    """The ruler of a variant's measurement."""
    found = variant.measured[-1].ruler_id
    assert found is not None
    return found


def test_the_registry_lists_every_head_with_its_gain_in_tau(ledger: Ledger) -> None:
    promoted(ledger, head())
    text = heads_md.render(see(ledger))
    assert "| head.a | `head: the default recipe` | 1 | +" in text
    assert "promoted" in text
    assert "No head arm" not in text


def test_verify_fails_loudly(ledger: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    forged(ledger, "mine")
    words = ("heads", "verify", "--full", "--ledger", str(ledger.path))
    assert flywheel(*words) == 0
    path = archive.root_of(ledger.path) / "mine" / archive.METRICS
    path.chmod(0o644)
    path.write_text("x")
    capsys.readouterr()
    assert flywheel(*words) == 1
    assert "train_metrics.json has another size" in capsys.readouterr().out


def test_a_packed_head_is_whole_and_carries_its_sums(ledger: Ledger, tmp_path: Path) -> None:
    name = promoted(ledger, head())
    out = tmp_path / "upload"
    words = ("heads", "pack", name, "--out", str(out), "--ledger", str(ledger.path))
    assert flywheel(*words) == 0
    lines = (out / "SHA256SUMS").read_text().splitlines()
    sums = {name: digest for digest, name in (line.split("  ") for line in lines)}
    assert set(sums) == {p.name for p in out.iterdir()} - {"SHA256SUMS"}
    for file, digest in sums.items():
        assert hashlib.sha256((out / file).read_bytes()).hexdigest() == digest
    assert flywheel(*words) == 2  # never over an old one


def test_release_refuses_with_the_shortfalls_and_writes_nothing(
    ledger: Ledger, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measure(ledger, plan.next_step(see(ledger), [head()]), steady)
    out = tmp_path / "upload"
    words = ("heads", "release", "head.a-v0001", "--out", str(out), "--ledger", str(ledger.path))
    assert flywheel(*words) == 3
    assert "not released: it was not promoted by the loop: rejected" in capsys.readouterr().out
    assert not out.exists()


def test_a_head_trained_by_hand_is_archived_by_command(ledger: Ledger, tmp_path: Path) -> None:
    made = tmp_path / "hand"
    made.mkdir()
    (made / archive.WEIGHTS).write_text("weights")
    (made / archive.METRICS).write_text('{"steps": 3, "history": []}')
    (made / "log").write_text("a log")
    words = ("heads", "add", "mine", str(made), "--log", str(made / "log"))
    assert flywheel(*words, "--ledger", str(ledger.path)) == 0
    assert see(ledger).heads[0].card["training"] == {"steps": 3}
    assert flywheel(*words, "--ledger", str(ledger.path)) == 2
