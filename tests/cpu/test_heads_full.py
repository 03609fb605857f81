"""Heads of full size: experts that stay packed, memory that is told before, and the command."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import checkpoints
import pytest
import torch
from torch import Tensor

from engine.errors import CheckpointError, ConfigError, NumericsError
from engine.formats import decode_mxfp4, encode_mxfp4
from engine.geometry import Geometry
from engine.heads import arm, export, full, head as heads, memory
from engine.heads.command import main
from engine.heads.head import Head, holding
from engine.heads.recipe import Recipe
from engine.heads.stage import StageRefused
from engine.heads.trainer import Trainer
from engine.suite import ASSETS
from engine.train import chosen
from engine.train.sublayer import Sublayers
from engine.weights import MoeWeights

TINY, CPU = ASSETS / "tiny-v4", torch.device("cpu")
# What full size has and the embedded model has not: more experts than rows choose.
REDUCED = checkpoints.QUICK | {
    "n_routed_experts": 24, "num_experts_per_tok": 6, "compress_ratios": [4, 8, 0, 0, 0],
}  # fmt: skip
RECIPE = Recipe.parse({"batch": 2, "anchors": 3, "steps": 3})


# -- packed experts ----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_experts_are_decoded_as_the_format_says(dtype: torch.dtype) -> None:
    random = torch.Generator().manual_seed(1)
    weights = torch.randn(3, 5, 64, generator=random) * torch.logspace(-6, 6, 5)[:, None]
    codes, scale = encode_mxfp4(weights)
    codes.view(torch.uint8)[0] = torch.arange(160).view(5, 32)
    found = chosen.decoded(codes, scale, dtype)
    assert found.dtype == dtype
    assert torch.equal(found.float(), decode_mxfp4(codes, scale))


@pytest.fixture(scope="module")
def both() -> tuple[MoeWeights, MoeWeights]:
    """A stage's mixture with its experts decoded, and packed."""
    first, second = (
        Head(TINY, CPU, packed=packed).weights.draft.stages[1].moe for packed in (False, True)
    )
    assert first.scales is None
    assert second.scales is not None
    return first, second


def mixed(w: MoeWeights, dtype: torch.dtype = torch.float32, rows: int = 40) -> list[Tensor]:
    """Output, load, and the gradients of input and router."""
    random = torch.Generator().manual_seed(2)
    geometry = Geometry.load(TINY)
    x = torch.randn(rows, geometry.hidden_size, generator=random).to(dtype).requires_grad_()
    above = torch.randn(rows, geometry.hidden_size, generator=random).to(dtype)
    gate = w.gate.detach().clone().requires_grad_()
    w = dataclasses.replace(w, gate=gate)
    ids = torch.arange(rows)
    y, load = Sublayers(geometry, rounding=True).mixture(x, w, ids)
    y.backward(above)
    assert x.grad is not None
    assert gate.grad is not None
    return [y.detach(), load, x.grad, gate.grad]


def same(first: list[Tensor], second: list[Tensor], tolerance: float = 1e-5) -> None:
    for mine, other in zip(first, second, strict=True):
        assert (mine - other).norm() <= tolerance * other.norm()
        assert other.norm() > 0


def narrowed(w: MoeWeights, dtype: torch.dtype) -> MoeWeights:
    """The same mixture in another number's type, packed experts aside."""
    narrow = {f: getattr(w, f).detach().to(dtype) for f in ("shared_w1", "shared_w3", "shared_w2")}
    if w.scales is None:
        narrow |= {f: getattr(w, f).to(dtype) for f in ("w1", "w3", "w2")}
    return dataclasses.replace(w, **narrow)


@pytest.mark.parametrize("together", [1, 300_000, 1 << 30])
def test_chosen_experts_are_every_expert_weighted(
    both: tuple[MoeWeights, MoeWeights], together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chosen, "TOGETHER_BYTES", together)
    for rows in (1, 40):
        same(mixed(both[1], rows=rows), mixed(both[0], rows=rows))


def test_experts_that_nobody_chose_are_left_out(both: tuple[MoeWeights, MoeWeights]) -> None:
    bias = torch.tensor([0.0, -9.0, 0.0, -9.0, -9.0, 0.0, -9.0, -9.0])
    dense, packed = (mixed(dataclasses.replace(w, bias=bias)) for w in both)
    same(packed, dense)
    assert (packed[1] > 0).tolist() == (bias == 0).tolist()


def test_a_row_whose_choices_coincide_adds_their_weights(
    both: tuple[MoeWeights, MoeWeights],
) -> None:
    table = torch.tensor([[3, 3], [3, 5], [7, 7], [0, 1]]).repeat(10, 1)
    dense, packed = (mixed(dataclasses.replace(w, experts_by_token=table)) for w in both)
    same(packed, dense)
    assert packed[1].tolist() == [10, 10, 0, 20, 0, 10, 0, 10]


