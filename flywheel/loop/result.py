"""Why something that a block needs could not be made."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a head or a patch could not be made: a code for the void block, and a sentence."""

    code: str
    detail: str
