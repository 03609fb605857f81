"""transformers as a contestant: the same checkpoint through its own loader and `generate`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from engine.bench.contest import Sample
from engine.errors import EngineError

NAME = "transformers"


class PeerMissing(EngineError):  # noqa: N818
    """transformers cannot take part; the sentence says why."""


class _Clock:
    """A streamer that only looks at the clock: first the prompt, then each token comes by."""

    def __init__(self) -> None:
        self.times_ns: list[int] = []

    def put(self, _: Any) -> None:
        self.times_ns.append(time.perf_counter_ns())

    def end(self) -> None:
        pass


class Peer:
    """`DeepseekV4ForCausalLM.generate`, greedy, with the library's own choices for everything."""

    name = NAME

    def __init__(self, checkpoint: Path, dtype: str) -> None:
        library = _library()
        format_of_checkpoint = library.FineGrainedFP8Config(
            dequantize=True, scale_fmt="ue8m0", expert_dtype="fp4"
        )
        kind = getattr(torch, dtype)
        try:
            model = library.AutoModelForCausalLM.from_pretrained(
                str(checkpoint), dtype=kind, quantization_config=format_of_checkpoint
            )
        except Exception as error:  # its loader fails in ways of its own
            why = str(error).partition("\n")[0].rstrip(".")
            raise PeerMissing(f"transformers could not load this checkpoint ({why}).") from error
        self._model = model.eval() if dtype == "bfloat16" else model.to(kind).eval()
        self._threads = torch.get_num_threads()

    @property
    def weights_bytes(self) -> int:
        """Parameters and buffers in memory. It has no draft head."""
        tensors = [*self._model.parameters(), *self._model.buffers()]
        return sum(t.numel() * t.element_size() for t in tensors)

    @property
    def choices(self) -> str:
        """What the library chose by itself."""
        config = self._model.config
        attention = getattr(config, "_attn_implementation", None)
        experts = getattr(config, "_experts_implementation", None)
        return f"attention {attention}, experts {experts}"

    def use_threads(self, threads: int) -> None:
        """Take this many threads from now on."""
        self._threads = threads

    def decode(self, prompt: Sequence[int], count: int) -> Sample:
        """Generate exactly `count` tokens; the end of the text does not stop it."""
        torch.set_num_threads(self._threads)
        clock = _Clock()
        started = time.perf_counter_ns()
        with torch.inference_mode():
            ids = self._model.generate(
                torch.tensor([list(prompt)]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                max_new_tokens=count,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
                streamer=clock,
            )
        tokens = tuple(ids[0, len(prompt) :].tolist())
        first, last = clock.times_ns[1], clock.times_ns[-1]
        return Sample(tokens, len(tokens) - 1, first - started, last - first)


def _library() -> Any:
    try:
        import transformers
    except ImportError:
        raise PeerMissing(
            "transformers is not installed, so there is no comparison with it"
            " (pip install 'flywheel-engine[oracle]' accelerate)."
        ) from None
    with contextlib.suppress(AttributeError):
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
    return transformers
