"""Stop strings: nothing leaks, nothing is lost, and no cut of the text changes the result."""

from __future__ import annotations

import codecs
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, settings, strategies as st

from engine.errors import PromptError
from engine.stops import Delta, StopScanner, TextStream, deltas


class Bytes:
    """A decoder whose token ids are bytes."""

    def __init__(self) -> None:
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, ids: Iterable[int], /) -> str:
        return self._utf8.decode(bytes(ids))

    def flush(self) -> str:
        return self._utf8.decode(b"", final=True)


@dataclass(frozen=True)
class Step:
    tokens: tuple[int, ...]
    finish: str | None = None


def expected(text: str, stops: Sequence[str]) -> tuple[str, str | None]:
    """The definition: the shortest beginning that ends with a stop string, without it."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            stop = max(found, key=len)
            return text[: end - len(stop)], stop
    return text, None


def compositions(length: int) -> Iterator[list[int]]:
    """Every way to cut `length` characters into runs."""
    for cuts in itertools.product((False, True), repeat=max(length - 1, 0)):
        edges = [0, *(i + 1 for i, cut in enumerate(cuts) if cut), length]
        yield [b - a for a, b in itertools.pairwise(edges)]


def scan(pieces: Iterable[str], stops: Sequence[str]) -> tuple[list[str], str | None]:
    scanner = StopScanner(stops)
    shown = [scanner.feed(piece) for piece in pieces]
    return [*shown, scanner.flush()], scanner.stop


@pytest.mark.parametrize(
    ("text", "stops"),
    [
        ("say STOP now", ["STOP"]),
        ("STSTOPSTOP", ["STOP"]),
        ("aaaaab", ["aab"]),
        ("abcabcabd", ["abcabd"]),
        ("abcd", ["abcd", "bc"]),
        ("xabc", ["abc", "c", "bc"]),
        ("no end her", ["here", "ere", "re"]),
        ("ends\n\nUser:", ["\n\nUser:", "\n\n\n"]),
        ("", ["x"]),
    ],
)
def test_every_split_of_a_text_shows_the_same(text: str, stops: list[str]) -> None:
    for runs in compositions(len(text)):
        edges = [0, *itertools.accumulate(runs)]
        shown, stop = scan((text[a:b] for a, b in itertools.pairwise(edges)), stops)
        assert ("".join(shown), stop) == expected(text, stops)


words = st.text(alphabet="ab\n", min_size=1, max_size=4)


@given(st.text(alphabet="ab\n", max_size=30), st.lists(words, max_size=4), st.data())
def test_any_split_agrees_with_the_definition(
    text: str, stops: list[str], data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)))))
    edges = [0, *cuts, len(text)]
    shown, stop = scan((text[a:b] for a, b in itertools.pairwise(edges)), stops)
    assert ("".join(shown), stop) == expected(text, stops)


@given(text=st.text(alphabet="ab", max_size=20), stops=st.lists(words, min_size=1, max_size=3))
def test_no_more_is_held_back_than_may_become_a_stop(text: str, stops: list[str]) -> None:
    scanner = StopScanner(stops)
    shown = scanner.feed(text)
    if scanner.stop is None:
        held = text[len(shown) :]
        assert not held or any(stop.startswith(held) for stop in stops)
        for start in range(len(shown)):  # what was shown could not have become one any more
            assert not any(stop.startswith(text[start:]) for stop in stops)


@settings(max_examples=200)
@given(
    text=st.text(alphabet="aé語🙂", max_size=10),
    stops=st.lists(st.text(alphabet="aé語🙂", min_size=1, max_size=3), max_size=3),
    data=st.data(),
)
def test_any_block_size_shows_whole_characters_and_the_same_text(
    text: str, stops: list[str], data: st.DataObject
) -> None:
    raw = text.encode()
    cuts = sorted(data.draw(st.sets(st.integers(0, len(raw)))))
    edges = [0, *cuts, len(raw)]
    stream, got = TextStream(Bytes(), stops), list[Delta]()
    for a, b in itertools.pairwise(edges):
        got.append(stream.feed(raw[a:b]))
        if got[-1].finish:
            break
    else:
        got.append(stream.feed((), "length"))
    want, stop = expected(text, stops)
    assert "".join(d.text for d in got) == want
    assert (got[-1].stop, got[-1].finish) == (stop, "stop" if stop else "length")
    kept = bytes(t for d in got for t in d.tokens)
    assert kept == (want + (stop or "")).encode()


def test_tokens_after_a_stop_inside_a_block_are_dropped() -> None:
    delta = TextStream(Bytes(), ["END"]).feed(b"one END two", "length")
    assert delta == Delta("one ", tuple(b"one END"), "stop", "END")


def test_a_stop_wins_over_the_limit_reached_in_the_same_block() -> None:
    assert TextStream(Bytes(), ["."]).feed(b"done.", "length").finish == "stop"


def test_half_a_stop_at_the_end_is_text_after_all() -> None:
    stream = TextStream(Bytes(), ["END"])
    assert stream.feed(b"the EN").text == "the "
    assert stream.feed(b"", "length") == Delta("EN", (), "length")


def test_a_character_cut_by_the_limit_becomes_one_replacement() -> None:
    stream = TextStream(Bytes())
    assert stream.feed("語".encode()[:2]).text == ""
    assert stream.feed((), "length").text == "�"


def test_nothing_is_asked_of_the_engine_after_a_stop() -> None:
    asked: list[int] = []

    def commits() -> Iterator[Step]:
        for i in range(10):
            asked.append(i)
            yield Step(tuple(b"ab"), "length" if i == 9 else None)

    got = list(deltas(commits(), Bytes(), ["ba"]))
    assert asked == [0, 1]
    assert "".join(d.text for d in got) == "a"
    assert [t for d in got for t in d.tokens] == list(b"aba")


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(PromptError, match="must not be empty"):
        StopScanner(["x", ""])
