"""The ledger's tables. History is append-only: the database itself refuses UPDATE and DELETE.

    ruler, campaign, lever -> variant -> block_plan -> run -> run_end -> log, arm, measurement
                              variant -> block (the estimate) -> decision -> finding
    block_plan -> screen_plan -> screen: a look before a confirmation, which lends no estimate
    screen_plan -> screen_opening -> run: the load of an earlier screen that this one begins with
    block_plan -> choice: the terms by which a lever was chosen, and what it was chosen over
    steering: what a person said of a lever, which may never have been tried
    campaign -> phase -> profile; proposal: a lever that nobody declared, and where it comes from
    variant -> head -> head_stage; variant -> patch: a diff as applied, and what its gates found
    campaign -> attempt -> proposed_sweep: a proposer was asked, and what was made of its answer
    run -> halt -> resume; takeover stands alone; decision -> service_fault
    foreign_log -> foreign_reading -> foreign_measurement, foreign_verdict (imported history)

Every row names the row that it came from. A run gets a terminal row instead of an edited status,
and only a run that ended `ok` can own a measurement, because a measurement's foreign key says so.
"""

from __future__ import annotations

from sqlalchemy import (
    REAL,
    CheckConstraint,
    Column,
    ForeignKey,
    ForeignKeyConstraint,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
)

from flywheel.ledger import schema

SCHEMA_VERSION = schema.VERSION
OUTCOMES = ("ok", "void", "timeout", "killed", "blocked")
PURPOSES = ("null", "canary", "lever", "anchor")
STEERING = ("priced", "deferred", "reopened")
PHASES = ("exploit", "exhaust", "propose", "done")
ATTEMPTS = ("answered", "failed", "limited", "stopped")

FOREIGN_KINDS = ("decode", "guard", "arms")

metadata = MetaData()


def _one_of(column: str, words: tuple[str, ...]) -> CheckConstraint:
    return CheckConstraint(f"{column} IN ({', '.join(repr(w) for w in words)})")


def _finite(*columns: str) -> list[CheckConstraint]:
    """NaN is NULL to SQLite, so NOT NULL refuses it; this refuses the infinities."""
    return [CheckConstraint(f"{c} IS NULL OR abs({c}) < 1e300") for c in columns]


def _json(name: str) -> Column[str]:
    """A column that holds one JSON document; `triggers` refuses any other text."""
    return Column(name, Text, nullable=False, info={"json": True})


def _table(name: str, *parts: Column[object] | CheckConstraint | object) -> Table:
    return Table(name, metadata, *parts, sqlite_strict=True)  # type: ignore[arg-type]


ruler = _table(
    "ruler",
    Column("id", Integer, primary_key=True),
    Column("identity", Text, nullable=False, unique=True),
    Column("name", Text, nullable=False),
    _json("fields"),
    Column("created_utc", Text, nullable=False),
)

campaign = _table(
    "campaign",
    Column("id", Integer, primary_key=True),
    Column("label", Text, nullable=False),
    Column("alpha", REAL, nullable=False),
    Column("gamma", REAL, nullable=False),
    Column("budget", Integer, nullable=False),
    _json("settings"),
    _json("first_config"),
    _json("start_config"),
    Column("box", Text, nullable=False),
    Column("created_utc", Text, nullable=False),
    *_finite("alpha", "gamma"),
)

campaign_end = _table(
    "campaign_end",
    Column("campaign_id", Integer, ForeignKey("campaign.id"), primary_key=True),
    Column("reason", Text, nullable=False),
    Column("created_utc", Text, nullable=False),
)

