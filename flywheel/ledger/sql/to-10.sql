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
