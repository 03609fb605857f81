"""The literal shapes of a foreign decode log's lines.

A line that opens like one of them and does not match it whole is malformed, never prose. Digits are
bounded, so that no line can make a number without end.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

_INT = r"(\d{1,12})"
_NUM = r"(\d{1,12}(?:\.\d{1,6})?|-?inf|-?nan)"
_SIGNED = r"(-?\d{1,9}(?:\.\d{1,6})?)"
_IDS = r"((?: \d{1,12})+)"


@dataclass(frozen=True, slots=True)
class Shape:
    """`opening` claims the line; `whole` must then match it to the end."""

    name: str
    opening: re.Pattern[str]
    whole: re.Pattern[str]


def _shape(name: str, opening: str, whole: str) -> Shape:
    return Shape(name, re.compile(opening, re.ASCII), re.compile(opening + whole + r"\Z", re.ASCII))


SHAPES = (
    _shape("loading", r"\[decode\] loading ",
           rf"(\S.*?) \.\.\. s={_INT} NDEC={_INT} seqmax={_INT}"),
    _shape("loaded", r"\[decode\] loaded ", rf"{_NUM} GiB, {_INT} tensors\b.*"),
    _shape("step", r"  step ", rf"{_INT} pos {_INT} -> token {_INT}  \({_NUM} ms(?: warmup)?\)"),
    _shape("first", r"\[decode\] first decoded token ",
           rf"argmax = {_INT}  \(expect {_INT}\)  -> GATE (PASS|FAIL)"),
    _shape("generated", r"\[decode\] generated:", _IDS),
    _shape("warm", r"\[decode\] WARM decode: ",
           rf"{_NUM} ms/tok = {_NUM} tok/s  \(M=1 steady state, {_INT}-step avg\)"),
    _shape("verify_ids", r"\[spec-verify\] verify argmax:", _IDS),
    _shape("decode_ids", r"\[spec-verify\] decode tokens:", _IDS),
    _shape("match", r"\[spec-verify\] MATCH ", rf"{_INT}/{_INT} -> (PASS|FAIL)\b.*"),
    _shape("external", r"\[spec\] loading EXTERNAL DSpark head ", r"(\S.*?) \.\.\."),
    _shape("embedded", r"\[spec\] using EMBEDDED DSpark heads ", r".*"),
    _shape("plan", r"\[spec\] NSTAGE=",
           rf"{_INT} head-experts={_INT} BLK sweep:{_IDS} ?"),
    _shape("point", r"\[spec\] decoding ",
           rf"{_INT} tokens \(block={_INT}, draft passes={_INT}, adaptK={_SIGNED}, "
           rf"prompt={_INT} s={_INT}\)\.\.\."),
    _shape("margins", r"  \[margins\]", rf"((?: (?:{_NUM[1:-1]}))+)  K={_INT}"),
    _shape("round", r"  verify ",
           rf"{_INT}: accepted {_INT}/{_INT} \(K={_INT}\) \+ correction -> \+{_INT} tokens "
           rf"\({_NUM} ms\)  cpos={_INT}"),
    _shape("counts", r"\[spec\] generated ",
           rf"{_INT} tokens over {_INT} verifies: mean tokens/verify = {_NUM} "
           rf"\(block={_INT}, max {_INT}\)"),
    _shape("tokens", r"\[spec\] tokens:", _IDS + " ?"),
    _shape("lossless", r"\[spec\] LOSSLESS GATE: ",
           rf"(?:first {_INT} tokens match base AR -> PASS"
           rf"|diverges from base AR at token {_INT} \({_INT} vs {_INT}\) -> GATE FAIL)"),
    _shape("rate", r"\[spec\] SPEC-DECODE: ",
           rf"{_NUM} ms/tok = {_NUM} tok/s  "
           rf"\(vs base M=1 {_NUM} ms/tok = {_NUM} tok/s -> {_NUM}x\)"),
    _shape("table", r"\[blksweep\]  BLK ",
           rf"passes adaptK->eff prompt \| mean tok/verify \| ms/tok \| tok/s "
           rf"\| vs base {_NUM} tok/s"),
    _shape("row", r"\[blksweep\] ",
           rf" *{_INT} +{_INT} +{_SIGNED} +{_NUM} +{_INT} \| +{_NUM} \| +{_NUM} \| +{_NUM} "
           rf"\| {_NUM}x"),
    _shape("end", r"\[decode\] mem ", rf"{_NUM}/{_NUM} GiB"),
)  # fmt: skip

_INSTRUMENTS = (
    "dprof", "specprof", "ksweep", "memtrace", "moebytes", "union", "sfx", "hash", "lhash",
    "ihash", "stephash", "mainkv-gate",
)  # fmt: skip
_MARKERS = (
    ("instrument", re.compile(rf"\[(?:{'|'.join(_INSTRUMENTS)})\]")),
    ("instrument", re.compile(r"p\d+ v\d+ cpos=\d+ .*\blg=", re.ASCII)),
    ("sanitizer", re.compile(r"=========")),
    ("capture", re.compile(r"\[(?:capture|probe)\] ")),
    ("adaptive_width", re.compile(r"\[adaptblk\] ")),
    ("overlay", re.compile(r"\[nvfp4\] ")),
    ("crash", re.compile(r"cuda \S+:\d+ \S", re.ASCII)),
    ("crash", re.compile(r"(?:CUDA error|Segmentation fault|terminate called|Aborted|Killed"
                         r"|Bus error)\b")),
)  # fmt: skip
_GATE_WORDS = ("GATE PASS", "GATE FAIL", "LOSSLESS GATE", "-> PASS", "SPEC-DECODE:")


def find(text: str) -> tuple[Shape, re.Match[str] | None] | None:
    """The shape that claims a line, with its match (None when malformed); None for prose."""
    for shape in SHAPES:
        if shape.opening.match(text):
            return shape, shape.whole.match(text)
    return None


def marker(text: str) -> str | None:
    """What a line says about how the run was made: judged by its first word, never by a quote."""
    return next((kind for kind, pattern in _MARKERS if pattern.match(text)), None)


def quotes(text: str) -> bool:
    """Whether a line of no known shape repeats a gate's words."""
    return any(word in text for word in _GATE_WORDS)


def fraction(text: str) -> Fraction | None:
    """A printed number, exactly; None for `inf` and `nan`."""
    return None if text.lstrip("-") in ("inf", "nan") else Fraction(text)


def microseconds(text: str) -> int | None:
    """Printed milliseconds as whole microseconds."""
    value = fraction(text)
    return None if value is None else round(value * 1000)


def ids(text: str) -> tuple[int, ...]:
    """A list of token ids."""
    return tuple(int(word) for word in text.split())
