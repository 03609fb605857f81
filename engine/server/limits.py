"""What a client may send, and how long everything may take."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds that hold for every request."""

    body_bytes: int = 16 << 20
    body_s: float = 30.0  # until a request has arrived
    write_s: float = 60.0  # until a client has taken what was sent
    answer_s: float = 3600.0  # until an answer is complete
    ping_s: float = 10.0  # of silence, after which a stream shows that it is alive
