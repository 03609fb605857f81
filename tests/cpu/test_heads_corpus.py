"""The corpus of heads: what shares an n-gram with a suite is said again; every kind is there."""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from engine.errors import ConfigError
from engine.heads import corpus, rewording
from engine.heads.command import main
from engine.heads.pace import Pace
from engine.heads.stage import StageRefused
from engine.suite import ASSETS, CATEGORIES, Suite
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
    suites = [Suite.load(path) for path in corpus.MEASURES]
    frame = re.compile("|".join(pattern for pattern, _ in rewording.SENTENCES[:2]))
    wanted = [p for s in suites for p in s.prompts if p.category == "agentic_format"]
    assert all(frame.search(corpus.user_text(p.messages)) for p in wanted)
    others = [o for _, found in rewording.SENTENCES[:2] for o in found]
    mine = asked(corpus.load(built), "agentic_format")
    assert sum(any(o in text for o in others) for text in mine) > len(mine) / 2


def test_nothing_that_was_said_again_shares_an_n_gram(built: Path) -> None:
    tokenizer = Tokenizer.load(TINY)
    held = corpus.forbidden(tokenizer, corpus.MEASURES)
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


def chat(category: str, text: str) -> dict[str, object]:
    """A line of a file of chats."""
    return {"category": category, "messages": [{"role": "user", "content": text}],
            "licence": "CC0-1.0", "source": "there"}  # fmt: skip


