"""Which files a patch may touch: what computes, and nothing that measures, judges or is judged by.

Data and one pure function. What is on no list is refused: a new kind of file is for a person.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

# Looked at in order; the first that matches decides.
FORBIDDEN: tuple[tuple[str, str], ...] = (
    ("tests/*", "the tests are what it is gated by"),
    ("kernels/oracle/*", "an oracle is what kernels are gated against"),
    ("kernels/bench/*", "a bench measures"),
    ("kernels/__init__.py", "what a package exports is no kernel"),
    ("engine/measure/*", "it is the measuring program"),
    ("engine/profile/*", "it measures"),
    ("engine/bench/*", "it measures"),
    ("engine/inventory/*", "it is the floor that numbers are held against"),
    ("engine/engine.py", "it times the rounds"),
    ("engine/suite.py", "it is the ruler"),
    ("engine/assets/*", "suites and checkpoints are the ruler"),
    ("engine/checkpoint.py", "it takes the checkpoint's hash"),
    ("engine/identity.py", "it says what decodes"),
    ("engine/independence.py", "it proves that verifying is exact"),
    ("engine/lossy.py", "what is lossy is measured for its price, never won by"),
    ("engine/config.py", "it says what is in effect; a field is a config lever"),
    ("engine/geometry.py", "it says what the checkpoint is"),
    ("engine/numerics.py", "numerics are a named choice, never a patch"),
    ("engine/sampling.py", "it chooses the tokens that everything is compared by"),
    ("engine/device/launches.py", "it counts launches and waits"),
    ("engine/device/phases.py", "it measures"),
    ("engine/device/checkpoint.py", "it reads the checkpoint"),
    ("engine/device/requirement.py", "it says where the engine may run"),
    ("engine/device/synthetic.py", "it draws the weights"),
    ("engine/device/__init__.py", "what a package exports computes nothing"),
    ("flywheel/*", "the loop judges it"),
    ("experiments/*", "levers are declared, not patched"),
)
ALLOWED: tuple[str, ...] = (
    "kernels/*.py",
    "engine/device/*.py",
    *(
        f"engine/{name}.py"
        for name in (
            "attention", "compression", "draft", "experts", "formats", "model", "norm", "piece",
            "residual", "ring", "rows", "state", "step", "torch_backend", "tree", "verify",
            "weights",
        )
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a patch is not admitted: a file, the line where there is one, and a sentence's end."""

    path: str
    line: int | None
    what: str

    def __str__(self) -> str:
        place = self.path if self.line is None else f"{self.path}:{self.line}"
        return f"{place}: {self.what}"


def forbidden(paths: Iterable[str]) -> tuple[Reason, ...]:
    """A reason for each file that a patch may not touch, in the order given."""
    found = ((path, _why(path)) for path in paths)
    return tuple(Reason(path, None, why) for path, why in found if why is not None)


def _why(path: str) -> str | None:
    parts = PurePosixPath(path).parts
    if path.startswith("/") or ".." in parts:
        return "it lies outside the repository"
    for pattern, why in FORBIDDEN:
        if fnmatchcase(path, pattern):
            return f"no patch may touch it, for {why}"
    if any(fnmatchcase(path, p) and path.count("/") == p.count("/") for p in ALLOWED):
        return None
    return "it is not among the files that a patch may touch (flywheel levers add --help)"
