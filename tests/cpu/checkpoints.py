"""Random checkpoints in the real on-disk layout, small enough to make anew for every test session.

The next token is mostly a fixed permutation of the current one, which the Markov bias of the draft
head knows as well: so acceptance is neither nil nor perfect, without any training.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from engine.config import EngineConfig
from engine.formats import encode_fp8, encode_mxfp4
from engine.geometry import Geometry

Configure = Callable[..., EngineConfig]
"""The fixture `configure`: fields of an engine's configuration, on one thread."""

_FP8 = re.compile(
    r"attn\.(wq_a|wq_b|wkv|wo_a|wo_b)\.weight$|indexer\.wq_b\.weight$"
    r"|shared_experts\.w\d\.weight$|main_proj\.weight$"
)
_FLOAT32 = re.compile(r"hc_|attn_sink$|\.ape$|gate\.bias$")

SMALL: dict[str, Any] = {
    "architectures": ["DeepseekV4ForCausalLM"],
    "model_type": "deepseek_v4",
    "vocab_size": 512,
    "hidden_size": 128,
    "moe_intermediate_size": 128,
    "num_hidden_layers": 6,
    "num_hash_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "routed_scaling_factor": 1.5,
    "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc",
    "norm_topk_prob": True,
    "swiglu_limit": 10.0,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "q_lora_rank": 128,
    "head_dim": 128,
    "qk_rope_head_dim": 64,
    "o_groups": 2,
    "o_lora_rank": 64,
    "sliding_window": 16,
    "compress_ratios": [0, 0, 4, 128, 4, 8, 0, 0],
    "compress_rope_theta": 160000,
    "rope_theta": 10000,
    "rope_scaling": {
        "type": "yarn",
        "factor": 16,
        "original_max_position_embeddings": 256,
        "beta_fast": 32,
        "beta_slow": 1,
    },
    "index_n_heads": 2,
    "index_head_dim": 128,
    "index_topk": 8,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "hc_eps": 1e-6,
    "dspark_block_size": 5,
    "dspark_noise_token_id": 500,
    "dspark_target_layer_ids": [3, 4, 5],
    "dspark_markov_rank": 32,
    "num_nextn_predict_layers": 1,
    "expert_dtype": "fp4",
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "torch_dtype": "bfloat16",
    "max_position_embeddings": 2048,
    "quantization_config": {
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "quant_method": "fp8",
        "scale_fmt": "ue8m0",
        "weight_block_size": [128, 128],
    },
}

# The fewest operations that still have every kind of row, for tests of thousands of tokens.
QUICK: dict[str, Any] = SMALL | {
    "vocab_size": 256,
    "hidden_size": 64,
    "moe_intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_hash_layers": 1,
    "q_lora_rank": 64,
    "o_lora_rank": 32,
    "compress_ratios": [4, 8, 0],
    "hc_mult": 2,
    "hc_sinkhorn_iters": 2,
    "dspark_noise_token_id": 250,
    "dspark_target_layer_ids": [0, 1],
}

# The same with a window of 128 and one layer without compression, for tests of the state.
PHASED: dict[str, Any] = QUICK | {"num_hidden_layers": 3, "compress_ratios": [4, 128, 0, 0]}

# A vocabulary so small that a distribution over several tokens can be counted out.
FEW_TOKENS: dict[str, Any] = QUICK | {"vocab_size": 16, "dspark_noise_token_id": 15}


def shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Native name -> logical shape of every tensor that `config` implies, scales aside."""
    g = Geometry.parse(config)
    d, v = g.hidden_size, g.vocab_size
    named: dict[str, tuple[int, ...]] = {
        "embed.weight": (v, d),
        "head.weight": (v, d),
        "norm.weight": (d,),
        **_hyper_head(g, ""),
    }
    for i, ratio in enumerate(g.layer_ratios):
        named |= _block(g, f"layers.{i}.", ratio, hashed=i < g.num_hash_layers)
    for s in range(g.draft_stages):
        named |= _block(g, f"mtp.{s}.", 0, hashed=False)
    last, rank = f"mtp.{g.draft_stages - 1}.", g.dspark_markov_rank
    return named | {
        "mtp.0.main_proj.weight": (d, len(g.dspark_target_layer_ids) * d),
        "mtp.0.main_norm.weight": (d,),
        last + "norm.weight": (d,),
        last + "markov_head.markov_w1.weight": (v, rank),
        last + "markov_head.markov_w2.weight": (v, rank),
        last + "confidence_head.proj.weight": (1, d + rank),
        **_hyper_head(g, last),
    }


def _hyper_head(g: Geometry, prefix: str) -> dict[str, tuple[int, ...]]:
    m = g.hc_mult
    return {
        prefix + "hc_head_fn": (m, m * g.hidden_size),
        prefix + "hc_head_base": (m,),
        prefix + "hc_head_scale": (1,),
    }


def _block(g: Geometry, prefix: str, ratio: int, *, hashed: bool) -> dict[str, tuple[int, ...]]:
    d, m, inner = g.hidden_size, g.hc_mult, g.moe_intermediate_size
    heads = g.num_attention_heads * g.head_dim
    named: dict[str, tuple[int, ...]] = {
        "attn_norm.weight": (d,),
        "ffn_norm.weight": (d,),
        "attn.wq_a.weight": (g.q_lora_rank, d),
        "attn.q_norm.weight": (g.q_lora_rank,),
        "attn.wq_b.weight": (heads, g.q_lora_rank),
        "attn.wkv.weight": (g.head_dim, d),
        "attn.kv_norm.weight": (g.head_dim,),
        "attn.wo_a.weight": (g.o_groups * g.o_lora_rank, heads // g.o_groups),
        "attn.wo_b.weight": (d, g.o_groups * g.o_lora_rank),
        "attn.attn_sink": (g.num_attention_heads,),
        "ffn.gate.weight": (g.n_routed_experts, d),
    }
    for part in ("attn", "ffn"):
        named[f"hc_{part}_fn"] = ((2 + m) * m, m * d)
        named[f"hc_{part}_base"] = ((2 + m) * m,)
        named[f"hc_{part}_scale"] = (3,)
    if hashed:
        named["ffn.gate.tid2eid"] = (g.vocab_size, g.num_experts_per_tok)
    else:
        named["ffn.gate.bias"] = (g.n_routed_experts,)
    for owner in [*(f"experts.{e}" for e in range(g.n_routed_experts)), "shared_experts"]:
        named[f"ffn.{owner}.w1.weight"] = (inner, d)
        named[f"ffn.{owner}.w3.weight"] = (inner, d)
        named[f"ffn.{owner}.w2.weight"] = (d, inner)
    if ratio:
        wide = 2 if ratio == 4 else 1
        named |= _compressor("attn.compressor.", ratio, d, g.head_dim, wide)
    if ratio == 4:
        named["attn.indexer.wq_b.weight"] = (g.index_n_heads * g.index_head_dim, g.q_lora_rank)
        named["attn.indexer.weights_proj.weight"] = (g.index_n_heads, d)
        named |= _compressor("attn.indexer.compressor.", 4, d, g.index_head_dim, 2)
    return {prefix + name: shape for name, shape in named.items()}


def _compressor(prefix: str, ratio: int, d: int, row: int, wide: int) -> dict[str, tuple[int, ...]]:
    return {
        prefix + "wkv.weight": (wide * row, d),
        prefix + "wgate.weight": (wide * row, d),
        prefix + "ape": (ratio, wide * row),
        prefix + "norm.weight": (row,),
    }


def random_tensors(config: dict[str, Any], seed: int, *, pull: float = 0.5) -> dict[str, Tensor]:
    """Logical float tensors (and expert tables) by native name.

    `pull` is how strongly target and drafter are drawn to the same permutation of the vocabulary.
    """
    g = torch.Generator().manual_seed(seed)
    tensors = {name: _random(name, shape, config, g) for name, shape in shapes(config).items()}
    vocab, rank = config["vocab_size"], config["dspark_markov_rank"]
    following = torch.randperm(vocab, generator=g)
    stages = len(config["compress_ratios"]) - config["num_hidden_layers"]
    markov = f"mtp.{stages - 1}.markov_head.markov_"
    code = torch.randn(vocab, rank, generator=g)
    tensors[markov + "w1.weight"] = code
    tensors[markov + "w2.weight"] = torch.zeros_like(code)
    tensors[markov + "w2.weight"][following] = code * (8.0 * pull / rank**0.5)
    head, embed = tensors["head.weight"], tensors["embed.weight"]
    told = torch.arange(vocab) != config["dspark_noise_token_id"]  # noise slots say nothing
    head[following[told]] += pull * embed[told]
    # Greedy text would otherwise end at random: EOS is common only where a test makes it so.
    head[config["eos_token_id"]] = 0.0
    return tensors


def _random(
    name: str, shape: tuple[int, ...], config: dict[str, Any], g: torch.Generator
) -> Tensor:
    if name.endswith("tid2eid"):
        experts = config["n_routed_experts"]
        rows = [torch.randperm(experts, generator=g)[: shape[1]] for _ in range(shape[0])]
        return torch.stack(rows)
    noise = torch.randn(shape, generator=g)
    if "norm" in name:
        return 1.0 + 0.1 * noise
    if name.endswith(("attn_sink", "ape")):
        return noise
    if name.endswith("_fn"):
        return 0.05 * noise
    if name.endswith("_base"):
        return 0.5 * noise
    if name.endswith("_scale"):
        return 1.0 + 0.2 * noise
    if name.endswith("gate.bias"):
        return 0.2 * noise
    if name == "embed.weight":
        return noise
    return noise / shape[-1] ** 0.5


def encoded(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors as they lie on disk: FP8 and MXFP4 with their scales, BF16, F32, I64."""
    disk: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        scale = name.removesuffix("weight") + "scale"
        if ".experts." in name:
            disk[name], disk[scale] = encode_mxfp4(tensor)
        elif _FP8.search(name):
            disk[name], disk[scale] = encode_fp8(tensor)
        elif name.endswith("tid2eid"):
            disk[name] = tensor.long()
        else:
            disk[name] = tensor.float() if _FLOAT32.search(name) else tensor.bfloat16()
    return {name: tensor.contiguous() for name, tensor in disk.items()}


def write(
    folder: Path, config: dict[str, Any], disk: dict[str, Tensor], *, shards: int = 1
) -> Path:
    """Write `config.json` and the tensors `disk` to `folder`, in one file or in indexed shards."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if shards == 1:
        save_file(disk, folder / "model.safetensors", metadata={"format": "pt"})
        return folder
    names = sorted(disk)
    weight_map: dict[str, str] = {}
    for i in range(shards):
        file = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        part = names[i::shards]
        save_file({n: disk[n] for n in part}, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def random_checkpoint(
    folder: Path, config: dict[str, Any], seed: int = 1, *, pull: float = 0.5, shards: int = 1
) -> Path:
    """Write a random checkpoint of `config`; returns its folder."""
    return write(folder, config, encoded(random_tensors(config, seed, pull=pull)), shards=shards)
