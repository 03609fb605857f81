"""The engine against the implementation of the same architecture in `transformers`.

Both read the same files: the library's own loader renames and dequantises them. It knows neither
the draft head nor any rounding, so the comparison runs with numerics `exact`.
"""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import checkpoints
import pytest
import torch
from torch import Tensor

from engine.config import EngineConfig
from engine.engine import Engine
from engine.torch_backend import prefill

ROOT = Path(__file__).parents[2]
TOLERANCE = 1e-4

# Hash-routed layers of both kinds, both compressors the library has, top-k that discards rows.
CONFIG: dict[str, Any] = checkpoints.SMALL | {
    "num_hidden_layers": 6,
    "num_hash_layers": 3,
    "compress_ratios": [0, 0, 4, 128, 4, 128, 0, 0],
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "index_n_heads": 8,  # with few heads many scores are exactly 0, and ties may go either way
    "max_position_embeddings": 4096,
}
LENGTH = 150


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.random_checkpoint(tmp_path_factory.mktemp("oracle"), CONFIG, seed=7)


@pytest.fixture(scope="module")
def peer(folder: Path) -> Any:
    """The library's model over the same files, in float32."""
    transformers = pytest.importorskip(
        "transformers", reason="NO TRANSFORMERS: install the dev extra to compare with it"
    )
    pytest.importorskip("accelerate", reason="NO ACCELERATE: install the dev extra")
    reading = transformers.FineGrainedFP8Config(
        dequantize=True, weight_block_size=(128, 128), scale_fmt="ue8m0", expert_dtype="fp4"
    )
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", quantization_config=reading
    )
    return model.float().eval()


@pytest.fixture(scope="module")
def engine(folder: Path) -> Engine:
    return Engine.load(folder, EngineConfig.parse({"threads": 1, "numerics": "exact"}))


@pytest.fixture(scope="module")
def tokens() -> list[int]:
    return torch.randint(2, 500, (LENGTH,), generator=torch.Generator().manual_seed(3)).tolist()


@pytest.fixture(scope="module")
def expected(peer: Any, tokens: list[int]) -> Tensor:
    with torch.no_grad():
        return peer(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]


def relative(got: Tensor, want: Tensor) -> Tensor:
    return (got - want).norm(dim=-1) / want.norm(dim=-1)


def test_both_read_the_same_numbers(peer: Any, engine: Engine) -> None:
    theirs, ours = dict(peer.named_parameters()), engine.weights
    for name, tensor in {
        "model.embed_tokens.weight": ours.embed,
        "lm_head.weight": ours.head,
        "model.layers.2.self_attn.q_b_proj.weight": ours.layers[2].attention.wq_b,
        "model.layers.3.mlp.experts.down_proj": ours.layers[3].moe.w2,
        "model.layers.4.mlp.shared_experts.up_proj.weight": ours.layers[4].moe.shared_w3,
    }.items():
        assert torch.equal(theirs[name].float(), tensor), name


@torch.inference_mode()
def test_one_forward_gives_the_same_logits(
    engine: Engine, expected: Tensor, tokens: list[int]
) -> None:
    for chunks in ([LENGTH], [100, 50], [130, 20]):
        state, told = engine.new_state(), []
        for ids in torch.tensor(tokens).split(chunks):
            forward = engine.backbone.forward(ids, state)
            told.append(engine.backbone.logits(forward))
            state.commit(ids.numel())
        assert relative(torch.cat(told), expected).max() < TOLERANCE


@torch.inference_mode()
@pytest.mark.parametrize("start", [1, 3, 121])
def test_decoding_token_by_token_gives_the_same_logits(
    engine: Engine, expected: Tensor, tokens: list[int], start: int
) -> None:
    state = engine.new_state()
    told = [prefill(engine.backbone, None, state, tokens[:start])]
    for position in range(start, min(start + 40, LENGTH)):
        forward = engine.backbone.forward(torch.tensor(tokens[position : position + 1]), state)
        told.append(engine.backbone.logits(forward))
        state.commit(1)
    got = torch.cat(told)
    assert relative(got, expected[start - 1 : start - 1 + len(got)]).max() < TOLERANCE


@torch.inference_mode()
def test_the_library_s_cached_decode_gives_the_same_logits(
    peer: Any, engine: Engine, tokens: list[int]
) -> None:
    """Its cache is another way to the same numbers as ours, step by step past the edge at 128."""
    from transformers.cache_utils import DynamicCache

    known = inspect.signature(type(peer.model.layers[0].self_attn).forward).parameters
    keyword = "cache" if "cache" in known else "past_key_values"
    cache, state = DynamicCache(config=peer.config), engine.new_state()
    given = {keyword: cache, "use_cache": True}
    want = peer(input_ids=torch.tensor([tokens[:124]]), **given).logits[0, -1]
    got = prefill(engine.backbone, None, state, tokens[:124])[0]
    for position in range(124, 136):
        assert relative(got, want) < TOLERANCE
        row = torch.tensor(tokens[position : position + 1])
        want = peer(input_ids=row[None], **given).logits[0, -1]
        got = engine.backbone.logits(engine.backbone.forward(row, state))[0]
        state.commit(1)


def test_greedy_text_is_the_library_s(peer: Any, engine: Engine, tokens: list[int]) -> None:
    prompt = tokens[:20]
    with torch.no_grad():
        told = peer.generate(
            torch.tensor([prompt]),
            max_new_tokens=16,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=1,
        )
    commits = engine.generate(prompt, max_new_tokens=16)
    assert [t for c in commits for t in c.tokens] == told[0, 20:].tolist()


# ------------------------------------------------------------------ two packages, one name


def test_transformers_imports_beside_our_kernels_package() -> None:
    pytest.importorskip("transformers", reason="NO TRANSFORMERS: install the dev extra")
    code = (
        "import kernels, sys, pathlib; import transformers; "
        "from transformers import DeepseekV4ForCausalLM; "
        "assert pathlib.Path(kernels.__file__).parent.parent == pathlib.Path.cwd(); "
        "print(transformers.__version__)"
    )
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_our_kernels_package_costs_nothing_and_has_no_version() -> None:
    code = (
        "import sys; import kernels; assert not hasattr(kernels, '__version__'); "
        "heavy = {'torch', 'triton', 'numpy'} & set(sys.modules); assert not heavy, heavy"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
