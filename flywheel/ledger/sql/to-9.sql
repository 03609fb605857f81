CREATE TABLE block_prompt (
	block_id TEXT NOT NULL,
	prompt TEXT NOT NULL,
	category TEXT NOT NULL,
	held_out INTEGER NOT NULL,
	made INTEGER NOT NULL,
	incumbent INTEGER NOT NULL,
	candidate INTEGER NOT NULL,
	PRIMARY KEY (block_id, prompt),
	CHECK (made > 0 AND incumbent > 0 AND candidate > 0),
	FOREIGN KEY(block_id) REFERENCES block (block_id)
)
 STRICT;

CREATE TABLE head (
	name TEXT NOT NULL,
	variant_id TEXT,
	weights_sha256 TEXT NOT NULL,
	card TEXT NOT NULL,
	created_utc TEXT NOT NULL,
	PRIMARY KEY (name),
	FOREIGN KEY(variant_id) REFERENCES variant (id)
)
 STRICT;

CREATE TABLE head_stage (
	id INTEGER NOT NULL,
	head TEXT NOT NULL,
	decision_id INTEGER NOT NULL,
	outcome TEXT NOT NULL,
	detail TEXT NOT NULL,
	signature TEXT NOT NULL,
	created_utc TEXT NOT NULL,
	PRIMARY KEY (id),
	CHECK (outcome IN ('live', 'rolled_back')),
	FOREIGN KEY(head) REFERENCES head (name),
	FOREIGN KEY(decision_id) REFERENCES decision (id)
)
 STRICT;

CREATE TRIGGER head_no_update BEFORE UPDATE ON head BEGIN SELECT RAISE(ABORT, 'history is append-only: no UPDATE on head'); END;

CREATE TRIGGER head_no_delete BEFORE DELETE ON head BEGIN SELECT RAISE(ABORT, 'history is append-only: no DELETE on head'); END;

CREATE TRIGGER head_no_replace BEFORE INSERT ON head WHEN EXISTS (SELECT 1 FROM head WHERE name = NEW.name) BEGIN SELECT RAISE(ABORT, 'history is append-only: this head is recorded already'); END;

CREATE TRIGGER head_json BEFORE INSERT ON head WHEN NOT json_valid(NEW.card) OR EXISTS (SELECT 1 FROM json_tree(NEW.card) WHERE type = 'real' AND abs(atom) >= 1e300) BEGIN SELECT RAISE(ABORT, 'a column of head that must be JSON with finite numbers is not'); END;

CREATE TRIGGER head_stage_no_update BEFORE UPDATE ON head_stage BEGIN SELECT RAISE(ABORT, 'history is append-only: no UPDATE on head_stage'); END;

CREATE TRIGGER head_stage_no_delete BEFORE DELETE ON head_stage BEGIN SELECT RAISE(ABORT, 'history is append-only: no DELETE on head_stage'); END;

CREATE TRIGGER head_stage_no_replace BEFORE INSERT ON head_stage WHEN EXISTS (SELECT 1 FROM head_stage WHERE id = NEW.id) BEGIN SELECT RAISE(ABORT, 'history is append-only: this head_stage is recorded already'); END;

CREATE TRIGGER head_stage_json BEFORE INSERT ON head_stage WHEN NOT json_valid(NEW.signature) OR EXISTS (SELECT 1 FROM json_tree(NEW.signature) WHERE type = 'real' AND abs(atom) >= 1e300) BEGIN SELECT RAISE(ABORT, 'a column of head_stage that must be JSON with finite numbers is not'); END;

CREATE TRIGGER block_prompt_no_update BEFORE UPDATE ON block_prompt BEGIN SELECT RAISE(ABORT, 'history is append-only: no UPDATE on block_prompt'); END;

CREATE TRIGGER block_prompt_no_delete BEFORE DELETE ON block_prompt BEGIN SELECT RAISE(ABORT, 'history is append-only: no DELETE on block_prompt'); END;

CREATE TRIGGER block_prompt_no_replace BEFORE INSERT ON block_prompt WHEN EXISTS (SELECT 1 FROM block_prompt WHERE block_id = NEW.block_id AND prompt = NEW.prompt) BEGIN SELECT RAISE(ABORT, 'history is append-only: this block_prompt is recorded already'); END;
