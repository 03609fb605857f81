"""``python -m flywheel.selftest.engine --config C --log L``: one scripted run."""

from __future__ import annotations

import sys

from flywheel.selftest.engine.options import parser
from flywheel.selftest.engine.program import Program
from flywheel.selftest.engine.witness import log_sha, tell


def main() -> int:
    """Run, and bear witness to the start and the seal."""
    args = parser().parse_args()
    program = Program(args)
    run_id = program.config["run_id"]
    tell(args.witness, "start", run=run_id)
    program.run()
    if args.witness is not None:
        tell(args.witness, "sealed", run=run_id, points=program.written["point"],
             sha256=log_sha(args.log))  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
