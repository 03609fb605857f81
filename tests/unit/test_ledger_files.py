"""A ledger that cannot be used says so in one sentence, and neither loses nor leaves anything."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from records import NOW, World, drive, lever

from flywheel.doctor import work
from flywheel.errors import LedgerBusy, LedgerError, LedgerPlaceError
from flywheel.ledger import backup, models, place, store, views
from flywheel.ledger.opening import open_for_writing
from flywheel.ledger.store import Ledger, check_integrity
from flywheel.loop import glance, planned
from flywheel.statistics.campaign import QUICK

LATER = "2026-11-28T23:00:00Z"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small ledger, for each test to copy."""
    opened = Ledger.open(tmp_path_factory.mktemp("made") / "ledger.db")
    planned.open_campaign(opened, QUICK, start={}, box="box", now_utc=NOW)
    drive(opened, [lever()], World({'{"threads":2}': -0.05}))
    opened.close()
    return opened.path


@pytest.fixture
def path(made: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copy(made, tmp_path / "ledger.db"))


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 768 KiB."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=768k", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a small file system cannot be mounted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def fill(folder: Path, leaving: int = 0) -> None:
    """Fill a disk but for `leaving` bytes."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as out, contextlib.suppress(OSError):
        while True:
            out.write(b"x" * 4096)
    os.truncate(ballast, max(0, ballast.stat().st_size - leaving))


def begin(path: Path, now_utc: str = NOW) -> tuple[str, ...]:
    """What a session of the loop does with its ledger first; returns what it said."""
    opening = open_for_writing(path, now_utc=now_utc)
    opening.ledger.close()
    return opening.warnings


def append_ruler(ledger: Ledger, name: str, size: int = 10) -> None:
    with ledger.transaction() as writer:
        fields = {"x": "y" * size}
        writer.append(models.ruler, identity=name, name=name, fields=fields, created_utc=NOW)


def rulers(path: Path) -> int:
    with closing(sqlite3.connect(path)) as raw:
        assert raw.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
        return int(raw.execute("SELECT count(*) FROM ruler").fetchone()[0])


def as_nobody(act: Callable[[], None]) -> str:
    """What an act raises in a process that may not do everything; empty when nothing."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        said = ""
        try:
            if os.geteuid() == 0:
                os.setgid(65534)
                os.setuid(65534)
            act()
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writes, said.encode()[:4000])
        os._exit(0)
    os.close(writes)
    with os.fdopen(reads, "rb") as stream:
        said = stream.read().decode()
    os.waitpid(child, 0)
    return said


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that any user can reach."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o777)
        yield folder
        folder.chmod(0o777)


def test_a_read_only_ledger_is_read_and_not_written_to(path: Path, open_folder: Path) -> None:
    mine = Path(shutil.copy(path, open_folder / "ledger.db"))
    mine.chmod(0o444)
    open_folder.chmod(0o555)

    def read() -> None:
        ledger = Ledger.read(mine)
        with ledger.reading() as connection:
            assert views.load(connection).campaign is not None
        check_integrity(ledger)
        ledger.close()

    assert as_nobody(read) == ""
    said = as_nobody(lambda: Ledger.open(mine).close())
    assert said.startswith("LedgerPlaceError")
    assert "is read-only" in said
    assert os.listdir(open_folder) == ["ledger.db"]


def test_a_read_only_folder_gets_no_ledger(open_folder: Path) -> None:
    open_folder.chmod(0o555)
    said = as_nobody(lambda: Ledger.open(open_folder / "ledger.db").close())
    assert said.startswith("LedgerPlaceError")
    assert os.listdir(open_folder) == []


def test_a_ledger_that_becomes_read_only_refuses_the_entry(path: Path, open_folder: Path) -> None:
    mine = Path(shutil.copy(path, open_folder / "ledger.db"))
    mine.chmod(0o666)

    before = rulers(mine)
    ledger = Ledger.open(mine)
    ledger.close()
    mine.chmod(0o444)
    said = as_nobody(lambda: append_ruler(ledger, "lost"))
    assert said.startswith("LedgerPlaceError")
    assert rulers(mine) == before


