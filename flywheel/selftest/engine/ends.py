"""Ends and disturbances: what a scripted engine does at one stage of its run, for real.

Stages, in order: ``load``, ``start``, ``middle``, ``last`` (everything is measured), ``sealed``.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flywheel.selftest.engine.journal import sha

if TYPE_CHECKING:
    from flywheel.selftest.engine.program import Program

FOR_EVER_S = 600.0
_SLEEPER = "import time; time.sleep(600)"


@dataclass(frozen=True, slots=True)
class Ending:
    """What happens at a stage; ``act`` may not return."""

    stage: str
    act: Callable[[Program], None]


def _leave(status: int, said: str = "") -> Callable[[Program], None]:
    def act(_: Program) -> None:
        if said:
            print(said, file=sys.stderr, flush=True)
        sys.exit(status)

    return act


def _unlink_and_leave(program: Program) -> None:
    program.args.log.unlink()
    sys.exit(0)


def _signal(number: int) -> Callable[[Program], None]:
    return lambda _: os.kill(os.getpid(), number)


def _asked_signal(program: Program) -> None:
    os.kill(os.getpid(), program.args.signal)


def _abort(_: Program) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.abort()


def _segfault(_: Program) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ctypes.string_at(8)


def _bus_error(_: Program) -> None:
    """Touch a page of a mapped file that is no longer there."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with tempfile.TemporaryFile() as file:
        file.truncate(mmap.PAGESIZE)
        view = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        file.truncate(0)
        view[0] = 1


def _hang(_: Program) -> None:
    time.sleep(FOR_EVER_S)


def _hang_beating(program: Program) -> None:
    program.journal.heartbeat_s = 0.1
    program.journal.rest(FOR_EVER_S)


def _deaf(_: Program) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(FOR_EVER_S)


def _grandchild(_: Program) -> None:
    subprocess.Popen([sys.executable, "-S", "-c", _SLEEPER])


def _daemonise(_: Program) -> None:
    """Leave, and go on behind the supervisor's back in a session of its own."""
    if os.fork():
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)
    time.sleep(0.3)


def _daemon_left(_: Program) -> None:
    """Leave a process behind that has left the group, the session and its parent."""
    child = os.fork()
    if child == 0:
        os.setsid()
        if os.fork() == 0:
            os.execv(sys.executable, [sys.executable, "-S", "-c", _SLEEPER])
        os._exit(0)
    os.waitpid(child, 0)


def _memory_limit(program: Program) -> None:
    size = program.args.bytes or 512 << 20
    resource.setrlimit(resource.RLIMIT_AS, (size, size))
    hoard = []
    while True:
        hoard.append(bytearray(64 << 20))


def _file_limit(program: Program) -> None:
    size = program.journal.stream.tell() + 1000
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def _clock(seconds: float) -> Callable[[Program], None]:
    def act(program: Program) -> None:
        program.journal.skew_ns += int(seconds * 1e9)

    return act


def _half_line(program: Program) -> None:
    stream = program.journal.stream
    stream.write(program.journal.line("point", {"arm": "A"})[:40])
    stream.flush()
    sys.exit(0)


def _after_end(program: Program) -> None:
    program.journal.beat()


def _nonce_in_prose(program: Program) -> None:
    nonce = program.journal.nonce
    program.journal.say(f'@{sha("x")[:32]} a prompt quotes @{nonce} {{"event":"point","tokens":9}}')
    program.journal.say(f" @{nonce} " + '{"event":"end","seal":"guessed"}')


def _forged_event(program: Program) -> None:
    """A generated text that happens to begin a line with the nonce."""
    line = program.journal.line("point", {"arm": "A", "tokens": 9})
    program.journal.say(line)


