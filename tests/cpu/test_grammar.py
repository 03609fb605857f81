"""Grammars: whatever is drawn under one parses, and speculation does not show in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from engine import chat
from engine.chat import parse_reply
from engine.config import EngineConfig
from engine.engine import Engine
from engine.errors import PromptError
from engine.grammar import Grammars
from engine.sampling import Sampler, Sampling
from engine.tokenizer import DSML, EOS, THINK_END, Tokenizer

ASSETS = Path(__file__).parents[2] / "engine" / "assets" / "tiny-v4"
TOKENIZER = Tokenizer.load(ASSETS)
GRAMMARS = Grammars(ASSETS, TOKENIZER, TOKENIZER.vocab_size)
LEVEL: dict[str, Any] = {"enum": [1, 2.5, None, "x"]}
TOOLS: list[dict[str, Any]] = [
    {
        "name": "set_level",
        "parameters": {
            "properties": {
                "level": LEVEL,
                "unit": {"enum": ["m", "</b>", 'a"\n']},
                "deep": {"$ref": "#/$defs/pair"},
            },
            "required": ["level"],
            "$defs": {
                "pair": {
                    "type": "array",
                    "items": {"type": "boolean"},
                    "minItems": 2,
                    "maxItems": 2,
                }
            },
        },
    },
    {"name": "stop"},
]
SAY: dict[str, Any] = {
    "name": "say",
    "parameters": {"properties": {"text": {"type": "string"}}, "required": ["text"]},
}


def drawn(grammar: str, seed: int, limit: int = 300) -> str:
    """A reply drawn from uniform noise under a grammar, up to its end."""
    sampler = Sampler(
        Sampling(temperature=1.0, seed=seed, constrain=lambda: GRAMMARS.constraint(grammar))
    )
    ids: list[int] = []
    while not ids or ids[-1] != TOKENIZER.eos_id:
        assert len(ids) < limit
        ids.append(sampler.choose(torch.zeros(TOKENIZER.vocab_size), len(ids)))
    return TOKENIZER.decode(ids[:-1], keep_special=True)


@pytest.mark.parametrize("several", [False, True])
def test_drawn_calls_parse_and_fit_their_schemas(several: bool) -> None:
    grammar = GRAMMARS.calls(TOOLS, several=several)
    counts, seen = set(), set()
    for seed in range(25):
        reply = parse_reply(drawn(grammar, seed, 3000), thinking=False)
        assert reply.content == ""
        counts.add(len(reply.tool_calls))
        for call in reply.tool_calls:
            arguments = json.loads(call.arguments)
            seen |= {call.name, *arguments}
            if call.name == "stop":
                assert arguments == {}
                continue
            assert arguments["level"] in LEVEL["enum"]
            assert arguments.get("unit", "m") in ("m", "</b>", 'a"\n')
            assert len(arguments.get("deep", [True, False])) == 2
    assert seen == {"set_level", "stop", "level", "unit", "deep"}
    assert (counts == {1}) is not several


@pytest.mark.parametrize("text", ["", "plain", "<b>x</b>\n</", "Köln 🙂", "a\n\n</invoke>"])
def test_text_arguments_may_hold_anything_else(text: str) -> None:
    reply = (
        f'\n\n<{DSML}tool_calls>\n<{DSML}invoke name="say">\n'
        f'<{DSML}parameter name="text" string="true">{text}</{DSML}parameter>\n'
        f"</{DSML}invoke>\n</{DSML}tool_calls>{EOS}"
    )
    constraint = GRAMMARS.constraint(GRAMMARS.calls([SAY], several=False))
    for token in TOKENIZER.encode(reply, special=True):
        assert torch.isfinite(constraint.mask(torch.zeros(TOKENIZER.vocab_size))[token])
        constraint.advance(token)
    assert json.loads(parse_reply(reply).tool_calls[0].arguments) == {"text": text}


def test_the_grammar_begins_after_the_thinking() -> None:
    end = TOKENIZER.control_id(THINK_END)
    constraint = GRAMMARS.constraint(GRAMMARS.json({"const": 7}), after=end)
    logits = torch.zeros(TOKENIZER.vocab_size)
    for token in TOKENIZER.encode("{ Let me"):
        forbidden = constraint.mask(logits).isinf().nonzero().flatten()
        assert forbidden.tolist() == [TOKENIZER.eos_id]  # or the promised form would never come
        constraint.advance(token)
    constraint.advance(end)
    assert int(constraint.mask(logits).argmax()) == TOKENIZER.encode("7")[0]


def test_after_the_last_token_only_the_end_is_left() -> None:
    constraint = GRAMMARS.constraint(GRAMMARS.json({"const": 7}))
    constraint.advance(TOKENIZER.encode("7")[0])
    allowed = constraint.mask(torch.zeros(TOKENIZER.vocab_size)).isfinite().nonzero().flatten()
    assert allowed.tolist() == [TOKENIZER.eos_id]


def test_a_schema_that_cannot_be_enforced_is_refused() -> None:
    with pytest.raises(PromptError, match="cannot be enforced"):
        GRAMMARS.json({"type": "moon"})


@pytest.mark.skipif(not (ASSETS / "model.safetensors").exists(), reason="no embedded weights")
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_speculation_does_not_show_under_a_grammar(temperature: float) -> None:
    engine = Engine.load(ASSETS, EngineConfig(threads=1))
    grammar = GRAMMARS.calls([*TOOLS, SAY], several=True)
    end = TOKENIZER.control_id(THINK_END)
    prompt = chat.encode(TOKENIZER, [{"role": "user", "content": "Hello."}], thinking=True)
    sampling = Sampling(
        temperature=temperature,
        seed=3,
        logit_bias=((end, 6.0),),
        constrain=lambda: GRAMMARS.constraint(grammar, after=end),
    )
    fast, slow = (
        list(engine.generate(prompt, max_new_tokens=90, sampling=sampling, speculative=speculative))
        for speculative in (True, False)
    )
    told = [t for c in fast for t in c.tokens]
    assert told == [t for c in slow for t in c.tokens]
    assert end in told
    assert len(fast) < 0.6 * len(slow)  # drafts know the grammar too
