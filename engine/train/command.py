"""`python -m engine.train all|backbone|draft|probe ...`: make the project's own checkpoint."""

from __future__ import annotations

import argparse
import sys

import torch

from engine import lease
from engine.errors import DeviceBusy, EngineError
from engine.train.session import Options, Session


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog="python -m engine.train", description=__doc__)
    top.add_argument("what", choices=("all", "backbone", "draft", "probe"))
    add = top.add_argument
    add("--corpus", help="folder with {train,heldout}.u16.bin, corpus.json; none: rehearsal text")
    add("--out", default="out/tiny-v4", help="folder for the checkpoint")
    add("--config", default="engine/assets/tiny-v4", help="folder of config.json, tokenizer.json")
    add("--start", help="checkpoint folder to start from instead of random values")
    add("--fresh-head", action="store_true", help="draft: begin a new head on START's backbone")
    add("--resume", action="store_true", help="go on from OUT/resume.pt")
    add("--minutes", type=float, help="wall time of the backbone training")
    add("--steps", type=int, help="steps of the backbone training, instead of minutes")
    add("--draft-minutes", type=float, help="wall time of the draft-head training")
    add("--draft-steps", type=int, help="steps of the draft-head training, instead of minutes")
    add("--batch", type=int, default=32, help="rows a step")
    add("--length", type=int, default=1024, help="tokens a row")
    add("--draft-batch", type=int, default=32)
    add("--anchors", type=int, default=48, help="draft anchors a row")
    add("--matrix-rate", type=float, default=0.02)
    add("--adam-rate", type=float, default=3e-3)
    add("--no-muon", dest="muon", action="store_false", help="AdamW for all tensors")
    add("--no-compile", dest="compile", action="store_false")
    add("--seed", type=int, default=1)
    add("--save-every", type=int, default=0, help="steps between resume files")
    add("--samples", type=int, default=24, help="held-out prompts continued at the end")
    add("--sample-tokens", type=int, default=120)
    add("--seconds", type=float, default=60.0, help="limit of probe")
    add("--probe-batches", default="32,64")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    add("--smoke", action="store_true", help="everything at the smallest scale")
    return top


def main(arguments: list[str] | None = None) -> int:
    """Exit code: 0 done; with one sentence, 2 refused, 3 the device is busy."""
    options = Options(**vars(parser().parse_args(arguments)))
    try:
        with lease.held(f"engine.train {options.what}"):
            Session(options).run()
    except DeviceBusy as error:
        print(f"engine.train: {error}", file=sys.stderr)
        return 3
    except EngineError as error:
        print(f"engine.train: {error}", file=sys.stderr)
        return 2
    return 0
