"""git, as far as patches need it: read commits, make one, keep it, and touch nobody's branch.

Every call is of plumbing that heeds no configuration of the user's, runs no hook and works on an
index of its own.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from flywheel.errors import PatchError, UsageError

REFS = "refs/flywheel/patches"
TIMEOUT_S = 120.0
# The packages whose code is the engine's: a revision is measured only if they are as it has them.
CODE = ("engine", "kernels")
# No hook of the user's runs, and no file system watcher is started for us.
_QUIET = (
    "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "core.quotePath=off",
    "-c", "core.autocrlf=false", "-c", "gc.auto=0",
)  # fmt: skip
_DIFF = (
    "-p", "--no-renames", "--no-color", "--no-ext-diff", "--no-textconv", "--full-index", "-U3",
    "--src-prefix=a/", "--dst-prefix=b/",
)  # fmt: skip
_WHO = {
    "GIT_AUTHOR_NAME": "flywheel", "GIT_AUTHOR_EMAIL": "flywheel@localhost",
    "GIT_COMMITTER_NAME": "flywheel", "GIT_COMMITTER_EMAIL": "flywheel@localhost",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Repository:
    """The git repository whose work tree is at `root`."""

    root: Path

    @classmethod
    def at(cls, folder: Path) -> Repository:
        """The repository that a folder belongs to; UsageError when it is in none."""
        try:
            told = _run(folder, ("rev-parse", "--show-toplevel"))
        except PatchError as error:
            raise UsageError(f"{folder} is not in a git work tree, which patches need.") from error
        return cls(Path(told.strip()))

    @classmethod
    def of_engine(cls, cwd: Path) -> Repository:
        """The repository that an engine started in `cwd` takes its code from.

        UsageError when that code is in none, or not at its root.
        """
        found = importlib.util.find_spec("engine")
        places = (found.submodule_search_locations or ()) if found is not None else ()
        root = cwd if (cwd / "engine").is_dir() else next((Path(p).parent for p in places), cwd)
        here = cls.at(root)
        if not (here.root / "engine").is_dir():
            raise UsageError(f"{here.root} does not hold the engine's code, which patches change.")
        return here

    def commit_of(self, name: str) -> str | None:
        """The commit that a branch, tag or revision names; None when there is none."""
        try:
            return self.run("rev-parse", "--verify", "--quiet", "--end-of-options",
                            f"{name}^{{commit}}").strip()  # fmt: skip
        except PatchError:
            return None

    def head(self) -> str:
        """The commit that is checked out; PatchError before the first."""
        found = self.commit_of("HEAD")
        if found is None:
            raise PatchError(f"the repository {self.root} has no commit yet.")
        return found

    def dirty(self) -> str | None:
        """A file of the engine's code that is not as HEAD has it; None when all are."""
        lines = self.run("status", "--porcelain", "--untracked-files=all", "--", *CODE).splitlines()
        return lines[0][3:] if lines else None

    def merge_base(self, left: str, right: str) -> str:
        """The newest commit that two have in common; PatchError when they share none."""
        return self.run("merge-base", left, right).strip()

    def diff(self, base: str, tree: str) -> str:
        """What `tree` has otherwise than `base`, in one fixed form."""
        return self.run("diff-tree", "-r", *_DIFF, base, tree)

    def changed(self, base: str, tree: str) -> tuple[tuple[str, str, str], ...]:
        """(status letter, mode, path) of every file that differs."""
        raw = self.run("diff-tree", "-r", "-z", "--raw", "--no-renames", base, tree).split("\0")
        facts = raw[:-1] if len(raw) % 2 else raw
        return tuple(
            (meta.split()[4], meta.split()[1], path)
            for meta, path in zip(facts[::2], facts[1::2], strict=True)
        )

    def text(self, tree: str, path: str) -> str | None:
        """A file of a tree or commit; None where it has none of that name, or no text."""
        try:
            return self.run("cat-file", "blob", f"{tree}:{path}")
        except PatchError:
            return None

    def applied(self, base: str, diff: str) -> str:
        """The tree of `base` with a diff on top; PatchError when it does not apply."""
        with self._index() as environment:
            self.run("read-tree", base, environment=environment)
            try:
                self.run("apply", "--cached", "--3way", "--whitespace=nowarn", "-",
                         environment=environment, stdin=diff)  # fmt: skip
                return self.run("write-tree", environment=environment).strip()
            except PatchError as error:
                said = str(error).rstrip(".")
                raise PatchError(f"the patch does not apply to {base[:12]}: {said}.") from error

    def has(self, diffs: Sequence[str]) -> bool:
        """Whether what is checked out has all these diffs, each on top of the one before."""
        with self._index() as environment:
            self.run("read-tree", "HEAD", environment=environment)
            try:
                for diff in reversed(diffs):
                    self.run("apply", "--cached", "-R", "--whitespace=nowarn", "-",
                             environment=environment, stdin=diff)  # fmt: skip
            except PatchError:
                return False
            return True

    def commit(self, base: str, tree: str, message: str) -> str:
        """A commit of `tree` on top of `base`: the same one whenever it is made. Not kept yet."""
        date = self.run("show", "-s", "--format=%cI", base).strip()
        when = {"GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date}
        return self.run("commit-tree", tree, "-p", base, "-m", message,
                        environment={**_WHO, **when}).strip()  # fmt: skip

    def keep(self, revision: str) -> None:
        """Hold a commit under a ref of ours, so that nothing collects it."""
        self.run("update-ref", f"{REFS}/{revision}", revision)

    def let_go(self, revision: str) -> None:
        """Drop our ref of a commit, if there is one."""
        if self.commit_of(f"{REFS}/{revision}") is not None:
            self.run("update-ref", "-d", f"{REFS}/{revision}")

    def run(
        self, *words: str, environment: Mapping[str, str] | None = None, stdin: str | None = None
    ) -> str:
        """The output of a git command; PatchError with its last words when it fails."""
        return _run(self.root, words, environment, stdin)

    @contextmanager
    def _index(self) -> Iterator[dict[str, str]]:
        with tempfile.TemporaryDirectory(prefix="flywheel-index-") as folder:
            yield {"GIT_INDEX_FILE": str(Path(folder) / "index")}


def _run(
    folder: Path,
    words: tuple[str, ...],
    environment: Mapping[str, str] | None = None,
    stdin: str | None = None,
) -> str:
    # What a caller inside a hook of another repository has set would send us there.
    clean = {name: v for name, v in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            ("git", "-C", str(folder), *_QUIET, *words),
            env={**clean, "LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0", **(environment or {})},
            input=(stdin or "").encode("utf-8", "surrogateescape"),
            capture_output=True, timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PatchError(f"git could not be run: {error}.") from error
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["it said nothing"]
        raise PatchError(f"git {words[0]}: {said[-1].removeprefix('error: ')}")
    return done.stdout.decode("utf-8", "surrogateescape")
