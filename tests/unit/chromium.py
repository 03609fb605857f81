"""A headless browser that lays out a page in frames of chosen widths, where one is installed.

A window of Chromium is never narrower than 500 pixels; a frame may be, and media queries inside it
follow the frame.
"""

from __future__ import annotations

import base64
import html
import json
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
VARIABLE = "FLYWHEEL_CHROMIUM"
PATIENCE_S = 90

TELL = """
const tell = (value) => {
  const told = document.createElement("pre");
  told.id = "told";
  told.textContent = JSON.stringify(value);
  document.body.append(told);
};
"""
MEASURE = """
const look = (frame) => {
  const inside = frame.contentDocument, wide = [];
  for (const node of inside.body.querySelectorAll("*")) {
    const box = node.getBoundingClientRect();
    if (box.right > frame.clientWidth + 1 && box.width > 0 && !node.closest(".wide")) {
      wide.push(node.tagName + "." + node.getAttribute("class"));
    }
  }
  const found = inside.querySelector(":target");
  const top = found && found.getBoundingClientRect().top;
  return {width: frame.clientWidth, scroll: inside.documentElement.scrollWidth,
          height: inside.documentElement.scrollHeight, wide: wide.slice(0, 5),
          target: found && found.id, seen: found && found.checkVisibility()
          && top >= 0 && top < frame.clientHeight};
};
addEventListener("load", () => {
  const frames = [...document.querySelectorAll("iframe")];
  for (const frame of frames) if (AT) frame.contentWindow.location.hash = AT;
  setTimeout(() => tell(frames.map(look)), 1000);
});
"""
COUNT = """
addEventListener("load", () => tell([...document.images].map((image) => {
  const canvas = document.createElement("canvas"), counts = {};
  canvas.width = image.naturalWidth;
  canvas.height = image.naturalHeight;
  const pen = canvas.getContext("2d");
  pen.drawImage(image, 0, 0);
  const data = pen.getImageData(0, 0, canvas.width, canvas.height).data;
  for (let i = 0; i < data.length; i += 4) {
    const name = ((data[i] << 16) | (data[i + 1] << 8) | data[i + 2]).toString(16).padStart(6, "0");
    counts[name] = (counts[name] || 0) + 1;
  }
  return counts;
})));
"""


def binary() -> str | None:
    """The browser's path; None when there is none."""
    named = os.environ.get(VARIABLE)
    found = [named] if named else [p for name in NAMES if (p := shutil.which(name))]
    return found[0] if found else None


def layout(
    page: str, widths: Sequence[int], folder: Path, *, at: str = ""
) -> list[dict[str, Any]]:
    """Width, scroll width, height and what sticks out, of the page in a frame of each width.

    With `at`, after following a link to that id; `seen` says whether it came into view.
    """
    frames = "".join(_frame(page, width, 900) for width in widths)
    script = f"const AT = {json.dumps(at)};{TELL}{MEASURE}"
    told: list[dict[str, Any]] = _told(f"{frames}<script>{script}</script>", folder)
    return told


def screenshot(page: str, width: int, height: int, out: Path, *, dark: bool = False) -> Path:
    """A picture of the page's first screen."""
    shell = out.with_suffix(".html")
    style = "<style>body{margin:0;overflow:hidden}iframe{border:0;display:block}</style>"
    shell.write_text(f"<!doctype html>{style}{_frame(page, width, height)}", encoding="utf-8")
    # Blink counts dark as 0 and light as 1.
    options = [f"--window-size={width},{height}", f"--screenshot={out}", "--hide-scrollbars",
               f"--blink-settings=preferredColorScheme={0 if dark else 1}"]
    _run([*options, shell.as_uri()], out.parent)
    assert out.is_file(), "the browser left no picture"
    return out


def colours(pictures: Sequence[Path], folder: Path) -> list[dict[str, int]]:
    """How many pixels of each colour (`rrggbb`) each picture holds, counted by the browser."""
    images = "".join(
        f'<img src="data:image/png;base64,{base64.b64encode(p.read_bytes()).decode()}">'
        for p in pictures
    )
    told: list[dict[str, int]] = _told(f"{images}<script>{TELL}{COUNT}</script>", folder)
    return told


def _told(body: str, folder: Path) -> Any:
    """What a page's script told with `tell(value)`."""
    shell = folder / "shell.html"
    shell.write_text(f"<!doctype html><body>{body}", encoding="utf-8")
    options = ["--window-size=1600,1000", "--virtual-time-budget=5000", "--dump-dom"]
    printed = _run([*options, shell.as_uri()], folder)
    match = re.search(r'<pre id="told">(.*?)</pre>', printed, re.DOTALL)
    assert match, f"the browser told nothing: {printed[-400:]}"
    return json.loads(html.unescape(match[1]))


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
