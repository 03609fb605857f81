DROP INDEX ix_measurement_run_id;

CREATE TABLE takeover (
	id INTEGER NOT NULL,
	path TEXT NOT NULL,
	device TEXT NOT NULL,
	previous TEXT NOT NULL,
	proof TEXT NOT NULL,
	created_utc TEXT NOT NULL,
	PRIMARY KEY (id)
)
 STRICT;

CREATE TABLE halt (
	id INTEGER NOT NULL,
	code TEXT NOT NULL,
	reason TEXT NOT NULL,
	run_id TEXT,
	created_utc TEXT NOT NULL,
	PRIMARY KEY (id),
	FOREIGN KEY(run_id) REFERENCES run (id)
)
 STRICT;

CREATE TABLE resume (
	halt_id INTEGER NOT NULL,
	why TEXT NOT NULL,
	created_utc TEXT NOT NULL,
	PRIMARY KEY (halt_id),
	FOREIGN KEY(halt_id) REFERENCES halt (id)
)
 STRICT;

CREATE TRIGGER campaign_no_replace BEFORE INSERT ON campaign WHEN EXISTS (SELECT 1 FROM campaign WHERE id = NEW.id) BEGIN SELECT RAISE(ABORT, 'history is append-only: this campaign is recorded already'); END;

CREATE TRIGGER campaign_json BEFORE INSERT ON campaign WHEN NOT json_valid(NEW.settings) OR EXISTS (SELECT 1 FROM json_tree(NEW.settings) WHERE type = 'real' AND abs(atom) >= 1e300) OR NOT json_valid(NEW.first_config) OR EXISTS (SELECT 1 FROM json_tree(NEW.first_config) WHERE type = 'real' AND abs(atom) >= 1e300) OR NOT json_valid(NEW.start_config) OR EXISTS (SELECT 1 FROM json_tree(NEW.start_config) WHERE type = 'real' AND abs(atom) >= 1e300) BEGIN SELECT RAISE(ABORT, 'a column of campaign that must be JSON with finite numbers is not'); END;

CREATE TRIGGER lever_no_replace BEFORE INSERT ON lever WHEN EXISTS (SELECT 1 FROM lever WHERE identity = NEW.identity) BEGIN SELECT RAISE(ABORT, 'history is append-only: this lever is recorded already'); END;

CREATE TRIGGER lever_json BEFORE INSERT ON lever WHEN NOT json_valid(NEW.change) OR EXISTS (SELECT 1 FROM json_tree(NEW.change) WHERE type = 'real' AND abs(atom) >= 1e300) BEGIN SELECT RAISE(ABORT, 'a column of lever that must be JSON with finite numbers is not'); END;

CREATE TRIGGER ruler_no_replace BEFORE INSERT ON ruler WHEN EXISTS (SELECT 1 FROM ruler WHERE id = NEW.id) OR EXISTS (SELECT 1 FROM ruler WHERE identity = NEW.identity) BEGIN SELECT RAISE(ABORT, 'history is append-only: this ruler is recorded already'); END;

CREATE TRIGGER ruler_json BEFORE INSERT ON ruler WHEN NOT json_valid(NEW.fields) OR EXISTS (SELECT 1 FROM json_tree(NEW.fields) WHERE type = 'real' AND abs(atom) >= 1e300) BEGIN SELECT RAISE(ABORT, 'a column of ruler that must be JSON with finite numbers is not'); END;

CREATE TRIGGER takeover_no_update BEFORE UPDATE ON takeover BEGIN SELECT RAISE(ABORT, 'history is append-only: no UPDATE on takeover'); END;

CREATE TRIGGER takeover_no_delete BEFORE DELETE ON takeover BEGIN SELECT RAISE(ABORT, 'history is append-only: no DELETE on takeover'); END;

CREATE TRIGGER takeover_no_replace BEFORE INSERT ON takeover WHEN EXISTS (SELECT 1 FROM takeover WHERE id = NEW.id) BEGIN SELECT RAISE(ABORT, 'history is append-only: this takeover is recorded already'); END;

CREATE TRIGGER takeover_json BEFORE INSERT ON takeover WHEN NOT json_valid(NEW.previous) OR EXISTS (SELECT 1 FROM json_tree(NEW.previous) WHERE type = 'real' AND abs(atom) >= 1e300) BEGIN SELECT RAISE(ABORT, 'a column of takeover that must be JSON with finite numbers is not'); END;

CREATE TRIGGER campaign_end_no_replace BEFORE INSERT ON campaign_end WHEN EXISTS (SELECT 1 FROM campaign_end WHERE campaign_id = NEW.campaign_id) BEGIN SELECT RAISE(ABORT, 'history is append-only: this campaign_end is recorded already'); END;

