"""Logs that are cut, bent, mixed, replayed, forged or swollen."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

from flywheel.run import ingest, launch
from flywheel.run.manifest import Manifest
from flywheel.run.parse import parse
from flywheel.run.record import RunRecord
from flywheel.selftest.fault import Fault
from flywheel.selftest.faults.script import scripted_fault
from flywheel.selftest.scene import Scene

_fault = partial(scripted_fault, "log")
TAIL_BYTES = 4096
FLIPS = 300
HUGE_BYTES = 200 << 20


def _older_log(scene: Scene) -> Path:
    """A good log of an earlier run, made by a scene of its own."""
    root = scene.root / "older"
    root.mkdir()
    with Scene(root) as older:
        older.loop()
        kept = scene.root / "older.log"
        kept.write_bytes((older.run_dir() / "run.log").read_bytes())
    return kept


def _replayed(fault: str) -> Fault:
    def inject(scene: Scene) -> None:
        scene.loop("--fault", fault, "--old-log", str(_older_log(scene)))

    said = {
        "replayed": "the log of an older run, byte for byte",
        "renonced": "the log of an older run under the new nonce, sealed again",
    }[fault]
    codes = {"replayed": ("nonce_unknown",), "renonced": ("run_id_mismatch",)}[fault]
    return Fault(fault, "log", said, "void", codes, inject)


def _swapped(scene: Scene) -> None:
    """Replaced after the engine was reaped: the hash that the supervisor took no longer fits."""
    old = _older_log(scene).read_bytes()
    (scene.left() / "run.log").write_bytes(old)
    scene.resume()


def _parsed(text: bytes, manifest: Manifest) -> bool:
    read = parse(text.decode("utf-8", "surrogateescape"), manifest)
    return isinstance(read, RunRecord)


def _ingested(run_dir: Path, text: bytes, manifest: Manifest) -> bool:
    """Whether the run would count with this log, in the place of the one that the engine left."""
    (run_dir / "run.log").write_bytes(text)
    return ingest.ingest(run_dir, manifest, launch.look(run_dir)).record is not None


def _cut_anywhere(scene: Scene) -> None:
    run_dir = scene.left()
    manifest, log = Manifest.read(run_dir), run_dir / "run.log"
    whole = log.read_bytes()
    scene.expect(_ingested(run_dir, whole, manifest), "the whole log was refused")
    # The newline after the seal is no part of what is sealed.
    for length in range(max(1, len(whole) - TAIL_BYTES), len(whole) - 1):
        taken = _parsed(whole[:length], manifest)
        scene.expect(not taken, f"accepted when cut to {length} of {len(whole)} bytes")
    log.write_bytes(whole[: len(whole) - 2000])
    scene.resume()


def _flipped(scene: Scene) -> None:
    """The seal guards the events before it by itself, the supervisor's hash every byte."""
    run_dir = scene.left()
    manifest, log = Manifest.read(run_dir), run_dir / "run.log"
    whole = log.read_bytes()
    mark = b"@" + manifest.nonce.encode()
    first, sealed = whole.index(mark), whole.rindex(mark)
    dice = random.Random(20260101)
    for _ in range(FLIPS):
        place, bit = dice.randrange(len(whole)), 1 << dice.randrange(8)
        spoiled = whole[:place] + bytes([whole[place] ^ bit]) + whole[place + 1 :]
        taken = first <= place < sealed and _parsed(spoiled, manifest)
        scene.expect(not taken, f"parsed with byte {place} flipped")
        taken = _ingested(run_dir, spoiled, manifest)
        scene.expect(not taken, f"accepted with byte {place} flipped")
    log.write_bytes(whole[: sealed // 2] + b"#" + whole[sealed // 2 + 1 :])
    scene.resume()


def _shortened(scene: Scene) -> None:
    """Only the prose at the end is cut, so that the seal still holds; the hash does not."""
    run_dir = scene.left("--fault", "foreign_prose")
    log = run_dir / "run.log"
    text = log.read_bytes()
    log.write_bytes(text.replace(b"WARNING: line 7\n", b""))
    scene.resume()


def _gone(scene: Scene) -> None:
    (scene.left() / "run.log").unlink()
    scene.resume()


def _appended(scene: Scene) -> None:
    run_dir = scene.left()
    with (run_dir / "run.log").open("ab") as stream:
        stream.write(b"one line more\n")
    scene.resume()


def _huge_keeps_its_size(scene: Scene) -> None:
    scene.loop("--fault", "much_prose", "--bytes", str(HUGE_BYTES), timeout_s=60.0)
    size = len(launch.log_text(scene.run_dir()))
    scene.expect(size > HUGE_BYTES * 0.9, f"the log holds only {size} bytes")


FAULTS = (
    _fault("no_log", "leaves with 0 and without a log", "void", "log_empty"),
    _fault("empty_log", "leaves with 0 and an empty log", "void", "log_empty"),
    _fault("half_line", "leaves with 0 in the middle of a line", "void", "truncated"),
    _fault("seal_missing", "leaves with 0 without a seal", "void", "seal_missing"),
    _fault("seal_wrong", "a seal that is not the hash of the events", "void", "seal_wrong"),
    _fault("after_end", "an event after the seal", "void", "event_after_end"),
    _fault("seq_broken", "a number is left out in the sequence", "void", "seq_broken"),
    _fault("wrong_nonce", "every line under another nonce", "void", "nonce_unknown"),
    _fault("interleaved", "another process writes into the middle of a line", "void",
           "malformed_event"),
    _fault("foreign_prose", "another process writes whole lines in between", "ok", ""),
    _fault("foreign_nonce", "the nonce is guessed in free text", "ok", ""),
    _fault("forged_event", "free text begins a line with the nonce", "void",
           "seal_wrong malformed_event"),
    _fault("odd_bytes", "NUL and invalid UTF-8 in the prose", "ok", ""),
    _fault("odd_event", "NUL and invalid UTF-8 in an event", "void", "malformed_event"),
    _replayed("replayed"),
    _replayed("renonced"),
    Fault("swapped", "log", "replaced by an older run's log after the engine left", "void",
          ("nonce_unknown",), _swapped),
    Fault("cut_anywhere", "log", f"cut at every byte of its last {TAIL_BYTES}", "void",
          ("truncated", "seal_missing"), _cut_anywhere),
    Fault("flipped", "log", f"{FLIPS} times one bit flipped, seeded", "void",
          ("seal_wrong", "malformed_event", "seal_missing", "truncated", "seq_broken",
           "log_changed"), _flipped),
    Fault("shortened", "log", "a line of prose taken out after the engine left", "void",
          ("log_changed",), _shortened),
    Fault("appended", "log", "a line appended after the engine left", "void",
          ("log_changed",), _appended),
    Fault("log_gone", "log", "deleted after the engine left", "void", ("log_empty",), _gone),
    Fault("huge_log", "log", f"{HUGE_BYTES >> 20} MiB of prose", "ok", ("",),
          _huge_keeps_its_size, slow=True),
)  # fmt: skip
