"""A night of heads with the real engine and the real server; only the trainer is a stand-in.

The incumbent is a head that drafts nonsense, and what is "trained" is the stock head: so the gain
is certain, and promotion, staging and live proof run for real.
"""

from __future__ import annotations

import io
import json
import socket
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from nights import night, opened, view
from safetensors.torch import save_file

from engine.heads.head import is_draft, raw_tensors
from flywheel import best as best_of, suite
from flywheel.box.clock import utc_text
from flywheel.files import read_json
from flywheel.heads import archive, numbers, record
from flywheel.ledger.rebuild import rebuild
from flywheel.ledger.replay import replay
from flywheel.ledger.store import Ledger
from flywheel.lever import Lever
from flywheel.loop.order import HeadOrder, Order
from flywheel.serve.address import Address
from flywheel.serve.chosen import of_ledger
from flywheel.serve.proof import HEADER, prove
from flywheel.serve.server import Server, Setup
from flywheel.statistics.campaign import HEADS

TINY = suite.engine_assets() / "tiny-v4"
# Categories whose prompts are short; enough prompts for the bar.
CATEGORIES = ("multi_turn", "short_factual", "reasoning", "code_gen")
TRAINER = """
import json, shutil, sys
from pathlib import Path
words = sys.argv
stage, out = words[1], Path(words[words.index("--out") + 1])
out.mkdir(parents=True, exist_ok=True)
card = {"stage": stage, "outcome": "ok", "seconds": 1.0, "facts": {}}
if stage == "train":
    recipe = json.loads(words[words.index("--recipe") + 1])
    if recipe.get("steps") == 13:
        print("engine.heads: The loss of step 1 is not finite.", file=sys.stderr)
        raise SystemExit(2)
    shutil.copyfile("STOCK", out / "model.safetensors")
    (out / "train_metrics.json").write_text(json.dumps({"recipe": recipe, "seconds": 1.0}))
    print("trained", flush=True)
(out / "card.json").write_text(json.dumps(card))
"""


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Order:
    """A night whose first head drafts nonsense."""
    monkeypatch.setenv("FLYWHEEL_MAX_LOAD", "1000")
    stock = raw_tensors(TINY, is_draft)
    save_file(stock, tmp_path / "stock.safetensors")
    bad = tmp_path / "bad"
    bad.mkdir()
    norm = "mtp.2.norm.weight"
    save_file(stock | {norm: -stock[norm]}, bad / archive.WEIGHTS)
    (bad / archive.METRICS).write_text("{}")
    (bad / archive.LOG).write_text("spoilt by hand")
    trainer = tmp_path / "trainer.py"
    trainer.write_text(TRAINER.replace("STOCK", str(tmp_path / "stock.safetensors")))
    whole = json.loads((suite.engine_assets() / "suites" / "tiny-v1.json").read_text())
    whole["prompts"] = [p for p in whole["prompts"] if p["category"] in CATEGORIES][::3]
    short = tmp_path / "suite.json"
    short.write_text(json.dumps(whole))
    # Levers of time have a suite of their own, which no head is judged on.
    first = tmp_path / "first.json"
    first.write_text(json.dumps({**whole, "prompts": whole["prompts"][:1]}))
    order = Order(
        ledger=tmp_path / "ledger.db",
        checkpoint=TINY,
        suite=first,
        prompts=(whole["prompts"][0]["id"],),
        max_new_tokens=201,
        settings=replace(HEADS, backoff_s=(0.0,)),
        timeout_s=900.0,
        first_config={"head": "bad"},
        heads=HeadOrder(command=(sys.executable, str(trainer)), suite=short),
    )
    ledger = Ledger.open(order.ledger)
    files = {kind: bad / kind for kind in archive.FILES}
    record.keep(ledger, order.archive, "bad", files, {}, now_utc=utc_text())
    ledger.close()
    return order


