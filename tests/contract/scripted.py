"""The real server around an engine that replies by script: `name` or `name:block size`.

The name is the last user message. Control tokens in a script are spelled out.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import re
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from engine.config import EngineConfig
from engine.effort import Efforts
from engine.engine import Commit
from engine.errors import NumericsError
from engine.grammar import Grammars
from engine.sampling import Sampling
from engine.server.command import listen, serve
from engine.server.deployment import EMBEDDED, Deployment
from engine.server.limits import Limits
from engine.server.service import Loaded, Service
from engine.tokenizer import DSML, EOS, THINK_END, Tokenizer

CALL = (
    "\n\n<｜DSML｜tool_calls>\n"
    '<｜DSML｜invoke name="weather">\n'
    '<｜DSML｜parameter name="city" string="true">Köln 🙂 "old town"</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="days" string="false">[1, 2]</｜DSML｜parameter>\n'
    "</｜DSML｜invoke>\n"
    '<｜DSML｜invoke name="now">\n'
    "</｜DSML｜invoke>\n"
    "</｜DSML｜tool_calls>"
)
SCRIPTS = {
    "plain": "One, two, three. Grüße 🙂🙃 aus Köln.",
    "thought": f"Let me see. 2 < 3.{THINK_END}Yes.",
    "cut thought": "Let me see, this will take",
    "call": f"I will look.{CALL}",
    "bare call": CALL.lstrip(),
    "thought call": f"Ask the tool.{THINK_END}{CALL}",
    "broken call": f"Well.{CALL.replace('</｜DSML｜invoke>', '')}",
    "odd call": f"I will look.{CALL.replace('[1, 2]', '[1,  2 ]')}",
    "odd thought": f"Ask the tool, or not.{THINK_END}{CALL.replace('[1, 2]', '[1,  2 ]')}",
    "cut comparison": "So 1 < 2 <",
    "typed call": CALL.replace('name="city"', 'name="arguments"').replace("Köln", "5, true,"),
    "early call": f"I could say{CALL} but{THINK_END}No.",
    "quoted tag": "A lone ｜DSML｜ tag and </｜DSML｜invoke> are text.",
}
TALKS = ("fault at once", "engine fault", "bug at once", "flood", "late", "endless", "fault later")
KNOWN = {*SCRIPTS, *TALKS}  # any other prompt is answered plainly
EFFORTS = Efforts(high="Think well. ", max="Think very hard. ")
STEP_S = 0.02
LATE_S = 1.0


def spelled(tokenizer: Tokenizer, script: str) -> list[int]:
    """The tokens of a script; an odd one is cut as no tokenizer would cut it."""
    if not script.startswith("odd"):
        said = SCRIPTS.get(script, SCRIPTS["plain"])
        return tokenizer.encode(said + EOS, special=True)
    pieces = re.split(f"({DSML}|{THINK_END})", SCRIPTS[script])
    cut = [[piece] if piece in (DSML, THINK_END) else list(piece) for piece in pieces] + [[EOS]]
    return [i for part in cut for text in part for i in tokenizer.encode(text, special=True)]


class DeviceError(Exception):
    """What no generation is to blame for."""


class Scripted:
    """Stands in for the engine: scripts, endless talk and faults, without a model."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.config = EngineConfig(context=4096)
        self._tokenizer = tokenizer

    def switched(self, config: EngineConfig) -> Scripted:
        """Scripts are the same under any configuration."""
        return self

    def check(self, prompt: Sequence[int], max_new_tokens: int, sampling: Sampling) -> None:
        """Every prompt will do."""

    def advance(
        self, generations: Sequence[Iterator[Commit]]
    ) -> list[tuple[Iterator[Commit], Commit | Exception]]:
        """The next commit of each."""
        return [(generation, self._next(generation)) for generation in generations]

    @staticmethod
    def _next(generation: Iterator[Commit]) -> Commit | Exception:
        try:
            return next(generation)
        except DeviceError:
            raise
        except Exception as error:
            return error

    def begin(
        self,
        prompt: Sequence[int],
        *,
        max_new_tokens: int,
        sampling: Sampling | None = None,
        stop_ids: Collection[int] = (),
    ) -> Iterator[Commit]:
        """Commits of the script that the prompt names."""
        text = self._tokenizer.decode(prompt)
        name = text.removesuffix("<think>").removesuffix(THINK_END).rpartition("@")[2]
        script, _, size = name.partition(":") if name.split(":")[0] in KNOWN else ("", "", "")
        return self._commits(script, int(size or 1), max_new_tokens)

    def _commits(self, script: str, size: int, limit: int) -> Iterator[Commit]:
        if script == "fault at once":
            raise NumericsError("The logits are not finite.")
        if script == "engine fault":
            yield from self._talk(script, 2)
            raise DeviceError("The device fell off the bus.")
        if script == "bug at once":
            raise ZeroDivisionError("a secret of the implementation")
        if script == "flood":
            ids = self._tokenizer.encode(" word" * 20_000)
            yield from (Commit(tuple(ids), None, None) for _ in range(1000))
        if script == "late":
            time.sleep(LATE_S)
            script = "plain"
        if script in ("endless", "fault later"):
            yield from self._talk(script, limit)
            return
        ids = spelled(self._tokenizer, script)
        kept = ids[:limit]
        for start in range(0, len(kept), size):
            last = start + size >= len(kept)
            finish = None if not last else "stop" if len(kept) == len(ids) else "length"
            yield Commit(tuple(kept[start : start + size]), finish, None)

    def _talk(self, script: str, limit: int) -> Iterator[Commit]:
        word = self._tokenizer.encode(" so")[:1]
        for count in itertools.count(1):
            time.sleep(STEP_S)
            if script == "fault later" and count == 3:
                raise NumericsError("The logits are not finite.")
            ends = count == limit and script != "engine fault"
            yield Commit(tuple(word), "length" if ends else None, None)
            if count == limit:
                return


def main() -> int:
    """Serve on the port given."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--about", type=Path)
    parser.add_argument("--drain-s", type=float, default=0.0)
    parser.add_argument("--clients", type=int, default=1)
    parser.add_argument("--limits", type=json.loads, default={})
    parser.add_argument("--key")
    parser.add_argument("--origin", action="append", default=[])
    options = parser.parse_args()
    deployment = Deployment(
        "scripted",
        Path(EMBEDDED),
        None,
        EngineConfig(),
        about=options.about,
        capacity=options.clients,
    )
    tokenizer = Tokenizer.load(EMBEDDED)
    grammars = Grammars(EMBEDDED, tokenizer, tokenizer.vocab_size)
    service = Service(
        deployment,
        waiting_limit=1,
        limits=Limits(**options.limits),
        loader=lambda *_: Loaded(Scripted(tokenizer), tokenizer, grammars, "0" * 64, EFFORTS),
    )
    listener = listen("127.0.0.1", options.port)
    serving = serve(
        service, listener, key=options.key, origins=options.origin, drain_s=options.drain_s
    )
    return asyncio.run(serving)


if __name__ == "__main__":
    sys.exit(main())
