"""`python -m engine.fields --json`: every field of the configuration, for whoever proposes a value.

No model is loaded, and nothing of it: the answer is the same on every machine.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from engine import config
from engine.config import CHOICES, OF_TORCH, OF_TRITON, RANGES, TILES, EngineConfig
from engine.errors import EngineError
from engine.fields.check import check, check_recipe
from engine.geometry import ASSETS

_REMARK = re.compile(r"^    (?P<name>\w+): \w+ = [^#]+  # (?P<said>.+)$", re.MULTILINE)


def fields() -> dict[str, dict[str, Any]]:
    """Field name to its default, its choices or range, the one backend it is of, and a remark."""
    said = {m["name"]: m["said"] for m in _REMARK.finditer(_source())}
    return {f.name: _told(f, said.get(f.name, "")) for f in dataclasses.fields(EngineConfig)}


def _told(one: dataclasses.Field[Any], said: str) -> dict[str, Any]:
    told: dict[str, Any] = {"default": one.default, "said": said}
    if one.name in CHOICES:
        told["choices"] = list(CHOICES[one.name])
    if one.name in RANGES:
        told["range"] = list(RANGES[one.name])
    if one.name in TILES:
        told["form"] = "part=number,part=number; parts are columns, stages, warps, splits and such"
    for backend, names in (("torch", OF_TORCH), ("triton", OF_TRITON)):
        if one.name in names:
            told["backend"] = backend
    return told


def _source() -> str:
    """The configuration's own text: its remarks are what a person reads there."""
    return Path(config.__file__).read_text(encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print them, or check some; exit code 2 and one sentence for what could not run here."""
    parser = argparse.ArgumentParser(
        prog="python -m engine.fields",
        description="Every field of the engine's configuration.",
        epilog="Examples: python -m engine.fields --json; "
        'python -m engine.fields --check \'{"backend": "triton"}\'',
    )
    parser.add_argument("--json", action="store_true", help="One JSON object on stdout.")
    parser.add_argument(
        "--check", metavar="FIELDS", type=_object, help="Could these, a JSON object, run here?"
    )
    parser.add_argument(
        "--recipe", type=_object, help="Could a head be trained by this, a JSON object?"
    )
    parser.add_argument(
        "--checkpoint", type=Path, default=ASSETS / "tiny-v4", help="The model to check with."
    )
    given = parser.parse_args(arguments)
    wanted = ((check, given.check), (check_recipe, given.recipe))
    if asked := [(could, raw) for could, raw in wanted if raw is not None]:
        return max(_check(could, raw, given.checkpoint) for could, raw in asked)
    found = fields()
    if given.json:
        sys.stdout.write(json.dumps(found, indent=1) + "\n")
        return 0
    with contextlib.suppress(BrokenPipeError):
        _print(found)
    return 0


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError("must be a JSON object")
    return found


def _check(
    could: Callable[[Mapping[str, Any], Path], None], raw: dict[str, Any], checkpoint: Path
) -> int:
    try:
        could(raw, checkpoint)
    except EngineError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _print(found: dict[str, dict[str, Any]]) -> None:
    for name, told in found.items():
        takes = told.get("choices") or told.get("range") or told.get("form") or ""
        sys.stdout.write(f"{name} = {told['default']!r}  {takes}  {told['said']}\n")
