"""A file that history comes from: read once, line by line, hashed and compressed on the way.

Its bytes are the evidence, so a file that was changed on its way (other line ends, other encoding)
is refused rather than repaired.
"""

from __future__ import annotations

import hashlib
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from flywheel.errors import UsageError
from flywheel.run.refusal import Refusal

MOST_BYTES = 256 * 2**20
MOST_LINE_BYTES = 2**16
AS_WRITTEN = "import the file as it was written"
# How files begin that hold no line of text as it was written; the longest beginnings first.
_FORMS = (
    (b"SQLite format 3\0", "it is a ledger or another database"),
    (b"\xfd7zXZ\0", "it is compressed (xz): unpack it first"),
    (b"\x28\xb5\x2f\xfd", "it is compressed (zstd): unpack it first"),
    (b"PK\x03\x04", "it is compressed (zip): unpack it first"),
    (b"\x1f\x8b", "it is compressed (gzip): unpack it first"),
    (b"BZh", "it is compressed (bzip2): unpack it first"),
    (b"\xff\xfe", f"it is UTF-16: {AS_WRITTEN}"),
    (b"\xfe\xff", f"it is UTF-16: {AS_WRITTEN}"),
    (b"\xef\xbb\xbf", f"it begins with a byte order mark: {AS_WRITTEN}"),
)


@dataclass(frozen=True, slots=True)
class Source:
    """What was read: the name without its folder, the hash of the bytes, the bytes compressed.

    `form` says what the file is where its first bytes are those of another kind of file.
    """

    name: str
    sha256: str
    size_bytes: int
    text_zlib: bytes
    broken: Refusal | None
    form: str = ""


@contextmanager
def opened(path: Path, *, most_line_bytes: int = MOST_LINE_BYTES) -> Iterator[Stream]:
    """The stream of a file. Raises UsageError when it cannot be read."""
    try:
        # Asked before opening: a pipe would wait for its writer.
        if not stat.S_ISREG(path.stat().st_mode):
            raise UsageError(f"{path} is not a file.")
        with path.open("rb") as file:
            yield Stream(file, path.name, most_line_bytes=most_line_bytes)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from error


class Stream:
    """Yields the lines of an open file; after the last one `source()` is the whole of it."""

    def __init__(
        self, file: BinaryIO, name: str, *, most_bytes: int = MOST_BYTES,
        most_line_bytes: int = MOST_LINE_BYTES,
    ) -> None:  # fmt: skip
        self._file = file
        self._name = name
        self._most = most_bytes
        self._most_line = most_line_bytes
        self._form = ""
        self._digest = hashlib.sha256()
        self._deflate = zlib.compressobj(9)
        self._packed: list[bytes] = []
        self._size = 0
        self._broken: Refusal | None = None

    def lines(self) -> Iterator[tuple[int, str]]:
        """(1-based number, text without newline). Raises UsageError for a file without end."""
        pieces = iter(lambda: self._file.readline(self._most_line), b"")
        for number, raw in enumerate(pieces, 1):
            if number == 1:
                self._form = next((said for begin, said in _FORMS if raw.startswith(begin)), "")
            self._take(raw)
            yield number, self._text(number, raw)

    def source(self) -> Source:
        """The file as evidence, once its lines have been read."""
        packed = b"".join((*self._packed, self._deflate.copy().flush()))
        return Source(self._name, self._digest.hexdigest(), self._size, packed, self._broken,
                      self._form)

    def _take(self, raw: bytes) -> None:
        self._size += len(raw)
        if self._size > self._most:
            raise UsageError(
                f"{self._name} is larger than {self._most // 2**20} MiB; that is no log of a run."
            )
        self._digest.update(raw)
        if piece := self._deflate.compress(raw):
            self._packed.append(piece)

    def _text(self, number: int, raw: bytes) -> str:
        line = raw[:-1] if raw.endswith(b"\n") else raw
        if len(raw) == self._most_line and line is raw:
            self._note("malformed_line", f"a line longer than {self._most_line} bytes", number)
        elif line is raw:
            self._note("cut_line", "the last line has no end: the file was cut", number)
        if line.endswith(b"\r"):
            self._note("line_ends", f"lines end in CR LF: {AS_WRITTEN}", number)
            line = line[:-1]
        if b"\0" in line:
            # What a crash leaves where a file was longer than what reached the disk.
            self._note("malformed_line", "a NUL byte: a part of the file was lost", number)
        try:
            return line.decode()
        except UnicodeDecodeError:
            self._note("not_utf8", "a byte that is no UTF-8", number)
            return line.decode(errors="replace")

    def _note(self, code: str, detail: str, line: int) -> None:
        if self._broken is None or self._broken.code == "cut_line":
            self._broken = Refusal(code, detail, line)
