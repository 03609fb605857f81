"""Numbers that no honest run writes, counts that do not add up, gates that fail."""

from __future__ import annotations

from functools import partial

from flywheel.selftest.faults.script import scripted_fault

_fault = partial(scripted_fault, "number")
_COUNTS = "counts_inconsistent"

FAULTS = (
    _fault("nan", "a time is NaN", "void", "not_finite malformed_event"),
    _fault("inf", "a time is infinite", "void", "not_finite malformed_event"),
    _fault("minus_inf", "a time is minus infinity", "void", "not_finite malformed_event"),
    _fault("zero_time", "a generation took no time", "void", "impossible_rate"),
    _fault("negative_time", "a generation took negative time", "void", "malformed_event"),
    _fault("impossible_time", "a generation took eleven days within seconds", "void",
           "impossible_rate"),
    _fault("too_fast", "a forward pass in 3 ns", "void", "impossible_rate"),
    _fault("fast_step", "a verify step in 1 ns", "void", "impossible_rate"),
    _fault("no_prefill", "prefill took no time", "void", "impossible_rate"),
    _fault("first_token_early", "the first token before the end of prefill", "void",
           "impossible_rate"),
    _fault("huge_number", "a time of 401 digits", "void", "malformed_event"),
    _fault("text_tokens", "a count as text", "void", "malformed_event"),
    _fault("true_tokens", "a count that is true", "void", "malformed_event"),
    _fault("negative_tokens", "a negative count", "void", "malformed_event"),
    _fault("zero_tokens", "no token was generated", "void", "zero_tokens"),
    _fault("wrong_tokens", "one token fewer than the rounds committed", "void", _COUNTS),
    _fault("too_many_tokens", "a token more than the limit", "void", _COUNTS),
    _fault("sum", "acceptances do not add up to the tokens", "void", _COUNTS),
    _fault("over_width", "a round committed more than width + 1", "void", _COUNTS),
    _fault("other_width", "a width other than the arm's", "void", _COUNTS),
    _fault("rounds", "a forward more than rounds", "void", _COUNTS),
    _fault("more_accepted", "more drafts accepted than offered", "void", _COUNTS),
    _fault("plain_forwards", "plain decode with more forwards than tokens", "void", _COUNTS),
    _fault("counts", "the seal counts a point too many", "void", _COUNTS),
    _fault("event_count", "the seal counts an event too many", "void", _COUNTS),
    _fault("token_sum", "the seal sums a token too many", "void", _COUNTS),
    _fault("category_changes", "a prompt changes its category", "void", _COUNTS),
    _fault("not_finite", "logits were not finite", "void", "not_finite"),
    _fault("plain_not_finite", "logits of plain decode were not finite", "void", "not_finite"),
    _fault("control_not_finite", "logits of the control were not finite", "void", "not_finite"),
    _fault("control", "the first token differs", "void", "control_failed"),
    _fault("gate", "the candidate's tokens differ and its gate says so", "void", "gate_failed",
           ending="incorrect"),
    _fault("gate_of_the_incumbent", "the incumbent's own gate fails", "void", "gate_failed",
           fault="gate", hot_pattern="ABBA"),
    _fault("gate_contradicted", "a gate passes and names a difference", "void",
           "gate_contradicted malformed_event"),
    _fault("gate_partial", "a gate compared three tokens", "void", "gate_contradicted"),
    _fault("other_tokens", "a gate passes although the tokens' hash differs", "void",
           "gate_contradicted"),
)  # fmt: skip
