"""What produced a number: code, device and clocks, read once at the start and again at the end."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pynvml
import torch

import engine
import kernels
from engine.engine import available_cores

_GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")


def source_sha256() -> str:
    """Hash over every Python file of the two packages that compute."""
    digest = hashlib.sha256()
    for package in (engine, kernels):
        root = Path(str(package.__file__)).parent
        for path in sorted(root.rglob("*.py")):
            digest.update(str(path.relative_to(root.parent)).encode() + b"\0")
            digest.update(path.read_bytes())
    return digest.hexdigest()


def revision() -> tuple[str | None, bool | None]:
    """Git commit of the source tree and whether tracked files differ from it; None outside git."""
    root = Path(str(engine.__file__)).parents[1]
    commit = _git(root, "rev-parse", "HEAD")
    if commit is None:
        return None, None
    return commit, bool(
        _git(root, "status", "--porcelain", "--untracked-files=no", "--", "engine", "kernels")
    )


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def device(backend: str) -> dict[str, Any]:
    """What the run computes on: the GPU of the triton backend, else the processor."""
    on_gpu = backend == "triton" and torch.cuda.is_available()
    return {
        "kind": "cuda" if on_gpu else "cpu",
        "name": torch.cuda.get_device_name() if on_gpu else _processor_name(),
        "driver": _driver() if on_gpu else None,
        "cores": available_cores(),
        "system": f"{platform.system()} {platform.machine()}",
        "mem_total_bytes": psutil.virtual_memory().total,
    }


def _driver() -> str | None:
    """The driver's version; None where NVML does not tell."""
    try:
        pynvml.nvmlInit()
        try:
            return str(pynvml.nvmlSystemGetDriverVersion())
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return None


def clocks() -> dict[str, Any]:
    """Clock policy and current frequency, where the system tells."""
    policy = _GOVERNOR.read_text().strip() if _GOVERNOR.exists() else None
    try:
        frequency = psutil.cpu_freq()
    except (OSError, NotImplementedError):
        frequency = None
    return {"policy": policy, "mhz": round(frequency.current) if frequency else None}


def _processor_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.lower().startswith(("model name", "hardware")):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or os.uname().machine
