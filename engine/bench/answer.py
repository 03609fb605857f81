"""How a benchmark of the triton backend answers what it cannot do: one sentence and a status."""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch

from engine.errors import DeviceBusy, EngineError

REFUSED, BUSY = 2, 3


def answered(run: Callable[[], None]) -> int:
    """0 once `run` is through; else one sentence on standard error, and 2, or 3 if it is busy."""
    try:
        run()
    except DeviceBusy as error:
        print(error, file=sys.stderr)
        return BUSY
    except ImportError as error:
        print(f"The triton backend cannot run here: {error}.", file=sys.stderr)
        return REFUSED
    except EngineError as error:
        print(error, file=sys.stderr)
        return REFUSED
    except torch.OutOfMemoryError:
        print("This does not fit the GPU's memory; ask for less at once.", file=sys.stderr)
        return REFUSED
    return 0
