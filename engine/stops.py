"""Stop strings and whole characters: committed tokens in, text that is safe to show out.

Text is scanned character by character, so the result cannot depend on how a reply was cut into
tokens, blocks or chunks. What could still grow into a stop string is held back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.errors import PromptError


class Decoder(Protocol):
    """Ids in, whole characters out: what `Tokenizer.decoder()` returns."""

    def feed(self, ids: Iterable[int], /) -> str:
        """Text that became complete with `ids`."""

    def flush(self) -> str:
        """What is left; a cut character becomes U+FFFD."""


class Commits(Protocol):
    """The part of a commit that matters here."""

    @property
    def tokens(self) -> tuple[int, ...]:
        """Tokens made final together."""

    @property
    def finish(self) -> str | None:
        """ "stop" or "length" on the last commit."""


@dataclass(frozen=True, slots=True)
class Delta:
    """New text, and the tokens that count: none after the one that completed a stop string."""

    text: str
    tokens: tuple[int, ...]
    finish: str | None = None  # "stop" | "length" on the last delta
    stop: str | None = None  # the stop string that ended the reply


class _Matcher:
    """How much of one pattern the text so far ends with (Knuth, Morris and Pratt)."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.matched = 0
        self._fallback = _borders(pattern)

    def advance(self, character: str) -> int:
        """Length of the longest prefix of the pattern that now ends the text."""
        matched = self.matched
        while matched and self.pattern[matched] != character:
            matched = self._fallback[matched - 1]
        self.matched = matched + (self.pattern[matched] == character)
        return self.matched


def _borders(pattern: str) -> list[int]:
    """For every prefix, the length of its longest proper prefix that is also its suffix."""
    table = [0] * len(pattern)
    for end in range(1, len(pattern)):
        length = table[end - 1]
        while length and pattern[length] != pattern[end]:
            length = table[length - 1]
        table[end] = length + (pattern[length] == pattern[end])
    return table


class StopScanner:
    """Holds back what may become a stop string; ends at the first one that is complete.

    Of several that complete on the same character the longest counts.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if not all(stops):
            raise PromptError("A stop string must not be empty.")
        self._matchers = [_Matcher(stop) for stop in dict.fromkeys(stops)]
        self._held = ""
        self.stop: str | None = None
        self.rest = ""  # what came after the stop string in the same piece of text

    def feed(self, text: str) -> str:
        """The text that can be shown now; nothing once a stop string was found."""
        if self.stop is not None:
            return ""
        if not self._matchers:
            return text
        buffer = self._held + text
        for index in range(len(self._held), len(buffer)):
            if found := self._step(buffer[index]):
                self.stop, self._held, self.rest = found, "", buffer[index + 1 :]
                return buffer[: index + 1 - len(found)]
        self._held = buffer[len(buffer) - max(m.matched for m in self._matchers) :]
        return buffer[: len(buffer) - len(self._held)]

    def flush(self) -> str:
        """The text still held when a reply ends by itself: it never became a stop string."""
        held, self._held = self._held, ""
        return held

    def _step(self, character: str) -> str | None:
        found = [m.pattern for m in self._matchers if m.advance(character) == len(m.pattern)]
        return max(found, key=len, default=None)


class TextStream:
    """One reply on its way from commits to text."""

    def __init__(self, decoder: Decoder, stops: Sequence[str] = ()) -> None:
        self._decoder = decoder
        self._scanner = StopScanner(stops)

    def feed(self, tokens: Sequence[int], finish: str | None = None) -> Delta:
        """Text of newly committed `tokens`; `finish` says why the engine ends, if it does.

        A stop string wins over the engine's own reason: whatever follows it never happened.
        """
        text: list[str] = []
        for count, token in enumerate(tokens, 1):
            text.append(self._scanner.feed(self._decoder.feed((token,))))
            if self._scanner.stop is not None:
                return self._stopped(text, tokens[:count])
        if finish is not None:
            text.append(self._scanner.feed(self._decoder.flush()))
            if self._scanner.stop is not None:
                return self._stopped(text, tokens)
            text.append(self._scanner.flush())
        return Delta("".join(text), tuple(tokens), finish)

    def _stopped(self, text: list[str], tokens: Sequence[int]) -> Delta:
        return Delta("".join(text), tuple(tokens), "stop", self._scanner.stop)


def deltas(
    commits: Iterable[Commits], decoder: Decoder, stops: Sequence[str] = ()
) -> Iterator[Delta]:
    """The deltas of a whole generation, up to the first that finishes.

    The caller closes `commits`, which is what ends the engine's work after a stop string.
    """
    stream = TextStream(decoder, stops)
    for commit in commits:
        delta = stream.feed(commit.tokens, commit.finish)
        yield delta
        if delta.finish is not None:
            return
