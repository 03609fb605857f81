"""Peers are commands of their own: what they print is read, compared with ours, never trusted."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.bench import layer
from kernels.bench import library, shape
from kernels.bench.contest import OPERATIONS, OURS, Entry, Missing, lines, products, read, table
from kernels.bench.external import run
from kernels.bench.peers import _parser, main, show


def row(**changes: Any) -> dict[str, Any]:
    return {"op": "wq_b", "M": 1, "us": 12.0} | changes


@pytest.mark.parametrize(
    ("op", "operation"),
    [
        ("wq_b", "wq_b"),
        ("wq_b 32768x1024", "wq_b"),
        ("wq_a+wkv 1536x4096", "wq_a+wkv"),
        ("shared w2 4096x2048", "shared w2"),
        ("chain", "experts chain"),
        ("experts down", "experts down"),
    ],
)
def test_an_operation_is_known_with_its_shape_or_without_its_family(
    op: str, operation: str
) -> None:
    found = read("p", row(op=op))
    assert isinstance(found, Entry)
    assert (found.operation, found.rows, found.who, found.us) == (operation, 1, "p", 12.0)


@pytest.mark.parametrize(
    "raw",
    [
        row(op="lm_head alone"), row(op="wq_bb"), row(us=float("nan")), row(us=0), row(us="12"),
        row(us=True), row(us=None), row(M=None), row(M=1.5), row(M=True), row(M=0), row(M=-6),
        row(us=10**400), row(us=1e300), {"op": 3}, [], 7, None,
    ],
)  # fmt: skip
def test_what_is_no_time_of_a_known_operation_is_left_out(raw: Any) -> None:
    assert read("p", raw) is None


def test_a_layer_is_known_by_its_milliseconds() -> None:
    found = read("t", row(op="step eager", us=43000.0, ms_per_layer=7.29))
    assert isinstance(found, Entry)
    assert (found.operation, found.us) == ("layer", 7290.0)
    assert "step eager" in found.note


def test_an_error_is_kept_with_its_reason_in_one_line() -> None:
    found = read("p", {"op": "wo_b", "M": 6, "error": "CUBLAS\n  NOT SUPPORTED", "peer": "torch"})
    assert found == Missing("torch", "wo_b, 6 rows", "CUBLAS NOT SUPPORTED")


def test_an_error_that_is_nothing_is_none() -> None:
    assert isinstance(read("p", row(error=None)), Entry)


def test_nobody_elses_time_counts_as_ours() -> None:
    found = read("p", row(peer=OURS))
    assert isinstance(found, Entry)
    assert found.who == "p"
    with pytest.raises(SystemExit):
        _parser().parse_args(["--peer", f"{OURS}=true"])


def test_what_a_peer_says_is_one_line_that_a_terminal_can_show() -> None:
    found = read("p", row(note="\x1b[2J a\n\ud800 b" + "c" * 9999, peer="two\nlines"))
    assert isinstance(found, Entry)
    assert found.note.startswith("[2J a b")
    assert len(found.note) <= 200
    assert found.who == "two lines"
    found.note.encode()


def test_ratios_are_of_our_time_and_the_fastest_peer_comes_first() -> None:
    entries = [
        Entry("wq_b", 1, "slow", 30.0), Entry("wq_b", 1, OURS, 10.0), Entry("wq_b", 1, "fast", 8.0),
        Entry("wq_b", 6, "fast", 9.0),
    ]  # fmt: skip
    one, six = lines(entries)
    assert [(e.who, one.ratio(e)) for e in one.peers] == [("fast", 0.8), ("slow", 3.0)]
    assert six.ours is None
    assert six.ratio(six.peers[0]) is None


def test_inputs_that_come_quantised_are_a_line_of_their_own_and_of_a_layer_the_best_counts() -> (
    None
):
    entries = [
        Entry("wo_b", 1, "h", 7.0, "quantised input"), Entry("wo_b", 1, "h", 9.0, "with quant"),
        Entry("wo_b", 1, "h", 9.5, "with quant"), Entry("layer", 1, "t", 7000.0, "batched"),
        Entry("layer", 1, "t", 7500.0, "eager"),
    ]  # fmt: skip
    product, layer = lines(entries)
    assert [e.us for e in product.peers] == [7.0, 9.0]
    assert [e.us for e in layer.peers] == [7000.0]


def test_the_table_says_what_could_not_be_run_and_why() -> None:
    entries = [Entry("wq_b", 1, OURS, 10.0), Entry("wq_b", 1, "humming", 11.21, "quantised input")]
    text = table(lines(entries), [Missing("deep", "all", "no wheel for this torch")])
    assert "1.12  humming  (quantised input)" in text
    assert text.splitlines()[-1] == "not run: deep, all: no wheel for this torch"


def test_the_products_of_a_layer_are_summed_when_all_of_them_were_timed() -> None:
    ours = [Entry(name, 1, OURS, 10.0) for name in
            (*(linear.name for linear in shape.LINEARS), "experts chain")]  # fmt: skip
    theirs = [Entry(name, 1, "p", 20.0) for name in OPERATIONS[:-1]]
    found = lines([*ours, *theirs])
    count = len(shape.LINEARS)
    assert products(found, 1) == (10.0 * (count + 1), 20.0 * (count + 3))
    assert f"ours {10.0 * (count + 1):.1f} us" in table(found, [])
    assert products(lines([*ours[1:], *theirs]), 1)[0] is None
    assert products(found, 6) == (None, None)


# ---------------------------------------------------------------- commands


def python(code: str) -> str:
    return shlex.join([sys.executable, "-c", code])


def test_what_a_command_prints_and_what_it_leaves_is_read() -> None:
    code = f"""
