"""The scripted engine's command line."""

from __future__ import annotations

import argparse
from pathlib import Path


def parser() -> argparse.ArgumentParser:
    """Its options: the contract's two, and what to do wrong."""
    made = argparse.ArgumentParser(prog="python -m flywheel.selftest.engine", description=__doc__)
    made.add_argument("--config", type=Path, required=True)
    made.add_argument("--log", type=Path, required=True)
    made.add_argument("--fault", default="", help="die or lie in this one way")
    made.add_argument("--only-arm", default="", help="the fault needs this field=value in an arm")
    made.add_argument("--effect", action="append", default=[], metavar="FIELD=VALUE:FACTOR")
    made.add_argument("--noise", type=float, default=0.002, help="spread of one point")
    made.add_argument("--load-noise", type=float, default=0.002, help="spread of whole loads")
    made.add_argument("--ms", type=float, default=0.05, help="time per token of the default")
    made.add_argument("--load", type=float, default=0.0, help="seconds that loading takes")
    made.add_argument("--sleep", type=float, default=0.0, help="seconds more that a run takes")
    made.add_argument("--hold", default="", help="wait at this stage until it is released")
    made.add_argument("--release", type=Path, help="the file that releases it: beside the log")
    made.add_argument("--witness", type=Path, help="append a line here at every start and seal")
    made.add_argument("--source", type=Path, help="the file that passes for the engine's source")
    made.add_argument("--speed", type=Path, help="a file whose FACTOR = X makes it slower by that")
    made.add_argument("--old-log", type=Path, help="a log of an older run, for replays")
    made.add_argument("--signal", type=int, default=0, help="the signal of the fault 'signal'")
    made.add_argument("--bytes", type=int, default=0, help="a size for the fault that needs one")
    return made
