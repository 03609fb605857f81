"""Corpus, regeneration and capture on the embedded checkpoint: balanced, whole, resumable."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import torch

from engine.config import EngineConfig
from engine.errors import ConfigError, NumericsError
from engine.geometry import Geometry
from engine.heads import capture, corpus, regenerate
from engine.heads.captured import Captured, Draw
from engine.heads.recorded import Ahead
from engine.heads.source import EngineSource, States, prove_deterministic
from engine.heads.stage import Stage, StageRefused, require
from engine.suite import ASSETS, CATEGORIES, Suite
from engine.tokenizer import Tokenizer

TINY = ASSETS / "tiny-v4"
CONFIG = EngineConfig()


def copied(folder: Path, to: Path) -> Path:
    shutil.copytree(folder, to)
    return to


# -- stages ------------------------------------------------------------------------------------


def test_an_end_of_any_kind_leaves_a_card_with_its_outcome(tmp_path: Path) -> None:
    for error, outcome in (
        (StageRefused("no"), "refused"), (KeyboardInterrupt(), "stopped"), (OSError("x"), "failed")
    ):  # fmt: skip
        with pytest.raises(type(error)), Stage(tmp_path, "work", {"n": 1}):
            raise error
        assert json.loads((tmp_path / "card.json").read_text())["outcome"] == outcome
        with pytest.raises(StageRefused, match=outcome):
            require(tmp_path, "work")
    with Stage(tmp_path, "work", {"n": 1}) as stage:
        (tmp_path / "made").write_text("1")
        stage.finish(("made",), {})
    assert require(tmp_path, "work")["outcome"] == "ok"
    assert Stage(tmp_path, "work", {"n": 1}).done


def test_a_folder_begun_with_another_request_is_refused_by_the_field(tmp_path: Path) -> None:
    with Stage(tmp_path, "work", {"n": 1, "m": 2}) as stage:
        stage.finish((), {})
    with pytest.raises(StageRefused, match=r"another n \(1, now 3\)"), Stage(
        tmp_path, "work", {"n": 3, "m": 2}
    ):  # fmt: skip
        pass


def test_a_file_that_changed_after_its_stage_is_named(tmp_path: Path) -> None:
    with Stage(tmp_path, "work", {}) as stage:
        (tmp_path / "made").write_text("1")
        stage.finish(("made",), {})
    (tmp_path / "made").write_text("2")
    with pytest.raises(StageRefused, match="made is not the file"):
        require(tmp_path, "work")


# -- corpus ------------------------------------------------------------------------------------


def test_the_corpus_is_balanced_and_takes_its_categories_in_turn(prompts: Path) -> None:
    found = corpus.load(prompts)
    assert [p.category for p in found] == list(CATEGORIES) * 2
    assert len({p.id for p in found}) == len(found)
    facts = require(prompts, "corpus")["facts"]
    assert facts["licences"] == ["Apache-2.0"]
    assert facts["overlap"]["shared"] == 0


def test_no_prompt_shares_an_ngram_with_what_heads_are_judged_by(prompts: Path) -> None:
    tokenizer = Tokenizer.load(TINY)
    held = corpus.forbidden(tokenizer, corpus.SUITES)
    for prompt in corpus.load(prompts):
        assert not held & set(corpus.grams(tokenizer.encode(corpus.user_text(prompt.messages))))


def test_a_prompt_of_the_suite_is_refused_from_foreign_chats(tmp_path: Path) -> None:
    suite = Suite.load(corpus.SUITES[0])
    lines = [
        {"category": p.category, "messages": [dict(m) for m in p.messages], "licence": "CC0-1.0",
         "source": "there", "thinking": p.thinking}
        for p in suite.prompts
    ]  # fmt: skip
    chats = tmp_path / "chats.jsonl"
    chats.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(StageRefused, match=r"gives 0 of 1 prompts .* refused for sharing one"):
        corpus.build(tmp_path / "out", TINY, per_category=1, chats=chats)


def test_foreign_chats_need_a_licence(tmp_path: Path) -> None:
    chats = tmp_path / "chats.jsonl"
    chats.write_text('{"category": "reasoning", "messages": [], "source": "there"}\n')
    with pytest.raises(ConfigError, match="line 1, is no prompt with a licence"):
        corpus.build(tmp_path / "out", TINY, per_category=1, chats=chats)


# -- regeneration ------------------------------------------------------------------------------


def test_replies_follow_their_prompts_and_end_at_eos_or_the_limit(sequences: Path) -> None:
    eos = Geometry.load(TINY).eos_token_id
    made = regenerate.load(sequences)
    for sample in made:
        assert sample.ids[: len(sample.prompt)] == sample.prompt
        assert (sample.reply[-1] == eos) == (sample.stop == "eos")
        assert eos not in sample.reply[:-1]
    assert require(sequences, "regenerate")["facts"]["sequences"] == len(made) == 3


def test_an_interrupted_regeneration_goes_on_to_the_same_sequences(
    prompts: Path, sequences: Path, tmp_path: Path
) -> None:
    whole = (sequences / regenerate.FILE).read_text()
    again = copied(sequences, tmp_path / "again")
    (again / "card.json").unlink()
    (again / regenerate.FILE).write_text(whole[: whole.index("\n") + 40])
    regenerate.regenerate(
        again, prompts, TINY, config=CONFIG, temperature=1.0, max_new_tokens=40, limit=3, workers=2
    )
    assert (again / regenerate.FILE).read_text() == whole


def test_replies_too_short_to_train_on_are_refused_before_anything_is_made(
    prompts: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"under 16 tokens .*--max-new-tokens 15"):
        regenerate.regenerate(
            tmp_path / "s", prompts, TINY, config=CONFIG, temperature=1.0, max_new_tokens=15
        )
    assert not (tmp_path / "s").exists()


def test_a_sequence_that_does_not_begin_as_its_prompt_is_refused(
    prompts: Path, sequences: Path, tmp_path: Path
) -> None:
    again = copied(sequences, tmp_path / "again")
    (again / "card.json").unlink()
    lines = [json.loads(line) for line in (again / regenerate.FILE).read_text().splitlines()]
    lines[0]["prompt"][3] += 1
    (again / regenerate.FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(StageRefused, match="does not begin with its prompt"):
        regenerate.regenerate(
            again, prompts, TINY, config=CONFIG, temperature=1.0, max_new_tokens=40, limit=3
        )


def test_loops_and_stubs_are_not_learned_from() -> None:
    def sample(reply: list[int]) -> regenerate.Sample:
        return regenerate.Sample("a", "reasoning", (0, 2), tuple(reply), "length", 0.0, 1)

    assert sample(list(range(2, 60))).fit
    assert not sample([5, 6] * 30).fit
    assert not sample([5, 6, 7]).fit


# -- capture -----------------------------------------------------------------------------------


def test_a_capture_holds_the_states_of_every_position(captured: Path, sequences: Path) -> None:
    g = Geometry.load(TINY)
    made = regenerate.load(sequences)
    data = Captured(captured)
    assert len(data) == len(made)
    source = EngineSource(TINY, CONFIG)
    for number, sample in enumerate(made):
        item = data.item(number)
        assert item.ids.tolist() == list(sample.ids)
        assert item.prompt == len(sample.prompt)
        assert item.taps.shape == (len(sample.ids) - 1, 3 * g.hidden_size)
        states = source.run(sample.ids[:-1])
        assert torch.equal(item.taps, states.taps.bfloat16())
        assert torch.equal(item.hidden, states.hidden.bfloat16())
    facts = require(captured, "capture")["facts"]
    assert facts["agreement"] == 1.0
    assert facts["bytes_per_token"] == 4 + 2 * 4 * g.hidden_size


def test_an_interrupted_capture_keeps_its_shards(
    captured: Path, sequences: Path, tmp_path: Path
) -> None:
    again = copied(captured, tmp_path / "again")
    (again / "card.json").unlink()
    shards = json.loads((again / capture.INDEX).read_text())
    (again / capture.INDEX).write_text(json.dumps(shards[:1]))
    (again / shards[1]["name"]).write_bytes(b"half")
    kept = (again / shards[0]["name"]).stat().st_mtime_ns
    capture.capture(again, sequences, TINY, EngineSource(TINY, CONFIG), per_shard=2)
    assert json.loads((again / capture.INDEX).read_text()) == shards
    assert (again / shards[0]["name"]).stat().st_mtime_ns == kept


class Faulty(EngineSource):
    """The engine's states, spoilt in one way."""

    def __init__(self, fault: str) -> None:
        super().__init__(TINY, CONFIG)
        self._fault, self._calls = fault, 0

    def run(self, ids) -> States:  # type: ignore[no-untyped-def]
        states = States(*(part.clone() for part in super().run(ids)))
        self._calls += 1
        if self._fault == "race" and len(ids) > 200:
            states.taps[7, 3] += self._calls * 1e-3
        if self._fault == "nan" and len(ids) < 300:
            states.hidden[2, 5] = float("nan")
        if self._fault == "zeros":
            states.taps[4] = 0
        if self._fault == "shift":
            return States(states.taps, states.hidden.roll(1, 0))
        return states