import json, os
print("warming up")
print({json.dumps(row())!r})
print("{{not json")
json.dump({{"rows": [{json.dumps(row(op="wo_a", M=6))}]}}, open(os.environ["OUT"] + "/a.json", "w"))
json.dump([1], open(os.environ["OUT"] + "/b.json", "w"))
"""
    entries, missing = run("p", python(code), 60.0)
    assert [(e.operation, e.rows) for e in entries] == [("wq_b", 1), ("wo_a", 6)]
    assert missing == []


def test_a_command_that_fails_keeps_what_it_had_and_gives_its_last_words() -> None:
    code = f"print({json.dumps(row())!r}, flush=True); raise SystemExit('no such device')"
    entries, missing = run("p", python(code), 60.0)
    assert len(entries) == 1
    assert missing == [Missing("p", "the rest", "exit status 1: no such device")]


def test_a_command_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    code = f"""
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
open({str(tmp_path / "pid")!r}, "w").write(str(child.pid))
print({json.dumps(row())!r}, flush=True)
time.sleep(60)
"""
    started = time.monotonic()
    entries, missing = run("p", python(code), 3.0)
    assert time.monotonic() - started < 30
    assert len(entries) == 1
    assert missing == [Missing("p", "the rest", "the limit of 3 s passed")]
    pid = int((tmp_path / "pid").read_text())
    assert not alive(pid)


def test_a_command_whose_child_keeps_its_output_open_holds_nobody_up(tmp_path: Path) -> None:
    code = f"""
import subprocess, sys
sleeper = [sys.executable, "-c", "import time; time.sleep(60)"]
child = subprocess.Popen(sleeper, start_new_session=True)
open({str(tmp_path / "pid")!r}, "w").write(str(child.pid))
print({json.dumps(row())!r}, flush=True)
"""
    started = time.monotonic()
    entries, missing = run("p", python(code), 50.0)
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    assert time.monotonic() - started < 40
    assert (len(entries), missing) == (1, [])


def test_what_a_command_leaves_running_is_ended(tmp_path: Path) -> None:
    code = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
open({str(tmp_path / "pid")!r}, "w").write(str(child.pid))
"""
    run("p", python(code), 50.0)
    assert not alive(int((tmp_path / "pid").read_text()))


