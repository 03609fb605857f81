"""``python -m flywheel``."""

import sys

from flywheel.cli.app import main

sys.exit(main())
