"""What the server speaks, as an OpenAPI document: the fields it reads and the answers it gives.

Fields that are not named here are ignored, as every protocol does it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.server.ask import EFFORTS
from engine.server.completions import MAX_PROMPTS
from engine.server.fields import MAX_BIAS, MAX_STOPS, MAX_TEMPERATURE
from engine.server.guard import OPEN

VERSION = "3.1.0"
Schema = dict[str, Any]


def _maybe(kind: str, **bounds: Any) -> Schema:
    """A field that may be null."""
    return {"type": [kind, "null"], **bounds}


def _object(required: tuple[str, ...] = (), **properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(required)}


def _list(items: Schema, **bounds: Any) -> Schema:
    return {"type": "array", "items": items, **bounds}


def _listed(items: Schema, **bounds: Any) -> Schema:
    """A list that may be null."""
    return {"type": ["array", "null"], "items": items, **bounds}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


_TEXT: Schema = {"type": "string"}
_WHOLE: Schema = {"type": "integer"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_ANY_OBJECT = _object()
_EFFORT: Schema = {"enum": [*EFFORTS, None]}
_STOPS: Schema = {
    "anyOf": [
        {"type": "string", "minLength": 1},
        _listed({"type": "string", "minLength": 1}, maxItems=MAX_STOPS),
    ]
}
_SAMPLING: dict[str, Schema] = {
    "model": _maybe("string"),
    "stream": _maybe("boolean"),
    "temperature": _maybe("number", minimum=0, maximum=MAX_TEMPERATURE),
    "top_p": _maybe("number", exclusiveMinimum=0, maximum=1),
    "top_k": _maybe("integer", minimum=-1),
    "min_p": _maybe("number", minimum=0, maximum=1),
    "seed": _maybe("integer"),
    "frequency_penalty": _maybe("number", minimum=-2, maximum=2),
    "presence_penalty": _maybe("number", minimum=-2, maximum=2),
    "logit_bias": {
        "type": ["object", "null"],
        "additionalProperties": {"type": "number", "minimum": -MAX_BIAS, "maximum": MAX_BIAS},
        "propertyNames": {"pattern": "^[0-9]+$"},
    },
}
_LIMIT = _maybe("integer", minimum=1)
_TEXT_BLOCKS: Schema = {"anyOf": [_TEXT, _list(_object(("type", "text"), type=_TEXT, text=_TEXT))]}
_TOOL = _object(
    ("type", "function"),
    type={"const": "function"},
    function=_object(("name",), name=_TEXT, description=_maybe("string"), parameters=_ANY_OBJECT),
)
_OPENAI: dict[str, Schema] = {
    "n": _maybe("integer", minimum=1, maximum=8),
    "stop": _STOPS,
    "stop_token_ids": _listed(_WHOLE),
    "stream_options": {**_object(include_usage=_maybe("boolean")), "type": ["object", "null"]},
}

_REQUESTS: dict[str, Schema] = {
    "ChatRequest": _object(
        ("messages",),
        **_SAMPLING,
        **_OPENAI,
        messages=_list(_ref("ChatMessage"), minItems=1),
        max_tokens=_LIMIT,
        max_completion_tokens=_LIMIT,
        logprobs=_maybe("boolean"),
        return_token_ids=_maybe("boolean"),
        timings_per_token=_maybe("boolean"),
        tools=_listed(_TOOL),
        tool_choice={"anyOf": [{"enum": ["auto", "none", "required", None]}, _ANY_OBJECT]},
        parallel_tool_calls=_maybe("boolean"),
        reasoning_effort=_EFFORT,
        response_format={**_ANY_OBJECT, "type": ["object", "null"]},
    ),
    "ChatMessage": _object(
        ("role", "content"),
        role={"enum": ["system", "developer", "user", "assistant", "tool"]},
        content=_TEXT_BLOCKS,
        reasoning_content=_maybe("string"),
        tool_call_id=_maybe("string"),
    ),
    "CompletionRequest": _object(
        ("prompt",),
        **_SAMPLING,
        **_OPENAI,
        prompt={"anyOf": [_TEXT, _list(_TEXT, minItems=1, maxItems=MAX_PROMPTS)]},
        max_tokens=_LIMIT,
        echo=_maybe("boolean"),
        logprobs=_maybe("integer", minimum=0, maximum=5),
    ),
    "ResponseRequest": _object(
        ("input",),
        **_SAMPLING,
        input={"anyOf": [_TEXT, _list(_ANY_OBJECT, minItems=1)]},
        instructions=_maybe("string"),
        max_output_tokens=_LIMIT,
        reasoning={**_object(effort=_EFFORT), "type": ["object", "null"]},
        tools=_listed(_ANY_OBJECT),
    ),
    "MessageRequest": _object(
        ("max_tokens", "messages"),
        **_SAMPLING,
        max_tokens={"type": "integer", "minimum": 1},
        messages=_list(_ref("Message"), minItems=1),
        system=_TEXT_BLOCKS,
        stop_sequences=_STOPS["anyOf"][1],
        tools=_listed(_object(("name",), name=_TEXT, input_schema=_ANY_OBJECT)),
    ),
    "Message": _object(
        ("role", "content"), role={"enum": ["user", "assistant", "system"]}, content=_TEXT_BLOCKS
    ),
    "CountRequest": _object(("messages",), messages=_list(_ref("Message"), minItems=1)),
    "TokenizeRequest": _object(prompt=_maybe("string"), content=_maybe("string")),
    "DetokenizeRequest": _object(("tokens",), tokens=_list(_WHOLE)),
}
_ANSWERS: dict[str, Schema] = {
    "Chat": _object(
        ("id", "object", "created", "model", "choices", "usage"),
        id=_TEXT,
        object={"const": "chat.completion"},
        choices=_list(_object(("index", "message", "finish_reason")), minItems=1),
        usage=_ref("Usage"),
    ),
    "Completion": _object(
        ("id", "object", "created", "model", "choices", "usage"),
        object={"const": "text_completion"},
        choices=_list(_object(("index", "text", "finish_reason")), minItems=1),
        usage=_ref("Usage"),
    ),
    "Response": _object(
        ("id", "object", "status", "output", "usage"),
        object={"const": "response"},
        status={"enum": ["completed", "incomplete"]},
        output=_list(_object(("type", "id", "status"))),
    ),
    "MessageAnswer": _object(
        ("id", "type", "role", "content", "stop_reason", "usage"),
        type={"const": "message"},
        content=_list(_object(("type",))),
        usage=_object(("input_tokens", "output_tokens"), input_tokens=_COUNT, output_tokens=_COUNT),
    ),
    "Usage": _object(
        ("prompt_tokens", "completion_tokens", "total_tokens"),
        prompt_tokens=_COUNT,
        completion_tokens=_COUNT,
        total_tokens=_COUNT,
    ),
    "Count": _object(("input_tokens",), input_tokens={"type": "integer", "minimum": 1}),
    "Tokens": _object(("tokens", "count", "max_model_len"), tokens=_list(_WHOLE), count=_WHOLE),
    "Text": _object(("prompt", "content"), prompt=_TEXT, content=_TEXT),
    "Story": _ANY_OBJECT,
    "Health": _object(
        ("status", "model"), status={"enum": ["ok", "loading", "proving", "draining"]}, model=_TEXT
    ),
    "Models": _object(("data",), data=_list(_ref("Model"), minItems=1)),
    "Model": _object(("id",), id=_TEXT),
    "Error": _object(
        ("error",),
        error=_object(
            ("message", "type", "param", "code"),
            message=_TEXT,
            type=_TEXT,
            param=_maybe("string"),
            code=_maybe("string"),
        ),
    ),
    "MessageError": _object(
        ("type", "error", "request_id"),
        type={"const": "error"},
        error=_object(("type", "message"), type=_TEXT, message=_TEXT),
    ),
}
_PROBLEMS: Mapping[int, str] = {
    400: "A field has a wrong value, or the prompt is too long",
    401: "The key is missing or wrong",
    404: "No such model",
    408: "The body took too long",
    413: "The body is too large",
    429: "The queue is full; see Retry-After",
    500: "The engine failed",
    503: "Loading or closing; see Retry-After",
    504: "The answer took too long",
}
# path -> (body, answer, whether it can be streamed)
_POSTS: Mapping[str, tuple[str, str, bool]] = {
    "/v1/chat/completions": ("ChatRequest", "Chat", True),
    "/v1/completions": ("CompletionRequest", "Completion", True),
    "/v1/responses": ("ResponseRequest", "Response", True),
    "/v1/messages": ("MessageRequest", "MessageAnswer", True),
    "/v1/messages/count_tokens": ("CountRequest", "Count", False),
    "/tokenize": ("TokenizeRequest", "Tokens", False),
    "/detokenize": ("DetokenizeRequest", "Text", False),
    "/v1/chat/completions/render": ("ChatRequest", "Tokens", False),
    "/apply-template": ("ChatRequest", "Tokens", False),
}
_GETS: Mapping[str, tuple[str | None, tuple[int, ...]]] = {
    "/health": ("Health", (503,)),
    "/metrics": (None, (401,)),
    "/about.json": ("Story", (401,)),
    "/v1/models": ("Models", (401, 503)),
    "/v1/models/{name}": ("Model", (401, 404, 503)),
}


def document(name: str) -> dict[str, Any]:
    """The OpenAPI document of a server of the model `name`, with and without a key."""
    return {
        "openapi": VERSION,
        "info": {"title": f"Flywheel, serving {name}", "version": "1"},
        "paths": {
            **{path: {"get": _get(path, *said)} for path, said in _GETS.items()},
            **{path: {"post": _post(path, *said)} for path, said in _POSTS.items()},
        },
        "components": {
            "schemas": {**_REQUESTS, **_ANSWERS},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
        "security": [{}, {"bearer": []}, {"header": []}],
    }


def _post(path: str, body: str, answer: str, streams: bool) -> dict[str, Any]:
    error = "MessageError" if path.startswith("/v1/messages") else "Error"
    content: dict[str, Any] = _json(answer)
    if streams:
        content["text/event-stream"] = {"schema": {}}  # events, each in its protocol's own shape
    return {
        "requestBody": {"required": True, "content": _json(body)},
        "responses": {
            "200": {"description": "The answer", "content": content},
            **{str(status): _problem(status, error) for status in _PROBLEMS},
        },
    }


def _get(path: str, answer: str | None, problems: tuple[int, ...]) -> dict[str, Any]:
    content = {"text/plain": {"schema": _TEXT}} if answer is None else _json(answer)
    found: dict[str, Any] = {
        "responses": {
            "200": {"description": "The answer", "content": content},
            **{str(s): _problem(s, "Health" if path == "/health" else "Error") for s in problems},
        }
    }
    if path in OPEN:
        found["security"] = []
    if "{name}" in path:
        place = {"name": "name", "in": "path", "required": True}
        found["parameters"] = [{**place, "schema": {"type": "string", "minLength": 1}}]
    return found


def _problem(status: int, schema: str) -> dict[str, Any]:
    return {"description": _PROBLEMS[status], "content": _json(schema)}


def _json(schema: str) -> dict[str, Any]:
    return {"application/json": {"schema": _ref(schema)}}
