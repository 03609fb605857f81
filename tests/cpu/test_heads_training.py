"""Training, export and the arm as a whole, on states that the embedded checkpoint really held."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from engine.config import EngineConfig
from engine.engine import Engine
from engine.errors import CheckpointError, ConfigError
from engine.heads import (
    arm,
    bounds,
    compare,
    corpus,
    equivalence,
    export,
    losses,
    replay,
    retired,
)
from engine.heads.captured import Captured, Draw
from engine.heads.command import main
from engine.heads.equivalence import Agreement
from engine.heads.head import Head, is_draft, is_expert, raw_tensors
from engine.heads.losses import Drafted, Slots
from engine.heads.recipe import Recipe
from engine.heads.stage import StageRefused, require
from engine.heads.trainer import Trainer, train
from engine.sampling import Sampling
from engine.suite import ASSETS, Suite
from engine.train.forward import Forward

TINY = ASSETS / "tiny-v4"
CPU = torch.device("cpu")
SMALL = {"batch": 2, "anchors": 3, "steps": 6}


def recipe(**changes: object) -> Recipe:
    return Recipe.parse({**SMALL, **changes})


# -- the recipe --------------------------------------------------------------------------------


def test_a_recipe_refuses_what_it_does_not_know_or_cannot_do() -> None:
    for raw, said in (
        ({"beta": 1}, "Unknown recipe field 'beta'"),
        ({"steps": 0}, "steps must be an integer from 1"),
        ({"deficit": 1}, "deficit must be true or false"),
        ({"optimiser": "sgd"}, "one of adamw, muon"),
        ({"cross_entropy": 0, "total_variation": 0}, "above zero"),
        ({"rate": float("nan")}, "rate must be a number"),
    ):
        with pytest.raises(ConfigError, match=said):
            Recipe.parse(raw)


def test_the_rate_warms_up_and_falls_along_a_cosine() -> None:
    r = recipe(steps=100, warm_up=0.1)
    assert [r.factor(s) for s in (0, 4, 9)] == pytest.approx([0.1, 0.5, 1.0])
    assert r.factor(55) == pytest.approx(0.5)
    assert r.factor(100) == pytest.approx(0.0)
    assert all(r.factor(s) >= r.factor(s + 1) for s in range(9, 100))


# -- the losses --------------------------------------------------------------------------------


def test_deficit_weighs_blocks_by_what_is_rejected_and_caps_it() -> None:
    r = torch.tensor([[1.0, 0.5, 0.5, 0.0]])
    assert losses.deficit(r).tolist() == [[0.0, 1.0, 1.0, 2.0]]
    rare = torch.tensor([[1.0] * 9 + [0.0]])
    assert losses.deficit(rare)[0, -1] == 3.0
    assert losses.deficit(torch.ones(1, 4)).tolist() == [[1.0] * 4]


def distributions(*rows: list[float]) -> torch.Tensor:
    return torch.tensor([[list(rows)]])


def case(
    wanted: torch.Tensor, guess: torch.Tensor, accepted: list[bool], trust: list[float]
) -> tuple[Drafted, Slots]:
    ids = torch.zeros(1, 1, wanted.shape[2], dtype=torch.long)
    mine = Drafted(guess.log(), torch.tensor([[trust]]), torch.tensor([[accepted]]))
    return mine, Slots(ids, ids, wanted, torch.ones_like(ids, dtype=torch.bool))


def test_the_loss_is_the_sum_of_its_named_parts() -> None:
    wanted = distributions([0.5, 0.5], [0.9, 0.1])
    guess = distributions([0.25, 0.75], [0.9, 0.1])
    mine, where = case(wanted, guess, [True, False], [0.0, 0.0])
    r = Recipe(deficit=False, anchor=0.0, confidence=0.0, decay=1.0)
    share = torch.softmax(torch.tensor([0.0, -1.0]), 0)
    ce = -(wanted * guess.log()).sum(-1)[0, 0]
    tv = torch.tensor([0.25, 0.0])
    loss, parts = losses.total(r, mine, where, None)
    assert loss == pytest.approx(float((share * (0.1 * ce + 0.9 * tv)).sum()))
    assert float(parts["tv"]) == pytest.approx(0.125)
    assert float(parts["ce"]) == pytest.approx(float(ce.mean()))


def test_the_anchor_pulls_only_where_the_starting_head_was_right() -> None:
    here, there = distributions([0.8, 0.2]), distributions([0.5, 0.5])
    mine, where = case(here, here, [True], [0.0])
    apart = float((here * (here.log() - there.log())).sum())
    right, _ = case(here, there, [True], [0.0])
    wrong, _ = case(here, there, [False], [0.0])
    assert losses.anchor(mine, right, where, 5.0) == pytest.approx(apart)
    assert losses.anchor(mine, wrong, where, 5.0) == 0


def test_confidence_is_judged_only_where_every_draft_before_survived() -> None:
    half = distributions([0.5, 0.5], [0.5, 0.5], [0.5, 0.5])
    mine, where = case(half, half, [True, False, False], [9.0, -9.0, 9.0])
    assert losses.survival(mine, where, 5.0) < 1e-3  # the third slot was never reached
    wrong = dataclasses.replace(mine, trust=-mine.trust)
    assert losses.survival(wrong, where, 5.0) > 8


def test_slots_beyond_the_sequence_do_not_count(captured: Path) -> None:
    head, data = Head(TINY, CPU), Captured(captured)
    trainer = Trainer(head, data, recipe(anchor=0.0, confidence=0.0))
    batch = data.batch(0, Draw(2, 3, 1))
    last = batch.lengths[:, None] - 3
    at_end = dataclasses.replace(batch, anchors=last.expand(-1, 3))
    where = losses.slots(at_end, trainer.forward, head.weights, 5)
    assert where.real.tolist() == [[[True] + [False] * 4] * 3] * 2
    spoilt = dataclasses.replace(where, wanted=where.wanted.clone())
    spoilt.wanted[..., 1:, :] = 7.0
    mine = losses.drafted(head.weights, trainer._blocks(at_end), where)
    losses_seen = [losses.total(trainer.recipe, mine, w, None)[0] for w in (where, spoilt)]
    assert losses_seen[0] == losses_seen[1]


def test_from_a_slot_on_the_head_reads_its_own_drafts(captured: Path) -> None:
    head, data = Head(TINY, CPU), Captured(captured)
    trainer = Trainer(head, data, recipe())
    batch = data.batch(0, Draw(2, 8, 1))
    where = losses.slots(batch, trainer.forward, head.weights, 5)
    blocks = trainer._blocks(batch)
    with torch.no_grad():
        forced = losses.drafted(head.weights, blocks, where)
        free = losses.drafted(head.weights, blocks, where, hass_from=2)
    assert torch.equal(forced.log[..., :2, :], free.log[..., :2, :])
    assert not torch.equal(forced.log[..., 2:, :], free.log[..., 2:, :])
    # As long as every draft is the truth, own drafts and truth are one.
    assert torch.equal(forced.accepted, free.accepted)


# -- training ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"deficit": False, "anchor": 0.0, "confidence": 0.0},
        {"optimiser": "adamw", "hass_from": 1, "width": 3},
        {},
    ],
)
def test_every_kind_of_recipe_trains_and_leaves_the_experts_alone(
    changes: dict[str, object], captured: Path, tmp_path: Path
) -> None:
    head = Head(TINY, CPU)
    before = {n: t.clone() for n, t in head.native().items()}
    experts = head.weights.draft.stages[0].moe.w1.clone()
    trainer = Trainer(head, Captured(captured), recipe(**changes))
    history = train(trainer, save=tmp_path / "resume.pt")
    assert history[-1]["loss"] == history[-1]["loss"]
    moved = [n for n, t in head.native().items() if not torch.equal(t, before[n])]
    assert len(moved) > 40
    assert torch.equal(head.weights.draft.stages[0].moe.w1, experts)
    silent = {"mtp.0.ffn.gate.bias", "mtp.1.ffn.gate.bias", "mtp.2.ffn.gate.bias"}
    untrusted = {"mtp.2.confidence_head.proj.weight"} if changes.get("confidence") == 0.0 else set()
    assert set(trainer.without_gradient()) == silent | untrusted


def test_a_resumed_training_ends_in_the_same_bits(captured: Path, tmp_path: Path) -> None:
    straight = Trainer(Head(TINY, CPU), Captured(captured), recipe())
    train(straight, save=tmp_path / "a.pt")
    first = Trainer(Head(TINY, CPU), Captured(captured), recipe())
    for _ in range(3):
        first.step()
    first.save(tmp_path / "b.pt")
    second = Trainer(Head(TINY, CPU), Captured(captured), recipe())
    second.restore(tmp_path / "b.pt")
    train(second, save=tmp_path / "b.pt")
    assert torch.equal(straight.head.parameters.master, second.head.parameters.master)
    assert second.graded == straight.graded


def test_a_resume_file_of_two_ages_is_refused(captured: Path, tmp_path: Path) -> None:
    trainer = Trainer(Head(TINY, CPU), Captured(captured), recipe())
    trainer.step()
    trainer.step_number = 5
    trainer.save(tmp_path / "odd.pt")
    with pytest.raises(StageRefused, match="of step 5, its optimiser of another"):
        trainer.restore(tmp_path / "odd.pt")


def test_a_block_wider_than_the_head_s_is_refused(captured: Path) -> None:
    with pytest.raises(ConfigError, match="block of 5 slots"):
        Trainer(Head(TINY, CPU), Captured(captured), recipe(width=6))


@pytest.mark.slow
def test_one_sequence_can_be_learned_by_heart(captured: Path, tmp_path: Path) -> None:
    data = Captured(captured, share=0.01)
    head = Head(TINY, CPU)
    before = replay.replay_all(head, data, 5)[0].tau
    many = recipe(steps=40, batch=1, anchors=16, anchor=0.0, confidence=0.0)
    train(Trainer(head, data, many), save=tmp_path / "resume.pt")
    assert replay.replay_all(head, data, 5)[0].tau > before * 3 / 2


# -- equivalence -------------------------------------------------------------------------------


def test_training_and_engine_draft_alike_from_the_same_states(captured: Path) -> None:
    agreed = equivalence.measure(Head(TINY, CPU), Captured(captured), anchors=6)
    assert agreed.drafted == 3 * 6 * 5
    assert agreed.share > 0.98


def test_a_training_forward_that_is_another_one_is_refused(
    captured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StageRefused, match=r"89\.0% of the engine's own tokens"):
        Agreement(89, 100).require()
    Agreement(90, 100).require()
    # A head whose main projection is lost in training only: the gate must see it.
    head = Head(TINY, CPU)
    true = equivalence.by_engine
    other = Head(TINY, CPU)
    other.weights.draft.main_proj.data.zero_()
    monkeypatch.setattr(equivalence, "by_engine", lambda _, i, a: true(other, i, a))
    with pytest.raises(StageRefused, match="are needed to train"):
        equivalence.measure(head, Captured(captured)).require()


# -- export ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made(captured: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("arm")
    arm.make(out, captured, TINY, recipe(steps=8, rate=1e-2), device=CPU, save_every=3)
    return out


def test_an_arm_leaves_weights_metrics_and_a_card(made: Path) -> None:
    metrics = json.loads((made / arm.METRICS).read_text())
    card = require(made, "train")
    assert card["files"][export.FILE]["sha256"] == metrics["export"]["sha256"]
    assert metrics["trained_tensors"] == 72
    assert len(metrics["without_gradient"]) == 3
    assert metrics["equivalence"]["equal"] >= 0.9 * metrics["equivalence"]["drafted"]
    assert not (made / arm.RESUME).exists()


def test_the_experts_are_copied_byte_for_byte(made: Path) -> None:
    stock, ours = raw_tensors(TINY, is_draft), raw_tensors(made, is_draft)
    assert stock.keys() == ours.keys()
    experts = [n for n in stock if is_expert(n)]
    assert experts
    for name in experts:
        assert torch.equal(stock[name].view(torch.uint8), ours[name].view(torch.uint8))
    assert any(not torch.equal(stock[n].view(torch.uint8), ours[n].view(torch.uint8))
               for n in stock if not is_expert(n))  # fmt: skip


def test_scales_are_made_fresh_for_the_trained_values() -> None:
    head = Head(TINY, CPU)
    name = "mtp.1.attn.wq_b.weight"
    masters = head.masters() | {name: head.masters()[name] * 64}
    disk, lost = export.encode(masters, head.raw, head.geometry)
    exponent = disk["mtp.1.attn.wq_b.scale"].view(torch.uint8).int()
    assert torch.equal(exponent, head.raw["mtp.1.attn.wq_b.scale"].view(torch.uint8).int() + 6)
    assert lost[name] < 0.05


def test_a_tensor_that_its_format_would_change_too_much_refuses_the_export() -> None:
    head = Head(TINY, CPU)
    name = "mtp.2.attn.wkv.weight"
    spoilt = torch.full_like(head.masters()[name], 1e-11)
    with pytest.raises(CheckpointError, match=rf"{name} loses .* nothing was exported"):
        export.encode(head.masters() | {name: spoilt}, head.raw, head.geometry)
    spoilt[0, 0] = float("inf")
    with pytest.raises(CheckpointError, match=rf"{name} holds values that are not finite"):
        export.encode(head.masters() | {name: spoilt}, head.raw, head.geometry)


def test_a_separate_head_and_an_installed_one_give_the_same_rounds(
    made: Path, tmp_path: Path
) -> None:
    export.install(TINY, made, tmp_path / "whole")
    ids = [0, *range(40, 90)]

    def rounds(engine: Engine) -> list[tuple[int, ...]]:
        return [c.tokens for c in engine.generate(ids, max_new_tokens=40)]

    config = EngineConfig()
    separate = rounds(Engine.load(TINY, config, head=made))
    installed = rounds(Engine.load(tmp_path / "whole", config))
    stock = rounds(Engine.load(TINY, config))
    assert separate == installed
    flat = [[t for part in found for t in part] for found in (separate, stock)]
    assert flat[0] == flat[1]  # lossless: a head changes the rounds, never the text
    with pytest.raises(CheckpointError, match="exists already"):
        export.install(TINY, made, tmp_path / "whole")


def test_a_head_that_does_not_fit_is_not_installed(made: Path, small: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="does not fit"):
        export.install(small, made, tmp_path / "whole")
    assert not (tmp_path / "whole").exists()


# -- the command -------------------------------------------------------------------------------


def test_the_command_says_what_is_wrong_in_one_sentence(
    captured: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    assert main(["train", "--capture", str(tmp_path), "--out", out]) == 2
    assert "holds no finished stage capture" in capsys.readouterr().err
    wrong = ["train", "--capture", str(captured), "--out", out, "--recipe", '{"x": 1}']
    assert main(wrong) == 2
    assert "Unknown recipe field 'x'" in capsys.readouterr().err


def test_with_json_standard_output_is_one_document(
    captured: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A stage tells how far it is; that goes elsewhere."""
    recipe = json.dumps({**SMALL, "steps": 1})
    words = ["train", "--capture", str(captured), "--out", str(tmp_path / "arm"), "--json"]
    assert main([*words, "--recipe", recipe]) == 0
    out, err = capfd.readouterr()
    assert json.loads(out)["steps"] == 1
    assert "gradients: " in err


