"""A manifest round-trips, plans every point once, and names what is wrong with a bad one."""

from __future__ import annotations

from pathlib import Path

import pytest
from logs import NONCE, manifest

from flywheel.errors import RecordError
from flywheel.run.manifest import Manifest, new_nonce


def test_a_manifest_survives_its_file(tmp_path: Path) -> None:
    one = manifest(null=True, fingerprints={"A": "x"}, expected={"device_name": "y"})
    one.write(tmp_path)
    assert Manifest.read(tmp_path) == one
    assert not list(tmp_path.glob(".*"))


def test_every_point_and_plain_is_planned_once() -> None:
    one = manifest()
    points = one.planned_points()
    assert len(points) == len(set(points)) == 8
    assert ("A", "code-0", 1) in points
    assert len(one.planned_plains()) == 4
    assert one.arm_names == ("A", "B")
    assert one.arm_config("B") == {"threads": 2}
    with pytest.raises(KeyError):
        one.arm_config("C")


def test_a_bad_manifest_is_one_sentence(tmp_path: Path) -> None:
    body = manifest().to_json()
    with pytest.raises(RecordError, match="unknown field: colour"):
        Manifest.from_json({**body, "colour": 1})
    with pytest.raises(RecordError, match="incomplete"):
        Manifest.from_json({name: value for name, value in body.items() if name != "argv"})
    with pytest.raises(RecordError, match="32 hexadecimal"):
        manifest(nonce="short")
    with pytest.raises(RecordError, match="command and a time limit"):
        manifest(timeout_s=0.0)
    with pytest.raises(RecordError, match=r"no readable manifest\.json"):
        Manifest.read(tmp_path)


def test_nonces_are_32_hexadecimal_digits_and_differ() -> None:
    assert manifest(nonce=new_nonce()).nonce != NONCE
    assert new_nonce() != new_nonce()