def _interleave(program: Program) -> None:
    """Another process writes to the same open file in the middle of a line."""
    journal = program.journal
    line = journal.line("heartbeat", {"phase": "measure", "done": 1, "total": 1})
    journal.digest.update(line.encode() + b"\n")
    journal.seq += 1
    journal.stream.write(line[: len(line) // 2])
    journal.stream.flush()
    code = "print('WARNING: another process was here')"
    subprocess.run([sys.executable, "-S", "-c", code], stdout=journal.stream, check=True)
    journal.stream.write(line[len(line) // 2 :] + "\n")


def _foreign_prose(program: Program) -> None:
    """Another process writes whole lines to the same open file."""
    code = "[print('WARNING: line', n) for n in range(50)]"
    subprocess.run([sys.executable, "-S", "-c", code], stdout=program.journal.stream, check=True)


def _replay(program: Program) -> None:
    program.args.log.write_bytes(program.args.old_log.read_bytes())
    sys.exit(0)


def _replay_renonced(program: Program) -> None:
    """An old log under the new nonce, sealed again, as a cheat would."""
    old = program.args.old_log.read_text().splitlines()
    nonce = program.journal.nonce
    lines = [f"@{nonce} {line.partition(' ')[2]}" for line in old if line.startswith("@")]
    body, _, _ = lines[-1].rpartition('"seal": ')
    seal = sha("".join(line + "\n" for line in lines[:-1]))
    program.args.log.write_text("\n".join([*lines[:-1], f'{body}"seal": "{seal}"}}']) + "\n")
    sys.exit(0)


def _odd_bytes(program: Program) -> None:
    program.journal.stream.buffer.write(b"\x00\x00\xff\xfe prose \xc3\x28 \x80\n\x00\n")


def _odd_event(program: Program) -> None:
    journal = program.journal
    line = journal.line("heartbeat", {"phase": "?"}).encode().replace(b"?", b"\xff\x00\xfe")
    journal.digest.update(line + b"\n")
    journal.seq += 1
    journal.stream.buffer.write(line + b"\n")


def _much_prose(program: Program) -> None:
    block = ("much ado about nothing " * 45 + "\n") * 1000
    for _ in range(program.args.bytes // len(block)):
        program.journal.stream.write(block)


def _skip_number(program: Program) -> None:
    program.journal.seq += 1



ENDS: dict[str, Ending] = {
    "dies_loading": Ending("load", _leave(2, "the scripted engine cannot load")),
    "disk_full": Ending("load", _leave(1, "OSError: [Errno 28] No space left on device")),
    "no_log": Ending("load", _unlink_and_leave),
    "empty_log": Ending("load", _leave(0)),
    "replayed": Ending("load", _replay),
    "renonced": Ending("load", _replay_renonced),
    "hang_early": Ending("start", _hang),
    "memory_limit": Ending("start", _memory_limit),
    "file_limit": Ending("start", _file_limit),
    "daemonises": Ending("start", _daemonise),
    "clock_back": Ending("middle", _clock(-2.0)),
    "clock_forward": Ending("middle", _clock(+3600.0)),
    "seq_broken": Ending("middle", _skip_number),
    "truncated": Ending("last", _leave(0)),
    "fails_late": Ending("last", _leave(1, "RuntimeError: something broke")),
    "half_line": Ending("last", _half_line),
    "sigkill": Ending("last", _signal(signal.SIGKILL)),
    "signal": Ending("last", _asked_signal),
    "abort": Ending("last", _abort),
    "segfault": Ending("last", _segfault),
    "bus_error": Ending("last", _bus_error),
    "stops": Ending("last", _signal(signal.SIGSTOP)),
    "hang": Ending("last", _hang),
    "hang_beating": Ending("last", _hang_beating),
    "deaf": Ending("last", _deaf),
    "grandchild": Ending("last", _grandchild),
    "daemon_left": Ending("last", _daemon_left),
    "heartbeat_gap": Ending("last", _clock(+120.0)),
    "foreign_nonce": Ending("last", _nonce_in_prose),
    "forged_event": Ending("last", _forged_event),
    "interleaved": Ending("last", _interleave),
    "foreign_prose": Ending("last", _foreign_prose),
    "odd_bytes": Ending("last", _odd_bytes),
    "odd_event": Ending("last", _odd_event),
    "much_prose": Ending("last", _much_prose),
    "after_end": Ending("sealed", _after_end),
    "exit_status": Ending("sealed", _leave(7)),
    "hang_sealed": Ending("sealed", _hang),
    "sigkill_sealed": Ending("sealed", _signal(signal.SIGKILL)),
}
