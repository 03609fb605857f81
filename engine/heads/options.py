"""Words of the command line as what they mean."""

from __future__ import annotations

import json
from typing import Any

import torch

from engine.config import EngineConfig
from engine.errors import ConfigError


def device_of(name: str) -> torch.device:
    """A device by name; ConfigError for what is none of ours."""
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    # There are others, such as meta, on which nothing here can be computed.
    if device is None or device.type not in ("cpu", "cuda"):
        raise ConfigError(f"{name!r} is not a device to train on; use cpu or cuda.")
    return device


def config_of(text: str) -> EngineConfig:
    """The engine configuration in a JSON object."""
    return EngineConfig.parse(object_of(text, "--config"))


def object_of(text: str, option: str) -> dict[str, Any]:
    """A JSON object; ConfigError names the option."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{option} is not valid JSON: {error}.") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{option} must be a JSON object; got {value!r}.")
    return value


def branches_of(text: str, most: int) -> tuple[int, ...]:
    """Children a node by depth, such as `2,2,1`, for a tree of at most `most` levels."""
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not 1 <= len(found) <= most or min(found, default=0) < 1:
        raise ConfigError(f"--tree wants up to {most} numbers of children, not {text!r}.")
    return found
