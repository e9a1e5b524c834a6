-- migrate:up
CREATE TABLE models (
    model_id        text PRIMARY KEY,
    tenant          text NOT NULL CHECK (tenant <> ''),
    project         text NOT NULL CHECK (project <> ''),
    name            text NOT NULL,
    revision        text NOT NULL CHECK (revision ~ '^[0-9a-f]{64}$'),
    license         text NOT NULL,
    files           jsonb NOT NULL,
    is_committed    boolean NOT NULL DEFAULT false,
    model_type      text NOT NULL DEFAULT '',
    parameter_count bigint NOT NULL DEFAULT 0 CHECK (parameter_count >= 0),
    context_length  bigint NOT NULL DEFAULT 0 CHECK (context_length >= 0),
    create_time     timestamptz NOT NULL DEFAULT clock.now(),
    UNIQUE (tenant, project, name, revision)
);

CREATE TABLE datasets (
    dataset_id     text PRIMARY KEY,
    tenant         text NOT NULL CHECK (tenant <> ''),
    project        text NOT NULL CHECK (project <> ''),
    name           text NOT NULL,
    revision       text NOT NULL CHECK (revision ~ '^[0-9a-f]{64}$'),
    file           jsonb NOT NULL,
    is_committed   boolean NOT NULL DEFAULT false,
    row_kind       text NOT NULL DEFAULT '',
    row_count      bigint NOT NULL DEFAULT 0 CHECK (row_count >= 0),
    distinct_count bigint NOT NULL DEFAULT 0 CHECK (distinct_count >= 0),
    problems       jsonb NOT NULL DEFAULT '[]',
    create_time    timestamptz NOT NULL DEFAULT clock.now(),
    UNIQUE (tenant, project, name, revision),
    CHECK (NOT is_committed OR row_count > 0)
);

-- Token lengths of every row of a dataset under a model's tokenizer; both never change.
CREATE TABLE lengths (
    dataset_id text NOT NULL REFERENCES datasets ON DELETE CASCADE,
    model_id   text NOT NULL REFERENCES models ON DELETE CASCADE,
    tenant     text NOT NULL,
    tokens     integer[] NOT NULL,
    PRIMARY KEY (dataset_id, model_id)
);
