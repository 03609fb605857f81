"""The form of an answer, what may become a lever, what a patch may touch, and who is asked next."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from records import NOW, World, drive, lever

from flywheel.errors import LeverError, UsageError
from flywheel.ledger import views
from flywheel.ledger.rows import AttemptRow
from flywheel.ledger.store import Ledger
from flywheel.lever import Lever
from flywheel.loop import planned
from flywheel.loop.order import KINDS
from flywheel.patch.source import LIMIT_BYTES
from flywheel.propose import gathering, quarantine
from flywheel.propose.admission import Grounds, judge
from flywheel.propose.answer import MOST, SCHEMA, Patch, read
from flywheel.propose.attempt import Ask, Later, Nobody, Terms, following
from flywheel.propose.proposer import parse, parse_all
from flywheel.propose.scripted import answer as scripted
from flywheel.statistics.campaign import QUICK
from flywheel.sweep import Sweep

BASE = {"claim": "why", "falsify": "why not", "predicted_gain": 0.02}
DIFF = "--- a/{path}\n+++ b/{path}\n@@ -1 +1 @@\n-a = 1\n+a = 2\n"


def config(
    name: str = "a", field: str = "threads", value: object = 4, **more: Any
) -> dict[str, Any]:
    return {"kind": "config", "name": name, "field": field, "value": value, **BASE, **more}


def sweep(name: str = "s", **more: Any) -> dict[str, Any]:
    return {"kind": "sweep", "name": name, "field": "threads", **BASE, **more}


def patch(path: str = "engine/rows.py", **more: Any) -> dict[str, Any]:
    return {"kind": "patch", "name": "p", "diff": DIFF.format(path=path), **BASE, **more}


def answer(*levers: object, **more: Any) -> str:
    return json.dumps({"levers": levers, **more})


# ---------------------------------------------------------------- the form


def test_every_kind_of_lever_is_read() -> None:
    found = read(answer(
        config(), sweep(values=[2, 8]), sweep(low=1, high=8, trials=4), patch(),
        {"kind": "head", "name": "h", "recipe": {"anchor": 0.2}, **BASE},
    ))  # fmt: skip
    assert found.errors == ()
    one, grid, search, code, head = (item.offer for item in found.items)
    assert isinstance(one, Lever)
    assert dict(one.change) == {"threads": 4}
    assert isinstance(grid, Sweep)
    assert isinstance(search, Sweep)
    assert (grid.values, search.search) == ((2, 8), True)
    assert isinstance(code, Patch)
    assert isinstance(head, Lever)
    assert (head.kind, head.metric) == ("head", "tau")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not one JSON document"),
        ("```json\n{}\n```", "not one JSON document"),
        ("[]", "not a JSON object"),
        ("{}", "no list `levers`"),
        ('{"levers": [], "verdict": "promoted"}', "'verdict' that means nothing"),
        ('{"levers": [NaN]}', "NaN is no JSON number"),
        ('{"levers": ["\\ud800"]}', "not one JSON document"),
        ('{"levers": [1e300]}', "beyond any that a lever needs"),
        (answer("threads"), "levers[0] (number 1): it is not a JSON object"),
        (answer({"kind": "idea"}), "its kind 'idea' is none of"),
        (answer({"kind": "config"}), "name is missing; claim is missing"),
        (answer(config(predicted_gain=0.9)), "predicted_gain must lie between 0 and 0.5"),
        (answer(config(predicted_gain="3 %")), "predicted_gain must be number"),
        (answer(config(claim="  ")), "claim is empty"),
        (answer(config(ending="promoted")), "a field 'ending' that its kind has not"),
        (answer(config("../levers")), "name must be 1 to 64 of"),
        (answer(config(value=[1])), "value must be string or number or boolean"),
        (answer(config(value="x" * 201)), "value is longer than 200 characters"),
        (answer({**BASE, "kind": "head", "name": "h", "recipe": {"a": [1]}}), "recipe a must be"),
        (answer(config(field="acceptance", value="typical")), "what changes the text is judged"),
        (answer(config(needs=["a quiet box"])), "needs is none of torch"),
        (answer(sweep()), "wants values, or two ends"),
        (answer(sweep(values=[1])), "values needs 2 entries"),
        (answer(sweep(low=4, high=2)), "the lower one first"),
        (answer(sweep(values=[3, 3])), "names a value twice"),
        (answer(*[config(f"n{i}") for i in range(MOST + 1)]), f"{MOST} levers at most"),
    ],
)
def test_what_is_wrong_with_an_answer_is_said_in_words(text: str, said: str) -> None:
    assert said in " ".join(read(text).errors)


LONG = "x" * 100_000


@pytest.mark.parametrize(
    "text",
    [
        answer(*[0] * 100_000),
        answer(*[config(f"n{i}") for i in range(10_000)]),
        answer(config(**{LONG: 1}), config(field=LONG), config(kind=LONG), config(name=LONG)),
        answer(config(claim=LONG, falsify=LONG), config(**{f"f{i}": 1 for i in range(9999)})),
        answer({"kind": "head", "name": "h", "recipe": {LONG: 1}, **BASE}),
        answer({"kind": "head", "name": "h", "recipe": {f"r{i}": 1 for i in range(9999)}, **BASE}),
        answer(sweep(values=[*range(10_000)])),
        answer(patch(path=LONG)),
        answer(**{f"f{i}": 1 for i in range(9999)}),
        answer(usage={f"f{i}": 1 for i in range(9999)}),
    ],
)
def test_however_much_is_answered_little_of_it_comes_into_the_ledger(
    text: str, grounds: Grounds
) -> None:
    found = read(text)
    verdicts = judge(found, grounds)
    assert len(verdicts) <= MOST + 1
    admitted = [one.lever for one in verdicts if one.lever is not None]
    kept = json.dumps([one.to_json() for one in verdicts]) + repr((admitted, found.usage))
    assert len(kept) + len("".join(found.errors)) < 30_000


def test_every_error_is_told_at_once() -> None:
    found = read(answer(config("a"), {"kind": "config"}, config("b", claim="")))
    assert [bool(item.error) for item in found.items] == [False, True, True]
    assert len(found.errors) == 2


def test_words_for_terminals_are_one_printable_line() -> None:
    found = read(answer(config(claim="fast\n\x1b[31mer\x07 " + "x" * 900), note="a\nb"))
    (item,) = found.items
    assert isinstance(item.offer, Lever)
    assert item.offer.claim.isprintable()
    assert len(item.offer.claim) <= 400
    assert found.note == "a b"


@settings(max_examples=150, deadline=None)
@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(
        st.sampled_from(["levers", "kind", "name", "field", "value", "values", "low", "limited",
                         "usage", "diff", "recipe", "claim"]) | st.text(), inner),
    max_leaves=20,
))  # fmt: skip
def test_no_answer_whatever_is_more_than_an_error(value: object) -> None:
    found = read(json.dumps({"levers": [value], "usage": value}))
    assert all(item.offer is None or item.error == "" for item in found.items)
    read(json.dumps(value))


def test_the_schema_names_what_is_read() -> None:
    kinds = [one["properties"]["kind"]["const"]
             for one in SCHEMA["properties"]["levers"]["items"]["anyOf"]]  # fmt: skip
    assert kinds == ["config", "sweep", "head", "patch"]


# ---------------------------------------------------------------- admission


@pytest.fixture(scope="module")
def grounds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grounds]:
    """A campaign that closed threads=2; `chunk` waits."""
    ledger = Ledger.open(tmp_path_factory.mktemp("grounds") / "ledger.db")
    planned.open_campaign(ledger, QUICK, start={}, box="box", now_utc=NOW)
    drive(ledger, [lever("flat", {"threads": 2})], World())
    waiting = lever("chunk", {"prefill_chunk": 32})
    fields: dict[str, Mapping[str, Any]] = {
        "threads": {"default": 1, "range": [0, 64]},
        "draft_width": {"default": 5, "range": [0, 8]},
        "moe": {"default": "loop", "choices": ["loop", "fused"], "backend": "torch"},
        "graph": {"default": "on", "choices": ["on", "off"], "backend": "triton"},
        "threshold": {"default": 0.4, "range": [0.0, 1.0]},
    }
    with ledger.reading() as connection:
        yield gathering.grounds(connection, [waiting], fields, KINDS)
    ledger.close()


def refusals(grounds: Grounds, *levers: object) -> list[str]:
    return [one.reason for one in judge(read(answer(*levers)), grounds)]


def test_a_sound_lever_is_admitted(grounds: Grounds) -> None:
    offers = (config(), config("b", "moe", "fused"), config("c", "threshold", 1),
              sweep(values=[8, 16]), sweep("t", low=3, high=9))  # fmt: skip
    assert refusals(grounds, *offers) == [""] * 5


@pytest.mark.parametrize(
    ("offer", "said"),
    [
        (config(value=2), "is the same change as flat: flat was decided in this campaign by D1"),
        (config(name="flat", value=8), "the name flat is that of another lever"),
        (config(value=1), "already in the incumbent"),
        (config(field="speed"), "the engine has no field speed; it has draft_width, graph, moe"),
        (config(field="numerics", value="exact"), "numerics says what is computed"),
        (config(value=65), "threads lies between 0 and 64, not 65"),
        (config(value=2.5), "threads takes a value like 1, not 2.5"),
        (config(value=True), "threads takes a value like 1, not True"),
        (config(field="moe", value="quick"), "moe takes loop, fused, not 'quick'"),
        (config(field="graph", value="off"), "graph is of the triton backend"),
        (config(needs=["triton"]), "is one of the triton backend"),
        (sweep(values=[1, 2]), "no value is left to try"),
        (sweep(low=1, high=99), "threads lies between 0 and 64, not 99"),
        (patch(), "patch levers are not available"),
        (patch("tests/unit/test_band.py"), "no patch may touch it, for the tests are"),
        (patch("engine/measure/program.py"), "for it is the measuring program"),
    ],
)
def test_what_may_not_be_a_lever_is_refused_with_the_reason(
    grounds: Grounds, offer: dict[str, Any], said: str
) -> None:
    (reason,) = refusals(grounds, offer)
    assert said in reason


def test_what_one_answer_says_twice_is_taken_once(grounds: Grounds) -> None:
    twice = refusals(grounds, config("a"), config("b"), config("a", value=8))
    assert twice[0] == ""
    assert "b is the same change as a: a waits to be tried" in twice[1]
    assert "the name a is that of another lever" in twice[2]


def test_without_a_list_of_fields_the_incumbents_own_are_known(grounds: Grounds) -> None:
    bare = replace(grounds, fields={})
    assert refusals(bare, config()) == [""]
    assert "the engine has no field moe" in refusals(bare, config(field="moe", value="x"))[0]
    assert "of another kind" in refusals(bare, config(value="many"))[0]


def test_a_patch_is_handed_over_once_it_passed_the_quarantine(grounds: Grounds) -> None:
    taken: list[str] = []

    def take(offer: Patch) -> Lever:
        taken.append(offer.diff)
        return lever(offer.name, {"patch": "ab" * 32}, kind="patch", hot=False)

    wide = replace(grounds, kinds=("config", "head", "patch"))
    (one,) = judge(read(answer(patch())), wide, take)
    assert one.admitted, one.reason
    judge(read(answer(patch("engine/suite.py"))), wide, take)
    assert len(taken) == 1


# ---------------------------------------------------------------- patches


@pytest.mark.parametrize("path", ["kernels/moe.py", "engine/device/layers.py"])
def test_a_patch_of_the_engine_may_pass(path: str) -> None:
    assert quarantine.check(DIFF.format(path=path)) == (path,)


@pytest.mark.parametrize(
    "diff",
    [
        "", "hello", "--- a/engine/rows.py\n+++ b/engine/rows.py\n",
        DIFF.format(path="flywheel/loop/judge.py"), DIFF.format(path="/etc/passwd"),
        DIFF.format(path="engine/../flywheel/x.py"), DIFF.format(path="engine/assets/x.json"),
        DIFF.format(path="kernels/oracle/moe.py"), DIFF.format(path="engine/run.sh"),
        DIFF.format(path="engine/rows.py") + DIFF.format(path="tests/cpu/test_state.py"),
        "diff --git a/engine/rows.py b/tests/conftest.py\n" + DIFF.format(path="engine/rows.py"),
        "rename from engine/suite.py\nrename to engine/x.py\n" + DIFF.format(path="engine/rows.py"),
        "new file mode 120000\n" + DIFF.format(path="engine/rows.py"),
        "GIT binary patch\n" + DIFF.format(path="engine/rows.py"),
        DIFF.format(path="engine/rows.py") + "+x" * LIMIT_BYTES,
    ],
)
def test_a_patch_that_reaches_further_is_refused(diff: str) -> None:
    with pytest.raises(LeverError):
        quarantine.check(diff)


def test_a_change_behind_ones_back_is_seen(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("1")
    extra = tmp_path.parent / "PRIORITY"
    before = quarantine.fingerprints([tmp_path], [extra])
    assert quarantine.changed(before, quarantine.fingerprints([tmp_path], [extra])) == ()
    (tmp_path / "a.py").write_text("2")
    (tmp_path / "b.py").symlink_to("a.py")
    after = quarantine.fingerprints([tmp_path], [extra])
    assert quarantine.changed(before, after) == (str(tmp_path / "a.py"), str(tmp_path / "b.py"))


# ---------------------------------------------------------------- who is asked


def attempt(number: int, outcome: str, *, phase: int | None = 1, who: str = "a",
            when: str = NOW, retry_s: float | None = None) -> AttemptRow:  # fmt: skip
    return AttemptRow(
        number, 1, phase, who, outcome, "why", retry_s, 0, 0, (), {}, "t", "s", 1.0, when
    )


TERMS = Terms(attempts=3, failures=2, limits=3, pauses_s=(60.0, 600.0))


def test_nobody_is_asked_where_nobody_is() -> None:
    found = following([], 1, (), TERMS, NOW)
    assert found == Nobody("nobody is there to propose a lever")


def test_who_was_asked_least_goes_first() -> None:
    past = [attempt(1, "answered", phase=1)]
    assert following(past, 2, ("a", "b"), TERMS, NOW) == Ask("b")
    assert following([], 2, ("a", "b"), TERMS, NOW) == Ask("a")


def test_who_had_nothing_to_say_is_not_asked_again_in_the_phase() -> None:
    past = [attempt(1, "answered")]
    assert following(past, 1, ("a",), TERMS, NOW) == Nobody("a proposed nothing new")
    assert following(past, 2, ("a",), TERMS, NOW) == Ask("a")


def test_a_failure_is_tried_again_and_two_are_enough_for_the_phase() -> None:
    assert following([attempt(1, "failed")], 1, ("a",), TERMS, NOW) == Ask("a")
    twice = [attempt(1, "failed"), attempt(2, "failed")]
    assert following(twice, 1, ("a",), TERMS, NOW) == Nobody("a failed: why")


def test_the_budget_of_attempts_is_the_campaigns() -> None:
    past = [attempt(n, "answered", phase=n) for n in (1, 2, 3)]
    assert following(past, 4, ("a",), TERMS, NOW) == Nobody("a had its 3 attempts")
    others = [replace(a, outcome=o) for a, o in zip(past, ("limited", "stopped", "answered"),
                                                    strict=True)]  # fmt: skip
    assert following(others, 4, ("a",), TERMS, NOW) == Ask("a")


def test_a_limit_is_waited_out_for_longer_and_longer_and_costs_no_attempt() -> None:
    one = [attempt(1, "limited")]
    assert following(one, 1, ("a",), TERMS, NOW) == Later(
        "2026-11-28T22:01:00Z", "a is at its usage limit until 2026-11-28T22:01:00Z"
    )
    assert following(one, 1, ("a",), TERMS, "2026-11-28T22:01:00Z") == Ask("a")
    two = [*one, attempt(2, "limited")]
    later = following(two, 1, ("a",), TERMS, NOW)
    assert isinstance(later, Later)
    assert later.not_before_utc == "2026-11-28T22:10:00Z"
    assert following(one, 1, ("a",), TERMS, None) == Ask("a")


def test_a_limit_that_says_how_long_is_believed_and_others_are_asked_meanwhile() -> None:
    past = [attempt(1, "limited", retry_s=3600.0)]
    later = following(past, 1, ("a",), TERMS, NOW)
    assert isinstance(later, Later)
    assert later.not_before_utc == "2026-11-28T23:00:00Z"
    assert following(past, 1, ("a", "b"), TERMS, NOW) == Ask("b")


def test_a_limit_that_never_ends_ends_the_asking() -> None:
    past = [attempt(n, "limited") for n in (1, 2, 3)]
    assert following(past, 1, ("a",), TERMS, NOW) == Nobody("a is at its usage limit")
    # Another phase is another day.
    assert following(past, 2, ("a",), TERMS, "2026-11-29T22:00:00Z") == Ask("a")


# ---------------------------------------------------------------- names, and a script


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("claude=my-agent --fast", "claude"), ("/opt/bin/My_Agent.sh x", "my_agent"),
        ("python -m tools.propose.ideas", "ideas"), ("scripted f.json", "scripted"),
    ],
)
def test_a_proposer_has_a_name(text: str, name: str) -> None:
    assert parse(text).name == name


def test_a_path_from_here_means_that_file_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ideas.json").write_text("{}")
    found = parse("scripted ideas.json")
    assert found.argv[-2:] == ("flywheel.propose.scripted", str(tmp_path / "ideas.json"))


@pytest.mark.parametrize("text", ["", "  ", "'open", "a="])
def test_what_is_no_command_is_a_mistake(text: str) -> None:
    with pytest.raises(UsageError):
        parse(text)


def test_two_of_one_name_are_a_mistake() -> None:
    with pytest.raises(UsageError, match="two proposers are named x"):
        parse_all(["x=a", "x=b"])


def test_a_script_answers_one_after_another_and_by_what_has_won() -> None:
    script = {"answers": [
        {"levers": [config("a", when={"moe": "fused"}), config("b")]}, {"limited": {}},
    ]}  # fmt: skip
    def say(attempt: int, **won: object) -> dict[str, Any]:
        return scripted(script, {"attempt": attempt, "incumbent": {"config": won}})

    assert [x["name"] for x in say(1)["levers"]] == ["b"]
    assert [x["name"] for x in say(1, moe="fused")["levers"]] == ["a", "b"]
    assert "when" not in say(1, moe="fused")["levers"][0]
    assert say(2) == say(9) == {"limited": {}}


def test_the_repositorys_own_ideas_are_of_the_right_form() -> None:
    script = json.loads((Path(__file__).parents[2] / "experiments/ideas.json").read_text())
    for number in range(1, len(script["answers"]) + 1):
        config_ = {"verify_policy": "margin", "draft_width": 2}
        said = scripted(script, {"attempt": number, "incumbent": {"config": config_}})
        assert read(json.dumps(said)).errors == ()


def test_no_view_of_an_empty_ledger_has_attempts(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path / "ledger.db")
    with ledger.reading() as connection:
        assert (views.load(connection).attempts, views.load(connection).sweeps) == ((), ())
    ledger.close()
