"""Before the model is there, everything is a 503 that says so."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.testclient import TestClient

from engine.config import EngineConfig
from engine.server.app import create_app
from engine.server.deployment import Deployment
from engine.server.service import Service


@pytest.fixture(scope="module")
def loading() -> TestClient:
    deployment = Deployment("late", Path(), None, EngineConfig())
    return TestClient(create_app(Service(deployment, waiting_limit=1)))


def test_health_is_not_ok_yet(loading: TestClient) -> None:
    answer = loading.get("/health")
    assert answer.status_code == 503
    assert answer.json()["status"] == "loading"


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/late", "/v1/chat/completions"])
def test_requests_are_told_to_come_back(loading: TestClient, path: str) -> None:
    chat = path.endswith("completions")
    answer = loading.post(path, json={}) if chat else loading.get(path)
    assert answer.status_code == 503
    assert "loaded" in answer.json()["error"]["message"]
    assert int(answer.headers["retry-after"]) >= 1
