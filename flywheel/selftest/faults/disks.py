"""Disks that fill up, files that are damaged, power that goes away.

Power loss is simulated by what it leaves: no process, another boot, every file that nobody had
synced cut short or empty, and the ledger with a transaction half written and its journal hot.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from flywheel.selftest.disk import SmallDisk
from flywheel.selftest.fault import Fault
from flywheel.selftest.faults.processes import OTHER_BOOT
from flywheel.selftest.faults.script import scripted_fault
from flywheel.selftest.scene import Scene

_fault = partial(scripted_fault, "disk")
MIB = 1 << 20
PAGE_BYTES = 4096


def _runs_disk(scene: Scene) -> SmallDisk:
    disk = SmallDisk(scene.runs, MIB)
    scene.cleanups.append(disk.unmount)
    return disk


def _full_from_the_start(leave_bytes: int) -> Callable[[Scene], None]:
    def inject(scene: Scene) -> None:
        _runs_disk(scene).fill(leave_bytes)
        scene.loop()

    return inject


def _full_log(scene: Scene) -> None:
    """Full while the engine writes; it clears once the engine has died of it."""
    disk = _runs_disk(scene)

    def fill() -> None:
        scene.held()
        engine = scene.of_role("engine")
        disk.fill()
        scene.release_beside(scene.root)
        scene.wait_dead(engine)
        time.sleep(0.3)
        disk.clear()

    scene.loop("--hold", "middle", "--release", str(scene.root / "release"), during=fill)


def _full_for_good(scene: Scene) -> None:
    """It stays full, so that the supervisor never gets its word out."""
    disk = _runs_disk(scene)

    def fill() -> None:
        scene.held()
        disk.fill()
        scene.release_beside(scene.root)

    scene.loop("--hold", "middle", "--release", str(scene.root / "release"), during=fill)


def _full_exit(scene: Scene) -> None:
    """Full between the seal and exit.json; it clears after a second."""
    disk = _runs_disk(scene)

    def fill() -> None:
        scene.held()
        disk.fill()
        scene.release_beside(scene.root)
        time.sleep(1.0)
        disk.clear()

    scene.loop("--hold", "sealed", "--release", str(scene.root / "release"), during=fill)


def _full_ledger(leave_bytes: int) -> Callable[[Scene], None]:
    """The ledger's disk is full when the run is to be entered; the next loop enters it."""

    def inject(scene: Scene) -> None:
        store = scene.root / "store"
        disk = SmallDisk(store, 400 * MIB)
        scene.cleanups.append(disk.unmount)
        scene.runs.mkdir()
        (store / "runs").symlink_to(scene.runs)
        scene.ledger = store / "ledger.db"

        def fill() -> None:
            scene.held()
            disk.fill(leave_bytes)
            scene.release()

        scene.loop("--hold", "middle", during=fill)
        scene.expect(scene.error is not None, "the loop did not notice that the ledger is full")
        disk.clear()
        scene.resume()

    return inject


