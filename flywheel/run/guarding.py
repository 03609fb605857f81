"""The memory guard's limits for the next run: from the box, and from what healthy runs left."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any

from sqlalchemy import Connection

from flywheel.box import device
from flywheel.guard.limits import CGROUP, MEMINFO, limits
from flywheel.guard.memory import BlindError, HostMemory
from flywheel.ledger import evidence
from flywheel.loop.order import Order


def guard_of(connection: Connection, order: Order) -> Mapping[str, Any] | None:
    """The manifest's ``guard`` field; None on a box that does not tell its memory."""
    try:
        # A container on a large box has its own limit's size, not the box's.
        with closing(HostMemory(MEMINFO, CGROUP)) as memory:
            total_bytes = memory.total_bytes()
    except BlindError:
        return None
    key = device.key()
    low_water_bytes = evidence.low_water_bytes(connection)
    found = limits(total_bytes, low_water_bytes, device=None if key == device.CPU else key)
    return found.to_json()
