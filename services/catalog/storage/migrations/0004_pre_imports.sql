-- migrate:up
SET LOCAL lock_timeout = '5s';
SET LOCAL statement_timeout = '60s';

-- What an import has to fetch, without secrets, and which files are in the object store.
CREATE TABLE imports (
    tenant     text NOT NULL CHECK (tenant <> ''),
    model_id   text UNIQUE REFERENCES models ON DELETE CASCADE,
    dataset_id text UNIQUE REFERENCES datasets ON DELETE CASCADE,
    entry_id   text GENERATED ALWAYS AS (coalesce(model_id, dataset_id)) STORED PRIMARY KEY,
    plan       jsonb NOT NULL,
    arrived    jsonb NOT NULL DEFAULT '[]',
    CHECK (num_nonnulls(model_id, dataset_id) = 1)
);