def test_replay_counts_the_rounds_that_the_engine_takes(captured: Path) -> None:
    head, data = Head(TINY, CPU), Captured(captured)
    engine = Engine.load(TINY, EngineConfig())
    item = data.item(0)
    prompt = item.ids[: item.prompt].tolist()
    commits = list(engine.generate(prompt, max_new_tokens=len(item.ids) - item.prompt))
    found = replay.replay_all(head, data, 5, limit=1)[0]
    assert found.tokens == sum(len(c.tokens) for c in commits) - 1
    assert found.rounds == len(commits) - 1


# -- figures -----------------------------------------------------------------------------------


def test_two_heads_are_compared_on_equal_tokens_by_category(made: Path) -> None:
    suite = Suite.load(corpus.SUITES[0])
    prompts = ["agentic_format-0"]
    for temperature in (0.0, 1.0):
        pairs = compare.compare(
            TINY, made, suite, config=EngineConfig(), temperature=temperature,
            max_new_tokens=201, prompts=prompts,
        )  # fmt: skip
        assert [p.made for p in pairs] == [200]
        assert 34 <= pairs[0].stock <= 200
        assert 34 <= pairs[0].head <= 200
    lines = compare.table(pairs)
    assert [line.name for line in lines] == ["agentic_format", "all"]
    assert compare.as_json(pairs)["lines"][0]["low"] is None


