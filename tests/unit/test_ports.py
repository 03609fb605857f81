"""A port that is taken is a refusal, before anything is started."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from flywheel.box.lease import holder
from flywheel.errors import Refused, UsageError
from flywheel.serve.address import Address
from flywheel.serve.server import Server, Setup


def never() -> Path:
    """The file that a refused server would have read: it is left alone."""
    raise AssertionError("written although the address is another's")


def test_a_taken_port_is_refused_and_the_device_given_back(tmp_path: Path) -> None:
    lock = tmp_path / "device.lock"
    with socket.socket() as squatter:
        squatter.bind(("127.0.0.1", 0))
        squatter.listen()
        address = Address("127.0.0.1", squatter.getsockname()[1])
        with pytest.raises(Refused, match=f"port {address.port} of 127.0.0.1 is taken") as refused:
            Server.start(never, Setup(address, tmp_path / "log"), lease_path=lock)
        assert refused.value.exit_code == 3
    assert holder(lock) is None
    assert not (tmp_path / "log").exists()
    address.check_free()


def test_an_address_of_nobody_is_a_mistake() -> None:
    with pytest.raises(UsageError, match="cannot be listened on"):
        Address("192.0.2.1", 8000).check_free()


@pytest.mark.parametrize("host", ["", " ", "127.0.0.1 ", "a/b", "http://127.0.0.1", "a\nb"])
def test_what_is_no_address_is_a_mistake_before_anybody_listens(host: str) -> None:
    with pytest.raises(UsageError, match="is no address"):
        Address(host, 8000)


def test_a_port_that_speaks_no_http_is_taken_like_any_other(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as squatter:
        address = Address("127.0.0.1", squatter.getsockname()[1])

        def greet() -> None:
            peer, _ = squatter.accept()
            with peer:
                peer.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")

        thread = threading.Thread(target=greet, daemon=True)
        thread.start()
        with pytest.raises(Refused, match="is taken by another program"):
            Server.start(never, Setup(address, tmp_path / "log"), lease_path=tmp_path / "lock")
        thread.join(5)
