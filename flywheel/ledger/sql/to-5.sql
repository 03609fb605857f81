CREATE TABLE screen_opening (
	block_id TEXT NOT NULL,
	run_id TEXT NOT NULL,
	created_utc TEXT NOT NULL,
	PRIMARY KEY (block_id),
	FOREIGN KEY(block_id) REFERENCES screen_plan (block_id),
	FOREIGN KEY(run_id) REFERENCES run (id)
)
 STRICT;

CREATE TRIGGER screen_opening_no_update BEFORE UPDATE ON screen_opening BEGIN SELECT RAISE(ABORT, 'history is append-only: no UPDATE on screen_opening'); END;

CREATE TRIGGER screen_opening_no_delete BEFORE DELETE ON screen_opening BEGIN SELECT RAISE(ABORT, 'history is append-only: no DELETE on screen_opening'); END;

CREATE TRIGGER screen_opening_no_replace BEFORE INSERT ON screen_opening WHEN EXISTS (SELECT 1 FROM screen_opening WHERE block_id = NEW.block_id) BEGIN SELECT RAISE(ABORT, 'history is append-only: this screen_opening is recorded already'); END;

CREATE TRIGGER screen_opening_good BEFORE INSERT ON screen_opening WHEN NOT EXISTS (SELECT 1 FROM run_end WHERE run_id = NEW.run_id AND outcome = 'ok') BEGIN SELECT RAISE(ABORT, 'a run that is not ok opens no screen'); END;

CREATE TRIGGER run_not_opened_twice BEFORE INSERT ON run WHEN NEW.slot = 0 AND EXISTS (SELECT 1 FROM screen_opening WHERE block_id = NEW.block_id) BEGIN SELECT RAISE(ABORT, 'a screen that opens with an earlier load has no first load of its own'); END;
