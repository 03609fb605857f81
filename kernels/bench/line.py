"""One line of the table: a kernel's time, and what its bytes would allow."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Line:
    """Times are of one call inside a CUDA graph, the gap to the next one included."""

    name: str
    rows: int
    weight_bytes: float
    median_us: float
    least_us: float
    most_us: float
    ceiling_gb_s: float

    @classmethod
    def of(
        cls, name: str, rows: int, weight_bytes: float, times_us: Sequence[float], ceiling: float
    ) -> Line:
        """A line of repeated times; `ceiling` is the bandwidth that the machine reached, GB/s."""
        median = statistics.median(times_us)
        return cls(name, rows, weight_bytes, median, min(times_us), max(times_us), ceiling)

    @property
    def floor_us(self) -> float:
        """Time of the bytes alone at the machine's own bandwidth."""
        return self.weight_bytes / self.ceiling_gb_s / 1e3

    @property
    def gb_s(self) -> float:
        """Bytes that had to be read over the median time."""
        return self.weight_bytes / self.median_us / 1e3

    def plain(self) -> dict[str, object]:
        """Plain values for JSON."""
        return {
            "name": self.name,
            "rows": self.rows,
            "bytes": self.weight_bytes,
            "us": self.median_us,
            "us_least": self.least_us,
            "us_most": self.most_us,
            "floor_us": self.floor_us,
            "gb_s": self.gb_s,
            "of_ceiling": self.gb_s / self.ceiling_gb_s,
        }


def table(lines: Sequence[Line]) -> str:
    """The lines as text; units in the head, times in microseconds."""
    head = f"{'kernel':<24}{'rows':>5}{'MB':>8}{'us':>9}{'least':>9}{'most':>9}{'floor':>8}"
    out = [head + f"{'GB/s':>8}{'of ceiling':>12}"]
    for line in lines:
        out.append(
            f"{line.name:<24}{line.rows:>5}{line.weight_bytes / 1e6:>8.1f}{line.median_us:>9.2f}"
            f"{line.least_us:>9.2f}{line.most_us:>9.2f}{line.floor_us:>8.2f}{line.gb_s:>8.0f}"
            f"{line.gb_s / line.ceiling_gb_s:>12.1%}"
        )
    return "\n".join(out)
