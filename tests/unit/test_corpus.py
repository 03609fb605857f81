"""The corpus: the same bytes each time, suite prompts kept out, shapes a trainer can rely on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from engine import chat
from engine.suite import ASSETS, PLANS, Plan, candidates, distinct_4gram
from engine.tokenizer import Tokenizer
from engine.train.corpus import build, overlap
from engine.train.corpus.chat_sample import CATEGORIES, stream
from engine.train.corpus.command import main
from engine.train.corpus.phrase import say

TOKENIZER = Tokenizer.load(ASSETS / "tiny-v4")


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    assert main(["--smoke", "--out", str(folder)]) == 0
    return folder


def test_two_builds_are_byte_identical(smoke: Path, tmp_path: Path) -> None:
    # Another process with another hash seed: no set or dict order may leak into the bytes.
    command = [sys.executable, "-m", "engine.train.corpus", "--smoke", "--out", str(tmp_path)]
    subprocess.run(
        command, check=True, env={"PYTHONHASHSEED": "7", "PATH": ""}, capture_output=True
    )
    for name in ("train.u16.bin", "heldout.u16.bin", "corpus.json"):
        assert (tmp_path / name).read_bytes() == (smoke / name).read_bytes()


def test_documents_start_with_bos_end_with_eos_and_fit(smoke: Path) -> None:
    card = json.loads((smoke / "corpus.json").read_text())
    for name in ("train", "heldout"):
        ids = np.fromfile(smoke / f"{name}.u16.bin", dtype="<u2")
        starts = np.flatnonzero(ids == TOKENIZER.bos_id)
        assert starts[0] == 0
        assert len(starts) == card["files"][name]["documents"]
        assert len(ids) == card["files"][name]["tokens"]
        ends = np.append(starts[1:], len(ids)) - 1
        assert (ids[ends] == TOKENIZER.eos_id).all()
        assert np.diff(np.append(starts, len(ids))).max() <= build.CONTEXT
        assert ids.max() < card["vocab_size"]


def test_card_names_every_source_with_licence_and_hash(smoke: Path) -> None:
    card = json.loads((smoke / "corpus.json").read_text())
    names = [s["name"] for s in card["sources"]]
    assert {f"chats/{c}" for c in CATEGORIES} <= set(names)
    assert "python-stdlib" in names
    for source in card["sources"]:
        assert source["licence"]
        assert len(source["sha256"]) == 64
        assert source["tokens"] > 0
    assert sum(s["tokens"] for s in card["sources"]) == sum(
        f["tokens"] for f in card["files"].values()
    )


def test_no_suite_prompt_is_covered_by_the_corpus(smoke: Path) -> None:
    card = json.loads((smoke / "corpus.json").read_text())
    for plan in PLANS:
        assert card["suites"][plan.name]["max"] < 1


def test_overlap_sees_an_exact_copy() -> None:
    text = list(range(100, 140))
    assert overlap.overlap([text], [[0, *text, 1]])["max"] == 1.0
    assert overlap.overlap([text], [[0, *text[:-1], 1]])["max"] < 1.0
    assert overlap.overlap([text], [list(range(500, 600))])["max"] == 0.0


def test_covered_text_is_uncovered_by_dropping_documents() -> None:
    text = list(range(100, 140))
    documents = [[0, *text, 1], list(range(20))]
    assert overlap.uncover([text], [documents]) == 1
    assert documents == [list(range(20))]
    assert overlap.uncover([text], [documents]) == 0


def test_suite_prompts_never_come_from_training_seeds() -> None:
    held = build.suite_prompts(TOKENIZER)
    for plan in PLANS:
        assert len(set(held[plan.name])) == plan.per_category * len(CATEGORIES)
    for category in CATEGORIES:
        assert stream("train", category, 0).random() != stream("suite", category, 0).random()


@pytest.mark.parametrize("plan", PLANS, ids=lambda p: p.name)
def test_reference_answers_of_the_suites_would_count(plan: Plan) -> None:
    for _, sample in candidates(plan, TOKENIZER):
        answer = _answer(sample)
        assert 225 <= len(answer) < 600
        assert distinct_4gram(answer) >= 0.7


def _answer(sample: build.Chat) -> list[int]:
    prompt = chat.encode(TOKENIZER, sample.prompt, thinking=sample.thinking)
    whole = build.chat_ids(TOKENIZER, sample)
    assert whole[: len(prompt)] == prompt
    return whole[len(prompt) :]


def test_phrases_expand_inside_out_and_leave_slot_values_alone() -> None:
    rng = stream("test", "phrase", 0)
    got = {say(rng, "[a|b [c|d]] {x}", x="[1|2]") for _ in range(50)}
    assert got == {"a [1|2]", "b c [1|2]", "b d [1|2]"}


def test_bad_arguments_end_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = tmp_path / "wrong.tar.gz"
    archive.write_bytes(b"x")
    assert main(["--smoke", "--out", str(tmp_path), "--english", str(archive)]) == 2
    assert "not the pinned" in capsys.readouterr().err.replace("\n", " ")
    assert main(["--scale", "0", "--out", str(tmp_path)]) == 2
