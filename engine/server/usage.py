"""Tokens of an answer, as the protocols count them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Usage:
    """`cached` is the part of `prompt` that was remembered, `reasoning` that of `completion`."""

    prompt: int
    completion: int
    reasoning: int
    cached: int

    @property
    def openai(self) -> dict[str, Any]:
        """For chat and text completions, with DeepSeek's names for cache hits beside."""
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": self.cached},
            "completion_tokens_details": {"reasoning_tokens": self.reasoning},
            "prompt_cache_hit_tokens": self.cached,
            "prompt_cache_miss_tokens": self.prompt - self.cached,
        }

    @property
    def responses(self) -> dict[str, Any]:
        """For OpenAI's responses."""
        return {
            "input_tokens": self.prompt,
            "input_tokens_details": {"cached_tokens": self.cached},
            "output_tokens": self.completion,
            "output_tokens_details": {"reasoning_tokens": self.reasoning},
            "total_tokens": self.prompt + self.completion,
        }

    @property
    def messages(self) -> dict[str, Any]:
        """For Anthropic's messages, where the remembered part does not count as input."""
        return {
            "input_tokens": self.prompt - self.cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": self.cached,
            "output_tokens": self.completion,
        }