def head(name: str, **recipe: object) -> Lever:
    return Lever(
        name, "head", {"head": recipe}, "it drafts better", "it does not", 0.1, metric="tau",
        slow=True,
    )  # fmt: skip


@pytest.mark.night
@pytest.mark.timeout(900)
def test_a_better_head_is_trained_promoted_and_proved_in_service(asked: Order) -> None:
    torch.set_num_threads(1)
    out = io.StringIO()
    with opened(asked) as ledger:
        whole = night(asked, ledger, [head("good"), head("nan", steps=13)], out)
        session = whole.run()
        rows = view(ledger)
        endings = {v.lever.name: v.decision for v in rows.variants if v.decision is not None}
        assert endings["good"].ending == "promoted", out.getvalue()
        assert (endings["nan"].ending, endings["nan"].code) == ("void", "train_failed")
        assert "not finite" in endings["nan"].sentence
        stage = rows.stages[0]
        assert stage.outcome == "live"
        assert stage.signature["seen"] == stage.signature["wanted"]
        status = {h.name: h.status for h in numbers.standings(rows)}
        assert rebuild(ledger).same
    assert not session.failed
    assert whole.herald.promotions == 1
    good = next(name for name in status if name.startswith("good"))
    assert status == {"bad": "untried", good: "live"}
    best = read_json(asked.ledger.parent / "best.json")
    assert best is not None
    assert best["head"] == str(asked.archive / good)
    assert best["config"] == {}
    assert (asked.archive / good / archive.LOG).read_text() == "trained\n"
    again = replay(asked.runs_dir, asked.ledger.parent / "again.db")
    assert again.best.config == {"head": good}
    won = next(v for v in rows.variants if v.lever.name == "good")
    assert served(asked) == won.measured[-1].runs[-1].id


def served(asked: Order) -> str | None:
    """Serve the best; the run whose every acceptance the server gave again."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = Address(*probe.getsockname())
    setup = Setup(address, asked.ledger.parent / "serve.log")
    with opened(asked) as ledger:
        chosen = of_ledger(view(ledger), asked.checkpoint, asked.archive)
        lock = asked.ledger.parent / "serve.lock"
        config = lambda: chosen.write(asked.ledger.parent)  # noqa: E731
        with Server.start(config, setup, lease_path=lock) as server:
            told = server.wait_ready()
            assert told is not None
            return prove(ledger, server.address, told, {HEADER: server.word}).run


@pytest.mark.night
@pytest.mark.timeout(900)
def test_a_server_that_drafts_otherwise_rolls_everything_back(
    asked: Order, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The served head is another one than was measured, as after a mistaken copy.

    The time is over when the head has been measured: it is proved all the same.
    """
    shim = asked.ledger.parent / "server.py"
    shim.write_text(
        "import json, runpy, sys\n"
        "place = sys.argv.index('--config') + 1\n"
        "staged = json.load(open(sys.argv[place]))\n"
        f"staged['head'] = {str(asked.archive / 'bad')!r}\n"
        "sys.argv[place] += '.stale'\n"
        "json.dump(staged, open(sys.argv[place], 'w'))\n"
        "runpy.run_module('engine.server', run_name='__main__')\n"
    )
    stale = replace(asked, server_command=(sys.executable, str(shim)))
    out = io.StringIO()
    with opened(stale) as ledger:
        whole = night(stale, ledger, [head("good")], out)
        monkeypatch.setattr(whole.wishes, "left_s", lambda: 0.0 if whole.session.runs else None)
        session = whole.run()
        assert session.reason == "the time budget is spent"
        rows = view(ledger)
        decision = rows.variants[0].decision
        assert decision is not None
        assert (decision.ending, decision.code) == ("void", "rolled_back"), out.getvalue()
        assert rows.stages[0].outcome == "rolled_back"
        assert best_of.fold(rows).config == {"head": "bad"}
    best = read_json(asked.ledger.parent / "best.json")
    assert best is not None
    assert best["head"] == str(asked.archive / "bad")