def test_a_table_s_band_is_that_of_the_paired_difference() -> None:
    pairs = [
        compare.Pair(f"p{i}", "c", 120, stock, head)
        for i, (stock, head) in enumerate([(60, 50), (40, 30), (30, 28)])
    ]
    line = compare.table(pairs)[-1]
    assert (line.stock, line.head) == pytest.approx((3.0, (2.4 + 4 + 120 / 28) / 3))
    apart = [0.4, 1.0, 120 / 28 - 4]
    middle = sum(apart) / 3
    half = 4.302653 * (sum((a - middle) ** 2 for a in apart) / 2 / 3) ** 0.5
    assert (line.low, line.high) == pytest.approx((middle - half, middle + half))


@pytest.mark.slow
def test_bounds_tell_what_is_learned_by_heart_from_what_is_not(captured: Path) -> None:
    found = bounds.measure(
        TINY, Captured(captured), head=None, trained=2, device=CPU, steps=40, sequences=2
    )
    assert found.ceiling == 6.0
    assert found.by_heart > found.by_heart_before
    assert 0.3 < found.sure < 1
    assert found.binds() in (
        "the target's own doubt, or this architecture", "training: steps, rate or loss",
        "the corpus",
    )  # fmt: skip


# -- what was retired --------------------------------------------------------------------------


