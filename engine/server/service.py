"""The model that is served: loaded once, asked many times, many answers at once."""

from __future__ import annotations

import asyncio
import secrets
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from engine import chat
from engine.batch import Batch
from engine.checkpoint import checkpoint_sha256
from engine.effort import Efforts
from engine.engine import Engine
from engine.errors import EngineError
from engine.grammar import Grammars
from engine.identity import effective, fingerprint, head_sha256
from engine.sampling import Sampling
from engine.server.answer import Answer, Take
from engine.server.ask import Ask, Dialogue, Prompt
from engine.server.deployment import Deployment
from engine.server.errors import RETRY_AFTER_S, no_model, unavailable
from engine.server.limits import Limits
from engine.server.machine import machine
from engine.server.metrics import Metrics
from engine.server.replay import Replies
from engine.server.reply import PlainParts, ReplyParts
from engine.server.worker import Choice, Generates, Job, Worker
from engine.stops import TextStream
from engine.tokenizer import THINK_END, Tokenizer


@dataclass(frozen=True, slots=True)
class Loaded:
    """What exists once loading is over."""

    engine: Generates
    tokenizer: Tokenizer
    grammars: Grammars
    sha256: str
    efforts: Efforts = field(default_factory=Efforts)
    created: int = field(default_factory=lambda: int(time.time()))
    head_sha256: str | None = None  # of a draft head of its own

    @property
    def fingerprint(self) -> str:
        """What a measuring run of the same calls it."""
        return fingerprint(effective(self.engine.config, self.head_sha256))


@dataclass(frozen=True, slots=True)
class Reloads:
    """How often another configuration was asked for, and why the last one was refused."""

    count: int = 0
    refused: str | None = None


MOST_FAULTS = 3  # in a row, after which loading again is no use
Load = Callable[[Deployment, Callable[[int, int], None]], Loaded]


def load(deployment: Deployment, progress: Callable[[int, int], None]) -> Loaded:
    """Read a deployment from disk; `progress` hears of tensors done and tensors in all."""
    tokenizer = Tokenizer.load(deployment.checkpoint)
    engine = Engine.load(
        deployment.checkpoint, deployment.config, head=deployment.head, progress=progress
    )
    if deployment.memory_bytes:
        engine.remember(deployment.memory_bytes)
    batch = Batch(engine, deployment.capacity)
    grammars = Grammars(deployment.checkpoint, tokenizer, engine.geometry.vocab_size)
    return Loaded(
        batch,
        tokenizer,
        grammars,
        checkpoint_sha256(deployment.checkpoint),
        Efforts.load(deployment.checkpoint),
        head_sha256=head_sha256(deployment.head),
    )


