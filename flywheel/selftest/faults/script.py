"""Faults that the scripted engine does to itself, told what to do on its command line."""

from __future__ import annotations

from typing import Any

from flywheel.selftest.fault import Fault
from flywheel.selftest.scene import Scene


def scripted_fault(
    noun: str,
    name: str,
    injected: str,
    outcome: str,
    codes: str,
    *options: str,
    fault: str = "",
    order: dict[str, Any] | None = None,
    **fields: Any,
) -> Fault:
    """One run of an engine with ``--fault`` (by default the name itself); codes by spaces."""

    def inject(scene: Scene) -> None:
        scene.loop("--fault", fault or name, *options, **(order or {}))

    return Fault(name, noun, injected, outcome, tuple(codes.split()) or ("",), inject, **fields)