def test_a_full_disk_in_mid_transaction_loses_nothing(tiny_disk: Path, path: Path) -> None:
    mine = Path(shutil.copy(path, tiny_disk / "ledger.db"))
    before = rulers(mine)
    ledger = Ledger.open(mine)
    with pytest.raises(LedgerError, match="its disk is full; nothing was lost"):
        append_ruler(ledger, "big", 2**20)
    assert rulers(mine) == before
    fill(tiny_disk)
    with pytest.raises(LedgerError, match="disk is full"):
        append_ruler(ledger, "small", 30_000)
    (tiny_disk / "ballast").unlink()
    append_ruler(ledger, "after", 30_000)
    assert rulers(mine) == before + 1
    ledger.close()
    assert os.listdir(tiny_disk) == ["ledger.db"]


def test_a_disk_that_is_full_for_sqlite_rolls_back_once(path: Path) -> None:
    before = rulers(path)
    ledger = Ledger.open(path)

    def too_much() -> None:
        with ledger.transaction() as writer:
            pages = writer.connection.exec_driver_sql("PRAGMA page_count").scalar_one()
            writer.connection.exec_driver_sql(f"PRAGMA max_page_count = {pages + 2}")
            writer.append(models.ruler, identity="a", name="a", fields={}, created_utc=NOW)
            text = {"x": "y" * 100_000}
            writer.append(models.ruler, identity="b", name="b", fields=text, created_utc=NOW)

    with pytest.raises(LedgerError, match="disk is full"):
        too_much()
    ledger.close()
    assert rulers(path) == before


def test_a_full_disk_gets_no_ledger_and_no_empty_file(tiny_disk: Path) -> None:
    fill(tiny_disk, leaving=40_000)
    with pytest.raises(LedgerError, match="disk is full"):
        Ledger.open(tiny_disk / "ledger.db")
    assert os.listdir(tiny_disk) == ["ballast"]


def test_a_copy_that_finds_no_room_is_a_warning(tiny_disk: Path, path: Path) -> None:
    mine = Path(shutil.copy(path, tiny_disk / "ledger.db"))
    fill(tiny_disk, leaving=60_000)
    (said,) = begin(mine)
    assert "no copy of the ledger was made" in said
    assert "disk is full" in said
    assert list(backup.folder(mine).iterdir()) == []
    ledger = Ledger.open(mine)
    append_ruler(ledger, "goes on")
    ledger.close()


def holder(path: Path, statement: str) -> subprocess.Popen[str]:
    """Another process inside a transaction."""
    code = (
        "import sqlite3, sys, time\n"
        f"c = sqlite3.connect({str(path)!r}, isolation_level=None)\n"
        f"c.executescript({statement!r})\n"
        "print('in', flush=True)\n"
        "time.sleep(60)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "in\n"
    return child


def test_a_locked_ledger_is_refused_as_busy(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "BUSY_PATIENCE_S", 0.2)
    monkeypatch.setattr(store, "BUSY_SLICE_MS", 50)
    before = rulers(path)
    child = holder(path, "BEGIN EXCLUSIVE;")
    try:
        with pytest.raises(LedgerBusy, match="locked by another process") as caught:
            Ledger.open(path)
        assert caught.value.exit_code == 3
        with pytest.raises(LedgerBusy):
            Ledger.read(path)
        monkeypatch.setattr(backup, "PATIENCE_S", 0.1)
        with pytest.raises(LedgerBusy, match="locked"):
            backup.back_up(path, NOW)
    finally:
        child.kill()
        child.communicate()
    ledger = Ledger.open(path)
    append_ruler(ledger, "now")
    ledger.close()
    assert rulers(path) == before + 1


def test_a_long_look_keeps_no_writer_waiting(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "BUSY_PATIENCE_S", 0.2)
    monkeypatch.setattr(store, "BUSY_SLICE_MS", 50)
    writing, before = Ledger.open(path), rulers(path)
    look = Ledger.read(path, private=True)
    with look.reading() as connection:
        seen = views.load(connection)
        append_ruler(writing, "meanwhile")
        assert views.load(connection) == seen
    look.close()
    short = Ledger.read(path)
    with short.reading() as connection:
        connection.exec_driver_sql("SELECT count(*) FROM ruler").scalar_one()
        with pytest.raises(LedgerBusy):
            append_ruler(writing, "must wait")
    short.close()
    writing.close()
    assert rulers(path) == before + 1


def test_processes_that_make_one_ledger_together_make_one(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    code = (
        "import sys\nfrom flywheel.ledger import models\n"
        "from flywheel.ledger.store import Ledger\n"
        "sys.stdin.readline()\n"
        "ledger = Ledger.open(sys.argv[1])\n"
        "with ledger.transaction() as w:\n"
        "    w.append(models.ruler, identity=sys.argv[2], name='n', fields={}, created_utc='t')\n"
    )
    makers = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(path), str(n)], stdin=subprocess.PIPE, text=True
        )
        for n in range(3)
    ]
    for maker in makers:
        maker.communicate("go\n")
    assert [maker.returncode for maker in makers] == [0] * 3
    assert rulers(path) == 3
    assert os.listdir(tmp_path) == ["ledger.db"]


