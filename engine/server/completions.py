"""OpenAI's text completions: a prompt is continued as it is, without roles or tools."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from engine.server import fields
from engine.server.ask import Ask, Prompt
from engine.server.chat import DONE, MAX_CHOICES, NEUTRAL, PING
from engine.server.errors import Failure, RequestError
from engine.server.exchange import new_id, now_s
from engine.server.http import frame
from engine.server.reply import Heard, Scored, Spoken
from engine.server.usage import Usage

DEFAULT_TOKENS = 16  # OpenAI's own
MAX_ALTERNATIVES = 5
MAX_PROMPTS = 64
_NEUTRAL = {**NEUTRAL, "suffix": (None, ""), "best_of": (None, 1)}


class Completions:
    """One text completion, of one prompt or of several."""

    ping = PING

    def __init__(self, body: dict[str, Any], served: str) -> None:
        fields.refuse_unsupported(body, _NEUTRAL)
        self._include_usage = fields.flag(fields.obj(body, "stream_options"), "include_usage")
        logprobs = _logprobs(body)
        self._wants_scores = logprobs is not None
        prompts = _prompts(body.get("prompt"))
        self.ask = Ask(
            model=fields.text(body, "model"),
            prompts=prompts,
            max_tokens=fields.max_tokens(body, "max_tokens") or DEFAULT_TOKENS,
            sampling=fields.sampling(body, logprobs),
            stops=fields.stops(body),
            stop_ids=fields.token_ids(body, "stop_token_ids"),
            n=fields.integer(body, "n", 1, MAX_CHOICES) or 1,
            stream=fields.flag(body, "stream"),
        )
        self._echoes = [t for t in _echoes(body, prompts) for _ in range(self.ask.n)]
        self._heard = [Heard() for _ in self._echoes]
        self._base = {
            "id": new_id("cmpl-"),
            "object": "text_completion",
            "created": now_s(),
            "model": served,
        }
        self._spelt = [b"" for _ in self._echoes]

    def opening(self, usage: Usage) -> Iterable[str]:
        """The prompts, where they are to be repeated."""
        for index, text in enumerate(self._echoes):
            if text:
                yield self._chunk(index, text)

    def spoken(self, spoken: Spoken) -> Iterable[str]:
        """Text and the reason to end."""
        self._heard[spoken.index].hear(spoken)
        text = "".join(part.text for part in spoken.parts)
        if text or spoken.scores or spoken.finish:
            scores = self._scores(spoken.index, spoken.scores)
            yield self._chunk(spoken.index, text, scores, spoken.finish)

    def closing(self, usage: Usage) -> Iterable[str]:
        """Usage for those who asked, and the mark that OpenAI's streams end with."""
        if self._include_usage:
            yield frame({**self._base, "choices": [], "usage": usage.openai})
        yield DONE

    def failed(self, failure: Failure) -> Iterable[str]:
        """The error as an event."""
        yield frame(failure.openai)

    def whole(self, usage: Usage) -> dict[str, Any]:
        """All choices, those of the first prompt first."""
        self._spelt = [b"" for _ in self._echoes]
        choices = [
            {
                "index": index,
                "text": self._echoes[index] + heard.content,
                "logprobs": self._scores(index, heard.scores),
                "finish_reason": heard.finish,
            }
            for index, heard in enumerate(self._heard)
        ]
        return {**self._base, "choices": choices, "usage": usage.openai}

    def _chunk(
        self,
        index: int,
        text: str,
        scores: dict[str, Any] | None = None,
        finish: str | None = None,
    ) -> str:
        choice = {"index": index, "text": text, "logprobs": scores, "finish_reason": finish}
        return frame({**self._base, "choices": [choice]})

    def _scores(self, index: int, scores: Sequence[Scored]) -> dict[str, Any] | None:
        """Four lists of equal length; offsets count the characters of the reply before a token."""
        if not self._wants_scores:
            return None
        offsets = []
        for scored in scores:
            said = self._spelt[index].decode("utf-8", errors="ignore")
            offsets.append(len(self._echoes[index]) + len(said))
            self._spelt[index] += scored.token
        return {
            "tokens": [_spell(scored.token) for scored in scores],
            "token_logprobs": [scored.logprob for scored in scores],
            "top_logprobs": [{_spell(t): p for t, p in scored.top} for scored in scores],
            "text_offset": offsets,
        }


def _spell(token: bytes) -> str:
    return token.decode("utf-8", errors="replace")


def _logprobs(body: Mapping[str, Any]) -> int | None:
    wanted = fields.integer(body, "logprobs", 0, MAX_ALTERNATIVES)
    if wanted is not None and fields.flag(body, "echo"):
        raise RequestError(
            "`logprobs` of an echoed prompt are not supported by this server.", param="logprobs"
        )
    return wanted


def _echoes(body: Mapping[str, Any], prompts: Sequence[Prompt]) -> list[str]:
    if not fields.flag(body, "echo"):
        return [""] * len(prompts)
    texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    if len(texts) < len(prompts):
        raise RequestError("`echo` needs prompts of text.", param="echo")
    return texts


def _prompts(raw: Any) -> tuple[Prompt, ...]:
    """Text, ids, or a list of either."""
    if isinstance(raw, str):
        return (raw,)
    found = [raw] if _is_ids(raw) else raw
    good = isinstance(found, list) and all(isinstance(p, str) or _is_ids(p) for p in found)
    if not good or not 0 < len(found) <= MAX_PROMPTS:
        raise RequestError(
            f"`prompt` must be text, token ids, or a list of at most {MAX_PROMPTS} of either.",
            param="prompt",
        )
    return tuple(p if isinstance(p, str) else tuple(p) for p in found)


def _is_ids(raw: Any) -> bool:
    return isinstance(raw, list) and bool(raw) and all(type(token) is int for token in raw)
