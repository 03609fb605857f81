"""The figures that `python -m engine.heads` prints; none of them is a verdict."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from statistics import fmean
from typing import Any

import torch

from engine.engine import Engine
from engine.heads import bounds, compare, corpus, retired
from engine.heads.captured import Captured
from engine.heads.head import Head
from engine.heads.options import branches_of, config_of, device_of
from engine.identity import head_sha256
from engine.suite import Suite
from engine.tokenizer import Tokenizer
from engine.train.card import machine
from engine.train.forward import Forward

_TREES = ("1,1,1,1,1", "2,1,1,1,1", "2,2,1,1,1", "3,2,1,1,1")


def compared(o: argparse.Namespace) -> Any:
    """`compare`: both embedded suites, greedy and at temperature 1, unless told otherwise."""
    found = {}
    for path in o.suite or corpus.SUITES:
        suite = Suite.load(path)
        for temperature in o.temperature or (0.0, 1.0):
            pairs = compare.compare(
                o.checkpoint, o.head, suite, config=config_of(o.config), temperature=temperature,
                max_new_tokens=o.max_new_tokens, seed=o.seed,
            )  # fmt: skip
            title = f"{suite.name}, temperature {temperature:g}"
            compare.say(pairs, title, lambda text: print(text, file=sys.stderr))
            found[title] = compare.as_json(pairs)
    return {"machine": machine(torch.device("cpu")), "head": head_sha256(o.head), "of": found}


def bounded(o: argparse.Namespace) -> Any:
    """`bounds`: the gaps between ceiling, by heart, trained on and unseen."""
    found = bounds.measure(
        o.checkpoint, Captured(o.capture), head=o.head, trained=o.trained,
        device=device_of(o.device), steps=o.steps, sequences=o.sequences,
    )  # fmt: skip
    return asdict(found) | {"binds": found.binds()}


def of_retired(o: argparse.Namespace) -> Any:
    """`retired`: trees on captured text, and typical acceptance decoded for real."""
    head = Head(o.checkpoint, device_of(o.device), head=o.head)
    forward, data = Forward(head.geometry, head.device, rounding=True), Captured(o.capture)
    items = [data.item(i) for i in range(min(o.limit, len(data)))]
    trees = {}
    for text in o.tree or _TREES:
        branches = branches_of(text, head.geometry.dspark_block_size)
        taus = [float(retired.tree_replay(head, forward, i, branches).tau) for i in items]
        rows = retired.tree_rows(branches)
        trees[text] = {"rows": rows, "tau": fmean(taus)}
        print(f"tree {text:12} {rows:3d} rows a round, tau {fmean(taus):.3f}", file=sys.stderr)
    engine, tokenizer = Engine.load(o.checkpoint, config_of(o.config), head=o.head), Tokenizer.load(
        o.checkpoint)  # fmt: skip
    typical = [
        retired.typical_decode(
            engine, p.id, p.encode(tokenizer), temperature=o.temperature,
            limit=o.max_new_tokens, seed=1,
        )
        for p in Suite.load(o.suite).prompts[: o.limit]
    ]  # fmt: skip
    tau = fmean(t.tau for t in typical)
    same, all_of = (fmean(x) for x in ([t.same for t in typical], [t.tokens for t in typical]))
    said = f"plain said the first {same:.0f} of {all_of:.0f} tokens"
    print(f"typical, LOSSY   tau {tau:.3f}; {said}", file=sys.stderr)
    return {"tree": trees, "typical": {"lossy": True, "tau": tau, "of": [
        asdict(t) for t in typical]}}  # fmt: skip
