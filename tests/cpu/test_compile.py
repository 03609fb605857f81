"""Compiled code gives the tokens of the plain one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from checkpoints import Configure

from engine.config import CHOICES
from engine.engine import Engine
from engine.errors import ConfigError

PROMPT = [(i * 37 + i * i) % 249 for i in range(21)]


COMPILED = [kind for kind in CHOICES["compile"] if kind != "off"]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("compiled", COMPILED)
def test_compiled_code_gives_the_same_tokens(
    quick: Path, configure: Configure, compiled: str
) -> None:
    if not any(map(shutil.which, ("g++", "clang++"))):
        pytest.skip("NO C++ COMPILER: compiled code cannot be tested here")
    engine = Engine.load(quick, configure())
    told = {}
    for kind in ("off", compiled):
        for width in (0, 5):
            engine.reconfigure(configure(numerics="exact", compile=kind, draft_width=width))
            assert engine.config.verify_rows == "together"
            commits = engine.generate(PROMPT, max_new_tokens=60)
            told[kind, width] = [t for c in commits for t in c.tokens]
    assert len({tuple(text) for text in told.values()}) == 1


@pytest.mark.parametrize("compiled", COMPILED)
def test_compilation_without_a_compiler_is_refused_in_a_sentence(
    quick_engine: Engine, configure: Configure, monkeypatch: pytest.MonkeyPatch, compiled: str
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(ConfigError, match=r"needs a C\+\+ compiler .* on the PATH\.$"):
        quick_engine.reconfigure(configure(moe="dense", compile=compiled, context=77))
