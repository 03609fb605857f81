"""A port that is taken is a refusal, before anything is started."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from flywheel.box.lease import holder
from flywheel.errors import Refused, UsageError
from flywheel.serve.address import Address
from flywheel.serve.server import Server, Setup


def test_a_taken_port_is_refused_and_the_device_given_back(tmp_path: Path) -> None:
    lock = tmp_path / "device.lock"
    with socket.socket() as squatter:
        squatter.bind(("127.0.0.1", 0))
        squatter.listen()
        address = Address("127.0.0.1", squatter.getsockname()[1])
        with pytest.raises(Refused, match=f"port {address.port} of 127.0.0.1 is taken") as refused:
            Server.start(tmp_path / "c.json", Setup(address, tmp_path / "log"), lease_path=lock)
        assert refused.value.exit_code == 3
    assert holder(lock) is None
    assert not (tmp_path / "log").exists()
    address.check_free()


def test_an_address_of_nobody_is_a_mistake() -> None:
    with pytest.raises(UsageError, match="cannot be listened on"):
        Address("192.0.2.1", 8000).check_free()
