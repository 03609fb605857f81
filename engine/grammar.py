"""Replies that must have a form: JSON of a schema, or calls of certain tools.

A grammar masks the target's choice at one position after the other. Tokens are chosen in order and
every chosen token is final, so nothing is ever taken back, however many drafts a round verifies.
Drafts are proposed under a copy that goes ahead and is dropped.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import llguidance
import numpy
import torch
from torch import Tensor

from engine.errors import EngineError, PromptError
from engine.tokenizer import DSML, Tokenizer

# JSON as Python writes it and as the prompt format shows it; free blanks would let a model dawdle.
_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


class Constraint:
    """Follows one reply; before the token `after`, if there is one, it may only not end."""

    def __init__(self, matcher: llguidance.LLMatcher, eos: int, after: int | None) -> None:
        self._matcher = matcher
        self._eos = eos
        self._after = after

    def mask(self, logits: Tensor) -> Tensor:
        """`logits` [vocab] with -inf wherever the next token may not be."""
        if self._after is not None:
            open_ended = logits.clone()
            open_ended[self._eos] = -torch.inf
            return open_ended
        if self._matcher.is_stopped():
            allowed = torch.zeros(logits.shape, dtype=torch.bool)
            allowed[self._eos] = True
        else:
            bits = numpy.frombuffer(self._matcher.compute_bitmask(), dtype=numpy.uint8)
            allowed = torch.from_numpy(numpy.unpackbits(bits, bitorder="little")).bool()
        return logits.masked_fill(~allowed[: logits.shape[0]], -torch.inf)

    def advance(self, token: int) -> None:
        """Take up the chosen token."""
        if self._after is not None:
            self._after = None if token == self._after else self._after
            return
        if self._matcher.is_stopped() or self._matcher.consume_token(token):
            return
        raise EngineError(f"The reply left its grammar: {self._matcher.get_error()}.")

    def fork(self) -> Constraint:
        """A copy that goes its own way from here."""
        return Constraint(self._matcher.deep_copy(), self._eos, self._after)


class Grammars:
    """Compiles grammars for one vocabulary."""

    def __init__(self, folder: Path, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._eos = tokenizer.eos_id
        self._dsml = f"<[{tokenizer.control_id(DSML)}]>"
        text = (folder / "tokenizer.json").read_text(encoding="utf-8")
        self._tokenizer = llguidance.LLTokenizer(text, n_vocab=vocab_size, eos_token=self._eos)

    def constraint(self, grammar: str, after: int | None = None) -> Constraint:
        """A fresh constraint by a grammar of this class, from the token `after` on."""
        matcher = llguidance.LLMatcher(self._tokenizer, _compiled(grammar))
        return Constraint(matcher, self._eos, after)

    def json(self, schema: Mapping[str, Any]) -> str:
        """One JSON value of `schema`; PromptError for a schema that cannot be enforced."""
        return self._checked(f"start: value\nvalue: %json {_styled(schema)}\n")

    def calls(self, tools: Sequence[Mapping[str, Any]], *, several: bool) -> str:
        """A block of calls of `tools` (their `function` objects): one, or one and more.

        Arguments that are text may hold anything but a closing tag of the block's own.
        """
        tag = f'"<" {self._dsml} '
        end = f'"</" {self._dsml} '
        rules = [
            f'start: "\\n\\n<" {self._dsml} "tool_calls>\\n" call{"+" if several else ""} '
            f'{end}"tool_calls>"',
            f"call: {' | '.join(f'call_{i}' for i in range(len(tools)))}",
            "TEXT: /(?s:.*)<\\//",
        ]
        for i, tool in enumerate(tools):
            named = _quoted(f'invoke name="{tool["name"]}">\n')
            arguments = list(self._arguments(f"p_{i}", tool.get("parameters") or {}, rules))
            rules.append(f'call_{i}: {tag}{named} {" ".join(arguments)} {end}"invoke>\\n"')
        return self._checked("\n".join(rules) + "\n")

    def _arguments(self, prefix: str, schema: Mapping[str, Any], rules: list[str]) -> Iterator[str]:
        """References to the rules of a schema's properties, in its order."""
        required = schema.get("required") or []
        shared = {k: schema[k] for k in ("$defs", "definitions") if k in schema}
        for place, (name, wanted) in enumerate((schema.get("properties") or {}).items()):
            rule = f"{prefix}_{place}"
            value, is_text = self._value(rule, wanted, shared, rules)
            opening = _quoted(f'parameter name="{name}" string="{str(is_text).lower()}">')
            closing = f'{self._dsml} "parameter>\\n"'
            rules.append(f'{rule}: "<" {self._dsml} {opening} {value} {closing}')
            yield rule if name in required else f"{rule}?"

    @staticmethod
    def _value(
        rule: str, wanted: Any, shared: Mapping[str, Any], rules: list[str]
    ) -> tuple[str, bool]:
        """What stands between two tags, with the `</` of the closing one; whether it is text."""
        schema = wanted if isinstance(wanted, Mapping) else {}
        choices = [schema["const"]] if "const" in schema else schema.get("enum")
        if choices and all(isinstance(choice, str) for choice in choices):
            return f"({' | '.join(_quoted(f'{choice}</') for choice in choices)})", True
        if schema.get("type") == "string":
            return "TEXT", True
        rules.append(f"{rule}_json: %json {_styled({**shared, **schema})}")
        return f'{rule}_json "</"', False

    def _checked(self, grammar: str) -> str:
        wrong = llguidance.LLMatcher.validate_grammar(_compiled(grammar), self._tokenizer)
        if wrong:
            first = str(wrong).strip().splitlines()[0]
            raise PromptError(f"The schema cannot be enforced: {first}.")
        return grammar


def _compiled(grammar: str) -> str:
    return llguidance.grammar_from("lark", grammar)


def _styled(schema: Mapping[str, Any]) -> str:
    return json.dumps({**schema, "x-guidance": _STYLE}, ensure_ascii=False)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
