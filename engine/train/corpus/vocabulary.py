"""Training of the project's own vocabulary: 4096 tokens, the family's control tokens first."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from engine.tokenizer import (
    BOS,
    CONTROL_TOKENS,
    EOS,
    PAD,
    VISIBLE_CONTROL_TOKENS,
    byte_level_alphabet,
)

VOCAB_SIZE = 4096
# Digits in runs of at most three; words with one leading space; punctuation runs; whitespace.
_WORDS = r" ?\p{L}[\p{L}\p{M}]*| ?[^\s\p{L}\p{N}]+|\s*[\r\n]+|\s+(?!\S)|\s+"


def train(texts: Iterable[str], directory: Path) -> None:
    """Learn merges from ``texts`` and write tokenizer.json and tokenizer_config.json."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(r"\p{N}{1,3}"), "isolated"),
            pre_tokenizers.Split(tokenizers.Regex(_WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[
            tokenizers.AddedToken(t, special=t not in VISIBLE_CONTROL_TOKENS, normalized=False)
            for t in CONTROL_TOKENS
        ],
        initial_alphabet=byte_level_alphabet(),
        max_token_length=24,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    spec = json.loads(tokenizer.to_str())
    for token in spec["added_tokens"]:
        token["special"] = token["content"] not in VISIBLE_CONTROL_TOKENS
    directory.mkdir(parents=True, exist_ok=True)
    text = json.dumps(spec, ensure_ascii=False, indent=1)
    (directory / "tokenizer.json").write_text(text + "\n", encoding="utf-8")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": False,
        "add_eos_token": False,
        "bos_token": BOS,
        "eos_token": EOS,
        "pad_token": PAD,
        "model_max_length": 2048,
        "clean_up_tokenization_spaces": False,
    }
    text = json.dumps(config, ensure_ascii=False, indent=1)
    (directory / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")
