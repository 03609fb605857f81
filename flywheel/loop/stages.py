"""The stages of a head as commands: what each is asked, and in which folder it works.

A folder is named by everything that its stage starts from, so what two heads share is made once,
and a head that is asked for again finds what was trained.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flywheel.box import host
from flywheel.errors import HeadError
from flywheel.files import read_json
from flywheel.heads import archive, record
from flywheel.lever import Lever, canonical, fingerprint
from flywheel.loop import rehearsal
from flywheel.loop.order import Order

_CARD = "card.json"
# What of an engine's configuration decides which tokens the target says.
_SAYS = ("backend", "numerics")


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage: its folder, and the words of its command."""

    name: str
    out: Path
    words: tuple[str, ...]

    @property
    def card(self) -> dict[str, Any]:
        """What the stage says of its end; empty before there is one."""
        return read_json(self.out / _CARD) or {}

    @property
    def done(self) -> bool:
        """Whether it ended well."""
        return self.card.get("outcome") == "ok"


@dataclass(frozen=True, slots=True)
class Stages:
    """Every stage of one head, in order: `shared` with other heads, its own training.

    ``rehearsal`` tries all of them at toy scale, ``dry`` the training on what is captured.
    """

    shared: tuple[Stage, ...]
    train: Stage
    rehearsal: Stage
    dry: Stage

    @property
    def tried(self) -> bool:
        """Whether nothing is left to rehearse."""
        return self.rehearsal.done or self.dry.done or self.train.done


def stages(order: Order, lever: Lever, incumbent: Mapping[str, Any]) -> Stages:
    """The stages of the head that a lever asks for, beside an incumbent's configuration."""
    heads, checkpoint = order.heads, str(order.checkpoint)
    inputs = _inputs(order, lever, incumbent)
    said_by = dict(inputs.engine)
    amounts = [
        checkpoint, heads.prompts, heads.max_new_tokens, heads.temperature, said_by,
        _content(order),
    ]  # fmt: skip
    base = order.forge_dir / f"{order.checkpoint.name}-{fingerprint(amounts)[:8]}"
    corpus, sequences, capture = (base / n for n in ("corpus", "sequences", "capture"))
    common = ("--checkpoint", checkpoint)
    device = (*common, "--device", heads.device, "--lease-held")
    engine = ("--config", canonical(said_by))
    # One process fills a GPU; on the host each answers with one thread.
    workers = 1 if said_by.get("backend") == "triton" else host.cores()
    made_of = [amounts, dict(inputs.recipe), str(inputs.start), heads.device]
    arm = order.forge_dir / "arms" / f"{lever.name}-{fingerprint(made_of)[:8]}"
    begun = () if inputs.start is None else ("--head", str(inputs.start))
    shared = (
        Stage("corpus", corpus, (
            *common, "--out", str(corpus), *corpus_words(order))),
        Stage("regenerate", sequences, (
            *device, *engine, "--corpus", str(corpus), "--out", str(sequences),
            "--temperature", f"{heads.temperature:g}",
            "--max-new-tokens", str(heads.max_new_tokens), "--workers", str(workers))),
        Stage("capture", capture, (
            *device, *engine, "--sequences", str(sequences), "--out", str(capture))),
    )  # fmt: skip
    train = Stage("train", arm, (
        *device, "--capture", str(capture), "--out", str(arm),
        "--recipe", canonical(dict(inputs.recipe)), *begun))  # fmt: skip
    folder = order.forge_dir / rehearsal.FOLDER
    every, dry = (
        Stage(rehearsal.NAME, out, inputs.words(out, given))
        for given in (None, capture) for out in [folder / inputs.key(given)]
    )
    return Stages(shared, train, every, dry)


def corpus_words(order: Order) -> tuple[str, ...]:
    """What the corpus stage is asked: how many prompts, of what, and what they are judged by."""
    chats = () if order.heads.chats is None else ("--chats", str(order.heads.chats))
    measures = (word for path in _measures(order) for word in ("--suite", str(path)))
    return ("--per-category", str(order.heads.prompts), *chats, *measures)


def _measures(order: Order) -> tuple[Path, ...]:
    """Every suite whose prompts no head may have seen."""
    asked = (order.head_suite, order.suite, order.holdout)
    return tuple(dict.fromkeys(path for path in asked if path is not None))


def _content(order: Order) -> list[str]:
    """Hashes of the files that a corpus depends on; HeadError for one that cannot be read."""
    chats = () if order.heads.chats is None else (order.heads.chats,)
    try:
        return [archive.sha256(path) for path in (*chats, *_measures(order))]
    except OSError as error:
        raise HeadError(f"cannot read {error.filename}: {error.strerror}.") from None


def base_of(order: Order, incumbent: Mapping[str, Any]) -> dict[str, Any]:
    """What the incumbent's own recipe changes of the usual one: levers change one thing more."""
    head = incumbent.get("head")
    return {} if head is None else record.changes(archive.card_of(order.archive, str(head)))


def _inputs(order: Order, lever: Lever, incumbent: Mapping[str, Any]) -> rehearsal.Inputs:
    asked = lever.change["head"]
    assert isinstance(asked, dict)
    recipe = {**order.heads.recipe, **base_of(order, incumbent), **record.of_recipe(asked)}
    start = incumbent.get("head") if asked.get(record.START) == "incumbent" else None
    return rehearsal.Inputs(
        str(order.checkpoint), order.heads, recipe,
        None if start is None else order.archive / str(start),
        {name: incumbent[name] for name in _SAYS if name in incumbent},
    )
