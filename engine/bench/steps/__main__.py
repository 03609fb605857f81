"""`python -m engine.bench.steps`."""

import sys

from engine.entry import enter

if __name__ == "__main__":
    sys.exit(enter("engine.bench.steps"))
