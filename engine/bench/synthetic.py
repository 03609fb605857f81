"""Timing of a full-size geometry with random weights: what decode, draft and prefill cost here.

Its tokens mean nothing, so nothing is said of acceptance: where a number of committed tokens a
round enters, it is injected, and labelled so.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from engine.config import EngineConfig
from engine.device import memory, requirement, synthetic
from engine.device.backend import TritonBackend
from engine.device.launches import Launches
from engine.device.state import State
from engine.device.weights import Weights, tensors
from engine.errors import ConfigError, DeviceError
from engine.geometry import Geometry
from engine.state import TILE

SECTIONS = ("bandwidth", "decode", "draft", "widths", "rounds", "prefill")
CONTEXTS = (0, 4096, 32768, 131072)
PROMPTS = (1024, 4096, 12288, 32768)
REPEATS = 48
TAUS = (2.0, 2.5, 3.0, 3.5, 4.0)
_LEAST_CONTEXT = 64  # "short": enough that every kind of row exists
_ROOM = 1024  # positions past a context that its timings may use
_SCALE = 119  # of packed rows: their numbers stay under two
_NUMBERS = 0xF7  # bits of an E4M3 code of which no choice is a NaN

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line asks for."""

    name: str
    layers: int | None = None
    contexts: tuple[int, ...] = CONTEXTS
    prompts: tuple[int, ...] = PROMPTS
    sections: tuple[str, ...] = SECTIONS
    repeats: int = REPEATS
    config: EngineConfig = field(default_factory=lambda: EngineConfig())

    def resolved(self, geometry: Geometry) -> EngineConfig:
        """The configuration, with a context that holds every timing."""
        longest = max((*self.contexts, *self.prompts, _LEAST_CONTEXT)) + _ROOM
        if longest > geometry.max_position_embeddings:
            raise ConfigError(
                f"A context of {longest} tokens exceeds the model's "
                f"{geometry.max_position_embeddings}."
            )
        if 0 < self.config.context < longest:
            raise ConfigError(
                f"The configuration's context of {self.config.context} tokens does not hold the "
                f"timings, which need {longest}."
            )
        config = replace(self.config, backend="triton", context=self.config.context or longest)
        return config.effective(geometry, cores=1)


def run(options: Options, say: Say) -> dict[str, Any]:
    """Build, time, and `say` every line as it comes; the whole as plain values.

    Raises ConfigError and DeviceError where it cannot run.
    """
    unknown = sorted(set(options.sections) - set(SECTIONS))
    if unknown:
        raise ConfigError(f"Unknown section {unknown[0]!r}; known: {', '.join(SECTIONS)}.")
    geometry = synthetic.geometry(options.name, options.layers)
    config = options.resolved(geometry)
    device = requirement.device()
    if device.type != "cuda":
        raise DeviceError("The benchmark of a synthetic model needs a GPU.")
    memory.check(geometry, config, device)
    bench = _Bench(options, geometry, config, device, say)
    with torch.inference_mode():
        return bench.run()


