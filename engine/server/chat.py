"""OpenAI's chat completions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from engine.effort import Level
from engine.server import fields
from engine.server.ask import DEFAULT_LEVEL, EFFORTS, EFFORTS_OFF, LEVELS, Ask, Dialogue
from engine.server.conversation import conversation, offer
from engine.server.errors import Failure, RequestError
from engine.server.exchange import new_id, now_s
from engine.server.http import frame
from engine.server.pace import Pace
from engine.server.reply import Call, Heard, Part, Scored, Spoken
from engine.server.usage import Usage

DONE = "data: [DONE]\n\n"
PING = ": still working\n\n"
MAX_CHOICES = 8
MAX_ALTERNATIVES = 20
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "repetition_penalty": (None, 1),
    "min_tokens": (None, 0),
    "ignore_eos": (None, False),
}


class Chat:
    """One chat completion."""

    ping = PING

    def __init__(self, body: dict[str, Any], served: str) -> None:
        fields.refuse_unsupported(body, NEUTRAL)
        self._include_usage = fields.flag(fields.obj(body, "stream_options"), "include_usage")
        self._wants_scores = fields.flag(body, "logprobs")
        self._wants_timings = fields.flag(body, "timings_per_token")
        self._wants_tokens = fields.flag(body, "return_token_ids")
        self.ask = Ask(
            model=fields.text(body, "model"),
            prompts=(dialogue(body),),
            max_tokens=fields.max_tokens(body, "max_completion_tokens", "max_tokens"),
            sampling=fields.sampling(body, self._alternatives(body)),
            stops=fields.stops(body),
            stop_ids=fields.token_ids(body, "stop_token_ids"),
            n=fields.integer(body, "n", 1, MAX_CHOICES) or 1,
            stream=fields.flag(body, "stream"),
            one_call=not fields.flag(body, "parallel_tool_calls", True),
        )
        self._heard = [Heard() for _ in range(self.ask.n)]
        self._base = {"id": new_id("chatcmpl-"), "created": now_s(), "model": served}

    def _alternatives(self, body: Mapping[str, Any]) -> int | None:
        wanted = fields.integer(body, "top_logprobs", 0, MAX_ALTERNATIVES)
        if wanted is not None and not self._wants_scores:
            raise RequestError("`top_logprobs` needs `logprobs`: true.", param="top_logprobs")
        return (wanted or 0) if self._wants_scores else None

    def opening(self, usage: Usage) -> Iterable[str]:
        """Whose messages these are."""
        for index in range(self.ask.n):
            yield self._chunk(index, {"role": "assistant", "content": ""})

    def spoken(self, spoken: Spoken) -> Iterable[str]:
        """Text, then calls (each one's name once, then its arguments), then the reason to end."""
        index, heard = spoken.index, self._heard[spoken.index]
        first = len(heard.calls)
        heard.hear(spoken)
        scores = spoken.scores
        more: Spoken | None = spoken if self._wants_timings or self._wants_tokens else None
        for part in spoken.parts or ((Part("content", ""),) if scores or more else ()):
            name = "reasoning_content" if part.kind == "reasoning" else "content"
            yield self._chunk(index, {name: part.text}, scores, more=more)
            scores, more = (), None
        for place, call in enumerate(spoken.calls, first):
            named = {**_call(call), "function": {"name": call.name, "arguments": ""}}
            yield self._chunk(index, {"tool_calls": [{"index": place, **named}]})
            arguments = {"index": place, "function": {"arguments": call.arguments}}
            yield self._chunk(index, {"tool_calls": [arguments]})
        if spoken.finish is not None:
            yield self._chunk(index, {}, finish=spoken.finish)

    def closing(self, usage: Usage) -> Iterable[str]:
        """Usage for those who asked, and the mark that OpenAI's streams end with."""
        if self._include_usage:
            yield frame({**self._object("chat.completion.chunk", []), "usage": usage.openai})
        yield DONE

    def failed(self, failure: Failure) -> Iterable[str]:
        """The error as an event."""
        yield frame(failure.openai)

    def whole(self, usage: Usage) -> dict[str, Any]:
        """All choices. Content is null where there is only a call."""
        choices = [
            {
                "index": index,
                "message": _message(heard),
                "logprobs": self._scores(heard.scores),
                "finish_reason": heard.finish,
                **self._tokens(heard.tokens),
            }
            for index, heard in enumerate(self._heard)
        ]
        pace = sum((heard.pace for heard in self._heard), start=Pace())
        told = {**self._object("chat.completion", choices), "usage": usage.openai}
        return told | self._timings(pace)

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        scores: Sequence[Scored] = (),
        finish: str | None = None,
        more: Spoken | None = None,
    ) -> str:
        choice = {
            "index": index,
            "delta": delta,
            "logprobs": self._scores(scores) if scores else None,
            "finish_reason": finish,
        }
        chunk = self._object("chat.completion.chunk", [choice])
        if more is not None:
            choice |= self._tokens(more.tokens)
            chunk |= self._timings(more.pace)
        return frame(chunk)

    def _tokens(self, tokens: Sequence[int]) -> dict[str, Any]:
        return {"token_ids": list(tokens)} if self._wants_tokens else {}

    def _timings(self, pace: Pace) -> dict[str, Any]:
        return {"timings": pace.timings} if self._wants_timings else {}

    def _object(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {**self._base, "object": kind, "choices": choices}

    def _scores(self, scores: Sequence[Scored]) -> dict[str, Any] | None:
        if not self._wants_scores:
            return None
        reasoning = [_score(s) for s in scores if s.reasoning]
        told: dict[str, Any] = {"content": [_score(s) for s in scores if not s.reasoning]}
        return told | ({"reasoning_content": reasoning} if reasoning else {}) | {"refusal": None}


def dialogue(body: Mapping[str, Any]) -> Dialogue:
    """The conversation of a chat request; also what is rendered and counted elsewhere."""
    offered = offer(body.get("tools"), body.get("tool_choice"))
    return Dialogue(
        messages=conversation(body.get("messages")),
        tools=offered.tools,
        demanded=offered.demanded,
        thinking=_thinking(body),
        effort=level(_effort(body)),
        response_format=response_format(fields.obj(body, "response_format")),
    )


def response_format(wanted: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The format that is asked of the model and enforced."""
    kind = wanted.get("type")
    if kind not in (None, "text", "json_object", "json_schema"):
        raise RequestError(
            "`response_format.type` must be text, json_object or json_schema.",
            param="response_format",
        )
    if kind == "json_schema" and not isinstance(
        fields.obj(wanted, "json_schema").get("schema"), dict
    ):
        raise RequestError(
            "`response_format.json_schema.schema` must be an object.", param="response_format"
        )
    return None if kind in (None, "text") else wanted


def effort(body: Mapping[str, Any], name: str) -> str | None:
    """How hard to think, in the client's word; None when nothing is said."""
    value = fields.text(body, name)
    if value is not None and value not in EFFORTS:
        raise RequestError(f"`{name}` must be one of {', '.join(EFFORTS)}.", param=name)
    return value


def level(effort: str | None) -> Level:
    """The checkpoint's level for a client's word."""
    return LEVELS.get(effort or "", DEFAULT_LEVEL)


def reasons(effort: str | None) -> bool:
    """Whether a client's word asks for reasoning."""
    return effort is not None and effort not in EFFORTS_OFF


def thinking_switch(body: Mapping[str, Any]) -> bool | None:
    """`thinking.type`, as DeepSeek and Anthropic spell it."""
    kind = fields.obj(body, "thinking").get("type")
    if kind not in (None, "enabled", "disabled", "adaptive"):
        raise RequestError("`thinking.type` must be enabled or disabled.", param="thinking")
    return None if kind is None else bool(kind != "disabled")


def _thinking(body: Mapping[str, Any]) -> bool:
    """Whether reasoning is asked for, in any of the ways that clients have; off by default."""
    switch = thinking_switch(body)
    if switch is not None:
        return switch
    template = fields.obj(body, "chat_template_kwargs")
    for name in ("thinking", "enable_thinking"):
        if template.get(name) is not None:
            return fields.flag(template, name)
    return reasons(_effort(body))


def _effort(body: Mapping[str, Any]) -> str | None:
    said = effort(body, "reasoning_effort")
    return said or effort(fields.obj(body, "chat_template_kwargs"), "reasoning_effort")


def _message(heard: Heard) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": heard.content}
    if heard.reasoning:
        message["reasoning_content"] = heard.reasoning
    if heard.calls:
        message["content"] = heard.content or None
        message["tool_calls"] = [_call(call) for call in heard.calls]
    return message


def _call(call: Call) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _score(scored: Scored) -> dict[str, Any]:
    top = [_token(token, logprob) for token, logprob in scored.top]
    return {**_token(scored.token, scored.logprob), "top_logprobs": top}


def _token(token: bytes, logprob: float) -> dict[str, Any]:
    text = token.decode("utf-8", errors="replace")
    return {"token": text, "logprob": logprob, "bytes": list(token)}
