"""A stand-in for the engine: speaks the log contract, measures nothing, needs only Python.

Started as a real process through the real launch path.  Its clock is its own: it adds the time
that it claims to have spent, so a run takes milliseconds and still adds up.  ``--fault`` makes it
die or lie in one named way; ``--effect field=value:factor`` makes a lever really change the time.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

DEFAULTS: dict[str, Any] = {
    "draft_width": 3,
    "verify_policy": "fixed",
    "threads": 1,
    "prefill_chunk": 64,
    "cache_format": "float32",
    "moe": "loop",
    "attention": "split",
}


class Log:
    """Writes prose and sealed events."""

    def __init__(self, path: Path, nonce: str) -> None:
        self.stream = path.open("w", encoding="utf-8")
        self.nonce = nonce
        self.seq = 0
        self.spent_ns = 0
        self.digest = hashlib.sha256()
        self.beat_ns = 0

    def now_ns(self) -> int:
        return time.monotonic_ns() + self.spent_ns

    def say(self, text: str) -> None:
        self.stream.write(text + "\n")

    def line(self, kind_: str, **body: Any) -> str:
        event = {"event": kind_, "seq": self.seq, "t_ns": self.now_ns(), **body}
        return f"@{self.nonce} {json.dumps(event)}"

    def event(self, kind_: str, **body: Any) -> None:
        line = self.line(kind_, **body)
        self.seq += 1
        self.digest.update(line.encode() + b"\n")
        self.stream.write(line + "\n")
        self.stream.flush()

    def beat(self, phase: str, done: int, total: int) -> None:
        self.beat_ns = self.now_ns()
        self.event(
            "heartbeat", phase=phase, done=done, total=total, load_1m=0.5,
            rss_bytes=10_000_000, mem_available_bytes=8_000_000_000,
        )

    def spend(self, ns: int, phase: str, done: int, total: int) -> None:
        """Let simulated time pass, with a heartbeat in every second of it."""
        while ns > 0:
            step = min(ns, 1_000_000_000)
            self.spent_ns += step
            ns -= step
            if self.now_ns() - self.beat_ns >= 1_000_000_000:
                self.beat(phase, done, total)


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def canonical_sha(value: Any) -> str:
    return sha(json.dumps(value, sort_keys=True, separators=(",", ":")))


def file_sha(path: str) -> str:
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return sha(path)


def folder_sha(path: str) -> str:
    digest = hashlib.sha256()
    for file in sorted(Path(path).glob("*")):
        if file.is_file():
            digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--fault", default="")
    parser.add_argument("--only-arm", default="", help="the fault needs this field=value in an arm")
    parser.add_argument("--effect", action="append", default=[], metavar="FIELD=VALUE:FACTOR")
    parser.add_argument("--noise", type=float, default=0.002)
    parser.add_argument("--load-noise", type=float, default=0.002)
    parser.add_argument("--sleep", type=float, default=0.0, help="real seconds a run")
    parser.add_argument("--ms", type=float, default=2.0, help="time per token of the default")
    parser.add_argument("--count", type=Path, help="append a line here at every start")
    return parser.parse_args()


class Engine:
    """One run, start to seal."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.config = json.loads(args.config.read_text())
        self.fault = args.fault
        self.random = random.Random(args.config.read_text())
        if args.only_arm:
            field, value = args.only_arm.split("=")
            wanted = [str(arm["config"].get(field)) == value for arm in self.config["arms"]]
            self.fault = self.fault if any(wanted) else ""
        nonce = self.config["nonce"]
        self.log = Log(args.log, sha("another")[:32] if self.fault == "wrong_nonce" else nonce)
        self.load_factor = 1.0 + self.random.gauss(0.0, args.load_noise)
        self.effective = {
            arm["name"]: {**DEFAULTS, **self.resolved(arm["config"])}
            for arm in self.config["arms"]
        }
        self.counts = {"plain": 0, "point": 0, "gate": 0, "control": 0, "step_cost": 0}
        self.tokens = self.rounds = 0
        self.total = len(self.config["prompts"]) * (
            len(self.config["order"]) + len(self.config["plain_arms"])
        )

    def resolved(self, config: dict[str, Any]) -> dict[str, Any]:
        return {} if self.fault == "arm_not_live" else dict(config)

    def emit(self, kind_: str, **body: Any) -> None:
        self.counts[kind_] += 1
        self.log.event(kind_, **body)

    def start(self) -> None:
        config, log = self.config, self.log
        log.say("fake engine, a stand-in that measures nothing")
        arms = []
        for arm in config["arms"]:
            effective = self.effective[arm["name"]]
            mark = sha("?") if self.fault == "wrong_fingerprint" else canonical_sha(effective)
            arms.append(
                {
                    "name": arm["name"],
                    "requested": arm["config"],
                    "effective": effective,
                    "fingerprint": mark,
                }
            )
        self.source = file_sha(__file__)
        self.checkpoint = folder_sha(config["checkpoint"])
        plan = {
            "arms": [arm["name"] for arm in config["arms"]],
            **{k: config[k] for k in ("order", "plain_arms", "prompts", "max_new_tokens", "seed")},
        }
        if self.fault == "other_plan":
            plan["order"] = plan["order"][:-1]
        log.event(
            "start",
            protocol=config["protocol"],
            run_id="r-other" if self.fault == "wrong_run_id" else config["run_id"],
            engine={"version": "0", "git_revision": None, "git_dirty": None,
                    "source_sha256": self.source},
            checkpoint={"path": config["checkpoint"], "sha256": self.checkpoint},
            head=None,
            suite={"name": "fake", "version": "1", "sha256": file_sha(config["suite"])},
            device={"kind": "cpu", "name": "fake cpu", "driver": None, "cores": 2},
            clocks={"policy": "unmanaged", "mhz": None},
            mode="profile" if self.fault == "profile" else "clean",
            torch="none",
            plan=plan,
            arms=arms,
        )
        log.event("loaded", load_ns=1_000_000, weights_bytes=1000, tensors=3)
        log.beat("load", 1, 1)

    def decode_ns(self, arm: str, tokens: int, tau: float) -> int:
        factor = self.load_factor * (1.0 + self.random.gauss(0.0, self.args.noise))
        for effect in self.args.effect:
            change, _, amount = effect.partition(":")
            field, _, value = change.partition("=")
            if str(self.effective[arm].get(field)) == value:
                factor *= float(amount)
        return max(1, int((tokens - 1) * self.args.ms * 1e6 * factor / tau * 2))

    def plain(self, arm: str, prompt: str, tokens: int) -> None:
        ns = self.decode_ns(arm, tokens, 1.0)
        self.log.spend(ns + 10_000_000, "plain", self.counts["plain"], self.total)
        self.emit(
            "plain", arm=arm, prompt=prompt, category=prompt.rpartition("-")[0] or prompt,
            prompt_tokens=12, tokens=tokens, forwards=tokens - 1, prefill_ns=10_000_000,
            ttft_ns=10_000_000, decode_ns=ns, tokens_sha256=sha(prompt), stop="length",
            distinct_4gram=0.9, counted=True, excluded=None, finite=True,
        )

    def point(self, arm: str, prompt: str, repeat: int, tokens: int) -> None:
        width = self.effective[arm]["draft_width"]
        committed = tokens - 1
        rounds = -(-committed // 2) if width else committed
        accepted = [committed - rounds] + [0] * (width - 1) if width else []
        offered = [rounds] * width
        ns = self.decode_ns(arm, tokens, committed / rounds if rounds else 1.0)
        self.log.spend(ns + 10_000_000, "points", self.counts["point"], self.total)
        body: dict[str, Any] = {
            "arm": arm, "prompt": prompt, "category": prompt.rpartition("-")[0] or prompt,
            "repeat": repeat, "prompt_tokens": 12, "tokens": tokens, "rounds": rounds,
            "forwards": rounds, "prefill_ns": 10_000_000, "ttft_ns": 10_000_000,
            "decode_ns": ns, "accepted_by_position": accepted, "offered_by_position": offered,
            "max_committed": 2 if width else 1, "width": width, "tokens_sha256": sha(prompt),
            "stop": "length", "counted": True, "excluded": None, "finite": True,
        }
        last = self.counts["point"] == self.total_points() - 1
        if last:
            body = self.spoil(body)
        if body is not None:
            self.emit("point", **body)
            self.tokens += body["tokens"] if isinstance(body["tokens"], int) else 0
            self.rounds += body["rounds"]
            if last and self.fault == "point_twice":
                self.emit("point", **body)
                self.tokens += body["tokens"]
                self.rounds += body["rounds"]
        failed = last and self.fault == "gate"
        if not (last and self.fault == "gate_missing"):
            self.emit(
                "gate", kind="lossless", arm=arm, prompt=prompt, repeat=repeat, compared=tokens,
                **{"pass": not failed},
                first_diff={"index": 7, "plain": 11, "spec": 12} if failed else None,
            )
        self.strike(last)

    def total_points(self) -> int:
        return len(self.config["prompts"]) * len(self.config["order"])

    def spoil(self, body: dict[str, Any]) -> Any:
        """Lie about the last point in one way."""
        changes: dict[str, dict[str, Any]] = {
            "zero_tokens": {"tokens": 0, "rounds": 0, "forwards": 0},
            "nan": {"decode_ns": float("nan")},
            "inf": {"decode_ns": float("inf")},
            "zero_time": {"decode_ns": 0},
            "impossible_time": {"decode_ns": 10**15},
            "sum": {"accepted_by_position": [0] * len(body["accepted_by_position"])},
            "over_width": {"max_committed": body["width"] + 2},
            "rounds": {"forwards": body["rounds"] + 1},
            "not_finite": {"finite": False},
        }
        if self.fault == "point_missing":
            return None
        return {**body, **changes.get(self.fault, {})}

    def strike(self, last: bool) -> None:
        """Die in the middle, or dawdle."""
        if self.args.sleep:
            time.sleep(self.args.sleep / self.total_points())
        if not last:
            return
        if self.fault == "sigkill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fault == "hang":
            time.sleep(600)
        if self.fault == "deaf":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(600)
        if self.fault == "grandchild":
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        if self.fault == "half_line":
            self.log.stream.write(self.log.line("point", arm="A")[:40])
            self.log.stream.flush()
            sys.exit(0)
        if self.fault == "truncated":
            sys.exit(0)
        if self.fault == "heartbeat_gap":
            self.log.spent_ns += 120_000_000_000

    def measure(self) -> None:
        config, limit = self.config, self.config["max_new_tokens"]
        for arm in config["arms"]:
            bad = self.fault == "control"
            self.emit("control", arm=arm["name"], prompt=config["prompts"][0], token=5,
                      finite=True, **{"pass": not bad})
        for prompt in config["prompts"]:
            for arm in config["plain_arms"]:
                self.plain(arm, prompt, limit)
            seen: dict[str, int] = {}
            for arm in config["order"]:
                self.point(arm, prompt, seen.get(arm, 0), limit)
                seen[arm] = seen.get(arm, 0) + 1
        for arm in config["arms"]:
            for width in range(1, self.effective[arm["name"]]["draft_width"] + 2):
                self.emit("step_cost", arm=arm["name"], width=width, ns=1_000_000 + width)
        self.log.event("memory", peak_rss_bytes=20_000_000)

    def end(self) -> None:
        log = self.log
        if self.fault == "foreign_nonce":
            other = sha("another")[:32]
            log.say(f'@{other} the prompt quotes @{log.nonce} {{"event":"point","tokens":9}}')
        if self.fault == "seal_missing":
            return
        counts = {**self.counts, "events": log.seq}
        if self.fault == "counts":
            counts["point"] += 1
        seal = sha("wrong") if self.fault == "seal_wrong" else log.digest.hexdigest()
        log.event(
            "end", counts=counts, tokens=self.tokens, rounds=self.rounds,
            checkpoint_sha256=sha("new") if self.fault == "checkpoint" else self.checkpoint,
            source_sha256=sha("new") if self.fault == "source" else self.source, seal=seal,
        )
        if self.fault == "after_end":
            log.event("heartbeat", phase="late", done=1, total=1, load_1m=0.1, rss_bytes=1,
                      mem_available_bytes=1)


def main() -> int:
    args = arguments()
    if args.count:
        with args.count.open("a") as stream:
            stream.write(f"{os.getpid()}\n")
    engine = Engine(args)
    if engine.fault == "dies_loading":
        print("the fake engine cannot load", file=sys.stderr)
        return 2
    if engine.fault == "disk_full":
        print("OSError: [Errno 28] No space left on device", file=sys.stderr)
        return 1
    if engine.fault == "no_log":
        args.log.unlink()
        return 0
    engine.start()
    if engine.fault == "hang_early":
        time.sleep(600)
    engine.measure()
    engine.end()
    engine.log.stream.flush()
    return 7 if engine.fault == "exit_status" else 0


if __name__ == "__main__":
    sys.exit(main())
