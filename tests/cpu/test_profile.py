"""Profiles: spans become a tree that cannot contradict itself; what is left to gain is ranked."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import torch
from rich.console import Console

from engine.bench.command import main as bench
from engine.config import CHOICES
from engine.engine import Engine
from engine.errors import ConfigError
from engine.geometry import Geometry
from engine.inventory.part import parts, read_bytes
from engine.measure.command import main as measure
from engine.profile import ceiling, host, weight
from engine.profile.ceiling import Ceiling
from engine.profile.command import main
from engine.profile.decode import decode, random_prompt
from engine.profile.page import show
from engine.profile.phase import Phase, ProfileError, check, tree
from engine.profile.profile import Profile
from engine.profile.residual import rank
from engine.profile.script import Launch, Script
from engine.profile.span import Span, Steps, union_ns
from engine.suite import ASSETS
from flywheel.run.manifest import Manifest, engine_config
from flywheel.run.parse import parse
from flywheel.run.refusal import Refusal

FLAT = Ceiling.of({1 << 20: 1000.0, 1 << 30: 1000.0}, "invented")
MS = 1_000_000.0


def span(path: str, start_ms: float, end_ms: float) -> Span:
    return Span(tuple(path.split("/")), start_ms * MS, end_ms * MS)


# ---------------------------------------------------------------- spans and trees


@pytest.mark.parametrize(
    ("spans", "expected_ms"),
    [
        ([], 0.0),
        ([span("a", 0, 2)], 2.0),
        ([span("a", 0, 2), span("a", 3, 4)], 3.0),
        ([span("a", 0, 2), span("a", 1, 4)], 4.0),
        ([span("a", 0, 9), span("a", 1, 2), span("a", 3, 4)], 9.0),
        ([span("a", 3, 4), span("a", 0, 2)], 3.0),
    ],
)
def test_time_that_spans_share_counts_once(spans: list[Span], expected_ms: float) -> None:
    assert union_ns(spans) == expected_ms * MS


def test_a_tree_holds_the_mean_step_with_gaps_as_its_own_time() -> None:
    one = [span("attention/wq_b", 0, 2), span("attention/wo_b", 2, 3), span("experts", 4, 8)]
    two = [Span(s.path, s.start_ns + 10 * MS, s.end_ns + 10 * MS) for s in one]
    root = tree(Steps((*one, *two), (9 * MS, 11 * MS)), {("experts",): 80.0})
    found = {phase.name: phase for phase in root.walk()}
    assert {name: phase.ms for name, phase in found.items()} == {
        "step": 10.0, "attention": 3.0, "attention/wq_b": 2.0, "attention/wo_b": 1.0, "experts": 4.0
    }  # fmt: skip
    assert root.own_ms == pytest.approx(3.0)
    assert (root.launches, root.bytes) == (3.0, 80.0)


def test_phases_side_by_side_are_not_counted_twice_in_their_parent() -> None:
    spans = (span("shared", 0, 4), span("routed", 2, 6))
    root = tree(Steps(spans, (6 * MS,)), {})
    assert root.overlap_ms == pytest.approx(2.0)
    assert root.own_ms == pytest.approx(0.0)


def test_a_parent_that_was_timed_itself_keeps_its_own_time() -> None:
    spans = (span("draft", 0, 5), span("draft/head", 1, 3))
    root = tree(Steps(spans, (6 * MS,)), {})
    draft = root.children[0]
    assert (draft.ms, draft.own_ms) == (5.0, 3.0)


def test_children_that_exceed_their_step_are_an_error() -> None:
    with pytest.raises(ProfileError, match=r"inside step take 5\.0000 ms, but step itself takes 4"):
        tree(Steps((span("a", 0, 2), span("b", 2, 5)), (4 * MS,)), {})


def test_children_that_exceed_a_parent_timed_itself_are_an_error() -> None:
    spans = (span("draft", 0, 2), span("draft/head", 1, 9))
    with pytest.raises(ProfileError, match="inside draft"):
        tree(Steps(spans, (20 * MS,)), {})


def test_one_child_longer_than_its_parent_is_an_error_whatever_overlaps() -> None:
    long = Phase(("a",), 9.0, 1, 0.0)
    with pytest.raises(ProfileError, match="a takes 9"):
        check(Phase((), 5.0, 2, 0.0, overlap_ms=8.0, children=(long, Phase(("b",), 1.0, 1, 0.0))))


def test_a_difference_within_the_clocks_resolution_is_none() -> None:
    tree(Steps((span("a", 0, 1.0005),), (1 * MS,)), {})


def test_bytes_of_a_phase_that_never_ran_are_an_error() -> None:
    with pytest.raises(ProfileError, match="never ran expert"):
        tree(Steps((span("experts", 0, 1),), (2 * MS,)), {("expert",): 1.0})


def test_a_step_without_phases_is_an_error() -> None:
    with pytest.raises(ProfileError, match="Nothing was timed"):
        tree(Steps((), (1 * MS,)), {})


# ---------------------------------------------------------------- ceilings and ranking


def test_the_ceiling_lies_between_the_sizes_that_were_measured() -> None:
    found = Ceiling.of({1 << 20: 500.0, 1 << 24: 2500.0, 1 << 30: 4700.0}, "invented")
    assert found.gb_s(1 << 20) == 500.0
    assert found.gb_s(1 << 22) == pytest.approx(1500.0)
    assert found.gb_s(1 << 31) == 4700.0
    assert found.gb_s(1 << 19) == pytest.approx(250.0)  # no launch is shorter than the shortest


def test_the_ranking_is_time_that_bytes_do_not_explain() -> None:
    # 1000 GB/s: 2 MB take 2 us. `slow` takes ten times that, `full` just that.
    spans = (span("slow", 0, 0.020), span("full", 0.030, 0.032), span("empty", 0.040, 0.045))
    root = tree(Steps(spans, (0.050 * MS,)), {("slow",): 2e6, ("full",): 2e6})
    ranking = {r.name: r for r in rank(root, FLAT)}
    assert list(ranking) == ["step, between phases", "slow", "empty", "full"]
    assert ranking["slow"].ms_to_gain == pytest.approx(0.018)
    assert ranking["slow"].of_ceiling == pytest.approx(0.1)
    assert ranking["full"].ms_to_gain == pytest.approx(0.0, abs=1e-9)
    assert ranking["empty"].ms_to_gain == pytest.approx(0.005)
    assert ranking["step, between phases"].ms == pytest.approx(0.023)


def test_a_phase_faster_than_a_plain_read_is_marked_and_gains_nothing() -> None:
    root = tree(Steps((span("cached", 0, 0.001),), (0.001 * MS,)), {("cached",): 4e6})
    found = rank(root, FLAT)[0]
    assert found.impossible
    assert found.ms_to_gain == 0.0


def test_the_sum_of_the_ranking_is_the_whole_step() -> None:
    spans = (span("a/x", 0, 1), span("a/y", 1, 3), span("b", 4, 5))
    root = tree(Steps(spans, (6 * MS,)), {("b",): 1e6})
    assert sum(r.ms for r in rank(root, FLAT)) == pytest.approx(6.0)


# ---------------------------------------------------------------- scripts


def launches(*names: str) -> list[Launch]:
    return [Launch(name, 10.0 * i, 10.0 * i + 5) for i, name in enumerate(names)]


SCRIPT = Script({"multiply": (("wq_b",), ("wo_b",)), "norm": (("norm",),)})


def test_the_launches_of_one_kernel_are_shared_out_in_order() -> None:
    found = SCRIPT.spans(launches(*["norm", "multiply", "multiply", "norm"] * 2), 2)
    assert [s.path[0] for s in found] == ["norm", "wq_b", "wo_b", "norm"] * 2


def test_a_list_of_phases_is_gone_through_once_a_layer() -> None:
    found = SCRIPT.spans(launches(*["multiply"] * 12), 2)
    assert [s.path[0] for s in found] == ["wq_b", "wo_b"] * 6


def test_a_kernel_without_a_phase_is_kept_under_its_name() -> None:
    assert SCRIPT.spans(launches("fill"), 1)[0].path == ("other", "fill")


def test_a_launch_that_waits_for_the_one_before_is_as_long_as_it_runs_alone() -> None:
    early = [Launch("norm", 0, 10), Launch("multiply", 1, 14), Launch("multiply", 2, 12)]
    spans = SCRIPT.spans([*early, Launch("norm", 20, 25)], 1)
    assert [(s.start_ns, s.end_ns) for s in spans] == [(0, 10), (10, 14), (14, 14), (20, 25)]
    phases = {phase.name: phase.ms * 1e6 for phase in tree(Steps(spans, (25.0,)), {}).walk()}
    assert phases == pytest.approx({"step": 25, "norm": 15, "wq_b": 4, "wo_b": 0})


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        ("void at::native::(anonymous namespace)::gather<16, long>(char*, int)", "gather"),
        ("void ns::add<ns::op<2ul> >(int, ns::op<long>)", "add"),
        ("memcpy32_post", "memcpy32_post"),
    ],
)
def test_a_kernel_of_a_library_is_listed_under_its_bare_name(kernel: str, expected: str) -> None:
    assert SCRIPT.spans([Launch(kernel, 0, 1)], 1)[0].path == ("other", expected)


@pytest.mark.parametrize(
    ("count", "steps", "sentence"), [(3, 1, "2 phases cannot share"), (5, 2, "in 2 equal steps")]
)
def test_launches_that_cannot_be_shared_out_are_an_error(
    count: int, steps: int, sentence: str
) -> None:
    with pytest.raises(ProfileError, match=sentence):
        SCRIPT.spans(launches(*["multiply"] * count), steps)


# ---------------------------------------------------------------- bytes


@pytest.mark.parametrize("rows", [1, 6])
@pytest.mark.parametrize(
    "patterns", [weight.TORCH, *(weight.triton(at) for at in CHOICES["shared_expert"])]
)
def test_phases_read_together_what_the_inventory_says_of_a_step(
    patterns: dict[tuple[str, ...], str], rows: int
) -> None:
    geometry = Geometry.named("k160")
    found = weight.weights(geometry, patterns, weight.stored, rows)
    embedded = 2 * geometry.hidden_size * rows  # looked up before any phase
    expected = read_bytes(parts(geometry), geometry, rows)
    assert sum(found.values()) + embedded == pytest.approx(expected, rel=1e-12)
    assert set(found) == set(patterns)


def test_the_cache_that_a_step_reads_is_the_inventorys() -> None:
    found = weight.cache(Geometry.named("k160"), 131072, "packed")
    assert sum(found.values()) / 1e6 == pytest.approx(68, abs=0.5)


# ---------------------------------------------------------------- the torch backend


def test_the_phases_of_a_real_step_fill_it_and_leave_the_engine_as_it_was(
    quick_engine: Engine,
) -> None:
    prompt = random_prompt(quick_engine, 40, 3, 4)
    before = dict(vars(quick_engine.backbone))
    state = quick_engine.new_state()
    profile = decode(quick_engine, prompt, rows=3, steps=4)
    assert dict(vars(quick_engine.backbone)) == before
    assert state.equals(quick_engine.new_state()) is None
    names = {phase["path"]: phase for phase in profile.phases()}
    assert {"hyper", "attention/project", "attention/gather", "attention/finish", "experts",
            "head"} <= set(names)  # fmt: skip
    layers = quick_engine.geometry.num_hidden_layers
    assert names["experts"]["launches"] == layers
    assert names["hyper"]["launches"] == 4 * layers
    covered = sum(child.ms for child in profile.root.children)
    assert 0.5 * profile.root.ms < covered <= profile.root.ms * 1.01


def test_every_profiled_step_computes_what_an_unwatched_one_does(quick_engine: Engine) -> None:
    backbone, ids = quick_engine.backbone, torch.arange(5)
    with torch.inference_mode():
        plain = backbone.logits(backbone.forward(ids, quick_engine.new_state()))
        with host.watched(backbone, host.Recorder()):
            watched = backbone.logits(backbone.forward(ids, quick_engine.new_state()))
    assert torch.equal(plain, watched)


def test_a_failing_step_leaves_the_engine_as_it_was(quick_engine: Engine) -> None:
    backbone = quick_engine.backbone
    before = dict(vars(backbone))
    with pytest.raises(RuntimeError, match="stop"), host.watched(backbone, host.Recorder()):
        raise RuntimeError("stop")
    assert dict(vars(backbone)) == before


def test_the_ceiling_of_the_processor_is_measured_by_size() -> None:
    found = ceiling.measured("cpu", repeats=1)
    assert len(found.points) > 4
    assert all(0.05 < rate < 2000 for _, rate in found.points)


@pytest.mark.parametrize("context", [0, 10**9])
def test_a_context_that_does_not_fit_is_refused(quick_engine: Engine, context: int) -> None:
    with pytest.raises(ConfigError, match="not between 1 and"):
        random_prompt(quick_engine, context, 1, 4)


# ---------------------------------------------------------------- marks


def test_a_profile_says_that_it_is_one_wherever_it_goes() -> None:
    steps = Steps((span("a", 0, 1),), (1 * MS,))
    profile = Profile.of("a step", steps, {}, FLAT, config={}, synthetic=True)
    body = json.loads(profile.text())
    assert (body["mode"], body["clean"], body["synthetic"]) == ("profile", False, True)


def test_the_command_prints_the_mark_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--steps", "2", "--context", "20"]) == 0
    assert capsys.readouterr().out.startswith("PROFILE: its times are its own and never count")


def test_the_benchmark_hands_profiles_over(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(["--profile", "--steps", "2", "--context", "20", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["mode"] == "profile"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--steps", "9000"], "9000 steps of 1 rows do not fit into the context of 2048."),
        (["--synthetic", ""], "no geometry named ''"),
    ],
)
def test_what_cannot_be_profiled_is_one_sentence(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--rows", "x"], ["--rows", "9"], ["--context", "0"]])
def test_what_is_no_such_number_is_refused(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(words)
    assert "must be a whole number from 1 to" in capsys.readouterr().err


def test_a_narrow_page_leaves_no_figure_out() -> None:
    steps = Steps((span("attention/project", 0, 1), span("attention/gather", 1, 2)), (2 * MS,))
    profile = Profile.of("a step", steps, {}, FLAT, config={})
    for width in (56, 80):
        out = io.StringIO()
        show(profile, Console(file=out, width=width))
        assert max(map(len, out.getvalue().splitlines())) <= width
        assert out.getvalue().count("1.0000") >= 4
        assert "…" not in out.getvalue()


def test_the_command_refuses_a_folder_that_is_no_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--checkpoint", str(tmp_path)]) == 2
    assert "not a checkpoint" in capsys.readouterr().err


@pytest.mark.slow
def test_the_log_of_a_profile_run_holds_its_phases_and_is_refused_as_a_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = engine_config(
        run_id="p", nonce="0" * 32, checkpoint=str(ASSETS / "tiny-v4"), head=None,
        suite=str(ASSETS / "suites" / "tiny-v1.json"), prompts=("short_factual-0",),
        arms={"A": {}, "B": {"hyper": "host"}}, order=("A", "B", "B", "A"), plain_arms=("A",),
        max_new_tokens=4, seed=0,
    )  # fmt: skip
    plan, log = tmp_path / "config.json", tmp_path / "run.log"
    plan.write_text(json.dumps(config | {"mode": "profile"}))
    monkeypatch.setattr("sys.argv", ["measure", "--config", str(plan), "--log", str(log)])
    assert measure() == 0
    text = log.read_text()
    events = [json.loads(line.split(" ", 1)[1]) for line in text.splitlines() if line[0] == "@"]
    phases = [event for event in events if event["event"] == "phase"]
    assert {event["arm"] for event in phases} == {"A", "B"}
    assert {"step", "experts", "head"} <= {event["path"] for event in phases}
    manifest = Manifest(
        run_id="p", nonce="0" * 32, config=config, argv=("engine",), cwd="/",
        created_utc="2026-01-01T00:00:00Z", timeout_s=60.0,
    )  # fmt: skip
    found = parse(text, manifest)
    assert isinstance(found, Refusal)
    assert found.code == "not_clean"
