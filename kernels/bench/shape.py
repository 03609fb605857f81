"""The shapes of one layer of DeepSeek-V4-Flash and the bytes that each product must read."""

from __future__ import annotations

from dataclasses import dataclass

HIDDEN = 4096
INNER = 2048
EXPERTS = 160
CHOSEN = 6
STREAMS = 4
HEADS, HEAD, ROTARY = 64, 512, 64
LATENT = 1024  # of the queries
WINDOW = 128


@dataclass(frozen=True, slots=True)
class Linear:
    """One FP8 weight [groups n, k], or several that are read as one."""

    name: str
    n: int  # outputs of all groups
    k: int  # inputs of one group
    groups: int = 1

    @property
    def weight_bytes(self) -> int:
        """E4M3 codes and one E8M0 scale per 128 x 128 block."""
        return self.n * self.k + -(-self.n // 128) * -(-self.k // 128)


LINEARS = (
    Linear("wq_a+wkv", 1536, HIDDEN),
    Linear("wq_b", HEADS * HEAD, 1024),
    Linear("wo_a", 8 * 1024, 4096, groups=8),
    Linear("wo_b", HIDDEN, 8192),
)


def mxfp4_bytes(outputs: int, channels: int) -> int:
    """One matrix: half a byte a weight and one E8M0 scale per row and 32 channels."""
    return outputs * channels // 2 + outputs * channels // 32


GATE_UP_BYTES = mxfp4_bytes(2 * INNER, HIDDEN)
DOWN_BYTES = mxfp4_bytes(HIDDEN, INNER)
EXPERT_BYTES = GATE_UP_BYTES + DOWN_BYTES
SHARED_GATE_UP_BYTES = Linear("shared w13", 2 * INNER, HIDDEN).weight_bytes
SHARED_DOWN_BYTES = Linear("shared w2", HIDDEN, INNER).weight_bytes
SHARED_BYTES = SHARED_GATE_UP_BYTES + SHARED_DOWN_BYTES


def expected_experts(rows: int) -> float:
    """Different experts that `rows` tokens visit if each chooses at random."""
    return EXPERTS * (1.0 - (1.0 - CHOSEN / EXPERTS) ** rows)


def hyper_bytes(rows: int, parts: int) -> int:
    """Mixing matrix, streams read and written once, and the output or its float32 parts."""
    matrix = (2 + STREAMS) * STREAMS * STREAMS * HIDDEN * 4
    output = 4 * parts if parts else 2
    return matrix + rows * HIDDEN * (2 * (STREAMS + STREAMS + 1) + output)
