"""What the numbers were taken on."""

from __future__ import annotations

import os
import platform
import resource
from importlib import metadata
from pathlib import Path

import psutil
import torch


def facts() -> dict[str, object]:
    """The machine and the versions, as plain values."""
    return {
        "processor": _processor(),
        "cores": available_cores(),
        "memory_bytes": psutil.virtual_memory().total,
        "load_1m": os.getloadavg()[0],
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": _version("transformers"),
        "engine": _version("flywheel-engine"),
    }


def available_cores() -> int:
    """Processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def peak_rss_bytes() -> int:
    """The most memory that this process has had."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if platform.system() == "Darwin" else peak * 1024


def rss_bytes() -> int:
    """Memory of this process now."""
    return int(psutil.Process().memory_info().rss)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
