"""Speculation changes the speed, never the tokens: greedy, sampled, and in distribution."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from checkpoints import Configure
from scipy import stats

from engine.batch import Batch, Generation
from engine.engine import Commit, Engine
from engine.sampling import Sampling
from engine.suite import ASSETS, Suite
from engine.tokenizer import Tokenizer

WIDTHS = (1, 2, 3, 4, 5)
POLICIES: dict[str, dict[str, Any]] = {
    "fixed": {"verify_policy": "fixed"},
    "margin": {"verify_policy": "margin", "margin_threshold": 4.0},
    "confidence": {"verify_policy": "confidence", "confidence_threshold": 0.25},
}
TINY = ASSETS / "tiny-v4"
SUITE = Suite.load(ASSETS / "suites" / "tiny-v1.json")


def prompts(count: int, vocab: int) -> list[list[int]]:
    """Prompts of 1 to about 130 tokens, at every phase of 4."""
    lengths = [1 + (i * 13) % 130 for i in range(count)]
    return [
        [(i * 97 + j * j * 7 + j * 31) % (vocab - 8) + 2 for j in range(length)]
        for i, length in enumerate(lengths)
    ]


def tokens(commits: Sequence[Commit]) -> list[int]:
    return [t for commit in commits for t in commit.tokens]


def generate(engine: Engine, prompt: list[int], count: int, **sampling: Any) -> list[Commit]:
    return list(engine.generate(prompt, max_new_tokens=count, sampling=Sampling(**sampling)))


def together(engine: Engine, given: Sequence[list[int]], count: int) -> list[list[int]]:
    """What is said after each of several prompts, whose steps share their products: a third of the
    time of one after the other, and the same bits (`test_batch`)."""
    batch = Batch(engine, len(given))
    every = [batch.begin(prompt, max_new_tokens=count) for prompt in given]
    said: dict[Generation, list[Commit]] = {generation: [] for generation in every}
    while active := [generation for generation in every if generation.finish is None]:
        for generation, commit in batch.advance(active):
            assert isinstance(commit, Commit), commit
            said[generation].append(commit)
    return [tokens(said[generation]) for generation in every]


# ------------------------------------------------------------------ greedy


@pytest.fixture(scope="module")
def texts(quick_engine: Engine, configure: Configure) -> list[tuple[list[int], list[int]]]:
    """Ten prompts, and more than 2,000 tokens that plain decoding gives after them."""
    quick_engine.reconfigure(configure(moe="dense", draft_width=0))
    found = []
    for prompt in prompts(10, 256):
        commits = generate(quick_engine, prompt, 205)
        assert all(len(c.tokens) == 1 for c in commits)
        found.append((prompt, tokens(commits)))
    assert sum(len(text) for _, text in found) >= 2000
    assert len({t for _, text in found for t in text}) > 100
    return found


@pytest.mark.parametrize("width", WIDTHS)
def test_speculative_greedy_equals_plain_over_2000_tokens(
    quick_engine: Engine,
    configure: Configure,
    texts: list[tuple[list[int], list[int]]],
    width: int,
) -> None:
    quick_engine.reconfigure(configure(moe="dense", draft_width=width))
    hits: Counter[int] = Counter()
    for prompt, text in texts:
        commits = generate(quick_engine, prompt, len(text))
        assert tokens(commits) == text
        hits.update(c.round.accepted for c in commits if c.round)
    assert set(hits) == set(range(width + 1))  # every accepted count happened


@pytest.mark.parametrize("policy", ["margin", "confidence"])
@pytest.mark.parametrize("width", WIDTHS)
def test_so_it_does_when_a_policy_cuts_the_block(
    quick_engine: Engine,
    configure: Configure,
    texts: list[tuple[list[int], list[int]]],
    width: int,
    policy: str,
) -> None:
    quick_engine.reconfigure(configure(moe="dense", draft_width=width, **POLICIES[policy]))
    offers: Counter[int] = Counter()
    for prompt, text in texts:
        commits = generate(quick_engine, prompt, 24)
        assert tokens(commits) == text[:24]
        offers.update(c.round.offered for c in commits if c.round)
    assert len(offers) > 1  # the policy did decide
    assert max(offers) <= width


def test_speculation_crosses_the_edge_of_a_bucket_of_compressed_rows(
    quick_engine: Engine, configure: Configure
) -> None:
    prompt = [(j * j * 7 + j * 31) % 248 + 2 for j in range(490)]
    told = []
    for width in (0, 5):
        quick_engine.reconfigure(configure(moe="dense", draft_width=width))
        told.append(tokens(generate(quick_engine, prompt, 40)))
    assert told[0] == told[1]


@pytest.mark.parametrize(
    "fields",
    [
        {"cache_format": "packed", "attention": "joined"},
        {"numerics": "exact", "hyper": "matrix"},
        {"numerics": "reference", "moe": "fused"},
        {"row_tile": 4, "draft_width": 3, "markov": "table"},
    ],
    ids=lambda fields: "-".join(str(v) for v in fields.values()),
)
def test_speculation_is_lossless_in_a_model_with_every_layer_type(
    small_engine: Engine, configure: Configure, fields: dict[str, Any]
) -> None:
    for prompt in ([5, 7, 11], [(j * j * 7 + j * 31) % 498 + 2 for j in range(121)]):
        told = []
        for width in ({"draft_width": 0}, {}):
            small_engine.reconfigure(configure(**(fields | width)))
            commits = generate(small_engine, prompt, 24)
            told.append(tokens(commits))
        assert told[0] == told[1]
        assert len(commits) < 24


def test_speculation_is_lossless_in_bfloat16(small: Path, configure: Configure) -> None:
    engine = Engine.load(small, configure(dtype="bfloat16", moe="dense"))
    told = []
    for width in (0, 5):
        engine.reconfigure(configure(dtype="bfloat16", moe="dense", draft_width=width))
        told.append(tokens(generate(engine, [(j * 31) % 498 + 2 for j in range(30)], 40)))
    assert told[0] == told[1]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_trained_checkpoint_is_lossless_over_2000_tokens(configure: Configure) -> None:
    if not (TINY / "model.safetensors").is_file():
        pytest.skip(f"NO TRAINED CHECKPOINT: {TINY} holds no model.safetensors")
    engine = Engine.load(TINY, configure(draft_width=0))
    # Beginnings of real prompts, at every phase of 4: they accept what a trained head drafts.
    texts = [prompt.encode(Tokenizer.load(TINY)) for prompt in SUITE.prompts[:16]]
    given = [text[: 2 + 9 * i] for i, text in enumerate(texts)]
    plain = [*together(engine, given[:8], 140), *together(engine, given[8:], 140)]
    assert sum(map(len, plain)) >= 2000
    for i in (0, 9):
        assert tokens(generate(engine, given[i], 140)) == plain[i]
    for i, (prompt, text) in enumerate(zip(given, plain, strict=True)):
        policy = list(POLICIES.values())[i // 5 % 3]
        engine.reconfigure(configure(draft_width=WIDTHS[i % 5], **policy))
        assert tokens(generate(engine, prompt, 140)) == text


# ------------------------------------------------------------------ sampled


DRAWN: dict[str, Any] = {"temperature": 3.0, "top_p": 0.95, "top_k": 40, "seed": 5}


@pytest.fixture(scope="module")
def drawn(quick_engine: Engine, configure: Configure) -> list[list[int]]:
    """What plain decoding draws after three prompts."""
    quick_engine.reconfigure(configure(moe="dense", draft_width=0))
    return [tokens(generate(quick_engine, p, 30, **DRAWN)) for p in prompts(3, 256)]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("width", WIDTHS)
def test_one_seed_gives_the_same_tokens_plain_and_speculative(
    quick_engine: Engine, configure: Configure, drawn: list[list[int]], width: int, policy: str
) -> None:
    quick_engine.reconfigure(configure(moe="dense", draft_width=width, **POLICIES[policy]))
    told = [generate(quick_engine, p, 30, **DRAWN) for p in prompts(3, 256)]
    assert list(map(tokens, told)) == drawn
    hits = {c.round.accepted for commits in told for c in commits if c.round}
    assert len(hits) > 1  # some drafts were accepted, and some were not


def test_the_drawn_texts_are_not_the_greedy_ones(
    drawn: list[list[int]], texts: list[tuple[list[int], list[int]]]
) -> None:
    for text, (_, greedy) in zip(drawn, texts, strict=False):
        assert sum(a != b for a, b in zip(text, greedy, strict=False)) > 5


def test_seeds_and_positions_draw_differently(quick_engine: Engine, configure: Configure) -> None:
    quick_engine.reconfigure(configure(moe="dense"))

    def text(seed: int | None) -> list[int]:
        return tokens(generate(quick_engine, [3, 4, 5], 30, temperature=2.0, seed=seed))

    assert text(1) == text(1)
    assert text(1) != text(2)
    assert text(None) != text(None)


def counts(engine: Engine, seeds: range, chosen: dict[str, Any]) -> Counter[Any]:
    """How often each continuation came out: three tokens, after the one that prefill gives."""
    told: Counter[Any] = Counter()
    for seed in seeds:
        stream = engine.generate(
            [3, 9, 4, 12, 7], max_new_tokens=30, sampling=Sampling(seed=seed, **chosen)
        )
        text: list[int] = []
        for commit in stream:
            text += commit.tokens
            if len(text) >= 4:
                break
        told[tuple(text[1:4])] += 1
    return told


def likeness(one: Counter[Any], two: Counter[Any]) -> float:
    """p-value of a chi-square test that both counts were drawn from one distribution."""
    pooled = one + two
    common = [k for k, n in pooled.items() if n >= 10]
    rare = set(pooled) - set(common)
    table = [[c[k] for k in common] + [sum(c[k] for k in rare)] for c in (one, two)]
    columns = [column for column in zip(*table, strict=True) if sum(column)]
    return float(stats.chi2_contingency(list(zip(*columns, strict=True))).pvalue)


@pytest.fixture(scope="module")
def few(few_tokens: Path, configure: Configure) -> Engine:
    return Engine.load(few_tokens, configure(moe="dense", context=64))


CHOSEN = {"temperature": 1.5, "top_p": 0.9}
SAMPLES = 250


@pytest.fixture(scope="module")
def plain_counts(few: Engine, configure: Configure) -> Counter[Any]:
    few.reconfigure(configure(moe="dense", context=64, draft_width=0))
    return counts(few, range(1_000_000, 1_000_000 + SAMPLES), CHOSEN)


@pytest.mark.parametrize("policy", ["fixed", "confidence"])
def test_speculative_samples_follow_the_plain_distribution(
    few: Engine, configure: Configure, plain_counts: Counter[Any], policy: str
) -> None:
    """With seeds of their own, so that nothing but the distribution can make them agree."""
    few.reconfigure(configure(moe="dense", context=64, **POLICIES[policy]))
    first = 2_000_000 + 100_000 * list(POLICIES).index(policy)
    told = counts(few, range(first, first + SAMPLES), CHOSEN)
    assert len(told) > 8
    assert likeness(plain_counts, told) > 1e-4


def test_the_comparison_of_distributions_can_fail(
    few: Engine, configure: Configure, plain_counts: Counter[Any]
) -> None:
    few.reconfigure(configure(moe="dense", context=64))
    hotter = CHOSEN | {"temperature": 4.0}
    told = counts(few, range(3_000_000, 3_000_000 + SAMPLES // 2), hotter)
    assert likeness(plain_counts, told) < 1e-4
