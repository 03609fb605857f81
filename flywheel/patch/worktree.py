"""Worktrees of our own: made for a block, marked with their owner, and never left behind.

Each lies beside the ledger under its revision. Who made it stands beside it, so that a later loop
can tell what a dead one left.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from flywheel.box import identity
from flywheel.box.identity import Identity
from flywheel.errors import PatchError
from flywheel.files import dump, read_json, write_atomic
from flywheel.patch.repository import CODE, Repository

FOLDER = "worktrees"


@dataclass(frozen=True, slots=True)
class Tree:
    """A worktree at a revision; `source_sha256` is what the engine in it will call its code."""

    path: Path
    revision: str
    source_sha256: str


def folder_of(ledger: Path) -> Path:
    """Where the worktrees of a ledger lie."""
    return ledger.parent.resolve() / FOLDER


def add(repository: Repository, folder: Path, revision: str) -> Tree:
    """A fresh worktree at a revision; PatchError when git will not make one."""
    path = folder / revision[:12]
    remove(repository, path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # The owner first: a worktree without one is never there, an owner without one is swept.
        write_atomic(_owner_file(path), dump(identity.current().to_json()))
        repository.run("worktree", "add", "--detach", "--force", str(path), revision)
        return Tree(path, revision, source_sha256(path))
    except (PatchError, OSError) as error:
        remove(repository, path)
        raise PatchError(f"no worktree of {revision[:12]} could be made: {error}") from error


def remove(repository: Repository, path: Path) -> None:
    """Take a worktree away with whatever a run left in it; quiet when there is none."""
    if path.exists() or str(path) in registered(repository):
        # Twice, for it also takes one that is locked.
        with contextlib.suppress(PatchError):
            repository.run("worktree", "remove", "--force", "--force", str(path))
        shutil.rmtree(path, ignore_errors=True)
    _owner_file(path).unlink(missing_ok=True)


def sweep(repository: Repository, folder: Path, spare: Collection[Path] = ()) -> tuple[str, ...]:
    """Remove every worktree that this process, or a dead one, made; the names of those removed.

    `spare` are in use by runs that still go on.
    """
    kept = {path.resolve() for path in spare}
    known = {Path(p) for p in registered(repository) if Path(p).parent == folder}
    lying = {p for p in folder.glob("*") if p.is_dir()} if folder.is_dir() else set()
    marked = {p.with_suffix("") for p in folder.glob("*.json")} if folder.is_dir() else set()
    swept = []
    for path in sorted(known | lying | marked):
        owner = Identity.from_json(read_json(_owner_file(path)))
        alive = owner is not None and owner != identity.current() and identity.is_alive(owner)
        if path.resolve() not in kept and not alive:
            remove(repository, path)
            swept.append(path.name)
    if folder.is_dir() and not any(folder.iterdir()):
        with contextlib.suppress(OSError):
            folder.rmdir()
    return tuple(swept)


def registered(repository: Repository) -> tuple[str, ...]:
    """Every worktree that git knows of."""
    lines = repository.run("worktree", "list", "--porcelain").splitlines()
    return tuple(line.removeprefix("worktree ") for line in lines if line.startswith("worktree "))


def source_sha256(root: Path) -> str:
    """The hash that the measuring program takes of the code below `root` (docs/log-contract.md)."""
    digest = hashlib.sha256()
    for package in CODE:
        for path in sorted((root / package).rglob("*.py")):
            digest.update(str(path.relative_to(root)).encode() + b"\0")
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _owner_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")
