CREATE TABLE patch (
	name TEXT NOT NULL,
	variant_id TEXT NOT NULL,
	outcome TEXT NOT NULL,
	diff_sha256 TEXT NOT NULL,
	diff TEXT NOT NULL,
	base TEXT NOT NULL,
	revision TEXT NOT NULL,
	base_source_sha256 TEXT NOT NULL,
	source_sha256 TEXT NOT NULL,
	gates TEXT NOT NULL,
	created_utc TEXT NOT NULL,
	PRIMARY KEY (name),
	CHECK (outcome IN ('admitted', 'refused')),
	UNIQUE (variant_id),
	FOREIGN KEY(variant_id) REFERENCES variant (id)
)
 STRICT;

CREATE TRIGGER patch_no_update BEFORE UPDATE ON patch BEGIN SELECT RAISE(ABORT, 'history is append-only: no UPDATE on patch'); END;

CREATE TRIGGER patch_no_delete BEFORE DELETE ON patch BEGIN SELECT RAISE(ABORT, 'history is append-only: no DELETE on patch'); END;

CREATE TRIGGER patch_no_replace BEFORE INSERT ON patch WHEN EXISTS (SELECT 1 FROM patch WHERE name = NEW.name) OR EXISTS (SELECT 1 FROM patch WHERE variant_id = NEW.variant_id) BEGIN SELECT RAISE(ABORT, 'history is append-only: this patch is recorded already'); END;

CREATE TRIGGER patch_json BEFORE INSERT ON patch WHEN NOT json_valid(NEW.gates) OR EXISTS (SELECT 1 FROM json_tree(NEW.gates) WHERE type = 'real' AND abs(atom) >= 1e300) BEGIN SELECT RAISE(ABORT, 'a column of patch that must be JSON with finite numbers is not'); END;

CREATE TABLE attempt (
	id INTEGER NOT NULL,
	campaign_id INTEGER NOT NULL,
	phase_id INTEGER,
	proposer TEXT NOT NULL,
	outcome TEXT NOT NULL,
	detail TEXT NOT NULL,
	retry_s REAL,
	admitted INTEGER NOT NULL,
	refused INTEGER NOT NULL,
	verdicts TEXT NOT NULL,
	usage TEXT NOT NULL,
	transcript TEXT NOT NULL,
	sha256 TEXT NOT NULL,
	wall_ns INTEGER NOT NULL,
	created_utc TEXT NOT NULL,
	PRIMARY KEY (id),
	CHECK (outcome IN ('answered', 'failed', 'limited', 'stopped')),
	CHECK (retry_s IS NULL OR abs(retry_s) < 1e300),
	CHECK (admitted >= 0 AND refused >= 0 AND wall_ns >= 0),
	CHECK (outcome = 'answered' OR admitted = 0),
	FOREIGN KEY(campaign_id) REFERENCES campaign (id),
	FOREIGN KEY(phase_id) REFERENCES phase (id)
)
 STRICT;

CREATE TABLE proposed_sweep (
	name TEXT NOT NULL,
	sweep TEXT NOT NULL,
	origin TEXT NOT NULL,
	because TEXT NOT NULL,
	attempt_id INTEGER NOT NULL,
	created_utc TEXT NOT NULL,
	PRIMARY KEY (name),
	FOREIGN KEY(attempt_id) REFERENCES attempt (id)
)
 STRICT;

CREATE TRIGGER attempt_no_update BEFORE UPDATE ON attempt BEGIN SELECT RAISE(ABORT, 'history is append-only: no UPDATE on attempt'); END;

CREATE TRIGGER attempt_no_delete BEFORE DELETE ON attempt BEGIN SELECT RAISE(ABORT, 'history is append-only: no DELETE on attempt'); END;

CREATE TRIGGER attempt_no_replace BEFORE INSERT ON attempt WHEN EXISTS (SELECT 1 FROM attempt WHERE id = NEW.id) BEGIN SELECT RAISE(ABORT, 'history is append-only: this attempt is recorded already'); END;

CREATE TRIGGER attempt_json BEFORE INSERT ON attempt WHEN NOT json_valid(NEW.verdicts) OR EXISTS (SELECT 1 FROM json_tree(NEW.verdicts) WHERE type = 'real' AND abs(atom) >= 1e300) OR NOT json_valid(NEW.usage) OR EXISTS (SELECT 1 FROM json_tree(NEW.usage) WHERE type = 'real' AND abs(atom) >= 1e300) BEGIN SELECT RAISE(ABORT, 'a column of attempt that must be JSON with finite numbers is not'); END;

CREATE TRIGGER proposed_sweep_no_update BEFORE UPDATE ON proposed_sweep BEGIN SELECT RAISE(ABORT, 'history is append-only: no UPDATE on proposed_sweep'); END;

CREATE TRIGGER proposed_sweep_no_delete BEFORE DELETE ON proposed_sweep BEGIN SELECT RAISE(ABORT, 'history is append-only: no DELETE on proposed_sweep'); END;

CREATE TRIGGER proposed_sweep_no_replace BEFORE INSERT ON proposed_sweep WHEN EXISTS (SELECT 1 FROM proposed_sweep WHERE name = NEW.name) BEGIN SELECT RAISE(ABORT, 'history is append-only: this proposed_sweep is recorded already'); END;

CREATE TRIGGER proposed_sweep_json BEFORE INSERT ON proposed_sweep WHEN NOT json_valid(NEW.sweep) OR EXISTS (SELECT 1 FROM json_tree(NEW.sweep) WHERE type = 'real' AND abs(atom) >= 1e300) BEGIN SELECT RAISE(ABORT, 'a column of proposed_sweep that must be JSON with finite numbers is not'); END;

CREATE TABLE service_fault (
	id INTEGER NOT NULL,
	what TEXT NOT NULL,
	detail TEXT NOT NULL,
	answers INTEGER NOT NULL,
	decision_id INTEGER,
	config TEXT NOT NULL,
	created_utc TEXT NOT NULL,
	PRIMARY KEY (id),
	CHECK (what IN ('engine', 'server')),
	CHECK (answers >= 0),
	FOREIGN KEY(decision_id) REFERENCES decision (id)
)
 STRICT;

CREATE TRIGGER service_fault_no_update BEFORE UPDATE ON service_fault BEGIN SELECT RAISE(ABORT, 'history is append-only: no UPDATE on service_fault'); END;

CREATE TRIGGER service_fault_no_delete BEFORE DELETE ON service_fault BEGIN SELECT RAISE(ABORT, 'history is append-only: no DELETE on service_fault'); END;

CREATE TRIGGER service_fault_no_replace BEFORE INSERT ON service_fault WHEN EXISTS (SELECT 1 FROM service_fault WHERE id = NEW.id) BEGIN SELECT RAISE(ABORT, 'history is append-only: this service_fault is recorded already'); END;

CREATE TRIGGER service_fault_json BEFORE INSERT ON service_fault WHEN NOT json_valid(NEW.config) OR EXISTS (SELECT 1 FROM json_tree(NEW.config) WHERE type = 'real' AND abs(atom) >= 1e300) BEGIN SELECT RAISE(ABORT, 'a column of service_fault that must be JSON with finite numbers is not'); END;

CREATE TRIGGER decision_promoted_exact BEFORE INSERT ON decision WHEN NEW.ending = 'promoted' AND EXISTS (SELECT 1 FROM variant JOIN lever ON lever.identity = variant.lever_identity WHERE variant.id = NEW.variant_id AND lever.metric = 'lossy_ms_per_token') BEGIN SELECT RAISE(ABORT, 'what changes the text is never promoted'); END;
