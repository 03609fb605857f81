"""`python -m engine.bench`: how fast this engine decodes here, plain, drafting, beside a peer."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from torch import Tensor

from engine import lease
from engine.bench import machine, session
from engine.bench.contest import Contestant, EngineContestant
from engine.bench.peer import Peer, PeerMissing
from engine.bench.report import Line, Result, show
from engine.bench.session import Question, Session, Step, Timed
from engine.checkpoint import checkpoint_sha256
from engine.config import EngineConfig
from engine.engine import Engine
from engine.errors import ConfigError, DeviceBusy, EngineError
from engine.suite import ASSETS, Suite
from engine.tokenizer import Tokenizer

PLAIN, SPECULATIVE = "plain", "speculative"
PROFILE = "--profile"  # another command, with options of its own
_NUMBER = re.compile("[0-9]{1,18}")
AGREEMENT_PROMPTS, AGREEMENT_TOKENS = 3, 32
SYNTHETIC_CHUNK = 2048  # prompt tokens a forward of a model that fills a GPU
# Options that say nothing of the other kind of model.
OF_SYNTHETIC = ("layers", "contexts", "lengths", "sections")
OF_CHECKPOINT = ("checkpoint", "suite", "prompts", "tokens", "threads")
INDEXED_RATIO = 4  # tokens a compressed row, on the layers that select rows


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line asks for."""

    checkpoint: Path
    config: EngineConfig
    suite: Path
    prompts: int
    tokens: int
    repeats: int
    threads: int | None
    peer: bool
    command: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and print; exit status 2 and one sentence for what cannot be run, 3 on a busy device."""
    argv = list(sys.argv[1:] if arguments is None else arguments)
    if PROFILE in argv:
        from engine.profile.command import main as profile

        return profile([word for word in argv if word != PROFILE])
    given = _parser().parse_args(argv)
    progress = _bar(Console(stderr=True))
    try:
        _check(given)
        if given.synthetic is not None:
            return _synthetic(given)
        options = _options(given, argv)
        with lease.held("engine.bench"), progress:
            result = run(options, progress)
    except DeviceBusy as error:
        print(error, file=sys.stderr)
        return 3
    except EngineError as error:
        print(error, file=sys.stderr)
        return 2
    if given.json:
        print(json.dumps(result.json(), indent=1))
    else:
        show(result, Console())
    return 0


def _check(given: argparse.Namespace) -> None:
    """Refuse an option that would be without effect."""
    synthetic = given.synthetic is not None
    for name in OF_CHECKPOINT if synthetic else OF_SYNTHETIC:
        if getattr(given, name) is not None:
            raise ConfigError(f"--{name} goes {'without' if synthetic else 'with'} --synthetic.")


def _synthetic(given: argparse.Namespace) -> int:
    """Time a model of random weights; lines as they come, and the whole as JSON if asked for."""
    from engine.device import requirement

    requirement.device()  # a clear sentence where the imports below would fail
    from engine.bench import synthetic

    config = _config(given.config)[1]
    if given.config is None:
        config = replace(config, dtype="bfloat16", prefill_chunk=SYNTHETIC_CHUNK)
    options = synthetic.Options(
        name=given.synthetic,
        layers=given.layers,
        contexts=given.contexts or synthetic.CONTEXTS,
        prompts=given.lengths or synthetic.PROMPTS,
        sections=given.sections or synthetic.SECTIONS,
        repeats=given.repeats or synthetic.REPEATS,
        config=config,
    )
    stream = sys.stderr if given.json else sys.stdout
    with lease.held("engine.bench"):
        result = synthetic.run(options, lambda line: print(line, file=stream, flush=True))
    if given.json:
        print(json.dumps(result, indent=1))
    return 0


def run(options: Options, progress: Progress) -> Result:
    """The whole benchmark, with its steps shown on `progress`."""
    facts = machine.facts()
    tokenizer = Tokenizer.load(options.checkpoint)
    with _busy(progress, "loading this engine"):
        engine = Engine.load(options.checkpoint, replace(options.config, threads=1))
    asked = questions(options, tokenizer, engine.config.context)
    contestants: list[Contestant] = [
        EngineContestant(PLAIN, engine, replace(options.config, draft_width=0)),
        EngineContestant(SPECULATIVE, engine, options.config),
    ]
    with _busy(progress, "loading transformers"):
        peer, missing = _peer(options)
    if peer is not None:
        contestants.append(peer)
    choices = [options.threads] if options.threads else [*{1, machine.available_cores()}]
    contest = Session(contestants, options.repeats, choices)
    with _steps(progress, contest, len(asked)) as step:
        contest.step = step
        thread_ms = contest.choose_threads(min(asked, key=lambda q: len(q.ids)))
        timed = [t for i, q in enumerate(asked) if (t := contest.time(q, i)) is not None]
    threads = {n: min(ms, key=lambda t: ms[t]) if ms else choices[0] for n, ms in thread_ms.items()}
    with _busy(progress, "comparing first tokens"):
        agreed = _agreement(engine, options.config, peer, asked, threads[PLAIN])
    return Result(
        command=options.command,
        machine=facts,
        checkpoint=str(options.checkpoint),
        checkpoint_sha256=checkpoint_sha256(options.checkpoint),
        dtype=options.config.dtype,
        config=options.config.canonical(),
        prompts=[t.question.id for t in timed],
        tokens=options.tokens,
        repeats=options.repeats,
        lines=[_line(c, engine, peer, timed, threads, thread_ms) for c in contestants],
        ratios=_ratios(timed, peer),
        categories=session.by_category(timed, PLAIN, SPECULATIVE),
        lossless=(session.identical(timed, PLAIN, SPECULATIVE), len(timed)),
        agreement=agreed,
        peer_missing=missing,
        peak_rss_bytes=machine.peak_rss_bytes(),
    )


def questions(options: Options, tokenizer: Tokenizer, context: int) -> list[Question]:
    """Prompts of the suite that fit: one of each category, then the second of each, and so on.

    Fewer than there are categories are spread over them.
    """
    found: list[tuple[int, Question]] = []
    seen: dict[str, int] = {}
    for prompt in Suite.load(options.suite).prompts:
        ids = tuple(prompt.encode(tokenizer))
        room = min(options.tokens, context - len(ids))
        if room >= session.MIN_TOKENS:
            place = seen[prompt.category] = seen.get(prompt.category, -1) + 1
            found.append((place, Question(prompt.id, prompt.category, ids, room)))
    found.sort(key=lambda entry: entry[0])
    if not found:
        raise ConfigError(f"No prompt of {options.suite} fits a context of {context} tokens.")
    first = sum(place == 0 for place, _ in found)
    count = options.prompts
    if count < first:
        found = [found[(2 * i + 1) * first // (2 * count)] for i in range(count)]
    return [question for _, question in found[:count]]


def _peer(options: Options) -> tuple[Peer | None, str | None]:
    if not options.peer:
        return None, "The comparison with transformers was switched off."
    try:
        return Peer(options.checkpoint, options.config.dtype), None
    except PeerMissing as error:
        return None, str(error)


def _agreement(
    engine: Engine,
    config: EngineConfig,
    peer: Peer | None,
    asked: Sequence[Question],
    threads: int,
) -> dict[str, tuple[int, int]]:
    if peer is None:
        return {}
    exact = replace(
        config, draft_width=0, numerics="exact", cache_format="float32", key_format="plain"
    )
    ours = EngineContestant("exact", engine, exact)
    ours.use_threads(threads)
    # Past this length the indexer has to choose rows, and rows that tie may be chosen differently.
    whole = INDEXED_RATIO * engine.geometry.index_topk
    count = min(AGREEMENT_TOKENS, whole // 2)
    cut = [replace(q, ids=q.ids[: whole - count]) for q in asked[:AGREEMENT_PROMPTS]]
    return session.agreement(ours, peer, cut, count)


def _line(
    contestant: Contestant,
    engine: Engine,
    peer: Peer | None,
    timed: Sequence[Timed],
    threads: dict[str, int],
    thread_ms: dict[str, dict[int, float]],
) -> Line:
    name = contestant.name
    theirs = peer is not None and contestant is peer
    draft = weights_bytes(engine.weights.draft)
    ours = weights_bytes(engine.weights) - (draft if name == PLAIN else 0)
    return Line(
        name=name,
        threads=threads[name],
        thread_ms=thread_ms[name],
        times=session.summary(timed, name),
        prefill_ms=session.prefill_ms(timed, name),
        weights_bytes=peer.weights_bytes if theirs and peer else ours,
        detail=peer.choices if theirs and peer else "",
    )


def weights_bytes(part: Any) -> int:
    """Bytes of all tensors in a group of weights and the groups inside it."""
    if isinstance(part, Tensor):
        return part.numel() * part.element_size()
    if is_dataclass(part):
        return sum(weights_bytes(getattr(part, f.name)) for f in fields(part))
    return sum(weights_bytes(item) for item in part) if isinstance(part, tuple | list) else 0


def _ratios(timed: Sequence[Timed], peer: Peer | None) -> dict[str, Any]:
    ratios = {f"{SPECULATIVE} over {PLAIN}": session.speedup(timed, PLAIN, SPECULATIVE)}
    if peer is not None:
        for name in (PLAIN, SPECULATIVE):
            ratios[f"{name} over {peer.name}"] = session.speedup(timed, peer.name, name)
    return ratios


def _options(given: argparse.Namespace, argv: Sequence[str]) -> Options:
    named, config = _config(given.config)
    quick = given.quick
    return Options(
        checkpoint=given.checkpoint or named or ASSETS / "tiny-v4",
        config=config,
        suite=given.suite or ASSETS / "suites" / "tiny-v1.json",
        prompts=given.prompts or (3 if quick else 8),
        tokens=given.tokens or (32 if quick else 128),
        repeats=given.repeats or (2 if quick else 4),
        threads=given.threads,
        peer=not given.no_peer,
        command=shlex.join(["python", "-m", "engine.bench", *argv]),
    )


def _config(path: Path | None) -> tuple[Path | None, EngineConfig]:
    """Checkpoint and configuration of a file: a best.json, or the bare fields."""
    if path is None:
        return None, EngineConfig()
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"Cannot read the configuration {path}: {error}.") from None
    inner = raw.get("config", raw) if isinstance(raw, dict) else None
    if not isinstance(inner, dict):
        raise ConfigError(f"{path} must hold a JSON object.")
    config = EngineConfig.parse(inner)
    if config.draft_width == 0:  # there would be nothing to compare with plain decoding
        config = replace(config, draft_width=EngineConfig().draft_width)
    named = raw.get("checkpoint") if inner is not raw else None
    return (Path(named) if isinstance(named, str) else None), config


def _positive(text: str) -> int:
    if not _NUMBER.fullmatch(text) or int(text) < 1:
        raise argparse.ArgumentTypeError("must be a whole number of at least 1")
    return int(text)


def _numbers(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(_NUMBER.fullmatch(part) for part in parts):
        raise argparse.ArgumentTypeError("must be whole numbers with commas between them")
    return tuple(int(part) for part in parts)


def _lengths(text: str) -> tuple[int, ...]:
    if 0 in (found := _numbers(text)):
        raise argparse.ArgumentTypeError("must be at least 1: an empty prompt has no first token")
    return found


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m engine.bench", description=__doc__, allow_abbrev=False
    )
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument("--quick", action="store_true", help="about a minute")
    parser.add_argument("--checkpoint", type=Path, help="folder; absent: the embedded one")
    parser.add_argument("--config", type=Path, help="configuration, or a best.json")
    parser.add_argument("--suite", type=Path, help="prompt suite; absent: the shipped one")
    parser.add_argument("--prompts", type=_positive, help="how many prompts (8, quick 3)")
    parser.add_argument("--tokens", type=_positive, help="tokens an answer (128, quick 32)")
    parser.add_argument("--repeats", type=_positive, help="timings of each prompt (4, quick 2)")
    parser.add_argument("--threads", type=_positive, help="absent: the better of 1 and all cores")
    parser.add_argument("--synthetic", metavar="NAME", help="time random weights instead: k160")
    parser.add_argument(PROFILE, action="store_true", help="phases of a step: engine.profile")
    parser.add_argument("--layers", type=_positive, help="of the synthetic model; absent: all")
    parser.add_argument("--contexts", type=_numbers, help="of the synthetic model, as 0,4096,32768")
    parser.add_argument("--lengths", type=_lengths, help="prompts to prefill, as 1024,12288")
    parser.add_argument("--sections", type=_names, help="of the synthetic model, as decode,prefill")
    parser.add_argument("--no-peer", action="store_true", help="leave transformers out")
    return parser


def _bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        console=console, transient=True, disable=not console.is_terminal,
    )  # fmt: skip


@contextmanager
def _busy(progress: Progress, what: str) -> Iterator[None]:
    task = progress.add_task(what, total=None)
    yield
    progress.remove_task(task)


@contextmanager
def _steps(progress: Progress, contest: Session, prompts: int) -> Iterator[Step]:
    task = progress.add_task("starting", total=contest.steps(prompts))
    begun = False

    def step(what: str) -> None:
        nonlocal begun
        progress.update(task, description=what, advance=int(begun))
        begun = True

    yield step
    progress.remove_task(task)
