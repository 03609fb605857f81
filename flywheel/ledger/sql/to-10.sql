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
