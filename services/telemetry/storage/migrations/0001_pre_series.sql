-- migrate:up
SET LOCAL lock_timeout = '5s';
SET LOCAL statement_timeout = '60s';

-- Jobs whose series were opened. Whoever writes anything of a job locks its row first, so that what
-- is numbered within a job becomes visible in the order of its numbers.
CREATE TABLE jobs (
    tenant text NOT NULL CHECK (tenant <> ''),
    project text NOT NULL,
    job_id text NOT NULL,
    fence_epoch bigint NOT NULL CHECK (fence_epoch > 0),
    create_time timestamptz NOT NULL DEFAULT clock.now(),
    PRIMARY KEY (tenant, job_id)
);

CREATE TABLE runs (
    tenant text NOT NULL,
    run_id text NOT NULL,
    job_id text NOT NULL,
    epoch bigint NOT NULL CHECK (epoch > 0),
    resume_step bigint NOT NULL CHECK (resume_step >= 0),
    -- Numbers of reports and of lines that are stored, as arrays of [first, last].
    reports_received jsonb NOT NULL DEFAULT '[]' CHECK (jsonb_typeof(reports_received) = 'array'),
    lines_received jsonb NOT NULL DEFAULT '[]' CHECK (jsonb_typeof(lines_received) = 'array'),
    -- Lines up to this number are shown although one before them is missing.
    lines_let_through bigint NOT NULL DEFAULT 0,
    create_time timestamptz NOT NULL DEFAULT clock.now(),
    PRIMARY KEY (tenant, run_id),
    UNIQUE (tenant, job_id, epoch),
    FOREIGN KEY (tenant, job_id) REFERENCES jobs (tenant, job_id)
);

-- Places in which points and lines of all jobs arrive; drawn under the lock of the job.
CREATE SEQUENCE arrivals;

CREATE TABLE points (
    tenant text NOT NULL,
    job_id text NOT NULL,
    step bigint NOT NULL CHECK (step BETWEEN 0 AND 4294967295),
    name text NOT NULL CHECK (name <> ''),
    epoch bigint NOT NULL,
    run_id text NOT NULL,
    sequence bigint NOT NULL CHECK (sequence > 0),
    -- A finite value here, another one as its word: one of the two.
    value double precision CHECK (value > '-Infinity' AND value < 'Infinity'),
    word text CHECK (word IN ('NaN', 'Infinity', '-Infinity')),
    report_time timestamptz NOT NULL,
    is_superseded boolean NOT NULL,
    arrival bigint NOT NULL,
    PRIMARY KEY (tenant, job_id, step, name, epoch),
    FOREIGN KEY (tenant, run_id) REFERENCES runs (tenant, run_id),
    CHECK ((value IS NULL) <> (word IS NULL))
);

-- A series has no doubles.
CREATE UNIQUE INDEX one_point_that_counts ON points (tenant, job_id, step, name)
 WHERE NOT is_superseded;
CREATE INDEX points_by_arrival ON points (tenant, job_id, arrival);

CREATE TABLE log_lines (
    tenant text NOT NULL,
    job_id text NOT NULL,
    run_id text NOT NULL,
    sequence bigint NOT NULL CHECK (sequence > 0),
    -- Place in the job's log; absent while a line before it in its run is missing.
    cursor bigint,
    line_time timestamptz NOT NULL,
    level text NOT NULL,
    body text NOT NULL,
    receive_time timestamptz NOT NULL DEFAULT clock.now(),
    PRIMARY KEY (tenant, run_id, sequence),
    FOREIGN KEY (tenant, run_id) REFERENCES runs (tenant, run_id)
);

CREATE UNIQUE INDEX log_lines_by_cursor ON log_lines (tenant, job_id, cursor)
 WHERE cursor IS NOT NULL;
CREATE INDEX log_lines_waiting ON log_lines (receive_time) WHERE cursor IS NULL;
