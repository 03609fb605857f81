"""Runs that measured something else than was asked: arms, order, coverage, identity."""

from __future__ import annotations

from functools import partial

from flywheel.selftest.faults.script import scripted_fault

_fault = partial(scripted_fault, "arm")

FAULTS = (
    _fault("arm_not_live", "arms are not switched: the lever's value is not in effect", "void",
           "arm_not_live", ending="void"),
    _fault("wrong_fingerprint", "a fingerprint that is not its configuration's", "void",
           "fingerprint_mismatch"),
    _fault("other_request", "an arm with a field that nobody asked for", "void",
           "manifest_mismatch"),
    _fault("other_plan", "the engine plans another order", "void", "manifest_mismatch"),
    _fault("other_order", "the engine declares the planned order and runs another", "void",
           "order_not_followed"),
    _fault("other_seed", "another seed", "void", "manifest_mismatch"),
    _fault("profile", "the engine ran in profile mode", "void", "not_clean"),
    _fault("wrong_run_id", "the log of another run", "void", "run_id_mismatch"),
    _fault("wrong_protocol", "a protocol that this loop does not speak", "void",
           "protocol_mismatch"),
    _fault("point_missing", "a point is missing", "void", "point_missing"),
    _fault("point_twice", "a point is there twice", "void", "point_twice"),
    _fault("unplanned_prompt", "a point of a prompt that was not planned", "void",
           "point_missing point_unplanned"),
    _fault("plain_missing", "a plain decode is missing", "void", "plain_missing"),
    _fault("plain_twice", "a plain decode is there twice", "void", "plain_twice"),
    _fault("gate_missing", "a gate is missing", "void", "gate_missing"),
    _fault("gate_twice", "a gate is there twice", "void", "gate_twice"),
    _fault("control_missing", "a first-token control is missing", "void", "control_missing"),
    _fault("memory_missing", "the memory event is missing", "void", "event_missing"),
    _fault("start_twice", "two start events", "void", "start_misplaced"),
    _fault("unknown_event", "an event that the contract does not know", "void", "unknown_event"),
)  # fmt: skip