def test_both_ways_agree_as_far_as_bfloat16_goes(both: tuple[MoeWeights, MoeWeights]) -> None:
    dense, packed = (mixed(narrowed(w, torch.bfloat16), torch.bfloat16) for w in both)
    same(packed, dense, tolerance=0.02)


def test_nothing_decoded_is_kept_for_the_backward(both: tuple[MoeWeights, MoeWeights]) -> None:
    kept: list[tuple[int, ...]] = []

    def note(tensor: Tensor) -> Tensor:
        kept.append(tuple(tensor.shape))
        return tensor

    x = torch.randn(6, 256, requires_grad=True)
    shares = torch.rand(6, 2, requires_grad=True)
    picks = torch.randint(8, (6, 2))
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        y = chosen.combined(x, picks, shares, both[1], 10.0)
    assert kept == [(6, 256), (6, 2)]
    y.sum().backward()


# -- a head with packed experts ----------------------------------------------------------------


def trained(*, packed: bool) -> Trainer:
    """The embedded head after three steps on random states."""
    head = Head(TINY, CPU, packed=packed)
    trainer = Trainer(head, full.Drawn(head.geometry, CPU, 2, 40), RECIPE)
    for _ in range(RECIPE.steps):
        trainer.step()
    return trainer


def test_a_training_with_packed_experts_is_the_same_training(tmp_path: Path) -> None:
    begun = Head(TINY, CPU, packed=True)
    dense, packed = trained(packed=False), trained(packed=True)
    assert packed.graded == dense.graded
    moved = (dense.head.parameters.master - begun.parameters.master).norm()
    apart = (dense.head.parameters.master - packed.head.parameters.master).norm()
    assert 0 < apart < 0.01 * moved
    mine = packed.head.on_host().draft.stages[2].moe
    assert mine.scales is None
    assert torch.equal(mine.w2, begun.on_host().draft.stages[2].moe.w2)
    assert packed.start is not None
    assert packed.start.draft.stages[0].moe.w1 is packed.head.weights.draft.stages[0].moe.w1
    packed.head.parameters.refresh(quantised=True)
    assert export.export(packed.head, tmp_path)["trained_tensors"] == 72


def test_a_head_whose_experts_are_not_whole_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = heads.raw_tensors(TINY, heads.is_draft)
    name = "mtp.1.ffn.experts.3.w2.scale"
    for spoilt, said in (
        ({n: t for n, t in real.items() if n != name}, f"lacks the tensor {name}"),
        (real | {name: real[name][:4]}, f"{name} is not what"),
    ):
        monkeypatch.setattr(heads, "raw_tensors", lambda *_, found=spoilt: found)
        with pytest.raises(CheckpointError, match=said):
            Head(TINY, CPU)


# -- memory ------------------------------------------------------------------------------------


def test_experts_are_packed_where_they_would_be_most_of_the_memory() -> None:
    assert not holding(Geometry.load(TINY)).packed
    held = holding(Geometry.named("k160"))
    assert held.packed
    assert held.reason == "the routed experts would take 22.5 GiB decoded, more than 1.0 GiB"


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("optimiser", ["muon", "adamw"])
def test_what_is_stated_is_what_is_held(packed: bool, optimiser: str) -> None:
    recipe = dataclasses.replace(RECIPE, optimiser=optimiser)
    head = Head(TINY, CPU, packed=packed)
    trainer = Trainer(head, full.Drawn(head.geometry, CPU, 2, 40), recipe)
    said = memory.needed(head.geometry, recipe, 40, packed=packed, dtype=head.dtype)
    p, o = head.parameters, trainer.optimiser
    assert said.parameters == p.master.nbytes + p._low.nbytes + p._high.nbytes
    assert said.gradients == p._low_grad.nbytes + p._high_grad.nbytes + p.gradient().nbytes
    held = (o.momentum, o.first, o.second, o._scale, o._decay)
    assert said.moments == sum(t.nbytes for t in held)
    assert said.experts == sum(t.nbytes for t in head._experts.values())
    assert said.shared == head.weights.embed.nbytes + head.weights.head.nbytes
    assert said.start == p._low.nbytes + p._high.nbytes
    assert memory.needed(
        head.geometry, dataclasses.replace(recipe, anchor=0.0), 40, packed=packed, dtype=head.dtype
    ).start == 0  # fmt: skip


def test_a_device_with_too_little_memory_is_refused_in_one_sentence() -> None:
    said = memory.needed(Geometry.named("k160"), Recipe(), 512, packed=True, dtype=torch.bfloat16)
    memory.require(said, said.total)
    with pytest.raises(StageRefused, match=r"needs about .* experts, .*; 8\.00 GiB are free\.$"):
        memory.require(said, 8 << 30)