CREATE TRIGGER variant_no_replace BEFORE INSERT ON variant WHEN EXISTS (SELECT 1 FROM variant WHERE id = NEW.id) BEGIN SELECT RAISE(ABORT, 'history is append-only: this variant is recorded already'); END;

CREATE TRIGGER variant_json BEFORE INSERT ON variant WHEN NOT json_valid(NEW.incumbent) OR EXISTS (SELECT 1 FROM json_tree(NEW.incumbent) WHERE type = 'real' AND abs(atom) >= 1e300) OR NOT json_valid(NEW.candidate) OR EXISTS (SELECT 1 FROM json_tree(NEW.candidate) WHERE type = 'real' AND abs(atom) >= 1e300) BEGIN SELECT RAISE(ABORT, 'a column of variant that must be JSON with finite numbers is not'); END;

CREATE TRIGGER block_plan_no_replace BEFORE INSERT ON block_plan WHEN EXISTS (SELECT 1 FROM block_plan WHERE serial = NEW.serial) OR EXISTS (SELECT 1 FROM block_plan WHERE id = NEW.id) OR EXISTS (SELECT 1 FROM block_plan WHERE variant_id = NEW.variant_id AND number = NEW.number) BEGIN SELECT RAISE(ABORT, 'history is append-only: this block_plan is recorded already'); END;

CREATE TRIGGER decision_no_replace BEFORE INSERT ON decision WHEN EXISTS (SELECT 1 FROM decision WHERE id = NEW.id) OR EXISTS (SELECT 1 FROM decision WHERE supersedes = NEW.supersedes) BEGIN SELECT RAISE(ABORT, 'history is append-only: this decision is recorded already'); END;

CREATE TRIGGER decision_json BEFORE INSERT ON decision WHEN NOT json_valid(NEW.rule) OR EXISTS (SELECT 1 FROM json_tree(NEW.rule) WHERE type = 'real' AND abs(atom) >= 1e300) OR NOT json_valid(NEW.details) OR EXISTS (SELECT 1 FROM json_tree(NEW.details) WHERE type = 'real' AND abs(atom) >= 1e300) BEGIN SELECT RAISE(ABORT, 'a column of decision that must be JSON with finite numbers is not'); END;

CREATE TRIGGER block_no_replace BEFORE INSERT ON block WHEN EXISTS (SELECT 1 FROM block WHERE block_id = NEW.block_id) BEGIN SELECT RAISE(ABORT, 'history is append-only: this block is recorded already'); END;

CREATE TRIGGER block_json BEFORE INSERT ON block WHEN NOT json_valid(NEW.categories) OR EXISTS (SELECT 1 FROM json_tree(NEW.categories) WHERE type = 'real' AND abs(atom) >= 1e300) BEGIN SELECT RAISE(ABORT, 'a column of block that must be JSON with finite numbers is not'); END;

CREATE TRIGGER block_void_no_replace BEFORE INSERT ON block_void WHEN EXISTS (SELECT 1 FROM block_void WHERE block_id = NEW.block_id) BEGIN SELECT RAISE(ABORT, 'history is append-only: this block_void is recorded already'); END;

CREATE TRIGGER finding_no_replace BEFORE INSERT ON finding WHEN EXISTS (SELECT 1 FROM finding WHERE number = NEW.number) BEGIN SELECT RAISE(ABORT, 'history is append-only: this finding is recorded already'); END;

CREATE TRIGGER finding_json BEFORE INSERT ON finding WHEN NOT json_valid(NEW.evidence) OR EXISTS (SELECT 1 FROM json_tree(NEW.evidence) WHERE type = 'real' AND abs(atom) >= 1e300) BEGIN SELECT RAISE(ABORT, 'a column of finding that must be JSON with finite numbers is not'); END;

CREATE TRIGGER run_no_replace BEFORE INSERT ON run WHEN EXISTS (SELECT 1 FROM run WHERE id = NEW.id) OR EXISTS (SELECT 1 FROM run WHERE block_id = NEW.block_id AND slot = NEW.slot) BEGIN SELECT RAISE(ABORT, 'history is append-only: this run is recorded already'); END;

CREATE TRIGGER run_json BEFORE INSERT ON run WHEN NOT json_valid(NEW.manifest) OR EXISTS (SELECT 1 FROM json_tree(NEW.manifest) WHERE type = 'real' AND abs(atom) >= 1e300) BEGIN SELECT RAISE(ABORT, 'a column of run that must be JSON with finite numbers is not'); END;

CREATE TRIGGER decision_block_no_replace BEFORE INSERT ON decision_block WHEN EXISTS (SELECT 1 FROM decision_block WHERE decision_id = NEW.decision_id AND block_id = NEW.block_id) BEGIN SELECT RAISE(ABORT, 'history is append-only: this decision_block is recorded already'); END;

CREATE TRIGGER halt_no_update BEFORE UPDATE ON halt BEGIN SELECT RAISE(ABORT, 'history is append-only: no UPDATE on halt'); END;

