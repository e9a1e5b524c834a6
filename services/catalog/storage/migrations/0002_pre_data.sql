-- migrate:up
SET LOCAL lock_timeout = '5s';
SET LOCAL statement_timeout = '60s';

-- An entry lives in one state. While it is IMPORTING or VALIDATING a worker claims it and renews
-- the claim; when it does not, another worker takes the entry over.
ALTER TABLE models
    ADD COLUMN state text NOT NULL DEFAULT 'UPLOADING'
        CHECK (state IN ('UPLOADING', 'IMPORTING', 'VALIDATING', 'READY', 'REFUSED')),
    ADD COLUMN source jsonb NOT NULL DEFAULT '{"kind": "upload", "origin": "", "commit": ""}',
    ADD COLUMN acknowledged_by text NOT NULL DEFAULT '',
    ADD COLUMN facts jsonb NOT NULL DEFAULT '{}',
    ADD COLUMN refusal text NOT NULL DEFAULT '',
    ADD COLUMN progress jsonb NOT NULL
        DEFAULT '{"done_bytes": 0, "total_bytes": 0, "row_count": 0}',
    ADD COLUMN change_time timestamptz NOT NULL DEFAULT clock.now(),
    ADD COLUMN claimed_by text NOT NULL DEFAULT '',
    ADD COLUMN claimed_until timestamptz NOT NULL DEFAULT '-infinity',
    ADD COLUMN attempts integer NOT NULL DEFAULT 0 CHECK (attempts >= 0);

UPDATE models SET state = 'READY' WHERE is_committed;

CREATE INDEX models_worked_on ON models (change_time) WHERE state IN ('IMPORTING', 'VALIDATING');

ALTER TABLE datasets
    ALTER COLUMN file DROP NOT NULL,
    ADD COLUMN state text NOT NULL DEFAULT 'UPLOADING'
        CHECK (state IN ('UPLOADING', 'IMPORTING', 'VALIDATING', 'READY', 'REFUSED')),
    ADD COLUMN files jsonb NOT NULL DEFAULT '[]',
    ADD COLUMN columns jsonb NOT NULL DEFAULT '{}',
    ADD COLUMN license text NOT NULL DEFAULT 'own',
    ADD COLUMN source jsonb NOT NULL DEFAULT '{"kind": "upload", "origin": "", "commit": ""}',
    ADD COLUMN acknowledged_by text NOT NULL DEFAULT '',
    ADD COLUMN refusal text NOT NULL DEFAULT '',
    ADD COLUMN progress jsonb NOT NULL
        DEFAULT '{"done_bytes": 0, "total_bytes": 0, "row_count": 0}',
    ADD COLUMN image_row_count bigint NOT NULL DEFAULT 0 CHECK (image_row_count >= 0),
    ADD COLUMN layouts jsonb NOT NULL DEFAULT '{}',
    ADD COLUMN row_files jsonb NOT NULL DEFAULT '[]',
    ADD COLUMN rows_file jsonb,
    ADD COLUMN images_file jsonb,
    ADD COLUMN keys_file jsonb,
    ADD COLUMN change_time timestamptz NOT NULL DEFAULT clock.now(),
    ADD COLUMN claimed_by text NOT NULL DEFAULT '',
    ADD COLUMN claimed_until timestamptz NOT NULL DEFAULT '-infinity',
    ADD COLUMN attempts integer NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    ADD CONSTRAINT ready_has_rows
        CHECK (state <> 'READY' OR (row_count > 0 AND rows_file IS NOT NULL));

-- Rows of before have no canonical file: they must be uploaded once more.
UPDATE datasets
   SET files = jsonb_build_array(file),
       state = CASE WHEN is_committed THEN 'REFUSED' ELSE 'UPLOADING' END,
       refusal = CASE WHEN is_committed
                      THEN 'was uploaded to an older version of the catalog; upload it again'
                      ELSE '' END;

CREATE INDEX datasets_worked_on ON datasets (change_time) WHERE state IN ('IMPORTING', 'VALIDATING');

-- Secrets for imports, encrypted by the catalog; they are never answered.
CREATE TABLE credentials (
    tenant      text NOT NULL CHECK (tenant <> ''),
    project     text NOT NULL CHECK (project <> ''),
    name        text NOT NULL,
    kind        text NOT NULL CHECK (kind IN ('hub', 's3')),
    secret      bytea NOT NULL,
    create_time timestamptz NOT NULL DEFAULT clock.now(),
    PRIMARY KEY (tenant, project, name)
);
