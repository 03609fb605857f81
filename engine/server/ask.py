"""What a client wants, the same for every protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.effort import Level
from engine.sampling import Sampling

# Efforts that mean no thinking at all; every other one turns it on.
EFFORTS_OFF = frozenset({"none"})
# The levels that checkpoints have, by every name that clients use.
LEVELS: dict[str, Level] = {
    "minimal": "low",
    "low": "low",
    "medium": "high",
    "high": "high",
    "xhigh": "high",
    "max": "max",
    "ultra": "max",
}
EFFORTS = ("none", *LEVELS)
DEFAULT_LEVEL: Level = "high"


@dataclass(frozen=True, slots=True)
class Dialogue:
    """A conversation in the shape that the prompt format takes."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()
    thinking: bool = False
    effort: Level = DEFAULT_LEVEL
    response_format: Mapping[str, Any] | None = None
    demanded: tuple[str, ...] = ()  # tools of which the reply must call one

    @property
    def schema(self) -> Mapping[str, Any] | None:
        """The schema that content must follow; None where it may be anything.

        Where tools are offered a reply may be a call instead, so the format is only asked for.
        """
        wanted = self.response_format or {}
        if self.tools or wanted.get("type") not in ("json_object", "json_schema"):
            return None
        given = wanted.get("json_schema")
        schema = given.get("schema") if isinstance(given, Mapping) else None
        return schema if isinstance(schema, Mapping) else {"type": "object"}


Prompt = Dialogue | str | tuple[int, ...]  # text is continued after BOS; ids are taken as they are


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """Prompts to be continued `n` times each. `max_tokens` None: as the context allows."""

    model: str | None
    prompts: tuple[Prompt, ...]
    max_tokens: int | None
    sampling: Sampling
    stops: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    n: int = 1
    stream: bool = False
    one_call: bool = False  # of several tool calls in a reply only the first counts

    @property
    def thinking(self) -> bool:
        """Whether replies open with reasoning."""
        return any(isinstance(p, Dialogue) and p.thinking for p in self.prompts)

    @property
    def tools(self) -> bool:
        """Whether replies may call tools; where not, markup of a call is plain text."""
        return any(isinstance(p, Dialogue) and bool(p.tools) for p in self.prompts)
