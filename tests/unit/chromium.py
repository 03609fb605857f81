"""A headless browser that lays out a page in frames of chosen widths, where one is installed.

A window of Chromium is never narrower than 500 pixels; a frame may be, and media queries inside it
follow the frame.
"""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import struct
import subprocess
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
VARIABLE = "FLYWHEEL_CHROMIUM"
PATIENCE_S = 90

MEASURE = """
const report = () => {
  const out = [];
  for (const frame of document.querySelectorAll("iframe")) {
    const page = frame.contentDocument.documentElement, wide = [];
    for (const node of frame.contentDocument.body.querySelectorAll("*")) {
      const box = node.getBoundingClientRect();
      if (box.right > frame.clientWidth + 1 && box.width > 0 && !node.closest(".wide")) {
        wide.push(node.tagName + "." + node.getAttribute("class"));
      }
    }
    out.push({width: frame.clientWidth, scroll: page.scrollWidth, height: page.scrollHeight,
              wide: wide.slice(0, 5)});
  }
  const told = document.createElement("pre");
  told.id = "told";
  told.textContent = JSON.stringify(out);
  document.body.append(told);
};
addEventListener("load", report);
"""


def binary() -> str | None:
    """The browser's path; None when there is none."""
    named = os.environ.get(VARIABLE)
    found = [named] if named else [p for name in NAMES if (p := shutil.which(name))]
    return found[0] if found else None


def layout(page: str, widths: Sequence[int], folder: Path) -> list[dict[str, Any]]:
    """Width, scroll width, height and what sticks out, of the page in a frame of each width."""
    frames = "".join(_frame(page, width, 900) for width in widths)
    shell = folder / "layout.html"
    shell.write_text(f"<!doctype html><body>{frames}<script>{MEASURE}</script>", encoding="utf-8")
    printed = _run(["--window-size=1600,1000", "--dump-dom", shell.as_uri()], folder)
    match = re.search(r'<pre id="told">(.*?)</pre>', printed, re.DOTALL)
    assert match, f"the browser told nothing: {printed[-400:]}"
    told: list[dict[str, Any]] = json.loads(html.unescape(match[1]))
    return told


def screenshot(
    page: str, width: int, height: int, out: Path, *, dark: bool = False, at: str = ""
) -> Path:
    """A picture of the page's first screen, or of where a fragment leads."""
    shell = out.with_suffix(".html")
    script = f"<script>addEventListener('load', () => frames[0].location.hash = '{at}')</script>"
    shell.write_text(
        "<!doctype html><style>body{margin:0;overflow:hidden}iframe{border:0;display:block}</style>"
        + _frame(page, width, height) + (script if at else ""), encoding="utf-8",
    )
    # Blink counts dark as 0 and light as 1.
    options = [f"--window-size={width},{height}", f"--screenshot={out}", "--hide-scrollbars",
               f"--blink-settings=preferredColorScheme={0 if dark else 1}"]
    _run([*options, shell.as_uri()], out.parent)
    assert out.is_file(), "the browser left no picture"
    return out


def colours(picture: Path) -> dict[bytes, int]:
    """How many pixels of each colour an 8-bit PNG holds."""
    width, height, samples, data = _chunks(picture.read_bytes())
    raw, stride = zlib.decompress(data), width * samples
    counts: dict[bytes, int] = {}
    before = bytearray(stride)
    for row in range(height):
        start = row * (stride + 1)
        line = _unfiltered(raw[start], bytearray(raw[start + 1 : start + 1 + stride]), before,
                           samples)
        for i in range(0, stride, samples):
            colour = bytes(line[i : i + 3])
            counts[colour] = counts.get(colour, 0) + 1
        before = line
    return counts


def _frame(page: str, width: int, height: int) -> str:
    return f'<iframe width="{width}" height="{height}" srcdoc="{html.escape(page)}"></iframe>'


def _run(options: Sequence[str], folder: Path) -> str:
    found = binary()
    assert found is not None
    profile = folder / "profile"
    command = [found, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
               "--no-first-run", f"--user-data-dir={profile}", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr[-400:]
    return done.stdout


def _chunks(raw: bytes) -> tuple[int, int, int, bytes]:
    assert raw[:8] == b"\x89PNG\r\n\x1a\n"
    at, data, header = 8, b"", b""
    while at < len(raw):
        size, kind = struct.unpack(">I4s", raw[at : at + 8])
        body = raw[at + 8 : at + 8 + size]
        header = body if kind == b"IHDR" else header
        data += body if kind == b"IDAT" else b""
        at += size + 12
    width, height, depth, kind_of_colour = struct.unpack(">IIBB", header[:10])
    assert depth == 8
    return width, height, {2: 3, 6: 4}[kind_of_colour], data


def _unfiltered(kind: int, line: bytearray, above: bytearray, step: int) -> bytearray:
    for i in range(len(line)):
        left = line[i - step] if i >= step else 0
        corner = above[i - step] if i >= step else 0
        add = (0, left, above[i], (left + above[i]) // 2, _paeth(left, above[i], corner))[kind]
        line[i] = (line[i] + add) & 255
    return line


def _paeth(left: int, above: int, corner: int) -> int:
    guess = left + above - corner
    return min((left, above, corner), key=lambda v: abs(guess - v))
