"""A minute on a new machine: are the fast paths right, how fast are they, how much do they take."""

from __future__ import annotations

import time

import torch
from torch import Tensor

from engine.formats import fp8_round_trip, mxfp4_round_trip
from engine.train.backbone import Plan, Trainer
from engine.train.data import Split
from engine.train.draft import DraftPlan, DraftTrainer
from engine.train.model import Model
from engine.train.sinkhorn import balanced
from kernels.oracle import hyper


def probe(
    model: Model, corpus: Split, batches: str, length: int, seconds: float, *, steps: int = 20
) -> None:
    """Check the rounding and the compiled functions, then time steps until `seconds` are used."""
    begun = time.monotonic()
    device = model.device
    _check_sinkhorn(device)
    _check_rounding(model)
    wanted = [int(b) for b in batches.split(",")]
    compiled, first = model.compiled, True
    for batch in wanted:
        if time.monotonic() - begun > seconds:
            print(f"batch {batch}: no time left")
            continue
        trainer = Trainer(model, corpus, Plan(batch=batch, length=length))
        if first and compiled:
            trainer.use(compiled=False)
            _time(trainer, batch, length, 5, "plain")
            reference = _losses(trainer)
            trainer.use(compiled=True)
            moment = time.monotonic()
            trainer.rehearse()
            _wait(device)
            taken_s = time.monotonic() - moment
            print(f"compiled in {taken_s:.1f} s (still compiled: {model.compiled})")
            print(f"loss, divergence, gradient norm: plain {reference}, now {_losses(trainer)}")
        _time(trainer, batch, length, steps, "compiled" if model.compiled else "plain")
        first = False
    draft = DraftTrainer(model, corpus, DraftPlan(batch=wanted[0], length=length))
    draft.step(0.1)
    _wait(device)
    moment = time.monotonic()
    for _ in range(5):
        draft.step(0.1)
    _wait(device)
    print(f"draft step at batch {wanted[0]}: {(time.monotonic() - moment) / 5 * 1e3:.1f} ms")


def _time(trainer: Trainer, batch: int, length: int, steps: int, name: str) -> None:
    device = trainer.model.device
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    for label, fraction in ((name, 0.1), (f"{name}, rounded and sparse", 0.9)):
        for _ in range(4):
            trainer.step(fraction)
        _wait(device)
        moment = time.monotonic()
        for _ in range(steps):
            scalars = trainer.step(fraction)
        _wait(device)
        each = (time.monotonic() - moment) / steps
        peak = torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else 0.0
        print(
            f"batch {batch} x {length} {label}: {each * 1e3:.1f} ms a step, "
            f"{batch * length / each / 1e3:.0f}k tok/s, peak {peak:.1f} GiB, "
            f"loss {float(scalars['loss']):.3f}"
        )


def _losses(trainer: Trainer) -> tuple[float, ...]:
    trainer.model.backbone.refresh(quantised=True)
    trainer.model.backbone.clear()
    total, _, divergence, _ = trainer.loss(trainer.rows.batch(0), sparse=False)
    total.backward()
    norm = trainer.model.backbone.gradient().norm()
    return tuple(round(float(x.detach()), 4) for x in (total, divergence, norm))


def _check_sinkhorn(device: torch.device) -> None:
    logits = torch.randn(1000, 4, 4, device=device) * 2
    up = torch.randn(1000, 4, 4, device=device)
    results: list[tuple[Tensor, Tensor]] = []
    for function in (hyper.sinkhorn, balanced):
        leaf = logits.clone().requires_grad_()
        value = function(leaf, 20, 1e-6)
        (value * up).sum().backward()
        assert leaf.grad is not None
        results.append((value.detach(), leaf.grad))
    worst = [float((a - b).abs().max()) for a, b in zip(*results, strict=True)]
    print(f"sinkhorn against its oracle: value {worst[0]:.1e}, gradient {worst[1]:.1e}")


def _check_rounding(model: Model) -> None:
    model.backbone.refresh(quantised=True)
    working, differing = model.backbone.native(), []
    for place in model.backbone.places:
        if place.entry.format in ("fp4", "fp8"):
            trip = mxfp4_round_trip if place.entry.format == "fp4" else fp8_round_trip
            master = model.backbone.view(model.backbone.master, place).cpu()
            parts = master.unbind(0) if place.entry.stack else (master,)
            for name, part in zip(place.entry.native, parts, strict=True):
                if not torch.equal(working[name].cpu().float(), trip(part)):
                    differing.append(name)
    print(f"rounding differs from the export's in {len(differing)} tensors {differing[:3]}")


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