def test_what_a_gate_needs_of_the_host_is_told_too(monkeypatch: pytest.MonkeyPatch) -> None:
    geometry = Geometry.named("k160")
    assert memory.gate_bytes(geometry) == pytest.approx(54.5e9, rel=0.01)
    free = {"meta": 1 << 40, "cpu": 40 << 30}
    monkeypatch.setattr(memory, "free_bytes", lambda device: free[device.type])
    with pytest.raises(StageRefused, match=r"gate .* in float32 on the host, .*; 40\.00 GiB are"):
        memory.require_room(geometry, Recipe(), 512, torch.device("meta"))
    free["cpu"] = 1 << 40
    assert memory.require_room(geometry, Recipe(), 512, torch.device("meta")).experts > 6e9


def test_an_arm_asks_for_the_disk_that_it_fills(tmp_path: Path) -> None:
    head = Head(TINY, CPU)
    trainer = Trainer(head, full.Drawn(head.geometry, CPU, 2, 40), RECIPE)
    trainer.save(tmp_path / "resume.pt")
    exported = export.export(head, tmp_path)["bytes"]
    resume = (tmp_path / "resume.pt").stat().st_size
    assert arm.room_bytes(head) == pytest.approx(exported + 2 * resume, rel=0.3)


# -- the command -------------------------------------------------------------------------------


def test_full_size_is_shown_at_a_reduced_one(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heads, "DECODED_BYTES", 0)
    (tmp_path / "config.json").write_text(json.dumps(REDUCED))
    words = ["full", "--geometry", str(tmp_path), "--steps", "3", "--length", "40", "--json"]
    assert main([*words, "--recipe", '{"batch": 2, "anchors": 4}']) == 0
    found, said = capfd.readouterr()
    facts = json.loads(found)
    assert "full: export of 72 tensors" in said
    assert (facts["stages"], facts["packed"], len(facts["losses"])) == (3, True, 3)
    assert facts["without_gradient"] == [f"mtp.{s}.ffn.gate.bias" for s in range(3)]
    assert facts["export"]["worst_round_trip"] < 0.1
    assert facts["export"]["otherwise"] == []
    assert facts["bytes_per_token"] == 3 * 64 * 2 + 4
    assert facts["planned_hours"] == pytest.approx(facts["step_s"] * 2000 / 3600, abs=1e-3)
    assert [p.name for p in tmp_path.iterdir()] == ["config.json"]


def test_the_number_of_stages_can_be_asked_for() -> None:
    assert full.geometry_of("k160", None).draft_stages == 3
    assert full.geometry_of("k160", 1).draft_stages == 1
    with pytest.raises(ConfigError, match="--stages must be from 1"):
        full.geometry_of("k160", 0)


def test_a_random_head_keeps_the_size_of_what_it_multiplies() -> None:
    made = full.drawn_head(Geometry.parse(REDUCED), CPU)
    for entry in heads.expert_entries(made.geometry):
        codes, scale = made.experts[entry.name], made.experts[heads.scale_name(entry.name)]
        spread = decode_mxfp4(codes, scale).std() * entry.shape[-1] ** 0.5
        assert 0.5 < spread < 2


def test_a_tensor_that_no_gradient_reaches_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    geometry = Geometry.parse(REDUCED)
    recipe = dataclasses.replace(RECIPE, confidence=0.0)
    facts = full.show(geometry, CPU, recipe, steps=1, length=40)
    assert any("confidence_head" in name for name in facts["without_gradient"])
    with monkeypatch.context() as lost:
        lost.setattr(full.Trainer, "without_gradient", lambda _: ["mtp.0.attn.wkv.weight"])
        with pytest.raises(NumericsError, match=r"No gradient reached .*wkv"):
            full.show(geometry, CPU, recipe, steps=1, length=40)
    with pytest.raises(ConfigError, match="a step or more"):
        full.show(geometry, CPU, RECIPE, steps=0, length=40)
    monkeypatch.setattr(memory, "free_bytes", lambda _: 1 << 20)
    with pytest.raises(StageRefused, match="are free"):
        full.show(geometry, CPU, RECIPE, steps=1, length=40)


@pytest.mark.parametrize("device", ["meta", "mps", "nowhere"])
def test_a_device_that_is_neither_cpu_nor_cuda_is_refused(
    device: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["full", "--geometry", "tiny-v4", "--device", device]) == 2
    assert "use cpu or cuda" in capsys.readouterr().err


def test_an_interrupt_promises_no_more_than_was_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(full, "show", interrupted)
    assert main(["full", "--geometry", "tiny-v4"]) == 130
    assert capsys.readouterr().err == "engine.heads: interrupted; nothing of it was kept.\n"
    monkeypatch.setattr("engine.heads.arm.make", interrupted)
    words = ["train", "--capture", str(tmp_path), "--out", str(tmp_path / "out")]
    assert main(words) == 130
    assert "goes on from here" in capsys.readouterr().err
