-- migrate:up
SET LOCAL lock_timeout = '5s';
SET LOCAL statement_timeout = '60s';

-- Plans that may be launched until they expire.
CREATE TABLE plans (
    tenant text NOT NULL CHECK (tenant <> ''),
    project text NOT NULL,
    plan_digest text NOT NULL CHECK (plan_digest ~ '^[0-9a-f]{64}$'),
    -- JSON text and not jsonb: it must come back byte for byte.
    body text NOT NULL,
    create_time timestamptz NOT NULL,
    expire_time timestamptz NOT NULL CHECK (expire_time > create_time),
    PRIMARY KEY (tenant, project, plan_digest)
);
CREATE INDEX plans_expire_time ON plans (expire_time);

-- Every legal move of a job; the same table as MOVES in domain/job.py.
CREATE TABLE job_moves (
    from_state text NOT NULL,
    to_state text NOT NULL,
    PRIMARY KEY (from_state, to_state)
);
INSERT INTO job_moves (from_state, to_state) VALUES
    ('QUEUED', 'STARTING'), ('QUEUED', 'STOPPED'), ('QUEUED', 'FAILED'),
    ('STARTING', 'QUEUED'), ('STARTING', 'RUNNING'), ('STARTING', 'STOPPING'),
    ('STARTING', 'STOPPED'), ('STARTING', 'SUCCEEDED'), ('STARTING', 'FAILED'),
    ('RUNNING', 'QUEUED'), ('RUNNING', 'STOPPING'), ('RUNNING', 'STOPPED'),
    ('RUNNING', 'SUCCEEDED'), ('RUNNING', 'FAILED'),
    ('STOPPING', 'STOPPED'), ('STOPPING', 'SUCCEEDED'), ('STOPPING', 'FAILED'),
    ('STOPPED', 'QUEUED'), ('FAILED', 'QUEUED');

CREATE TABLE jobs (
    job_id text PRIMARY KEY,
    tenant text NOT NULL CHECK (tenant <> ''),
    project text NOT NULL,
    principal text NOT NULL,
    name text NOT NULL,
    -- JSON text and not jsonb: its digest must stay what it was.
    spec text NOT NULL,
    plan_digest text NOT NULL,
    model_id text NOT NULL,
    model_name text NOT NULL,
    model_revision text NOT NULL,
    dataset_id text NOT NULL,
    dataset_revision text NOT NULL,
    validation_dataset_id text NOT NULL,
    validation_revision text NOT NULL,
    total_steps bigint NOT NULL CHECK (total_steps >= 0),
    -- Copies out of the spec, for the queue.
    tiers text[] NOT NULL CHECK (cardinality(tiers) > 0),
    gpu_count integer NOT NULL CHECK (gpu_count > 0),
    priority integer NOT NULL CHECK (priority BETWEEN -100 AND 100),
    backup_after interval NOT NULL,
    currency text NOT NULL,
    max_cost_micros bigint NOT NULL CHECK (max_cost_micros > 0),
    max_duration interval NOT NULL CHECK (max_duration > interval '0'),
    state text NOT NULL CHECK (state IN (
        'QUEUED', 'STARTING', 'RUNNING', 'STOPPING', 'STOPPED', 'SUCCEEDED', 'FAILED')),
    end_reason text,
    state_message text NOT NULL,
    version bigint NOT NULL CHECK (version > 0),
    run_ordinal integer NOT NULL CHECK (run_ordinal >= 0),
    fault_count integer NOT NULL CHECK (fault_count >= 0),
    hold_ordinal integer NOT NULL CHECK (hold_ordinal > 0),
    create_time timestamptz NOT NULL,
    update_time timestamptz NOT NULL,
    queue_time timestamptz NOT NULL,
    wait_time timestamptz NOT NULL,
    not_before timestamptz,
    start_time timestamptz,
    stop_time timestamptz,
    finish_time timestamptz,
    -- Transaction of the last change: the order in which other services catch up.
    change_xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
    CONSTRAINT rest_has_an_end CHECK (
        (state IN ('STOPPED', 'SUCCEEDED', 'FAILED'))
        = (end_reason IS NOT NULL AND finish_time IS NOT NULL)),
    CONSTRAINT no_end_before_rest CHECK (
        state IN ('STOPPED', 'SUCCEEDED', 'FAILED')
        OR (end_reason IS NULL AND finish_time IS NULL)),
    CONSTRAINT stop_has_a_time CHECK (state <> 'STOPPING' OR stop_time IS NOT NULL),
    CONSTRAINT success_is_a_success CHECK (
        (state = 'SUCCEEDED') = coalesce(end_reason IN ('COMPLETED', 'EARLY_STOPPED'), false)),
    CONSTRAINT only_the_queue_waits CHECK (not_before IS NULL OR state = 'QUEUED')
);
CREATE INDEX jobs_by_age ON jobs (tenant, project, create_time DESC, job_id DESC);
CREATE INDEX jobs_queued ON jobs (priority DESC, queue_time, job_id) WHERE state = 'QUEUED';
CREATE INDEX jobs_stopping ON jobs (job_id) WHERE state = 'STOPPING';
CREATE INDEX jobs_by_change ON jobs (change_xid, job_id);

