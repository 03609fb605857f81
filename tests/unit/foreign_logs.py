"""Foreign logs of our own making, in the shapes that the importer reads; tests bend them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flywheel.foreign import history, reading
from flywheel.ledger.store import Ledger

LENGTHS = {0: 6, 1: 35, 2: 42, 3: 27, 4: 15, 5: 83, 6: 15, 7: 38, 8: 13}
BASE = (11111, 7, 8, 9, 10, 11, 12, 13)
BASE_MS = 80.0


@dataclass(frozen=True)
class Point:
    """Rounds accept these many drafts in turn until `tokens` are made; `eos` starts the text."""

    prompt: int
    accepts: Sequence[int] = (6,)
    eos: bool = False
    tokens: int = 200
    width: int = 6
    adapt_k: str = "1.50"


def header(checkpoint: str = "/m/small", *, head: str = "", widths: Sequence[int] = (6,)) -> str:
    """Everything before the first point."""
    steps = "".join(
        f"  step {i} pos {i + 5} -> token {token}  ({BASE_MS:.1f} ms{' warmup' * (i == 0)})\n"
        for i, token in enumerate(BASE)
    )
    five = " ".join(map(str, BASE[:5]))
    draft = (f"[spec] loading EXTERNAL DSpark head {head} ...\n" if head else
             "[spec] using EMBEDDED DSpark heads from the main checkpoint (no extra memory)\n")
    return (
        f"[decode] loading {checkpoint} ... s=6 NDEC=8 seqmax=298\n"
        "[decode] loaded 1.25 GiB, 123 tensors  (weights somewhere)\n"
        "[decode] prefill done. caches populated. starting decode.\n"
        f"{steps}\n"
        "[decode] first decoded token argmax = 11111  (expect 11111)  -> GATE PASS\n"
        f"[decode] generated: {' '.join(map(str, BASE))}\n"
        f"[decode] WARM decode: {BASE_MS:.1f} ms/tok = {1000 / BASE_MS:.2f} tok/s  "
        "(M=1 steady state, 7-step avg)\n\n"
        f"[spec-verify] verify argmax: {five}\n[spec-verify] decode tokens: {five}\n"
        "[spec-verify] MATCH 5/5 -> PASS  (M=K verify == K sequential decodes)\n\n"
        f"{draft}"
        f"[spec] NSTAGE=3 head-experts=4 BLK sweep: {' '.join(map(str, widths))}\n"
    )


def round_ms(rows: int) -> float:
    """What a round of so many rows takes in these logs."""
    return 60.0 + 20.0 * rows


def point(p: Point) -> tuple[str, str]:
    """A point's lines, and its row of the closing table."""
    lines = [f"[spec] decoding {p.tokens} tokens (block={p.width}, draft passes=1, "
             f"adaptK={p.adapt_k}, prompt={p.prompt} s={LENGTHS[p.prompt]})..."]
    length, made, rounds, timed_ms, timed = LENGTHS[p.prompt] - 1, 0, 0, 0.0, 0
    while made < p.tokens:
        accepted = p.accepts[rounds % len(p.accepts)]
        rows = min(accepted + 2, p.width + 1)
        margins = " ".join("3.00" if i < accepted else "0.50" for i in range(p.width))
        made, length, rounds = made + accepted + 1, length + accepted + 1, rounds + 1
        if rounds > 1:
            timed_ms, timed = timed_ms + round_ms(rows), timed + accepted + 1
        lines += [
            f"  [margins] {margins}  K={rows}",
            f"  verify {rounds}: accepted {accepted}/{rows - 1} (K={rows}) + correction -> "
            f"+{accepted + 1} tokens ({round_ms(rows):.1f} ms)  cpos={length}",
        ]
    ms = timed_ms / timed
    text = [1 if p.eos and i % 2 == 0 else 1000 + i for i in range(40)]
    if p.prompt == 0:
        text[:8] = BASE
    tau, rate = made / rounds, 1000 / ms
    lines += [
        "", f"[spec] generated {made} tokens over {rounds} verifies: mean tokens/verify = "
        f"{tau:.2f} (block={p.width}, max {p.width + 1})",
        f"[spec] tokens: {' '.join(map(str, text))}",
    ]  # fmt: skip
    if p.prompt == 0:
        lines.append("[spec] LOSSLESS GATE: first 8 tokens match base AR -> PASS")
    lines.append(
        f"[spec] SPEC-DECODE: {ms:.1f} ms/tok = {rate:.2f} tok/s  (vs base M=1 {BASE_MS:.1f} "
        f"ms/tok = {1000 / BASE_MS:.2f} tok/s -> {BASE_MS / ms:.2f}x)")
    row = (f"[blksweep]   {p.width:2d}      1   {p.adapt_k}   {p.adapt_k}      {p.prompt} |"
           f"            {tau:.2f} |   {ms:.1f} | {rate:.2f} | {BASE_MS / ms:.2f}x")
    return "\n".join(lines) + "\n", row + "\n"


