"""A lever: one declared change with a claim, what would falsify it, and a price.

Pure data. Knows nothing of the ledger, of runs, or of what the engine makes of the change.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from flywheel.errors import LeverError

KINDS = ("config", "head", "patch")
# The time per token of what says something else than plain decode would: a price, and no gain.
LOSSY_METRIC = "lossy_ms_per_token"
METRICS = ("ms_per_token", "tau", LOSSY_METRIC)
# Values that change what is said. What is lossy is measured for its price and never promoted.
LOSSY: Mapping[str, tuple[object, ...]] = {"acceptance": ("typical",)}
# What an incumbent may have to be before a lever can move it: run on one backend, or draft.
NEEDS = ("torch", "triton", "drafts")
_SHA256 = re.compile(r"[0-9a-f]{64}")


def canonical(value: object) -> str:
    """Canonical JSON: sorted keys, no spaces, non-finite numbers refused.

    Raises LeverError when the value is not plain JSON.
    """
    try:
        return json.dumps(
            value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=True
        )
    except (TypeError, ValueError) as error:
        raise LeverError(f"not plain JSON: {error}") from error


def fingerprint(value: object) -> str:
    """Hex sha256 of the canonical JSON of `value`."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Lever:
    """One change against the incumbent.

    `change` holds exactly one field and its value (none for a null lever); gains are fractions of
    time saved (0.03 = 3 %). `hot` says that one load can hold both values. `ceiling` is an upper
    bound on the gain, measured or derived, or None. A `slow` lever needs minutes of building before
    anything can be measured; quick campaigns leave it out. `needs` holds words of NEEDS: what the
    incumbent must be, or the change would be refused by the engine, or mean nothing. `share` is how
    much of the traffic it touches, where that is not all of it. Levers of one `sweep` are values of
    one field that choose one among themselves.
    """

    name: str
    kind: str
    change: Mapping[str, object]
    claim: str
    falsify: str
    predicted_gain: float
    ceiling: float | None = None
    hot: bool = True
    family: str = "general"
    null: bool = False
    metric: str = "ms_per_token"
    slow: bool = False
    needs: tuple[str, ...] = ()
    share: float = 1.0
    sweep: str = ""
    identity: str = field(init=False)

    def __post_init__(self) -> None:
        _check(self)
        body = {"kind": "null" if self.null else self.kind, "change": dict(self.change)}
        object.__setattr__(self, "identity", fingerprint(body))
        object.__setattr__(self, "change", dict(self.change))
        object.__setattr__(self, "needs", tuple(self.needs))

    @property
    def field_name(self) -> str | None:
        """The one field that this lever changes; None for a null lever."""
        return next(iter(self.change), None)

    @property
    def lossy(self) -> bool:
        """Whether it changes what is said, so that it can never be promoted."""
        return self.metric == LOSSY_METRIC

    @property
    def group(self) -> str:
        """What levers share that differ only in a value; any other lever is a group of its own."""
        if self.sweep:
            return f"sweep {self.sweep}"
        name = self.field_name
        if name is None or type(self.change[name]) not in (int, float):
            return self.identity
        return f"{self.kind} {name}"

    @property
    def boot(self) -> str:
        """What levers must share to stand in one screen: how they are built and what judges them.

        A patch is built on its own, so it shares with none.
        """
        return self.identity if self.kind == "patch" else f"{self.kind} {self.metric} {self.slow}"

    def applied(self, incumbent: Mapping[str, object], variant_id: str) -> dict[str, object]:
        """The candidate configuration of this lever as the variant of that id.

        A head is named by who trains it: one recipe may be trained more than once; and a patch by
        what it is applied to.
        """
        if self.kind in ("head", "patch") and not self.null:
            return {**incumbent, self.kind: f"{self.name}-{variant_id}"}
        return {**incumbent, **self.change}

    def label(self) -> str:
        """`field -> value`, as printed in reports."""
        if self.null:
            return "null (incumbent against itself)"
        name, value = next(iter(self.change.items()))
        if self.kind == "patch":
            return f"patch {str(value)[:12]}"
        if isinstance(value, Mapping):
            said = ", ".join(f"{k} {str(v).lower()}" for k, v in value.items())
            return f"{name}: {said or 'the default recipe'}"
        said = f"{name} -> {value if isinstance(value, str) else canonical(value)}"
        return f"{said} (LOSSY)" if self.lossy else said


def _check(lever: Lever) -> None:
    if not lever.name or lever.name != lever.name.strip():
        raise LeverError("a lever needs a name without surrounding spaces")
    if lever.kind not in KINDS:
        raise LeverError(f"lever {lever.name}: kind {lever.kind!r} is none of {', '.join(KINDS)}")
    if lever.metric not in METRICS:
        raise LeverError(
            f"lever {lever.name}: metric {lever.metric!r} is not one of {', '.join(METRICS)}"
        )
    if strange := sorted(set(lever.needs) - set(NEEDS)):
        raise LeverError(f"lever {lever.name} needs {strange[0]!r}, not one of {', '.join(NEEDS)}")
    wanted = 0 if lever.null else 1
    if len(lever.change) != wanted:
        raise LeverError(
            f"lever {lever.name} changes {len(lever.change)} fields, not exactly {wanted}"
        )
    if lever.kind == "head":
        recipe = lever.change.get("head")
        if not isinstance(recipe, Mapping) or lever.metric != "tau" or not lever.hot:
            raise LeverError(
                f"lever {lever.name} changes the head: its change is a recipe, it is judged on tau "
                "and one load holds both heads"
            )
    if lever.kind == "patch" and not lever.null:
        named = lever.change.get("patch")
        if not (isinstance(named, str) and _SHA256.fullmatch(named)) or lever.hot:
            raise LeverError(
                f"lever {lever.name} changes the code: its change is the hash of a diff, and no "
                "load can hold both"
            )
    if lever.lossy != any(value in LOSSY.get(name, ()) for name, value in lever.change.items()):
        raise LeverError(
            f"lever {lever.name}: what changes the text is judged on {LOSSY_METRIC}, and nothing "
            "else is"
        )
    if lever.lossy and not lever.hot:
        raise LeverError(f"lever {lever.name} is lossy: one load holds both arms")
    if not lever.null and not (lever.claim.strip() and lever.falsify.strip()):
        raise LeverError(f"lever {lever.name} needs a claim and what would falsify it")
    for name, gain in (("predicted_gain", lever.predicted_gain), ("ceiling", lever.ceiling)):
        if gain is not None and not 0.0 <= gain < 1.0:
            raise LeverError(f"lever {lever.name}: {name} {gain} is not a fraction in [0, 1)")
    if not 0.0 < lever.share <= 1.0:
        raise LeverError(f"lever {lever.name}: share {lever.share} is not a fraction in (0, 1]")
    canonical(dict(lever.change))


def null_lever() -> Lever:
    """The incumbent against itself: calibrates the ruler, and is the canary."""
    return Lever(
        name="null",
        kind="config",
        change={},
        claim="nothing changes",
        falsify="a promotion",
        predicted_gain=0.0,
        family="null",
        null=True,
    )


@dataclass(frozen=True, slots=True)
class Variant:
    """A lever at its value against one incumbent: the two configurations to compare."""

    lever: Lever
    incumbent: Mapping[str, object]
    candidate: Mapping[str, object]

    @classmethod
    def of(cls, lever: Lever, incumbent: Mapping[str, object]) -> Variant:
        """Apply the lever to the incumbent; the incumbent is left as it is."""
        return cls(lever, dict(incumbent), {**incumbent, **lever.change})