-- With the path of this migration, so that it finds its table whoever changes a job.
CREATE FUNCTION check_job_move() RETURNS trigger
LANGUAGE plpgsql
SET search_path FROM CURRENT AS $$
BEGIN
    IF NEW.version <> OLD.version + 1 THEN
        RAISE EXCEPTION 'version of job % goes from % to %', OLD.job_id, OLD.version, NEW.version
            USING ERRCODE = 'check_violation';
    END IF;
    IF NOT EXISTS (
        SELECT FROM job_moves WHERE from_state = OLD.state AND to_state = NEW.state
    ) THEN
        RAISE EXCEPTION 'job % cannot go from % to %', OLD.job_id, OLD.state, NEW.state
            USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END
$$;
CREATE TRIGGER jobs_move BEFORE UPDATE ON jobs
    FOR EACH ROW EXECUTE FUNCTION check_job_move();

CREATE TABLE runs (
    run_id text PRIMARY KEY,
    job_id text NOT NULL REFERENCES jobs (job_id),
    tenant text NOT NULL CHECK (tenant <> ''),
    project text NOT NULL,
    ordinal integer NOT NULL CHECK (ordinal > 0),
    lease_id text NOT NULL UNIQUE,
    epoch bigint NOT NULL CHECK (epoch > 0),
    tier text NOT NULL,
    lease_version bigint NOT NULL,
    end_reason text,
    end_message text NOT NULL,
    create_time timestamptz NOT NULL,
    finish_time timestamptz,
    UNIQUE (job_id, ordinal),
    CONSTRAINT an_end_has_a_time CHECK ((end_reason IS NULL) = (finish_time IS NULL))
);
CREATE UNIQUE INDEX one_live_run_a_job ON runs (job_id) WHERE end_reason IS NULL;

-- Keys of requests that must have one effect only, for as long as their job exists.
CREATE TABLE request_keys (
    tenant text NOT NULL CHECK (tenant <> ''),
    -- create, or the job that is resumed.
    scope text NOT NULL,
    request_id text NOT NULL,
    fingerprint text NOT NULL,
    -- Null while the request is being carried out; bound before its job is stored, for the key
    -- decides which of two equal requests makes the job.
    job_id text REFERENCES jobs (job_id) DEFERRABLE INITIALLY DEFERRED,
    create_time timestamptz NOT NULL,
    PRIMARY KEY (tenant, scope, request_id)
);

-- What runs say of themselves; no version, no events.
CREATE TABLE job_progress (
    job_id text PRIMARY KEY REFERENCES jobs (job_id),
    tenant text NOT NULL CHECK (tenant <> ''),
    step_epoch bigint NOT NULL DEFAULT 0,
    step_sequence bigint NOT NULL DEFAULT 0,
    step bigint NOT NULL DEFAULT 0,
    total_steps bigint NOT NULL DEFAULT 0,
    remaining_seconds double precision,
    -- JSON object of name to text.
    step_values text NOT NULL DEFAULT '{}',
    evaluation_epoch bigint NOT NULL DEFAULT 0,
    evaluation_sequence bigint NOT NULL DEFAULT 0,
    best_step bigint,
    best_loss double precision,
    baseline_loss double precision,
    eval_loss text NOT NULL DEFAULT ''
);
