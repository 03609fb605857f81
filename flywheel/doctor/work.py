"""What the loop works on: checkpoint, suite, ledger with its copies and halts, runs, STOP."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from flywheel import suite, synthetic
from flywheel.box import lease
from flywheel.box.clock import count
from flywheel.doctor.check import FAIL, OK, WARN, Check, fine
from flywheel.errors import FlywheelError
from flywheel.ledger import backup, halts, takeovers
from flywheel.ledger.opening import lost
from flywheel.ledger.store import Ledger, check_integrity
from flywheel.loop import glance, stop
from flywheel.run import launch

HASH_LIMIT_BYTES = 1 << 30
PROOF_LIMIT_BYTES = 256 << 20
_CHUNK_BYTES = 1 << 20


def check_checkpoint(folder: Path) -> Check:
    """The checkpoint is there, whole enough to open, and has a hash to compare."""
    if synthetic.name_of(folder) is not None:
        synthetic.check(folder)
        return fine("checkpoint", f"{folder}: random weights, made anew by every run")
    config = folder / "config.json"
    advice = "let --checkpoint name the folder of a model"
    try:
        model = json.loads(config.read_text(encoding="utf-8"))
    except OSError:
        return Check("checkpoint", FAIL, f"{folder} has no readable config.json", advice)
    except ValueError:
        return Check("checkpoint", FAIL, f"{config} is not JSON", advice)
    shards = sorted(folder.glob("*.safetensors"))
    if not shards:
        return Check("checkpoint", FAIL, f"{folder} has no .safetensors file", advice)
    size = sum(shard.stat().st_size for shard in shards)
    kind = model.get("model_type", "unknown model") if isinstance(model, dict) else "unknown model"
    said = f"{kind}, {count(len(shards), 'shard')}, {size / 2**20:.1f} MiB"
    if size > HASH_LIMIT_BYTES:
        return fine("checkpoint", f"{said}; hashed by every run")
    try:
        return fine("checkpoint", f"{said}, sha256 {_digest([config, *shards])[:16]}")
    except OSError as error:
        return Check("checkpoint", FAIL, f"{folder} cannot be read: {error.strerror}", advice)


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
        return Check("suite", FAIL, str(error), "let --suite name a file of prompts")
    return fine("suite", f"{found.name}, {len(found.ids)} prompts")


def check_ledger(path: Path) -> tuple[Check, ...]:
    """It opens and is whole, or it could be made; and what it says of halts and open runs."""
    if not path.exists():
        if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
            why = "is not writable" if path.parent.is_dir() else "does not exist"
            said = f"{path} cannot be created: its folder {why}"
            advice = "let --ledger name a file in a folder of yours"
            return (Check("ledger", FAIL, said, advice),)
        if (missed := lost(path)) is not None:
            said, _, advice = missed.rpartition(": ")
            return (Check("ledger", WARN, said, advice),)
        return (fine("ledger", f"{path} does not exist yet; flywheel run creates it"),)
    try:
        ledger = Ledger.read(path)
    except FlywheelError as error:
        return (Check("ledger", FAIL, str(error), _ledger_advice(path)),)
    try:
        return (_check_whole(ledger, path), *_check_history(ledger))
    except FlywheelError as error:
        return (Check("ledger", FAIL, str(error), _ledger_advice(path)),)
    finally:
        ledger.close()


def _ledger_advice(path: Path) -> str:
    copies = f"{backup.folder(path)} holds the copies"
    return f"keep the file as it is; flywheel ledger verify says more, and {copies}"


def _check_whole(ledger: Ledger, path: Path) -> Check:
    size, mode = path.stat().st_size, journal_mode(path)
    said = f"{path}, {size / 2**20:.1f} MiB, journal mode {mode}"
    if size > PROOF_LIMIT_BYTES:
        said += "; too large to prove here: flywheel ledger verify"
    else:
        check_integrity(ledger)
        said += ", whole"
    if mode not in ("delete", "truncate", "persist"):
        return Check(
            "ledger", WARN, f"{said}; without a rollback journal",
            f"sqlite3 {path} 'PRAGMA journal_mode=DELETE' while nothing runs",
        )  # fmt: skip
    if not os.access(path, os.W_OK):
        return Check("ledger", FAIL, f"{said}; read-only", f"chmod u+w {path}")
    return fine("ledger", said)


def journal_mode(path: Path) -> str:
    """How the file keeps what is half written; ``unknown`` when it cannot be asked."""
    try:
        uri = f"file:{quote(str(path.absolute()))}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True, timeout=1.0)) as connection:
            return str(connection.execute("PRAGMA journal_mode").fetchone()[0])
    except sqlite3.Error:
        return "unknown"


def _check_history(ledger: Ledger) -> tuple[Check, ...]:
    """Halts that stand, and leases that had to be taken from the dead."""
    with ledger.reading() as connection:
        standing = halts.standing(connection)
        taken = takeovers.takeovers(connection)
    found = fine("halts", "none stands")
    if standing:
        more = f" (and {len(standing) - 1} more)" if len(standing) > 1 else ""
        found = Check(
            "halts", FAIL, f"{standing[0].code}: {standing[0].reason}{more}",
            "put it right, then flywheel resume --why '...'",
        )  # fmt: skip
    said = "none" if not taken else f"{len(taken)}, the last at {taken[-1].created_utc}"
    return (found, fine("takeovers", said))


def check_backups(path: Path) -> Check:
    """Copies from the starts of earlier nights."""
    if not path.exists():
        return fine("backups", "no ledger yet")
    copies = backup.copies(path)
    if not copies:
        return Check(
            "backups", WARN, f"no copy of the ledger in {backup.folder(path)}",
            "flywheel ledger backup; flywheel run makes one at its start, too",
        )  # fmt: skip
    return fine("backups", f"{len(copies)}, the newest {copies[-1].name}")


def check_runs(ledger: Path) -> Check:
    """Runs that began and have not ended: live ones, and those that the ledger waits for."""
    live, left = [], []
    try:
        waited_for = set(glance.history(ledger)["open_runs"]) if ledger.exists() else None
    except FlywheelError:
        waited_for = None  # said by the check of the ledger
    for folder in sorted((ledger.parent / "runs").glob("r*")):
        if (folder / "exit.json").exists() or not (folder / "manifest.json").exists():
            continue
        state = launch.look(folder)
        if state.phase == "running":
            live.append(folder.name)
        elif state.phase != "left" and (waited_for is None or folder.name in waited_for):
            left.append(folder.name)
    said = "none is running" if not live else f"running: {', '.join(live)}"
    running = lease.holder(lease.daemon_path(ledger)) is not None
    if left and not running:
        return Check(
            "runs", WARN, f"{said}; begun and never ended: {', '.join(left[-3:])}"
            + (f" and {len(left) - 3} more" if len(left) > 3 else ""),
            "nothing: the next flywheel run enters what its ledger waits for",
        )  # fmt: skip
    return Check("runs", OK, said)


def check_stop(ledger: Path) -> Check:
    """A STOP file keeps the loop from starting."""
    asked = stop.requested(ledger)
    if asked is not None:
        return Check(
            "stop", WARN, f"{asked.reason}; flywheel run refuses until it is removed",
            f"rm {stop.path_for(ledger)}",
        )  # fmt: skip
    return fine("stop", "no STOP file")
