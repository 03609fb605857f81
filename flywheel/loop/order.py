"""What one session of the loop is asked for, what it did, and the manifest of each of its runs."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flywheel import suite
from flywheel.best import Best, engine_part
from flywheel.box import host
from flywheel.box.clock import Window
from flywheel.files import dump, write_atomic
from flywheel.heads import archive
from flywheel.ledger.rows import CampaignRow, PatchRow
from flywheel.lever import fingerprint
from flywheel.loop import plan
from flywheel.patch.gates import PYTEST, TESTS, GateTests
from flywheel.patch.prompts import Shape
from flywheel.patch.worktree import Tree
from flywheel.propose.attempt import Asking, Terms
from flywheel.propose.proposer import Proposer
from flywheel.run import launch, lineage
from flywheel.run.manifest import Manifest, engine_config, new_nonce
from flywheel.statistics.block import CANDIDATE
from flywheel.statistics.campaign import QUICK, Settings

BEST_FILE = "best.json"
# What this loop can change between two arms; patches need the engine's code in a git repository.
KINDS = ("config", "head", "patch")
HEADS_COMMAND = (sys.executable, "-m", "engine.heads")
HEARTBEAT_GAP_S = 15.0
# How a lossy lever is measured: at temperature 0 it would be exact. One seed, so that its loads
# decode the same texts and only time differs between them.
LOSSY_TEMPERATURE, LOSSY_SEED = 1.0, 1
# STOP is honoured within two seconds, so an engine that is deaf to TERM has only one.
GRACE_S = 1.0


@dataclass(frozen=True, slots=True)
class HeadOrder:
    """How heads are made on this box: the corpus, what every recipe begins with, and the limits.

    ``prompts`` is how many each category gives, of ``chats`` where they are given. ``recipe`` lies
    under every lever's own. ``suite`` is what heads are judged on; None: the order's.
    ``at_once`` heads are trained side by side; what is measured is always alone.
    """

    prompts: int = 64
    max_new_tokens: int = 320
    temperature: float = 1.0
    device: str = "cpu"
    recipe: Mapping[str, object] = field(default_factory=dict)
    timeout_s: float = 6 * 3600.0
    at_once: int = 1
    command: tuple[str, ...] = HEADS_COMMAND
    suite: Path | None = None
    chats: Path | None = None


def usual_heads(device: str) -> HeadOrder:
    """The amounts that make a good head in minutes: a GPU learns from more text, in wider steps."""
    if device != "cuda":
        return HeadOrder()
    return HeadOrder(
        prompts=256, recipe={"batch": 16, "anchors": 96, "steps": 800}, device="cuda"
    )


@dataclass(frozen=True, slots=True)
class PatchOrder:
    """How patches are gated on this box: the size of the output gate, and how tests are run.

    ``tests`` are the files of tests by what a patch touches (``flywheel.patch.gates``);
    ``timeout_s`` bounds one set of them, on ``workers`` processes. ``device_tests``, as pytest's
    ``-k`` takes it, says which of those on the device are enough; empty: all.
    """

    shape: Shape = field(default_factory=Shape)
    tests: tuple[GateTests, ...] = TESTS
    command: tuple[str, ...] = PYTEST
    timeout_s: float = 3600.0
    workers: int = 1
    device_tests: str = ""


@dataclass(frozen=True, slots=True)
class Order:
    """What `flywheel run` was asked for.

    ``budget_runs`` counts engine loads, ``budget_s`` the wall time of this session;
    ``timeout_s`` bounds one load, ``grace_s`` is what it gets between TERM and KILL. ``profile`` is
    the command that profiles a configuration; without it the night ends with the declared levers.
    ``notify`` names who is told of what happens. ``proposers`` are asked for levers under
    ``terms``; ``fields`` is the command that tells them what the engine's configuration takes.
    """

    ledger: Path
    checkpoint: Path
    suite: Path
    prompts: tuple[str, ...]
    max_new_tokens: int
    settings: Settings = QUICK
    budget_s: float | None = None
    budget_runs: int | None = None
    window: Window | None = None
    timeout_s: float = 1800.0
    grace_s: float = GRACE_S
    command: tuple[str, ...] = launch.ENGINE_COMMAND
    profile: tuple[str, ...] = ()
    notify: tuple[str, ...] = ()
    proposers: tuple[Proposer, ...] = ()
    terms: Terms = field(default_factory=Terms)
    fields: tuple[str, ...] = ()
    cwd: Path = field(default_factory=Path.cwd)
    new_campaign: bool = False
    patience_s: float = 1.0
    first_config: dict[str, object] = field(default_factory=dict)
    holdout: Path | None = None
    heads: HeadOrder = field(default_factory=HeadOrder)
    server_command: tuple[str, ...] = (sys.executable, "-m", "engine.server")
    patches: PatchOrder = field(default_factory=PatchOrder)

    @property
    def asking(self) -> Asking | None:
        """Who may be asked for levers; None: nobody."""
        names = tuple(one.name for one in self.proposers)
        return Asking(names, self.terms) if names else None

    @property
    def head_suite(self) -> Path:
        """What heads are judged on, beside the hold-out."""
        return self.heads.suite or self.suite

    @property
    def judges(self) -> tuple[str, ...]:
        """Hashes of the suites that heads are judged by, however their files are written."""
        named = (self.head_suite, self.holdout)
        return tuple(suite.content_sha256(path) for path in named if path is not None)

    @property
    def archive(self) -> Path:
        """Where trained heads are kept."""
        return archive.root_of(self.ledger)

    @property
    def forge_dir(self) -> Path:
        """Where heads are made."""
        return self.ledger.parent / "forge"

    @property
    def runs_dir(self) -> Path:
        """Where run directories lie."""
        return self.ledger.parent / "runs"


@dataclass(slots=True)
class Session:
    """What this process did so far; ``adopted`` runs were begun by an earlier one."""

    started_utc: str
    adopted: int = 0
    runs: int = 0
    ok: int = 0
    engine_s: float = 0.0
    cpu_s: float = 0.0  # of the loop's own process, start-up included
    blocked_in_a_row: int = 0
    reason: str = ""
    halted: bool = False
    stopped: bool = False  # by a person
    failed: bool = False


def plan_manifest(
    order: Order,
    step: plan.NextBlock,
    load: plan.Load,
    known: Mapping[str, str] | None,
    *,
    now_utc: str,
    campaign: CampaignRow | None = None,
    guard: Mapping[str, Any] | None = None,
    trees: Mapping[str | None, Tree] | None = None,
    patch: PatchRow | None = None,
) -> Manifest:
    """Everything needed to repeat one load; ``known``: fingerprints of the block's earlier ones.

    With its ``campaign`` the manifest also says where in the history the run belongs. ``guard``
    holds the limits of the run's memory guard; a run without them has none. ``trees`` are the
    worktrees by the patch that they hold; all arms of a load have the same patch. ``patch`` is the
    one that the block is about.
    """
    code = (trees or {}).get(load.arms[0][1].get("patch"))
    nonce = new_nonce()
    slot = "" if step.hot else f".{load.slot}"
    run_id = f"r{step.block_id[1:]}{slot}-{secrets.token_hex(3)}"
    about_heads = step.lever.kind == "head"
    measured_suite, prompts = order.suite, order.prompts
    if about_heads:
        measured_suite, prompts = suite.beside(order.head_suite, order.holdout, order.forge_dir)
    config = engine_config(
        run_id=run_id,
        nonce=nonce,
        checkpoint=str(order.checkpoint),
        head=None,
        suite=str(measured_suite),
        prompts=prompts,
        arms={name: arm_config(config, about_heads) for name, config in load.arms},
        heads={
            name: (str(order.archive / str(head)), archive.weights_sha256(order.archive, str(head)))
            for name, config in load.arms
            if (head := config.get("head")) is not None
        },
        order=load.order,
        # The incumbent's plain decode is the reference of both arms: only equal tokens compare,
        # and a candidate that changes them is incorrect, not fast.
        plain_arms=(load.arms[0][0],),
        max_new_tokens=order.max_new_tokens,
        seed=LOSSY_SEED if step.lever.lossy else step.seed,
        temperature=LOSSY_TEMPERATURE if step.lever.lossy else 0.0,
        sources={} if code is None else {name: code.source_sha256 for name, _ in load.arms},
    )
    if about_heads:
        config["of_suite"] = str(order.suite)
        config["of_judges"] = list(order.judges)
    if step.lever.lossy:
        config["lossy"] = [CANDIDATE]
    return Manifest(
        run_id=run_id,
        nonce=nonce,
        config=config,
        argv=launch.engine_argv(order.runs_dir.resolve() / run_id, order.command),
        cwd=str(order.cwd if code is None else code.path),
        created_utc=now_utc,
        timeout_s=order.timeout_s,
        grace_s=order.grace_s,
        lever_identity=step.lever.identity,
        lever_name=step.lever.name,
        block_id=step.block_id,
        load_index=load.slot,
        null=step.null or step.incumbent == step.candidate,
        heartbeat_gap_s=HEARTBEAT_GAP_S,
        # Rounds are counted, not timed: a busy host changes nothing about a head.
        load_limit=None if about_heads else host.load_limit(host.cores()),
        fingerprints=dict(known) if known else None,
        lineage=None if campaign is None else lineage.to_json(campaign, step, patch),
        guard=guard,
    )


def arm_config(config: Mapping[str, Any], about_heads: bool) -> dict[str, Any]:
    """What the engine is asked for: its part, with every draft verified where heads compare."""
    asked = engine_part(config)
    return asked | {"verify_policy": "fixed"} if about_heads else asked


def best_json(
    found: Best, checkpoint: Path | None, root: Path | None = None
) -> dict[str, object]:
    """The best configuration as a file: what the server loads, and where it comes from.

    `root` is the archive that its head lies in.
    """
    head = found.config.get("head")
    return {
        "checkpoint": None if checkpoint is None else str(checkpoint),
        "head": None if head is None else str(head if root is None else root / str(head)),
        "config": engine_part(found.config),
        "fingerprint": fingerprint(dict(found.config)),
        "decisions": list(found.promotions),
    }


def write_best(found: Best, folder: Path, checkpoint: Path) -> Path:
    """Leave best.json in the ledger's folder."""
    path = folder / BEST_FILE
    write_atomic(path, dump(best_json(found, checkpoint, folder.resolve() / archive.FOLDER)))
    return path
