"""Models of random weights: plain decode alone, marked wherever their numbers go, never a tau."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from logs import Event, fingerprint, honest, manifest, sealed
from records import NOW, World, drive, lever, record

from flywheel import declared, synthetic
from flywheel.best import Best, fold
from flywheel.cli import app as cli
from flywheel.cli.commands import checkpoint_path, first
from flywheel.doctor.work import check_checkpoint
from flywheel.errors import LedgerError, LeverError, UsageError
from flywheel.ledger import views
from flywheel.ledger.store import Ledger
from flywheel.lever import Lever
from flywheel.loop import planned
from flywheel.loop.eligible import admit
from flywheel.report.gather import gather
from flywheel.report.levers_md import render
from flywheel.ruler import of_header
from flywheel.run.manifest import Manifest
from flywheel.run.measurement import measurements
from flywheel.run.parse import parse
from flywheel.run.record import RunRecord
from flywheel.run.refusal import Refusal
from flywheel.statistics.block import cold_block, hot_block
from flywheel.statistics.campaign import QUICK
from flywheel.width.gather import own

MODEL = "synthetic:tiny-v4"


def asked(checkpoint: str) -> Manifest:
    made = manifest()
    return replace(made, config={**made.config, "checkpoint": checkpoint})


def plain_only(*, made_up: bool = True, width: int = 0) -> list[Event]:
    """An honest log in which every arm decodes plainly, of random weights or not."""
    out = []
    for event in honest():
        if event["event"] == "start":
            arms = [_arm(arm, width) for arm in event["arms"]]
            event |= {"arms": arms, **({"synthetic": True} if made_up else {})}
        if event["event"] == "point":
            event |= {"width": width, "rounds": 8, "forwards": 8, "max_committed": 1,
                      "accepted_by_position": [0] * width,
                      "offered_by_position": [0] * width}  # fmt: skip
        out.append(event)
    return out


def _arm(arm: Event, width: int) -> Event:
    effective = {**arm["effective"], "draft_width": width}
    return arm | {"effective": effective, "fingerprint": fingerprint(effective)}


# ---------------------------------------------------------------- the parser


def test_a_run_of_random_weights_is_a_measurement_of_plain_decode() -> None:
    found = parse(sealed(plain_only()), asked(MODEL))
    assert isinstance(found, RunRecord), found
    assert found.header.synthetic
    metrics = {m.metric for m in measurements(found)}
    assert "time" in metrics
    assert not metrics & {"tau", "accepted", "plain_time"}


@pytest.mark.parametrize(
    ("events", "checkpoint", "code"),
    [
        (plain_only(), "/checkpoint", "manifest_mismatch"),
        (plain_only(made_up=False), MODEL, "manifest_mismatch"),
        (plain_only(width=3), MODEL, "synthetic_drafts"),
    ],
)
def test_random_weights_unasked_or_with_drafts_measure_nothing(
    events: list[Event], checkpoint: str, code: str
) -> None:
    found = parse(sealed(events), asked(checkpoint))
    assert isinstance(found, Refusal)
    assert (found.code, found.ending) == (code, "void")


def test_a_log_that_says_nothing_of_its_weights_has_a_checkpoints() -> None:
    found = parse(sealed(honest()), manifest())
    assert isinstance(found, RunRecord)
    assert not found.header.synthetic
    assert "tau" in {m.metric for m in measurements(found)}


# ---------------------------------------------------------------- rulers and blocks


def made_up(run: RunRecord) -> RunRecord:
    return replace(run, header=replace(run.header, synthetic=True))


def test_the_ruler_of_random_weights_says_so_and_compares_with_no_other() -> None:
    real, other = (of_header(r.header, "full") for r in (record(), made_up(record())))
    assert other.label.startswith("synthetic full-")
    assert (real.synthetic, other.synthetic) == (False, True)
    assert real.identity != other.identity
    assert other.sampling == "greedy, plain"


def test_a_block_of_random_weights_guards_no_acceptance() -> None:
    assert [name for name, _ in hot_block(record()).guards] == ["tau"]
    assert hot_block(made_up(record())).guards == ()
    loads = [made_up(record(f"r{i}", arms={arm: {}}, order=arm)) for i, arm in enumerate("ABBA")]
    assert [name for name, _ in cold_block(loads).guards] == ["memory"]


# ---------------------------------------------------------------- levers


def _best(config: Mapping[str, object]) -> Best:
    return Best(dict(config), {})


@pytest.mark.parametrize(
    ("needs", "incumbent", "reason"),
    [
        (("triton",), {}, "is one of the triton backend, and the incumbent runs torch"),
        (("torch",), {"backend": "triton"}, "is one of the torch backend, and the incumbent"),
        (("drafts",), {"draft_width": 0}, "is about drafts, and the incumbent drafts nothing"),
        (("triton", "drafts"), {"backend": "triton", "draft_width": 0}, "about drafts"),
        (("triton",), {"backend": "triton"}, None),
        (("torch", "drafts"), {"draft_width": 5}, None),
        ((), {"draft_width": 0}, None),
    ],
)
def test_a_lever_waits_for_an_incumbent_that_it_can_move(
    tmp_path: Path, needs: tuple[str, ...], incumbent: dict[str, object], reason: str | None
) -> None:
    with Ledger.open(tmp_path / "l.db").reading() as connection:
        view = views.load(connection)
    ready, refused = admit(view, [lever(needs=needs)], _best(incumbent), {}, ("config",))
    assert [one.reason for one in refused] == [] if reason is None else reason in refused[0].reason
    assert len(ready) == (reason is None)


def test_what_a_lever_needs_is_no_part_of_what_it_is() -> None:
    assert lever(needs=("triton",)).identity == lever().identity


def test_a_lever_that_is_declared_on_the_box_keeps_what_it_needs(tmp_path: Path) -> None:
    path = str(tmp_path / "l.db")
    words = ["levers", "add", "mine", "--set", "tile_down=warps=8", "--claim", "c", "--falsify",
             "f", "--predicted-gain", "0.01", "--needs", "triton", "--ledger", path]  # fmt: skip
    assert cli.main(words) == 0
    assert declared.read(tmp_path / "l.db")[0].needs == ("triton",)


def test_an_unknown_need_is_refused() -> None:
    with pytest.raises(LeverError, match="needs 'cuda', not one of torch, triton, drafts"):
        lever(needs=("cuda",))


def test_every_declared_lever_about_drafts_says_that_it_needs_them() -> None:
    import experiments

    fields = ("draft_width", "verify_policy", "margin_threshold", "confidence_threshold", "markov")
    about = [one for one in experiments.discover() if one.field_name in fields]
    assert about
    assert all("drafts" in one.needs for one in about)


def test_levers_of_one_backend_are_declared_as_such() -> None:
    import experiments

    by_field: dict[str | None, list[Lever]] = {}
    for one in experiments.discover():
        by_field.setdefault(one.field_name, []).append(one)
    for name in ("row_tile", "moe", "attention", "hyper", "compile", "cache_format"):
        assert all("torch" in one.needs for one in by_field[name]), name
    for name in ("graph", "key_format"):
        assert all("triton" in one.needs for one in by_field[name]), name


# ---------------------------------------------------------------- the commands


def test_a_synthetic_campaign_starts_without_drafts_and_stays_so() -> None:
    model = checkpoint_path(Path(MODEL))
    assert str(model) == MODEL
    assert first([], model) == {"draft_width": 0}
    assert first(["backend=triton", "context=4096"], model) == {
        "draft_width": 0, "backend": "triton", "context": 4096,
    }  # fmt: skip
    with pytest.raises(UsageError, match="random weights"):
        first(["draft_width=5"], model)


def test_a_campaign_on_a_checkpoint_may_start_anywhere() -> None:
    assert first([], checkpoint_path(None)) == {}
    assert first(["draft_width=3"], checkpoint_path(None)) == {"draft_width": 3}
    with pytest.raises(UsageError, match="FIELD=VALUE"):
        first(["threads"], checkpoint_path(None))


def test_an_unknown_synthetic_model_is_refused_with_the_known_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["run", "--checkpoint", "synthetic:k1", "--ledger", str(tmp_path / "l.db")]
    assert cli.main(words) == 2
    assert "known: synthetic:k160, synthetic:tiny-v4" in " ".join(capsys.readouterr().err.split())


def test_random_weights_are_not_served(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "l.db"
    opened = Ledger.open(path)
    planned.open_campaign(opened, QUICK, start={}, box="box", now_utc=NOW)
    opened.close()
    assert cli.main(["serve", "--checkpoint", MODEL, "--ledger", str(path)]) == 2
    assert "nothing to serve" in capsys.readouterr().err


def test_the_doctor_knows_a_synthetic_model() -> None:
    assert "random weights" in check_checkpoint(Path(MODEL)).said
    with pytest.raises(UsageError, match="there is no model"):
        check_checkpoint(Path("synthetic:k1"))


# ---------------------------------------------------------------- the report


def test_every_page_on_random_weights_says_so(tmp_path: Path) -> None:
    opened = Ledger.open(tmp_path / "l.db")
    planned.open_campaign(opened, QUICK, start={}, box="box", now_utc=NOW)
    world = World({'{"threads":2}': -0.05}, bend=lambda _step, run: _synthetic(run))
    drive(opened, [lever()], world)
    document = gather(opened, [lever()])
    assert "ruler synthetic quick-" in document.title
    assert synthetic.NOTE in document.notes
    assert "ms/token of plain decode, synthetic weights" in document.incumbent.text
    assert "tau" not in document.incumbent.text
    assert document.detail is not None
    assert document.detail.tau is None
    with opened.reading() as connection, pytest.raises(LedgerError, match="nothing about widths"):
        own(connection)
    with opened.reading() as connection:
        view = views.load(connection)
    assert "| synthetic weights, plain decode: saves" in render(view, [lever()])
    assert fold(view).promotions


def _synthetic(run: RunRecord) -> RunRecord:
    """The same run as one of random weights would be: no drafts, one token a round."""
    arms = tuple(
        replace(a, effective={**a.effective, "draft_width": 0},
                fingerprint=fingerprint({**a.effective, "draft_width": 0}))
        for a in run.header.arms
    )  # fmt: skip
    points = tuple(
        replace(p, width=0, rounds=p.tokens - 1, forwards=p.tokens - 1, max_committed=1,
                accepted_by_position=(), offered_by_position=())
        for p in run.points
    )  # fmt: skip
    checkpoint = replace(run.header.checkpoint, path=MODEL)
    header = replace(run.header, arms=arms, synthetic=True, checkpoint=checkpoint)
    return replace(run, header=header, points=points)
