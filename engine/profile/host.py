"""Phases of a step of the torch backend, timed call by call on the host's clock.

The operations of a backbone are replaced by ones that note when they begin and end, and put back
afterwards: an engine that is not profiled runs nothing of this.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from engine.engine import Engine
from engine.model import Backbone
from engine.profile.phase import ProfileError
from engine.profile.span import Path, Span, Steps
from engine.torch_backend import prefill

WARM_STEPS = 3
# Methods by the part of the backbone that has them; "" is the part when it is called itself.
_WATCHED: dict[str, dict[str, Path]] = {
    "residual": {"enter": ("hyper",), "leave": ("hyper",)},
    "attention": {
        "project": ("attention", "project"),
        "gather": ("attention", "gather"),
        "finish": ("attention", "finish"),
    },
    "experts": {"": ("experts",)},
}


class Recorder:
    """Collects spans on the host's clock."""

    def __init__(self) -> None:
        self.spans: list[Span] = []

    def watch(self, path: Path, call: Callable[..., Any]) -> Callable[..., Any]:
        """`call`, which from now on leaves a span each time."""

        def timed(*arguments: Any, **named: Any) -> Any:
            started = time.perf_counter_ns()
            result = call(*arguments, **named)
            self.spans.append(Span(path, started, time.perf_counter_ns()))
            return result

        return timed


class _Watched:
    """Stands for a part of the backbone; the methods that are watched leave spans."""

    def __init__(self, part: Any, methods: dict[str, Path], recorder: Recorder) -> None:
        self._part = part
        self._timed = {
            name: recorder.watch(path, getattr(part, name) if name else part)
            for name, path in methods.items()
        }

    def __getattr__(self, name: str) -> Any:
        timed = self.__dict__["_timed"]
        return timed[name] if name in timed else getattr(self.__dict__["_part"], name)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._timed[""](*arguments, **named)


@contextmanager
def watched(backbone: Backbone, recorder: Recorder) -> Iterator[None]:
    """Inside, the backbone's operations leave spans with `recorder`.

    Raises ProfileError for compiled blocks, whose operations no longer exist apart.
    """
    if backbone.config.compile != "off":
        raise ProfileError(
            f"compile {backbone.config.compile!r} leaves no phases inside a block to be timed; "
            "profile with compile 'off'."
        )
    kept = {name: getattr(backbone, name) for name in _WATCHED}
    for name, methods in _WATCHED.items():
        setattr(backbone, name, _Watched(kept[name], methods, recorder))
    setattr(backbone, "logits", recorder.watch(("head",), backbone.logits))  # noqa: B010
    try:
        yield
    finally:
        for name, part in kept.items():
            setattr(backbone, name, part)
        del backbone.__dict__["logits"]


@torch.inference_mode()
def decode_steps(engine: Engine, prompt: list[int], rows: int, steps: int) -> Steps:
    """`steps` decode steps of `rows` tokens after `prompt`, each taken back: all are the same."""
    backbone, state = engine.backbone, engine.new_state()
    prefill(backbone, None, state, prompt)
    ids = torch.tensor((prompt * rows)[:rows])
    recorder = Recorder()
    step_ns = []
    with watched(backbone, recorder):
        for index in range(-WARM_STEPS, steps):
            if index == 0:
                recorder.spans.clear()
            started = time.perf_counter_ns()
            backbone.logits(backbone.forward(ids, state))
            elapsed = time.perf_counter_ns() - started
            state.rollback()
            if index >= 0:
                step_ns.append(float(elapsed))
    return Steps(tuple(recorder.spans), tuple(step_ns))