class Service:
    """The deployment, its worker, and what /health says about them."""

    def __init__(
        self,
        deployment: Deployment,
        *,
        waiting_limit: int,
        limits: Limits | None = None,
        loader: Load = load,
        proof: str | None = None,
    ) -> None:
        """With `proof` only requests that bring this word are answered, until `open`."""
        self.deployment = deployment
        self.limits = limits or Limits()
        self._proof = proof
        self._draining = False
        self._reloads = Reloads()
        self._loader = loader
        self.waiting_limit = waiting_limit
        self.error: str | None = None
        self.mistaken = False  # the error is the doing of whoever started this
        self._loaded: Loaded | None = None
        self._progress = (0, 0)
        self._replies = Replies()
        self._worker = Worker(
            self._prepare, capacity=deployment.capacity, waiting_limit=waiting_limit
        )
        self.metrics = Metrics(self._worker)
        self._settled: Callable[[], None] = lambda: None

    def start(self, settled: Callable[[], None]) -> None:
        """Load in the background; `settled` is called on that thread when it is over."""
        self._settled = settled
        self._worker.start()

    def open(self) -> None:
        """From now on everybody is answered."""
        self._proof = None

    def drain(self) -> None:
        """From now on nobody new is answered."""
        self._draining = True

    @property
    def busy(self) -> bool:
        """Whether anything is being answered or waits to be."""
        return self._worker.running + self._worker.waiting > 0

    def reload(self, deployed: Callable[[], Deployment]) -> None:
        """Switch to another configuration of the same weights without dropping anybody.

        It happens once what has begun is over; /health tells whether it did, or why it could not.
        """
        self._worker.swap(lambda engine: self._reload(engine, deployed))

    def _reload(self, engine: Generates, deployed: Callable[[], Deployment]) -> Generates:
        try:
            wanted = deployed()
            self.deployment.check_swap(wanted)
            engine = engine.switched(wanted.config)
        except EngineError as error:
            self._reloads = Reloads(self._reloads.count + 1, str(error))
            return engine
        except Exception as error:  # as when loading: the log needs to know where
            traceback.print_exc()
            self._reloads = Reloads(self._reloads.count + 1, f"It failed: {error!r}.")
            return engine
        self.deployment = wanted
        self._loaded = replace(self.loaded, engine=engine)
        self._describe()
        self._reloads = Reloads(self._reloads.count + 1)
        return engine

    def close(self) -> None:
        """End every answer, with the reason."""
        self._worker.close()

    def join(self, timeout_s: float) -> bool:
        """Whether the worker has ended within `timeout_s`."""
        return self._worker.join(timeout_s)

    @property
    def faults(self) -> int:
        """How often the engine failed."""
        return self._worker.faults

    @property
    def loaded(self) -> Loaded:
        """The model; RequestError (503) while it is being loaded."""
        if self._loaded is None:
            raise unavailable("The model is still being loaded.")
        return self._loaded

    def check_ready(self) -> None:
        """Refuse everything until the model is loaded."""
        _ = self.loaded

    def check_open(self, word: str | None) -> None:
        """Refuse requests while the server drains, and strangers' until it is proven."""
        if self._draining:
            raise unavailable("The server is finishing what it has begun; try again soon.")
        if self._proof is not None and not secrets.compare_digest(self._proof, word or ""):
            raise unavailable("The server is being proven; try again in a moment.")

    def check_model(self, asked: str | None) -> None:
        """Refuse a request for another model; naming none means this one."""
        if asked is not None and asked != self.deployment.name:
            raise no_model(asked, self.deployment.name)

    async def submit(self, ask: Ask) -> Answer:
        """Start to answer. Raises what is wrong with a prompt, or that the queue is full."""
        ids = [await self.encode(prompt) for prompt in ask.prompts]
        for prompt in ids:
            self.loaded.engine.check(prompt, self._limit(prompt, ask), ask.sampling)
        chosen = [prompt for prompt in ids for _ in range(ask.n)]
        takes = [self._take(index, ask) for index in range(len(chosen))]
        answer = Answer(takes, ask.n, sum(len(prompt) for prompt in ids), self.limits)
        ask = replace(ask, sampling=await asyncio.to_thread(self._constrained, ask))
        choices = [self._choice(i, prompt, ask) for i, prompt in enumerate(chosen)]
        job = Job(choices, self.metrics.watching(answer.deliver, [len(p) for p in chosen]))
        answer.bind(lambda: self._worker.cancel(job))
        self._worker.submit(job)
        self.metrics.requests.inc()
        return answer

    async def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt; raises PromptError for a conversation without a form."""
        return await asyncio.to_thread(self._encode, self.loaded, prompt)

    def _limit(self, prompt: list[int], ask: Ask) -> int:
        """Tokens that a reply to `prompt` may have."""
        return ask.max_tokens or max(1, self.loaded.engine.config.context - len(prompt))

    def _choice(self, index: int, prompt: list[int], ask: Ask) -> Choice:
        """Choice `index`: of a request with a seed, each draws by a seed of its own."""
        sampling, limit = ask.sampling, self._limit(prompt, ask)
        if sampling.seed is not None:
            sampling = replace(sampling, seed=sampling.seed + index)

        def begin(engine: Generates) -> Any:
            return engine.begin(
                prompt, max_new_tokens=limit, sampling=sampling, stop_ids=ask.stop_ids
            )

        decoder = self.loaded.tokenizer.decoder()
        return Choice(begin, TextStream(decoder, ask.stops), ask.stop_ids)

    def _constrained(self, ask: Ask) -> Sampling:
        """How to choose tokens, with the form that the reply must have."""
        prompt, model = ask.prompts[0], self.loaded
        if not isinstance(prompt, Dialogue):
            return ask.sampling
        if prompt.demanded:
            offered = [tool["function"] for tool in prompt.tools]
            wanted = [function for function in offered if function["name"] in prompt.demanded]
            grammar = model.grammars.calls(wanted, several=not ask.one_call)
        elif prompt.schema is not None:
            grammar = model.grammars.json(prompt.schema)
        else:
            return ask.sampling
        after = model.tokenizer.control_id(THINK_END) if prompt.thinking else None
        return replace(ask.sampling, constrain=lambda: model.grammars.constraint(grammar, after))

    def _take(self, index: int, ask: Ask) -> Take:
        dialogue = isinstance(ask.prompts[0], Dialogue)
        parts = ReplyParts(thinking=ask.thinking, tools=ask.tools) if dialogue else PlainParts()
        return Take(
            index,
            self.loaded.tokenizer,
            parts,
            thinking=ask.thinking,
            one_call=ask.one_call,
            keep=self._replies.keep if dialogue else None,
        )

    def health(self) -> tuple[int, dict[str, Any]]:
        """Status and body of /health: 200 once requests are answered, 503 before."""
        deployment, model = self.deployment, self._loaded
        if model is None:
            done, total = self._progress
            body = {"status": "loading", "model": deployment.name, "loaded": [done, total]}
            return 503, {**body, "retry_after_s": RETRY_AFTER_S}
        status = "draining" if self._draining else "ok" if self._proof is None else "proving"
        return 200 if status == "ok" else 503, {
            "status": status,
            "model": deployment.name,
            "checkpoint": {"path": str(deployment.checkpoint), "sha256": model.sha256},
            "head": _head(deployment, model),
            "config": model.engine.config.canonical(),
            "fingerprint": model.fingerprint,
            "decision": deployment.decision,
            "machine": machine(model.engine.config.backend),
            "context_length": model.engine.config.context,
            "capacity": deployment.capacity,
            "faults": self._worker.faults,
            "running": self._worker.running,
            "waiting": self._worker.waiting,
            "waiting_limit": self.waiting_limit,
            "reloads": {"count": self._reloads.count, "refused": self._reloads.refused},
        }

    def _encode(self, model: Loaded, prompt: Prompt) -> list[int]:
        tokenizer = model.tokenizer
        if isinstance(prompt, str):
            return [tokenizer.bos_id, *tokenizer.encode(prompt)]
        if isinstance(prompt, tuple):
            return list(prompt)
        return chat.encode(
            tokenizer,
            self._replies.recall(prompt.messages),
            tools=prompt.tools,
            thinking=prompt.thinking,
            response_format=prompt.response_format,
            effort_prefix=model.efforts.paragraph(prompt.effort),
        )

    def _prepare(self) -> Generates | None:
        """Load everything; on failure keep the sentence for whoever started the server."""
        self._loaded = None
        if self._worker.fault_row > MOST_FAULTS:
            self.error = f"The engine failed {self._worker.fault_row} times in a row."
            self._settled()
            return None
        try:
            self._loaded = self._loader(self.deployment, self._note_progress)
        except EngineError as error:
            self.error, self.mistaken = str(error), self.faults == 0
        except Exception as error:  # not the user's doing: the log needs to know where
            traceback.print_exc()
            self.error = f"The model could not be loaded: {error!r}."
        if self._loaded is not None:
            self._describe()
        self._settled()
        return None if self._loaded is None else self._loaded.engine

    def _describe(self) -> None:
        self.metrics.describe(
            model=self.deployment.name,
            fingerprint=self.loaded.fingerprint,
            decision=str(self.deployment.decision),
        )

    def _note_progress(self, done: int, total: int) -> None:
        self._progress = (done, total)


def _head(deployment: Deployment, model: Loaded) -> dict[str, str | None] | None:
    if deployment.head is None:
        return None
    return {"path": str(deployment.head), "sha256": model.head_sha256}