def test_a_tree_of_single_branches_is_the_chain(captured: Path) -> None:
    head, data = Head(TINY, CPU), Captured(captured)
    forward = Forward(head.geometry, CPU, rounding=True)
    for number in range(len(data)):
        item = data.item(number)
        chain = replay.replay(head, forward, item, 5)
        assert retired.tree_replay(head, forward, item, (1,) * 5) == chain
        wide = retired.tree_replay(head, forward, item, (3, 2, 1, 1, 1))
        assert wide.rounds <= chain.rounds
    assert retired.tree_rows((3, 2, 1)) == 3 + 6 + 6


def test_typical_acceptance_is_lossy_says_so_and_needs_a_temperature() -> None:
    engine = Engine.load(TINY, EngineConfig())
    prompt = [0, *range(40, 90)]
    found = retired.typical_decode(engine, "p", prompt, temperature=1.0, limit=60, seed=3)
    exact = list(engine.generate(prompt, max_new_tokens=60,
                                 sampling=Sampling(temperature=1.0, seed=3)))  # fmt: skip
    assert found.rounds <= len(exact) - 1 or found.same < found.tokens
    assert (found.same == found.tokens) == (found.taken == 0)
    with pytest.raises(ConfigError, match="needs a temperature above 0"):
        retired.typical_decode(engine, "p", prompt, temperature=0.0, limit=9, seed=3)