lever = _table(
    "lever",
    Column("identity", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("kind", Text, nullable=False),
    _json("change"),
    Column("claim", Text, nullable=False),
    Column("falsify", Text, nullable=False),
    Column("predicted_gain", REAL, nullable=False),
    Column("ceiling", REAL),
    Column("hot", Integer, nullable=False),
    Column("family", Text, nullable=False),
    Column("is_null", Integer, nullable=False),
    Column("metric", Text, nullable=False),
    Column("created_utc", Text, nullable=False),
    Column("sweep", Text, nullable=False, server_default=""),
    *_finite("predicted_gain", "ceiling"),
)

variant = _table(
    "variant",
    Column("id", Text, primary_key=True),
    Column("campaign_id", Integer, ForeignKey("campaign.id"), nullable=False),
    Column("lever_identity", Text, ForeignKey("lever.identity"), nullable=False),
    Column("purpose", Text, nullable=False),
    _json("incumbent"),
    _json("candidate"),
    # A promotion made this incumbent; use_alter only breaks the cycle for the sort of tables.
    Column("from_decision", Integer, ForeignKey("decision.id", use_alter=True, name="made_by")),
    Column("predicted_gain", REAL, nullable=False),
    Column("why", Text, nullable=False),
    Column("created_utc", Text, nullable=False),
    _one_of("purpose", PURPOSES),
    *_finite("predicted_gain"),
)

block_plan = _table(
    "block_plan",
    Column("serial", Integer, primary_key=True),
    Column("id", Text, nullable=False, unique=True),
    Column("variant_id", Text, ForeignKey("variant.id"), nullable=False),
    Column("number", Integer, nullable=False),
    Column("hot", Integer, nullable=False),
    Column("pattern", Text, nullable=False),
    Column("seed", Integer, nullable=False),
    Column("why", Text, nullable=False),
    Column("created_utc", Text, nullable=False),
    UniqueConstraint("variant_id", "number"),
    _one_of("pattern", ("ABBA", "BAAB")),
)

choice = _table(
    "choice",
    Column("block_id", Text, ForeignKey("block_plan.id"), primary_key=True),
    Column("value", REAL, nullable=False),
    _json("terms"),
    _json("runners_up"),
    Column("created_utc", Text, nullable=False),
    *_finite("value"),
)

steering = _table(
    "steering",
    Column("id", Integer, primary_key=True),
    Column("lever_identity", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("word", Text, nullable=False),
    Column("ceiling", REAL),
    Column("why", Text, nullable=False),
    # The newest decision when it was said, 0 before the first: a later one is news.
    Column("after_decision", Integer, nullable=False),
    Column("created_utc", Text, nullable=False),
    _one_of("word", STEERING),
    CheckConstraint("(word = 'priced') = (ceiling IS NOT NULL)"),
    CheckConstraint("ceiling IS NULL OR (ceiling >= 0 AND ceiling < 1)"),
)

run = _table(
    "run",
    Column("id", Text, primary_key=True),
    Column("block_id", Text, ForeignKey("block_plan.id"), nullable=False),
    Column("slot", Integer, nullable=False),
    _json("manifest"),
    Column("created_utc", Text, nullable=False),
    CheckConstraint("slot BETWEEN 0 AND 3"),
    UniqueConstraint("block_id", "slot"),
)

run_end = _table(
    "run_end",
    Column("run_id", Text, ForeignKey("run.id"), primary_key=True),
    Column("outcome", Text, nullable=False),
    Column("code", Text, nullable=False),
    Column("detail", Text, nullable=False),
    Column("exit_status", Integer),
    Column("started_utc", Text, nullable=False),
    Column("ended_utc", Text, nullable=False),
    Column("wall_ns", Integer, nullable=False),
    _json("evidence"),
    UniqueConstraint("run_id", "outcome"),
    _one_of("outcome", OUTCOMES),
    CheckConstraint("wall_ns >= 0"),
)

log = _table(
    "log",
    Column("run_id", Text, ForeignKey("run_end.run_id"), primary_key=True),
    Column("sha256", Text, nullable=False),
    Column("size_bytes", Integer, nullable=False),
    Column("text_zlib", LargeBinary, nullable=False),
)

arm = _table(
    "arm",
    Column("run_id", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("outcome", Text, nullable=False),
    _json("requested"),
    _json("effective"),
    Column("fingerprint", Text, nullable=False),
    CheckConstraint("outcome = 'ok'"),
    ForeignKeyConstraint(["run_id", "outcome"], ["run_end.run_id", "run_end.outcome"]),
)

measurement = _table(
    "measurement",
    Column("id", Integer, primary_key=True),
    Column("run_id", Text, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("arm", Text, nullable=False),
    Column("prompt", Text, nullable=False),
    Column("category", Text, nullable=False),
    Column("repeat", Integer, nullable=False),
    Column("metric", Text, nullable=False),
    Column("numerator", Integer, nullable=False),
    Column("denominator", Integer, nullable=False),
    Column("unit", Text, nullable=False),
    Column("counted", Integer, nullable=False),
    Column("line", Integer, nullable=False),
    # A dead run is worth nothing: it cannot own a number, not even zero.
    CheckConstraint("outcome = 'ok'"),
    CheckConstraint("numerator >= 0 AND denominator > 0"),
    ForeignKeyConstraint(["run_id", "outcome"], ["run_end.run_id", "run_end.outcome"]),
    UniqueConstraint("run_id", "arm", "prompt", "repeat", "metric"),
)

block = _table(
    "block",
    Column("block_id", Text, ForeignKey("block_plan.id"), primary_key=True),
    Column("ruler_id", Integer, ForeignKey("ruler.id"), nullable=False),
    Column("source_sha256", Text, nullable=False),
    Column("metric", Text, nullable=False),
    Column("effect", REAL, nullable=False),
    Column("contrast", REAL),
    Column("within_sd", REAL, nullable=False),
    Column("prompt_sd", REAL, nullable=False),
    Column("level_log_ms", REAL, nullable=False),
    Column("prompts", Integer, nullable=False),
    Column("loads", Integer, nullable=False),
    Column("tokens", Integer, nullable=False),
    _json("categories"),
    Column("created_utc", Text, nullable=False),
    *_finite("effect", "contrast", "within_sd", "prompt_sd", "level_log_ms"),
    CheckConstraint("prompts > 0 AND loads IN (1, 4)"),
)

block_guard = _table(
    "block_guard",
    Column("block_id", Text, ForeignKey("block.block_id"), primary_key=True),
    Column("name", Text, primary_key=True),
    Column("effect", REAL, nullable=False),
    *_finite("effect"),
)

# Of heads the prompt is the sample: rounds of both arms for the same tokens.
block_prompt = _table(
    "block_prompt",
    Column("block_id", Text, ForeignKey("block.block_id"), primary_key=True),
    Column("prompt", Text, primary_key=True),
    Column("category", Text, nullable=False),
    Column("held_out", Integer, nullable=False),
    Column("made", Integer, nullable=False),
    Column("incumbent", Integer, nullable=False),
    Column("candidate", Integer, nullable=False),
    CheckConstraint("made > 0 AND incumbent > 0 AND candidate > 0"),
)

screen_plan = _table(
    "screen_plan",
    Column("block_id", Text, ForeignKey("block_plan.id"), primary_key=True),
    # A cold screen holds two candidates between two incumbents: the block's own, and its mate.
    Column("mate_id", Text, ForeignKey("variant.id")),
    Column("created_utc", Text, nullable=False),
)

# A screen that follows another at once begins with the incumbent that closed that one.
screen_opening = _table(
    "screen_opening",
    Column("block_id", Text, ForeignKey("screen_plan.block_id"), primary_key=True),
    Column("run_id", Text, ForeignKey("run.id"), nullable=False),
    Column("created_utc", Text, nullable=False),
)

screen = _table(
    "screen",
    Column("block_id", Text, ForeignKey("screen_plan.block_id"), primary_key=True),
    Column("variant_id", Text, ForeignKey("variant.id"), primary_key=True),
    Column("ruler_id", Integer, ForeignKey("ruler.id"), nullable=False),
    Column("source_sha256", Text, nullable=False),
    Column("gain", REAL, nullable=False),
    Column("sd", REAL, nullable=False),
    Column("nu", REAL, nullable=False),
    Column("needed", REAL, nullable=False),
    Column("low", REAL, nullable=False),
    Column("high", REAL, nullable=False),
    Column("created_utc", Text, nullable=False),
    *_finite("gain", "sd", "nu", "needed", "low", "high"),
)

block_void = _table(
    "block_void",
    Column("block_id", Text, ForeignKey("block_plan.id"), primary_key=True),
    Column("code", Text, nullable=False),
    Column("detail", Text, nullable=False),
    Column("created_utc", Text, nullable=False),
)

decision = _table(
    "decision",
    Column("id", Integer, primary_key=True),
    Column("variant_id", Text, ForeignKey("variant.id"), nullable=False),
    Column("ending", Text, nullable=False),
    Column("code", Text, nullable=False),
    Column("sentence", Text, nullable=False),
    Column("is_null", Integer, nullable=False),
    Column("n", Integer, nullable=False),
    Column("mean", REAL),
    Column("low", REAL),
    Column("high", REAL),
    Column("nu", REAL),
    Column("e_value", REAL, nullable=False),
    Column("alpha_t", REAL, nullable=False),
    Column("test", Integer),
    Column("promotions_before", Integer, nullable=False),
    Column("rule_version", Text, nullable=False),
    _json("rule"),
    _json("details"),
    Column("supersedes", Integer, ForeignKey("decision.id"), unique=True),
    Column("created_utc", Text, nullable=False),
    _one_of("ending", ("promoted", "rejected", "inconclusive", "void", "incorrect")),
    *_finite("mean", "low", "high", "nu", "e_value", "alpha_t"),
)

decision_block = _table(
    "decision_block",
    Column("decision_id", Integer, ForeignKey("decision.id"), primary_key=True),
    Column("block_id", Text, ForeignKey("block.block_id"), primary_key=True),
)

finding = _table(
    "finding",
    Column("number", Integer, primary_key=True),
    Column("variant_id", Text, ForeignKey("variant.id"), nullable=False),
    Column("decision_id", Integer, ForeignKey("decision.id")),
    Column("sentence", Text, nullable=False),
    _json("evidence"),
    Column("created_utc", Text, nullable=False),
)

phase = _table(
    "phase",
    Column("id", Integer, primary_key=True),
    Column("campaign_id", Integer, ForeignKey("campaign.id"), nullable=False),
    Column("phase", Text, nullable=False),
    Column("why", Text, nullable=False),
    # The newest decision at the change, 0 before the first: only later ones count in this phase.
    Column("after_decision", Integer, nullable=False),
    Column("finding", Integer, ForeignKey("finding.number"), nullable=False),
    Column("created_utc", Text, nullable=False),
    _one_of("phase", PHASES),
)

profile = _table(
    "profile",
    Column("id", Integer, primary_key=True),
    Column("phase_id", Integer, ForeignKey("phase.id"), nullable=False),
    _json("config"),
    Column("top", Text, nullable=False),
    Column("levers", Integer, nullable=False),
    Column("failure", Text, nullable=False),
    _json("document"),
    Column("created_utc", Text, nullable=False),
    CheckConstraint("(failure = '') = (top <> '')"),
    CheckConstraint("levers >= 0"),
)

proposal = _table(
    "proposal",
    Column("lever_identity", Text, primary_key=True),
    _json("lever"),
    Column("origin", Text, nullable=False),
    Column("because", Text, nullable=False),
    Column("profile_id", Integer, ForeignKey("profile.id")),
    Column("created_utc", Text, nullable=False),
)

# A proposer was asked. `phase_id` is none where a person asked; `verdicts` holds what was proposed
# and why it was taken or not; the transcript lies beside the ledger, and `sha256` is its hash.
attempt = _table(
    "attempt",
    Column("id", Integer, primary_key=True),
    Column("campaign_id", Integer, ForeignKey("campaign.id"), nullable=False),
    Column("phase_id", Integer, ForeignKey("phase.id")),
    Column("proposer", Text, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("detail", Text, nullable=False),
    Column("retry_s", REAL),
    Column("admitted", Integer, nullable=False),
    Column("refused", Integer, nullable=False),
    _json("verdicts"),
    _json("usage"),
    Column("transcript", Text, nullable=False),
    Column("sha256", Text, nullable=False),
    Column("wall_ns", Integer, nullable=False),
    Column("created_utc", Text, nullable=False),
    _one_of("outcome", ATTEMPTS),
    *_finite("retry_s"),
    CheckConstraint("admitted >= 0 AND refused >= 0 AND wall_ns >= 0"),
    CheckConstraint("outcome = 'answered' OR admitted = 0"),
)

proposed_sweep = _table(
    "proposed_sweep",
    Column("name", Text, primary_key=True),
    _json("sweep"),
    Column("origin", Text, nullable=False),
    Column("because", Text, nullable=False),
    Column("attempt_id", Integer, ForeignKey("attempt.id"), nullable=False),
    Column("created_utc", Text, nullable=False),
)

# A draft head in the archive: its weights, metrics and log lie in heads/NAME, whole for ever.
head = _table(
    "head",
    Column("name", Text, primary_key=True),
    Column("variant_id", Text, ForeignKey("variant.id")),
    Column("weights_sha256", Text, nullable=False),
    _json("card"),
    Column("created_utc", Text, nullable=False),
)

# What came of putting a head into service: live, or taken back, with the proof that was asked for.
head_stage = _table(
    "head_stage",
    Column("id", Integer, primary_key=True),
    Column("head", Text, ForeignKey("head.name"), nullable=False),
    Column("decision_id", Integer, ForeignKey("decision.id"), nullable=False),
    Column("outcome", Text, nullable=False),
    Column("detail", Text, nullable=False),
    _json("signature"),
    Column("created_utc", Text, nullable=False),
    _one_of("outcome", ("live", "rolled_back")),
)

# A patch that was gated: its diff as applied, on which commit, which one it made, and what the
# gates found. A refused one has no commit that is kept.
patch = _table(
    "patch",
    Column("name", Text, primary_key=True),
    Column("variant_id", Text, ForeignKey("variant.id"), nullable=False, unique=True),
    Column("outcome", Text, nullable=False),
    Column("diff_sha256", Text, nullable=False),
    Column("diff", Text, nullable=False),
    Column("base", Text, nullable=False),
    Column("revision", Text, nullable=False),
    Column("base_source_sha256", Text, nullable=False),
    Column("source_sha256", Text, nullable=False),
    _json("gates"),
    Column("created_utc", Text, nullable=False),
    _one_of("outcome", ("admitted", "refused")),
)

halt = _table(
    "halt",
    Column("id", Integer, primary_key=True),
    Column("code", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("run_id", Text, ForeignKey("run.id")),
    Column("created_utc", Text, nullable=False),
)

resume = _table(
    "resume",
    Column("halt_id", Integer, ForeignKey("halt.id"), primary_key=True),
    Column("why", Text, nullable=False),
    Column("created_utc", Text, nullable=False),
)

takeover = _table(
    "takeover",
    Column("id", Integer, primary_key=True),
    Column("path", Text, nullable=False),
    Column("device", Text, nullable=False),
    _json("previous"),
    Column("proof", Text, nullable=False),
    Column("created_utc", Text, nullable=False),
)

# What broke while clients were served: the engine, which was loaded again, or the whole server.
service_fault = _table(
    "service_fault",
    Column("id", Integer, primary_key=True),
    Column("what", Text, nullable=False),
    Column("detail", Text, nullable=False),
    Column("answers", Integer, nullable=False),
    Column("decision_id", Integer, ForeignKey("decision.id")),
    _json("config"),
    Column("created_utc", Text, nullable=False),
    _one_of("what", ("engine", "server")),
    CheckConstraint("answers >= 0"),
)

foreign_ruler = _table(
    "foreign_ruler",
    Column("id", Integer, primary_key=True),
    Column("identity", Text, nullable=False, unique=True),
    Column("name", Text, nullable=False),
    _json("fields"),
    Column("created_utc", Text, nullable=False),
)

foreign_log = _table(
    "foreign_log",
    Column("sha256", Text, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("size_bytes", Integer, nullable=False),
    Column("text_zlib", LargeBinary, nullable=False),
    Column("created_utc", Text, nullable=False),
    _one_of("kind", FOREIGN_KINDS),
)

foreign_reading = _table(
    "foreign_reading",
    Column("id", Integer, primary_key=True),
    Column("sha256", Text, ForeignKey("foreign_log.sha256"), nullable=False),
    Column("reader", Integer, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("code", Text, nullable=False),
    Column("detail", Text, nullable=False),
    Column("line", Integer, nullable=False),
    Column("ruler_id", Integer, ForeignKey("foreign_ruler.id")),
    _json("facts"),
    Column("created_utc", Text, nullable=False),
    # A newer reader may judge the same file anew; both readings stay.
    UniqueConstraint("sha256", "reader"),
    UniqueConstraint("id", "outcome"),
    _one_of("outcome", ("ok", "refused")),
    CheckConstraint("(outcome = 'ok') = (code = '')"),
)

foreign_measurement = _table(
    "foreign_measurement",
    Column("id", Integer, primary_key=True),
    Column("reading_id", Integer, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("arm", Text, nullable=False),
    Column("prompt", Text, nullable=False),
    Column("category", Text, nullable=False),
    Column("repeat", Integer, nullable=False),
    Column("metric", Text, nullable=False),
    Column("numerator", Integer, nullable=False),
    Column("denominator", Integer, nullable=False),
    Column("unit", Text, nullable=False),
    Column("counted", Integer, nullable=False),
    Column("line", Integer, nullable=False),
    # A refused log owns no number, and no number from elsewhere is a tau of ours.
    CheckConstraint("outcome = 'ok'"),
    CheckConstraint("metric <> 'tau'"),
    CheckConstraint("numerator >= 0 AND denominator > 0"),
    ForeignKeyConstraint(
        ["reading_id", "outcome"], ["foreign_reading.id", "foreign_reading.outcome"]
    ),
    UniqueConstraint("reading_id", "arm", "prompt", "repeat", "metric"),
)

foreign_verdict = _table(
    "foreign_verdict",
    Column("id", Integer, primary_key=True),
    Column("reading_id", Integer, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("world", Text, nullable=False),
    Column("position", Integer, nullable=False),
    Column("arm", Text, nullable=False),
    Column("stated", Text, nullable=False),
    Column("ending", Text, nullable=False),
    Column("sentence", Text, nullable=False),
    _json("details"),
    CheckConstraint("outcome = 'ok'"),
    ForeignKeyConstraint(
        ["reading_id", "outcome"], ["foreign_reading.id", "foreign_reading.outcome"]
    ),
    UniqueConstraint("reading_id", "world", "position"),
)
