"""Files are whole or absent, and a status file is trusted only as far as it can be read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flywheel.box import identity
from flywheel.files import create_whole, dump, read_json, write_atomic
from flywheel.run.exit_status import ExitStatus


def test_a_failed_write_leaves_the_old_file_and_no_litter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.json"
    write_atomic(path, "old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_atomic(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["x.json"]


def test_only_the_first_creates(tmp_path: Path) -> None:
    path = tmp_path / "claim"
    assert create_whole(path, "first")
    assert not create_whole(path, "second")
    assert path.read_text() == "first"
    assert os.listdir(tmp_path) == ["claim"]


def test_what_is_no_json_object_is_none(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    assert read_json(path) is None
    for text in ("", "{", "[1]", "[" * 100_000, "\udcff"):
        path.write_bytes(text.encode("utf-8", "surrogateescape"))
        assert read_json(path) is None
    path.write_text(dump({"a": 1}))
    assert read_json(path) == {"a": 1}


def test_an_exit_status_survives_its_file_and_refuses_other_shapes(tmp_path: Path) -> None:
    me = identity.current()
    one = ExitStatus(
        run_id="r", status=0, signal=None, timed_out=False, stopped=False, duration_ns=1,
        started_utc="a", ended_utc="b", leftovers=0, group_empty=True, peak_rss_bytes=5,
        log_bytes=1, log_sha256="x", engine=me, supervisor=None,
    )  # fmt: skip
    assert one.clean
    one.write(tmp_path)
    assert ExitStatus.read(tmp_path) == one
    body = one.to_json()
    assert ExitStatus.from_json({**body, "status": True}) is None
    assert ExitStatus.from_json({k: v for k, v in body.items() if k != "signal"}) is None
    assert ExitStatus.read(tmp_path / "nowhere") is None
    killed = ExitStatus.from_json({**body, "status": None, "signal": 9})
    assert killed is not None
    assert not killed.clean
