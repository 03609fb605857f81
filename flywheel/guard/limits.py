"""Where the guard's lines lie on a box.  Pure; from the size of its memory and its history.

The danger line is a share of the memory, because a small box cannot spare what a large one can.
It must lie under the lowest level at which a run was ever healthy, with a margin, or healthy loads
die.  The floor lies under it, and a fall counts as fast when it would empty the box from the
danger line within five seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from flywheel.guard.rule import Lines, Pace

MB = 1_000_000
MEMINFO = "/proc/meminfo"
CGROUP = "/sys/fs/cgroup"
# A common box gives up 1/24 of its memory, up to 2 GB; a huge one 1/256, for it falls faster.
_SMALL_SHARE, _LARGE_SHARE = 24, 256
_COMMON_DANGER_BYTES = 2000 * MB
_LEAST_DANGER_BYTES = 192 * MB
# The danger line lies at most here under the healthy low water.
_LOW_WATER_PERCENT = 85
_SECONDS_TO_EMPTY = 5


@dataclass(frozen=True, slots=True)
class Limits:
    """Everything that the guard of one run goes by; it travels in the manifest as is.

    ``device`` is the UUID of the GPU whose memory counts as well, or None; its lines follow from
    its size.  ``steep_bytes_per_s`` is the fall that the guard expects at any moment.  After a
    kill it waits up to ``back_patience_s`` for the memory to come back to within
    ``back_tolerance_bytes`` of the level before the launch.
    """

    floor_bytes: int
    danger_bytes: int
    fall_bytes_per_s: int
    floor_polls: int = 3
    fall_polls: int = 2
    poll_s: float = 0.2
    close_poll_s: float = 0.02
    steep_bytes_per_s: int = 11_500 * MB
    back_tolerance_bytes: int = 256 * MB
    back_patience_s: float = 60.0
    meminfo: str = MEMINFO
    cgroup: str = CGROUP
    device: str | None = None
    note: str | None = None

    def __post_init__(self) -> None:
        if not 0 < self.close_poll_s <= self.poll_s <= 60:
            raise ValueError("the guard's polls lie between 0 and 60 s, the close one below.")
        if self.floor_bytes < 0 or self.danger_bytes < 0 or self.fall_bytes_per_s < 0:
            raise ValueError("the guard's lines are not negative.")
        if self.floor_polls < 1 or self.fall_polls < 0:
            raise ValueError("the guard needs at least one poll under the floor.")

    @property
    def lines(self) -> Lines:
        """The lines for the memory of the host."""
        return Lines(
            self.floor_bytes,
            self.floor_polls,
            self.danger_bytes,
            self.fall_bytes_per_s,
            self.fall_polls,
        )

    @property
    def pace(self) -> Pace:
        """How often the guard looks."""
        return Pace(
            round(self.poll_s * 1e9), round(self.close_poll_s * 1e9), self.steep_bytes_per_s
        )

    def to_json(self) -> dict[str, Any]:
        """The manifest's ``guard`` field."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Limits:
        """The limits in a manifest; ValueError says what is wrong with them."""
        unknown = sorted(set(value) - {field.name for field in fields(cls)})
        if unknown:
            raise ValueError(f"the guard has an unknown field: {unknown[0]}.")
        try:
            return cls(**value)
        except TypeError as error:
            raise ValueError(f"the guard's limits are incomplete: {error}.") from error


def limits(
    mem_total_bytes: int, low_water_bytes: int | None = None, *, device: str | None = None
) -> Limits:
    """The limits for a box of this size whose healthy runs went down to ``low_water_bytes``.

    A low water so low that no useful line fits under it keeps the least line and a ``note``.
    """
    danger = min(
        mem_total_bytes // _SMALL_SHARE,
        max(_COMMON_DANGER_BYTES, mem_total_bytes // _LARGE_SHARE),
    )
    least = max(_LEAST_DANGER_BYTES, danger // 4)
    danger, note = max(danger, least), None
    if low_water_bytes is not None:
        allowed = low_water_bytes * _LOW_WATER_PERCENT // 100
        if allowed < least:
            note = (
                f"healthy runs left only {low_water_bytes / MB:.0f} MB available; the danger line "
                f"stays at {least / MB:.0f} MB and may end one: give the engine less memory."
            )
        danger = min(danger, max(least, allowed))
    return Limits(
        floor_bytes=danger * 3 // 4,
        danger_bytes=danger,
        fall_bytes_per_s=danger // _SECONDS_TO_EMPTY,
        back_tolerance_bytes=max(256 * MB, mem_total_bytes // 20),
        device=device,
        note=note,
    )


def device_lines(total_bytes: int) -> Lines:
    """The lines for a GPU's own memory.

    An engine may fill a GPU almost to the brim, and an allocation too many fails there without
    taking the box along: the lines only keep what the driver and other clients need to live.
    """
    danger = min(512 * MB, total_bytes // 64)
    return Lines(danger // 2, 3, danger, danger, 2)