@pytest.mark.parametrize(
    ("fault", "said", "kind"),
    [
        ("race", "gives other bits the second time at 259 tokens", NumericsError),
        ("nan", "are not finite", NumericsError),
        ("zeros", "states of zeros alone", StageRefused),
        ("shift", "are not the states of these sequences", StageRefused),
    ],
)
def test_states_that_cannot_be_trusted_are_refused(
    fault: str, said: str, kind: type[Exception], sequences: Path, tmp_path: Path
) -> None:
    with pytest.raises(kind, match=said):
        capture.capture(tmp_path, sequences, TINY, Faulty(fault), per_shard=2)


def test_the_forward_repeats_itself_at_every_length_around_the_window() -> None:
    proved = prove_deterministic(EngineSource(TINY, CONFIG), 300)
    assert sorted(proved) == [5, 127, 128, 129, 259, 300]
    assert len(set(proved.values())) == len(proved)


def test_a_share_of_a_capture_is_its_first_sequences(captured: Path) -> None:
    assert len(Captured(captured, share=0.67)) == 2


def test_batches_are_a_function_of_seed_and_number(captured: Path) -> None:
    data, again = Captured(captured), Captured(captured)
    third = data.batch(3, Draw(2, 4, 5))
    same = again.batch(3, Draw(2, 4, 5))
    other = again.batch(3, Draw(2, 4, 6))
    assert torch.equal(third.taps, same.taps)
    assert torch.equal(third.anchors, same.anchors)
    assert not torch.equal(third.anchors, other.anchors)
    prompts = {tuple(i.ids[:20].tolist()): i.prompt for i in map(data.item, range(len(data)))}
    for row, anchors, length in zip(third.ids, third.anchors, third.lengths, strict=True):
        assert (anchors >= prompts[tuple(row[:20].tolist())] - 1).all()
        assert (anchors <= length - 3).all()


def test_batches_that_are_made_ahead_are_the_same_in_memory_that_was_used(captured: Path) -> None:
    data = Captured(captured)
    ahead = Ahead(lambda number, room: data.batch(number, Draw(2, 4, 5, 64), room))
    for number in (0, 1, 2, 3, 7, 8, 2):  # in turn, and after a leap
        mine, fresh = ahead(number), data.batch(number, Draw(2, 4, 5, 64))
        assert mine.taps.shape[1] % 64 == 0
        for field in dataclasses.fields(fresh):
            held = getattr(mine, field.name)
            assert torch.equal(held, getattr(fresh, field.name)), (number, field.name)
            held.fill_(7)  # whatever lies there must not be met again
