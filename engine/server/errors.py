"""From errors to HTTP: every status, type and code that a client can see is decided here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from engine.errors import ConfigError, ContextOverflow, EngineError, PromptError

INVALID = "invalid_request_error"
RETRY_AFTER_S = 1
_FAULT = "The engine failed while it answered; the server's log has the details."


class RequestError(EngineError):
    """A request that is answered with an error: what is wrong with it, and with which field."""

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        status: int = 400,
        kind: str = INVALID,
        code: str | None = None,
        retry_after_s: int = RETRY_AFTER_S,
    ) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.param = param
        self.status = status
        self.kind = kind
        self.code = code


_ANTHROPIC_KINDS = {
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    408: "timeout_error",
    500: "api_error",
    504: "timeout_error",
    503: "overloaded_error",
}


@dataclass(frozen=True, slots=True)
class Failure:
    """An error as a client sees it: a status and a body in its protocol's shape."""

    status: int
    message: str
    kind: str = INVALID
    code: str | None = None
    param: str | None = None
    messages_sentence: str | None = None  # what Anthropic's clients look for instead
    retry_after_s: int = RETRY_AFTER_S

    @property
    def openai(self) -> dict[str, Any]:
        """The JSON body for OpenAI's protocols."""
        return {
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": self.param,
                "code": self.code,
            }
        }

    @property
    def anthropic(self) -> dict[str, Any]:
        """The JSON body for Anthropic's."""
        kind = _ANTHROPIC_KINDS.get(self.status, INVALID)
        message = self.messages_sentence or self.message
        return {"type": "error", "error": {"type": kind, "message": message}}

    @property
    def headers(self) -> dict[str, str]:
        """When to come back, for the two statuses that pass by themselves."""
        return {"Retry-After": str(self.retry_after_s)} if self.status in (429, 503) else {}


def failure(error: BaseException) -> Failure:
    """How `error` is answered; what is not an EngineError keeps its details to the log."""
    message = str(error)
    match error:
        case RequestError():
            wait_s = error.retry_after_s
            return Failure(
                error.status, message, error.kind, error.code, error.param, retry_after_s=wait_s
            )
        case ContextOverflow():
            code, param = "context_length_exceeded", "messages"
            return Failure(400, message, INVALID, code, param, _too_long(error))
        case PromptError():
            return Failure(400, message, param="messages")
        case ConfigError():
            return Failure(400, message)
        case EngineError():
            return Failure(500, message, "server_error", "engine_fault")
    return Failure(500, _FAULT, "server_error", "engine_fault")


def _too_long(error: ContextOverflow) -> str:
    """Anthropic's two sentences, of which clients match the beginning and the numbers."""
    if error.prompt >= error.context:
        return f"prompt is too long: {error.prompt} tokens > {error.context} maximum"
    return (
        f"input length and `max_tokens` exceed context limit: {error.prompt} + {error.requested}"
        f" > {error.context}, decrease input length or `max_tokens` and try again"
    )


def no_route(method: str, path: str) -> RequestError:
    """For a path that is not served."""
    return RequestError(f"Unknown request URL: {method} {path}.", status=404, code="unknown_url")


def wrong_method(method: str, path: str) -> RequestError:
    """For a path that is served, but not with this method."""
    return RequestError(
        f"Not allowed to {method} on {path}.", status=405, code="method_not_allowed"
    )


def no_model(asked: str, served: str) -> RequestError:
    """For a model that is not the one served."""
    return RequestError(
        f"The model `{asked}` does not exist; this server has `{served}`.",
        param="model",
        status=404,
        code="model_not_found",
    )


def body_too_large(limit_bytes: int) -> RequestError:
    """For a body over the limit."""
    return RequestError(
        f"The request body is larger than {limit_bytes} bytes.",
        status=413,
        code="request_too_large",
    )


def busy(waiting: int, retry_after_s: int) -> RequestError:
    """For a full queue."""
    return RequestError(
        f"The server is busy: {waiting} requests are waiting already.",
        status=429,
        kind="rate_limit_error",
        code="queue_full",
        retry_after_s=retry_after_s,
    )


def engine_fault() -> RequestError:
    """For an answer that ended because the engine failed under all of them."""
    return RequestError(_FAULT, status=500, kind="server_error", code="engine_fault")


def no_key() -> RequestError:
    """For a request without the server's key."""
    return RequestError(
        "This server asks for a key, in `Authorization: Bearer` or `x-api-key`; it was not given,"
        " or it is another one.",
        status=401,
        kind="authentication_error",
        code="invalid_api_key",
    )


def too_slow(what: str, limit_s: float, status: int) -> RequestError:
    """For whatever took longer than it may."""
    return RequestError(
        f"{what} took longer than {limit_s:g} seconds.",
        status=status,
        kind="timeout_error",
        code="timeout",
    )


def unavailable(why: str) -> RequestError:
    """For a server that is loading or on its way out."""
    return RequestError(why, status=503, kind="server_error", code="unavailable")
