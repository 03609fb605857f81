CREATE TABLE foreign_log (
	sha256 TEXT NOT NULL,
	kind TEXT NOT NULL,
	name TEXT NOT NULL,
	size_bytes INTEGER NOT NULL,
	text_zlib BLOB NOT NULL,
	created_utc TEXT NOT NULL,
	PRIMARY KEY (sha256),
	CHECK (kind IN ('decode', 'guard', 'arms'))
)
 STRICT;

CREATE TABLE foreign_ruler (
	id INTEGER NOT NULL,
	identity TEXT NOT NULL,
	name TEXT NOT NULL,
	fields TEXT NOT NULL,
	created_utc TEXT NOT NULL,
	PRIMARY KEY (id),
	UNIQUE (identity)
)
 STRICT;

CREATE TABLE foreign_reading (
	id INTEGER NOT NULL,
	sha256 TEXT NOT NULL,
	reader INTEGER NOT NULL,
	outcome TEXT NOT NULL,
	code TEXT NOT NULL,
	detail TEXT NOT NULL,
	line INTEGER NOT NULL,
	ruler_id INTEGER,
	facts TEXT NOT NULL,
	created_utc TEXT NOT NULL,
	PRIMARY KEY (id),
	UNIQUE (sha256, reader),
	UNIQUE (id, outcome),
	CHECK (outcome IN ('ok', 'refused')),
	CHECK ((outcome = 'ok') = (code = '')),
	FOREIGN KEY(sha256) REFERENCES foreign_log (sha256),
	FOREIGN KEY(ruler_id) REFERENCES foreign_ruler (id)
)
 STRICT;

CREATE TABLE foreign_measurement (
	id INTEGER NOT NULL,
	reading_id INTEGER NOT NULL,
	outcome TEXT NOT NULL,
	arm TEXT NOT NULL,
	prompt TEXT NOT NULL,
	category TEXT NOT NULL,
	repeat INTEGER NOT NULL,
	metric TEXT NOT NULL,
	numerator INTEGER NOT NULL,
	denominator INTEGER NOT NULL,
	unit TEXT NOT NULL,
	counted INTEGER NOT NULL,
	line INTEGER NOT NULL,
	PRIMARY KEY (id),
	CHECK (outcome = 'ok'),
	CHECK (metric <> 'tau'),
	CHECK (numerator >= 0 AND denominator > 0),
	FOREIGN KEY(reading_id, outcome) REFERENCES foreign_reading (id, outcome),
	UNIQUE (reading_id, arm, prompt, repeat, metric)
)
 STRICT;

CREATE TABLE foreign_verdict (
	id INTEGER NOT NULL,
	reading_id INTEGER NOT NULL,
	outcome TEXT NOT NULL,
	world TEXT NOT NULL,
	position INTEGER NOT NULL,
	arm TEXT NOT NULL,
	stated TEXT NOT NULL,
	ending TEXT NOT NULL,
	sentence TEXT NOT NULL,
	details TEXT NOT NULL,
	PRIMARY KEY (id),
	CHECK (outcome = 'ok'),
	FOREIGN KEY(reading_id, outcome) REFERENCES foreign_reading (id, outcome),
	UNIQUE (reading_id, world, position)
)
 STRICT;

CREATE TRIGGER foreign_log_no_update BEFORE UPDATE ON foreign_log BEGIN SELECT RAISE(ABORT, 'history is append-only: no UPDATE on foreign_log'); END;

CREATE TRIGGER foreign_log_no_delete BEFORE DELETE ON foreign_log BEGIN SELECT RAISE(ABORT, 'history is append-only: no DELETE on foreign_log'); END;

CREATE TRIGGER foreign_log_no_replace BEFORE INSERT ON foreign_log WHEN EXISTS (SELECT 1 FROM foreign_log WHERE sha256 = NEW.sha256) BEGIN SELECT RAISE(ABORT, 'history is append-only: this foreign_log is recorded already'); END;

CREATE TRIGGER foreign_ruler_no_update BEFORE UPDATE ON foreign_ruler BEGIN SELECT RAISE(ABORT, 'history is append-only: no UPDATE on foreign_ruler'); END;

CREATE TRIGGER foreign_ruler_no_delete BEFORE DELETE ON foreign_ruler BEGIN SELECT RAISE(ABORT, 'history is append-only: no DELETE on foreign_ruler'); END;