def test_what_a_killed_writer_began_is_rolled_back(path: Path) -> None:
    before = rulers(path)
    spilled = (
        "PRAGMA cache_size = 2; BEGIN IMMEDIATE; WITH RECURSIVE c(n) AS "
        "(SELECT 1000 UNION ALL SELECT n + 1 FROM c WHERE n < 1050) "
        "INSERT INTO ruler SELECT n, 'i' || n, 'n', json_array(hex(zeroblob(4500))), 't' FROM c;"
    )
    size = path.stat().st_size
    child = holder(path, spilled)
    child.send_signal(signal.SIGKILL)
    child.communicate()
    journal = path.with_name(path.name + "-journal")
    assert journal.stat().st_size > 0
    assert path.stat().st_size > size
    assert glance.history(path)["campaign"] is not None
    ledger = Ledger.read(path)
    with ledger.reading() as connection:
        count = connection.exec_driver_sql("SELECT count(*) FROM ruler").scalar_one()
    ledger.close()
    assert count == before
    assert not journal.exists()
    assert rulers(path) == before


MOUNTED = """\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 27 0:40 / {at} rw,relatime shared:1 - {kind} server:/export rw
"""


def mounted(monkeypatch: pytest.MonkeyPatch, root: Path, at: Path, kind: str) -> None:
    table = root / "mountinfo"
    table.write_text(MOUNTED.format(at=str(at).replace(" ", "\\040"), kind=kind))
    monkeypatch.setattr(place, "MOUNTS", table)


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "9p", "fuse.sshfs"])
def test_a_network_file_system_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    shared = tmp_path / "a share"
    shared.mkdir()
    mounted(monkeypatch, tmp_path, shared, kind)
    with pytest.raises(LedgerPlaceError, match=f"network file system \\({kind}\\)") as caught:
        Ledger.open(shared / "ledger.db")
    assert caught.value.exit_code == 2
    assert list(shared.iterdir()) == []
    Ledger.open(tmp_path / "ledger.db").close()
    monkeypatch.setenv(place.ALLOW_VARIABLE, "1")
    Ledger.open(shared / "ledger.db").close()


def test_a_ledger_on_a_network_file_system_can_be_read(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounted(monkeypatch, path.parent, path.parent, "nfs")
    Ledger.read(path).close()


def test_the_file_system_of_a_path_is_that_of_its_nearest_mount(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounted(monkeypatch, tmp_path, tmp_path / "x y", "nfs")
    assert place.filesystem(tmp_path / "x y" / "z") == "nfs"
    assert place.filesystem(tmp_path / "x yz") == "ext4"
    monkeypatch.setattr(place, "MOUNTS", tmp_path / "none")
    assert place.filesystem(tmp_path) is None


def damage(path: Path, offset: int, length: int) -> None:
    with path.open("r+b") as stream:
        stream.seek(offset)
        stream.write(b"\xa5" * length)


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9])
def test_a_truncated_ledger_is_refused_and_kept(path: Path, part: float) -> None:
    os.truncate(path, int(path.stat().st_size * part))
    before = path.read_bytes()
    with pytest.raises(LedgerError, match=r"damaged|not an SQLite"):
        begin(path)
    assert path.read_bytes() == before
    assert not backup.copies(path)


