"""Text from elsewhere made safe to print: what would steer the terminal is spelled out. Pure.

Names, reasons and log lines come from engines, files and people; an escape sequence in one of them
could retitle the window, hide a line or turn the reading order round.
"""

from __future__ import annotations

import re

# C0 and C1 controls without the line feed, line and paragraph separators, changes of direction,
# and halves of pairs that no encoding has a form for.
_STEERS = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def plain(text: str) -> str:
    r"""The text with every character that steers spelled out, such as ``\x1b``; else unchanged."""
    return _STEERS.sub(lambda found: ascii(found[0])[1:-1], text)
