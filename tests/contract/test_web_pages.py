"""The pages for people, in a real browser against the real server."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import chromium
import pytest
from devtools import Browser, browsing
from servers import HERE, Running, started

pytestmark = pytest.mark.skipif(
    chromium.binary() is None,
    reason="NO SCREENSHOTS: there is no chromium or chrome here; install one (apt-get install "
    f"chromium) or name it in {chromium.VARIABLE}",
)
LAST = "document.querySelector('#log article:last-of-type')"
IDLE = "!document.querySelector('#send').hidden"
PAPER = {False: "fcfcfa", True: "141618"}
STORY = {
    "made_utc": "2026-11-29T07:00:05Z",
    "headline": "the best of campaign 1: 1 promotion",
    "canaries": {"text": "0 of 1 promoted", "value": 0.0, "low": 0.0, "high": 0.6},
    "incumbent": {"text": "8.02 ms/token [7.95, 8.09]", "value": 8.02, "low": 7.95, "high": 8.09},
    "gain": {"text": "18.2 % [14.6, 21.7]", "value": 0.182, "low": 0.146, "high": 0.217},
    "proof": "2 prompts, 416 tokens and every acceptance as in run r00001",
    "promotions": [{"decision": 1, "label": "hyper.host loop -> host", "ending": "promoted",
                    "said": "saves 16.6 %", "date": "2026-11-29"}],
    "night": {"text": "from 22:00 to 07:00", "decisions": [
        {"decision": 1, "label": "<img src=x onerror=alert(1)>", "ending": "rejected",
         "said": "less than 0.4 %", "date": "2026-11-29"}]},
    "config": {"hyper": "host"}, "first_config": {},
    "faults": [{"said": "engine fault, 2 answers ended: RuntimeError",
                "at_utc": "2026-11-29T08:00:00Z"}],
}  # fmt: skip


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browsing(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture(autouse=True)
def no_complaints(browser: Browser) -> Iterator[None]:
    """No script of ours fails, and nothing that the pages do is against their own policy."""
    browser.complaints.clear()
    yield
    assert browser.complaints == []


def fresh(browser: Browser, server: Running, **window: Any) -> None:
    browser.open(f"{server.url}/about", **window)
    browser.look("localStorage.clear()")
    browser.open(f"{server.url}/", **window)


def asks(browser: Browser, text: str) -> None:
    browser.look("document.querySelector('#ask').focus()")
    browser.type(text)
    browser.press("Enter")


def says(browser: Browser, script: str) -> str:
    """Ask the scripted engine for one of its scripts."""
    asks(browser, f"@{script}")
    browser.until(f"{IDLE} && {LAST}?.className === 'assistant'")
    return str(browser.look(f"{LAST}.querySelector('.body').innerText"))


def rendered(browser: Browser, text: str) -> str:
    """The HTML that the page makes of a reply."""
    script = (
        f"import('/web/markdown.js').then(m => m.render({json.dumps(text)})"
        ".map(n => n.outerHTML ?? n).join(''))"
    )
    return str(browser.look(script))


def check_picture(browser: Browser, out: Path, width: int, height: int, *, dark: bool) -> None:
    """It is drawn, on the right ground, and nothing of the page is wider than the window."""
    (seen,) = chromium.colours([browser.picture(out)], out.parent)
    assert sum(seen.values()) == width * height
    ground = max(seen, key=lambda colour: seen[colour])
    assert ground == PAPER[dark]
    assert 0.3 < seen[ground] / (width * height) < 0.98
    assert len(seen) > 40
    # A phone widens its viewport to what sticks out, so that is looked at too.
    assert browser.look("innerWidth") == width
    assert browser.look("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize(("width", "height"), [(1280, 900), (360, 740)])
def test_a_conversation_with_the_model(
    browser: Browser, server: Running, tmp_path: Path, width: int, height: int, dark: bool
) -> None:
    fresh(browser, server, width=width, height=height, dark=dark)
    browser.until("document.querySelector('#served').innerText.includes('decision D7')")
    browser.click("#adjust")
    browser.look("document.querySelector('#limit').value = 48")
    browser.click("#settings-done")
    asks(browser, "Name three colours.")
    browser.until(f"{IDLE} && {LAST}?.className === 'assistant'")
    first = browser.look(f"{LAST}.querySelector('.body').innerText")
    assert first.strip()
    meter = browser.text("#log article:last-of-type .meter")
    for word in ("tok/s", "a round", "drafts accepted", "prompt tokens remembered"):
        assert word in meter
    check_picture(browser, tmp_path / "chat.png", width, height, dark=dark)

    browser.open(f"{server.url}/", width=width, height=height, dark=dark)
    assert browser.look("document.querySelectorAll('#log article').length") == 2
    assert browser.text("#title") == "Name three colours."
    asks(browser, "And three more.")
    browser.until(f"{IDLE} && document.querySelectorAll('#log article').length === 4")


def test_speed_is_told_while_the_answer_grows(browser: Browser, scripted: Running) -> None:
    fresh(browser, scripted)
    asks(browser, "@endless")
    first = browser.until(f"{LAST}?.querySelector('.meter').innerText")
    browser.until(f"{LAST}.querySelector('.meter').innerText !== {json.dumps(first)}")
    assert not browser.look(IDLE)
    browser.press("Escape")
    browser.until(IDLE)


@pytest.mark.parametrize("how", ["button", "key"])
def test_stop_ends_the_engines_work_within_a_round(
    browser: Browser, scripted: Running, how: str
) -> None:
    fresh(browser, scripted)
    asks(browser, "@endless")
    browser.until(f"{LAST}?.querySelector('.body').innerText.includes('so so so')")
    assert scripted.get("/health")[1]["running"] == 1
    if how == "button":
        browser.click("#stop")
    else:
        browser.press("Escape")
    assert scripted.until_idle(1) < 1
    browser.until(IDLE)
    assert "Stopped." in browser.text("#log article:last-of-type .ending")
    assert "so so so" in browser.text("#log article:last-of-type .body")
    assert says(browser, "plain").startswith("One, two, three.")


def test_thinking_is_folded(browser: Browser, scripted: Running) -> None:
    fresh(browser, scripted)
    browser.click("#think")
    assert says(browser, "thought") == "Yes."
    assert browser.look(f"{LAST}.querySelector('.thinking').open") is False
    browser.look(f"{LAST}.querySelector('.thinking').open = true")
    assert "Let me see. 2 < 3." in browser.text("#log article:last-of-type .thought")


def test_tool_calls_are_shown_and_can_be_answered(browser: Browser, scripted: Running) -> None:
    fresh(browser, scripted)
    browser.click("#adjust")
    tool = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
    browser.look(f"document.querySelector('#tools').value = {json.dumps(json.dumps([tool]))}")
    browser.click("#settings-done")
    says(browser, "call")
    calls = browser.look(
        f"[...{LAST}.querySelectorAll('.call')].map(c => c.querySelector('code').innerText)"
    )
    assert calls == ["weather", "now"]
    assert 'Köln 🙂 "old town"' in json.loads(browser.text(".call pre"))["city"]
    for _ in calls:
        browser.look("document.querySelector('.call textarea').focus()")
        browser.type("@plain")
        browser.click(".call .result button")
    browser.until(f"{IDLE} && {LAST}?.className === 'assistant'")
    roles = browser.look("[...document.querySelectorAll('#log article')].map(a => a.className)")
    assert roles == ["user", "assistant", "tool", "tool", "assistant"]


@pytest.mark.parametrize(
    ("script", "sentence"),
    [("fault at once", "The logits are not finite"), ("bug at once", "The engine failed")],
)
def test_errors_are_sentences_with_a_way_on(
    browser: Browser, scripted: Running, script: str, sentence: str
) -> None:
    fresh(browser, scripted)
    asks(browser, f"@{script}")
    browser.until(f"{IDLE} && {LAST}?.querySelector('.bad')")
    assert sentence in browser.text("#log .bad")
    assert browser.text("#log .ending button") == "Try again"
    assert says(browser, "plain").startswith("One, two, three.")


def test_a_key_is_asked_for_and_kept_by_the_tab(browser: Browser) -> None:
    with started([str(HERE / "scripted.py"), "--key", "sesame"]) as running:
        fresh(browser, running)
        asks(browser, "@plain")
        browser.until(f"{IDLE} && {LAST}?.querySelector('.bad')")
        assert "wants an API key" in browser.text("#log .bad")
        browser.click("#adjust")
        browser.look("document.querySelector('#key').value = 'sesame'")
        browser.click("#settings-done")
        browser.click("#log .ending button")
        browser.until(f"{IDLE} && {LAST}?.innerText.includes('One, two, three.')")
        browser.open(f"{running.url}/about")
        browser.until("document.querySelector('#speed-note').innerText")
        assert browser.text("#trouble") == ""
        assert browser.look("JSON.stringify(localStorage).includes('sesame')") is False
        browser.look("sessionStorage.clear()")
        browser.open("about:blank")


def test_a_server_that_is_gone_is_a_sentence(browser: Browser, scripted: Running) -> None:
    fresh(browser, scripted)
    browser.offline(True)
    asks(browser, "@plain")
    browser.until(f"{IDLE} && {LAST}?.querySelector('.bad')")
    browser.offline(False)
    assert "cannot be reached" in browser.text("#log .bad")
    browser.click("#log .ending button")
    browser.until(f"{IDLE} && {LAST}?.innerText.includes('One, two, three.')")


def test_the_keyboard_is_enough(browser: Browser, scripted: Running) -> None:
    fresh(browser, scripted)
    assert browser.look("document.activeElement.id") == "ask"
    browser.type("@plain")
    browser.press("Enter", shift=True)
    browser.type("second line")
    assert browser.look("document.querySelector('#ask').value") == "@plain\nsecond line"
    assert browser.look("document.querySelectorAll('#log article').length") == 0
    order = []
    for _ in range(3):
        browser.press("Tab")
        order.append(browser.look("document.activeElement.id"))
    assert order[:2] == ["think", "send"]
    browser.look("document.activeElement.blur(), document.body.focus()")
    browser.open(f"{scripted.url}/")
    browser.press("Tab", shift=True)
    assert browser.look("document.activeElement.id") != "ask"


def test_on_a_phone_the_conversations_are_a_drawer(
    browser: Browser, scripted: Running, tmp_path: Path
) -> None:
    fresh(browser, scripted, width=360, height=740)
    seen = "getComputedStyle(document.querySelector('#side')).visibility"
    assert browser.look(seen) == "hidden"
    browser.click("#menu")
    browser.until(f"{seen} === 'visible'")
    assert browser.look("document.querySelector('#menu').getAttribute('aria-expanded')") == "true"
    browser.press("Escape")
    browser.until(f"{seen} === 'hidden'")
    assert browser.look("document.activeElement.id") == "menu"


def test_a_reply_cannot_bring_html(browser: Browser, scripted: Running) -> None:
    fresh(browser, scripted)
    for hostile in (
        "<img src=x onerror=alert(1)>",
        "**<script>alert(1)</script>**",
        "# <svg onload=alert(1)>",
        "- <iframe srcdoc='x'>",
        "| <b>a</b> | b |\n|---|---|\n| <i>c</i> | d |",
        "> <style>*{display:none}</style>",
        "```<script>\n<script>alert(1)</script>\n```",
        "`<b>`",
        '[x](https://a.example/"onmouseover="alert(1))',
    ):
        made = browser.look(
            f"import('/web/markdown.js').then(m => {{ const box = document.createElement('div');"
            f"box.append(...m.render({json.dumps(hostile)}));"
            "return [...box.querySelectorAll('*')].flatMap(n => [n.tagName,"
            "...[...n.attributes].map(a => a.name)]); })"
        )
        assert not {"IMG", "SCRIPT", "SVG", "svg", "IFRAME", "STYLE", "B", "I"} & set(made)
        assert not [name for name in made if name.startswith("on")]
    for target in ("javascript:alert(1)", "data:text/html,x", "JaVaScRiPt:x", "vbscript:x", "/x"):
        assert "<a" not in rendered(browser, f"[here]({target})")


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("a *b* **c** `d*e*`", "<p>a <em>b</em> <strong>c</strong> <code>d*e*</code></p>"),
        ("## T", "<h4>T</h4>"),
        ("- a\n- b", "<ul><li>a</li><li>b</li></ul>"),
        ("3. a\n   - b", '<ol start="3"><li>a<ul><li>b</li></ul></li></ol>'),
        ("> q", "<blockquote><p>q</p></blockquote>"),
        ("2 < 3 & 4 > 1", "<p>2 &lt; 3 &amp; 4 &gt; 1</p>"),
        ("snake_case_name 2*3*4", "<p>snake_case_name 2*3*4</p>"),
        ("unclosed ```", "<p>unclosed ```</p>"),
    ],
)
def test_the_common_part_of_markdown(
    browser: Browser, scripted: Running, text: str, html: str
) -> None:
    browser.open(f"{scripted.url}/")
    assert rendered(browser, text) == html


def test_hostile_text_takes_no_long_time(browser: Browser, scripted: Running) -> None:
    browser.open(f"{scripted.url}/")
    for piece in ("*a ", "[", "`", "**", "> ", "- ", "|", "_a_", "https://a"):
        text = piece * 4000
        spent_ms = browser.look(
            f"import('/web/markdown.js').then(m => {{ const t = performance.now();"
            f"m.render({json.dumps(text)}); return performance.now() - t; }})"
        )
        assert spent_ms < 3000, piece


def test_the_policy_lets_nothing_else_in(scripted: Running) -> None:
    for path in ("/", "/about", "/web/chat.js", "/web/page.css", "/web/icon.svg"):
        with urllib.request.urlopen(scripted.url + path) as answer:
            policy = answer.headers["Content-Security-Policy"]
            body = answer.read().decode()
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "innerHTML" not in body
        assert "http://" not in body.replace("http://www.w3.org/2000/svg", "")


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize(("width", "height"), [(1280, 900), (360, 740)])
def test_what_is_served_and_why(
    browser: Browser, tmp_path: Path, width: int, height: int, dark: bool
) -> None:
    about = tmp_path / "about.json"
    about.write_text(json.dumps(STORY))
    with started([str(HERE / "scripted.py"), "--about", str(about)]) as running:
        browser.open(f"{running.url}/about", width=width, height=height, dark=dark)
        browser.until("document.querySelector('#title').innerText.startsWith('Serving')")
        browser.until("document.querySelector('#served dt')")
        assert "18.2 % [14.6, 21.7]" in browser.text("#gain")
        assert "hyper.host loop -> host" in browser.text("#promotions")
        assert "<img src=x onerror=alert(1)>" in browser.text("#decisions")
        assert "every acceptance as in run r00001" in browser.text("#served")
        assert "the checkpoint's own" in browser.text("#served")
        assert "2 answers ended: RuntimeError (2026-11-29" in browser.text("#faults")
        running.client().chat.completions.create(
            model="scripted", messages=[{"role": "user", "content": "@plain"}]
        )
        browser.until("document.querySelectorAll('#spark polyline').length")
        check_picture(browser, tmp_path / "about.png", width, height, dark=dark)
        browser.open(f"{running.url}/", width=width, height=height, dark=dark)
        assert browser.look("document.querySelector('a[href=\"/about\"]') !== null")
        browser.open("about:blank")


def test_without_a_loop_the_page_says_so(browser: Browser, scripted: Running) -> None:
    browser.open(f"{scripted.url}/about")
    browser.until("document.querySelector('#made').innerText.includes('no ledger')")
    browser.until("document.querySelector('#served').innerText.includes('scripted')")
