-- migrate:up
SET LOCAL lock_timeout = '5s';
SET LOCAL statement_timeout = '60s';

-- While a source, the object store or the database is away an entry waits; `refusal` says for what.
ALTER TABLE models
    ADD COLUMN put_off_count integer NOT NULL DEFAULT 0 CHECK (put_off_count >= 0),
    ADD COLUMN put_off_until timestamptz;
ALTER TABLE datasets
    ADD COLUMN put_off_count integer NOT NULL DEFAULT 0 CHECK (put_off_count >= 0),
    ADD COLUMN put_off_until timestamptz;

-- The id is what makes an entry; equal bytes of two commits are two entries. The constraint goes
-- when the old code is gone, which names it.
CREATE INDEX models_by_name ON models (tenant, project, name, revision);
CREATE INDEX datasets_by_name ON datasets (tenant, project, name, revision);

-- Entries whose parts may lie in the object store, or may still come: addresses work on for a while.
CREATE TABLE uploads (
    entry_id  text PRIMARY KEY,
    tenant    text NOT NULL CHECK (tenant <> ''),
    open_time timestamptz NOT NULL DEFAULT clock.now()
);

INSERT INTO uploads (entry_id, tenant)
SELECT model_id, tenant FROM models WHERE source ->> 'kind' IN ('upload', 'checkpoint')
UNION ALL
SELECT dataset_id, tenant FROM datasets WHERE source ->> 'kind' IN ('upload', 'checkpoint');

-- Entries that are removed, and whose objects may still be there.
CREATE TABLE removals (
    entry_id      text PRIMARY KEY,
    tenant        text NOT NULL CHECK (tenant <> ''),
    prefixes      jsonb NOT NULL,
    claimed_by    text NOT NULL,
    claimed_until timestamptz NOT NULL
);
