CREATE TABLE choice (
	block_id TEXT NOT NULL,
	value REAL NOT NULL,
	terms TEXT NOT NULL,
	runners_up TEXT NOT NULL,
	created_utc TEXT NOT NULL,
	PRIMARY KEY (block_id),
	CHECK (value IS NULL OR abs(value) < 1e300),
	FOREIGN KEY(block_id) REFERENCES block_plan (id)
)
 STRICT;

CREATE TABLE steering (
	id INTEGER NOT NULL,
	lever_identity TEXT NOT NULL,
	name TEXT NOT NULL,
	word TEXT NOT NULL,
	ceiling REAL,
	why TEXT NOT NULL,
	after_decision INTEGER NOT NULL,
	created_utc TEXT NOT NULL,
	PRIMARY KEY (id),
	CHECK (word IN ('priced', 'deferred', 'reopened')),
	CHECK ((word = 'priced') = (ceiling IS NOT NULL)),
	CHECK (ceiling IS NULL OR (ceiling >= 0 AND ceiling < 1))
)
 STRICT;

CREATE TRIGGER steering_no_update BEFORE UPDATE ON steering BEGIN SELECT RAISE(ABORT, 'history is append-only: no UPDATE on steering'); END;

CREATE TRIGGER steering_no_delete BEFORE DELETE ON steering BEGIN SELECT RAISE(ABORT, 'history is append-only: no DELETE on steering'); END;

CREATE TRIGGER steering_no_replace BEFORE INSERT ON steering WHEN EXISTS (SELECT 1 FROM steering WHERE id = NEW.id) BEGIN SELECT RAISE(ABORT, 'history is append-only: this steering is recorded already'); END;

CREATE TRIGGER choice_no_update BEFORE UPDATE ON choice BEGIN SELECT RAISE(ABORT, 'history is append-only: no UPDATE on choice'); END;

CREATE TRIGGER choice_no_delete BEFORE DELETE ON choice BEGIN SELECT RAISE(ABORT, 'history is append-only: no DELETE on choice'); END;

CREATE TRIGGER choice_no_replace BEFORE INSERT ON choice WHEN EXISTS (SELECT 1 FROM choice WHERE block_id = NEW.block_id) BEGIN SELECT RAISE(ABORT, 'history is append-only: this choice is recorded already'); END;

CREATE TRIGGER choice_json BEFORE INSERT ON choice WHEN NOT json_valid(NEW.terms) OR EXISTS (SELECT 1 FROM json_tree(NEW.terms) WHERE type = 'real' AND abs(atom) >= 1e300) OR NOT json_valid(NEW.runners_up) OR EXISTS (SELECT 1 FROM json_tree(NEW.runners_up) WHERE type = 'real' AND abs(atom) >= 1e300) BEGIN SELECT RAISE(ABORT, 'a column of choice that must be JSON with finite numbers is not'); END;