CREATE TRIGGER foreign_ruler_no_replace BEFORE INSERT ON foreign_ruler WHEN EXISTS (SELECT 1 FROM foreign_ruler WHERE id = NEW.id) OR EXISTS (SELECT 1 FROM foreign_ruler WHERE identity = NEW.identity) BEGIN SELECT RAISE(ABORT, 'history is append-only: this foreign_ruler is recorded already'); END;

CREATE TRIGGER foreign_ruler_json BEFORE INSERT ON foreign_ruler WHEN NOT json_valid(NEW.fields) OR EXISTS (SELECT 1 FROM json_tree(NEW.fields) WHERE type = 'real' AND abs(atom) >= 1e300) BEGIN SELECT RAISE(ABORT, 'a column of foreign_ruler that must be JSON with finite numbers is not'); END;

CREATE TRIGGER foreign_reading_no_update BEFORE UPDATE ON foreign_reading BEGIN SELECT RAISE(ABORT, 'history is append-only: no UPDATE on foreign_reading'); END;

CREATE TRIGGER foreign_reading_no_delete BEFORE DELETE ON foreign_reading BEGIN SELECT RAISE(ABORT, 'history is append-only: no DELETE on foreign_reading'); END;

CREATE TRIGGER foreign_reading_no_replace BEFORE INSERT ON foreign_reading WHEN EXISTS (SELECT 1 FROM foreign_reading WHERE id = NEW.id) OR EXISTS (SELECT 1 FROM foreign_reading WHERE id = NEW.id AND outcome = NEW.outcome) OR EXISTS (SELECT 1 FROM foreign_reading WHERE sha256 = NEW.sha256 AND reader = NEW.reader) BEGIN SELECT RAISE(ABORT, 'history is append-only: this foreign_reading is recorded already'); END;

CREATE TRIGGER foreign_reading_json BEFORE INSERT ON foreign_reading WHEN NOT json_valid(NEW.facts) OR EXISTS (SELECT 1 FROM json_tree(NEW.facts) WHERE type = 'real' AND abs(atom) >= 1e300) BEGIN SELECT RAISE(ABORT, 'a column of foreign_reading that must be JSON with finite numbers is not'); END;

CREATE TRIGGER foreign_measurement_no_update BEFORE UPDATE ON foreign_measurement BEGIN SELECT RAISE(ABORT, 'history is append-only: no UPDATE on foreign_measurement'); END;

CREATE TRIGGER foreign_measurement_no_delete BEFORE DELETE ON foreign_measurement BEGIN SELECT RAISE(ABORT, 'history is append-only: no DELETE on foreign_measurement'); END;

CREATE TRIGGER foreign_measurement_no_replace BEFORE INSERT ON foreign_measurement WHEN EXISTS (SELECT 1 FROM foreign_measurement WHERE id = NEW.id) OR EXISTS (SELECT 1 FROM foreign_measurement WHERE reading_id = NEW.reading_id AND arm = NEW.arm AND prompt = NEW.prompt AND repeat = NEW.repeat AND metric = NEW.metric) BEGIN SELECT RAISE(ABORT, 'history is append-only: this foreign_measurement is recorded already'); END;

CREATE TRIGGER foreign_verdict_no_update BEFORE UPDATE ON foreign_verdict BEGIN SELECT RAISE(ABORT, 'history is append-only: no UPDATE on foreign_verdict'); END;

CREATE TRIGGER foreign_verdict_no_delete BEFORE DELETE ON foreign_verdict BEGIN SELECT RAISE(ABORT, 'history is append-only: no DELETE on foreign_verdict'); END;

CREATE TRIGGER foreign_verdict_no_replace BEFORE INSERT ON foreign_verdict WHEN EXISTS (SELECT 1 FROM foreign_verdict WHERE id = NEW.id) OR EXISTS (SELECT 1 FROM foreign_verdict WHERE reading_id = NEW.reading_id AND world = NEW.world AND position = NEW.position) BEGIN SELECT RAISE(ABORT, 'history is append-only: this foreign_verdict is recorded already'); END;

CREATE TRIGGER foreign_verdict_json BEFORE INSERT ON foreign_verdict WHEN NOT json_valid(NEW.details) OR EXISTS (SELECT 1 FROM json_tree(NEW.details) WHERE type = 'real' AND abs(atom) >= 1e300) BEGIN SELECT RAISE(ABORT, 'a column of foreign_verdict that must be JSON with finite numbers is not'); END;
