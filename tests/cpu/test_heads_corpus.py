"""The corpus of heads: what shares an n-gram with a suite is said again; every kind is there."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from engine.heads import corpus, rewording
from engine.heads.stage import StageRefused
from engine.suite import ASSETS, Suite
from engine.tokenizer import Tokenizer
from engine.train.corpus.build import MAKERS
from engine.train.corpus.chat_sample import stream

TINY = ASSETS / "tiny-v4"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus") / "c"
    corpus.build(folder, TINY, per_category=24)
    return folder


def asked(prompts: Sequence[corpus.Prompt], category: str) -> list[str]:
    return [corpus.user_text(p.messages) for p in prompts if p.category == category]


def test_every_set_sentence_is_one_of_the_generators() -> None:
    categories = ("agentic_format", "code_gen", "reasoning", "multi_turn")
    said = "\n".join(
        corpus.user_text(MAKERS[c](stream("rewording", c, i)).prompt)
        for c in categories for i in range(300)
    )  # fmt: skip
    for pattern, others in rewording.SENTENCES:
        assert re.search(pattern, said), pattern
        assert not any(re.search(pattern, other) for other in others)


def test_plans_are_in_the_corpus_though_every_suite_asks_for_them(built: Path) -> None:
    suites = [Suite.load(path) for path in corpus.SUITES]
    frame = re.compile("|".join(pattern for pattern, _ in rewording.SENTENCES[:2]))
    wanted = [p for s in suites for p in s.prompts if p.category == "agentic_format"]
    assert all(frame.search(corpus.user_text(p.messages)) for p in wanted)
    others = [o for _, found in rewording.SENTENCES[:2] for o in found]
    mine = asked(corpus.load(built), "agentic_format")
    assert sum(any(o in text for o in others) for text in mine) >= 4


def test_nothing_that_was_said_again_shares_an_n_gram(built: Path) -> None:
    tokenizer = Tokenizer.load(TINY)
    held = corpus.forbidden(tokenizer, corpus.SUITES)
    for prompt in corpus.load(built):
        assert not corpus.shares(tokenizer.encode(corpus.user_text(prompt.messages)), held)
    overlap = json.loads((built / "card.json").read_text())["facts"]["overlap"]
    assert overlap["reworded"]["agentic_format"] > 0
    assert overlap["refused"]["code_edit"] > 0  # code of the suites' own functions stays out


def test_given_chats_keep_their_words(tmp_path: Path) -> None:
    suite = Suite.load(corpus.SUITES[0])
    theirs = next(p for p in suite.prompts if p.category == "agentic_format")
    chats = tmp_path / "chats.jsonl"
    chats.write_text(
        json.dumps(
            {"category": theirs.category, "messages": [dict(m) for m in theirs.messages],
             "licence": "Apache-2.0", "source": "someone"}
        )
        + "\n"
    )  # fmt: skip
    with pytest.raises(StageRefused, match="gives 0 of 1 prompts"):
        corpus.build(tmp_path / "c", TINY, per_category=1, chats=chats)


def test_only_the_user_s_words_change() -> None:
    messages = (
        {"role": "system", "content": "Add docstrings."},
        {"role": "user", "content": "Make a plan for 5 weeks. Add docstrings."},
        {"role": "assistant", "content": "Add docstrings."},
    )
    found = rewording.reworded(random.Random(1), messages)
    assert found[0] == messages[0]
    assert found[2] == messages[2]
    assert "5 weeks" in found[1]["content"]
    assert "Make a plan for" not in found[1]["content"]
    assert "Add docstrings." not in found[1]["content"]
