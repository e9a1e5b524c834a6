-- migrate:up
SET LOCAL lock_timeout = '5s';
SET LOCAL statement_timeout = '60s';

-- What the store knows of a job. Every change of a checkpoint locks this row first.
CREATE TABLE jobs (
    tenant text NOT NULL CHECK (tenant <> ''),
    project text NOT NULL,
    job_id text NOT NULL,
    fence_epoch bigint NOT NULL CHECK (fence_epoch > 0),
    -- Epoch whose resume point is decided; behind the fence while Open is still looking.
    opened_epoch bigint NOT NULL DEFAULT 0 CHECK (opened_epoch <= fence_epoch),
    resume_checkpoint_id text,
    is_resuming boolean NOT NULL DEFAULT false
        CHECK (NOT is_resuming OR resume_checkpoint_id IS NOT NULL),
    skipped text[] NOT NULL DEFAULT '{}',
    -- Ordinary checkpoints kept; unknown before the first upload.
    max_checkpoints integer CHECK (max_checkpoints >= 1),
    -- The newest Best that the runner announced.
    expected_best_epoch bigint NOT NULL DEFAULT 0,
    expected_best_step bigint NOT NULL DEFAULT -1,
    create_time timestamptz NOT NULL DEFAULT clock.now(),
    PRIMARY KEY (tenant, job_id)
);

-- Checkpoints of all times. What was deleted stays as a row: its validation loss is still the bar
-- that a new Best must pass, and its id, hence its keys, are never used again.
CREATE TABLE checkpoints (
    checkpoint_id text PRIMARY KEY,
    tenant text NOT NULL,
    project text NOT NULL,
    job_id text NOT NULL,
    epoch bigint NOT NULL CHECK (epoch > 0),
    step bigint NOT NULL CHECK (step >= 0),
    state text NOT NULL CHECK (state IN ('UPLOADING', 'COMMITTED', 'DELETING', 'DELETED')),
    is_final boolean NOT NULL,
    is_pinned boolean NOT NULL DEFAULT false,
    is_resumable boolean NOT NULL,
    is_superseded boolean NOT NULL DEFAULT false,
    -- Finite or absent, so that NaN, which Postgres sorts above everything, is never compared.
    eval_loss double precision
        CHECK (eval_loss > '-Infinity' AND eval_loss < 'Infinity'),
    eval_loss_text text NOT NULL,
    size_bytes bigint NOT NULL CHECK (size_bytes >= 0),
    manifest_sha256 text,
    delete_cause text
        CHECK (delete_cause IN ('retention', 'request', 'abandoned', 'superseded')),
    version bigint NOT NULL DEFAULT 1,
    begin_time timestamptz NOT NULL DEFAULT clock.now(),
    commit_time timestamptz,
    -- Until when a signed address that was handed out may still be used to read.
    read_until timestamptz,
    -- When its objects may go.
    remove_time timestamptz,
    FOREIGN KEY (tenant, job_id) REFERENCES jobs (tenant, job_id),
    UNIQUE (tenant, job_id, epoch, step),
    CHECK ((commit_time IS NULL) = (manifest_sha256 IS NULL)),
    CHECK (state <> 'COMMITTED' OR commit_time IS NOT NULL),
    CHECK (state <> 'UPLOADING' OR commit_time IS NULL),
    CHECK ((state IN ('DELETING', 'DELETED')) = (delete_cause IS NOT NULL)),
    CHECK ((delete_cause IS NULL) = (remove_time IS NULL)),
    CHECK ((eval_loss IS NULL) OR eval_loss_text <> '')
);

CREATE UNIQUE INDEX one_final_per_job ON checkpoints (tenant, job_id)
 WHERE is_final AND state = 'COMMITTED';
CREATE INDEX checkpoints_by_loss ON checkpoints (tenant, job_id, eval_loss, step, epoch)
 WHERE eval_loss IS NOT NULL AND commit_time IS NOT NULL AND NOT is_superseded;
CREATE INDEX checkpoints_uploading ON checkpoints (begin_time) WHERE state = 'UPLOADING';
CREATE INDEX checkpoints_deleting ON checkpoints (remove_time) WHERE state = 'DELETING';

-- No way back, whatever the code does: the edges of services/checkpoint_store/domain/checkpoint.py.
CREATE FUNCTION check_move() RETURNS trigger
  LANGUAGE plpgsql
  AS $$
BEGIN
    IF (OLD.state, NEW.state) NOT IN (
        ('UPLOADING', 'UPLOADING'), ('UPLOADING', 'COMMITTED'), ('UPLOADING', 'DELETING'),
        ('COMMITTED', 'COMMITTED'), ('COMMITTED', 'DELETING'),
        ('DELETING', 'DELETING'), ('DELETING', 'DELETED'), ('DELETED', 'DELETED')
    ) THEN
        RAISE EXCEPTION 'checkpoint % cannot go from % to %', OLD.checkpoint_id, OLD.state, NEW.state
            USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END
$$;
CREATE TRIGGER checkpoints_move BEFORE UPDATE OF state ON checkpoints
    FOR EACH ROW EXECUTE FUNCTION check_move();

CREATE TABLE checkpoint_files (
    checkpoint_id text NOT NULL REFERENCES checkpoints (checkpoint_id),
    tenant text NOT NULL,
    name text NOT NULL CHECK (name ~ '^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$'),
    size_bytes bigint NOT NULL CHECK (size_bytes >= 0),
    sha256 text NOT NULL CHECK (sha256 ~ '^[0-9a-f]{64}$'),
    PRIMARY KEY (checkpoint_id, name)
);

-- A checkpoint with its files in one row, as the domain sees it.
CREATE VIEW whole_checkpoints AS
SELECT c.checkpoint_id, c.tenant, c.project, c.job_id, c.epoch, c.step, c.state,
       c.is_final, c.is_pinned, c.is_resumable, c.is_superseded,
       c.eval_loss, c.eval_loss_text, c.size_bytes, c.manifest_sha256, c.commit_time,
       c.delete_cause, c.version,
       (SELECT jsonb_agg(
                   jsonb_build_array(f.name, f.size_bytes, f.sha256) ORDER BY f.name COLLATE "C"
               )
          FROM checkpoint_files AS f
         WHERE f.checkpoint_id = c.checkpoint_id) AS files
  FROM checkpoints AS c;

-- Places up to which other services' changes were looked at.
CREATE TABLE cursors (
    cursor_name text PRIMARY KEY,
    tenant text NOT NULL DEFAULT '',
    cursor_value text NOT NULL
);
