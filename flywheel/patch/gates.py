"""What a patch has to pass before anything is measured, and in which order. Data and pure choice.

Processor before device, cheap before dear: its syntax (`admission`), the tests of what it touches,
those on the device, then its output beside the incumbent's (`prompts`, `compare`). The tests are
the incumbent's own, since no patch may touch them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

PYTEST = (
    sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m",
    "not night and not slow",
)  # fmt: skip
# Kernels run under Triton's interpreter where there is no device.
INTERPRETED = ("env", "TRITON_INTERPRET=1")
# What pytest exits with when it ran nothing.
NOTHING = 5
_PASSED = re.compile(r"\b[1-9]\d* passed\b")


@dataclass(frozen=True, slots=True)
class GateTests:
    """Files of tests for patches that touch what `touches` matches.

    `device`: only where there is one. `alone`: each of several workers would fill the device.
    """

    name: str
    touches: tuple[str, ...]
    files: tuple[str, ...]
    device: bool = False
    interpreted: bool = False
    alone: bool = False


TESTS: tuple[GateTests, ...] = (
    GateTests(
        "state", ("engine/*",),
        ("tests/cpu/test_state.py", "tests/cpu/test_verify.py", "tests/cpu/test_prefix.py",
         "tests/cpu/test_row_independence.py"),
    ),
    GateTests("oracles", ("engine/*", "kernels/*"), ("tests/cpu/test_oracles.py",)),
    GateTests(
        "kernels", ("kernels/*", "engine/device/*"),
        tuple(
            f"tests/cpu/test_kernel_{name}.py"
            for name in (
                "attention", "fp8_linear", "hyper", "indexer", "lm_head", "markov", "moe", "narrow",
                "project", "rings", "round", "route", "rows", "undo",
            )
        ),
        interpreted=True,
    ),
    GateTests(
        "device", ("engine/device/*", "kernels/*"), ("tests/cpu/test_device.py",),
        interpreted=True,
    ),
    GateTests(
        "gpu", ("kernels/*", "engine/device/*"),
        ("tests/gpu/test_kernels.py", "tests/gpu/test_kernel_attention.py",
         "tests/gpu/test_kernel_ending.py", "tests/gpu/test_kernel_rings.py"),
        device=True,
    ),
    GateTests(
        "backend", ("kernels/*", "engine/device/*"), ("tests/gpu/test_backend.py",),
        device=True, alone=True,
    ),
)  # fmt: skip


def chosen(
    tests: Sequence[GateTests], paths: Iterable[str], *, device: bool
) -> tuple[GateTests, ...]:
    """The tests for a patch of these files, those of the device last; without one, none of them."""
    touched = tuple(paths)
    found = [
        one for one in tests
        if (device or not one.device)
        and any(fnmatchcase(path, pattern) for path in touched for pattern in one.touches)
    ]  # fmt: skip
    return tuple(sorted(found, key=lambda one: one.device))


def argv(
    command: Sequence[str], tests: GateTests, *, workers: int = 1, device_tests: str = ""
) -> tuple[str, ...]:
    """The command of one set of tests.

    `workers` are processes of pytest-xdist; `device_tests` is an expression as pytest's `-k` takes
    it, for what runs on the device.
    """
    words = [*(INTERPRETED if tests.interpreted else ()), *command]
    if workers > 1 and not tests.alone:
        words += ["-n", str(workers)]
    if tests.device and device_tests:
        words += ["-k", device_tests]
    return (*words, *tests.files)


def ran(said: str) -> bool:
    """Whether a test passed, by the last line that pytest said; with no device they all skip."""
    return bool(_PASSED.search((said.splitlines() or [""])[-1]))
