"""What a proposer may touch: the paths that a patch may change, and the files that must not move.

The first is pure and reads the diff, before git or anybody else does; the second looks at the files
before and after an attempt, for a proposer that was given a shell can do more than answer.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from flywheel.errors import LeverError
from flywheel.patch.paths import forbidden
from flywheel.patch.source import LIMIT_BYTES

_HEADER = re.compile(r"^(?:---|\+\+\+) (?P<path>[^\t\n]+)", re.MULTILINE)
_MOVED = re.compile(r"^(?:rename|copy) (?:from|to) (?P<path>.+)$", re.MULTILINE)
_GIT = re.compile(r"^diff --git (?P<one>\S+) (?P<two>\S+)$", re.MULTILINE)
_REFUSED = (
    ("GIT binary patch", "it holds a binary file"),
    ("Binary files ", "it holds a binary file"),
    ("new file mode 120000", "it makes a link"),
    ("new mode ", "it changes a file's mode"),
    ("Subproject commit", "it moves a submodule"),
)


def paths(diff: str) -> tuple[str, ...]:
    """Every path that a unified diff names, without its ``a/`` and ``b/``, sorted.

    Lines that only look like a heading count as one: what is refused too often does no harm.
    """
    found = {m["path"].strip() for m in _HEADER.finditer(diff)}
    found |= {m["path"].strip() for m in _MOVED.finditer(diff)}
    for match in _GIT.finditer(diff):
        found |= {match["one"], match["two"]}
    plain = (re.sub(r"^[ab]/", "", one.strip('"')) for one in found - {"/dev/null"})
    return tuple(sorted(set(plain)))


def check(diff: str) -> tuple[str, ...]:
    """The paths that a patch changes; LeverError for one that touches what it must not."""
    if len(diff.encode("utf-8", "replace")) > LIMIT_BYTES:
        raise LeverError(f"the patch is larger than {LIMIT_BYTES} bytes; no one change is")
    for words, said in _REFUSED:
        if any(text.startswith(words) for text in diff.splitlines()):
            raise LeverError(f"the patch is refused: {said}")
    found = paths(diff)
    if not found or "\n@@" not in f"\n{diff}":
        raise LeverError("the patch is no unified diff that changes a file")
    if strange := [path for path in found if "\\" in path or not path.isprintable()]:
        raise LeverError(f"the patch touches {strange[0]!r}: that is no path inside the repository")
    if reasons := forbidden(found):
        raise LeverError(f"the patch is not admitted: {reasons[0]}")
    return found


def fingerprints(roots: Sequence[Path], files: Sequence[Path] = ()) -> dict[str, str]:
    """The hash of every source file under these folders, and of these files, by path.

    A link or a file that cannot be read stands with what it is.
    """
    return {str(path): _hash(path) for path in (*_sources(roots), *files)}


def changed(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[str, ...]:
    """The paths that were altered, added or removed between two looks, sorted."""
    return tuple(sorted(p for p in {*before, *after} if before.get(p) != after.get(p)))


def _sources(roots: Sequence[Path]) -> Iterator[Path]:
    for root in roots:
        for path in sorted(root.rglob("*")):
            if "__pycache__" not in path.parts and (path.is_symlink() or path.is_file()):
                yield path


def _hash(path: Path) -> str:
    try:
        if path.is_symlink():
            return f"a link to {path.readlink()}"
        # The large files are the checkpoint's, and every run hashes those.
        stat = path.stat()
        if stat.st_size > 1 << 20:
            return f"{stat.st_size} bytes, {stat.st_mtime_ns}"
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        return f"{error.strerror}"
