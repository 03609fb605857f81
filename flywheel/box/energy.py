"""What a run took from the wall, by the counters that the box shows; a missing one is no error.

GPU: NVML's total since the driver was loaded.  CPU: RAPL, one counter a package under
``/sys/class/powercap``, which a user can read only where the owner of the box allows it.  Both
count for everybody on the device, which is the run alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from flywheel.box import device

POWERCAP = Path("/sys/class/powercap")


class _Package:
    """One CPU package: microjoules since the beginning, over a counter that begins anew."""

    def __init__(self, folder: Path) -> None:
        self._counter = folder / "energy_uj"
        self._range_uj = _number(folder / "max_energy_range_uj")
        self._last = _number(self._counter)
        self.taken_uj = 0

    @property
    def told(self) -> bool:
        """Whether it can be read at all."""
        return self._last is not None and self._range_uj is not None

    def look(self) -> None:
        """Add what was taken since the last look."""
        now = _number(self._counter)
        if now is None or self._last is None or self._range_uj is None:
            return
        round_uj = 0 if now >= self._last else self._range_uj
        self.taken_uj += now - self._last + round_uj
        self._last = now


class Meter:
    """Joules from its making to `read`; `look` now and then, before a counter has gone round twice.

    A package's counter goes round in ten minutes at its fastest.
    """

    def __init__(
        self, powercap: Path = POWERCAP, gpu_mj: Callable[[], int | None] = device.energy_mj
    ) -> None:
        self._gpu_mj = gpu_mj
        self._gpu_before = gpu_mj()
        self._packages = [p for p in map(_Package, _packages(powercap)) if p.told]

    def look(self) -> None:
        """Read the counters that go round."""
        for package in self._packages:
            package.look()

    def read(self) -> dict[str, float]:
        """Joules by what took them, `gpu` and `cpu`; without what the box does not tell."""
        found = {}
        after = None if self._gpu_before is None else self._gpu_mj()
        # A driver that was loaded anew in between counts from zero.
        if self._gpu_before is not None and after is not None and after >= self._gpu_before:
            found["gpu"] = (after - self._gpu_before) / 1e3
        if self._packages:
            self.look()
            found["cpu"] = sum(p.taken_uj for p in self._packages) / 1e6
        return found


def _packages(powercap: Path) -> list[Path]:
    """The packages' folders; the domains within a package are part of it."""
    found = []
    with contextlib.suppress(OSError):
        for folder in sorted(powercap.glob("intel-rapl:*")):
            name = (folder / "name").read_text(encoding="ascii").strip()
            if folder.name.count(":") == 1 and name.startswith("package"):
                found.append(folder)
    return found


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
