"""Phases of a step on a CUDA device: kernel times from the driver's tracer, by named launch.

A step is anything that launches the same kernels every time it runs, most of all a replayed graph.
Each step is timed by events too, and the phases are held against that second clock.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile

from engine.profile.phase import ProfileError
from engine.profile.script import Launch, Script
from engine.profile.span import Steps


def traced_steps(run: Callable[[], object], script: Script, steps: int) -> Steps:
    """Trace `steps` calls of `run`, which must launch on the current stream or wait for it.

    Raises ProfileError where the tracer saw no kernel, or not as many as the script can share.
    """
    with profile(activities=[ProfilerActivity.CUDA]):
        run()  # the tracer itself starts late, and nothing may be compiled while it looks
        torch.cuda.synchronize()
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(steps)]
    with profile(activities=[ProfilerActivity.CUDA]) as tracer:
        for first, last in events:
            first.record()
            run()
            last.record()
        torch.cuda.synchronize()
    launches = [
        Launch(event.name, event.time_range.start * 1e3, event.time_range.end * 1e3)
        for event in tracer.events() or ()
        if event.device_type.name == "CUDA"
    ]
    if not launches:
        raise ProfileError("The driver's tracer saw no kernel: profiling may be forbidden here.")
    step_ns = tuple(first.elapsed_time(last) * 1e6 for first, last in events)
    return Steps(script.spans(launches, steps), step_ns)
