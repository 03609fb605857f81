"""One event line of a log to one typed record.  Pure; a wrong field raises RefusedLogError.

It checks the shape of a single event.  Whether events agree with each other and with the manifest
is ``admit``'s business.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any

from flywheel.run import record
from flywheel.run.refusal import RefusedLogError

_HEX64 = re.compile(r"^[0-9a-f]{64}$")
_LIMIT = 1 << 62
STOPS = ("eos", "length")
EXCLUSIONS = ("short", "loop")


class _DuplicateError(ValueError):
    pass


class _NotFiniteError(ValueError):
    pass


def _pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(items)
    if len(value) != len(items):
        raise _DuplicateError
    return value


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _NotFiniteError(text)
    return value


def _constant(text: str) -> float:
    raise _NotFiniteError(text)


def decode(text: str, line: int) -> dict[str, Any]:
    """The JSON object of an event line; duplicate keys and non-finite numbers are refused."""
    try:
        value = json.loads(
            text, object_pairs_hook=_pairs, parse_float=_float, parse_constant=_constant
        )
    except _NotFiniteError as error:
        raise RefusedLogError("not_finite", f"the log holds the number {error}", line) from None
    except _DuplicateError:
        raise RefusedLogError("malformed_event", "an event names a field twice", line) from None
    except (ValueError, RecursionError):
        raise RefusedLogError("malformed_event", "an event line is not JSON", line) from None
    if not isinstance(value, dict):
        raise RefusedLogError("malformed_event", "an event line is not a JSON object", line)
    return value


@dataclass(frozen=True, slots=True)
class Event:
    """A decoded event with its line; the readers below refuse a missing or mistyped field."""

    body: dict[str, Any]
    line: int

    @property
    def name(self) -> str:
        """The kind of event, for messages."""
        return str(self.body.get("event"))

    def bad(self, field: str, wanted: str) -> RefusedLogError:
        """The refusal for a field that is not what it must be."""
        return RefusedLogError(
            "malformed_event", f"{self.name}.{field} is not {wanted}", self.line
        )

    def integer(self, field: str, *, least: int = 0) -> int:
        """A whole number of at least ``least``; never a bool."""
        value = self.body.get(field)
        if type(value) is not int or not least <= value <= _LIMIT:
            raise self.bad(field, f"a whole number of at least {least}")
        return value

    def number(self, field: str) -> float:
        """A finite number of at least zero."""
        value = self.body.get(field)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.bad(field, "a number of at least zero")
        if not 0 <= value <= float(_LIMIT):
            raise self.bad(field, "a number of at least zero")
        return float(value)

    def maybe_number(self, field: str) -> float | None:
        """A finite number of at least zero, or null."""
        return None if self.body.get(field) is None else self.number(field)

    def maybe_integer(self, field: str) -> int | None:
        """A whole number of at least zero, or null."""
        return None if self.body.get(field) is None else self.integer(field)

    def flag(self, field: str) -> bool:
        """true or false."""
        value = self.body.get(field)
        if type(value) is not bool:
            raise self.bad(field, "true or false")
        return value

    def text(self, field: str) -> str:
        """A non-empty string."""
        value = self.body.get(field)
        if not isinstance(value, str) or not value:
            raise self.bad(field, "a text")
        return value

    def maybe_text(self, field: str) -> str | None:
        """A non-empty string, or null."""
        return None if self.body.get(field) is None else self.text(field)

    def one_of(self, field: str, words: tuple[str, ...]) -> str:
        """One of a few words."""
        value = self.text(field)
        if value not in words:
            raise self.bad(field, f"one of {', '.join(words)}")
        return value

    def digest(self, field: str) -> str:
        """64 hexadecimal digits."""
        value = self.text(field)
        if not _HEX64.match(value):
            raise self.bad(field, "a SHA-256 in hexadecimal")
        return value

    def part(self, field: str) -> Event:
        """A nested object."""
        value = self.body.get(field)
        if not isinstance(value, dict):
            raise self.bad(field, "an object")
        return Event({"event": f"{self.name}.{field}", **value}, self.line)

    def maybe_part(self, field: str) -> Event | None:
        """A nested object, or null."""
        return None if self.body.get(field) is None else self.part(field)

    def parts(self, field: str) -> tuple[Event, ...]:
        """A list of nested objects."""
        value = self.body.get(field)
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise self.bad(field, "a list of objects")
        return tuple(Event({"event": f"{self.name}.{field}", **item}, self.line) for item in value)

    def texts(self, field: str) -> tuple[str, ...]:
        """A list of strings."""
        value = self.body.get(field)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.bad(field, "a list of texts")
        return tuple(value)

    def integers(self, field: str) -> tuple[int, ...]:
        """A list of whole numbers of at least zero."""
        value = self.body.get(field)
        if not isinstance(value, list) or not all(
            type(item) is int and 0 <= item <= _LIMIT for item in value
        ):
            raise self.bad(field, "a list of whole numbers")
        return tuple(value)

    def mapping(self, field: str) -> dict[str, object]:
        """An object whose values are taken as they are."""
        value = self.body.get(field)
        if not isinstance(value, dict):
            raise self.bad(field, "an object")
        return dict(value)


def _asset(event: Event) -> record.Asset:
    return record.Asset(event.text("path"), event.digest("sha256"))


def header(event: Event) -> record.Header:
    """The ``start`` event."""
    engine, suite, device = event.part("engine"), event.part("suite"), event.part("device")
    clocks, plan, head = event.part("clocks"), event.part("plan"), event.maybe_part("head")
    dirty = engine.body.get("git_dirty")
    return record.Header(
        protocol=event.integer("protocol"),
        run_id=event.text("run_id"),
        engine=record.EngineBuild(
            version=engine.text("version"),
            git_revision=engine.maybe_text("git_revision"),
            git_dirty=None if dirty is None else engine.flag("git_dirty"),
            source_sha256=engine.digest("source_sha256"),
        ),
        checkpoint=_asset(event.part("checkpoint")),
        head=None if head is None else _asset(head),
        suite=record.SuiteRef(suite.text("name"), str(suite.body.get("version")),
                              suite.digest("sha256")),
        device=record.Device(
            kind=device.one_of("kind", ("cpu", "cuda")),
            name=device.text("name"),
            driver=device.maybe_text("driver"),
            cores=device.integer("cores", least=1),
        ),
        clocks=record.Clocks(
            clocks.maybe_text("policy") or "unknown", clocks.maybe_number("mhz")
        ),
        mode=event.text("mode"),
        torch=event.text("torch"),
        plan=record.RunPlan(
            arms=plan.texts("arms"),
            order=plan.texts("order"),
            plain_arms=plan.texts("plain_arms"),
            prompts=plan.texts("prompts"),
            max_new_tokens=plan.integer("max_new_tokens", least=1),
            seed=plan.integer("seed"),
            temperature=plan.number("temperature") if "temperature" in plan.body else 0.0,
        ),
        arms=tuple(
            record.Arm(
                name=arm.text("name"),
                requested=arm.mapping("requested"),
                effective=arm.mapping("effective"),
                fingerprint=arm.digest("fingerprint"),
            )
            for arm in event.parts("arms")
        ),
        synthetic="synthetic" in event.body and event.flag("synthetic"),
    )


def loaded(event: Event) -> record.Loaded:
    """The ``loaded`` event."""
    return record.Loaded(
        load_ns=event.integer("load_ns"),
        weights_bytes=event.integer("weights_bytes"),
        tensors=event.integer("tensors"),
        line=event.line,
    )


def control(event: Event) -> record.Control:
    """One ``control`` event."""
    return record.Control(
        arm=event.text("arm"),
        prompt=event.text("prompt"),
        token=event.integer("token"),
        finite=event.flag("finite"),
        passed=event.flag("pass"),
        line=event.line,
    )


def _excluded(event: Event) -> str | None:
    return None if event.body.get("excluded") is None else event.one_of("excluded", EXCLUSIONS)


def plain(event: Event) -> record.Plain:
    """One ``plain`` event."""
    return record.Plain(
        arm=event.text("arm"),
        prompt=event.text("prompt"),
        category=event.text("category"),
        prompt_tokens=event.integer("prompt_tokens", least=1),
        tokens=event.integer("tokens"),
        forwards=event.integer("forwards"),
        prefill_ns=event.integer("prefill_ns"),
        ttft_ns=event.integer("ttft_ns"),
        decode_ns=event.integer("decode_ns"),
        tokens_sha256=event.digest("tokens_sha256"),
        stop=event.one_of("stop", STOPS),
        distinct_4gram=event.number("distinct_4gram"),
        counted=event.flag("counted"),
        excluded=_excluded(event),
        finite=event.flag("finite"),
        line=event.line,
    )


def point(event: Event) -> record.Point:
    """One ``point`` event."""
    return record.Point(
        arm=event.text("arm"),
        prompt=event.text("prompt"),
        category=event.text("category"),
        repeat=event.integer("repeat"),
        prompt_tokens=event.integer("prompt_tokens", least=1),
        tokens=event.integer("tokens"),
        rounds=event.integer("rounds"),
        forwards=event.integer("forwards"),
        prefill_ns=event.integer("prefill_ns"),
        ttft_ns=event.integer("ttft_ns"),
        decode_ns=event.integer("decode_ns"),
        accepted_by_position=event.integers("accepted_by_position"),
        offered_by_position=event.integers("offered_by_position"),
        max_committed=event.integer("max_committed"),
        width=event.integer("width"),
        tokens_sha256=event.digest("tokens_sha256"),
        stop=event.one_of("stop", STOPS),
        counted=event.flag("counted"),
        excluded=_excluded(event),
        finite=event.flag("finite"),
        line=event.line,
    )


def _token(event: Event, field: str) -> int:
    """A token id; -1 where one of the two sequences has ended already."""
    value = event.maybe_integer(field)
    return -1 if value is None else value


def gate(event: Event) -> record.Gate:
    """One ``gate`` event."""
    diff = event.maybe_part("first_diff")
    return record.Gate(
        kind=event.text("kind"),
        arm=event.text("arm"),
        prompt=event.text("prompt"),
        repeat=event.integer("repeat"),
        compared=event.integer("compared"),
        passed=event.flag("pass"),
        first_diff=None
        if diff is None
        else record.FirstDiff(
            index=diff.integer("index"),
            plain=_token(diff, "plain"),
            spec=_token(diff, "spec"),
        ),
        line=event.line,
    )


def step_cost(event: Event) -> record.StepCost:
    """One ``step_cost`` event."""
    return record.StepCost(
        arm=event.text("arm"),
        width=event.integer("width", least=1),
        ns=event.integer("ns"),
        line=event.line,
    )
