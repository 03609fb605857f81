"""A headless browser driven over its own pipe: pages opened, typed into, looked at, pictured."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import chromium

PATIENCE_S = 20.0
KEYS = {"Enter": ("Enter", 13, "\r"), "Escape": ("Escape", 27, ""), "Tab": ("Tab", 9, "")}
SHIFT = 8


class Browser:
    """One page of one browser."""

    def __init__(self, profile: Path) -> None:
        read_end, self._out = os.pipe()
        self._in, write_end = os.pipe()

        def pipes() -> None:  # the browser reads commands at 3 and answers at 4
            os.dup2(read_end, 13)
            os.dup2(write_end, 14)
            os.dup2(13, 3)
            os.dup2(14, 4)

        binary = chromium.binary()
        assert binary is not None
        self._process = subprocess.Popen(
            [binary, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             "--no-first-run", "--remote-debugging-pipe", f"--user-data-dir={profile}",
             "about:blank"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            preexec_fn=pipes, pass_fds=(3, 4), start_new_session=True,
        )  # fmt: skip
        os.close(read_end)
        os.close(write_end)
        self._held = b""
        self._number = 0
        self._session: str | None = None
        self.complaints: list[str] = []
        targets = self._call("Target.getTargets")["targetInfos"]
        page = next(t["targetId"] for t in targets if t["type"] == "page")
        self._session = self._call("Target.attachToTarget", targetId=page, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    # ---------------------------------------------------------------- what a person does

    def open(self, url: str, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Load a page in a window of that size."""
        phone = width < 600
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                   deviceScaleFactor=1, mobile=phone)  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])
        self._call("Page.navigate", url=url)
        self.until(f"document.readyState === 'complete' && location.href === {json.dumps(url)}")

    def type(self, text: str) -> None:
        """Into whatever has the focus."""
        self._call("Input.insertText", text=text)

    def press(self, key: str, *, shift: bool = False) -> None:
        """A key by its name."""
        name, code, text = KEYS[key]
        common = {"key": name, "code": name, "windowsVirtualKeyCode": code,
                  "modifiers": SHIFT if shift else 0}  # fmt: skip
        kind = "keyDown" if text else "rawKeyDown"
        self._call("Input.dispatchKeyEvent", type=kind, text=text, **common)
        self._call("Input.dispatchKeyEvent", type="keyUp", **common)

    def click(self, selector: str) -> None:
        """The middle of the first element there."""
        x, y = self.look(
            f"(() => {{ const box = document.querySelector({json.dumps(selector)})"
            ".getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self._call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    # ---------------------------------------------------------------- what a person sees

    def look(self, script: str) -> Any:
        """The value of an expression on the page."""
        told = self._call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in told, told["exceptionDetails"]
        return told["result"].get("value")

    def text(self, selector: str) -> str:
        """What the first element there says; nothing where there is none."""
        return str(self.look(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    def until(self, script: str, within_s: float = PATIENCE_S) -> Any:
        """Wait for an expression to be true; its value, true for an element."""
        script = f"(value => value instanceof Node || value)({script})"
        until_s = time.monotonic() + within_s
        while time.monotonic() < until_s:
            if value := self.look(script):
                return value
            time.sleep(0.03)
        raise AssertionError(f"In vain waited for: {script}")

    def picture(self, out: Path) -> Path:
        """A screenshot of what is in view."""
        out.write_bytes(base64.b64decode(self._call("Page.captureScreenshot")["data"]))
        return out

    def offline(self, gone: bool) -> None:
        """Cut or mend the network."""
        self._call("Network.emulateNetworkConditions", offline=gone, latency=0,
                   downloadThroughput=-1, uploadThroughput=-1)  # fmt: skip

    # ---------------------------------------------------------------- the pipe

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        until_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < until_s:
            told = self._message(until_s - time.monotonic())
            if told.get("id") == self._number:
                assert "error" not in told, told["error"]
                result: dict[str, Any] = told["result"]
                return result
            self._note(told)
        raise AssertionError(f"The browser did not answer {method}.")

    def _note(self, event: dict[str, Any]) -> None:
        """Errors of scripts, and what a policy forbade, are complaints."""
        parameters = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(parameters["exceptionDetails"]))
        if event.get("method") == "Log.entryAdded":
            entry = parameters["entry"]
            if entry["level"] == "error" and entry["source"] != "network":
                self.complaints.append(entry["text"])

    def _message(self, timeout_s: float) -> dict[str, Any]:
        while b"\0" not in self._held:
            if not select.select([self._in], [], [], max(0.0, timeout_s))[0]:
                return {}
            piece = os.read(self._in, 1 << 16)
            assert piece, "the browser has left"
            self._held += piece
        line, _, self._held = self._held.partition(b"\0")
        told: dict[str, Any] = json.loads(line)
        return told

    def close(self) -> None:
        """End the browser."""
        with contextlib.suppress(AssertionError, OSError):
            self._session = None
            self._call("Browser.close")
        try:
            self._process.wait(10)
        finally:
            self._process.kill()
            os.close(self._in)
            os.close(self._out)


@contextlib.contextmanager
def browsing(profile: Path) -> Iterator[Browser]:
    """A browser for as long as the block lasts."""
    browser = Browser(profile)
    try:
        yield browser
    finally:
        browser.close()
