"""How `flywheel run` is asked to make heads, and what of that is wrong."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from flywheel import suite
from flywheel.box.clock import count
from flywheel.cli import start
from flywheel.cli.terminal import named_path
from flywheel.errors import UsageError
from flywheel.heads.judge import sees_nothing
from flywheel.loop import prove
from flywheel.loop.order import HEADS_COMMAND, HeadOrder, Order, usual_heads
from flywheel.loop.stages import corpus_words
from flywheel.statistics.campaign import Budget


@dataclass(frozen=True, slots=True)
class Asked:
    """The options of `flywheel run` about heads, as they are given."""

    suite: Path | None = None
    holdout: Path | None = None
    chats: Path | None = None
    prompts: int | None = None
    recipe: Mapping[str, object] = field(default_factory=dict)
    at_once: int = 1

    @property
    def given(self) -> str | None:
        """The first option that was given; None without one."""
        named = {
            "--head-suite": self.suite, "--holdout": self.holdout, "--head-chats": self.chats,
            "--head-prompts": self.prompts, "--head-recipe": self.recipe or None,
            "--heads-at-once": None if self.at_once == 1 else self.at_once,
        }  # fmt: skip
        return next((option for option, value in named.items() if value is not None), None)


def head_order(
    config: Mapping[str, object],
    asked: Asked,
    suite_file: Path | None = None,
    command: tuple[str, ...] = HEADS_COMMAND,
) -> HeadOrder:
    """How heads are made beside a configuration: as usual on its device, but for what is said."""
    usual = usual_heads("cuda" if config.get("backend") == "triton" else "cpu")
    return replace(
        usual,
        prompts=asked.prompts or usual.prompts,
        recipe={**usual.recipe, **asked.recipe},
        at_once=asked.at_once,
        command=command,
        suite=suite_of(asked, suite_file, usual.device),
        chats=None if asked.chats is None else chats_of(asked.chats),
    )


def suite_of(asked: Asked, suite_file: Path | None, device: str) -> Path | None:
    """What heads are judged on where it is not the suite of the other levers."""
    if asked.suite is not None:
        return suite.load(named_path(asked.suite, "--head-suite")).path
    if suite_file is not None or device != "cuda":
        return None
    return suite.embedded(suite.DEFAULT_HEADS)


def holdout_of(asked: Asked, suite_file: Path | None) -> Path | None:
    """The hold-out's file: the one given, else the embedded one beside the embedded suites."""
    if asked.holdout is not None:
        return suite.load(named_path(asked.holdout, "--holdout")).path
    if suite_file is not None or asked.suite is not None:
        return None
    return suite.embedded(suite.DEFAULT_HOLDOUT)


def chats_of(path: Path) -> Path:
    """The file of chats, absolute; UsageError where there is none."""
    found = named_path(path, "--head-chats")
    if not found.is_file():
        raise UsageError(f"--head-chats: there is no file {found}.")
    return found


def recipe_of(text: str) -> dict[str, object]:
    """The JSON object of `--head-recipe`; what its fields mean is the trainer's business."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--head-recipe is not valid JSON: {error}.") from None
    if not isinstance(value, dict):
        raise UsageError("--head-recipe must be a JSON object.")
    return value


def check_tried(asked: Asked, *, tried: bool, why: str) -> None:
    """Raise UsageError for options of heads where none is tried; `why` says what would be."""
    if not tried and (option := asked.given) is not None:
        raise UsageError(f"{option} is about heads, and this run tries none; {why}.")


def check(order: Order, asked: Asked) -> None:
    """Raise UsageError for what every head of the night would fail of: recipe, suites, chats."""
    if asked.suite is not None or asked.holdout is not None:
        _check_suites(order)
    if asked.recipe:
        start.check_recipe(asked.recipe, order.checkpoint, order.fields)
    if order.heads.chats is not None:
        start.check_corpus((*_corpus(order), *corpus_words(order)), "--head-chats")


def _corpus(order: Order) -> tuple[str, ...]:
    return (*order.heads.command, "corpus", "--checkpoint", str(order.checkpoint))


def _check_suites(order: Order) -> None:
    """Raise UsageError for a suite of heads or a hold-out that the engine would not measure."""
    with tempfile.TemporaryDirectory() as folder:
        both, _ = suite.beside(order.head_suite, order.holdout, Path(folder))
        named = [path for path in (order.head_suite, order.holdout, both) if path is not None]
        words = (*_corpus(order), "--per-category", "1")
        asked = (word for path in named for word in ("--suite", str(path)))
        start.check_corpus((*words, *asked), "what heads are judged by")
    if order.holdout is not None and (same := suite.shared(order.holdout, order.head_suite)):
        raise UsageError(
            f"--holdout: its prompt {same} is one of {order.head_suite} too; a hold-out guards "
            "with prompts of its own."
        )


def check_judges(order: Order) -> None:
    """Raise UsageError where heads are asked for over prompts that no head could win on."""
    prompts = suite.load(order.head_suite).ids
    if sees_nothing(len(prompts), Budget(order.settings).alpha_t):
        raise UsageError(
            f"{count(len(prompts), 'prompt')} of {order.head_suite} could see nothing of a head; "
            "a few of each category could."
        )
    if not any(suite.askable(entry) for entry in prove.chats_of(order.head_suite).values()):
        raise UsageError(
            f"no prompt of {order.head_suite} can be asked of a server as it is measured, so no "
            "head could be proved in service; it wants one of plain messages without thinking."
        )
