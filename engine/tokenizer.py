"""Text to token ids and back, for checkpoints with a byte-level BPE ``tokenizer.json``.

Two encoders share one vocabulary: the plain one has no added tokens at all, so that text from a
user can spell a control token without ever becoming one; control tokens enter only by id.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from engine.errors import TokenizerError

BOS = "<｜begin▁of▁sentence｜>"
EOS = "<｜end▁of▁sentence｜>"
PAD = "<｜▁pad▁｜>"
USER = "<｜User｜>"
ASSISTANT = "<｜Assistant｜>"
THINK = "<think>"
THINK_END = "</think>"
DSML = "｜DSML｜"
REMINDER = "<｜latest_reminder｜>"
NOISE = "<｜noise｜>"

# Order is identity: a token's place here is its id in the project's own vocabulary.
CONTROL_TOKENS: tuple[str, ...] = (
    BOS, EOS, PAD, USER, ASSISTANT, THINK, THINK_END, DSML, REMINDER, NOISE,
)  # fmt: skip
# Tokens that belong to the visible reply, so that dropping special tokens keeps them.
VISIBLE_CONTROL_TOKENS = frozenset({THINK, THINK_END, DSML})


class StreamDecoder:
    """Ids in, text out, holding back bytes until they form whole characters."""

    def __init__(self, table: Sequence[bytes]) -> None:
        self._table = table
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, ids: Iterable[int]) -> str:
        """Return the text that became complete with ``ids``; may be empty."""
        return self._utf8.decode(b"".join(_lookup(self._table, i) for i in ids))

    def flush(self) -> str:
        """Return what is left; a cut character becomes U+FFFD. The decoder starts afresh."""
        text = self._utf8.decode(b"", final=True)
        self._utf8.reset()
        return text


class Tokenizer:
    """One checkpoint's vocabulary. Immutable after loading and safe to share between threads."""

    def __init__(self, spec: dict[str, Any]) -> None:
        try:
            self._special = tokenizers.Tokenizer.from_str(json.dumps(spec))
            self._plain = tokenizers.Tokenizer.from_str(json.dumps({**spec, "added_tokens": []}))
        except Exception as error:  # the library raises bare Exception for any malformed file
            raise TokenizerError(f"The tokenizer file is not usable: {error}.") from error
        added = {int(t["id"]): t for t in spec.get("added_tokens", [])}
        self._ids: dict[str, int] = {t["content"]: i for i, t in added.items()}
        self.bos_id = self.control_id(BOS)
        self.eos_id = self.control_id(EOS)
        self._hidden = frozenset(i for i, t in added.items() if t.get("special"))
        self.vocab_size: int = self._special.get_vocab_size(with_added_tokens=True)
        self._bytes = _byte_table(self._special, self.vocab_size, added)
        self._reply_bytes = [
            b"" if i in self._hidden else piece for i, piece in enumerate(self._bytes)
        ]

    @classmethod
    def load(cls, directory: str | Path) -> Tokenizer:
        """Read ``tokenizer.json`` from a checkpoint folder (or that very file)."""
        path = Path(directory)
        path = path / "tokenizer.json" if path.is_dir() else path
        try:
            spec = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise TokenizerError(f"Cannot read the tokenizer at {path}: {error}.") from error
        return cls(spec)

    def control_id(self, token: str) -> int:
        """Id of a control token by its exact spelling; TokenizerError if there is none."""
        try:
            return self._ids[token]
        except KeyError:
            raise TokenizerError(f"The tokenizer has no control token {token}.") from None

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Token ids of ``text``, without BOS.

        With ``special`` the spelling of a control token becomes that token: only for text that
        this program wrote itself. The default never yields a control token.
        """
        encoder = self._special if special else self._plain
        ids: list[int] = encoder.encode(text, add_special_tokens=False).ids
        return ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """``encode`` of many texts at once, in order."""
        return [e.ids for e in self._plain.encode_batch(list(texts), add_special_tokens=False)]

    def decode(self, ids: Iterable[int], *, keep_special: bool = False) -> str:
        """Text of ``ids``; control tokens that are not part of a reply are dropped by default."""
        table = self._bytes if keep_special else self._reply_bytes
        return b"".join(_lookup(table, i) for i in ids).decode("utf-8", errors="replace")

    def decoder(self, *, keep_special: bool = False) -> StreamDecoder:
        """A fresh streaming decoder; its pieces join to exactly ``decode`` of all ids."""
        return StreamDecoder(self._bytes if keep_special else self._reply_bytes)

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes that one id stands for (control tokens: their spelling)."""
        return _lookup(self._bytes, token_id)


def _lookup(table: Sequence[bytes], token_id: int) -> bytes:
    if not 0 <= token_id < len(table):
        raise TokenizerError(f"Token id {token_id} is outside the vocabulary of {len(table)}.")
    return table[token_id]


def _byte_table(encoder: Any, size: int, added: dict[int, dict[str, Any]]) -> list[bytes]:
    """Bytes of every id. Ids that the vocabulary skips stay empty."""
    to_byte = {char: byte for byte, char in enumerate(byte_level_alphabet())}
    table = [b""] * max(size, 1 + max(added, default=0))
    for token, token_id in encoder.get_vocab(with_added_tokens=True).items():
        if token_id in added:
            table[token_id] = token.encode("utf-8")
        else:
            if not all(char in to_byte for char in token):
                raise TokenizerError(f"The vocabulary entry {token!r} is not byte-level text.")
            table[token_id] = bytes(to_byte[char] for char in token)
    return table


def byte_level_alphabet() -> list[str]:
    """The printable stand-in of each byte, in byte order.

    Printable Latin-1 bytes stand for themselves, the other 68 are numbered from U+0100 upwards:
    the convention of every byte-level BPE file.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(spare)) for byte in range(256)]
