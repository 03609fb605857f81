"""Promotion, staging and live proof of a head: all of it or none, and the ledger says which."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from flywheel.best import engine_part
from flywheel.box.clock import utc_text
from flywheel.display.panel import STYLES
from flywheel.heads import archive
from flywheel.heads.numbers import measured
from flywheel.ledger import views
from flywheel.ledger.rows import VariantRow
from flywheel.loop import judge, prove
from flywheel.loop.order import arm_config
from flywheel.loop.step import Prove
from flywheel.loop.wishes import Wish
from flywheel.loop.workshop import Workshop
from flywheel.run.manifest import Manifest
from flywheel.statistics.decide import Verdict


class Staging:
    """Puts a measured head into service, once its numbers promote it."""

    def __init__(
        self,
        shop: Workshop,
        *,
        decided: Callable[[Manifest, Verdict, Sequence[str]], None],
    ) -> None:
        self._order, self._ledger = shop.order, shop.ledger
        self._clock, self._display = shop.clock, shop.display
        self._wishes, self._do = shop.wishes, shop.do
        self._decided = decided

    def settle(self, step: Prove) -> Wish | None:
        """Prove a head in service and decide it; when a person ends that, the next session does.

        The end of the time budget does not: the load that a proof crowns would be a night's loss.
        """
        with self._ledger.reading() as connection:
            view = views.load(connection)
            variant = view.variant(step.variant_id)
            run_id = variant.measured[-1].runs[-1].id
            manifest = Manifest.from_json(views.manifest(connection, run_id))
        name = str(variant.candidate["head"])
        self._do(f"proving {name} in service", None)
        self._display.say(f"{name} passed its gate; proving it in service")
        proof = self._proof(variant, manifest)
        if isinstance(proof, Wish):
            return proof
        service = judge.Service(proof.holds, proof.detail, _told(proof))
        archive.note(
            self._order.archive, name, archive.proof_file(run_id),
            {"holds": proof.holds, "detail": proof.detail, **_told(proof)},
        )  # fmt: skip
        verdict, found = judge.settle_head(
            self._ledger, step.variant_id, service, now_utc=utc_text(self._clock.now())
        )
        self._display.say(
            f"{verdict.ending}  {step.lever.name}: {verdict.sentence}",
            STYLES[str(verdict.ending)],
        )
        for sentence in found:
            self._display.say(f"finding: {sentence}")
        self._decided(manifest, verdict, found)
        return None

    def _proof(self, variant: VariantRow, manifest: Manifest) -> prove.Proof | Wish:
        known = measured(variant)
        assert known is not None
        # As it was measured, whatever this night is asked for.
        chats = prove.chats_of(Path(str(manifest.config["suite"])))
        wanted = prove.signature(known.rows, chats)
        staged = {
            "checkpoint": str(self._order.checkpoint),
            "head": str(self._order.archive / str(variant.candidate["head"])),
            "config": arm_config(engine_part(variant.candidate), True),
        }
        return prove.prove(
            staged, self._order.ledger.parent, wanted, chats,
            max_new_tokens=int(manifest.config["max_new_tokens"]),
            command=self._order.server_command,
            wishes=self._wishes,
        )  # fmt: skip


def _told(proof: prove.Proof) -> dict[str, Any]:
    return {
        "wanted": proof.wanted.as_dict(),
        "seen": None if proof.seen is None else proof.seen.as_dict(),
    }
