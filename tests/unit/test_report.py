"""One document, rendered three ways that agree."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
from records import NOW, World, drive, lever, play
from reports import LEVERS, finished
from rich.console import Console

from flywheel.errors import LedgerError
from flywheel.ledger import halts, views
from flywheel.ledger.store import Ledger
from flywheel.loop import plan, planned
from flywheel.report import headline, html, tables
from flywheel.report.document import Document
from flywheel.report.gather import describe, gather
from flywheel.report.levers_md import render as render_levers
from flywheel.report.scope import Scope
from flywheel.statistics.campaign import QUICK


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    """A finished campaign with every kind of ending."""
    return finished(tmp_path_factory.mktemp("report") / "ledger.db")


@pytest.fixture(scope="module")
def document(ledger: Ledger) -> Document:
    """Its report."""
    return gather(ledger, LEVERS)


def on_terminal(document: Document, width: int) -> str:
    out = io.StringIO()
    tables.render(document, Console(file=out, width=width, highlight=False))
    return out.getvalue()


def flat(text: str) -> str:
    return " ".join(text.split())


def test_the_canary_line_comes_first(document: Document) -> None:
    text = on_terminal(document, 120)
    heads = [line.split()[0] for line in text.splitlines() if line[:1].isalpha()]
    assert heads[:4] == ["campaign", "canaries", "incumbent", "gain"]
    assert "0 of 1 promoted" in text
    assert "between loads" in text


def test_the_first_screen_says_what_was_learnt(document: Document) -> None:
    text = flat(on_terminal(document, 160))
    assert re.search(
        r"incumbent \S+ ms/token \[\S+, \S+\] · \S+ tok/s · tau 2.00 of 4 at width 3", text
    )
    assert "provisional" in text
    assert re.search(r"gain [45]\.\d % \[\S+, \S+\] against the frozen first configuration", text)
    row = r"threads 1 -> 2 -[45]\.\d % time \[-\S+, -\S+\] \d blocks predicted -3 %"
    assert re.search(row, text)
    assert "less than" in text
    assert "REGRESSION in code, prose" in text
    assert "incorrect 1" in text
    assert "void 4 guard_kill 1, seal_missing 3" in text
    assert "token 212" in text
    assert "guard_kill, 1.9 GB free, falling 10.8 GB/s (retried, ok)" in text
    assert "seal_missing, the log stops (deferred), 3 times" in text
    assert "twin is the same change as fast" in text
    assert "next nothing: no lever is left to try" in text


def test_detail_of_the_best(document: Document) -> None:
    detail = document.detail
    assert detail is not None
    assert [c.name for c in detail.categories] == ["code", "prose"]
    assert detail.total.tau == 2.0
    assert detail.total.speedup == pytest.approx(2.0, abs=0.01)
    assert detail.accepted == ((1, 0.625), (2, 0.25), (3, 0.125))
    assert dict(detail.step_cost_ms) == {1: 4.5, 2: 5.0, 3: 5.5, 4: 6.0}
    assert detail.prefill_tok_s == pytest.approx(5000)
    assert detail.ttft_ms == pytest.approx(2.1)
    assert detail.peak_bytes == 10**9
    assert all(re.fullmatch(r"lines \d+-\d+", where) for _, where in detail.runs)
    text = flat(on_terminal(document, 100))
    for figure in ("62 %", "C(4) 6.00 ms", "5000 tok/s", "2.10 ms", "1.00 GB"):
        assert figure in text


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_it_survives_any_width(document: Document, width: int) -> None:
    printed = on_terminal(document, width).splitlines()
    assert max(len(line) for line in printed) <= width
    assert any("-> 2" in line for line in printed)
    assert not any("\x1b" in line or line != line.rstrip() for line in printed)


def test_a_figure_is_not_torn_apart_on_a_narrow_page(document: Document) -> None:
    printed = on_terminal(document, 40)
    for row in document.of("rejected"):
        assert f"{row.blocks} blocks" in printed
    for head in ("canaries", "incumbent", "gain", "cost", "void", "next"):
        assert re.search(rf"^{head}  \S", printed, re.MULTILINE)


def test_the_forest_has_one_scale_with_zero_on_it(document: Document) -> None:
    printed = on_terminal(document, 100).splitlines()
    start = printed.index("time saved, mean and band") + 1
    banded = [r for r in document.rows if r.mean is not None]
    drawn = printed[start : start + len(banded)]
    zeros = {line.index("┊") for line in drawn if "┊" in line}
    assert len(zeros) == 1
    fast = next(line for line in drawn if line.startswith("threads"))
    slow = next(line for line in drawn if line.startswith("moe"))
    assert fast.index("●") > min(zeros) > slow.index("●")
    assert "slower" in printed[start + len(banded)]


def test_what_it_cost(document: Document) -> None:
    cost = document.cost
    assert cost.loads == len(document.runs)
    assert cost.void_loads == 5
    assert cost.decided == 4
    assert cost.per_decided == pytest.approx(cost.loads / 4)
    assert cost.energy_j is None
    assert "kWh" not in cost.text


def test_energy_is_summed_where_it_was_recorded(ledger: Ledger) -> None:
    with ledger.reading() as connection:
        view = views.load(connection)
    runs = [r for b in view.blocks() for r in b.runs]
    told = {runs[0].id: {"gpu": 2.6e6, "cpu": 1.0e6}, runs[1].id: {"gpu": 1.8e6}, runs[2].id: {}}
    variants = tuple(
        replace(v, blocks=tuple(
            replace(b, runs=tuple(
                replace(r, evidence={"energy_j": told.get(r.id)}) for r in b.runs
            )) for b in v.blocks
        )) for v in view.variants
    )  # fmt: skip
    found = headline.cost(Scope(replace(view, variants=variants)))
    assert found.energy_j == pytest.approx(5.4e6)
    assert "1.5 kWh of the CPU and GPU in 2 loads" in found.text


def test_an_unbounded_end_is_null_with_a_flag(tmp_path: Path) -> None:
    opened = Ledger.open(tmp_path / "ledger.db")
    planned.open_campaign(opened, QUICK, start={}, box="box", now_utc=NOW)
    with opened.reading() as connection:
        first = plan.next_step(views.load(connection), [])
    assert isinstance(first, plan.NextBlock)
    play(opened, first, World())
    early = gather(opened, []).as_dict()["incumbent"]
    assert early["value"] == pytest.approx(10.0, rel=0.1)
    assert (early["low"], early["high"], early["unbounded"]) == (None, None, True)
    assert "1 load · provisional" in early["text"]


def test_since_leaves_out_what_ended_before(ledger: Ledger) -> None:
    whole = gather(ledger, LEVERS)
    assert gather(ledger, LEVERS, since_utc=NOW).rows == whole.rows
    later = gather(ledger, LEVERS, since_utc="2026-11-29T00:00:00Z")
    assert (later.rows, later.voids, later.findings, later.runs) == ((), (), (), ())
    assert later.title.startswith("since 2026-11-29 00:00 UTC")
    assert later.canaries.text.startswith("0 of 0 promoted (0 of 1 ever)")
    assert later.incumbent == whole.incumbent
    assert later.gain == whole.gain


def test_a_standing_halt_is_on_the_first_screen(tmp_path: Path) -> None:
    opened = Ledger.open(tmp_path / "ledger.db")
    planned.open_campaign(opened, QUICK, start={}, box="box", now_utc=NOW)
    halts.halt(opened, "memory_not_back", "9 GB did not come back", None, NOW)
    halted = gather(opened, [])
    text = flat(on_terminal(halted, 80))
    assert "HALTED memory_not_back: 9 GB did not come back" in text
    assert halted.next.startswith("HALTED: 9 GB did not come back; flywheel resume")
    assert "Halted: memory_not_back" in html.render(halted)
    halts.resume(opened, "a leak, fixed", NOW)
    assert gather(opened, []).halts == ()


def test_the_queue_says_why(ledger: Ledger) -> None:
    waiting = lever("waiting", {"x": 1}, predicted_gain=0.02)
    document = gather(ledger, [*LEVERS, waiting])
    assert [q.name for q in document.queue] == ["waiting"]
    terms = r"P\(win\) \S+ x 2.5 % \(predicted x 1.3\) / \S+ min; its family won 1 of 4"
    assert re.search(terms, document.queue[0].why)
    assert "queue, best first" in on_terminal(document, 80)


def test_the_incumbent_over_time_has_an_epoch_for_each_promotion(document: Document) -> None:
    trace = document.trace
    assert [e.decision for e in trace.epochs] == [None, document.of("promoted")[0].decision]
    before, after = trace.epochs
    assert after.mean_ms < before.mean_ms
    assert {level.epoch for level in trace.levels} == {0, 1}
    assert all(n.within > 0 for n in trace.noise)
    assert any(n.between for n in trace.noise)


def test_the_three_forms_agree(document: Document) -> None:
    data = json.loads(json.dumps(document.as_dict()))
    text = flat(on_terminal(document, 200))
    page = flat(unescape(re.sub(r"<[^>]+>", "", html.render(document))))
    for figure in ("canaries", "incumbent", "gain", "cost"):
        assert data[figure]["text"] in text
        assert data[figure]["text"] in page
    assert data["budget"] in text
    for row in data["rows"]:
        if not row["null"]:
            assert row["said"] in text
    assert data["config"] == {"threads": 2}


def test_a_report_in_the_middle_of_a_campaign(tmp_path: Path) -> None:
    opened = Ledger.open(tmp_path / "ledger.db")
    with pytest.raises(LedgerError, match="no campaign"):
        gather(opened, [])
    planned.open_campaign(opened, QUICK, start={}, box="box", now_utc=NOW)
    empty = gather(opened, [lever()])
    assert empty.incumbent.text == "not measured yet"
    assert empty.detail is None
    assert "null 1 of 4" in empty.next
    assert "nothing promoted" in on_terminal(empty, 80)
    page = html.render(empty)
    for group in ("promoted 0", "rejected 0", "inconclusive 0", "incorrect 0"):
        assert group in page
    stop = drive(opened, [], World(fails=lambda _s: ("gate_failed", "lossless, arm B")))
    assert stop.halt
    halted = gather(opened, [])
    assert halted.next.startswith("HALTED: a gate failed on the null block")
    assert halted.voids[0].after == "to be retried"


def test_the_next_step_in_words() -> None:
    priced = plan.PricedOut(lever(), "v0001", {}, {}, "priced out: x")
    assert describe(priced) == "threads -> 2: priced out: x"
    assert describe(plan.Stop("done")) == "nothing: done"


def test_levers_md_is_generated_and_deterministic(ledger: Ledger) -> None:
    with ledger.reading() as connection:
        view = views.load(connection)
    waiting = lever("waiting", {"x": "a|b"}, predicted_gain=0.02)
    declared = [*LEVERS, waiting, lever("there", {"draft_width": 3})]
    text = render_levers(view, declared, {"draft_width": 3})
    assert text == render_levers(view, list(reversed(declared)), {"draft_width": 3})
    assert "## Open: 1\n" in text
    assert "| waiting | `x -> a\\|b` |  | 2 % |" in text
    assert "In the incumbent already: there (`draft_width -> 3`)" in text
    assert re.search(r"\| fast \| `threads -> 2` \| saves [45]\.\d % \[.*\], E .* at alpha", text)
    assert re.search(r"\| flat \|.*worth less than \S+ % \(mean", text)
    assert re.search(r"\| wrong \|.*token 212", text)
    assert re.search(r"\| dead \|.*deferred after 3 void runs", text)
    assert "## Inconclusive: 0" in text


def test_a_page_of_twenty_columns_has_no_forest_and_no_traceback(document: Document) -> None:
    printed = on_terminal(document, 20)
    assert "time saved" not in printed
    assert "promoted  1" in printed


def test_a_period_without_a_run_says_so_and_has_no_spread_of_its_own(ledger: Ledger) -> None:
    quiet = gather(ledger, LEVERS, since_utc="2026-11-29T00:00:00Z")
    assert quiet.notes[0].startswith("nothing ended in this period")
    assert "within a load" not in quiet.canaries.text
    assert "between loads" in quiet.canaries.text
    whole = gather(ledger, LEVERS)
    assert not any("nothing ended" in note for note in whole.notes)
    assert "within a load" in whole.canaries.text
