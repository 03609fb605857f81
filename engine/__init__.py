"""Inference for DeepSeek-V4-Flash class checkpoints with DSpark self-speculation."""

VERSION = "0.1.0"
