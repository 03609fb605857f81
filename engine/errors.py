"""The one error tree of the engine: every message is a sentence that a user can act on."""

from __future__ import annotations


class EngineError(Exception):
    """Anything the engine refuses or fails at, said in one sentence."""


class DeviceBusy(EngineError):  # noqa: N818 - reads as the fact that it is
    """Another process holds the device; the message names it."""


class DeviceError(EngineError):
    """The machine lacks what a backend needs; the message says what, and what runs instead."""


class ConfigError(EngineError):
    """A configuration names an unknown field or holds a value that cannot be honoured."""


class CheckpointError(EngineError):
    """A checkpoint is missing a tensor, has one too many, or does not fit its config."""


class PromptError(EngineError):
    """A conversation cannot be rendered: unknown role, wrong shape, impossible option."""


class ContextOverflow(PromptError):  # noqa: N818
    """Prompt and requested tokens do not fit the context together; all three are numbers of tokens.

    Agents look for exactly this sentence to know that they must shorten their conversation.
    """

    def __init__(self, prompt: int, requested: int, context: int) -> None:
        super().__init__(
            f"This model's maximum context length is {context} tokens. "
            f"However, you requested {prompt + requested} tokens "
            f"({prompt} in the prompt, {requested} in the completion)."
        )
        self.prompt = prompt
        self.requested = requested
        self.context = context


class ReplyError(EngineError):
    """A generated reply breaks the strict shape of reasoning, content and tool calls."""


class NumericsError(EngineError):
    """A computation produced values that are not finite."""


class TokenizerError(EngineError):
    """A tokenizer file is missing, unreadable or lacks a token that the format needs."""
