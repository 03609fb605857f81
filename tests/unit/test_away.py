"""Who asks at night gets one sentence, whatever and however it asks."""

from __future__ import annotations

import json
import socket
import struct
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from flywheel.serve.address import Address
from flywheel.serve.away import answering


@pytest.fixture
def night() -> Iterator[Address]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = Address(*probe.getsockname())
    with answering(address, lambda: 120.4, "07:00"):
        yield address


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"])
def test_every_method_gets_the_time_of_return(night: Address, method: str) -> None:
    body = b"{}" if method in ("POST", "PUT", "PATCH") else None
    request = urllib.request.Request(f"{night.url}/v1/x", data=body, method=method)
    with pytest.raises(urllib.error.HTTPError) as found:
        urllib.request.urlopen(request, timeout=10)
    with found.value as answer:
        assert (answer.code, answer.headers["Retry-After"]) == (503, "120")
        text = answer.read()
    assert text == b"" if method == "HEAD" else "07:00" in json.loads(text)["message"]


def test_rude_clients_leave_no_trace_and_the_next_one_is_answered(
    night: Address, capfd: pytest.CaptureFixture[str]
) -> None:
    for rude in (
        b"\x16\x03\x01 no HTTP at all\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\nx",
        b"POST / HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: \xb2\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
    ):
        with socket.create_connection((night.host, night.port), timeout=10) as one:
            one.sendall(rude)
            # Closed by a reset, so that whatever is written to it fails.
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    with pytest.raises(urllib.error.HTTPError) as found:
        urllib.request.urlopen(night.url, timeout=10)
    found.value.close()
    assert found.value.code == 503
    assert capfd.readouterr().err == ""
