"""One call of the trainer from the command line: train, export, prove, describe."""

from __future__ import annotations

import dataclasses
import json
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from engine.errors import CheckpointError, ConfigError, EngineError
from engine.geometry import Geometry
from engine.tensors import entries
from engine.tokenizer import Tokenizer
from engine.train import backbone, card, draft, evaluate, export
from engine.train.data import Split, synthetic
from engine.train.forward import Forward
from engine.train.model import Model
from engine.train.optimiser import Rates
from engine.train.progress import say
from engine.train.schedule import Budget, Shape
from engine.weights import assemble

_LIMIT_BYTES = 16_000_000  # of the checkpoint folder's model and tokenizer
_HEADER_BYTES = 105  # of the safetensors header, per tensor


@dataclass(frozen=True, slots=True)
class Options:
    """The command line, parsed."""

    what: str
    corpus: str | None
    out: str
    config: str
    start: str | None
    fresh_head: bool
    resume: bool
    minutes: float | None
    steps: int | None
    draft_minutes: float | None
    draft_steps: int | None
    batch: int
    length: int
    draft_batch: int
    anchors: int
    matrix_rate: float
    adam_rate: float
    muon: bool
    compile: bool
    seed: int
    save_every: int
    samples: int
    sample_tokens: int
    seconds: float
    probe_batches: str
    device: str
    smoke: bool

    def settled(self) -> Options:
        """The smallest scale when `smoke`, and the default budgets."""
        if self.smoke:
            return dataclasses.replace(
                self, steps=self.steps or 4, draft_steps=self.draft_steps or 2, minutes=None,
                draft_minutes=None, batch=2, length=128, draft_batch=2, anchors=4, compile=False,
                samples=2, sample_tokens=10,
            )  # fmt: skip
        return dataclasses.replace(
            self,
            minutes=None if self.steps else self.minutes or 8.0,
            draft_minutes=None if self.draft_steps else self.draft_minutes or 2.5,
        )