class _Bench:
    """One model and one sequence, timed section after section."""

    def __init__(
        self,
        options: Options,
        geometry: Geometry,
        config: EngineConfig,
        device: torch.device,
        say: Say,
    ) -> None:
        self._options = options
        self._say = say
        self._result: dict[str, Any] = {
            "geometry": options.name,
            "layers": geometry.num_hidden_layers,
            "config": config.canonical(),
            "device": torch.cuda.get_device_name(device),
            "weights": "random: nothing is claimed of acceptance",
        }
        self._geometry = geometry
        started = time.perf_counter()
        with torch.inference_mode(False):
            weights = synthetic.generate(geometry, device=device)
        torch.cuda.synchronize()
        self._weights = weights
        self._note_build(time.perf_counter() - started)
        self._bandwidth: float | None = None
        if "bandwidth" in options.sections:  # its kernels are not the engine's, and are not counted
            self._measure_bandwidth()
        started = time.perf_counter()
        self._backend = TritonBackend(geometry, weights, config)
        self._state = self._backend.new_state()
        _, self._seat = self._backend.seat(self._state)
        self._result["warm_up_s"] = time.perf_counter() - started
        say(f"warm-up {self._result['warm_up_s']:.1f} s: every kernel compiled, graphs captured")
        self._random = torch.Generator(device).manual_seed(1)

    def run(self) -> dict[str, Any]:
        """Every section that was asked for."""
        wanted, result = self._options.sections, self._result
        timed = [s for s in ("decode", "draft", "widths", "rounds") if s in wanted]
        result["contexts"] = [self._at(context, timed) for context in self._contexts(timed)]
        if "prefill" in wanted:
            result["prefill"] = list(self._prefills())
        result["memory"] = {
            "peak_bytes": torch.cuda.max_memory_allocated(),
            "reserved_bytes": torch.cuda.max_memory_reserved(),
        }
        self._say(f"memory  peak {_gib(torch.cuda.max_memory_allocated())}")
        result["compilations_after_warm_up"] = self._backend.tally.compilations
        return result

    def _contexts(self, timed: Sequence[str]) -> list[int]:
        return [max(c, _LEAST_CONTEXT) for c in self._options.contexts] if timed else []

    def _note_build(self, seconds: float) -> None:
        held, peak = torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()
        parts = bytes_by_part(self._weights, self._geometry, rows=1)
        self._result |= {
            "build_s": seconds,
            "weights_bytes": held,
            "load_transient_bytes": peak - held,
            "bytes_per_token": parts,
        }
        self._say(
            f"{self._options.name}, {self._geometry.num_hidden_layers} layers, random weights: "
            f"{_gib(held)} in {seconds:.1f} s, {_gib(peak - held)} more while building"
        )
        self._say(
            f"bytes read a token {sum(parts.values()) / 1e9:.3f} GB: "
            + ", ".join(f"{name} {count / 1e9:.3f}" for name, count in parts.items())
        )

    def _measure_bandwidth(self) -> None:
        from kernels.bench.bandwidth import read_gb_s

        self._bandwidth = read_gb_s()
        self._result["read_gb_s"] = self._bandwidth
        self._say(f"read bandwidth {self._bandwidth / 1e3:.2f} TB/s")

    # ---------------------------------------------------------------- one context

    def _at(self, context: int, timed: Sequence[str]) -> dict[str, Any]:
        found: dict[str, Any] = {"context": context}
        fill(self._state, context, self._random)
        self._say(f"context {context}")
        if "decode" in timed:
            found |= self._decode(context)
        if "draft" in timed:
            width = self._backend.config.draft_width
            launches = self._seat.blocks(width, sampled=False)
            found |= self._timed("draft", launches, 1, context)
            self._say(f"  draft of {width}: {found['draft_ms']:.3f} ms")
        if "widths" in timed:
            found["widths"] = list(self._widths(context))
        if "rounds" in timed:
            found |= self._rounds(context)
        return found

    def _decode(self, context: int) -> dict[str, Any]:
        launches = self._seat.steps(1, sampled=False, drafting=False)
        found = self._timed("decode", launches, 1, context)
        ms = found["decode_ms"]
        count = sum(bytes_by_part(self._weights, self._geometry, rows=1).values())
        count += state_bytes(self._geometry, context, self._state)
        nodes = launches.nodes()
        layers = self._geometry.num_hidden_layers
        found |= {"bytes": count, "tok_s": 1e3 / ms, "nodes": nodes, "wall_ms": self._wall(context)}
        line = f"  plain decode {ms:.3f} ms, {1e3 / ms:.1f} tok/s, wall {found['wall_ms']:.3f} ms"
        if self._bandwidth:
            floor = count / self._bandwidth / 1e6
            found |= {"floor_ms": floor, "of_floor": floor / ms}
            line += f"; floor {floor:.3f} ms, {floor / ms:.1%} of it"
        self._say(line + (f"; {nodes} nodes, {nodes / layers:.1f} a layer" if nodes else ""))
        return found

    def _widths(self, context: int) -> Iterator[dict[str, Any]]:
        first = 0.0
        for rows in range(1, TILE + 1):
            launches = self._seat.steps(rows, sampled=False, drafting=False)
            ms = self._timed("step", launches, rows, context)["step_ms"]
            first = first or ms
            union = expected_experts(self._geometry, rows)
            self._say(
                f"  C({rows}) {ms:.3f} ms, {ms / first:.2f} x C(1), {union:.1f} experts expected"
            )
            yield {"rows": rows, "ms": ms, "ratio": ms / first, "expected_experts": union}

    def _rounds(self, context: int) -> dict[str, Any]:
        width = self._backend.config.draft_width
        found = self._timed("round", self._seat.rounds(width, sampled=False), 1, context)
        ms = found["round_ms"]
        found["injected"] = {str(tau): tau / ms * 1e3 for tau in TAUS}
        rates = ", ".join(f"tau {tau}: {tau / ms * 1e3:.0f}" for tau in TAUS)
        self._say(f"  round of {width} drafts {ms:.3f} ms; tok/s at INJECTED {rates}")
        return found

    def _timed(
        self, name: str, launches: Launches[Tensor], rows: int, context: int
    ) -> dict[str, Any]:
        """Median and spread of replays, each on tokens of its own at a position of its own."""
        vocabulary, count = self._geometry.vocab_size, self._options.repeats
        self._state.length = context
        ids = torch.randint(
            vocabulary, (count + 2, rows), generator=self._random, device=self._backend.device
        )
        events = []
        for row in ids:
            self._seat.place(row)
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            launches()
            end.record()
            events.append((start, end))
        torch.cuda.synchronize()
        ms = sorted(start.elapsed_time(end) for start, end in events[2:])
        return {
            f"{name}_ms": statistics.median(ms),
            f"{name}_ms_p10_p90": (ms[len(ms) // 10], ms[-1 - len(ms) // 10]),
        }

    def _wall(self, context: int) -> float:
        """Milliseconds of a plain round as a client meets it: the host's part and its wait."""
        self._state.length = context
        times, token = [], 1
        for _ in range(self._options.repeats):
            started = time.perf_counter()
            token = self._seat.confirm([token], None, drafting=False).tokens[-1]
            times.append((time.perf_counter() - started) * 1e3)
        return statistics.median(times)

    # ---------------------------------------------------------------- prompts

    def _prefills(self) -> Iterator[dict[str, Any]]:
        self._prefill(min(self._options.prompts, default=TILE))  # whatever is still to compile
        for length in self._options.prompts:
            seconds = self._prefill(length)
            self._say(
                f"prompt of {length}: first token after {seconds * 1e3:.0f} ms, "
                f"{length / seconds:.0f} tok/s"
            )
            yield {"prompt": length, "ttft_ms": seconds * 1e3, "tok_s": length / seconds}

    def _prefill(self, length: int) -> float:
        self._state.clear()
        prompt = torch.randint(
            self._geometry.vocab_size, (length,), generator=self._random,
            device=self._backend.device,
        ).tolist()  # fmt: skip
        torch.cuda.synchronize()
        started = time.perf_counter()
        self._backend.prefill(self._state, prompt)
        return time.perf_counter() - started


# -------------------------------------------------------------------- what is counted, not timed


def fill(state: State, context: int, random: torch.Generator) -> None:
    """Make `state` that of a sequence of `context` tokens, of random rows."""
    for name, tensor in state.tensors().items():
        if name.endswith(".scales"):
            tensor.fill_(_SCALE)
        elif name.endswith(".codes"):
            tensor.random_(generator=random).bitwise_and_(_NUMBERS)
        else:
            tensor.normal_(generator=random)
    state.length = state.draft_length = context


def bytes_by_part(weights: Weights, geometry: Geometry, *, rows: int) -> dict[str, int]:
    """Bytes of weights that a step of `rows` tokens reads, if each chooses experts at random."""
    share = expected_experts(geometry, rows) / geometry.n_routed_experts
    parts = dict.fromkeys(("attention", "compressors", "hyper", "router", "shared", "routed"), 0)
    for block in weights.layers:
        a, m = block.attention, block.moe
        narrow = (a.down, a.q_norm, a.up, a.kv_norm, a.wo_a, a.wo_b, a.sink)
        parts["attention"] += _size(narrow)
        parts["compressors"] += _size((a.side, a.compressor, a.indexer))
        parts["hyper"] += _size((block.hc_attn, block.hc_ffn))
        parts["router"] += _size((m.gate, m.bias))
        parts["shared"] += _size((m.shared_w13, m.shared_w2))
        parts["routed"] += round(_size((m.w13, m.w2)) * share)
    parts["head"] = _size((weights.head, weights.hc_head))
    return parts


def state_bytes(geometry: Geometry, context: int, state: State) -> int:
    """Bytes of a sequence's rows that one more token reads."""
    g, count = geometry, 0
    near = state.store.named["window"][0, 0].nbytes
    row = {name: pool.row_bytes for name, pool in state.pools.items()}
    for ratio in g.layer_ratios:
        count += min(context, g.sliding_window) * near
        if ratio == 4:
            chosen = min(context // 4, g.index_topk)
            count += context // 4 * row["keys.4"] + chosen * row["rows.4"]
        elif ratio:
            count += context // ratio * row[f"rows.{ratio}"]
    return count


def expected_experts(geometry: Geometry, rows: int) -> float:
    """Different experts that `rows` tokens visit if each chooses at random."""
    experts, chosen = geometry.n_routed_experts, geometry.num_experts_per_tok
    return float(experts * (1.0 - (1.0 - chosen / experts) ** rows))


def _size(group: object) -> int:
    return sum(t.nbytes for t in tensors(group))


def _gib(count: int) -> str:
    return f"{count / 2**30:.2f} GiB"
