"""The lock of this box's device, for programs that a person starts by hand.

The loop has the same lock with the same protocol (`docs/lease.md`); the two share no code, only the
file and the witness.  `engine.measure` takes none: the supervisor that started it has it already.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib
import json
import os
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engine.errors import DeviceBusy, EngineError

SHARED_FOLDER = Path("/run/lock")
PATIENCE_S = 0.4  # a reader of the holder has a shared lock for an instant


@contextlib.contextmanager
def held(purpose: str) -> Iterator[None]:
    """Hold the device while the block is open; DeviceBusy names who has it."""
    path = lock_path()
    deadline = time.monotonic() + PATIENCE_S
    while (taken := _attempt(path)) is None:
        if time.monotonic() >= deadline:
            raise DeviceBusy(f"The device is held by {_holder(path)}; its lock is {path}.")
        time.sleep(0.05)
    fd, witness = taken
    told: dict[str, Any] = {
        "holder": _identity(), "purpose": purpose, "since_utc": _utc(), "run_dir": None,
        "released_utc": None,
    }  # fmt: skip
    _tell(fd, told)
    try:
        yield
    finally:
        _tell(fd, told | {"released_utc": _utc()})
        witness.close()
        os.close(fd)


def lock_path() -> Path:
    """FLYWHEEL_LEASE, else one name for all users of the device."""
    if named := os.environ.get("FLYWHEEL_LEASE"):
        return Path(named)
    shared = os.access(SHARED_FOLDER, os.W_OK)
    return (SHARED_FOLDER if shared else Path(tempfile.gettempdir())) / f"flywheel-{_key()}.lock"


def _key() -> str:
    """The uuid of the first GPU that CUDA_VISIBLE_DEVICES leaves, or ``cpu``."""
    asked = os.environ.get("CUDA_VISIBLE_DEVICES")
    first = "0" if asked is None else asked.split(",")[0].strip()
    if first.startswith("MIG-"):
        return first
    try:
        nvml: Any = importlib.import_module("pynvml")
        nvml.nvmlInit()
        handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        uuids = [nvml.nvmlDeviceGetUUID(handle) for handle in handles]
        nvml.nvmlShutdown()
    except Exception:  # NVML raises a class per error code; without a driver there is no GPU
        return "cpu"
    if first.isdigit():
        return uuids[int(first)] if int(first) < len(uuids) else "cpu"
    return next((uuid for uuid in uuids if first and uuid.startswith(first)), "cpu")


def _attempt(path: Path) -> tuple[int, socket.socket] | None:
    """The locked file and the bound witness; None when somebody has either."""
    try:
        fd = _open(path)
    except OSError as error:
        raise EngineError(
            f"The lock file {path} cannot be opened ({error.strerror}); "
            "let FLYWHEEL_LEASE name one that can."
        ) from None
    witness = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # A file deleted or replaced between the opening and the locking is not the device's lock.
        if os.path.samestat(os.stat(path), os.fstat(fd)):
            witness.bind("\0" + _witness_name(path))
            return fd, witness
    except OSError:
        pass
    witness.close()
    os.close(fd)
    return None


def _open(path: Path) -> int:
    flags = os.O_RDWR | os.O_CLOEXEC
    try:
        return os.open(path, flags)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, flags | os.O_CREAT, 0o666)
        with contextlib.suppress(OSError):
            os.fchmod(fd, 0o666)
        return fd


def _witness_name(path: Path) -> str:
    if path.parent in (SHARED_FOLDER, Path(tempfile.gettempdir())):
        return path.name
    return "flywheel-" + hashlib.sha256(os.fsencode(os.path.realpath(path))).hexdigest()[:32]


def _holder(path: Path) -> str:
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
        return f"process {said['holder']['pid']} ({said['purpose']}, since {said['since_utc']})"
    except (OSError, ValueError, TypeError, KeyError):
        return "an unknown process"


def _identity() -> dict[str, Any]:
    stat = Path("/proc/self/stat").read_text()
    return {
        "pid": os.getpid(),
        "start_ticks": int(stat[stat.rfind(")") + 2 :].split()[19]),
        "boot_id": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
    }


def _tell(fd: int, told: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # written for people; the lock holds without it
        os.ftruncate(fd, 0)
        os.pwrite(fd, (json.dumps(told, indent=1, sort_keys=True) + "\n").encode(), 0)


def _utc() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
