"""Who else is on the device: by NVML's lists, by its memory, or by another engine's own command.

A name pattern decides only whether to start and what to say; nothing here is ever killed.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from flywheel.box import device
from flywheel.box.device import Gpu

_PROC = Path("/proc")
# What an idle driver and a desktop without work keep on a device.
IDLE_BYTES = 768 << 20
GRAPHICS_BYTES = 1 << 30
# Programs that take the lease themselves: while it is held, one of these is on its way out.
_LEASED = ("engine.bench", "engine.train")
# A process shares our device when these agree.
_PLACING = ("FLYWHEEL_LEASE", "CUDA_VISIBLE_DEVICES")


@dataclass(frozen=True, slots=True)
class Tenant:
    """A process that is not ours, and what it uses."""

    pid: int
    name: str | None
    user: str | None
    where: str
    used_bytes: int | None = None

    def __str__(self) -> str:
        who = self.name or "an unknown program"
        if self.user is not None:
            who += f", user {self.user}"
        much = "" if self.used_bytes is None else f" with {self.used_bytes / 2**30:.1f} GiB"
        return f"process {self.pid} ({who}) is using {self.where}{much}."


def user_of(pid: int, proc: Path = _PROC) -> str | None:
    """The name of a process's user; its number where there is no name."""
    try:
        uid = (proc / str(pid)).stat().st_uid
    except OSError:
        return None
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def on_gpu(gpu: Gpu, own: Collection[int] = ()) -> tuple[Tenant, ...]:
    """Processes on a GPU besides our own; a desktop counts only when it holds real memory."""
    found = []
    for one in gpu.processes or ():
        desktop = one.kind == device.GRAPHICS and (one.used_bytes or 0) <= GRAPHICS_BYTES
        if one.pid not in own and not desktop:
            where = f"GPU {gpu.index}"
            found.append(Tenant(one.pid, one.name, user_of(one.pid), where, one.used_bytes))
    return tuple(found)


def hidden(gpu: Gpu) -> str | None:
    """Memory in use on a GPU whose process list is empty or kept from us, as one sentence."""
    if gpu.processes or gpu.mem_used_bytes is None or gpu.mem_used_bytes <= IDLE_BYTES:
        return None
    return (
        f"device memory of {gpu.mem_used_bytes / 2**30:.1f} GiB on GPU {gpu.index} is in use by a "
        "process that this container cannot see."
    )


def engines(own: Collection[int] = (), proc: Path = _PROC) -> tuple[Tenant, ...]:
    """Live ``python -m engine...`` processes that share our device and are not our ``own``.

    Asked while the lease is held, so programs that take it first are left out.
    """
    mine = {name: os.environ.get(name) for name in _PLACING}
    found = []
    for entry in sorted((one for one in os.listdir(proc) if one.isdigit()), key=int):
        pid = int(entry)
        if pid in own or pid == os.getpid():
            continue
        module = engine_module(_words(proc / entry / "cmdline"))
        if module is None or module.startswith(_LEASED):
            continue
        theirs = dict(word.partition("=")[::2] for word in _words(proc / entry / "environ"))
        # Another user's environment cannot be read: then it counts as sharing our device.
        if theirs and any(theirs.get(name) != value for name, value in mine.items()):
            continue
        found.append(Tenant(pid, f"python -m {module}", user_of(pid, proc), "the device"))
    return tuple(found)


def engine_module(words: Sequence[str]) -> str | None:
    """The engine's module that a command line runs; None when it runs something else.  Pure."""
    for flag, module in zip(words, words[1:], strict=False):
        if flag == "-m" and module.startswith("engine."):
            return module
    return None


def _words(path: Path) -> list[str]:
    try:
        data = path.read_bytes()
    except OSError:
        return []
    return [word.decode("utf-8", "replace") for word in data.split(b"\0") if word]


def before_launch(gpus: Sequence[Gpu]) -> str | None:
    """Why the device is not ours alone, before any engine of ours runs; None when it is."""
    return during_run(gpus, ()) or next(
        (said for gpu in _ours(gpus) if (said := hidden(gpu)) is not None), None
    )


def during_run(gpus: Sequence[Gpu], own: Collection[int]) -> str | None:
    """Who joined our ``own`` processes on the device, as one sentence; None: nobody seen.

    A hidden process list shows nothing here: our own memory cannot be told from another's.
    """
    on_device = [tenant for gpu in _ours(gpus) for tenant in on_gpu(gpu, own)]
    return next((str(tenant) for tenant in (*on_device, *engines(own))), None)


def _ours(gpus: Sequence[Gpu]) -> tuple[Gpu, ...]:
    gpu = device.mine(gpus)
    return () if gpu is None else (gpu,)
