"""`engine.bench.steps` as far as it goes without a GPU: what is asked, refused and compared."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine import lease
from engine.bench.steps import command as steps
from engine.bench.steps.command import BASE, Options, as_json, compared, parsed
from engine.errors import ConfigError


def test_a_choice_has_fields_whose_values_may_have_signs_of_their_own() -> None:
    found = parsed("tile_down=columns=16,stages=4 shared_expert=stream draft_width=3")
    assert found == {
        "tile_down": "columns=16,stages=4", "shared_expert": "stream", "draft_width": 3
    }  # fmt: skip
    with pytest.raises(ConfigError, match="A choice is FIELD=VALUE"):
        parsed("tile_down")
    with pytest.raises(ConfigError, match="draft_width takes a number; got 'many'"):
        parsed("draft_width=many")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--choice", "moe=dense"], "moe is a choice of the torch backend"),
        (["--choice", "speed=11"], "Unknown configuration field 'speed'"),
        (["--choice", "graph=maybe"], "graph must be one of on, off"),
        (["--layers", "0"], "Geometry k160 has 1 to 43 layers; got 0"),
        (["--synthetic", "k7"], "k7"),
        (["--choice", ""], "A choice is FIELD=VALUE, several apart by spaces; got none"),
        (["--choice", BASE], "A choice is FIELD=VALUE, several apart by spaces; got 'as'"),
        (["--choice", "graph=on graph=off"], "names graph twice"),
        (["--choice", "backend=torch"], "Steps are of backend 'triton'"),
        (["--choice", "context=64"], "needs a context of at least"),
    ],
)
def test_what_cannot_be_timed_is_said_in_one_sentence_before_anything_is_made(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("triton", reason="TRITON MISSING: NO STEP IS TIMED HERE")
    assert steps.main(arguments) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1


def test_a_slip_is_told_while_somebody_else_holds_the_device(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FLYWHEEL_LEASE", str(tmp_path / "lease"))
    with lease.held("another program"):
        assert steps.main(["--choice", "speed=11"]) == 2
        assert "Unknown configuration field 'speed'" in capsys.readouterr().err
        assert steps.main(["--choice", "graph=on"]) == 3


def test_a_tile_that_no_kernel_has_is_refused_before_weights_are_made(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton", reason="TRITON MISSING: NO STEP IS TIMED HERE")
    from engine.device import requirement

    monkeypatch.setattr(requirement, "device", lambda: torch.device("cpu"))
    assert steps.main(["--choice", "tile_down=speed=1"]) == 2
    assert "tile_down has no 'speed'" in capsys.readouterr().err


def test_medians_are_told_beside_the_engine_as_it_is() -> None:
    options = Options("k160", 20, (1, 6), ("graph=off",))
    times = {
        (BASE, 1): [100.0, 101, 400], (BASE, 6): [200.0], ("graph=off", 1): [121.0],
        ("graph=off", 6): [190.0, 180, 200],
    }  # fmt: skip
    base, other = compared([BASE, "graph=off"], options, times)
    assert base.layer_us == {1: 0.0, 6: 0.0}
    assert other.layer_us == {1: 1.0, 6: -0.5}
    assert as_json([other])[0] == {"choice": "graph=off", "rows": 1, "us": 121.0, "layer_us": 1.0}