def test_what_heads_are_judged_by_elsewhere_is_kept_out_of_their_corpus(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = {c: " ".join(str(n * n) for n in range(k, 2000, 97)) for k, c in enumerate(CATEGORIES)}
    chats, judged = tmp_path / "chats.jsonl", tmp_path / "mine.json"
    chats.write_text("".join(json.dumps(chat(c, text)) + "\n" for c, text in said.items()))
    words = ["corpus", "--check", "--per-category", "1", "--chats", str(chats)]
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["prompts"] == len(CATEGORIES)
    asked = {"id": "x", "category": "reasoning", "thinking": True,
             "messages": [{"role": "user", "content": f"Well. {said['reasoning']}"}]}  # fmt: skip
    judged.write_text(json.dumps({"name": "mine", "version": 1, "prompts": [asked]}))
    assert main([*words, "--suite", str(judged)]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert "The category reasoning gives 0 of 1 prompts" in error
    assert {path.name for path in tmp_path.iterdir()} == {"chats.jsonl", "mine.json"}
    assert main(["corpus"]) == 2
    assert capsys.readouterr().err == "engine.heads: corpus needs --out, or --check.\n"


def whole(folder: Path, **fields: object) -> Path:
    """A file of one chat a category, each with these fields besides."""
    path = folder / "chats.jsonl"
    lines = [json.dumps({**chat(c, f"tell {c} of it"), **fields}) for c in CATEGORIES]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_a_chat_may_hold_every_mark_that_ends_a_line_elsewhere(tmp_path: Path) -> None:
    asked = chat("reasoning", "one\u2028two\x85three\x0cfour")
    path = whole(tmp_path)
    lines = [x for x in path.read_text().splitlines() if "reasoning" not in x]
    for number, ascii_ in enumerate((True, False)):
        text = json.dumps(asked, ensure_ascii=ascii_)
        path.write_text("\ufeff" + "\r\n".join([*lines, "", text, ""]), encoding="utf-8")
        out = tmp_path / str(number)
        made = corpus.build(out, TINY, per_category=1, chats=path)
        assert corpus.load(out) == made
        assert asked["messages"] in [list(p.messages) for p in made]


@pytest.mark.parametrize("place", ["system", "assistant", "developer"])
def test_what_heads_are_judged_by_is_found_in_every_message_of_a_chat(
    tmp_path: Path, place: str
) -> None:
    said = " ".join(str(n * n) for n in range(40))
    judged = tmp_path / "mine.json"
    blocks = [{"type": "text", "text": "Well.\n" + said.replace(" ", "\n")}]
    judged.write_text(json.dumps({"name": "mine", "version": 1, "prompts": [
        {"id": "x", "category": "reasoning", "thinking": True,
         "messages": [{"role": "user", "content": blocks}]}
    ]}))  # fmt: skip
    known = {"role": place, "content": said.replace(" ", "\n")}
    chats = whole(tmp_path, messages=[known, {"role": "user", "content": "Go on."}])
    with pytest.raises(StageRefused, match=r"gives 0 of 1 .* 1 were refused for sharing one"):
        corpus.fill(TINY, per_category=1, chats=chats, suites=[judged])


def test_a_given_chat_is_never_said_anew(tmp_path: Path) -> None:
    theirs = next(p for p in Suite.load(corpus.SUITES[0]).prompts if p.category == "agentic_format")
    mine = {"category": theirs.category, "messages": [dict(m) for m in theirs.messages],
            "licence": "CC0-1.0", "source": f"chats/{theirs.category}"}  # fmt: skip
    chats = tmp_path / "chats.jsonl"
    others = whole(tmp_path).read_text().splitlines()
    chats.write_text("\n".join([*(x for x in others if "agentic" not in x), json.dumps(mine)]))
    with pytest.raises(StageRefused, match="agentic_format gives 0 of 1"):
        corpus.fill(TINY, per_category=1, chats=chats)


def test_a_chat_that_leaves_no_room_for_an_answer_is_left_out(tmp_path: Path) -> None:
    chats = whole(tmp_path, messages=[{"role": "user", "content": "much " * 5000}])
    with pytest.raises(StageRefused, match="1 are too long to be answered"):
        corpus.fill(TINY, per_category=1, chats=chats)


def test_a_pipe_is_refused_and_not_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for words in (["--chats", str(pipe)], ["--suite", str(pipe)]):
        for more in (["--check"], ["--out", str(tmp_path / "out")]):
            assert main(["corpus", "--per-category", "1", *words, *more]) == 2
            assert "it is not a regular file" in capsys.readouterr().err


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


def test_a_generator_that_has_no_more_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = MAKERS["reasoning"](stream("heads", "reasoning", 0))
    monkeypatch.setitem(MAKERS, "reasoning", lambda _: sample)
    monkeypatch.setattr(corpus, "worth_asking", lambda *_: True)
    monkeypatch.setattr(corpus, "_BARREN", 20)
    tokenizer, pace = Tokenizer.load(TINY), Pace("corpus", 2, "prompts")
    with pytest.raises(StageRefused, match="reasoning gives 1 of 2 prompts"):
        corpus._fill("reasoning", corpus._made("reasoning"), tokenizer, frozenset(), 2, pace)
    monkeypatch.setattr(corpus, "worth_asking", lambda *_: False)
    assert list(corpus._made("reasoning")) == []


@pytest.mark.parametrize("count", [0, -1])
def test_a_corpus_of_nothing_is_refused_and_nothing_is_left(tmp_path: Path, count: int) -> None:
    with pytest.raises(ConfigError, match="a prompt or more"):
        corpus.build(tmp_path / "c", TINY, per_category=count)
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    "line",
    [
        {"messages": "abc"}, {"messages": [1]}, {"messages": [{"role": "user"}]},
        {"messages": [{"role": "user", "content": None}]}, {"licence": 5},
        {"thinking": "false"}, {"messages": [{"role": "user", "content": "half \ud800"}]},
        {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
    ],
)  # fmt: skip
def test_a_chat_that_is_no_text_is_named_by_its_line(
    tmp_path: Path, line: dict[str, object]
) -> None:
    entry = {"category": "long_context", "messages": [{"role": "user", "content": "hello"}],
             "licence": "CC0-1.0", "source": "there"}  # fmt: skip
    chats = tmp_path / "chats.jsonl"
    chats.write_text(json.dumps({**entry, **line}) + "\n")
    with pytest.raises(ConfigError, match="line 1, is no prompt"):
        corpus.build(tmp_path / "c", TINY, per_category=1, chats=chats)


def test_what_cannot_be_read_or_made_is_said_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = tmp_path / "file", str(tmp_path / "out")
    file.write_bytes(b"\xff\xfe\n")
    deep = tmp_path / "deep"
    deep.write_text("[" * 100_000)
    for words, said in (
        (["--out", out, "--chats", str(tmp_path / "none")], "Cannot read"),
        (["--out", out, "--chats", str(tmp_path)], "Cannot read"),
        (["--out", out, "--chats", str(file)], "not UTF-8"),
        (["--check", "--chats", str(deep)], "line 1, is no prompt"),
        (["--check", "--suite", str(deep)], "Cannot read the suite"),
        (["--out", out, "--checkpoint", str(tmp_path)], "Cannot read"),
        (["--out", str(file)], "cannot be made a folder"),
    ):
        assert main(["corpus", *words]) == 2
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1


def test_a_disk_that_is_full_is_said_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(corpus, "build", full)
    assert main(["corpus", "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err == "engine.heads: The disk: No space left on device.\n"
