"""`python -m flywheel.propose.openai --url URL`: asks any endpoint that speaks OpenAI's chat.

The brief comes on stdin and the answer goes to stdout. `flywheel serve` is such an endpoint too.
The form of the answer is asked for as a JSON schema; an endpoint that knows none is asked without.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any

from flywheel.propose import prompt

# "Not now": too many requests, or a server that is busy or starting.
_LATER = (429, 503, 529)
_FEWEST_CHARACTERS = 400
# With fewer characters of brief than this the form is that of one kind of lever.
_SMALL = 4000


class Unusable(Exception):  # noqa: N818 - reads as the fact that it is
    """The endpoint gave no answer; the message says why, `status` is its HTTP status or 0."""

    def __init__(self, why: str, status: int = 0, retry_after_s: float | None = None) -> None:
        super().__init__(why)
        self.status, self.retry_after_s = status, retry_after_s


def messages(brief: Mapping[str, Any], characters: int) -> list[dict[str, str]]:
    """The conversation: the task, what is known, and what was wrong the first time. Pure."""
    said = [
        {"role": "system", "content": prompt.system(brief, characters)},
        {"role": "user", "content": prompt.user(brief, characters)},
    ]
    if (back := brief.get("told_back")) is not None:
        wrong = "\n".join(back["errors"])
        said += [
            {"role": "assistant", "content": back["answer"][:characters]},
            {"role": "user", "content": f"That has the wrong form:\n{wrong}\nAnswer again."},
        ]
    return said


def request_body(
    brief: Mapping[str, Any], model: str, tokens: int, characters: int, *, schema: bool
) -> dict[str, Any]:
    """What is posted. Pure."""
    body: dict[str, Any] = {
        "model": model, "messages": messages(brief, characters), "max_completion_tokens": tokens,
    }  # fmt: skip
    if schema:
        form = {"name": "levers", "schema": form_of(brief, small=characters < _SMALL)}
        body["response_format"] = {"type": "json_schema", "json_schema": form}
    return body


def form_of(brief: Mapping[str, Any], *, small: bool = False) -> dict[str, Any]:
    """The part of the brief's schema that a model without tools can fill: config and sweep.

    Fields are bound to those that the engine has, where the brief names them. Pure.
    """
    every = brief["schema"]["properties"]["levers"]["items"]["anyOf"]
    wanted = ("config",) if small else ("config", "sweep")
    kinds = [_form(one, brief.get("fields") or {}, small=small) for one in every
             if one["properties"]["kind"]["const"] in wanted]  # fmt: skip
    levers = {"type": "array", "items": {"anyOf": kinds}, "minItems": 1, "maxItems": 4}
    if small:
        levers |= {"items": kinds[0], "maxItems": 1}
    return {"type": "object", "properties": {"levers": levers}, "required": ["levers"],
            "additionalProperties": False}  # fmt: skip


def _form(
    kind: Mapping[str, Any], fields: Mapping[str, Any], *, small: bool
) -> dict[str, Any]:
    properties = {
        name: about for name, about in kind["properties"].items()
        if not small or name in kind["required"]
    }  # fmt: skip
    if fields:
        properties["field"] = {"enum": sorted(fields)}
    # A model that may write for ever does.
    text = {"type": "string", "minLength": 1, "maxLength": 60 if small else 200}
    return {**kind, "properties": {**properties, "claim": text, "falsify": text}}


def post(url: str, body: Mapping[str, Any], key: str | None, timeout_s: float) -> dict[str, Any]:
    """One request; Unusable for anything but a JSON object with success."""
    headers = {**_headers(key), "Content-Type": "application/json"}
    asked = urllib.request.Request(
        f"{url.rstrip('/')}/chat/completions", json.dumps(body).encode(), headers
    )
    try:
        with urllib.request.urlopen(asked, timeout=timeout_s) as answer:
            found: Any = json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            said = error.read(2000).decode("utf-8", "replace")
        pause_s = _seconds(error.headers.get("Retry-After", ""))
        raise Unusable(f"{error.code}: {said.strip()}", error.code, pause_s) from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        why = " ".join(str(getattr(error, "reason", error)).split())
        raise Unusable(f"it cannot be asked: {why}") from None
    if not isinstance(found, dict):
        raise Unusable("its answer is no JSON object")
    return found


def _seconds(text: str) -> float | None:
    """A pause as a header names it; None for a date, or for what nobody would wait for. Pure."""
    plain = text.isascii() and text.replace(".", "", 1).isdigit() and len(text) < 12
    return float(text) if plain else None


def _headers(key: str | None) -> dict[str, str]:
    found = {"User-Agent": "flywheel"}
    return found if key is None else {**found, "Authorization": f"Bearer {key}"}


def only_model(url: str, key: str | None, timeout_s: float) -> str:
    """The first model that the endpoint lists; Unusable where it lists none."""
    asked = urllib.request.Request(f"{url.rstrip('/')}/models", headers=_headers(key))
    try:
        with urllib.request.urlopen(asked, timeout=timeout_s) as answer:
            return str(json.loads(answer.read())["data"][0]["id"])
    except (OSError, ValueError, LookupError, TypeError, http.client.HTTPException) as error:
        raise Unusable(f"it lists no model; name one with --model: {error}") from None


def content(answer: Mapping[str, Any]) -> str:
    """The text that the model gave; Unusable where there is none. Pure."""
    try:
        said = answer["choices"][0]["message"]["content"]
    except (LookupError, TypeError):
        raise Unusable("its answer holds no message") from None
    if not isinstance(said, str):
        raise Unusable("its answer holds no text")
    return said


def ask(brief: Mapping[str, Any], options: argparse.Namespace) -> dict[str, Any] | str:
    """The answer to print: the model's text, or a limit. Raises Unusable."""
    key = None if options.key_env is None else os.environ.get(options.key_env)
    if options.key_env is not None and not key:
        raise Unusable(f"{options.key_env} is not set; hand it over with --proposer-env")
    try:
        model = options.model or only_model(options.url, key, options.timeout_s)
        schema, characters = not options.no_schema, options.characters
        while True:
            body = request_body(brief, model, options.tokens, characters, schema=schema)
            try:
                answer = post(options.url, body, key, options.timeout_s)
                break
            except Unusable as error:
                if error.status != 400:
                    raise
                # Too long for the model, or a form it does not know: ask for less, then plainly.
                if characters // 2 >= _FEWEST_CHARACTERS and "context" in str(error).lower():
                    characters //= 2
                elif schema:
                    schema = False
                else:
                    raise
    except Unusable as error:
        if error.status in _LATER:
            return {"limited": {"why": str(error)[:300], "retry_after_s": error.retry_after_s}}
        raise
    text = content(answer)
    found = prompt.found_json(text)
    return _with_usage(found, answer) if found is not None else text