def suite(accepts: Sequence[int] = (6, 3), *, eos: Sequence[int] = (1, 2)) -> list[Point]:
    """The nine points of the frozen suite."""
    return [Point(n, accepts, n in eos) for n in LENGTHS]


def log(points: Sequence[Point] | None = None, *, head: str = "", end: bool = True) -> str:
    """A whole log."""
    chosen = suite() if points is None else points
    made = [point(p) for p in chosen]
    table = "" if len(made) < 2 else (
        "[blksweep]  BLK passes adaptK->eff prompt | mean tok/verify | ms/tok | tok/s | vs base "
        f"{1000 / BASE_MS:.2f} tok/s\n" + "".join(row for _, row in made))
    body = "".join(lines for lines, _ in made)
    last = "[decode] mem 1.5/16.0 GiB\n" if end else ""
    return header(head=head, widths=[p.width for p in chosen]) + body + table + last


def import_history(ledger: Ledger, now_utc: str) -> None:
    """A row in every table of imported history."""
    heads = b'{"bar_percent":3,"arms":[{"name":"a","status":"baseline"}]}'
    with ledger.transaction() as writer:
        for kind, raw in (("decode", log().encode()), ("arms", heads)):
            history.append(writer, reading.reread(kind, f"{kind}.txt", raw), now_utc)


GUARD = (
    "[memguard] floor=3500 MB poll=2s pat=server started 2026-01-02T10:00:00-04:00\n"
    "[memguard] !!! MemAvailable 2860 MB < floor 3500 MB — KILLING pid 11 "
    "2026-01-02T10:01:00-04:00\n"
    "[memguard] killed. MemAvailable now 63280 MB\n"
    "[memguard] floor=1500 MB x3 poll=2s pat=server started 2026-01-02T11:00:00-04:00\n"
    "[memguard] victim gone, exiting. low-water was 2443 MB 2026-01-02T11:30:00-04:00\n"
    "[memguard] floor=1500 MB x3 poll=2s pat=other started 2026-01-02T12:00:00-04:00\n"
    "[memguard] victim gone, exiting. low-water was 120370 MB 2026-01-02T12:00:06-04:00\n"
    "[memguard] floor=1500 MB x3 poll=2s pat=lost started 2026-01-02T12:30:00-04:00\n"
    "[memguard] floor=1500MB x3 slope=<-400MB/s below 2000MB poll=0.2s pat=decode started "
    "2026-01-02T13:00:00-04:00\n"
    "[memguard] watching pid 22 (decode)\n"
    "[memguard] !!! MemAvailable 1076 MB falling 3520 MB/s (< 2000 MB and faster than 400 MB/s): "
    "~3 tenths of a second from zero — KILLING pid 22 2026-01-02T13:01:00-04:00\n"
    "[memguard] killed. MemAvailable now 700 MB\n"
    "[memguard] floor=1500MB x3 slope=<-400MB/s below 2000MB poll=0.2s pat=decode started "
    "2026-01-02T14:00:00-04:00\n"
    "[memguard] watching pid 33 (decode)\n"
    "[memguard] victim gone, exiting. low-water 11993 MB, peak fall rate 8210 MB/s "
    "2026-01-02T14:10:00-04:00\n"
)  # fmt: skip
