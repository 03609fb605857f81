"""`--since`: a moment, in words that a person types in the morning. Pure."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from flywheel.box.clock import utc_text
from flywheel.errors import UsageError

_SPAN = re.compile(r"^(\d+(?:\.\d+)?)\s*(min|m|h|d|w)$")
_UNITS = {"m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_FORMS = "8h, 2d, 30min, today, yesterday, or a time such as 2026-11-28T22:00"


def moment(text: str, now: datetime) -> str:
    """The UTC time that `text` names, seen from `now` (timezone aware). UsageError when none.

    A time without a zone is meant in the zone of `now`; `yesterday` begins at its midnight.
    """
    word = text.strip().lower()
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    days = {"today": 0, "yesterday": 1}
    if word in days:
        return utc_text(midnight - timedelta(days=days[word]))
    try:
        if match := _SPAN.match(word):
            return utc_text(now - timedelta(seconds=float(match[1]) * _UNITS[match[2]]))
        found = datetime.fromisoformat(text.strip())
        return utc_text(found if found.tzinfo else found.replace(tzinfo=now.tzinfo))
    except (ValueError, OverflowError):
        raise UsageError(f"--since wants {_FORMS}; not {text!r}.") from None
