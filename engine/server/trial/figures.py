"""How fast the server is: tokens by clients, first tokens, gaps, leaving, and what it adds itself.

Every time is of the event loop's clock in this process, on the machine that also runs the server.
"""

from __future__ import annotations

import asyncio
import math
import random
import statistics
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import psutil

from engine.config import EngineConfig
from engine.engine import Engine
from engine.sampling import Sampling
from engine.server.deployment import EMBEDDED
from engine.server.trial.client import Client
from engine.server.trial.process import Served, served
from engine.tokenizer import Tokenizer

CONFIG = {"threads": 1}
TOGETHER = 8  # places of the server that is measured
CLIENTS = (1, 2, 4, 8, 16)
_TOKENS = 160
_NO_END = {"1": -100}
_WORDS = ("river", "engine", "window", "garden", "number", "winter", "apple", "stone", "light")


def _text(seed: int, words: int) -> str:
    draw = random.Random(seed)
    return " ".join(draw.choice(_WORDS) for _ in range(words))


def _body(text: str, tokens: int, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    return {
        "model": "tiny", "messages": messages, "temperature": 0, "max_tokens": tokens,
        "logit_bias": _NO_END, **more,
    }  # fmt: skip


async def arrivals(client: Client, body: Mapping[str, Any]) -> list[float]:
    """When the request was sent, and when each piece of text came."""
    clock = asyncio.get_running_loop().time
    times = [clock()]
    async with client.ask({**body, "stream": True}) as reply:
        async for event in reply.events():
            if event["choices"] and event["choices"][0]["delta"].get("content"):
                times.append(clock())
    return times


async def _whole(client: Client, body: Mapping[str, Any]) -> dict[str, Any]:
    async with client.ask(body) as reply:
        return await reply.json()


# ------------------------------------------------------------------ one client


async def overhead(server: Served, pairs: int) -> dict[str, Any]:
    """Time per token of a whole answer, from the engine alone and through the server, in turns.

    Processor time is the server's, all threads together; the client's own is not counted.
    """
    engine, tokenizer = Engine.load(EMBEDDED, EngineConfig(threads=1)), Tokenizer.load(EMBEDDED)
    prompt = [tokenizer.bos_id, *tokenizer.encode(_text(1, 20))]
    sampling = Sampling(logit_bias=((tokenizer.eos_id, -100.0),))
    body = {
        "model": "tiny", "prompt": prompt, "temperature": 0, "max_tokens": _TOKENS,
        "logit_bias": _NO_END, "stream": True,
    }  # fmt: skip

    def alone() -> tuple[float, float]:
        started_s, worked_s = time.perf_counter(), time.process_time()
        for _ in engine.generate(prompt, max_new_tokens=_TOKENS, sampling=sampling):
            pass
        return time.perf_counter() - started_s, time.process_time() - worked_s

    async def through() -> tuple[float, float]:
        started_s, worked_s = time.perf_counter(), server.cpu_s
        async with server.client.ask(body, "/v1/completions") as reply:
            async for _ in reply.events():
                pass
        return time.perf_counter() - started_s, server.cpu_s - worked_s

    pairs_of_runs = [(alone(), await through()) for _ in range(pairs + 1)][1:]
    found: dict[str, Any] = {"tokens": _TOKENS, "pairs": pairs}
    for place, kind in enumerate(("", "cpu_")):
        lone = [a[place] for a, _ in pairs_of_runs]
        spent = [b[place] for _, b in pairs_of_runs]
        ratio = statistics.median(b / a for a, b in zip(lone, spent, strict=True))
        found |= {
            f"engine_{kind}ms_per_token": _round(statistics.median(lone) * 1e3 / _TOKENS),
            f"server_{kind}ms_per_token": _round(statistics.median(spent) * 1e3 / _TOKENS),
            f"{kind}overhead": _round(ratio - 1),
        }
    return found


async def first_token(client: Client, repeats: int) -> dict[str, Any]:
    """Time to the first token of a long prompt, new and with nine tenths of it remembered."""
    cold, warm, shares = [], [], []
    for seed in range(repeats):
        text = _text(1000 + seed, 1000)
        cold.append(await _first(client, text))
        again = text[: len(text) * 91 // 100] + _text(5000 + seed, 90)
        body = _body(again, 1)
        warm.append(await _first(client, again))
        usage = (await _whole(client, body))["usage"]
        shares.append(len(text) * 91 // 100 / len(again))
    return {
        "prompt_tokens": usage["prompt_tokens"],
        "remembered_share": _round(statistics.median(shares)),
        "cold_ms": _round(statistics.median(cold) * 1e3),
        "hit_ms": _round(statistics.median(warm) * 1e3),
        "ratio": _round(statistics.median(c / w for c, w in zip(cold, warm, strict=True))),
    }


async def _first(client: Client, text: str) -> float:
    times = await arrivals(client, _body(text, 4))
    return times[1] - times[0]


async def cancellation(client: Client, repeats: int) -> dict[str, Any]:
    """From hanging up in mid-answer to the server's saying that nothing runs."""
    spent = []
    for seed in range(repeats):
        async with client.ask(_body(_text(seed, 20), 1000, stream=True)) as reply:
            events = reply.events()
            for _ in range(4):
                await anext(events)
        spent.append(await client.idle(10))
    middle = statistics.median(spent)
    return {"median_ms": _round(middle * 1e3), "most_ms": _round(max(spent) * 1e3)}


# ------------------------------------------------------------------ many clients


async def throughput(together: Client, one: Client, clients: int, repeats: int) -> dict[str, Any]:
    """Tokens a second over all clients that ask at once, of two servers in turns."""
    shared, apart = [], []
    for turn in range(repeats):
        shared.append(await _rate(together, clients, turn))
        apart.append(await _rate(one, clients, turn))
    return {
        "clients": clients,
        "together_tokens_per_second": _round(statistics.median(shared)),
        "one_at_a_time_tokens_per_second": _round(statistics.median(apart)),
        "gain": _round(statistics.median(a / b for a, b in zip(shared, apart, strict=True))),
    }


async def _rate(client: Client, clients: int, turn: int) -> float:
    """Tokens a second, prompts included."""
    first = 1000 * turn + 100 * clients
    bodies = [_body(_text(first + i, 20), _TOKENS) for i in range(clients)]
    started_s = time.perf_counter()
    answers = await asyncio.gather(*(_whole(client, body) for body in bodies))
    spent_s = time.perf_counter() - started_s
    tokens = sum(answer["usage"]["completion_tokens"] for answer in answers)
    return float(tokens) / spent_s


async def gaps(client: Client) -> dict[str, Any]:
    """Time between pieces of text of one client, by itself and while long prompts are read."""
    talk = _body(_text(7, 20), 400)
    alone = _between(await arrivals(client, talk))
    clock = asyncio.get_running_loop().time
    talking = asyncio.create_task(arrivals(client, talk))
    await asyncio.sleep(1.0)
    began_s = clock()
    for seed in range(3):
        await _whole(client, _body(_text(9000 + seed, 1000), 1))
    ended_s = clock()
    times = await talking
    during = _between([at for at in times[1:] if began_s <= at <= ended_s])
    return {
        "alone_p50_ms": _quantile(alone, 0.5),
        "alone_p99_ms": _quantile(alone, 0.99),
        "reading_p50_ms": _quantile(during, 0.5),
        "reading_p99_ms": _quantile(during, 0.99),
        "reading_most_ms": _round(max(during) * 1e3),
        "pieces": len(during),
    }


def _between(times: Sequence[float]) -> list[float]:
    return [b - a for a, b in zip(times, times[1:], strict=False)]


async def health_rate(client: Client, seconds: float) -> dict[str, Any]:
    """Answers of /health a second while four clients are served."""
    loads = [asyncio.create_task(arrivals(client, _body(_text(i, 20), 1500))) for i in range(4)]
    await asyncio.sleep(1.0)
    clock = asyncio.get_running_loop().time
    started_s, count = clock(), 0
    while clock() - started_s < seconds:
        await client.health()
        count += 1
    spent_s = clock() - started_s
    for load in loads:
        load.cancel()
    await asyncio.gather(*loads, return_exceptions=True)
    return {"per_second": _round(count / spent_s)}


async def handing_over(repeats: int) -> dict[str, Any]:
    """A night's two ends: from the last answer to the process's end, from a start to an answer.

    Each server is told to end while it answers, and drains.
    """
    clock = asyncio.get_running_loop().time
    coming, leaving = [], []
    for turn in range(repeats):
        began_s = clock()
        async with served(CONFIG, "--drain-s", "60") as server:
            await _whole(server.client, _body(_text(turn, 20), 1))
            coming.append(clock() - began_s)
            talking = asyncio.create_task(arrivals(server.client, _body(_text(turn, 20), _TOKENS)))
            await asyncio.sleep(0.5)
            server.process.terminate()
            times = await talking
            while psutil.pid_exists(server.process.pid):
                await asyncio.sleep(0.005)
            leaving.append(clock() - times[-1])
    return {
        "start_to_answer_ms": _quantile(coming, 0.5),
        "answer_to_end_ms": _quantile(leaving, 0.5),
        "answer_to_end_most_ms": _round(max(leaving) * 1e3),
    }


# ------------------------------------------------------------------ all of it


async def measured(*, repeats: int, requests: int) -> AsyncIterator[tuple[str, Any]]:
    """Every figure by name, as it is known. `requests` is how many the memory is watched over."""
    queue = ("--queue", "64")
    async with (
        served(CONFIG, "--clients", str(TOGETHER), *queue) as server,
        served(CONFIG, "--clients", "1", *queue) as lone,
    ):
        client = server.client
        yield "overhead", await overhead(server, 2 * repeats)
        yield "first_token", await first_token(client, repeats)
        yield "cancellation", await cancellation(client, 4 * repeats)
        yield "gaps", await gaps(client)
        rounds = max(1, repeats // 2)
        yield "throughput", [await throughput(client, lone.client, n, rounds) for n in CLIENTS]
        yield "health", await health_rate(client, 3.0)
    yield "handing_over", await handing_over(repeats)
    async with served(CONFIG, "--clients", str(TOGETHER), *queue) as server:
        early_mb = await _requests(server, 100)
        late_mb = await _requests(server, requests - 100)
        yield "memory", {
            "after_100_mb": _round(early_mb), f"after_{requests}_mb": _round(late_mb)
        }  # fmt: skip


async def _requests(server: Served, count: int) -> float:
    """Memory after so many short requests, eight at a time."""

    async def some(first: int) -> None:
        for i in range(first, count, 8):
            await _whole(server.client, _body(_text(i % 500, 8), 1))

    await asyncio.gather(*(some(first) for first in range(8)))
    return server.memory_mb


def _quantile(values: Sequence[float], share: float) -> float:
    """By nearest rank, in ms."""
    ordered = sorted(values)
    return _round(ordered[max(0, math.ceil(share * len(ordered)) - 1)] * 1e3)


def _round(value: float) -> float:
    return float(f"{value:.4g}")
