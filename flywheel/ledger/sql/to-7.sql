CREATE TABLE phase (
	id INTEGER NOT NULL,
	campaign_id INTEGER NOT NULL,
	phase TEXT NOT NULL,
	why TEXT NOT NULL,
	after_decision INTEGER NOT NULL,
	finding INTEGER NOT NULL,
	created_utc TEXT NOT NULL,
	PRIMARY KEY (id),
	CHECK (phase IN ('exploit', 'exhaust', 'propose', 'done')),
	FOREIGN KEY(campaign_id) REFERENCES campaign (id),
	FOREIGN KEY(finding) REFERENCES finding (number)
)
 STRICT;

CREATE TABLE profile (
	id INTEGER NOT NULL,
	phase_id INTEGER NOT NULL,
	config TEXT NOT NULL,
	top TEXT NOT NULL,
	levers INTEGER NOT NULL,
	failure TEXT NOT NULL,
	document TEXT NOT NULL,
	created_utc TEXT NOT NULL,
	PRIMARY KEY (id),
	CHECK ((failure = '') = (top <> '')),
	CHECK (levers >= 0),
	FOREIGN KEY(phase_id) REFERENCES phase (id)
)
 STRICT;

CREATE TABLE proposal (
	lever_identity TEXT NOT NULL,
	lever TEXT NOT NULL,
	origin TEXT NOT NULL,
	because TEXT NOT NULL,
	profile_id INTEGER,
	created_utc TEXT NOT NULL,
	PRIMARY KEY (lever_identity),
	FOREIGN KEY(profile_id) REFERENCES profile (id)
)
 STRICT;

CREATE TRIGGER phase_no_update BEFORE UPDATE ON phase BEGIN SELECT RAISE(ABORT, 'history is append-only: no UPDATE on phase'); END;

CREATE TRIGGER phase_no_delete BEFORE DELETE ON phase BEGIN SELECT RAISE(ABORT, 'history is append-only: no DELETE on phase'); END;

CREATE TRIGGER phase_no_replace BEFORE INSERT ON phase WHEN EXISTS (SELECT 1 FROM phase WHERE id = NEW.id) BEGIN SELECT RAISE(ABORT, 'history is append-only: this phase is recorded already'); END;

CREATE TRIGGER profile_no_update BEFORE UPDATE ON profile BEGIN SELECT RAISE(ABORT, 'history is append-only: no UPDATE on profile'); END;

CREATE TRIGGER profile_no_delete BEFORE DELETE ON profile BEGIN SELECT RAISE(ABORT, 'history is append-only: no DELETE on profile'); END;

CREATE TRIGGER profile_no_replace BEFORE INSERT ON profile WHEN EXISTS (SELECT 1 FROM profile WHERE id = NEW.id) BEGIN SELECT RAISE(ABORT, 'history is append-only: this profile is recorded already'); END;

CREATE TRIGGER profile_json BEFORE INSERT ON profile WHEN NOT json_valid(NEW.config) OR EXISTS (SELECT 1 FROM json_tree(NEW.config) WHERE type = 'real' AND abs(atom) >= 1e300) OR NOT json_valid(NEW.document) OR EXISTS (SELECT 1 FROM json_tree(NEW.document) WHERE type = 'real' AND abs(atom) >= 1e300) BEGIN SELECT RAISE(ABORT, 'a column of profile that must be JSON with finite numbers is not'); END;

CREATE TRIGGER proposal_no_update BEFORE UPDATE ON proposal BEGIN SELECT RAISE(ABORT, 'history is append-only: no UPDATE on proposal'); END;

CREATE TRIGGER proposal_no_delete BEFORE DELETE ON proposal BEGIN SELECT RAISE(ABORT, 'history is append-only: no DELETE on proposal'); END;

CREATE TRIGGER proposal_no_replace BEFORE INSERT ON proposal WHEN EXISTS (SELECT 1 FROM proposal WHERE lever_identity = NEW.lever_identity) BEGIN SELECT RAISE(ABORT, 'history is append-only: this proposal is recorded already'); END;

CREATE TRIGGER proposal_json BEFORE INSERT ON proposal WHEN NOT json_valid(NEW.lever) OR EXISTS (SELECT 1 FROM json_tree(NEW.lever) WHERE type = 'real' AND abs(atom) >= 1e300) BEGIN SELECT RAISE(ABORT, 'a column of proposal that must be JSON with finite numbers is not'); END;
