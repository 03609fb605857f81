"""Amounts on the command lines of the benchmarks, each refused in words where it cannot be."""

from __future__ import annotations

import argparse
import math
import re

_WHOLE = re.compile("[0-9]{1,9}")


def count(text: str) -> int:
    """A number of rows, replays, tiles or processes."""
    if not _WHOLE.fullmatch(text) or int(text) == 0:
        raise argparse.ArgumentTypeError("must be a whole number of at least 1")
    return int(text)


def seconds(text: str) -> float:
    """A length of time."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError("must be a number of seconds above 0")
    return value
