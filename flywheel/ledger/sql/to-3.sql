CREATE TABLE screen_plan (
	block_id TEXT NOT NULL,
	mate_id TEXT,
	created_utc TEXT NOT NULL,
	PRIMARY KEY (block_id),
	FOREIGN KEY(block_id) REFERENCES block_plan (id),
	FOREIGN KEY(mate_id) REFERENCES variant (id)
)
 STRICT;

CREATE TABLE screen (
	block_id TEXT NOT NULL,
	variant_id TEXT NOT NULL,
	ruler_id INTEGER NOT NULL,
	source_sha256 TEXT NOT NULL,
	gain REAL NOT NULL,
	sd REAL NOT NULL,
	nu REAL NOT NULL,
	needed REAL NOT NULL,
	low REAL NOT NULL,
	high REAL NOT NULL,
	created_utc TEXT NOT NULL,
	PRIMARY KEY (block_id, variant_id),
	CHECK (gain IS NULL OR abs(gain) < 1e300),
	CHECK (sd IS NULL OR abs(sd) < 1e300),
	CHECK (nu IS NULL OR abs(nu) < 1e300),
	CHECK (needed IS NULL OR abs(needed) < 1e300),
	CHECK (low IS NULL OR abs(low) < 1e300),
	CHECK (high IS NULL OR abs(high) < 1e300),
	FOREIGN KEY(block_id) REFERENCES screen_plan (block_id),
	FOREIGN KEY(variant_id) REFERENCES variant (id),
	FOREIGN KEY(ruler_id) REFERENCES ruler (id)
)
 STRICT;

CREATE TABLE block_guard (
	block_id TEXT NOT NULL,
	name TEXT NOT NULL,
	effect REAL NOT NULL,
	PRIMARY KEY (block_id, name),
	CHECK (effect IS NULL OR abs(effect) < 1e300),
	FOREIGN KEY(block_id) REFERENCES block (block_id)
)
 STRICT;

CREATE TRIGGER screen_plan_no_update BEFORE UPDATE ON screen_plan BEGIN SELECT RAISE(ABORT, 'history is append-only: no UPDATE on screen_plan'); END;

CREATE TRIGGER screen_plan_no_delete BEFORE DELETE ON screen_plan BEGIN SELECT RAISE(ABORT, 'history is append-only: no DELETE on screen_plan'); END;

CREATE TRIGGER screen_plan_no_replace BEFORE INSERT ON screen_plan WHEN EXISTS (SELECT 1 FROM screen_plan WHERE block_id = NEW.block_id) BEGIN SELECT RAISE(ABORT, 'history is append-only: this screen_plan is recorded already'); END;

CREATE TRIGGER block_guard_no_update BEFORE UPDATE ON block_guard BEGIN SELECT RAISE(ABORT, 'history is append-only: no UPDATE on block_guard'); END;

CREATE TRIGGER block_guard_no_delete BEFORE DELETE ON block_guard BEGIN SELECT RAISE(ABORT, 'history is append-only: no DELETE on block_guard'); END;

CREATE TRIGGER block_guard_no_replace BEFORE INSERT ON block_guard WHEN EXISTS (SELECT 1 FROM block_guard WHERE block_id = NEW.block_id AND name = NEW.name) BEGIN SELECT RAISE(ABORT, 'history is append-only: this block_guard is recorded already'); END;

CREATE TRIGGER screen_no_update BEFORE UPDATE ON screen BEGIN SELECT RAISE(ABORT, 'history is append-only: no UPDATE on screen'); END;

CREATE TRIGGER screen_no_delete BEFORE DELETE ON screen BEGIN SELECT RAISE(ABORT, 'history is append-only: no DELETE on screen'); END;

CREATE TRIGGER screen_no_replace BEFORE INSERT ON screen WHEN EXISTS (SELECT 1 FROM screen WHERE block_id = NEW.block_id AND variant_id = NEW.variant_id) BEGIN SELECT RAISE(ABORT, 'history is append-only: this screen is recorded already'); END;

CREATE TRIGGER block_of_no_screen BEFORE INSERT ON block WHEN EXISTS (SELECT 1 FROM screen_plan WHERE block_id = NEW.block_id) BEGIN SELECT RAISE(ABORT, 'a screen lends no estimate'); END;

CREATE TRIGGER screen_of_good_runs BEFORE INSERT ON screen WHEN EXISTS (SELECT 1 FROM block_void WHERE block_id = NEW.block_id) OR EXISTS (SELECT 1 FROM run LEFT JOIN run_end ON run_end.run_id = run.id WHERE run.block_id = NEW.block_id AND run_end.outcome IS NOT 'ok') BEGIN SELECT RAISE(ABORT, 'a void block, or one with a run that is not ok, screens nothing'); END;
