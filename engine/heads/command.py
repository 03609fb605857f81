"""`python -m engine.heads STAGE`: heads made, looked at and installed, stage by stage.

Every stage has a folder, goes on where it was interrupted, and refuses inputs that are not whole.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from engine import lease
from engine.errors import ConfigError, DeviceBusy, EngineError
from engine.heads import (
    arm,
    capture,
    corpus,
    export,
    figures,
    full,
    regenerate,
    rehearsal,
    replay,
)
from engine.heads.captured import Captured
from engine.heads.head import Head
from engine.heads.options import config_of, device_of, object_of
from engine.heads.recipe import Recipe
from engine.heads.source import DeviceSource, EngineSource, Source
from engine.suite import ASSETS

FREE = ("corpus", "install")  # stages that do not compute on the device
BARE = ("full",)  # stages that read no checkpoint


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog="python -m engine.heads", description=__doc__)
    commands = top.add_subparsers(dest="stage", required=True)

    def stage(name: str, what: str) -> Callable[..., Any]:
        one = commands.add_parser(name, help=what, description=what)
        if name not in BARE:
            one.add_argument("--checkpoint", type=Path, default=ASSETS / "tiny-v4")
        one.add_argument("--json", action="store_true", help="print the facts as JSON")
        if name not in FREE:
            one.add_argument("--device", default="cpu", help="cpu or cuda")
            if name not in BARE:
                one.add_argument("--config", default="{}", help="engine configuration, JSON")
            one.add_argument(
                "--lease-held", action="store_true", help="the caller holds the device's lock"
            )
        return one.add_argument

    add = stage("corpus", "prompts, balanced over the categories, that share nothing with a suite")
    add("--out", type=Path, help="its folder; needed unless it is only checked")
    add("--check", action="store_true", help="could it be filled? nothing is written")
    add("--per-category", type=int, default=16)
    add("--chats", type=Path, help="JSON lines of category, messages, licence, source")
    add(
        "--suite",
        type=Path,
        action="append",
        help="what heads are judged by; all the embedded suites by default",
    )
    add = stage("regenerate", "the target's own answers to the prompts")
    add("--corpus", type=Path, required=True)
    add("--out", type=Path, required=True)
    _amounts(add)
    add = stage("capture", "what the target holds while it reads its answers")
    add("--sequences", type=Path, required=True)
    add("--out", type=Path, required=True)
    add("--store", choices=tuple(capture.STORED), default="bfloat16")
    add("--per-shard", type=int, default=32)
    add = stage("train", "one arm: gate, training, export")
    add("--capture", type=Path, required=True)
    add("--out", type=Path, required=True)
    add("--head", type=Path, help="start from this head instead of the checkpoint's own")
    add("--recipe", default="{}", help="what differs from the default recipe, JSON")
    add("--save-every", type=int, default=100, help="steps between resume files")
    add = stage("replay", "acceptance of a head on captured sequences; no measurement")
    add("--capture", type=Path, required=True)
    add("--head", type=Path)
    add("--width", type=int, default=0, help="drafts a round; 0 is the head's block")
    add("--limit", type=int)
    add = stage("compare", "a head beside the checkpoint's own on suites: tau by category")
    add("--head", type=Path, required=True)
    add("--suite", type=Path, action="append", help="suite files; the embedded two by default")
    add("--temperature", type=float, action="append", help="0 and 1 by default")
    add("--max-new-tokens", type=int, default=256)
    add("--seed", type=int, default=1)
    add = stage("bounds", "what binds a head: corpus, capacity or the target's doubt")
    add("--capture", type=Path, required=True)
    add("--head", type=Path)
    add("--trained", type=int, required=True, help="sequences that the head was trained on")
    add("--steps", type=int, default=200, help="of learning one sequence by heart")
    add("--sequences", type=int, default=8, help="replayed of each kind")
    add = stage("retired", "tree drafting, and typical acceptance, which is LOSSY")
    add("--capture", type=Path, required=True, help="of whose sequences trees are replayed")
    add("--head", type=Path)
    add("--tree", action="append", help="children a node by depth; 1,1,1,1,1 and others by default")
    add("--suite", type=Path, default=corpus.SUITES[0])
    add("--temperature", type=float, default=1.0)
    add("--max-new-tokens", type=int, default=256)
    add("--limit", type=int, default=16, help="sequences, and prompts of the suite")
    add = stage("install", "a checkpoint of its own with a head in it")
    add("--head", type=Path, required=True)
    add("--out", type=Path, required=True)
    add = stage("rehearse", "every stage at toy scale, in a folder that is thrown away")
    add("--out", type=Path, help="where a card says how it went; without it nothing is left")
    add("--recipe", default="{}", help="the recipe to try, as of train; its amounts are made small")
    add("--head", type=Path, help="start from this head, as of train")
    add("--capture", type=Path, help="try the training alone, on what was captured")
    add("--temperature", type=float, default=1.0, help="as of regenerate")
    add = stage("full", "a few steps with a random head of full size: memory and seconds")
    add("--geometry", default="k160", help="its name, or a folder with a config.json")
    add("--stages", type=int, help="of the head; the geometry's own by default")
    add("--steps", type=int, default=4)
    add("--length", type=int, default=full.LENGTH, help="positions of the longest sequence")
    add("--recipe", default="{}", help="as of train; its steps are those of a whole training")
    return top


def _amounts(add: Callable[..., Any]) -> None:
    add("--temperature", type=float, default=1.0, help="of every other row of categories")
    add("--max-new-tokens", type=int, default=400)
    add("--limit", type=int, help="only the first prompts")
    add("--seed", type=int, default=1)
    add("--workers", type=int, default=1, help="processes that answer side by side")


def main(arguments: list[str] | None = None) -> int:
    """Exit code: 0 done; with one sentence, 2 refused, 3 the device is busy, 130 interrupted."""
    options = parser().parse_args(arguments)
    try:
        found = _run(options)
    except DeviceBusy as error:
        print(f"engine.heads: {error}", file=sys.stderr)
        return 3
    except EngineError as error:
        print(f"engine.heads: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        # A disk that is full, or a folder that may not be written or read.
        print(f"engine.heads: {error.filename or 'The disk'}: {error.strerror or error}.",
              file=sys.stderr)  # fmt: skip
        return 2
    except KeyboardInterrupt:
        goes_on = getattr(options, "out", None) is not None
        then = "the same command goes on from here" if goes_on else "nothing of it was kept"
        print(f"engine.heads: interrupted; {then}.", file=sys.stderr)
        return 130
    if options.json:
        print(json.dumps(found, indent=1))
    return 0


def _run(options: argparse.Namespace) -> Any:
    work = _STAGES[options.stage]
    if options.stage in FREE:
        return work(options)
    torch.set_num_threads(1)
    if options.lease_held:
        return work(options)
    with lease.held(f"engine.heads {options.stage}"):
        return work(options)


def _corpus(o: argparse.Namespace) -> Any:
    suites = o.suite or corpus.MEASURES
    if o.check:
        fills = corpus.fill(o.checkpoint, per_category=o.per_category, chats=o.chats, suites=suites)
        return {"prompts": sum(len(one.kept) for one in fills)}
    if o.out is None:
        raise ConfigError("corpus needs --out, or --check.")
    made = corpus.build(
        o.out, o.checkpoint, per_category=o.per_category, chats=o.chats, suites=suites
    )
    return {"prompts": len(made)}


def _regenerate(o: argparse.Namespace) -> Any:
    made = regenerate.regenerate(
        o.out, o.corpus, o.checkpoint, config=config_of(o.config), temperature=o.temperature,
        max_new_tokens=o.max_new_tokens, limit=o.limit, seed=o.seed, workers=o.workers,
    )  # fmt: skip
    return regenerate.facts(made)


def _capture(o: argparse.Namespace) -> Any:
    return capture.capture(
        o.out, o.sequences, o.checkpoint, _source(o), store=o.store, per_shard=o.per_shard
    )


def _train(o: argparse.Namespace) -> Any:
    return arm.make(
        o.out, o.capture, o.checkpoint, Recipe.parse(object_of(o.recipe, "--recipe")),
        device=device_of(o.device), head=o.head, save_every=o.save_every,
    )  # fmt: skip


def _replay(o: argparse.Namespace) -> Any:
    head = Head(o.checkpoint, device_of(o.device), head=o.head)
    found = replay.replay_all(
        head, Captured(o.capture), o.width or head.geometry.dspark_block_size, o.limit
    )
    taus = {name: float(tau) for name, tau in replay.by_category(found).items()}
    for name, tau in taus.items():
        print(f"{name:16} tau {tau:.3f}", file=sys.stderr)
    return {"tau": taus, "mean": sum(float(r.tau) for r in found) / len(found)}


def _install(o: argparse.Namespace) -> Any:
    export.install(o.checkpoint, o.head, o.out)
    return {"checkpoint": str(o.out)}


def _rehearse(o: argparse.Namespace) -> Any:
    asked = rehearsal.Rehearsal(
        o.checkpoint, Recipe.parse(object_of(o.recipe, "--recipe")), device_of(o.device),
        config_of(o.config), o.temperature, o.head, o.capture,
    )  # fmt: skip
    return rehearsal.rehearse(asked, lambda: _source(o), o.out)


def _full(o: argparse.Namespace) -> Any:
    recipe = Recipe.parse(object_of(o.recipe, "--recipe"))
    geometry = full.geometry_of(o.geometry, o.stages)
    facts = full.show(geometry, device_of(o.device), recipe, steps=o.steps, length=o.length)
    return {"geometry": o.geometry, **facts}


def _source(o: argparse.Namespace) -> Source:
    if device_of(o.device).type == "cuda":
        return DeviceSource.load(o.checkpoint, config_of(o.config))
    return EngineSource(o.checkpoint, config_of(o.config))


_STAGES: dict[str, Callable[[argparse.Namespace], Any]] = {
    "corpus": _corpus, "regenerate": _regenerate, "capture": _capture, "train": _train,
    "replay": _replay, "compare": figures.compared, "bounds": figures.bounded, "install": _install,
    "retired": figures.of_retired,
    "rehearse": _rehearse, "full": _full,
}  # fmt: skip
