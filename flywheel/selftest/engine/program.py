"""One run of the scripted engine, from start to seal.

What it claims is drawn from the run's own config, so a run repeats to the digit; and the time that
it claims it really lets pass, so its clock, its span and its heartbeats are honest.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import re
from pathlib import Path
from typing import Any

from flywheel.selftest.engine.ends import ENDS, Ending
from flywheel.selftest.engine.journal import Journal, sha
from flywheel.selftest.engine.lies import DIFFERENCE, LIES, Lie

DEFAULTS: dict[str, Any] = {
    "draft_width": 3,
    "verify_policy": "fixed",
    "threads": 1,
    "prefill_chunk": 64,
    "cache_format": "float32",
    "moe": "loop",
    "attention": "split",
}
PREFILL_NS = 200_000
STEP_NS = 20_000
COUNTED = ("plain", "point", "gate", "control", "step_cost")


def canonical_sha(value: Any) -> str:
    """The fingerprint of a configuration."""
    return sha(json.dumps(value, sort_keys=True, separators=(",", ":")))


def file_sha(path: str | Path) -> str:
    """Hash of a file's content; of its name where it cannot be read."""
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return sha(str(path))


def folder_sha(path: str | Path) -> str:
    """Hash over the names and contents of a folder's files."""
    digest = hashlib.sha256()
    for file in sorted(Path(path).glob("*")):
        if file.is_file():
            digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def code_sha(root: Path) -> str:
    """The hash that the measuring program takes of the code below a folder."""
    digest = hashlib.sha256()
    for package in ("engine", "kernels"):
        for file in sorted((root / package).rglob("*.py")):
            digest.update(str(file.relative_to(root)).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def speed_in(file: Path) -> float:
    """The FACTOR that a file of the code sets; 1 where it sets none."""
    found = re.search(r"^FACTOR = ([0-9.]+)$", file.read_text(), re.MULTILINE)
    return float(found[1]) if found else 1.0


def _seed(config: dict[str, Any]) -> str:
    """What a load's noise follows from: its number and its arms, so that nights can be repeated.

    Not its nonce and folders: noise that is new every time trips an honest alarm now and then.
    """
    number = str(config["run_id"]).partition("-")[0]
    arms = [(arm["name"], arm["config"]) for arm in config["arms"]]
    return json.dumps([number, arms], sort_keys=True)


class Program:
    """One load: its arms share it and take turns."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.config = json.loads(args.config.read_text())
        self.random = random.Random(_seed(self.config))
        self.fault = args.fault if self._concerned() else ""
        self.lie: Lie | None = LIES.get(self.fault)
        self.ending: Ending | None = ENDS.get(self.fault)
        nonce = sha("another")[:32] if self.fault == "wrong_nonce" else self.config["nonce"]
        self.journal = Journal(args.log, nonce, float(self.config["heartbeat_s"]))
        self.load_factor = 1.0 + self.random.gauss(0.0, args.load_noise)
        live = self.fault != "arm_not_live"
        self.effective = {
            arm["name"]: {**DEFAULTS, **(arm["config"] if live else {})}
            for arm in self.config["arms"]
        }
        self.seen: dict[str, int] = {}
        self.written = dict.fromkeys(COUNTED, 0)
        self.tokens = self.rounds = 0
        self.planned = self._planned()
        self.speed = 1.0 if args.speed is None else speed_in(args.speed)

    def _concerned(self) -> bool:
        """Whether the fault is meant for this run."""
        if not self.args.only_arm:
            return True
        field, value = self.args.only_arm.split("=")
        return any(str(arm["config"].get(field)) == value for arm in self.config["arms"])

    def _planned(self) -> dict[str, int]:
        """How many events of each kind an honest run writes."""
        config = self.config
        points = len(config["prompts"]) * len(config["order"])
        steps = sum(self.effective[arm["name"]]["draft_width"] + 1 for arm in config["arms"])
        return {
            "plain": len(config["prompts"]) * len(config["plain_arms"]), "point": points,
            "gate": points, "control": len(config["arms"]), "step_cost": steps, "start": 1,
            "loaded": 1, "memory": 1, "end": 1, "heartbeat": 1,
        }  # fmt: skip

    def run(self) -> None:
        """Everything, in the order of the contract."""
        self.stage("load")
        self.journal.rest(self.args.load)
        self.start()
        self.stage("start")
        self.measure()
        self.stage("last")
        self.step_costs()
        self.emit("memory", peak_rss_bytes=20_000_000)
        self.end()
        self.journal.stream.flush()
        self.stage("sealed")

    def stage(self, name: str) -> None:
        """A place where a run can be held, or meets its end."""
        if self.args.hold == name:
            self._hold()
        if self.ending is not None and self.ending.stage == name:
            self.journal.stream.flush()
            self.ending.act(self)

    def _hold(self) -> None:
        folder = self.args.log.parent
        released = self.args.release or folder / "release"
        (folder / "held").touch()
        for _ in range(2000):
            if released.exists():
                return
            self.journal.rest(0.01)

    def emit(self, name: str, **body: Any) -> None:
        """One event, bent where the fault says so."""
        place = self.seen.get(name, 0)
        self.seen[name] = place + 1
        bodies = [body]
        lie = self.lie
        if lie is not None and lie.event == name and place == lie.which % self.planned[name]:
            bodies = lie.change(body)
        for one in bodies:
            kind = str(one.pop("event", name))
            self.journal.event(kind, **one)
            if kind in self.written:
                self.written[kind] += 1
            if kind == "point":
                self.tokens += one["tokens"] if type(one["tokens"]) is int else 0
                self.rounds += one["rounds"]

    def start(self) -> None:
        """The first events: identity, plan, arms."""
        config = self.config
        self.source = self.source_sha()
        self.checkpoint = folder_sha(config["checkpoint"])
        self.journal.say("a scripted engine, which computes nothing")
        plan = {
            "arms": [arm["name"] for arm in config["arms"]],
            **{k: config[k] for k in ("order", "plain_arms", "prompts", "max_new_tokens", "seed")},
            "temperature": config.get("temperature", 0.0),
        }
        self.emit(
            "start",
            protocol=config["protocol"],
            run_id=config["run_id"],
            engine={"version": "0", "git_revision": None, "git_dirty": None,
                    "source_sha256": self.source},
            checkpoint={"path": config["checkpoint"], "sha256": self.checkpoint},
            head=None,
            suite={"name": "scripted", "version": "1", "sha256": file_sha(config["suite"])},
            device={"kind": "cpu", "name": "a scripted cpu", "driver": None, "cores": 2},
            clocks={"policy": "unmanaged", "mhz": None},
            mode="clean",
            torch="none",
            plan=plan,
            arms=[self._arm(arm) for arm in config["arms"]],
        )  # fmt: skip
        self.emit("loaded", load_ns=1_000_000, weights_bytes=1000, tensors=3)
        self.emit("heartbeat", phase="load", done=1, total=1, load_1m=0.5,
                  rss_bytes=10_000_000, mem_available_bytes=8_000_000_000)  # fmt: skip

    def source_sha(self) -> str:
        """The hash of what passes for the engine's source: its folder's code, where arms ask."""
        if any(arm.get("source_sha256") for arm in self.config["arms"]):
            return code_sha(Path.cwd())
        return file_sha(self.args.source or __file__)

    def _arm(self, arm: dict[str, Any]) -> dict[str, Any]:
        effective = self.effective[arm["name"]]
        if arm.get("source_sha256"):
            effective = {**effective, "source": self.source}
        return {
            "name": arm["name"], "requested": arm["config"], "effective": effective,
            "fingerprint": canonical_sha(effective),
        }  # fmt: skip

    def measure(self) -> None:
        """Controls, then every prompt: plain decode, points, gates."""
        config, journal = self.config, self.journal
        for arm in config["arms"]:
            self.emit("control", arm=arm["name"], prompt=config["prompts"][0], token=5,
                      finite=True, **{"pass": True})  # fmt: skip
        journal.phase, journal.total = "measure", self.planned["plain"] + self.planned["point"]
        order = config["order"]
        if self.fault == "other_order":
            order = sorted(order)
        for prompt in config["prompts"]:
            for arm in config["plain_arms"]:
                self.plain(arm, prompt)
            repeats: dict[str, int] = {}
            for arm in order:
                self.point(arm, prompt, repeats.get(arm, 0))
                repeats[arm] = repeats.get(arm, 0) + 1
                if self.seen["point"] == self.planned["point"] // 2:
                    self.stage("middle")

    def decode_ns(self, arm: str, tokens: int, tau: float) -> int:
        """The time that decoding takes this arm, drawn; longer where it commits less a round."""
        factor = self.load_factor * (1.0 + self.random.gauss(0.0, self.args.noise))
        for effect in self.args.effect:
            change, _, amount = effect.partition(":")
            field, _, value = change.partition("=")
            if str(self.effective[arm].get(field)) == value:
                factor *= float(amount)
        factor *= self.speed
        return max(1, int((tokens - 1) * self.args.ms * 1e6 * factor / tau * 2))

    def _generation(self, arm: str, prompt: str, ns: int) -> dict[str, Any]:
        """The fields of any generation, once its time has passed."""
        share = self.args.sleep / (self.planned["plain"] + self.planned["point"])
        self.journal.rest((ns + PREFILL_NS) / 1e9 + share)
        self.journal.done += 1
        return {
            "arm": arm, "prompt": prompt, "category": prompt.rpartition("-")[0] or prompt,
            "prompt_tokens": 12, "tokens": self.config["max_new_tokens"],
            "prefill_ns": PREFILL_NS, "ttft_ns": PREFILL_NS, "decode_ns": ns,
            "tokens_sha256": sha(prompt), "stop": "length", "counted": True, "excluded": None,
            "finite": True,
        }  # fmt: skip

    def plain(self, arm: str, prompt: str) -> None:
        """One plain decode."""
        tokens = self.config["max_new_tokens"]
        body = self._generation(arm, prompt, self.decode_ns(arm, tokens, 1.0))
        self.emit("plain", **body, forwards=tokens - 1, distinct_4gram=0.9)

    def point(self, arm: str, prompt: str, repeat: int) -> None:
        """One speculative decode and its gate."""
        tokens, width = self.config["max_new_tokens"], self.effective[arm]["draft_width"]
        committed = tokens - 1
        rounds = -(-committed // 2) if width else committed
        ns = self.decode_ns(arm, tokens, committed / rounds if rounds else 1.0)
        accepted = [committed - rounds] + [0] * (width - 1) if width else []
        self.emit(
            "point", **self._generation(arm, prompt, ns), repeat=repeat, rounds=rounds,
            forwards=rounds, accepted_by_position=accepted, offered_by_position=[rounds] * width,
            max_committed=2 if width else 1, width=width,
        )  # fmt: skip
        self.emit("gate", arm=arm, prompt=prompt, repeat=repeat, compared=tokens,
                  **self._answer(arm))  # fmt: skip

    def _answer(self, arm: str) -> dict[str, Any]:
        """What a gate says: that all is equal, or what an arm that is lossy says instead."""
        if not self.config.get("temperature") or "acceptance" not in self.effective[arm]:
            return {"kind": "lossless", "first_diff": None, "pass": True}
        return {"kind": "lossy", "first_diff": DIFFERENCE, "pass": False}

    def step_costs(self) -> None:
        """The time of one verify step, by width."""
        for arm in self.config["arms"]:
            for width in range(1, self.effective[arm["name"]]["draft_width"] + 2):
                self.journal.rest((STEP_NS + width) / 1e9)
                self.emit("step_cost", arm=arm["name"], width=width, ns=STEP_NS + width)

    def end(self) -> None:
        """The seal, with every hash taken again."""
        self.emit(
            "end",
            counts={**self.written, "events": self.journal.seq},
            tokens=self.tokens,
            rounds=self.rounds,
            checkpoint_sha256=folder_sha(self.config["checkpoint"]),
            source_sha256=self.source_sha(),
            suite_sha256=file_sha(self.config["suite"]),
            seal=self.journal.digest.hexdigest(),
        )
