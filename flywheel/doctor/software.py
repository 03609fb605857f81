"""The programs that the loop stands on: Python, SQLite, torch, a compiler."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys

from flywheel.doctor.check import FAIL, WARN, Check, fine

PYTHON_LEAST = (3, 11)
# JSON functions are part of every build since then, and the ledger's triggers need them.
SQLITE_LEAST = (3, 38, 0)
# A cold disk may need longer; the other checks must not wait for that.
TORCH_TIMEOUT_S = 8.0
OPEN_FILES_LEAST = 1024


def check_python(version: tuple[int, ...]) -> Check:
    """The interpreter's version."""
    said = ".".join(map(str, version))
    if version[:2] < PYTHON_LEAST:
        return Check(
            "python", FAIL, f"{said}; 3.11 or newer is needed",
            "make the environment again with a newer Python",
        )  # fmt: skip
    return fine("python", f"{said} at {sys.executable}")


def check_sqlite(version: tuple[int, ...]) -> Check:
    """Strict tables came with SQLite 3.37, JSON in every build with 3.38."""
    said = ".".join(map(str, version))
    if version < SQLITE_LEAST:
        return Check(
            "sqlite", FAIL, f"{said}; 3.38 or newer is needed",
            "use a Python that was built with a newer SQLite",
        )  # fmt: skip
    return fine("sqlite", said)


def probe_torch() -> Check:
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
    except subprocess.TimeoutExpired:
        return Check(
            "torch", WARN, f"not imported within {TORCH_TIMEOUT_S:.0f} s",
            "run flywheel doctor again; a second import reads from memory",
        )  # fmt: skip
    except OSError as error:
        return Check("torch", FAIL, f"cannot be imported: {error}", "make the environment again")
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["no message"]
        return Check(
            "torch", FAIL, f"cannot be imported: {lines[-1]}",
            "install torch into this environment: make .venv/.installed",
        )  # fmt: skip
    return fine("torch", done.stdout.strip())


def check_compiler() -> Check:
    """Triton and torch.compile call a C compiler."""
    for name in (os.environ.get("CC") or "cc", "gcc", "clang"):
        if found := shutil.which(name):
            return fine("compiler", found)
    return Check(
        "compiler", WARN, "no C compiler: compiled kernels will not build",
        "install gcc or clang, or let CC name one",
    )  # fmt: skip


def check_open_files(limit: int | None = None) -> Check:
    """The server holds a descriptor for each client, the loop one for each log."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0] if limit is None else limit
    if soft == resource.RLIM_INFINITY:
        return fine("open files", "no limit")
    if soft < OPEN_FILES_LEAST:
        return Check(
            "open files", WARN, f"at most {soft} at a time",
            f"ulimit -n {4 * OPEN_FILES_LEAST} before flywheel serve",
        )  # fmt: skip
    return fine("open files", f"at most {soft} at a time")
