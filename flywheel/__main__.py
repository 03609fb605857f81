"""``flywheel``, and ``python -m flywheel``."""

import sys

from flywheel.entry import enter


def main() -> int:
    """The command line."""
    return enter("flywheel", "flywheel.cli.app")


if __name__ == "__main__":
    sys.exit(main())
