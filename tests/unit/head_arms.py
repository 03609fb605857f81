"""Heads for tests: what a load with one would measure, and a campaign that judges it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from records import HEX, NOW, WIDTH, lever, manifest_of, record, text_of

from flywheel.heads import archive, record as recording
from flywheel.ledger import views
from flywheel.ledger.rows import View
from flywheel.ledger.store import Ledger
from flywheel.lever import Lever, fingerprint
from flywheel.loop import judge, plan, planned
from flywheel.run.parse import parse
from flywheel.run.record import Point, RunRecord
from flywheel.statistics.campaign import HEADS
from flywheel.statistics.tau import HELD_OUT

CATEGORIES = ("long_context", "agentic_format", "code_edit", "multi_turn", "short_factual",
              "reasoning", "explanation", "code_gen")  # fmt: skip
SUITE = tuple((f"{c}-{n}", c) for c in CATEGORIES for n in range(6))
HELD = tuple((f"{HELD_OUT}{c}-0", c) for c in CATEGORIES)
MADE = 32
Rounds = Callable[[str, str], int]


def head(name: str = "head.a", **recipe: object) -> Lever:
    return lever(name, {"head": recipe}, kind="head", metric="tau", family=name, slow=True)


def steady(prompt: str, category: str) -> int:
    """Rounds of the incumbent: some prompts are harder than others."""
    return 14 + (sum(map(ord, prompt)) % 5)


def better(by: int, held: int | None = None) -> Rounds:
    """A head that needs `by` rounds less on the suite, and `held` less on the hold-out."""

    def rounds(prompt: str, category: str) -> int:
        gain = by if not prompt.startswith(HELD_OUT) or held is None else held
        return steady(prompt, category) - gain - (sum(map(ord, prompt)) % 2 if by else 0)

    return rounds


def with_rounds(point: Point, rounds: int) -> Point:
    left, accepted = MADE - rounds, []
    for _ in range(WIDTH):
        accepted.append(min(rounds, left))
        left -= accepted[-1]
    return replace(
        point, rounds=rounds, forwards=rounds, accepted_by_position=tuple(accepted),
        offered_by_position=(rounds,) * WIDTH, max_committed=WIDTH + 1,
    )  # fmt: skip


def measured_with(candidate: Rounds, run_id: str = "r1", seed: int = 1) -> RunRecord:
    made = record(run_id, arms={"A": {}, "B": {}}, ms={"A": 10.0, "B": 9.0},
                  prompts=(*SUITE, *HELD), seed=seed)  # fmt: skip
    of = {"A": steady, "B": candidate}
    own = replace(made.header.arms[1], effective={**made.header.arms[1].effective, "head": HEX})
    own = replace(own, fingerprint=fingerprint(dict(own.effective)))
    return replace(
        made, header=replace(made.header, arms=(made.header.arms[0], own)),
        points=tuple(with_rounds(p, of[p.arm](p.prompt, p.category)) for p in made.points),
    )  # fmt: skip


@contextmanager
def campaign(folder: Path) -> Iterator[Ledger]:
    """A ledger with a campaign of heads that has just begun."""
    opened = Ledger.open(folder / "ledger.db")
    planned.open_campaign(opened, HEADS, start={}, box="box", now_utc=NOW)
    yield opened
    opened.close()


def see(ledger: Ledger) -> View:
    with ledger.reading() as connection:
        return views.load(connection)


def forged(
    ledger: Ledger, name: str, variant_id: str | None = None, change: object = None
) -> None:
    """An archived head of that name, made of nothing; by hand, or by a lever's `change`."""
    folder = ledger.path.parent / "made"
    folder.mkdir(exist_ok=True)
    for kind in archive.FILES:
        (folder / kind).write_text(f"{kind} of {name}")
    metrics = {"recipe": {"anchor": 0.1}, "steps": 3, "seconds": 60.0, "history": [{"loss": 1.0}]}
    recording.keep(
        ledger, archive.root_of(ledger.path), name, {k: folder / k for k in archive.FILES},
        recording.about(metrics, start="stock", lever={"recipe": change} if change else None),
        now_utc=NOW, variant_id=variant_id,
    )  # fmt: skip


def measure(ledger: Ledger, step: plan.Step, candidate: Rounds) -> judge.Entered:
    assert isinstance(step, plan.NextBlock)
    planned.plan_block(ledger, step, now_utc=NOW)
    forged(ledger, str(step.candidate["head"]), step.variant_id, step.lever.change["head"])
    made = measured_with(candidate, f"r{step.block_id[1:]}", step.seed)
    manifest = manifest_of(made, block_id=step.block_id)
    arms = [dict(a) for a in manifest.config["arms"]]
    arms[1] |= {"head": "/there", "head_sha256": HEX}
    manifest = replace(manifest, config={**manifest.config, "arms": arms}, heartbeat_gap_s=1e6)
    planned.start_run(ledger, manifest, slot=0, now_utc=NOW)
    said = f'"source_sha256": "{HEX}", '
    text = text_of(made).replace(said + '"seal"', f'{said}"heads": {{"B": "{HEX}"}}, "seal"')
    read = parse(text, manifest)
    assert isinstance(read, RunRecord), read
    end = judge.RunEnd("ok", "", "", NOW, NOW, 60 * 10**9, 0)
    return judge.enter(ledger, made.run_id, end, text, read, now_utc=NOW)


def good(holds: bool = True) -> judge.Service:
    return judge.Service(holds, "20 tokens in 9 rounds", {"rounds": 9})


def promoted(ledger: Ledger, one: Lever, by: int = 2) -> str:
    step = plan.next_step(see(ledger), [one])
    measure(ledger, step, better(by))
    assert isinstance(step, plan.NextBlock)
    judge.settle_head(ledger, step.variant_id, good(), now_utc=NOW)
    return str(step.candidate["head"])
