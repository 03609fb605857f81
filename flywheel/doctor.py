"""Is this box fit to run the loop?  One check, one line, one verdict; nothing is changed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from flywheel import host, lease, stop, suite
from flywheel.errors import FlywheelError
from flywheel.ledger.store import Ledger, check_integrity

PYTHON_LEAST = (3, 11)
SQLITE_LEAST = (3, 37, 0)
MEM_WANTED_BYTES = 2 << 30
DISK_WANTED_BYTES = 1 << 30
HASH_LIMIT_BYTES = 4 << 30
TORCH_TIMEOUT_S = 180.0
_CHUNK_BYTES = 1 << 20

OK, WARN, FAIL = "ok", "warn", "fail"
_STYLES = {OK: "green", WARN: "yellow", FAIL: "bold red"}


@dataclass(frozen=True, slots=True)
class Check:
    """One answer: ``state`` is ok, warn (the loop runs, but know this) or fail (it would not)."""

    name: str
    state: str
    said: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All answers."""

    checks: tuple[Check, ...]

    @property
    def healthy(self) -> bool:
        """No check failed."""
        return all(check.state != FAIL for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        """The diagnosis as a JSON object."""
        return {"healthy": self.healthy, "checks": [asdict(check) for check in self.checks]}

    def table(self) -> Table:
        """The diagnosis for a terminal."""
        table = Table.grid(padding=(0, 2))
        for check in self.checks:
            mark = Text(check.state, style=_STYLES[check.state])
            table.add_row(mark, check.name, Text(check.said))
        return table


def diagnose(
    ledger: Path,
    checkpoint: Path,
    suite_path: Path,
    *,
    torch_probe: Callable[[], tuple[str, str]] | None = None,
) -> Diagnosis:
    """Every check, in the order in which a person would repair them."""
    look = host.probe(ledger.parent if ledger.parent.is_dir() else Path("/"))
    state, said = (torch_probe or probe_torch)()
    return Diagnosis(
        (
            check_python(sys.version_info[:3]),
            check_sqlite(sqlite3.sqlite_version_info),
            Check("torch", state, said),
            check_room("disk", look.disk_free_bytes, DISK_WANTED_BYTES, host.DISK_FLOOR_BYTES),
            check_room("memory", look.mem_available_bytes, MEM_WANTED_BYTES, host.MEM_FLOOR_BYTES),
            check_load(look),
            check_device(look),
            check_compiler(),
            check_checkpoint(checkpoint),
            check_suite(suite_path),
            check_ledger(ledger),
            check_lease(),
            check_stop(ledger),
        )
    )


def check_python(version: tuple[int, ...]) -> Check:
    """The interpreter's version."""
    said = ".".join(map(str, version))
    if version[:2] < PYTHON_LEAST:
        return Check("python", FAIL, f"{said}; 3.11 or newer is needed")
    return Check("python", OK, f"{said} at {sys.executable}")


def check_sqlite(version: tuple[int, ...]) -> Check:
    """Strict tables came with SQLite 3.37."""
    said = ".".join(map(str, version))
    if version < SQLITE_LEAST:
        return Check("sqlite", FAIL, f"{said}; 3.37 or newer is needed")
    return Check("sqlite", OK, said)


def probe_torch() -> tuple[str, str]:
    """Import torch in a process of its own, so that a broken install cannot take this one along."""
    code = (
        "import torch; print(torch.__version__, "
        "torch.cuda.get_device_name() if torch.cuda.is_available() else 'cpu only')"
    )
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True, text=True, timeout=TORCH_TIMEOUT_S, stdin=subprocess.DEVNULL,
            check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return FAIL, f"torch could not be imported: {error}"
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["no message"]
        return FAIL, f"torch could not be imported: {lines[-1]}"
    return OK, done.stdout.strip()


def check_room(name: str, free: int | None, wanted: int, floor: int) -> Check:
    """Free memory or disk: below the floor no run starts, below the wish it may not last."""
    if free is None:
        return Check(name, WARN, "unknown")
    said = f"{free / 2**30:.1f} GiB free"
    if free < floor:
        return Check(name, FAIL, f"{said}; a run wants {floor / 2**30:.2f} GiB")
    return Check(name, OK if free >= wanted else WARN, said)


def check_load(look: host.Host) -> Check:
    """Other work on the box ends up in the measurements."""
    if look.load_1m is None:
        return Check("load", WARN, "unknown")
    said = f"{look.load_1m:.1f} on {look.cores} cores"
    busy = look.load_1m > (look.cores or 1)
    return Check("load", WARN if busy else OK, f"{said}; runs will be noisy" if busy else said)


def check_device(look: host.Host) -> Check:
    """What there is to measure on, and who else is on it."""
    if not look.gpus:
        return Check("device", OK, f"cpu, {look.cores or '?'} cores; no NVIDIA driver answers")
    gpu = look.gpus[0]
    said = f"{gpu.name or 'a GPU'}, driver {gpu.driver or 'unknown'}"
    if (refusal := host.refuses(look, mem_floor_bytes=0, disk_floor_bytes=0)) is not None:
        return Check("device", FAIL, f"{said}; {refusal}")
    if gpu.processes is None:
        return Check("device", WARN, f"{said}; its process list is hidden (a container?)")
    return Check("device", OK, said)


def check_compiler() -> Check:
    """Triton and torch.compile call a C compiler."""
    for name in (os.environ.get("CC") or "cc", "gcc", "clang"):
        if found := shutil.which(name):
            return Check("compiler", OK, found)
    return Check("compiler", WARN, "no C compiler: compiled kernels will not build")


def check_checkpoint(folder: Path) -> Check:
    """The checkpoint is there, whole enough to open, and has a hash to compare."""
    config = folder / "config.json"
    try:
        model = json.loads(config.read_text(encoding="utf-8"))
    except OSError:
        return Check("checkpoint", FAIL, f"{folder} has no config.json")
    except ValueError:
        return Check("checkpoint", FAIL, f"{config} is not JSON")
    shards = sorted(folder.glob("*.safetensors"))
    if not shards:
        return Check("checkpoint", FAIL, f"{folder} has no .safetensors file")
    size = sum(shard.stat().st_size for shard in shards)
    kind = model.get("model_type", "unknown model") if isinstance(model, dict) else "unknown model"
    said = f"{kind}, {len(shards)} shards, {size / 2**20:.1f} MiB"
    if size > HASH_LIMIT_BYTES:
        return Check("checkpoint", OK, f"{said}; hashed by every run")
    return Check("checkpoint", OK, f"{said}, sha256 {_digest([config, *shards])[:16]}")


def _digest(paths: list[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.name.encode() + b"\0")
        with path.open("rb") as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                digest.update(chunk)
    return digest.hexdigest()


def check_suite(path: Path) -> Check:
    """The prompts."""
    try:
        found = suite.load(path)
    except FlywheelError as error:
        return Check("suite", FAIL, str(error))
    return Check("suite", OK, f"{found.name}, {len(found.ids)} prompts")


def check_ledger(path: Path) -> Check:
    """It opens and is whole; or it could be made."""
    if not path.exists():
        if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
            return Check("ledger", FAIL, f"{path} cannot be created: its folder is not writable")
        return Check("ledger", OK, f"{path} does not exist yet; flywheel run creates it")
    try:
        ledger = Ledger.read(path)
        try:
            check_integrity(ledger)
        finally:
            ledger.close()
    except FlywheelError as error:
        return Check("ledger", FAIL, str(error))
    return Check("ledger", OK, f"{path} is whole")


def check_lease() -> Check:
    """Whether the device is free."""
    path = lease.device_path()
    held = lease.holder(path)
    if held is None:
        return Check("lease", OK, f"free ({path})")
    return Check("lease", WARN, f"held by {held}")


def check_stop(ledger: Path) -> Check:
    """A STOP file keeps the loop from starting."""
    asked = stop.requested(ledger)
    if asked is not None:
        return Check("stop", WARN, f"{asked.reason}; flywheel run refuses until it is removed")
    return Check("stop", OK, "no STOP file")
