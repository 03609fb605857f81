"""Faults of what is served: read from the server's log as it grows, and kept in the ledger."""

from __future__ import annotations

from pathlib import Path

from flywheel.ledger import faults
from flywheel.ledger.faults import Fault
from flywheel.ledger.store import Ledger
from flywheel.serve.chosen import Chosen
from flywheel.serve.faults import FaultKeeper, FaultLog, of_exit

LINE = (
    "ERROR engine.server: Engine fault 2 ended 3 answers: RuntimeError: the device is lost; it "
    "said so; the engine is loaded again.\n"
)
SERVED = Chosen({"threads": 2}, Path("model"))


def what(found: tuple[Fault, ...]) -> list[tuple[str, int]]:
    return [(fault.detail, fault.answers) for fault in found]


def test_a_fault_is_found_once_and_only_when_its_line_is_whole(tmp_path: Path) -> None:
    log = tmp_path / "serve.log"
    log.write_text(LINE)  # of an earlier server
    seen = FaultLog(log, len(LINE))
    assert seen.news() == ()
    with log.open("a") as stream:
        stream.write(LINE[:60])
        stream.flush()
        assert seen.news() == ()
        stream.write(LINE[60:] + "Traceback (most recent call last):\n")
        stream.flush()
    assert what(seen.news()) == [("RuntimeError: the device is lost; it said so", 3)]
    assert seen.news() == ()


def test_what_a_client_had_written_to_the_log_is_no_fault(tmp_path: Path) -> None:
    log = tmp_path / "serve.log"
    log.write_text(f"a prompt that says {LINE}\n")
    assert FaultLog(log, 0).news() == ()


def test_a_log_that_is_gone_tells_nothing(tmp_path: Path) -> None:
    assert FaultLog(tmp_path / "serve.log", 0).news() == ()


def test_a_fault_waits_until_the_ledger_takes_it(tmp_path: Path) -> None:
    path, said = tmp_path / "l.db", list[str]()
    keeper = FaultKeeper(path, said.append, lambda: False)
    assert not keeper.keep((of_exit(-9, ""),), SERVED)  # there is no ledger yet
    path.write_text("no ledger at all, but longer than the header of one would be")
    assert not keeper.settle()
    assert said[0] == "server fault: killed by signal 9."
    assert "not on record yet" in said[1]
    path.unlink()
    Ledger.open(path).close()
    assert keeper.keep((of_exit(1, "The engine failed 4 times in a row."),), SERVED)
    ledger = Ledger.read(path)
    with ledger.reading() as connection:
        rows = faults.faults(connection)
    ledger.close()
    assert [row.fault.said for row in rows] == [
        "server fault: killed by signal 9",
        "server fault: it left with status 1: The engine failed 4 times in a row.",
    ]
    assert rows[0].config == {"threads": 2}
    assert rows[0].decision is None
