"""The model that is served: loaded once, asked many times, one answer after the other."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from engine import chat
from engine.checkpoint import checkpoint_sha256
from engine.config import EngineConfig
from engine.engine import Commit, Engine
from engine.errors import EngineError
from engine.sampling import Sampling
from engine.server.deployment import Deployment
from engine.server.errors import RETRY_AFTER_S, no_model, unavailable
from engine.server.request import ChatRequest
from engine.server.wire import Usage
from engine.server.worker import Event, Job, Worker
from engine.stops import Delta, TextStream
from engine.tokenizer import THINK_END, Tokenizer

PING_S = 10.0


class Generates(Protocol):
    """The part of an engine that serving needs."""

    config: EngineConfig

    def generate(
        self, prompt: Sequence[int], *, max_new_tokens: int, sampling: Sampling | None = None
    ) -> Iterator[Commit]:
        """See `Engine.generate`."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """What exists once loading is over."""

    engine: Generates
    tokenizer: Tokenizer
    sha256: str
    created: int = field(default_factory=lambda: int(time.time()))


Load = Callable[[Deployment, Callable[[int, int], None]], Loaded]


def load(deployment: Deployment, progress: Callable[[int, int], None]) -> Loaded:
    """Read a deployment from disk; `progress` hears of tensors done and tensors in all."""
    tokenizer = Tokenizer.load(deployment.checkpoint)
    engine = Engine.load(
        deployment.checkpoint, deployment.config, head=deployment.head, progress=progress
    )
    return Loaded(engine, tokenizer, checkpoint_sha256(deployment.checkpoint, deployment.head))


class Answer:
    """One reply while it is generated, seen from the event loop."""

    def __init__(self, prompt_tokens: int, think_end: int | None) -> None:
        self.prompt_tokens = prompt_tokens
        self._think_end = think_end
        self._completion = 0
        self._reasoning = 0
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[Event | None] = asyncio.Queue()
        self._cancel: Callable[[], None] = lambda: None
        self.finish = "stop"

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

    async def texts(self) -> AsyncIterator[str | None]:
        """New text as it comes, None after a silence; ends with the reply or its cancellation.

        Raises whatever the engine failed with.
        """
        while True:
            try:
                event = await asyncio.wait_for(self._events.get(), PING_S)
            except TimeoutError:
                yield None
                continue
            if event is None:
                return
            if isinstance(event, BaseException):
                raise event
            self._count(event)
            yield event.text
            if event.finish is not None:
                self.finish = event.finish
                return

    @property
    def usage(self) -> Usage:
        """Tokens so far."""
        return Usage(self.prompt_tokens, self._completion, self._reasoning)

    def _count(self, delta: Delta) -> None:
        self._completion += len(delta.tokens)
        if self._think_end is not None:
            end = self._think_end
            inside = delta.tokens.index(end) + 1 if end in delta.tokens else len(delta.tokens)
            self._reasoning += inside
            if end in delta.tokens:
                self._think_end = None


class Service:
    """The deployment, its worker, and what /health says about them."""

    def __init__(
        self, deployment: Deployment, *, waiting_limit: int, loader: Load = load
    ) -> None:
        self.deployment = deployment
        self._loader = loader
        self.waiting_limit = waiting_limit
        self.error: str | None = None
        self._loaded: Loaded | None = None
        self._progress = (0, 0)
        self._worker = Worker(self._prepare, waiting_limit)
        self._settled: Callable[[], None] = lambda: None

    def start(self, settled: Callable[[], None]) -> None:
        """Load in the background; `settled` is called on that thread when it is over."""
        self._settled = settled
        self._worker.start()

    def close(self) -> None:
        """End every answer, with the reason."""
        self._worker.close()

    def join(self, timeout_s: float) -> bool:
        """Whether the worker has ended within `timeout_s`."""
        return self._worker.join(timeout_s)

    @property
    def loaded(self) -> Loaded:
        """The model; RequestError (503) while it is being loaded."""
        if self._loaded is None:
            raise unavailable("The model is still being loaded.")
        return self._loaded

    def check_ready(self) -> None:
        """Refuse everything until the model is loaded."""
        _ = self.loaded

    def check_model(self, asked: str | None) -> None:
        """Refuse a request for another model; naming none means this one."""
        if asked is not None and asked != self.deployment.name:
            raise no_model(asked, self.deployment.name)

    async def submit(self, request: ChatRequest) -> Answer:
        """Start to answer. Raises what is wrong with the prompt, or that the queue is full."""
        model = self.loaded
        prompt = await asyncio.to_thread(self._encode, model.tokenizer, request)
        context = model.engine.config.context
        commits = model.engine.generate(
            prompt,
            max_new_tokens=request.max_tokens or max(1, context - len(prompt)),
            sampling=request.sampling,
        )
        think_end = model.tokenizer.control_id(THINK_END) if request.thinking else None
        answer = Answer(len(prompt), think_end)
        stream = TextStream(model.tokenizer.decoder(), request.stops)
        job = Job(commits, stream, answer.deliver)
        answer.bind(lambda: self._worker.cancel(job))
        self._worker.submit(job)
        return answer

    def health(self) -> tuple[int, dict[str, Any]]:
        """Status and body of /health: 200 once requests are answered, 503 before."""
        deployment, model = self.deployment, self._loaded
        if model is None:
            done, total = self._progress
            body = {"status": "loading", "model": deployment.name, "loaded": [done, total]}
            return 503, {**body, "retry_after_s": RETRY_AFTER_S}
        return 200, {
            "status": "ok",
            "model": deployment.name,
            "checkpoint": {"path": str(deployment.checkpoint), "sha256": model.sha256},
            "head": None if deployment.head is None else str(deployment.head),
            "config": model.engine.config.canonical(),
            "fingerprint": model.engine.config.fingerprint(),
            "decision": deployment.decision,
            "context_length": model.engine.config.context,
            "running": self._worker.running,
            "waiting": self._worker.waiting,
            "waiting_limit": self.waiting_limit,
        }

    @staticmethod
    def _encode(tokenizer: Tokenizer, request: ChatRequest) -> list[int]:
        return chat.encode(
            tokenizer,
            request.messages,
            tools=request.tools,
            thinking=request.thinking,
            response_format=request.response_format,
        )

    def _prepare(self) -> bool:
        """Load everything; on failure keep the sentence for whoever started the server."""
        try:
            self._loaded = self._loader(self.deployment, self._note_progress)
        except EngineError as error:
            self.error = str(error)
        except Exception as error:  # not the user's doing: the log needs to know where
            traceback.print_exc()
            self.error = f"The model could not be loaded: {error!r}."
        self._settled()
        return self._loaded is not None

    def _note_progress(self, done: int, total: int) -> None:
        self._progress = (done, total)
