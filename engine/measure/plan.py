"""What a measuring run is asked to do: its config file, validated."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.geometry import synthetic_name
from engine.sampling import Sampling
from engine.suite import Prompt, Suite

PROTOCOL = 1


@dataclass(frozen=True, slots=True)
class Arm:
    """One configuration under a name, and the draft head it drafts with: None is the plan's.

    `source_sha256` is the code that it is meant to be run by, where the plan says so.
    """

    name: str
    requested: dict[str, Any]
    config: EngineConfig
    head: Path | None = None
    source_sha256: str | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """Every (arm, prompt, repeat) of a run is known before it starts."""

    run_id: str
    nonce: str
    checkpoint: Path
    head: Path | None
    suite: Suite
    suite_path: Path
    prompts: tuple[Prompt, ...]
    arms: tuple[Arm, ...]
    order: tuple[str, ...]
    plain_arms: tuple[str, ...]
    max_new_tokens: int
    seed: int
    mode: str
    heartbeat_s: float
    temperature: float = 0.0
    path: Path | None = None  # of the config file
    plain_after: int = 0  # repeats of an arm that come before plain decode of the same prompt

    @property
    def sampling(self) -> Sampling:
        """How every arm's tokens are chosen, plain or speculative."""
        return Sampling(temperature=self.temperature, seed=self.seed)

    @property
    def synthetic(self) -> bool:
        """Whether the weights are random, so that no text means anything."""
        return synthetic_name(self.checkpoint) is not None

    @property
    def points(self) -> int:
        return len(self.prompts) * len(self.order)

    @classmethod
    def load(cls, path: Path) -> Plan:
        """Read and validate a config file; ConfigError says which field is wrong."""
        try:
            raw = json.loads(path.read_text())
        except OSError as error:
            raise ConfigError(f"The config file {path} cannot be read: {error.strerror}.") from None
        except ValueError as error:
            raise ConfigError(f"The config file {path} is not valid JSON: {error}.") from None
        if not isinstance(raw, dict):
            raise ConfigError(f"The config file {path} must hold a JSON object.")
        return replace(cls.parse(raw), path=path)

    @property
    def private(self) -> tuple[Path, ...]:
        """Files about the run that nothing has to look into while it goes on."""
        if self.path is None:
            return ()
        return self.path, self.path.with_name("manifest.json"), self.path.with_name("run.log")

    @classmethod
    def parse(cls, raw: dict[str, Any]) -> Plan:
        if raw.get("protocol") != PROTOCOL:
            raise ConfigError(
                f"protocol must be {PROTOCOL}; got {raw.get('protocol')!r}. "
                "The loop and the engine are of different versions."
            )
        suite_path = Path(_field(raw, "suite", str))
        suite = Suite.load(suite_path)
        known = {prompt.id: prompt for prompt in suite.prompts}
        wanted = _field(raw, "prompts", list) or list(known)
        for prompt in wanted:
            if prompt not in known:
                raise ConfigError(f"The suite {suite.name} has no prompt {prompt!r}.")
        arms = tuple(_arm(item) for item in _field(raw, "arms", list))
        names = [arm.name for arm in arms]
        order = tuple(_field(raw, "order", list))
        plain = tuple(raw.get("plain_arms", names))
        _check_order(names, order, plain)
        checkpoint = Path(_field(raw, "checkpoint", str))
        _check_drafts(checkpoint, arms)
        return cls(
            run_id=_field(raw, "run_id", str),
            nonce=_field(raw, "nonce", str),
            checkpoint=checkpoint,
            head=Path(raw["head"]) if raw.get("head") else None,
            suite=suite,
            suite_path=suite_path,
            prompts=tuple(known[prompt] for prompt in wanted),
            arms=arms,
            order=order,
            plain_arms=plain,
            max_new_tokens=_positive(raw, "max_new_tokens"),
            seed=_field(raw, "seed", int),
            mode=_field(raw, "mode", str),
            heartbeat_s=float(raw.get("heartbeat_s", 1.0)),
            temperature=_temperature(raw.get("temperature", 0.0)),
            plain_after=_field(raw, "plain_after", int) if "plain_after" in raw else 0,
        )


def _field(raw: dict[str, Any], name: str, kind: type) -> Any:
    value = raw.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ConfigError(f"{name} must be a {kind.__name__}; got {value!r}.")
    return value


def _positive(raw: dict[str, Any], name: str) -> int:
    value: int = _field(raw, name, int)
    if value < 1:
        raise ConfigError(f"{name} must be at least 1; got {value}.")
    return value


def _arm(item: Any) -> Arm:
    if not isinstance(item, dict) or not isinstance(item.get("name"), str):
        raise ConfigError(f"Every arm needs a name and a config; got {item!r}.")
    requested = item.get("config", {})
    if not isinstance(requested, dict):
        raise ConfigError(f"The config of arm {item['name']} must be an object.")
    head = item.get("head")
    if head is not None and not isinstance(head, str):
        raise ConfigError(f"The head of arm {item['name']} must be the path of a folder or null.")
    source = item.get("source_sha256")
    if source is not None and not isinstance(source, str):
        raise ConfigError(f"The source_sha256 of arm {item['name']} must be text or null.")
    config = EngineConfig.parse(requested)
    return Arm(item["name"], requested, config, Path(head) if head else None, source)


def _temperature(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 10:
        raise ConfigError(f"temperature must be a number from 0 to 10; got {value!r}.")
    return float(value)


def _check_drafts(checkpoint: Path, arms: tuple[Arm, ...]) -> None:
    """Random weights say nothing about drafts, so none are measured with them."""
    if synthetic_name(checkpoint) is None:
        return
    for arm in arms:
        if arm.config.draft_width:
            raise ConfigError(
                f"Arm {arm.name} drafts {arm.config.draft_width} tokens, but the weights of "
                f"{checkpoint} are random: only plain decode, draft_width 0, can be measured."
            )


def _check_order(names: list[str], order: tuple[str, ...], plain: tuple[str, ...]) -> None:
    if not names or len(set(names)) != len(names):
        raise ConfigError("arms must be at least one, with distinct names.")
    if order != order[::-1]:
        raise ConfigError(f"order must be a palindrome, so that drift cancels; got {list(order)}.")
    if set(order) != set(names):
        raise ConfigError("order must use every arm and no other name.")
    if not plain or not set(plain) <= set(names):
        raise ConfigError("plain_arms must name at least one of the arms.")
