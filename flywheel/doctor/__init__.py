"""Is this box fit to run the loop?  One check, one line, one thing to do; nothing is changed."""

from __future__ import annotations

import sqlite3
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

from flywheel.box import admission, device, host, lease
from flywheel.box.admission import Need
from flywheel.box.cpu import Use
from flywheel.doctor import box, software, tenancy, work
from flywheel.doctor.check import FAIL, OK, WARN, Check, Diagnosis
from flywheel.errors import FlywheelError
from flywheel.ledger import evidence, place
from flywheel.ledger.store import Ledger


def diagnose(
    ledger: Path,
    checkpoint: Path,
    suite_path: Path,
    *,
    torch_probe: Callable[[], Check] = software.probe_torch,
) -> Diagnosis:
    """Every check, in the order in which a person would repair them; in under ten seconds."""
    began_s = time.monotonic()
    # Before torch is imported, which keeps the box busy itself.
    others = box.others_use()
    with ThreadPoolExecutor(1) as aside:
        torch = aside.submit(torch_probe)
        found = _rest(ledger, checkpoint, suite_path, others)
        found.insert(2, torch.result())
    return Diagnosis(tuple(found), time.monotonic() - began_s)


def _rest(
    ledger: Path, checkpoint: Path, suite_path: Path, others: Use | None
) -> list[Check]:
    look = host.probe(ledger.parent if ledger.parent.is_dir() else Path("/"))
    peak, low_water = _history(ledger, checkpoint)
    need = Need.of(peak, admission.checkpoint_bytes(checkpoint), device.mine(look.gpus))
    return [
        software.check_python(sys.version_info[:3]),
        software.check_sqlite(sqlite3.sqlite_version_info),
        software.check_compiler(),
        software.check_open_files(),
        box.check_disk(look.disk_free_bytes),
        box.check_file_system(ledger, place.filesystem(ledger)),
        box.check_memory(look, need),
        box.check_guard(look.mem_total_bytes, low_water),
        box.check_swap(_text(Path("/proc/meminfo"))),
        box.check_overcommit(),
        box.check_cgroup(look),
        box.check_load(look, others),
        box.check_processor(look.cpu),
        box.check_clock(box.clock_synchronised()),
        box.check_login(),
        tenancy.check_device(look),
        tenancy.check_clocks(look),
        tenancy.check_tenants(look),
        tenancy.check_lease(lease.device_path()),
        work.check_checkpoint(checkpoint),
        work.check_suite(suite_path),
        *work.check_ledger(ledger),
        work.check_backups(ledger),
        work.check_runs(ledger),
        work.check_stop(ledger),
    ]


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _history(ledger: Path, checkpoint: Path) -> tuple[int | None, int | None]:
    """The peak and the healthy low water of earlier runs, in bytes, where the ledger has them."""
    if not ledger.exists():
        return None, None
    try:
        with closing(Ledger.read(ledger)) as opened, opened.reading() as connection:
            peak = evidence.peak_bytes_of(connection, str(checkpoint))
            return peak, evidence.low_water_bytes(connection)
    except FlywheelError:
        return None, None


__all__ = ["FAIL", "OK", "WARN", "Check", "Diagnosis", "diagnose"]
