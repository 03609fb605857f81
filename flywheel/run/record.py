"""What a good log says, as frozen data: the output of `parse`, the input of `block`.

Field names are those of the log's events. `line` is the 1-based line of the log that an entry was
read from (0 when it was not read from a log). Times are integers of nanoseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineBuild:
    """The code that ran."""

    version: str
    git_revision: str | None
    git_dirty: bool | None
    source_sha256: str


@dataclass(frozen=True, slots=True)
class Asset:
    """A checkpoint or a draft head: where it lay and what it held."""

    path: str
    sha256: str


@dataclass(frozen=True, slots=True)
class SuiteRef:
    """The prompts' file."""

    name: str
    version: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Device:
    """`kind` is cpu or cuda."""

    kind: str
    name: str
    driver: str | None
    cores: int


@dataclass(frozen=True, slots=True)
class Clocks:
    """Clock policy in force during the run."""

    policy: str
    mhz: float | None


@dataclass(frozen=True, slots=True)
class RunPlan:
    """What the run set out to measure, as the engine understood it."""

    arms: tuple[str, ...]
    order: tuple[str, ...]
    plain_arms: tuple[str, ...]
    prompts: tuple[str, ...]
    max_new_tokens: int
    seed: int
    temperature: float = 0.0


@dataclass(frozen=True, slots=True)
class Arm:
    """A configuration as asked for and as the engine resolved it."""

    name: str
    requested: Mapping[str, object]
    effective: Mapping[str, object]
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Header:
    """The `start` event."""

    protocol: int
    run_id: str
    engine: EngineBuild
    checkpoint: Asset
    head: Asset | None
    suite: SuiteRef
    device: Device
    clocks: Clocks
    mode: str
    torch: str
    plan: RunPlan
    arms: tuple[Arm, ...]
    synthetic: bool = False  # random weights: only plain decode is measured

    def arm(self, name: str) -> Arm:
        """The arm of that name; KeyError when there is none."""
        for arm in self.arms:
            if arm.name == name:
                return arm
        raise KeyError(name)


@dataclass(frozen=True, slots=True)
class Loaded:
    """The `loaded` event."""

    load_ns: int
    weights_bytes: int
    tensors: int
    line: int = 0


@dataclass(frozen=True, slots=True)
class Control:
    """First greedy token after prefill, one per arm."""

    arm: str
    prompt: str
    token: int
    finite: bool
    passed: bool
    line: int = 0


@dataclass(frozen=True, slots=True)
class Plain:
    """Plain decode of one prompt: one token per target forward."""

    arm: str
    prompt: str
    category: str
    prompt_tokens: int
    tokens: int
    forwards: int
    prefill_ns: int
    ttft_ns: int
    decode_ns: int
    tokens_sha256: str
    stop: str
    distinct_4gram: float
    counted: bool
    excluded: str | None
    finite: bool
    line: int = 0


@dataclass(frozen=True, slots=True)
class Point:
    """One speculative decode of one prompt by one arm: one repeat.

    `tokens` includes the first token, which comes from prefill; `decode_ns` covers the other
    tokens - 1.
    """

    arm: str
    prompt: str
    category: str
    repeat: int
    prompt_tokens: int
    tokens: int
    rounds: int
    forwards: int
    prefill_ns: int
    ttft_ns: int
    decode_ns: int
    accepted_by_position: tuple[int, ...]
    offered_by_position: tuple[int, ...]
    max_committed: int
    width: int
    tokens_sha256: str
    stop: str
    counted: bool
    excluded: str | None
    finite: bool
    line: int = 0


@dataclass(frozen=True, slots=True)
class FirstDiff:
    """Where a speculative generation left the plain one."""

    index: int
    plain: int
    spec: int


@dataclass(frozen=True, slots=True)
class Gate:
    """A correctness check of one point; `passed` is the event's `pass`."""

    kind: str
    arm: str
    prompt: str
    repeat: int
    compared: int
    passed: bool
    first_diff: FirstDiff | None
    line: int = 0


@dataclass(frozen=True, slots=True)
class StepCost:
    """Median time of one verify step of `width` rows."""

    arm: str
    width: int
    ns: int
    line: int = 0


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One sealed, complete, admissible run."""

    run_id: str
    header: Header
    plains: tuple[Plain, ...]
    points: tuple[Point, ...]
    gates: tuple[Gate, ...]
    step_costs: tuple[StepCost, ...]
    peak_rss_bytes: int
    seal: str
    loaded: Loaded | None = None
    controls: tuple[Control, ...] = ()
