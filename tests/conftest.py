"""What holds for all tests."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """Programs that tests start heed Ctrl-C, also where the tests themselves run in background.

    A shell starts what it puts in the background with SIGINT ignored, and children inherit that.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
