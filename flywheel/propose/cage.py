"""`python -m flywheel.propose.cage [--network] [--write DIR] [--read-only DIR]... -- COMMAND ...`

Shuts a program in before it starts: a network of its own that leads nowhere, folders that it cannot
write to, a process table of its own that is emptied when it ends, and no way back to a privilege.
What the kernel refuses is left out; `--probe` prints, instead of running anything, what holds. With
`--parent PID` the program does not outlive that process.

The standard library only, and Linux's own numbers: they are its interface, and do not change.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

_NEWNS, _NEWUSER, _NEWPID, _NEWNET = 0x20000, 0x10000000, 0x20000000, 0x40000000
_RDONLY, _REMOUNT, _BIND, _REC, _PRIVATE, _RELATIME = 1, 32, 4096, 16384, 1 << 18, 1 << 21
_ST_RELATIME = 4096
# nosuid, nodev, noexec, noatime: a remount must keep them, and they have the same bits in both.
_KEPT = 2 | 4 | 8 | 1024
_PDEATHSIG, _CAPBSET_DROP, _NO_NEW_PRIVS, _LAST_CAPABILITY = 1, 24, 38, 63
NETWORK, FOLDERS, PROCESSES = "no network", "folders read-only", "own processes"


@dataclass(frozen=True, slots=True)
class Words:
    """The command line. `write` lies inside one of `shielded`, or elsewhere."""

    network: bool
    probe: bool
    parent: int | None
    write: str | None
    shielded: tuple[str, ...]
    command: tuple[str, ...]


def read(arguments: Sequence[str]) -> Words:
    """The words before `--` and those after it; ValueError for one that means nothing."""
    words, command = list(arguments), list[str]()
    if "--" in words:
        place = words.index("--")
        words, command = words[:place], words[place + 1 :]
    network = probe = False
    parent: int | None = None
    write: str | None = None
    shielded: list[str] = []
    while words:
        word = words.pop(0)
        if word == "--network":
            network = True
        elif word == "--probe":
            probe = True
        elif word == "--parent" and words:
            parent = int(words.pop(0))
        elif word in ("--write", "--read-only") and words:
            path = os.path.realpath(words.pop(0))
            write, shielded = (path, shielded) if word == "--write" else (write, [*shielded, path])
        else:
            raise ValueError(f"{word} means nothing here")
    return Words(network, probe, parent, write, tuple(shielded), tuple(command))


def shut(words: Words, libc: ctypes.CDLL) -> tuple[str, ...]:
    """Shut this process in as far as the kernel lets it; what holds, in words."""
    net = 0 if words.network else _NEWNET
    user, group = os.getuid(), os.getgid()
    for flags in (_NEWUSER | _NEWNS | _NEWPID | net, _NEWUSER | _NEWNS | net, _NEWUSER | net):
        if libc.unshare(flags) == 0:
            break
    else:
        return ()
    try:
        _map(user, group)
    except OSError:
        return () if words.network else (NETWORK,)
    holds = [] if words.network else [NETWORK]
    if flags & _NEWNS and words.shielded and _shield(words, libc):
        holds.append(FOLDERS)
    if flags & _NEWPID:
        holds.append(PROCESSES)
    return tuple(holds)


def _map(user: int, group: int) -> None:
    """Stay who one is: the new user namespace knows this user and this group, and nobody else."""
    for name, text in (
        ("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1"),
    ):  # fmt: skip
        with open(f"/proc/self/{name}", "w") as stream:
            stream.write(text)


def _shield(words: Words, libc: ctypes.CDLL) -> bool:
    """Make the folders read-only but for the one that may be written to."""

    def mount(source: str | None, target: str, flags: int) -> bool:
        first = None if source is None else source.encode()
        return bool(libc.mount(first, target.encode(), None, ctypes.c_ulong(flags), None) == 0)

    if not mount(None, "/", _REC | _PRIVATE):
        return False
    if words.write is not None and not mount(words.write, words.write, _BIND):
        return False
    for path in words.shielded:
        kept = os.statvfs(path).f_flag
        flags = kept & _KEPT | (_RELATIME if kept & _ST_RELATIME else 0)
        # The folder that may be written to was mounted first, so it stays as it is inside.
        if not (
            mount(path, path, _BIND | _REC)
            and mount(None, path, _REMOUNT | _BIND | _RDONLY | flags)
        ):
            return False
    # The way here was through the folders as they were: up from there, they can be written to.
    os.chdir(os.path.realpath(os.getcwd()))
    return True


def _give_up_privileges(libc: ctypes.CDLL) -> None:
    """Whoever is root here has no capability after the next exec, so nothing above is undone."""
    for number in range(_LAST_CAPABILITY + 1):
        libc.prctl(_CAPBSET_DROP, number, 0, 0, 0)
    libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _become(command: Sequence[str]) -> NoReturn:
    try:
        os.execvp(command[0], list(command))
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        sys.stderr.flush()
        os._exit(127)


def _run(command: Sequence[str], libc: ctypes.CDLL) -> int:
    """Run it as the first of its process table, with which all others end; its exit status."""
    child = os.fork()
    if child == 0:
        libc.prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        _give_up_privileges(libc)
        _become(command)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def main(arguments: Sequence[str]) -> int:
    """Run the command shut in, or say what would hold."""
    try:
        words = read(arguments)
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    if not words.command and not words.probe:
        sys.stderr.write("there is no command after --\n")
        return 2
    libc = ctypes.CDLL(None, use_errno=True)
    if words.parent is not None:
        libc.prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        # Its death before this line sent no signal.
        if os.getppid() != words.parent:
            return 125
    holds = shut(words, libc)
    if words.probe:
        sys.stdout.write(json.dumps(list(holds)) + "\n")
        return 0
    if PROCESSES in holds:
        return _run(words.command, libc)
    _give_up_privileges(libc)
    _become(words.command)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
