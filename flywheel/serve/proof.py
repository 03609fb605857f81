"""The live proof: the server that is about to answer people gives again what was measured.

Tokens are compared one and all, and the acceptances by draft position with them: an engine that
drafts or verifies otherwise than the one that won is not the one that won.
"""

from __future__ import annotations

import hashlib
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flywheel.box.clock import count
from flywheel.errors import FlywheelError, Refused
from flywheel.ledger.store import Ledger
from flywheel.serve.address import Address
from flywheel.serve.signature import Prompt, Reply, Signature, differs, recorded

HEADER = "X-Flywheel-Proof"
TIMEOUT_S = 900.0


class NotReproduced(Refused):
    """What is served is not what was measured."""


@dataclass(frozen=True, slots=True)
class Proof:
    """What was shown, as a sentence; `run` is None where there was nothing to compare with."""

    said: str
    run: str | None = None


def prove(
    ledger: Ledger, address: Address, told: Mapping[str, Any], headers: Mapping[str, str]
) -> Proof:
    """Compare a server with the record; NotReproduced names the first difference.

    `told` is its own /health. Across machines tokens may differ without a fault: then it is said
    that nothing could be shown, and no more.
    """
    fingerprint, machine = told.get("fingerprint"), told.get("machine") or {}
    checkpoint = (told.get("checkpoint") or {}).get("sha256")
    if not fingerprint or not checkpoint:
        return Proof("unproven: the server does not say what it serves")
    with ledger.reading() as connection:
        signature = recorded(connection, fingerprint, checkpoint, machine)
    if signature is None:
        return Proof("unproven: no run of this configuration on this checkpoint is on record")
    found = _difference(signature, address, str(told.get("model")), headers)
    if found is None:
        prompts = count(len(signature.prompts), "prompt")
        said = f"{prompts}, {count(signature.tokens, 'token')} and every acceptance as in run "
        return Proof(said + signature.run_id, signature.run_id)
    if (other := _other_machine(signature, machine)) is not None:
        return Proof(f"unproven: run {signature.run_id} was made on {other}")
    raise NotReproduced(
        f"what is served is not what was measured: {found} in run {signature.run_id}. "
        "`flywheel run` measures what is here now."
    )


def _other_machine(signature: Signature, machine: Mapping[str, str]) -> str | None:
    for name, here in sorted(machine.items()):
        if (there := signature.machine.get(name)) != here:
            return f"another {name} ({there}, here {here})"
    return None


def _difference(
    signature: Signature, address: Address, model: str, headers: Mapping[str, str]
) -> str | None:
    for prompt in signature.prompts:
        reply = _ask(prompt, signature.max_new_tokens, address, model, headers)
        if (found := differs(prompt, reply)) is not None:
            return f"for {prompt.point.prompt} the server {found}"
    return None


def _ask(
    prompt: Prompt, max_new_tokens: int, address: Address, model: str, headers: Mapping[str, str]
) -> Reply:
    body = {
        "model": model,
        "messages": list(prompt.messages),
        "thinking": {"type": "disabled"},
        "temperature": 0,
        "max_tokens": max_new_tokens,
        "return_token_ids": True,
        "timings_per_token": True,
    }
    request = urllib.request.Request(
        f"{address.url}/v1/chat/completions",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json", **headers},
    )
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            return _reply(json.load(answer))
    except urllib.error.HTTPError as error:
        with error:
            said = error.read().decode("utf-8", "replace")[:300]
        raise FlywheelError(f"the server did not answer when it was to be proven: {said}") from None
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise FlywheelError(f"the server could not be proven: {error!r}.") from None


def _reply(body: Mapping[str, Any]) -> Reply:
    tokens = body["choices"][0]["token_ids"]
    timings = body["timings"]
    return Reply(
        prompt_tokens=body["usage"]["prompt_tokens"],
        tokens=len(tokens),
        tokens_sha256=hashlib.sha256(",".join(map(str, tokens)).encode()).hexdigest(),
        rounds=timings["rounds"],
        offered=tuple(timings["offered_by_position"]),
        accepted=tuple(timings["accepted_by_position"]),
    )
