"""The ruler: everything that makes two numbers comparable, as data with an identity.

Pure. Comparing across rulers is refused, and the refusal names what differs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Protocol

from flywheel import synthetic
from flywheel.errors import RulerMismatch
from flywheel.lever import fingerprint
from flywheel.run.record import Header

METRIC_VERSION = 1


@dataclass(frozen=True, slots=True)
class Ruler:
    """`name` is quick or full; `sampling` names the decoding (greedy unless said otherwise).

    Both say so where the weights are random.

    `width` and `verify_policy` are set only for rulers of tau, which depends on them.
    """

    name: str
    suite: str
    suite_sha256: str
    prompts: tuple[str, ...]
    max_new_tokens: int
    sampling: str
    checkpoint_sha256: str
    device: str
    driver: str | None
    cores: int
    clock_policy: str
    protocol: int
    metric: str = "ms_per_token"
    metric_version: int = METRIC_VERSION
    width: int | None = None
    verify_policy: str | None = None

    @property
    def kind(self) -> tuple[str, int | None, str | None]:
        """What rulers of one campaign may differ in: the metric, and what tau was measured at."""
        return self.metric, self.width, self.verify_policy

    @property
    def identity(self) -> str:
        """Hex sha256 of every field: equal rulers, and only they, share it."""
        return fingerprint(self.as_dict())

    @property
    def synthetic(self) -> bool:
        """Whether it measures random weights: plain decode, and no text that means anything."""
        return self.name.startswith(f"{synthetic.WORD} ")

    @property
    def label(self) -> str:
        """Short printed name, such as `quick-1a2b3c`."""
        return f"{self.name}-{self.identity[:6]}"

    def as_dict(self) -> dict[str, object]:
        """Plain JSON."""
        return {**asdict(self), "prompts": list(self.prompts)}

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> Ruler:
        """Inverse of `as_dict`. Raises RulerMismatch on a field this version does not know."""
        known = {f.name for f in fields(cls)}
        if unknown := sorted(set(data) - known):
            raise RulerMismatch(f"ruler has fields unknown to this version: {', '.join(unknown)}")
        values = dict(data)
        prompts = values.pop("prompts")
        assert isinstance(prompts, list | tuple)
        return cls(prompts=tuple(str(p) for p in prompts), **values)  # type: ignore[arg-type]


def of_header(header: Header, name: str, *, metric: str = "ms_per_token") -> Ruler:
    """The ruler under which a run was measured, from what the engine itself reported."""
    return Ruler(
        name=f"{synthetic.WORD} {name}" if header.synthetic else name,
        suite=f"{header.suite.name} {header.suite.version}",
        suite_sha256=header.suite.sha256,
        prompts=header.plan.prompts,
        max_new_tokens=header.plan.max_new_tokens,
        sampling=_sampling(header),
        checkpoint_sha256=header.checkpoint.sha256,
        device=header.device.name,
        driver=header.device.driver,
        cores=header.device.cores,
        clock_policy=header.clocks.policy,
        protocol=header.protocol,
        metric=metric,
        width=_of_tau(header, metric, "draft_width"),
        verify_policy=_of_tau(header, metric, "verify_policy"),
    )


def _sampling(header: Header) -> str:
    warm = header.plan.temperature
    words = "greedy" if not warm else f"temperature {warm:g}, seed {header.plan.seed}"
    return f"{words}, plain" if header.synthetic else words


def _of_tau(header: Header, metric: str, field: str) -> Any:
    """What tau depends on, of the first arm: arms of one ruler of tau share it."""
    return header.arms[0].effective.get(field) if metric == "tau" else None


class Measure(Protocol):
    """Any ruler, ours or another project's: a label and the fields that it stands for."""

    @property
    def label(self) -> str:
        """Short printed name."""

    def as_dict(self) -> dict[str, object]:
        """Plain JSON."""


def differences(left: Measure, right: Measure) -> tuple[str, ...]:
    """Sentences `field: left is not right`, one for each field that differs or only one has."""
    mine, other = left.as_dict(), right.as_dict()
    return tuple(
        f"{k}: {_short(mine.get(k, 'absent'))} is not {_short(other.get(k, 'absent'))}"
        for k in {**mine, **other}
        if mine.get(k, "absent") != other.get(k, "absent")
    )


def compare(left: Measure, right: Measure) -> None:
    """Return quietly when the rulers are equal; raise RulerMismatch naming the fields if not."""
    if different := differences(left, right):
        raise RulerMismatch(
            f"rulers {left.label} and {right.label} do not compare; " + "; ".join(different)
        )


def _short(value: object) -> str:
    if isinstance(value, list):
        return f"{len(value)} prompts ({fingerprint(value)[:8]})"
    text = str(value)
    return text[:12] if len(text) == 64 else text
