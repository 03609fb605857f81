"""Where a generation ends, what it commits, and what it leaves behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from checkpoints import Configure
from script import Script

from engine import engine as engine_module
from engine.engine import Commit, Engine
from engine.model import Backbone

EOS = 1
PROMPT = [7, 8, 9, 10, 11]
TEXT = PROMPT + [20 + i for i in range(60)]  # no EOS, no repetition


@pytest.fixture
def engine(quick_engine: Engine, configure: Configure) -> Engine:
    quick_engine.reconfigure(configure(moe="dense"))
    return quick_engine


@pytest.fixture
def perfect(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[int]], None]:
    """Make target and drafter agree on a text."""

    def follow(text: list[int]) -> None:
        monkeypatch.setattr(engine_module, "Sampler", lambda _: Script(text))

    return follow


def with_token(token: int, at: int) -> list[int]:
    return [*TEXT[:at], token, *TEXT[at + 1 :]]


def tokens(commits: list[Commit]) -> list[int]:
    return [t for commit in commits for t in commit.tokens]


def test_a_perfect_drafter_commits_whole_blocks(
    engine: Engine, perfect: Callable[[list[int]], None]
) -> None:
    perfect(TEXT)
    commits = list(engine.generate(PROMPT, max_new_tokens=19))
    assert [len(c.tokens) for c in commits] == [1, 6, 6, 6]
    assert tokens(commits) == TEXT[5:24]
    assert [c.finish for c in commits] == [None, None, None, "length"]
    assert commits[0].round is None
    assert commits[0].prefill_ns > 0
    for commit in commits[1:]:
        assert commit.round is not None
        assert (commit.round.offered, commit.round.accepted) == (5, 5)
        assert commit.round.time_ns > 0


@pytest.mark.parametrize("place", range(5, 18))
def test_eos_ends_the_text_wherever_it_falls_in_a_block(
    engine: Engine, perfect: Callable[[list[int]], None], place: int
) -> None:
    perfect(with_token(EOS, place))
    commits = list(engine.generate(PROMPT, max_new_tokens=40))
    assert tokens(commits) == [*TEXT[5:place], EOS]
    assert [c.finish for c in commits[:-1]] == [None] * (len(commits) - 1)
    assert commits[-1].finish == "stop"
    assert commits[-1].tokens[-1] == EOS


@pytest.mark.parametrize("place", [5, 6, 8, 11, 12])
def test_a_stop_id_ends_the_text_like_eos(
    engine: Engine, perfect: Callable[[list[int]], None], place: int
) -> None:
    perfect(TEXT)
    commits = list(engine.generate(PROMPT, max_new_tokens=40, stop_ids=[200, TEXT[place]]))
    assert tokens(commits) == TEXT[5 : place + 1]
    assert commits[-1].finish == "stop"


@pytest.mark.parametrize("limit", range(1, 15))
def test_exactly_the_requested_tokens_come_out(
    engine: Engine, perfect: Callable[[list[int]], None], limit: int
) -> None:
    perfect(TEXT)
    commits = list(engine.generate(PROMPT, max_new_tokens=limit))
    assert tokens(commits) == TEXT[5 : 5 + limit]
    assert commits[-1].finish == "length"
    assert all(c.finish is None for c in commits[:-1])
    # No draft is verified that could not be kept.
    left = limit - 1
    for commit in commits[1:]:
        assert commit.round is not None
        assert commit.round.offered == min(5, left - 1)
        left -= len(commit.tokens)


def test_eos_as_the_last_allowed_token_counts_as_a_stop(
    engine: Engine, perfect: Callable[[list[int]], None]
) -> None:
    for limit in (1, 4, 7):
        perfect(with_token(EOS, 4 + limit))
        commits = list(engine.generate(PROMPT, max_new_tokens=limit))
        assert len(tokens(commits)) == limit
        assert commits[-1].finish == "stop"


def test_eos_within_the_prompt_does_not_end_the_text(engine: Engine) -> None:
    commits = list(engine.generate([5, EOS, 6, EOS], max_new_tokens=3))
    assert len(tokens(commits)) == 3


def test_a_hopeless_drafter_commits_one_token_a_round(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Script(TEXT, dict.fromkeys(range(70), 3))
    monkeypatch.setattr(engine_module, "Sampler", lambda _: script)
    commits = list(engine.generate(PROMPT, max_new_tokens=8))
    assert [len(c.tokens) for c in commits] == [1] * 8
    assert tokens(commits) == TEXT[5:13]
    assert {c.round.accepted for c in commits if c.round} == {0}


def test_a_real_text_ends_at_its_first_stop_id_at_every_width(
    engine: Engine, configure: Configure
) -> None:
    plain = tokens(list(engine.generate(PROMPT, max_new_tokens=40)))
    for width in (0, 1, 3, 5):
        engine.reconfigure(configure(moe="dense", draft_width=width))
        for stop in plain[1:30:6]:
            first = plain.index(stop)
            told = list(engine.generate(PROMPT, max_new_tokens=40, stop_ids=[stop]))
            assert tokens(told) == plain[: first + 1]
            assert told[-1].finish == "stop"


def test_prompt_and_tokens_may_fill_the_context_to_the_last_place(
    engine: Engine, configure: Configure
) -> None:
    for width in (0, 5):
        engine.reconfigure(configure(moe="dense", context=64, draft_width=width))
        for prompt in (1, 24, 63):
            given = [(i * 7) % 200 + 2 for i in range(prompt)]
            commits = list(engine.generate(given, max_new_tokens=64 - prompt))
            assert len(tokens(commits)) == 64 - prompt


# ------------------------------------------------------------------ cancelling and interleaving


@pytest.fixture
def forwards(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Token counts of the backbone's forwards."""
    seen: list[int] = []
    honest = Backbone.forward

    def counted(self: Backbone, ids: Any, state: Any) -> Any:
        seen.append(ids.numel())
        return honest(self, ids, state)

    monkeypatch.setattr(Backbone, "forward", counted)
    return iter([seen])


