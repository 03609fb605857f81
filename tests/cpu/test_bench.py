"""The benchmark at toy scale: it compares like with like, and says what it cannot do."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import QUICK, random_checkpoint

from engine import lease
from engine.bench.command import main
from engine.bench.contest import Sample
from engine.bench.session import Question, Session, by_category, identical, speedup, summary
from engine.bench.spread import Ratio, Spread, common_beginning, order
from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.geometry import Geometry
from engine.train.command import main as train

ASSETS = Path(__file__).parents[2] / "engine" / "assets" / "tiny-v4"
FAST = ["--prompts", "2", "--tokens", "12", "--repeats", "2", "--threads", "1"]
FASTER = ["--prompts", "1", "--repeats", "1"]  # where the numbers do not matter


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Ratios that transformers reads, and the vocabulary of the shipped tokenizer.
    other = {"compress_ratios": [4, 128, 0], "vocab_size": 4096, "dspark_noise_token_id": 9}
    folder = random_checkpoint(tmp_path_factory.mktemp("checkpoint"), QUICK | other)
    shutil.copy(ASSETS / "tokenizer.json", folder)
    return folder


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    prompts = [
        {"id": f"{c}-0", "category": c, "thinking": False,
         "messages": [{"role": "user", "content": f"Tell me of {c}."}]}
        for c in ("code_edit", "reasoning", "explanation")
    ]  # fmt: skip
    path = tmp_path_factory.mktemp("suite") / "suite.json"
    path.write_text(json.dumps({"name": "toy", "version": 1, "prompts": prompts}))
    return path


def measured(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    threads = torch.get_num_threads()
    try:
        assert main(["--json", *FAST, *arguments]) == 0
    finally:
        torch.set_num_threads(threads)
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_all_three_are_timed_on_the_same_text(
    checkpoint: Path, suite: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("transformers")
    found = measured(capsys, "--checkpoint", str(checkpoint), "--suite", str(suite))
    assert [line["name"] for line in found["lines"]] == ["plain", "speculative", "transformers"]
    assert all(line["times"]["samples"] == 4 for line in found["lines"])
    assert all(line["times"]["minimum"] > 0 for line in found["lines"])
    assert found["lossless"] == [2, 2]
    assert [row["category"] for row in found["categories"]] == ["code_edit", "explanation"]
    assert all(1 <= row["tau"] <= 6 for row in found["categories"])
    assert found["ratios"].keys() == {
        "speculative over plain", "plain over transformers", "speculative over transformers",
    }  # fmt: skip
    assert all(same == of for same, of in found["agreement"].values())
    assert found["peer_missing"] is None
    assert found["lines"][0]["weights_bytes"] < found["lines"][1]["weights_bytes"]


def test_a_held_device_is_one_sentence_with_its_holder_and_status_three(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with lease.held("flywheel run"):
        assert main(["--quick"]) == 3
        assert train(["all", "--smoke"]) == 3
    said = capsys.readouterr().err.splitlines()
    assert all(f"process {os.getpid()} (flywheel run" in line for line in said)
    assert len(said) == 2


def test_without_transformers_one_sentence_and_the_rest(
    checkpoint: Path,
    suite: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    found = measured(capsys, *FASTER, "--checkpoint", str(checkpoint), "--suite", str(suite))
    assert "transformers is not installed" in found["peer_missing"]
    assert [line["name"] for line in found["lines"]] == ["plain", "speculative"]
    assert found["agreement"] == {}


def test_the_page_for_people_has_the_numbers(
    checkpoint: Path, suite: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--no-peer", "--checkpoint", str(checkpoint), "--suite", str(suite)]
    assert main([*FAST, *FASTER, *arguments]) == 0
    page = capsys.readouterr().out
    assert "speculative over plain" in page
    assert "Speculative text equals plain text on 1 of 1 prompts." in page
    assert "switched off" in page


def test_a_mistake_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--checkpoint", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    (tmp_path / "c.json").write_text('{"drafts": 1}')
    assert main(["--config", str(tmp_path / "c.json")]) == 2
    assert "drafts" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--contexts", "0"], "--contexts goes with --synthetic"),
        (["--layers", "2"], "--layers goes with --synthetic"),
        (["--synthetic", "k160", "--checkpoint", "x"], "--checkpoint goes without --synthetic"),
    ],
)
def test_an_option_without_effect_is_refused(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--prompts", "\u00b2"], ["--prompts", "0"], ["--synthetic", "k160", "--lengths", "0"],
        ["--synthetic", "k160", "--contexts", "1,,2"],
        ["--synthetic", "k160", "--contexts", "9" * 99],
    ],
)  # fmt: skip
def test_a_number_that_cannot_be_is_refused_by_its_option(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 2
    assert f"argument {arguments[-2]}: must be" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU to time on")
@pytest.mark.parametrize("name", ["k160", ""])
def test_without_a_gpu_no_synthetic_model_is_timed(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--synthetic", name]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_context_that_does_not_hold_the_timings_is_refused() -> None:
    pytest.importorskip("triton")
    from engine.bench.synthetic import Options

    k160 = Geometry.named("k160")
    given = EngineConfig(dtype="bfloat16", context=4096)
    with pytest.raises(ConfigError, match=r"4096 tokens does not hold the timings, .* 132096"):
        Options("k160", config=given).resolved(k160)
    short = Options("k160", config=given, contexts=(0, 2048), prompts=(1024,))
    assert short.resolved(k160).context == 4096


class Fake:
    """Takes 2 ms a token with one thread and 1 ms with two; commits two tokens a round."""

    def __init__(self, name: str, slow: float = 1.0) -> None:
        self.name = name
        self.threads = 1
        self.asked: list[int] = []
        self._slow = slow

    def use_threads(self, threads: int) -> None:
        self.threads = threads

    def decode(self, prompt: Sequence[int], count: int) -> Sample:
        self.asked.append(count)
        cold = 50 if len(self.asked) == 1 else 1  # the first is always slow
        each_ns = int(2e6 * cold * self._slow / self.threads)
        length = min(count, 21)
        return Sample(tuple(range(length)), (length - 1) // 2, 1, each_ns * (length - 1))


def test_threads_are_chosen_and_warm_ups_do_not_count() -> None:
    a, b = Fake("a"), Fake("b", slow=3.0)
    steps: list[str] = []
    contest = Session([a, b], 2, [1, 2], steps.append)
    question = Question("q-0", "reasoning", (1, 2), 40)
    assert contest.choose_threads(question) == {"a": {1: 2.0, 2: 1.0}, "b": {1: 6.0, 2: 3.0}}
    assert (a.threads, b.threads) == (2, 2)
    timed = contest.time(question, 0)
    assert timed is not None
    assert b.asked[-1] == 21  # as long as the first one's answer
    assert len(steps) == contest.steps(1)
    assert summary([timed], "a") == Spread(1.0, 1.0, 1.0, 0.0, 2)
    assert speedup([timed], "b", "a") == Ratio(pytest.approx(3.0), 3.0, 3.0, 1)
    assert identical([timed], "a", "b") == 1
    assert by_category([timed], "b", "a")[0].tau == 2.0


def test_too_short_an_answer_is_not_timed() -> None:
    assert Session([Fake("a")], 2, [1]).time(Question("q", "reasoning", (1,), 3), 0) is None


def test_everybody_runs_early_and_late() -> None:
    assert order(["a", "b", "c"], 2, 0) == ["a", "b", "c", "c", "b", "a"]
    assert order(["a", "b", "c"], 2, 1) == ["b", "c", "a", "a", "c", "b"]


def test_spread_and_ratio_pair_prompts() -> None:
    spread = Spread.of({"p": [1.0, 1.1], "q": [10.0, 13.0]})
    assert (spread.minimum, spread.median, spread.maximum) == (1.0, 5.55, 13.0)
    assert spread.repeat_spread == pytest.approx(0.2)
    ratio = Ratio.of({"p": [2.0], "q": [8.0]}, {"p": [1.0], "q": [1.0]})
    assert (ratio.mean, ratio.lowest, ratio.highest) == (pytest.approx(4.0), 2.0, 8.0)


def test_the_common_beginning_of_two_texts() -> None:
    assert common_beginning([1, 2, 3], [1, 2, 4]) == 2
    assert common_beginning([1], [1, 2]) == 1
    assert common_beginning([], []) == 0
