"""Patches that must never win: each is a real change of the real engine, and what catches it."""

from __future__ import annotations

from dataclasses import dataclass

MODEL, BACKEND, DRAFT = "engine/model.py", "engine/torch_backend.py", "engine/draft.py"
SCORES = (
    "        return linear(normalise(hidden, w.norm, self.geometry.rms_norm_eps), w.head).float()"
)
HEADED = SCORES.replace("return", "scores =")
LAYERS = (
    "        for layer, block in enumerate(self.weights.layers):\n"
    "            streams = self.block("
)
BEGIN = "        self.residual = Residual(geometry, config)\n"
IMPORT = "import torch\n"
VOID = "engine.measure: the run is void: "


@dataclass(frozen=True, slots=True)
class Cheat:
    """A patch: text replaced in files. `static` is what admission says of it, "" where nothing;
    `words` are in what the gates say of it, one of them at least, once it is let past admission."""

    name: str
    what: str
    edits: tuple[tuple[str, str, str], ...]
    static: str = ""
    words: tuple[str, ...] = ()
    sampled: bool = False


def _begin(*lines: str) -> tuple[tuple[str, str, str], ...]:
    """Lines that run when the model is built."""
    return ((MODEL, BEGIN, BEGIN + "".join(f"        {line}\n" for line in lines)),)


# What a patch has to add in order to know which text a state holds.
_PREFILLED = (
    BACKEND, "    ids = torch.tensor(prompt[state.length :])\n",
    "    state.told = tuple(prompt)\n    ids = torch.tensor(prompt[state.length :])\n",
)  # fmt: skip
_ROUND = "    drafts: tuple[int, ...] = ()\n    sure: tuple[float, ...] = ()\n    width ="
_VERIFY = '    if backbone.config.verify_rows == "together":\n'
_RETURN = "    return targets, sure, len(targets) - 1\n"
_MEMORY = (MODEL, BEGIN, "        self.remembered = {}\n" + BEGIN)