def test_closing_the_iterator_stops_the_work(engine: Engine, forwards: Iterator[list[int]]) -> None:
    seen = next(forwards)
    stream = engine.generate(PROMPT, max_new_tokens=50)
    assert seen == []  # nothing runs before the first token is asked for
    next(stream)
    next(stream)
    done = len(seen)
    assert done == 2
    stream.close()  # type: ignore[attr-defined]
    assert list(stream) == []
    assert len(seen) == done


def test_a_closed_generation_leaves_no_trace_in_the_next(engine: Engine) -> None:
    whole = tokens(list(engine.generate(PROMPT, max_new_tokens=20)))
    stream = engine.generate([3] * 30, max_new_tokens=50)
    next(stream)
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert tokens(list(engine.generate(PROMPT, max_new_tokens=20))) == whole


def test_interleaved_generations_do_not_touch_each_other(
    engine: Engine, configure: Configure
) -> None:
    prompts = [PROMPT, [40, 50, 60] * 9]
    alone = [tokens(list(engine.generate(p, max_new_tokens=25))) for p in prompts]
    streams = [engine.generate(p, max_new_tokens=25) for p in prompts]
    told: list[list[int]] = [[], []]
    live = {0, 1}
    while live:
        for i in sorted(live):
            commit = next(streams[i], None)
            if commit is None:
                live.discard(i)
            else:
                told[i] += commit.tokens
        engine.reconfigure(configure(moe="dense", draft_width=len(told[0]) % 6))
    assert told == alone


def test_rounds_count_the_target_s_forwards(engine: Engine, forwards: Iterator[list[int]]) -> None:
    seen = next(forwards)
    commits = list(engine.generate(PROMPT, max_new_tokens=40))
    assert seen[0] == len(PROMPT)
    rounds = [c.round for c in commits if c.round]
    assert len(seen) - 1 == len(rounds) == len(commits) - 1
    assert seen[1:] == [r.offered + 1 for r in rounds]
    assert sum(r.accepted + 1 for r in rounds) == len(tokens(commits)) - 1


def test_reconfiguring_back_and_forth_changes_nothing(engine: Engine, configure: Configure) -> None:
    first = tokens(list(engine.generate(PROMPT, max_new_tokens=20)))
    for fields in ({"attention": "joined"}, {"cache_format": "packed"}, {"draft_width": 0}):
        engine.reconfigure(configure(moe="dense", **fields))
        list(engine.generate([4, 4], max_new_tokens=5))
    engine.reconfigure(configure(moe="dense"))
    assert tokens(list(engine.generate(PROMPT, max_new_tokens=20))) == first


def test_without_speculation_the_draft_head_rests(engine: Engine, configure: Configure) -> None:
    plain = list(engine.generate(PROMPT, max_new_tokens=30, speculative=False))
    assert [len(c.tokens) for c in plain] == [1] * 30
    assert {c.round.offered for c in plain if c.round} == {0}
    assert tokens(plain) == tokens(list(engine.generate(PROMPT, max_new_tokens=30)))
    engine.reconfigure(configure(moe="dense", draft_width=0))
    assert tokens(plain) == tokens(list(engine.generate(PROMPT, max_new_tokens=30)))
