"""The model list, as OpenAI's and as Anthropic's clients read it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from engine.server.service import Service


def entry(service: Service, headers: Mapping[str, str]) -> dict[str, Any]:
    """The one model; with both spellings of the context length that clients look for."""
    model, name = service.loaded, service.deployment.name
    context = model.engine.config.context
    if "anthropic-version" in headers:
        made = datetime.fromtimestamp(model.created, UTC).isoformat().replace("+00:00", "Z")
        return {
            "type": "model",
            "id": name,
            "display_name": name,
            "created_at": made,
            "max_input_tokens": context,
        }
    return {
        "id": name,
        "object": "model",
        "created": model.created,
        "owned_by": "local",
        "max_model_len": context,
        "meta": {"n_ctx_train": context},
    }


def listed(service: Service, headers: Mapping[str, str]) -> dict[str, Any]:
    """All models that are served."""
    data = [entry(service, headers)]
    if "anthropic-version" in headers:
        names = {"first_id": data[0]["id"], "last_id": data[0]["id"]}
        return {"data": data, "has_more": False, **names}
    return {"object": "list", "data": data}
