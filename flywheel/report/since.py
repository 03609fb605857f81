"""`--since`: a moment, in words that a person types in the morning. Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from flywheel.box.clock import utc_text
from flywheel.errors import UsageError

_SPAN = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\s*(min|m|h|d|w)")
_UNITS = {"m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_DAYS = {"today": 0, "yesterday": 1}
# Times are compared as text, whose years have four digits.
_EARLIEST = 1970
_FORMS = "8h, 2d, 30min, today, yesterday, or a time such as 2026-11-28T22:00"


def moment(text: str, now: datetime) -> str:
    """The UTC time that `text` names, seen from `now` (timezone aware).

    A time without a zone is meant in the zone of `now`; `yesterday` begins at its midnight.
    UsageError where it names none. One that is still to come is an empty period: the clock that
    dated the runs may have been ahead of this one.
    """
    try:
        found = _named(text.strip(), now).astimezone(UTC)
    except (ValueError, OverflowError):
        raise UsageError(f"--since wants {_FORMS}; not {_short(text)}.") from None
    if found.year < _EARLIEST:
        raise UsageError(f"--since {_short(text)} lies before {_EARLIEST}, when nothing was run.")
    return utc_text(found)


def _named(text: str, now: datetime) -> datetime:
    """ValueError or OverflowError when it names none."""
    word = text.lower()
    if word in _DAYS:
        midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
        return midnight - timedelta(days=_DAYS[word])
    if match := _SPAN.fullmatch(word):
        return now - timedelta(seconds=float(match[1]) * _UNITS[match[2]])
    found = datetime.fromisoformat(text)
    return found if found.tzinfo else found.replace(tzinfo=now.tzinfo)


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}...")