def _with_usage(found: str, answer: Mapping[str, Any]) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(found)
    usage = answer.get("usage")
    return {**body, "usage": usage} if isinstance(usage, dict) else body


def main(arguments: Sequence[str]) -> int:
    """Answer the brief on stdin."""
    parser = argparse.ArgumentParser(
        prog="python -m flywheel.propose.openai",
        description="Answers a brief on stdin with what a model behind an OpenAI-compatible "
        "endpoint proposes.",
        epilog="Example: flywheel run --proposer-network --proposer-env KEY "
        "--proposer 'openai --url https://models.example.org/v1 --key-env KEY'",
    )
    parser.add_argument("--url", required=True, help="The endpoint, as far as /v1.")
    parser.add_argument("--model", help="Its name; the first that the endpoint lists by default.")
    parser.add_argument("--key-env", help="The variable that holds the API key.")
    parser.add_argument("--tokens", type=int, default=4000, help="At most so many in the answer.")
    parser.add_argument("--characters", type=int, default=60_000, help="At most so many of brief.")
    parser.add_argument("--timeout-s", type=float, default=600.0, help="Seconds for one request.")
    parser.add_argument("--no-schema", action="store_true", help="Do not ask for a JSON schema.")
    options = parser.parse_args(arguments)
    if not options.url.startswith(("http://", "https://")):
        parser.error("--url wants an address that begins with https:// or http://")
    try:
        brief = json.loads(sys.stdin.read())
        said = ask(brief, options)
    except (ValueError, LookupError) as error:
        sys.stderr.write(f"stdin holds no brief: {error!r}\n")
        return 2
    except Unusable as error:
        sys.stderr.write(f"{options.url}: {error}\n")
        return 1
    sys.stdout.write((said if isinstance(said, str) else json.dumps(said)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
