"""``python -m flywheel.simulate``."""

import sys

from flywheel.entry import enter

if __name__ == "__main__":
    sys.exit(enter("flywheel.simulate", "flywheel.simulate.command"))
