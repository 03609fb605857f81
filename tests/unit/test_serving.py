"""What is served and why: choices from a history or a file, signatures, and the page's account."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from reports import committed, finished

from flywheel.box.clock import Window
from flywheel.cli import levers as cli_levers
from flywheel.errors import UsageError
from flywheel.files import read_json
from flywheel.ledger import models, views
from flywheel.ledger.store import Ledger
from flywheel.serve import story
from flywheel.serve.address import Address
from flywheel.serve.chosen import decision_number, of_file, of_ledger
from flywheel.serve.hosting import Order
from flywheel.serve.signature import Reply, Signature, differs, recorded

HERE = Address("127.0.0.1", 8000)
EPYC = {"device": "AMD EPYC", "torch": "2.13.0+cpu"}


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    """The repository's own night: D1 promoted hyper.host."""
    return Ledger.open(committed(tmp_path_factory.mktemp("own")))


def view_of(ledger: Ledger) -> views.View:
    with ledger.reading() as connection:
        return views.load(connection)


def test_the_best_is_the_fold_and_names_its_decision(ledger: Ledger) -> None:
    choice = of_ledger(view_of(ledger), Path("/model"), Path("/heads"))
    assert (choice.config, choice.decision) == ({"hyper": "host"}, 1)
    assert choice.label == "D1, the best so far"


def test_an_earlier_best_is_the_fold_up_to_a_decision(tmp_path: Path) -> None:
    view = view_of(finished(tmp_path / "ledger.db"))
    whole = of_ledger(view, Path("/model"), Path("/heads"))
    first = next(d for d in view.decisions if d.promoted and not d.null)
    before = of_ledger(view, Path("/model"), Path("/heads"), first.number)
    assert before.promotions == (first.number,)
    assert before.config.items() <= whole.config.items() or whole.promotions == before.promotions
    earlier = [d.number for d in view.decisions if d.number < first.number]
    for number in earlier[-1:]:
        assert of_ledger(view, Path("/model"), Path("/heads"), number).promotions == ()
    with pytest.raises(UsageError, match="no decision D999"):
        of_ledger(view, Path("/model"), Path("/heads"), 999)


def test_what_superseded_a_decision_later_does_not_count_before(ledger: Ledger) -> None:
    view = view_of(ledger)
    changed = tuple(replace(d, superseded_by=99) if d.number == 1 else d for d in view.decisions)
    assert [d.superseded_by for d in replace(view, decisions=changed).as_of(1).decisions] == [None]


def test_a_file_is_served_as_it_says(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"config": {"threads": 2}, "checkpoint": "model"}))
    choice = of_file(path, Path("/other"))
    assert (choice.config, choice.checkpoint) == ({"threads": 2}, tmp_path / "model")
    assert choice.decision is None
    written = read_json(choice.write(tmp_path))
    assert written is not None
    assert (written["config"], written["decision"]) == ({"threads": 2}, None)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"config": 3}', '{"config": {}, "head": 3}'])
def test_a_file_that_names_no_configuration_is_a_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "mine.json").write_text(text)
    with pytest.raises(UsageError, match=r"mine\.json"):
        of_file(tmp_path / "mine.json", Path("/other"))


def test_decisions_are_named_with_or_without_their_letter() -> None:
    assert (decision_number("D7"), decision_number(" 7 ")) == (7, 7)
    for wrong in ("", "D", "-1", "F3", "seven"):
        with pytest.raises(UsageError, match="--at wants"):
            decision_number(wrong)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"file": Path("x"), "at": 3}, "give one of them"),
        ({"at": 3, "window": Window.parse("22:00-07:00")}, "--at excludes it"),
        ({"run_arguments": ("--quick",)}, "needs --run-window"),
    ],
)
def test_orders_that_contradict_themselves_are_refused(
    fields: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UsageError, match=sentence):
        Order(Path("ledger.db"), HERE, Path("/model"), **fields)


def signature(ledger: Ledger, machine: dict[str, str]) -> Signature | None:
    with ledger.reading() as connection:
        arms = models.arm.c
        query = models.arm.select().where(arms.requested == '{"hyper":"host"}')
        fingerprint = connection.execute(query).first().fingerprint  # type: ignore[union-attr]
        return recorded(connection, fingerprint, checkpoint_of(connection), machine)


def checkpoint_of(connection: Any) -> str:
    row = connection.execute(models.ruler.select()).first()
    return str(json.loads(row.fields)["checkpoint_sha256"])


def test_the_record_of_the_best_is_found_with_its_prompt(ledger: Ledger) -> None:
    found = signature(ledger, EPYC)
    assert found is not None
    (prompt,) = found.prompts
    assert prompt.point.prompt == "multi_turn-0"
    assert found.tokens == found.max_new_tokens == 208
    assert prompt.messages[-1]["role"] == "user"
    with ledger.reading() as connection:
        assert recorded(connection, "f" * 64, checkpoint_of(connection), EPYC) is None
        assert recorded(connection, "f" * 64, "0" * 64, EPYC) is None


def test_every_difference_is_named(ledger: Ledger) -> None:
    found = signature(ledger, EPYC)
    assert found is not None
    (prompt,) = found.prompts
    point = prompt.point
    same = Reply(
        point.prompt_tokens, point.tokens, point.tokens_sha256, point.rounds,
        point.offered_by_position, point.accepted_by_position,
    )  # fmt: skip
    assert differs(prompt, same) is None
    # A position that no round reached may be left out.
    assert differs(prompt, replace(same, offered=(*same.offered, 0))) is None
    for changed, word in (
        (replace(same, prompt_tokens=1), "reads 1 prompt tokens"),
        (replace(same, tokens_sha256="0" * 64), "other tokens"),
        (replace(same, rounds=207), "takes 207 rounds"),
        (replace(same, accepted=(0, *same.accepted[1:])), "accepts 0 drafts at position 1"),
        (replace(same, offered=same.offered[:-1]), "offers 0 drafts at position 5"),
    ):
        assert word in (differs(prompt, changed) or "")


def test_the_page_is_told_what_the_report_says(ledger: Ledger, tmp_path: Path) -> None:
    choice = of_ledger(view_of(ledger), Path("/model"), Path("/heads"))
    told = story.tell(ledger, cli_levers.known(ledger.path), choice, "proven")
    path = story.write(tmp_path, told)
    assert read_json(path) == json.loads(json.dumps(told))
    assert told["headline"] == "D1, the best so far"
    assert told["canaries"]["text"].startswith("0 of 1 promoted")
    assert told["gain"]["text"].startswith("18.2 % [14.6, 21.7]")
    assert 0.14 < told["gain"]["low"] < told["gain"]["value"] < told["gain"]["high"]
    assert [row["decision"] for row in told["promotions"]] == [1]
    assert told["night"]["text"].endswith("1 promotion")
    assert told["night"]["decisions"][0]["decision"] == 10
    assert told["proof"] == "proven"
