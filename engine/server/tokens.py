"""Text to ids, ids to text, conversations to prompts: for tools that look closely."""

from __future__ import annotations

from typing import Any

from engine.server import fields
from engine.server.ask import Prompt
from engine.server.chat import dialogue
from engine.server.errors import RequestError
from engine.server.service import Service


async def tokenize(service: Service, body: dict[str, Any]) -> dict[str, Any]:
    """Ids of `prompt` or `content` (with BOS only if `add_special_tokens`) or of `messages`."""
    text = fields.text(body, "prompt" if "prompt" in body else "content")
    if text is None:
        if "messages" not in body:
            raise RequestError("Give `prompt`, `content` or `messages`.", param="prompt")
        return await render(service, body)
    names = ("add_special_tokens", "add_special")
    with_bos = any(fields.flag(body, name) for name in names)
    ids = (await service.encode(text))[0 if with_bos else 1 :]
    return _ids(service, ids)


async def detokenize(service: Service, body: dict[str, Any]) -> dict[str, Any]:
    """Text of `tokens`, control tokens spelled out; under both names that clients read."""
    ids = fields.token_ids(body, "tokens")
    tokenizer = service.loaded.tokenizer
    stray = next((t for t in ids if not 0 <= t < tokenizer.vocab_size), None)
    if stray is not None:
        raise RequestError(f"Token {stray} is outside the vocabulary.", param="tokens")
    text = tokenizer.decode(ids, keep_special=True)
    return {"prompt": text, "content": text}


async def render(service: Service, body: dict[str, Any]) -> dict[str, Any]:
    """The prompt of a chat request, as text and as ids, without generating anything."""
    prompt: Prompt = dialogue(body)
    ids = await service.encode(prompt)
    text = service.loaded.tokenizer.decode(ids, keep_special=True)
    return {"prompt": text, **_ids(service, ids)}


def _ids(service: Service, ids: list[int]) -> dict[str, Any]:
    context = service.loaded.engine.config.context
    return {"tokens": ids, "count": len(ids), "max_model_len": context}
