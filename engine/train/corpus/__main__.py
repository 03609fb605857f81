"""`python -m engine.train.corpus`."""

import sys

from engine.entry import enter

if __name__ == "__main__":
    sys.exit(enter("engine.train.corpus"))