CREATE TRIGGER halt_no_delete BEFORE DELETE ON halt BEGIN SELECT RAISE(ABORT, 'history is append-only: no DELETE on halt'); END;

CREATE TRIGGER halt_no_replace BEFORE INSERT ON halt WHEN EXISTS (SELECT 1 FROM halt WHERE id = NEW.id) BEGIN SELECT RAISE(ABORT, 'history is append-only: this halt is recorded already'); END;

CREATE TRIGGER run_end_no_replace BEFORE INSERT ON run_end WHEN EXISTS (SELECT 1 FROM run_end WHERE run_id = NEW.run_id) OR EXISTS (SELECT 1 FROM run_end WHERE run_id = NEW.run_id AND outcome = NEW.outcome) BEGIN SELECT RAISE(ABORT, 'history is append-only: this run_end is recorded already'); END;

CREATE TRIGGER run_end_json BEFORE INSERT ON run_end WHEN NOT json_valid(NEW.evidence) OR EXISTS (SELECT 1 FROM json_tree(NEW.evidence) WHERE type = 'real' AND abs(atom) >= 1e300) BEGIN SELECT RAISE(ABORT, 'a column of run_end that must be JSON with finite numbers is not'); END;

CREATE TRIGGER arm_no_replace BEFORE INSERT ON arm WHEN EXISTS (SELECT 1 FROM arm WHERE run_id = NEW.run_id AND name = NEW.name) BEGIN SELECT RAISE(ABORT, 'history is append-only: this arm is recorded already'); END;

CREATE TRIGGER arm_json BEFORE INSERT ON arm WHEN NOT json_valid(NEW.requested) OR EXISTS (SELECT 1 FROM json_tree(NEW.requested) WHERE type = 'real' AND abs(atom) >= 1e300) OR NOT json_valid(NEW.effective) OR EXISTS (SELECT 1 FROM json_tree(NEW.effective) WHERE type = 'real' AND abs(atom) >= 1e300) BEGIN SELECT RAISE(ABORT, 'a column of arm that must be JSON with finite numbers is not'); END;

CREATE TRIGGER log_no_replace BEFORE INSERT ON log WHEN EXISTS (SELECT 1 FROM log WHERE run_id = NEW.run_id) BEGIN SELECT RAISE(ABORT, 'history is append-only: this log is recorded already'); END;

CREATE TRIGGER measurement_no_replace BEFORE INSERT ON measurement WHEN EXISTS (SELECT 1 FROM measurement WHERE id = NEW.id) OR EXISTS (SELECT 1 FROM measurement WHERE run_id = NEW.run_id AND arm = NEW.arm AND prompt = NEW.prompt AND repeat = NEW.repeat AND metric = NEW.metric) BEGIN SELECT RAISE(ABORT, 'history is append-only: this measurement is recorded already'); END;

CREATE TRIGGER resume_no_update BEFORE UPDATE ON resume BEGIN SELECT RAISE(ABORT, 'history is append-only: no UPDATE on resume'); END;

CREATE TRIGGER resume_no_delete BEFORE DELETE ON resume BEGIN SELECT RAISE(ABORT, 'history is append-only: no DELETE on resume'); END;

CREATE TRIGGER resume_no_replace BEFORE INSERT ON resume WHEN EXISTS (SELECT 1 FROM resume WHERE halt_id = NEW.halt_id) BEGIN SELECT RAISE(ABORT, 'history is append-only: this resume is recorded already'); END;

CREATE TRIGGER run_end_ok_left_well BEFORE INSERT ON run_end WHEN NEW.outcome = 'ok' AND NEW.exit_status <> 0 BEGIN SELECT RAISE(ABORT, 'a run that left with another status than 0 is not ok'); END;

CREATE TRIGGER block_of_good_runs BEFORE INSERT ON block WHEN EXISTS (SELECT 1 FROM block_void WHERE block_id = NEW.block_id) OR EXISTS (SELECT 1 FROM run LEFT JOIN run_end ON run_end.run_id = run.id WHERE run.block_id = NEW.block_id AND run_end.outcome IS NOT 'ok') BEGIN SELECT RAISE(ABORT, 'a void block, or one with a run that is not ok, has no estimate'); END;

CREATE TRIGGER block_void_unmeasured BEFORE INSERT ON block_void WHEN EXISTS (SELECT 1 FROM block WHERE block_id = NEW.block_id) BEGIN SELECT RAISE(ABORT, 'a measured block cannot become void'); END;

CREATE TRIGGER decision_promoted_by_numbers BEFORE INSERT ON decision WHEN NEW.ending = 'promoted' AND (NEW.n < 1 OR NEW.mean IS NULL) BEGIN SELECT RAISE(ABORT, 'nothing is promoted without a measured gain'); END;
