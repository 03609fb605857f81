"""Capture: what the target held while it read its own answers, in safetensors shards.

For a sequence of T + 1 ids a shard holds the states of its first T positions: the taps that the
draft head reads and the input of the LM head, from which the target's whole distribution follows.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from engine.checkpoint import checkpoint_sha256
from engine.errors import NumericsError
from engine.heads import regenerate
from engine.heads.pace import Pace
from engine.heads.regenerate import Sample
from engine.heads.source import Source, States, prove_deterministic
from engine.heads.stage import Stage, StageRefused, require, require_room, write_json
from engine.train.card import sha256

INDEX = "shards.json"
STORED = {"bfloat16": torch.bfloat16, "float32": torch.float32}
# A greedy reply is the argmax of these very states, but for ties that another batch shape breaks.
LEAST_AGREEMENT = 0.98


def capture(
    out: Path,
    sequences: Path,
    checkpoint: Path,
    source: Source,
    *,
    store: str = "bfloat16",
    per_shard: int = 32,
) -> dict[str, Any]:
    """Capture every fit sequence of a regeneration stage; returns the card's facts.

    Whole shards survive an interruption. Raises NumericsError when the forward does not repeat
    itself or holds values that are not finite, StageRefused when what it holds does not fit the
    sequences.
    """
    card = require(sequences, "regenerate")
    found = [s for s in regenerate.load(sequences) if s.fit]
    asked = {
        "sequences": card["files"][regenerate.FILE]["sha256"], "store": store,
        "source": source.name, "checkpoint": checkpoint_sha256(checkpoint),
        "per_shard": per_shard,
    }  # fmt: skip
    stage = Stage(out, "capture", asked)
    per_token = token_bytes(source, store)
    if stage.done:
        facts: dict[str, Any] = require(out, "capture")["facts"]
        return facts
    with stage:
        require_room(out, per_token * sum(len(s.ids) for s in found), stage.name)
        longest = max((len(s.ids) for s in found), default=0)
        proved = prove_deterministic(source, longest)
        shards = _kept(out)
        pace = Pace("capture", len(found), "sequences", sum(s["sequences"] for s in shards))
        extra = f" at {per_token} bytes a token"
        for start in range(pace.done, len(found), per_shard):
            part = found[start : start + per_shard]
            shards.append(_shard(out, len(shards), part, source, STORED[store]))
            write_json(out / INDEX, shards)
            pace.step(len(part), extra)
        facts = {
            "sequences": len(found), "tokens": sum(s["tokens"] for s in shards),
            "bytes_per_token": per_token, "deterministic": proved,
            "agreement": min((s["agreement"] for s in shards), default=None),
        }  # fmt: skip
        stage.finish((INDEX, *(s["name"] for s in shards)), facts)
    return facts


def token_bytes(source: Source, store: str) -> int:
    """Bytes that one captured token takes: its id, its taps and its LM-head input."""
    g = source.geometry
    width = (len(g.dspark_target_layer_ids) + 1) * g.hidden_size
    return 4 + width * STORED[store].itemsize


def _kept(out: Path) -> list[dict[str, Any]]:
    """The shards that an interrupted capture finished, proved by hash."""
    if not (out / INDEX).exists():
        return []
    shards: list[dict[str, Any]] = json.loads((out / INDEX).read_text(encoding="utf-8"))
    for shard in shards:
        path = out / shard["name"]
        if not path.is_file() or sha256(path) != shard["sha256"]:
            raise StageRefused(f"{path} is not the shard that was captured; remove {out}.")
    return shards


def _shard(
    out: Path, number: int, part: Sequence[Sample], source: Source, dtype: torch.dtype
) -> dict[str, Any]:
    pieces: dict[str, list[Tensor]] = {"ids": [], "taps": [], "hidden": []}
    matched = judged = 0
    for sequence in part:
        ids = torch.tensor(sequence.ids, dtype=torch.int32)
        states = source.run(sequence.ids[:-1])
        good, of = validate(source, sequence, states)
        matched, judged = matched + good, judged + of
        pieces["ids"].append(ids)
        pieces["taps"].append(states.taps.to(dtype))
        pieces["hidden"].append(states.hidden.to(dtype))
    agreement = matched / judged if judged else 1.0
    if agreement < LEAST_AGREEMENT:
        raise StageRefused(
            f"The captured states predict {agreement:.1%} of the target's own greedy tokens; they "
            "are not the states of these sequences."
        )
    tensors = {name: torch.cat(found) for name, found in pieces.items()}
    tensors["tokens"] = torch.tensor([len(s.ids) - 1 for s in part])
    tensors["prompts"] = torch.tensor([len(s.prompt) for s in part])
    _spread(tensors)
    path = out / f"shard-{number:05d}.safetensors"
    partial = path.with_suffix(".partial")
    about = json.dumps([{"id": s.id, "category": s.category} for s in part])
    save_file(tensors, partial, metadata={"sequences": about})
    partial.replace(path)
    return {
        "name": path.name, "sequences": len(part), "tokens": int(tensors["tokens"].sum()),
        "agreement": round(agreement, 6), "sha256": sha256(path),
    }  # fmt: skip


def validate(source: Source, sequence: Sample, states: States) -> tuple[int, int]:
    """Check one sequence's states; returns how many greedy reply tokens they predict, and of how
    many."""
    g, count = source.geometry, len(sequence.ids) - 1
    taps = len(g.dspark_target_layer_ids) * g.hidden_size
    if states.taps.shape != (count, taps) or states.hidden.shape != (count, g.hidden_size):
        raise StageRefused(f"The states of {sequence.id} have the wrong shape for {count} tokens.")
    if not all(0 <= i < g.vocab_size for i in sequence.ids):
        raise StageRefused(f"The sequence {sequence.id} holds ids outside the vocabulary.")
    for part in states:
        if not bool(part.isfinite().all()):
            raise NumericsError(f"The states of {sequence.id} are not finite.")
        if not bool((part != 0).any(-1).all()):
            raise StageRefused(f"A position of {sequence.id} has states of zeros alone.")
    if sequence.temperature:
        return 0, 0
    first = len(sequence.prompt) - 1
    guess = source.logits(states.hidden[first:]).argmax(-1)
    return int((guess == torch.tensor(sequence.reply)).sum()), len(sequence.reply)


def _spread(tensors: dict[str, Tensor]) -> None:
    """A channel of one tap that never moves was not computed."""
    for name in ("taps", "hidden"):
        still = (tensors[name].float().std(0) == 0).sum()
        if int(still):
            raise StageRefused(f"{int(still)} channels of the captured {name} never change.")
