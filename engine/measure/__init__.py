"""The measuring program: one load, every arm in palindromic order, one sealed log.

`python -m engine.measure --config C --log L`. Whoever judges the numbers sees this log and nothing
else; the format is in `docs/log-contract.md`.
"""

# First, so that it knows the clocks as they were before anything else was loaded.
from engine.measure import sentinel as sentinel
