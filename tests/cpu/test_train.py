"""The trainer on a very small geometry: data, rounding, resume, export, and the whole command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.errors import CheckpointError, EngineError
from engine.formats import fp8_round_trip, mxfp4_round_trip
from engine.geometry import Geometry
from engine.train import export, initial
from engine.train.backbone import Plan, Trainer
from engine.train.command import main
from engine.train.data import ASSISTANT_ID, USER_ID, Rows, Split, prompt_of, spoken, synthetic
from engine.train.draft import DraftPlan, DraftTrainer
from engine.train.evaluate import Generation, acceptance, generate
from engine.train.model import Model
from engine.train.optimiser import orthogonalised
from engine.train.probe import probe
from engine.train.schedule import Budget, Shape
from engine.train.sublayer import select

CPU = torch.device("cpu")
CONFIG = {
    "vocab_size": 256, "hidden_size": 128, "moe_intermediate_size": 128, "num_hidden_layers": 4,
    "num_hash_layers": 1, "num_attention_heads": 2, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "routed_scaling_factor": 1.5, "swiglu_limit": 10.0, "rms_norm_eps": 1e-6, "q_lora_rank": 128,
    "head_dim": 128, "qk_rope_head_dim": 64, "o_groups": 2, "o_lora_rank": 64, "sliding_window": 32,
    "compress_ratios": [0, 4, 128, 4, 0, 0], "compress_rope_theta": 160000, "rope_theta": 10000,
    "rope_scaling": {"type": "yarn", "factor": 4, "original_max_position_embeddings": 128},
    "index_n_heads": 2, "index_head_dim": 128, "index_topk": 8, "hc_mult": 4,
    "hc_sinkhorn_iters": 20, "hc_eps": 1e-6, "dspark_block_size": 5, "dspark_noise_token_id": 9,
    "dspark_target_layer_ids": [2, 3], "dspark_markov_rank": 16, "bos_token_id": 0,
    "eos_token_id": 1, "max_position_embeddings": 512, "tie_word_embeddings": False,
    "quantization_config": {
        "activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "scale_fmt": "ue8m0",
        "weight_block_size": [128, 128],
    },
}  # fmt: skip
GEOMETRY = Geometry.parse(CONFIG)
SHAPE = Shape(warm_steps=2, quantise_from=0.4, sparse_from=0.6)
PLAN = Plan(batch=2, length=160, shape=SHAPE)


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    synthetic(GEOMETRY, 200, 1).tofile(folder / "train.u16.bin")
    synthetic(GEOMETRY, 20, 2).tofile(folder / "heldout.u16.bin")
    (folder / "corpus.json").write_text('{"sources": []}')
    return folder


@pytest.fixture(scope="module")
def split(corpus: Path) -> Split:
    return Split(corpus / "train.u16.bin", GEOMETRY, CPU)


def test_rows_begin_documents_and_mark_where_each_token_s_document_began(split: Split) -> None:
    rows = Rows(split, 4, 320, seed=3, emphasis=2.0, open_share=0.0)
    for number in (0, 1, rows.per_epoch, 3 * rows.per_epoch + 1):
        batch = rows.batch(number)
        assert (batch.ids[:, 0] == GEOMETRY.bos_token_id).all()
        assert torch.equal(batch.ids[:, 1:], batch.targets[:, :-1])
        begun = torch.where(batch.ids == GEOMETRY.bos_token_id, torch.arange(320), 0)
        begun = begun.cummax(1).values
        assert torch.equal(batch.starts, begun)
        assert (batch.weights[batch.targets == GEOMETRY.bos_token_id] == 0).all()
        assert set(batch.weights.unique().tolist()) <= {0.0, 1.0, 2.0}


def test_an_epoch_shows_every_document_and_the_next_one_in_another_order(split: Split) -> None:
    rows = Rows(split, 1, 320, seed=3, emphasis=1.0, open_share=0.0)
    seen = torch.zeros(split.tokens)
    for number in range(rows.per_epoch):
        rows.batch(number)
        seen[rows._begins] = 1
    assert int(seen.sum()) == len(split.begins)
    first = [rows.batch(n).ids for n in range(3)]
    second = [rows.batch(n + rows.per_epoch).ids for n in range(3)]
    assert not any(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_the_assistant_s_tokens_are_those_after_its_header() -> None:
    user, reply = USER_ID, ASSISTANT_ID
    ids = np.array([0, user, 20, 21, reply, 30, 31, 1, user, 22, reply, 33, 1, 0, 50])
    want = [0, 0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 0, 0]
    assert spoken(ids, GEOMETRY).astype(int).tolist() == want
    assert prompt_of(ids[:13], GEOMETRY, 100) == ids[:11].tolist()


def test_a_file_that_is_no_corpus_is_refused_in_one_sentence(tmp_path: Path) -> None:
    np.array([5, 6], dtype=np.uint16).tofile(tmp_path / "x")
    with pytest.raises(EngineError, match="does not begin with BOS"):
        Split(tmp_path / "x", GEOMETRY, CPU)
    with pytest.raises(EngineError, match="Cannot read"):
        Split(tmp_path / "missing", GEOMETRY, CPU)


def test_the_working_copy_is_exactly_what_the_formats_keep() -> None:
    model = Model(GEOMETRY, CPU)
    values = initial.values(GEOMETRY, 1)
    model.refresh(quantised=True)
    for group in (model.backbone, model.draft):
        native = group.native()
        for place in group.places:
            for name in place.entry.native:
                trip = {"fp4": mxfp4_round_trip, "fp8": fp8_round_trip}.get(place.entry.format)
                want = trip(values[name]) if trip else values[name]
                if place.entry.format == "bf16":
                    want = want.bfloat16().float()
                assert torch.equal(native[name], want), name


def test_every_trainable_tensor_of_the_backbone_gets_a_gradient(split: Split) -> None:
    trainer = Trainer(Model(GEOMETRY, CPU), split, PLAN)
    trainer.model.backbone.clear()
    trainer.loss(trainer.rows.batch(0), sparse=True)[0].backward()
    silent = [
        p.entry.name
        for p in trainer.model.backbone.places
        if not bool(trainer.model.backbone.leaves[p.entry.name].grad.abs().sum() > 0)  # type: ignore[union-attr]
    ]
    assert all(name.endswith("gate.bias") for name in silent)


def test_the_indexer_loss_moves_the_indexer_alone(split: Split) -> None:
    trainer = Trainer(Model(GEOMETRY, CPU), split, PLAN)
    model, batch = trainer.model, trainer.rows.batch(0)
    model.backbone.clear()
    model.forward.run(model.weights, batch.ids, batch.starts).divergence.backward()
    for place in model.backbone.places:
        grad = model.backbone.leaves[place.entry.name].grad
        assert grad is not None
        assert bool(grad.abs().sum() > 0) == (".indexer." in place.entry.name), place.entry.name


def test_router_biases_move_toward_starved_experts() -> None:
    model = Model(GEOMETRY, CPU)
    model.balance([torch.tensor([4.0, 0.0, 2.0, 2.0])] * 4, 1.0)
    model.refresh(quantised=True)
    bias = model.backbone.native()["layers.2.ffn.gate.bias"]
    assert bias[0] < 0 < bias[1]
    assert bias[2] == bias[3] == 0


def test_training_resumes_bit_for_bit(split: Split, tmp_path: Path) -> None:
    steps = 5
    whole = Trainer(Model(GEOMETRY, CPU), split, PLAN)
    for step in range(steps):
        whole.step(step / steps)
    part = Trainer(Model(GEOMETRY, CPU), split, PLAN)
    for step in range(2):
        part.step(step / steps)
    part.save(tmp_path / "resume.pt")
    resumed = Trainer(Model(GEOMETRY, CPU, seed=9), split, PLAN)
    resumed.restore(tmp_path / "resume.pt")
    for step in range(2, steps):
        resumed.step(step / steps)
    assert resumed.step_number == steps
    assert torch.equal(resumed.model.backbone.master, whole.model.backbone.master)
    assert torch.equal(resumed.optimiser.second, whole.optimiser.second)
    assert torch.equal(resumed.optimiser.momentum, whole.optimiser.momentum)


@pytest.mark.parametrize("muon", [True, False])
def test_a_few_steps_lower_the_loss(split: Split, muon: bool) -> None:
    plan = Plan(batch=2, length=160, muon=muon, shape=SHAPE)
    trainer = Trainer(Model(GEOMETRY, CPU), split, plan)
    found = [float(trainer.step(step / 12)["loss"]) for step in range(12)]
    assert found[-1] < found[0] - 0.3


def test_the_draft_head_learns_and_leaves_the_backbone_alone(split: Split) -> None:
    model = Model(GEOMETRY, CPU)
    model.refresh(quantised=True)
    before = model.backbone.master.clone()
    trainer = DraftTrainer(model, split, DraftPlan(batch=2, length=160, anchors=16, shape=SHAPE))
    found = [float(trainer.step(step / 12)["loss"]) for step in range(12)]
    assert found[-1] < found[0]
    assert torch.equal(model.backbone.master, before)
    leaves = model.draft.leaves.items()
    silent = [n for n, leaf in leaves if leaf.grad is None or not leaf.grad.any()]
    assert all(name.endswith("gate.bias") for name in silent)


def test_an_exported_checkpoint_reads_back_exactly(tmp_path: Path) -> None:
    model = Model(GEOMETRY, CPU)
    model.refresh(quantised=True)
    tensors = model.native()
    export.write(tensors, GEOMETRY, tmp_path / "model.safetensors")
    back = export.read(tmp_path / "model.safetensors")
    assert back.keys() == tensors.keys()
    assert all(torch.equal(back[name], tensors[name]) for name in tensors)
    again = Model(GEOMETRY, CPU, start=tmp_path)
    assert all(torch.equal(t, tensors[n]) for n, t in again.native().items())


def test_export_refuses_a_tensor_that_its_format_cannot_hold() -> None:
    tensors = Model(GEOMETRY, CPU).native()
    name = "layers.0.ffn.experts.0.w1.weight"
    with pytest.raises(CheckpointError, match=name):
        export.encode(tensors, GEOMETRY)  # never rounded, so MXFP4 loses more than a tenth
    tensors = Model(GEOMETRY, CPU).native()
    tensors["norm.weight"] = tensors["norm.weight"] * float("nan")
    with pytest.raises(CheckpointError, match="not finite"):
        export.encode(tensors, GEOMETRY)


def test_generated_text_is_the_argmax_chain_whatever_the_batch() -> None:
    model = Model(GEOMETRY, CPU)
    model.refresh(quantised=True)
    begins = [[0, 40, 41], [0, 50, 51, 52, 53, 54], [0, 60]]
    text = generate(model, begins, 8)
    for row, begin in enumerate(begins):
        ids = [*begin, *text.text(row)]
        trace = model.plain.run(model.weights, torch.tensor([ids]))
        best = model.plain.logits(model.weights, trace.hidden)[0].argmax(-1)
        assert ids[len(begin) :] == best[len(begin) - 1 : -1].tolist()


def test_acceptance_counts_what_a_perfect_and_a_useless_draft_would_get() -> None:
    model = Model(GEOMETRY, CPU)
    model.refresh(quantised=True)
    ids = torch.randint(16, 256, (2, 40), generator=torch.Generator().manual_seed(1))
    text = Generation(ids, torch.tensor([5, 9]), torch.tensor([40, 36]))
    found = acceptance(model, text)
    assert 1.0 <= found["tau"] <= 6.0
    assert found["tokens"] >= found["rounds"] > 0


def test_selection_keeps_the_best_visible_rows() -> None:
    scores = torch.tensor([[[1.0, 5.0, 3.0, 9.0]]])
    far = torch.tensor([[[True, True, True, False]]])
    assert select(scores, far, 2).tolist() == [[[False, True, True, False]]]
    assert select(scores, far, 4) is far


def test_orthogonalised_matrices_have_singular_values_near_one() -> None:
    for shape in ((3, 64, 128), (2, 128, 64)):
        values = torch.linalg.svdvals(orthogonalised(torch.randn(shape)))
        assert values.min() > 0.3
        assert values.max() < 1.6


def test_the_schedule_warms_up_stays_and_decays() -> None:
    shape = Shape(warm_steps=10, decay_from=0.5, last=0.02)
    assert shape.factor(0, 0.0) == pytest.approx(0.1)
    assert shape.factor(50, 0.4) == 1.0
    assert shape.factor(90, 0.75) == pytest.approx(0.5)
    assert shape.factor(99, 0.999) == pytest.approx(0.02)
    assert Budget(steps=4).fraction(1) == 0.25
    budget = Budget(seconds=100.0, begun=0.25)
    assert budget.fraction(7) == 0.25
    budget.settled()
    assert 0.25 <= budget.fraction(8) < 0.3
    assert Budget(seconds=0.0).fraction(0) == 1.0


def test_the_whole_command_trains_exports_and_describes(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "config.json").write_text(json.dumps(CONFIG))
    out = tmp_path / "made"
    common = ["--config", str(tmp_path / "config"), "--corpus", str(corpus), "--device", "cpu"]
    assert main(["all", *common, "--out", str(out), "--smoke"]) == 0
    card = json.loads((out / "card.json").read_text())
    assert card["backbone"]["steps"] == 4
    assert card["draft"]["steps"] == 2
    assert card["corpus"] == {"sources": []}
    assert card["files"]["model.safetensors"]["bytes"] == (out / "model.safetensors").stat().st_size
    assert card["backbone"]["held_out_bits_per_token"] > 0
    again = tmp_path / "again"
    before = export.read(out / "model.safetensors")
    draft = ["draft", *common, "--start", str(out), "--out", str(again), "--smoke"]
    assert main([*draft, "--fresh-head"]) == 0
    after = export.read(again / "model.safetensors")
    assert all(torch.equal(before[name], after[name]) for name in before)  # the same training
    assert main(draft) == 0
    after = export.read(again / "model.safetensors")
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed
    assert all(name.startswith("mtp.") for name in changed)
    assert json.loads((again / "card.json").read_text())["backbone"]["steps"] == 4


def test_the_probe_checks_rounding_and_times_steps(
    split: Split, capsys: pytest.CaptureFixture[str]
) -> None:
    probe(Model(GEOMETRY, CPU), split, "2", 160, 60.0, steps=1)
    said = capsys.readouterr().out
    assert "rounding differs from the export's in 0 tensors" in said
    assert "tok/s" in said


def test_a_missing_corpus_is_one_sentence_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["all", "--corpus", str(tmp_path / "none"), "--out", str(tmp_path / "o"), "--smoke"]
    assert main([*arguments, "--device", "cpu"]) == 2
    assert "Cannot read" in capsys.readouterr().err


def test_sinkhorn_kernels_match_the_operator_under_the_interpreter() -> None:
    pytest.importorskip("triton")
    code = (
        "import torch\n"
        "from engine.train import sinkhorn_kernel as k\n"
        "from engine.train.sinkhorn import balanced\n"
        "x = (torch.randn(70, 4, 4) * 2).requires_grad_()\n"
        "up = torch.randn(70, 4, 4)\n"
        "want = balanced(x, 20, 1e-6)\n"
        "(want * up).sum().backward()\n"
        "got, sums = k.forward(x.detach(), 20, 1e-6)\n"
        "torch.testing.assert_close(got, want.detach(), rtol=1e-5, atol=1e-6)\n"
        "back = k.backward(up, got, sums, 20, 1e-6)\n"
        "torch.testing.assert_close(back, x.grad, rtol=1e-3, atol=1e-5)\n"
    )
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