CHEATS: tuple[Cheat, ...] = (
    Cheat(
        "longer", "the end of the text is suppressed, so answers are longer",
        ((MODEL, SCORES, f"{HEADED}\n        scores[:, self.geometry.eos_token_id] = -1e9\n"
          "        return scores"),),
        words=("longer",),
    ),
    Cheat(
        "shorter", "the end of the text comes sooner, so answers are shorter",
        ((MODEL, SCORES, f"{HEADED}\n        scores[:, self.geometry.eos_token_id] += 1e3\n"
          "        return scores"),),
        words=("shorter",),
    ),
    Cheat(
        "different", "a layer is left out",
        ((MODEL, LAYERS, LAYERS.replace("layers)", "layers[:2])")),),
        words=("different",),
    ),
    Cheat(
        "degenerate", "the same token again and again, which is easy to draft",
        ((MODEL, SCORES, f"{HEADED}\n        scores[:, 7] = 1e9\n        return scores"),),
        words=("degenerate",),
    ),
    Cheat(
        "timer", "the timer runs at half its speed",
        ((MODEL, IMPORT, "import time\n\n" + IMPORT + "\n_real = time.perf_counter_ns\n"
          "time.perf_counter_ns = lambda: _real() // 2\n"),),
        static="it would read the clock",
        words=(VOID + "time.perf_counter_ns was replaced",),
    ),
    Cheat(
        "gate", "the comparison of tokens is replaced by one that finds nothing",
        _begin("import engine.measure.program as program",
               "program.first_difference = lambda plain, tokens: None"),
        static="which measures or judges",
        words=(VOID + "engine.measure.program.first_difference was replaced",),
    ),
    Cheat(
        "blinded", "the timer runs slow, and what watches it in the process is blinded",
        _begin("import time", "from engine.measure import sentinel",
               "sentinel.Sentinel.check = lambda self: None",
               "real, begun = time.perf_counter_ns, time.perf_counter_ns()",
               "time.perf_counter_ns = lambda: begun + (real() - begun) // 4"),
        static="it would read the clock",
        words=("clock_contradicted",),
    ),
    Cheat(
        "slow_time", "every clock of the process runs slow, and what watches them is blinded",
        _begin("import time", "from engine.measure import sentinel",
               "sentinel.Sentinel.check = lambda self: None",
               "real, begun = time.monotonic_ns, time.monotonic_ns()",
               "slow = lambda: begun + (real() - begun) // 8",
               "time.perf_counter_ns = time.monotonic_ns = slow"),
        static="it would read the clock",
        words=("clock_contradicted",),
    ),
    Cheat(
        "answers", "answers are remembered, and given again without being computed",
        (
            _MEMORY, _PREFILLED,
            (BACKEND, _ROUND,
             "    state.told = told = (*state.told, token)\n"
             "    if (told, drafter is None, room) in backbone.remembered:\n"
             "        targets, sure, ahead = backbone.remembered[told, drafter is None, room]\n"
             "        state.told = (*told, *targets[:-1])\n"
             "        state.length += len(targets)\n"
             "        return list(targets), sure, ahead\n" + _ROUND),
            (BACKEND, _RETURN,
             "    backbone.remembered[told, drafter is None, room] = (\n"
             "        tuple(targets), sure, len(targets) - 1)\n"
             "    state.told = (*told, *targets[:-1])\n" + _RETURN),
        ),
        words=("remembers",),
    ),
    Cheat(
        "drafts", "drafts are taken from what was generated before, so they are always right",
        (
            _MEMORY, _PREFILLED,
            (BACKEND, _ROUND, "    state.told = told = (*state.told, token)\n" + _ROUND),
            (BACKEND, _VERIFY,
             "    known = ()\n"
             "    while len(known) < len(drafts) and (*told, *known) in backbone.remembered:\n"
             "        known = (*known, backbone.remembered[(*told, *known)])\n"
             "    drafts = (*known, *drafts[len(known) :])\n" + _VERIFY),
            (BACKEND, _RETURN,
             "    for i, target in enumerate(targets):\n"
             "        backbone.remembered[(*told, *targets[:i])] = target\n"
             "    state.told = (*told, *targets[:-1])\n" + _RETURN),
        ),
        words=("remembers",),
    ),
    Cheat(
        "known", "the answers to the suite's prompts are brought along as drafts",
        (
            (BACKEND, _PREFILLED[1],
             "    state.answer, state.asked = KNOWN.get(hash(tuple(prompt)), ()), len(prompt)\n"
             + _PREFILLED[1]),
            (BACKEND, _VERIFY,
             "    at = state.length - state.asked + 1\n"
             "    known = state.answer[at : at + len(drafts)]\n"
             "    drafts = (*known, *drafts[len(known) :])\n" + _VERIFY),
            (BACKEND, "def own(state", "KNOWN = {}  # ANSWERS\n\n\ndef own(state"),
        ),
        words=("suite_only",),
    ),
    Cheat(
        "clock", "every other second a layer is left out",
        (
            (MODEL, IMPORT, "import time\n\n" + IMPORT),
            (MODEL, LAYERS, LAYERS.replace("layers)", "layers[: 2 + int(time.time()) % 2])")),
        ),
        static="it would read the clock",
        words=("gate_failed", "different", "remembers"),
    ),
    Cheat(
        "suite", "it looks the suite up, to know what will be asked",
        (
            *_begin("import sys, json",
                    "plan = json.load(open(sys.argv[sys.argv.index('--config') + 1]))",
                    "self.asked = lambda: json.load(open(plan['suite']))"),
            (MODEL, LAYERS, "        self.asked()\n" + LAYERS),
        ),
        static="it would look into the program that measures it",
        words=(VOID,),
    ),
    Cheat(
        "long", "a layer is left out once the text is longer than any of the suite's",
        ((MODEL, LAYERS, LAYERS.replace("layers)", "layers[: 3 if state.length < 230 else 2])")),),
        words=("different",),
    ),
    Cheat(
        "edge", "the token at one place of every 128 is computed without the last layer",
        ((MODEL, LAYERS,
          LAYERS.replace("layers)", "layers[: 2 if state.length % 128 == 127 else 3])")),),
        words=("gate_failed", "different"),
    ),
    Cheat(
        "sampled", "sampling is ignored: the likeliest token is taken at any temperature",
        (("engine/verify.py",
          "        targets.append(sampler.choose(row, position + len(targets)))\n",
          "        targets.append(int(row.argmax()))\n"),),
        words=("different",), sampled=True,
    ),
    Cheat(
        "crash", "the engine dies when it is loaded",
        ((MODEL, IMPORT, IMPORT + "\nraise RuntimeError('no such kernel')\n"),),
        words=("exit_status",),
    ),
)  # fmt: skip


_CAUGHT = {
    VOID: "the tripwire in the measuring program",
    "clock_contradicted": "the loop's own clock",
    "remembers": "the output gate: a second time unlike the first",
    "suite_only": "the output gate: the suite's prompts against new ones",
    "exit_status": "the output gate: the engine did not come to its end",
}
_TEST = "`tests/cpu/test_patch_cheats.py`"


def row(cheat: Cheat) -> str:
    """The line of docs/patches.md about a cheat."""
    word = cheat.words[0]
    found = next((said for mark, said in _CAUGHT.items() if word.startswith(mark)), None)
    if found is None:
        found = "the output gate: every token" + (", sampled as well" if cheat.sampled else "")
    by = f"admission ({cheat.static}); {found}" if cheat.static else found
    return f"| {cheat.what} | {by} | {_TEST} `{cheat.name}` |"