class Session:
    """Owns the model, the corpus and the output folder of one call."""

    def __init__(self, options: Options) -> None:
        self.o = o = options.settled()
        try:
            self.device = torch.device(o.device)
        except RuntimeError:
            raise ConfigError(f"{o.device!r} is not a device; use cpu or cuda.") from None
        if self.device.type == "cuda":
            torch.set_float32_matmul_precision("high")
            torch.cuda.reset_peak_memory_stats()
        else:
            torch.set_num_threads(1)  # faster than more, at this size
        if hasattr(torch._dynamo.config, "recompile_limit"):
            torch._dynamo.config.recompile_limit = 64
        self.config, self.out = Path(o.config), Path(o.out)
        self.geometry = Geometry.load(self.config)
        self.out.mkdir(parents=True, exist_ok=True)
        self.tokenizer_path = self._find_tokenizer()
        self.tokenizer = Tokenizer.load(self.tokenizer_path) if self.tokenizer_path else None
        self._say_size()
        self.train, self.held_out, self.about = self._load_corpus()
        start = Path(o.start) if o.start else self.out if o.what == "draft" else None
        self.model = Model(
            self.geometry, self.device, seed=o.seed, start=start, fresh_head=o.fresh_head,
            compiled=o.compile and self.device.type == "cuda",
        )  # fmt: skip
        self.facts: dict[str, Any] = _earlier_facts(start)

    def run(self) -> None:
        """Do what was asked."""
        if self.o.what == "probe":
            from engine.train.probe import probe

            probe(self.model, self.train, self.o.probe_batches, self.o.length, self.o.seconds)
            return
        if self.o.what in ("all", "backbone"):
            self._train_backbone()
            self._export()
        if self.o.what in ("all", "draft"):
            self._train_draft()
        self._export()
        self._prove()
        self._describe()

    def _train_backbone(self) -> None:
        o = self.o
        plan = backbone.Plan(
            batch=o.batch, length=o.length, seed=o.seed, muon=o.muon,
            rates=Rates(matrix=o.matrix_rate, adam=o.adam_rate), save_every_steps=o.save_every,
            shape=Shape(warm_steps=2 if o.smoke else 100),
            evaluate_at=(0.5,) if o.smoke else (0.25, 0.5, 0.75),
        )  # fmt: skip
        budget = Budget(steps=o.steps, seconds=o.minutes * 60 if o.minutes else None)
        trainer = backbone.Trainer(self.model, self.train, plan)
        resume = self.out / "resume.pt"
        if o.resume:
            if not resume.is_file():
                raise EngineError(f"There is nothing to resume: {resume} does not exist.")
            trainer.restore(resume)
            if o.minutes:
                budget = Budget(seconds=o.minutes * 60, begun=trainer.fraction)
        begun = time.monotonic()
        history = backbone.train(trainer, budget, self.out, self._held_out)
        if o.save_every:
            trainer.save(resume)
        self.facts["backbone"] = {
            "steps": trainer.step_number,
            "tokens": trainer.step_number * o.batch * o.length,
            "seconds": round(time.monotonic() - begun, 1),
            "plan": dataclasses.asdict(plan),
            "history": history,
            **self._held_out(),
        }

    def _train_draft(self) -> None:
        o = self.o
        plan = draft.DraftPlan(
            batch=o.draft_batch, length=o.length, anchors=o.anchors, seed=o.seed + 1, muon=o.muon
        )
        trainer = draft.DraftTrainer(self.model, self.train, plan)
        self.model.refresh(quantised=True)
        begun = time.monotonic()
        seconds = o.draft_minutes * 60 if o.draft_minutes else None
        history = draft.train(trainer, Budget(steps=o.draft_steps, seconds=seconds))
        self.facts["draft"] = {
            "steps": trainer.step_number,
            "anchors": trainer.step_number * o.draft_batch * o.anchors,
            "seconds": round(time.monotonic() - begun, 1),
            "plan": dataclasses.asdict(plan),
            "history": history,
        }

    def _held_out(self) -> dict[str, float]:
        o = self.o
        found = evaluate.bits(
            self.model,
            self.held_out,
            self.tokenizer,
            batch=o.batch,
            length=o.length,
            batches=1 if o.smoke else 8,
        )
        shown = (f"{k.removeprefix('held_out_')} {v:.4f}" for k, v in found.items())
        say("held-out " + " ".join(shown))
        return found

    def _export(self) -> None:
        """Write the checkpoint and prove that it reads back as the very tensors of the model."""
        tensors = self.model.native()
        path = self.out / "model.safetensors"
        export.write(tensors, self.geometry, path)
        back = export.read(path)
        for name, tensor in tensors.items():
            if not torch.equal(back[name].double(), tensor.double()):
                raise CheckpointError(f"The tensor {name} does not read back as it was trained.")
        for source in (self.config / "config.json", self.tokenizer_path):
            if source is not None and source.resolve() != (self.out / source.name).resolve():
                shutil.copyfile(source, self.out / source.name)
        say(f"exported {path} {path.stat().st_size} bytes, reads back exactly")

    def _prove(self) -> None:
        """The reloaded checkpoint's logits against the trained model's, then samples and drafts."""
        weights = assemble(export.read(self.out / "model.safetensors"), self.geometry)
        ids = torch.from_numpy(self.held_out.ids[:256].astype("int64"))[None].to(self.device)
        with torch.no_grad():
            ours = self.model.plain.run(self.model.weights, ids)
            want = self.model.plain.logits(self.model.weights, ours.hidden).cpu()
            fresh = Forward(self.geometry, torch.device("cpu"), rounding=True)
            got = fresh.logits(weights, fresh.run(weights, ids.cpu()).hidden)
        error = (got - want).norm(dim=-1) / want.norm(dim=-1)
        agree = float((got.argmax(-1) == want.argmax(-1)).float().mean())
        median = float(error.median())
        say(f"reloaded, CPU, float32: median row error {median:.2e}, same argmax {agree:.1%}")
        limit = 1e-5 if self.device.type == "cpu" else 0.2
        if not median < limit:
            raise CheckpointError("The exported checkpoint does not compute what was trained.")
        self.facts["reload"] = {"median_row_error": median, "argmax_agreement": agree}
        self._sample()

    def _sample(self) -> None:
        o = self.o
        limit = min(384, o.length)  # keeps the full forwards of the samples short
        begins = evaluate.prompts(self.model, self.held_out, o.samples, limit)
        if not begins:
            say(f"no held-out prompt is short enough ({limit} tokens) to be continued")
            return
        text = evaluate.generate(self.model, begins, o.sample_tokens)
        shares = [evaluate.loops(text.text(row)) for row in range(len(begins))]
        if self.tokenizer is not None:
            for row in range(min(5, len(begins))):
                prompt, reply = begins[row], text.text(row)
                say(f"--- prompt {row}: …{self.tokenizer.decode(prompt, keep_special=True)[-400:]}")
                say(f"--- reply ({len(reply)} tokens): {self.tokenizer.decode(reply)}")
        found = evaluate.acceptance(self.model, text)
        self.facts["held_out_draft"] = {
            **found, "prompts": len(begins), "looping": sum(s < 0.5 for s in shares),
        }  # fmt: skip
        by_slot = [None if a is None else round(a, 3) for a in found["accepted_given_offered"]]
        say(
            f"draft at width {found['width']}: tau {found['tau']} by slot {by_slot} "
            f"rounds {found['rounds']} confidence brier {found['confidence_brier']}"
        )
        say(f"repeating samples: {sum(s < 0.5 for s in shares)} of {len(shares)}")

    def _describe(self) -> None:
        files = ("model.safetensors", "config.json", "tokenizer.json")
        card.write(self.out, device=self.device, files=files, corpus=self.about, facts=self.facts)
        size = sum((self.out / f).stat().st_size for f in files if (self.out / f).is_file())
        verdict = "within" if size <= _LIMIT_BYTES else "OVER"
        say(f"done: {self.out} {size} bytes, {verdict} the limit of {_LIMIT_BYTES}")

    def _find_tokenizer(self) -> Path | None:
        for folder in (self.config, Path(self.o.corpus) if self.o.corpus else self.config):
            if (folder / "tokenizer.json").is_file():
                return folder / "tokenizer.json"
        say("no tokenizer.json found: no text and no bits per byte")
        return None

    def _say_size(self) -> None:
        known = entries(self.geometry)
        tensors = sum(e.size_bytes for e in known)
        count = sum(len(e.native) * (2 if e.format in ("fp4", "fp8") else 1) for e in known)
        tokenizer = self.tokenizer_path.stat().st_size if self.tokenizer_path else 0
        total = tensors + count * _HEADER_BYTES + tokenizer
        say(f"checkpoint: {count} tensors, {tensors} bytes, {total} with header and tokenizer")
        if total > _LIMIT_BYTES:
            say(f"WARNING: that is {total - _LIMIT_BYTES} bytes over the limit of {_LIMIT_BYTES}")

    def _load_corpus(self) -> tuple[Split, Split, dict[str, Any]]:
        folder = Path(self.o.corpus) if self.o.corpus else self.out / "rehearsal"
        about: dict[str, Any] = {"note": "rehearsal on random text"}
        if self.o.corpus:
            try:
                about = json.loads((folder / "corpus.json").read_text())
            except (OSError, ValueError) as error:
                raise EngineError(f"Cannot read {folder / 'corpus.json'}: {error}.") from error
        else:
            folder.mkdir(exist_ok=True)
            synthetic(self.geometry, 4000, 1).tofile(folder / "train.u16.bin")
            synthetic(self.geometry, 200, 2).tofile(folder / "heldout.u16.bin")
        train = Split(folder / "train.u16.bin", self.geometry, self.device)
        held_out = Split(folder / "heldout.u16.bin", self.geometry, self.device)
        say(
            f"corpus: {train.tokens} tokens in {len(train.begins)} documents; held out "
            f"{held_out.tokens} in {len(held_out.begins)}"
        )
        return train, held_out, about


def _earlier_facts(start: Path | None) -> dict[str, Any]:
    """What the card of the starting checkpoint says of its training."""
    try:
        card_before = json.loads((start / "card.json").read_text()) if start else {}
    except (OSError, ValueError):
        return {}
    kept = {k: card_before[k] for k in ("backbone", "draft", "before") if k in card_before}
    return {"before": kept, **kept} if kept else {}
