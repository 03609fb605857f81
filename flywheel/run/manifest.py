"""Everything needed to repeat one run, written before it starts and never changed.

Standard library only.  The parser compares the log against this and nothing else.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flywheel.errors import RecordError
from flywheel.files import dump, read_json, write_atomic
from flywheel.guard.limits import Limits

FILE = "manifest.json"
PROTOCOL = 1
_NONCE = re.compile(r"^[0-9a-f]{32}$")


@dataclass(frozen=True, slots=True)
class Manifest:
    """One planned run.

    ``config`` is the engine's whole configuration file (protocol, prompts, arms, order ...);
    ``argv`` starts the engine in ``cwd``.  ``null`` says that the arms are meant to be identical.
    ``expected`` may pin ``checkpoint_sha256``, ``source_sha256``, ``suite_sha256`` or
    ``device_name`` as an earlier run of the same campaign saw them.  ``load_limit`` bounds the
    host's one-minute load throughout; ``heartbeat_gap_s`` the silence between two heartbeats.
    ``guard`` holds the limits of the run's memory guard (``guard.limits``); None is no guard.
    ``lineage`` says which campaign, lever and block the run belongs to (``lineage.to_json``).
    """

    run_id: str
    nonce: str
    config: Mapping[str, Any]
    argv: tuple[str, ...]
    cwd: str
    created_utc: str
    timeout_s: float
    lever_identity: str | None = None
    lever_name: str | None = None
    block_id: str | None = None
    load_index: int = 0
    null: bool = False
    grace_s: float = 5.0
    heartbeat_gap_s: float = 30.0
    load_limit: float | None = None
    expected: Mapping[str, str] | None = None
    fingerprints: Mapping[str, str] | None = None
    guard: Mapping[str, Any] | None = None
    lineage: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if not _NONCE.match(self.nonce):
            raise RecordError("a manifest's nonce is 32 hexadecimal digits.")
        if not self.argv or not self.timeout_s > 0:
            raise RecordError("a manifest needs a command and a time limit above zero.")
        if self.guard is not None:
            try:
                Limits.from_json(self.guard)
            except ValueError as error:
                raise RecordError(str(error)) from error

    @property
    def arm_names(self) -> tuple[str, ...]:
        """The names of the arms, in the order in which they were declared."""
        return tuple(str(arm["name"]) for arm in self.config["arms"])

    def arm_config(self, name: str) -> Mapping[str, Any]:
        """The requested configuration of one arm; KeyError when there is none."""
        for arm in self.config["arms"]:
            if arm["name"] == name:
                return dict(arm["config"])
        raise KeyError(name)

    def head_sha256(self, name: str) -> str | None:
        """The hash of the draft head that an arm has of its own; None: the run's head."""
        for arm in self.config["arms"]:
            if arm["name"] == name:
                return None if arm.get("head") is None else str(arm["head_sha256"])
        raise KeyError(name)

    def source_sha256(self, name: str) -> str | None:
        """The hash of the code that an arm is to be run by; None: of no particular one."""
        for arm in self.config["arms"]:
            if arm["name"] == name:
                return None if arm.get("source_sha256") is None else str(arm["source_sha256"])
        raise KeyError(name)

    @property
    def patched(self) -> bool:
        """Whether its arms state the code that they are run by: then it is not taken on trust."""
        return any(arm.get("source_sha256") is not None for arm in self.config.get("arms", ()))

    @property
    def lossy_arms(self) -> frozenset[str]:
        """The arms whose tokens may differ from plain decode's: they are measured for a price."""
        return frozenset(str(name) for name in self.config.get("lossy", ()))

    def planned_points(self) -> tuple[tuple[str, str, int], ...]:
        """Every (arm, prompt, repeat) that must be measured exactly once."""
        planned = []
        for prompt in self.config["prompts"]:
            seen: dict[str, int] = {}
            for arm in self.config["order"]:
                planned.append((arm, prompt, seen.get(arm, 0)))
                seen[arm] = seen.get(arm, 0) + 1
        return tuple(planned)

    def planned_plains(self) -> tuple[tuple[str, str], ...]:
        """Every (arm, prompt) whose plain decode must be measured exactly once."""
        return tuple(
            (arm, prompt)
            for prompt in self.config["prompts"]
            for arm in self.config.get("plain_arms", ())
        )

    def to_json(self) -> dict[str, Any]:
        """The manifest as a JSON object."""
        value: dict[str, Any] = {name: getattr(self, name) for name in self.__slots__}
        value["argv"] = list(self.argv)
        for name in ("config", "expected", "fingerprints", "guard", "lineage"):
            if value[name] is not None:
                value[name] = dict(value[name])
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Manifest:
        """The manifest in a JSON object; RecordError names what is wrong with it."""
        names = set(cls.__slots__)
        unknown = sorted(set(value) - names)
        if unknown:
            raise RecordError(f"the manifest has an unknown field: {unknown[0]}.")
        try:
            return cls(**{**value, "argv": tuple(value["argv"])})
        except (KeyError, TypeError) as error:
            raise RecordError(f"the manifest is incomplete: {error}.") from error

    def write(self, run_dir: Path) -> None:
        """Leave ``manifest.json`` in the run directory, whole."""
        write_atomic(run_dir / FILE, dump(self.to_json()))

    @classmethod
    def read(cls, run_dir: Path) -> Manifest:
        """The manifest of a run directory; RecordError when there is no readable one."""
        value = read_json(run_dir / FILE)
        if value is None:
            raise RecordError(f"{run_dir} holds no readable {FILE}.")
        return cls.from_json(value)


def new_nonce() -> str:
    """32 hexadecimal digits that no other log can hold."""
    return secrets.token_hex(16)


def engine_config(
    *,
    run_id: str,
    nonce: str,
    checkpoint: str,
    head: str | None,
    suite: str,
    prompts: tuple[str, ...],
    arms: Mapping[str, Mapping[str, Any]],
    order: tuple[str, ...],
    plain_arms: tuple[str, ...],
    max_new_tokens: int,
    seed: int,
    heartbeat_s: float = 1.0,
    heads: Mapping[str, tuple[str, str]] | None = None,
    temperature: float = 0.0,
    sources: Mapping[str, str] | None = None,
    plain_after: int = 0,
) -> dict[str, Any]:
    """The engine's configuration file, protocol 1.

    `heads` are the folder and the hash of the draft head of each arm that has one of its own,
    `sources` the hash of the code of each arm that is to be run by a certain one. `plain_after`
    repeats come before plain decode of the same prompt.
    """
    own, code = heads or {}, sources or {}
    return {
        "protocol": PROTOCOL,
        "run_id": run_id,
        "nonce": nonce,
        "checkpoint": checkpoint,
        "head": head,
        "suite": suite,
        "prompts": list(prompts),
        "arms": [
            {"name": name, "config": dict(config)}
            | ({"head": own[name][0], "head_sha256": own[name][1]} if name in own else {})
            | ({"source_sha256": code[name]} if name in code else {})
            for name, config in arms.items()
        ],
        "order": list(order),
        "plain_arms": list(plain_arms),
        "max_new_tokens": max_new_tokens,
        "seed": seed,
        "mode": "clean",
        "heartbeat_s": heartbeat_s,
    } | {
        name: value
        for name, value in (("temperature", temperature), ("plain_after", plain_after)) if value
    }  # fmt: skip
