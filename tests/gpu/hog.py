"""Takes memory of the first CUDA device: ``hog.py BYTES PAUSE_S LIMIT_BYTES``, then holds it.

Plain allocations of the driver, a piece at a time, so that a guard sees them come.
"""

from __future__ import annotations

import sys
import time

import torch


def main() -> None:
    """Take until the limit, say so, and stay."""
    piece, pause_s, limit = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    held: list[torch.Tensor] = []
    while len(held) * piece < limit:
        held.append(torch.ones(piece, dtype=torch.uint8, device="cuda"))
        torch.cuda.synchronize()
        time.sleep(pause_s)
    print("holding", flush=True)
    time.sleep(600)


main()
