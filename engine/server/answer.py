"""One answer while it is generated: steps of the engine in, spoken parts out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

from engine.sampling import TokenLogprob
from engine.server.errors import too_slow
from engine.server.limits import Limits
from engine.server.pace import Pace
from engine.server.replay import Kept
from engine.server.reply import Call, Heard, PlainParts, ReplyParts, Scored, Spoken
from engine.server.usage import Usage
from engine.server.worker import Event, Step
from engine.stops import Delta
from engine.tokenizer import THINK_END, Tokenizer


class Take:
    """One choice: what of it is reasoning, content, calls, and how many tokens each took."""

    def __init__(
        self,
        index: int,
        tokenizer: Tokenizer,
        parts: ReplyParts | PlainParts,
        *,
        thinking: bool,
        one_call: bool,
        keep: Callable[[Kept], None] | None = None,
    ) -> None:
        self.completion = self.reasoning = self.cached = 0
        self._pace = Pace()
        self._index = index
        self._tokenizer = tokenizer
        self._parts = parts
        self._thinking = thinking
        self._think_end = tokenizer.control_id(THINK_END) if thinking else None
        self._one_call = one_call
        self._keep = keep
        self._ids: list[int] = []
        self._heard = Heard()

    def hear(self, step: Step) -> Spoken:
        """What `step` adds."""
        delta = step.delta
        self.cached += step.commit.cached
        self._pace.hear(step.commit)
        scores = self._count(delta, step.commit.logprobs)
        parts = self._parts.feed(delta.text)
        self._ids += delta.tokens
        if delta.finish is None:
            spoken = Spoken(self._index, tuple(parts), scores, tokens=delta.tokens, pace=self._pace)
            if self._keep is not None:
                self._heard.hear(spoken)
            return spoken
        rest, found = self._parts.finish()
        calls = tuple(Call.of(call) for call in (found[:1] if self._one_call else found))
        finish = "tool_calls" if calls and delta.finish == "stop" else delta.finish
        told = (delta.stop, delta.tokens, self._pace)
        spoken = Spoken(self._index, (*parts, *rest), scores, calls, finish, *told)
        if self._keep is not None and len(calls) == len(found):
            self._heard.hear(spoken)
            self._remember(self._keep)
        return spoken

    def _remember(self, keep: Callable[[Kept], None]) -> None:
        """Keep the reply as it was generated, if it came to its own end."""
        ids, heard = self._ids, self._heard
        mark = self._tokenizer.control_id(THINK_END) if self._thinking else None
        if ids[-1] != self._tokenizer.eos_id or (mark is not None and mark not in ids):
            return
        cut = 0 if mark is None else ids.index(mark) + 1
        if not heard.calls and self._tokenizer.decode(ids[cut:]) != heard.content:
            return  # markup was taken out of it
        keep(
            Kept(
                reasoning_ids=tuple(ids[: max(0, cut - 1)]),
                ids=tuple(ids[cut:-1]),
                reasoning=heard.reasoning,
                content=heard.content,
                calls=tuple(heard.calls),
            )
        )

    def _count(self, delta: Delta, logprobs: Sequence[TokenLogprob]) -> tuple[Scored, ...]:
        """Count the tokens of `delta`; log-probabilities past a stop string are dropped."""
        before = len(delta.tokens) if self._think_end is not None else 0
        if self._think_end in delta.tokens:
            before = delta.tokens.index(self._think_end) + 1
            self._think_end = None
        self.completion += len(delta.tokens)
        self.reasoning += before
        told = list(enumerate(logprobs[: len(delta.tokens)]))
        return tuple(self._scored(r, i < before) for i, r in told if self._visible(r.token))

    def _visible(self, token: int) -> bool:
        return token not in (self._tokenizer.eos_id, self._tokenizer.control_id(THINK_END))

    def _scored(self, record: TokenLogprob, reasoning: bool) -> Scored:
        spell = self._tokenizer.token_bytes
        top = tuple((spell(token), logprob) for token, logprob in record.top)
        return Scored(spell(record.token), record.logprob, top, reasoning)


class Answer:
    """All choices of one request, `n` a prompt in order, seen from the event loop.

    `prompt_tokens` is the sum over its prompts, each counted once.
    """

    def __init__(self, takes: Sequence[Take], n: int, prompt_tokens: int, limits: Limits) -> None:
        self._takes = takes
        self._n = n
        self._prompt_tokens = prompt_tokens
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[Event | None] = asyncio.Queue()
        self._cancel: Callable[[], None] = lambda: None

    def bind(self, cancel: Callable[[], None]) -> None:
        """What ends the work behind this answer."""
        self._cancel = cancel

    def deliver(self, event: Event) -> None:
        """Hand over an event; may be called from any thread, at any time."""
        try:
            self._loop.call_soon_threadsafe(self._events.put_nowait, event)
        except RuntimeError:  # the loop is gone, and with it everybody who waited
            return

    def cancel(self) -> None:
        """Nobody listens any more (harmless after the end)."""
        self._cancel()
        self._events.put_nowait(None)

    async def spoken(self) -> AsyncIterator[Spoken | None]:
        """What is said as it comes, None after a silence; ends with the last choice.

        Raises whatever the engine failed with, and RequestError when it takes too long.
        """
        left = len(self._takes)
        end_s = self._loop.time() + self._limits.answer_s
        while left:
            if self._loop.time() >= end_s:
                raise too_slow("The answer", self._limits.answer_s, 504)
            try:
                event = await asyncio.wait_for(self._events.get(), self._limits.ping_s)
            except TimeoutError:
                yield None
                continue
            if event is None:
                return
            if isinstance(event, BaseException):
                raise event
            spoken = self._takes[event.index].hear(event)
            left -= spoken.finish is not None
            yield spoken

    @property
    def usage(self) -> Usage:
        """Tokens so far."""
        return Usage(
            prompt=self._prompt_tokens,
            completion=sum(take.completion for take in self._takes),
            reasoning=sum(take.reasoning for take in self._takes),
            cached=sum(take.cached for take in self._takes[:: self._n]),
        )