def _locked_ledger(scene: Scene) -> None:
    """Another process holds the ledger for a second when the run is to be entered."""

    def hold() -> None:
        scene.held()
        other = sqlite3.connect(scene.ledger, isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        scene.release()
        time.sleep(1.5)
        other.execute("ROLLBACK")
        other.close()

    scene.loop("--hold", "middle", during=hold)


_HALF_WRITTEN = """
import os, signal, sqlite3, sys
ledger = sqlite3.connect(sys.argv[1], isolation_level=None)
ledger.execute("PRAGMA cache_size = 5")
ledger.execute("PRAGMA synchronous = FULL")
ledger.execute("BEGIN IMMEDIATE")
for n in range(2000):
    ledger.execute(
        "INSERT INTO ruler (identity, name, fields, created_utc) VALUES (?, ?, ?, ?)",
        (f"half {n}", "half", '{"x": "' + "x" * 500 + '"}', "2026-01-01T00:00:00Z"))
os.kill(os.getpid(), signal.SIGKILL)
"""


def _half_written_ledger(scene: Scene) -> None:
    """Power goes in the middle of an entry: pages are in the file and the journal is hot."""
    scene.left()
    before = scene.ledger.stat().st_size
    subprocess.run([sys.executable, "-S", "-c", _HALF_WRITTEN, str(scene.ledger)], check=False)
    journal = scene.ledger.with_name(scene.ledger.name + "-journal")
    scene.expect(journal.exists(), "no hot journal was left")
    scene.expect(scene.ledger.stat().st_size > before, "no page had been written")
    scene.resume()
    with sqlite3.connect(scene.ledger) as connection:
        half = connection.execute("SELECT count(*) FROM ruler WHERE name = 'half'").fetchone()[0]
    scene.expect(half == 0, f"{half} rows of the half-written entry were kept")


def _of_another_boot(file: Path) -> None:
    body = json.loads(file.read_text())
    file.write_text(json.dumps({**body, "boot_id": OTHER_BOOT}))


def _power_lost(scene: Scene) -> None:
    """In mid-run: the log keeps what happened to be on the disk; everybody is gone."""
    run_dir = scene.leave()
    for name in ("supervisor.json", "engine.json"):
        _of_another_boot(run_dir / name)
    scene.sweep()
    log = run_dir / "run.log"
    os.truncate(log, log.stat().st_size // 2)
    scene.resume()


def _power_lost_early(scene: Scene) -> None:
    """Right after the launch: names are on the disk, contents are not."""
    run_dir = scene.leave()
    scene.sweep()
    for name in ("supervisor.json", "engine.json", "run.log"):
        os.truncate(run_dir / name, 0)
    scene.resume()


def _power_lost_at_the_end(scene: Scene) -> None:
    """Right after the end: exit.json is there, and empty."""
    run_dir = scene.left()
    for name in ("supervisor.json", "engine.json"):
        _of_another_boot(run_dir / name)
    os.truncate(run_dir / "exit.json", 0)
    scene.resume()


def _bad_exit(change: Callable[[bytes], bytes]) -> Callable[[Scene], None]:
    def inject(scene: Scene) -> None:
        file = scene.left() / "exit.json"
        file.write_bytes(change(file.read_bytes()))
        scene.resume()

    return inject


def _exit_of_another_run(body: bytes) -> bytes:
    return json.dumps({**json.loads(body), "run_id": "r-another"}).encode()


def _bad_manifest(scene: Scene) -> None:
    """The ledger keeps its own copy, so the file's fate does not matter any more."""
    (scene.left() / "manifest.json").write_bytes(b"\0" * 100)
    scene.resume()


def _runs_in_the_way(scene: Scene) -> None:
    scene.runs.write_text("in the way")
    scene.loop()


def _runs_gone(scene: Scene) -> None:
    """Somebody deletes the run's directory while it runs."""

    def delete() -> None:
        run_dir = scene.held()
        for file in run_dir.iterdir():
            file.unlink()
        run_dir.rmdir()

    scene.loop("--hold", "middle", during=delete, timeout_s=2.0)


FAULTS = (
    _fault("disk_full", "the engine dies of a full disk and says so", "blocked", "disk_full"),
    _fault("file_limit", "the log meets RLIMIT_FSIZE", "void", "exit_status"),
    Fault("disk_full_config", "disk", "full before config.json is written", "blocked",
          ("never_started",), _full_from_the_start(0)),
    Fault("disk_full_manifest", "disk", "full before manifest.json is written", "blocked",
          ("never_started",), _full_from_the_start(PAGE_BYTES)),
    Fault("disk_full_log", "disk", "full while the engine writes its log", "blocked",
          ("disk_full",), _full_log),
    Fault("disk_full_exit", "disk", "full between the seal and exit.json, for a second", "ok",
          ("",), _full_exit),
    Fault("disk_full_for_good", "disk", "full from mid-run on: exit.json is never written",
          "blocked", ("disk_full",), _full_for_good, slow=True),
    Fault("disk_full_ledger", "disk", "the ledger's disk is full when the run is entered", "ok",
          ("",), _full_ledger(0)),
    Fault("disk_full_ledger_half", "disk", "the ledger's disk fills up in the middle of an entry",
          "ok", ("",), _full_ledger(4 * PAGE_BYTES)),
    Fault("ledger_locked", "disk", "another process holds the ledger for a second", "ok", ("",),
          _locked_ledger),
    Fault("ledger_half_written", "disk", "power is lost in the middle of an entry", "ok", ("",),
          _half_written_ledger),
    Fault("power_lost", "disk", "power is lost in mid-run", "killed", ("supervisor_lost",),
          _power_lost),
    Fault("power_lost_early", "disk", "power is lost right after the launch: files are empty",
          "killed", ("supervisor_lost",), _power_lost_early),
    Fault("power_lost_at_the_end", "disk", "power is lost after the end: exit.json is empty",
          "killed", ("supervisor_lost",), _power_lost_at_the_end),
    Fault("exit_garbage", "disk", "exit.json is garbage", "killed", ("supervisor_lost",),
          _bad_exit(lambda body: b"\xff" + body[1:])),
    Fault("exit_cut", "disk", "exit.json is cut in half", "killed", ("supervisor_lost",),
          _bad_exit(lambda body: body[: len(body) // 2])),
    Fault("exit_of_another_run", "disk", "exit.json speaks of another run", "void",
          ("run_id_mismatch",), _bad_exit(_exit_of_another_run)),
    Fault("manifest_garbage", "disk", "manifest.json is garbage after the run", "ok", ("",),
          _bad_manifest),
    Fault("runs_in_the_way", "disk", "a file lies where the runs' folder should be", "blocked",
          ("never_started",), _runs_in_the_way),
    Fault("run_deleted", "disk", "the run's directory is deleted in mid-run", "blocked",
          ("never_started",), _runs_gone, slow=True),
)  # fmt: skip
