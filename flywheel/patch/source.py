"""A patch as it is declared: from a branch or a file to a diff with an identity.

The diff is taken anew against the revision that is checked out, in one fixed form, so a branch and
a file that say the same are the same patch, whoever wrote the file and with whichever tool.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from flywheel.errors import PatchError, UsageError
from flywheel.files import write_atomic
from flywheel.patch import admission
from flywheel.patch.paths import Reason, forbidden
from flywheel.patch.repository import Repository

FOLDER = "patches"
LIMIT_BYTES = 200_000
_REGULAR = "100644"


@dataclass(frozen=True, slots=True)
class Patch:
    """A diff against `base`: `sha256` is its identity, `files` what it touches."""

    base: str
    tree: str
    diff: str
    sha256: str
    files: tuple[str, ...]


def read(repository: Repository, given: str, relative_to: Path) -> Patch:
    """The patch that a file, or else a branch, holds. UsageError when it is neither, or is none."""
    base = repository.head()
    path = relative_to / Path(given).expanduser()
    if _is_file(path):
        text = _text(path)
    elif (commit := repository.commit_of(given)) is not None:
        text = repository.diff(repository.merge_base(base, commit), commit)
    else:
        raise UsageError(f"{given} is neither a file nor a branch of {repository.root}.")
    if not text.strip():
        raise UsageError(f"{given} changes nothing against the revision that is checked out.")
    try:
        return onto(repository, base, text)
    except PatchError as error:
        raise UsageError(str(error)) from error


def subject(repository: Repository, given: str, relative_to: Path) -> str:
    """What a patch says of itself: its commit's subject, or the one of a mailed patch; its name."""
    path = relative_to / Path(given).expanduser()
    if _is_file(path):
        found = re.search(r"^Subject: (?:\[PATCH[^]]*\] )?(.+)$", _text(path), re.MULTILINE)
        return found[1].strip() if found else path.stem
    return repository.run("show", "-s", "--format=%s", given).strip() or given


def _is_file(path: Path) -> bool:
    """A branch may have a name that no file could have."""
    try:
        return path.is_file()
    except OSError:
        return False


def onto(repository: Repository, base: str, text: str) -> Patch:
    """A diff applied to a commit; PatchError when it does not apply, or then changes nothing."""
    tree = repository.applied(base, text)
    diff = repository.diff(base, tree)
    if not diff:
        raise PatchError(f"the patch changes nothing that {base[:12]} does not have already.")
    try:
        size = len(diff.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise PatchError("the patch holds bytes that are no UTF-8 text.") from error
    if size > LIMIT_BYTES:
        raise PatchError(f"the patch is larger than {LIMIT_BYTES} bytes; no one change is.")
    files = tuple(path for _, _, path in repository.changed(base, tree))
    return Patch(base, tree, diff, identity(diff), files)


def reasons(repository: Repository, patch: Patch) -> tuple[Reason, ...]:
    """Every reason why a patch is not admitted, by its paths and by the code it brings."""
    found = list(forbidden(patch.files))
    for status, mode, path in repository.changed(patch.base, patch.tree):
        if mode != _REGULAR and status != "D":
            found.append(Reason(path, None, "it is no plain file (a link, or executable)"))
    if found:
        return tuple(found)
    for path in patch.files:
        new = repository.text(patch.tree, path)
        if new is not None:
            found += admission.reasons(path, repository.text(patch.base, path) or "", new)
    return tuple(found)


def identity(diff: str) -> str:
    """Hash of what a diff changes, wherever the lines lie by now: hunks without their numbers."""
    kept = [
        "@@" if line.startswith("@@ ") else line
        for line in diff.split("\n")
        if not re.match(r"(index [0-9a-f]+\.\.|diff --git )", line)
    ]
    return hashlib.sha256("\n".join(kept).encode("utf-8", "surrogateescape")).hexdigest()


def keep(ledger: Path, patch: Patch) -> Path:
    """Leave the diff beside the ledger, under its identity."""
    path = path_of(ledger, patch.sha256)
    path.parent.mkdir(exist_ok=True)
    if not path.exists():
        write_atomic(path, patch.diff)
    return path


def kept(ledger: Path, sha256: str) -> str:
    """The diff of a declared patch; PatchError when it is gone or is not what was declared."""
    path = path_of(ledger, sha256)
    try:
        text = path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PatchError(f"the diff of a declared patch cannot be read: {error}.") from error
    if identity(text) != sha256:
        raise PatchError(f"{path} is not the patch that was declared.")
    return text


def path_of(ledger: Path, sha256: str) -> Path:
    """Where the diff of a patch lies."""
    return ledger.parent / FOLDER / f"{sha256}.diff"


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > LIMIT_BYTES:
            raise UsageError(f"{path} is larger than {LIMIT_BYTES} bytes; no one change is.")
        return path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read as a diff: {error}.") from error