@pytest.mark.parametrize("page", [1, 2, 5, 11, 23, 35])
def test_a_page_of_rubbish_is_found_at_the_start(path: Path, page: int) -> None:
    damage(path, page * 4096, 4096)
    with pytest.raises(LedgerError, match="damaged"):
        begin(path)


def test_a_damaged_ledger_points_to_its_copies_which_are_whole(path: Path) -> None:
    begin(path)
    (copy,) = backup.copies(path)
    damage(path, 2 * 4096, 20_000)
    with pytest.raises(LedgerError, match=str(copy)):
        begin(path)
    whole = Ledger.read(copy)
    check_integrity(whole)
    whole.close()


def test_a_ledger_that_was_moved_away_gets_no_entries(path: Path) -> None:
    ledger = Ledger.open(path)
    path.rename(path.with_name("elsewhere.db"))
    with pytest.raises(LedgerError, match="moved or replaced"):
        append_ruler(ledger, "lost")
    shutil.copy(path.with_name("elsewhere.db"), path)
    with pytest.raises(LedgerError, match="moved or replaced"):
        append_ruler(ledger, "lost")
    ledger.close()


def test_a_session_begins_with_a_copy_unless_nothing_changed(path: Path) -> None:
    begin(path)
    (first,) = backup.copies(path)
    assert begin(path, LATER) == ()
    assert backup.copies(path) == (first,)
    ledger = Ledger.open(path)
    append_ruler(ledger, "new")
    ledger.close()
    begin(path, LATER)
    assert [rulers(copy) for copy in backup.copies(path)] == [rulers(path) - 1, rulers(path)]


def test_only_the_newest_copies_are_kept(path: Path) -> None:
    ledger = Ledger.open(path)
    for hour in range(5):
        append_ruler(ledger, f"at {hour}")
        backup.back_up(path, f"2026-11-28T0{hour}:00:00Z", kept=3)
    assert [p.name[:11] for p in backup.copies(path)] == [
        "20261128T02", "20261128T03", "20261128T04",
    ]  # fmt: skip
    append_ruler(ledger, "twice in a second")
    backup.back_up(path, "2026-11-28T04:00:00Z", kept=3)
    ledger.close()
    names = [p.name for p in backup.copies(path)]
    assert len(names) == 3
    assert rulers(backup.copies(path)[-1]) == rulers(path)


def test_copies_are_whole_while_a_writer_writes(path: Path) -> None:
    code = (
        "import sys, time\nfrom flywheel.ledger import models\n"
        "from flywheel.ledger.store import Ledger\n"
        "ledger = Ledger.open(sys.argv[1])\n"
        "for n in range(10**6):\n"
        "    with ledger.transaction() as w:\n"
        "        for half in 'ab':\n"
        "            w.append(models.ruler, identity=f'{n}{half}', name='n', fields={}, "
        "created_utc='t')\n"
        "    print(n, flush=True)\n"
        "    time.sleep(0.01)\n"
    )
    writer = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    before = rulers(path)
    try:
        writer.stdout.readline()
        for second in range(4):
            made = backup.back_up(path, f"2026-11-28T22:00:0{second}Z")
            assert (rulers(made.path) - before) % 2 == 0
            time.sleep(0.05)
    finally:
        writer.kill()
        writer.communicate()


def test_a_ledger_that_is_gone_is_missed_when_copies_of_it_are_there(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    first = open_for_writing(path, now_utc=NOW)
    first.ledger.close()
    assert first.warnings == ()
    path.unlink()
    found = work.check_ledger(path)[0]
    assert (found.state, "is gone" in found.said) == ("warn", True)
    assert found.advice.startswith("put it back")
    again = open_for_writing(path, now_utc=NOW)
    again.ledger.close()
    assert len(again.warnings) == 1
    assert f"the newest is {first.backup.path}" in again.warnings[0]  # type: ignore[union-attr]
