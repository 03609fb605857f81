"""A record as measurements: one number each, with its unit, its source line and no rounding.

Every number is an exact ratio of integers; it is divided only when printed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from flywheel.run.record import Point, RunRecord


@dataclass(frozen=True, slots=True)
class Measurement:
    """numerator / denominator in `unit`. `prompt` is empty for numbers of a whole arm or run."""

    arm: str
    prompt: str
    category: str
    repeat: int
    metric: str
    numerator: int
    denominator: int
    unit: str
    counted: bool
    line: int

    @property
    def value(self) -> float:
        """The ratio."""
        return self.numerator / self.denominator

    def as_dict(self) -> dict[str, object]:
        """Plain JSON."""
        return {name: getattr(self, name) for name in self.__slots__}


def measurements(record: RunRecord) -> tuple[Measurement, ...]:
    """Every number of a record that a report or a later decision may use."""
    return (*_points(record), *_plains(record), *_arms(record), *_run(record))


def _points(record: RunRecord) -> Iterator[Measurement]:
    for p in record.points:
        common = (p.arm, p.prompt, p.category, p.repeat)
        made = p.tokens - 1
        yield Measurement(*common, "time", p.decode_ns, made, "ns/token", p.counted, p.line)
        if not record.header.synthetic:
            yield Measurement(*common, "tau", made, p.rounds, "token/round", p.counted, p.line)
        yield Measurement(
            *common, "prefill", p.prefill_ns, p.prompt_tokens, "ns/token", p.counted, p.line
        )
        yield Measurement(*common, "ttft", p.ttft_ns, 1, "ns", p.counted, p.line)


def _plains(record: RunRecord) -> Iterator[Measurement]:
    if record.header.synthetic:
        return  # its points are plain decode already: there is nothing to set beside them
    for p in record.plains:
        if p.tokens > 1:
            yield Measurement(
                p.arm, p.prompt, p.category, 0, "plain_time", p.decode_ns, p.tokens - 1,
                "ns/token", p.counted, p.line,
            )


def _arms(record: RunRecord) -> Iterator[Measurement]:
    by_arm: dict[str, list[Point]] = defaultdict(list)
    for point in record.points:
        if point.counted:
            by_arm[point.arm].append(point)
    for arm, points in by_arm.items():
        positions = max(len(p.offered_by_position) for p in points)
        for k in range(positions):
            reached = [p for p in points if k < len(p.offered_by_position)]
            accepted = sum(p.accepted_by_position[k] for p in reached)
            offered = sum(p.offered_by_position[k] for p in reached)
            if offered:
                yield Measurement(
                    arm, "", "", k + 1, "accepted", accepted, offered, "accepted/offered", True,
                    points[0].line,
                )
    for cost in record.step_costs:
        yield Measurement(
            cost.arm, "", "", cost.width, "step_cost", cost.ns, 1, "ns", True, cost.line
        )


def _run(record: RunRecord) -> Iterator[Measurement]:
    yield Measurement("", "", "", 0, "peak_rss", record.peak_rss_bytes, 1, "byte", True, 0)
    if record.loaded is not None:
        yield Measurement("", "", "", 0, "load", record.loaded.load_ns, 1, "ns", True,
                          record.loaded.line)