def test_a_command_that_prints_without_end_is_ended() -> None:
    entries, missing = run("p", "yes", 50.0)
    assert entries == []
    assert missing == [Missing("p", "the rest", "it printed more than 64 MiB")]


def test_what_no_reader_can_take_is_left_out() -> None:
    code = f"""
import os
out = os.environ["OUT"]
os.mkfifo(out + "/a.json")
os.mkdir(out + "/b.json")
open(out + "/c.json", "w").write("[" * 99999)
print('{{"a":' * 99999)
print({json.dumps(row())!r})
"""
    entries, missing = run("p", python(code), 50.0)
    assert (len(entries), missing) == (1, [])


def alive(pid: int) -> bool:
    for _ in range(100):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        stat = Path(f"/proc/{pid}/stat")
        if stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z":
            return False
        time.sleep(0.05)
    return True


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("/nowhere/peer.py", "did not start: No such file"),
        ("'unclosed", "not a command line"),
        (" ", "an empty command"),
        (python("pass"), "printed no time"),
        (python('print(\'{"op": "other", "M": 1, "us": 3}\')'), "printed no time"),
    ],
)
def test_a_peer_that_cannot_take_part_says_why(command: str, why: str) -> None:
    entries, missing = run("p", command, 60.0)
    assert entries == []
    assert len(missing) == 1
    assert why in missing[0].why


# ---------------------------------------------------------------- the command


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU to time on")
def test_without_a_gpu_the_command_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert capsys.readouterr().err.startswith("No CUDA device")


@pytest.mark.parametrize("argument", ["humming", "=x", "humming="])
def test_a_peer_needs_a_name_and_a_command(argument: str) -> None:
    with pytest.raises(SystemExit):
        _parser().parse_args(["--peer", argument])


def test_json_holds_ratios_and_gaps(capsys: pytest.CaptureFixture[str]) -> None:
    entries = [Entry("wq_b", 1, OURS, 10.0), Entry("wq_b", 1, "p", 12.0)]
    show({"device": "d"}, entries, [Missing("q", "all", "absent")], as_json=True)
    body = json.loads(capsys.readouterr().out)
    assert body["lines"][0]["peers"][0]["ratio"] == pytest.approx(1.2)
    assert body["not_run"] == [{"who": "q", "what": "all", "why": "absent"}]


@pytest.mark.parametrize("groups", [1, 2])
def test_pytorchs_products_have_the_shapes_of_ours(groups: int) -> None:
    product = shape.Linear("small", 256, 128, groups=groups)
    result = library._bf16(product, 6, device="cpu")[0]()
    assert isinstance(result, torch.Tensor)
    assert result.numel() == 6 * 256


def test_a_grouped_product_that_pytorch_lacks_is_refused_by_name() -> None:
    with pytest.raises(NotImplementedError, match="no grouped product"):
        library._scaled(shape.Linear("small", 256, 128, groups=2), 6, device="cpu")


def test_the_engines_layer_is_read_as_ours() -> None:
    widths = [{"rows": 1, "ms": 0.6}, {"rows": 6, "ms": 1.2}]
    result = {"layers": 6, "contexts": [{"widths": widths}]}
    found = [read("x", line) for line in layer.lines(result)]
    assert [(e.operation, e.rows, round(e.us, 6)) for e in found if isinstance(e, Entry)] == [
        ("layer", 1, 100.0), ("layer", 6, 200.0),
    ]  # fmt: skip


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU to time on")
def test_without_a_gpu_no_layer_is_timed(capsys: pytest.CaptureFixture[str]) -> None:
    assert layer.main([]) == 2
    assert capsys.readouterr().err.count("\n") == 1
