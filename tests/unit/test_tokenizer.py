"""The tokenizer: control tokens only by id, text that survives, streams that never break UTF-8."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from engine.errors import TokenizerError
from engine.tokenizer import CONTROL_TOKENS, EOS, NOISE, THINK, Tokenizer

TINY = Path(__file__).parents[2] / "engine" / "assets" / "tiny-v4"
TOKENIZER = Tokenizer.load(TINY)
SAMPLE = "Zürich → 東京, 12345 naïve 👩‍🚀 cafés;\n\n    return x  # ½ done\r\n"


def test_control_tokens_have_the_ids_of_their_places() -> None:
    assert TOKENIZER.vocab_size == 4096
    assert [TOKENIZER.control_id(t) for t in CONTROL_TOKENS] == list(range(len(CONTROL_TOKENS)))
    assert (TOKENIZER.bos_id, TOKENIZER.eos_id) == (0, 1)


@given(st.text())
def test_any_text_comes_back_whole(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


@pytest.mark.parametrize("token", CONTROL_TOKENS)
def test_text_never_becomes_a_control_token(token: str) -> None:
    ids = TOKENIZER.encode(f"a{token}b {token}")
    assert min(ids) >= len(CONTROL_TOKENS)
    assert TOKENIZER.decode(ids) == f"a{token}b {token}"


def test_trusted_text_becomes_control_tokens_when_asked() -> None:
    ids = TOKENIZER.encode(f"{THINK}so{EOS}", special=True)
    assert ids[0] == TOKENIZER.control_id(THINK)
    assert ids[-1] == TOKENIZER.eos_id


def test_decoding_drops_what_is_not_part_of_a_reply() -> None:
    ids = TOKENIZER.encode(f"{THINK}so{EOS}{NOISE}", special=True)
    assert TOKENIZER.decode(ids) == f"{THINK}so"
    assert TOKENIZER.decode(ids, keep_special=True) == f"{THINK}so{EOS}{NOISE}"


def test_digits_come_in_runs_of_at_most_three() -> None:
    pieces = [TOKENIZER.token_bytes(i) for i in TOKENIZER.encode("1234567")]
    assert b"".join(pieces) == b"1234567"
    assert max(map(len, pieces)) <= 3


def test_every_token_has_bytes_and_no_two_share_them() -> None:
    table = [TOKENIZER.token_bytes(i) for i in range(TOKENIZER.vocab_size)]
    assert all(table)
    assert len(set(table)) == len(table)


def _byte_ids(text: str) -> list[int]:
    """One id per byte: the finest split of characters that a model could produce."""
    single = {TOKENIZER.token_bytes(i): i for i in range(len(CONTROL_TOKENS), 4096)}
    return [single[bytes([b])] for b in text.encode("utf-8")]


def test_stream_never_breaks_a_character_at_any_cut() -> None:
    ids = _byte_ids(SAMPLE)
    for cut in range(len(ids) + 1):
        decoder = TOKENIZER.decoder()
        first, second = decoder.feed(ids[:cut]), decoder.feed(ids[cut:])
        assert "\ufffd" not in first + second
        assert SAMPLE.startswith(first)
        assert first + second + decoder.flush() == SAMPLE


def test_stream_of_single_tokens_equals_decode() -> None:
    for ids in (TOKENIZER.encode(SAMPLE), _byte_ids(SAMPLE)):
        decoder = TOKENIZER.decoder()
        assert "".join(decoder.feed([i]) for i in ids) + decoder.flush() == TOKENIZER.decode(ids)


@given(st.lists(st.integers(0, 4095)))
def test_stream_equals_decode_for_any_ids(ids: list[int]) -> None:
    decoder = TOKENIZER.decoder(keep_special=True)
    streamed = "".join(decoder.feed([i]) for i in ids) + decoder.flush()
    assert streamed == TOKENIZER.decode(ids, keep_special=True)


def test_cut_character_is_marked_and_the_decoder_starts_afresh() -> None:
    decoder = TOKENIZER.decoder()
    assert decoder.feed(_byte_ids("é")[:1]) == ""
    assert decoder.flush() == "\ufffd"
    assert decoder.feed(_byte_ids("é")) == "é"


def test_unknown_ids_and_files_are_refused_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="outside the vocabulary"):
        TOKENIZER.decode([4096])
    with pytest.raises(TokenizerError, match="Cannot read"):
        Tokenizer.load(tmp_path / "none")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(TokenizerError, match="not usable"):
        Tokenizer.load(tmp_path)


def test_tokenizer_without_bos_is_refused() -> None:
    spec = json.loads((TINY / "tokenizer.json").read_text(encoding="utf-8"))
    spec["added_tokens"] = [t for t in spec["added_tokens"] if t["id"] != 0]
    with pytest.raises(TokenizerError, match="no control token"):
        Tokenizer(spec)
