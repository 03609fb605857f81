"""What the OpenAPI document says is true: for requests made up from it, right and wrong ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)
from servers import HERE, Running, started

from engine.server.app import EXCHANGES, LOOKS
from engine.server.openapi import document

CHECKS = [
    not_a_server_error,
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
]


@pytest.fixture(scope="module")
def described() -> Iterator[Running]:
    """The scripted server with room for many."""
    with started([str(HERE / "scripted.py"), "--clients", "4"]) as running:
        yield running


PROMISED = schemathesis.openapi.from_dict(document("scripted"))
RIGHT, WRONG = schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE
CASES = [
    (path, method, mode)
    for path, item in PROMISED.raw_schema["paths"].items()
    for method in item
    for mode in ((RIGHT, WRONG) if method == "post" else (RIGHT,))
]


@pytest.mark.parametrize(("path", "method", "mode"), CASES)
def test_every_answer_is_one_that_the_document_promises(
    described: Running, path: str, method: str, mode: schemathesis.GenerationMode
) -> None:
    operation = PROMISED[path][method]

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )
    def check(case: Any) -> None:
        case.call_and_validate(base_url=described.url, checks=CHECKS, timeout=20)

    check()


def test_every_route_is_in_the_document(described: Running) -> None:
    status, given = described.get("/openapi.json")
    assert (status, given) == (200, document("scripted"))
    posts = {path for path, item in given["paths"].items() if "post" in item}
    assert posts == {*EXCHANGES, *LOOKS}
    assert {"/health", "/metrics", "/v1/models", "/v1/models/{name}"} <= given["paths"].keys()


def test_a_wrong_method_is_told_the_right_ones(described: Running) -> None:
    answer = httpx2.get(f"{described.url}/v1/messages")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
