-- What an agent must still know after a crash or a power failure; sqlite, one file a node.

-- create_facts()
-- One-row facts by name.
CREATE TABLE IF NOT EXISTS facts (
    name  text PRIMARY KEY,
    value text NOT NULL
);

-- create_devices()
-- The number of each device that was ever seen, and the highest epoch that may use it.
CREATE TABLE IF NOT EXISTS devices (
    device_id text PRIMARY KEY,
    ordinal   integer NOT NULL UNIQUE,
    epoch     integer NOT NULL DEFAULT 0
);

-- create_runs()
-- Runs that the allocator has not seen closed yet; times are CLOCK_MONOTONIC of boot_id.
CREATE TABLE IF NOT EXISTS runs (
    lease_id    text PRIMARY KEY,
    run_id      text NOT NULL UNIQUE,
    job_id      text NOT NULL,
    tenant      text NOT NULL,
    project     text NOT NULL,
    epoch       integer NOT NULL,
    tier        text NOT NULL,
    ordinals    text NOT NULL,
    boot_id     text NOT NULL,
    state       text NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'ended', 'closed')),
    pid         integer,
    pid_start   text,
    max_checkpoints integer NOT NULL DEFAULT 1,
    stop_reason text,
    end_reason  text,
    end_message text NOT NULL DEFAULT '',
    began       real,
    ended       real,
    committed   real,
    CHECK ((state = 'open') = (end_reason IS NULL)),
    CHECK ((pid IS NULL) = (pid_start IS NULL))
);

-- create_staged()
-- Checkpoint folders that are complete on this disk.
CREATE TABLE IF NOT EXISTS staged (
    path         text PRIMARY KEY,
    run_id       text NOT NULL REFERENCES runs (run_id) ON DELETE CASCADE,
    step         integer NOT NULL,
    is_ordinary  integer NOT NULL,
    is_best      integer NOT NULL,
    is_final     integer NOT NULL,
    is_resumable integer NOT NULL,
    is_last      integer NOT NULL,
    eval_loss    text NOT NULL,
    snapshot     real NOT NULL
);

-- fact(name)
-- The value of a fact.
SELECT value
  FROM facts
 WHERE name = $1;

-- put_fact(name, value)
-- Set a fact.
INSERT INTO facts (name, value)
VALUES ($1, $2)
    ON CONFLICT (name) DO UPDATE SET value = excluded.value;

-- add_device(device_id)
-- Give a device that is new the next number.
INSERT INTO devices (device_id, ordinal)
SELECT $1, COALESCE(MAX(ordinal) + 1, 0)
  FROM devices
 WHERE true
    ON CONFLICT (device_id) DO NOTHING;

-- devices()
-- Numbers and epochs.
SELECT device_id, ordinal, epoch
  FROM devices
 ORDER BY ordinal;

-- raise_epoch(ordinal, epoch)
-- Let nobody older than this epoch use a device; no row means that somebody newer does.
UPDATE devices
   SET epoch = $2
 WHERE ordinal = $1
   AND epoch <= $2
RETURNING ordinal;

-- add_run(lease_id, run_id, job_id, tenant, project, epoch, tier, ordinals, boot_id)
-- Remember a run before anything is done for it.
INSERT INTO runs (lease_id, run_id, job_id, tenant, project, epoch, tier, ordinals, boot_id)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
    ON CONFLICT (lease_id) DO NOTHING;

-- runs()
-- Every run, oldest lease first.
SELECT lease_id, run_id, job_id, tenant, project, epoch, tier, ordinals, boot_id, state, pid,
       pid_start, max_checkpoints, stop_reason, end_reason, end_message, began, ended, committed
  FROM runs
 ORDER BY epoch;

-- plan_run(run_id, max_checkpoints)
-- What uploads need to know of the plan.
UPDATE runs
   SET max_checkpoints = $2
 WHERE run_id = $1;

-- start_run(run_id, pid, pid_start)
-- The trainer lives.
UPDATE runs
   SET pid = $2, pid_start = $3
 WHERE run_id = $1;

-- begin_run(run_id, began)
-- It computes since then.
UPDATE runs
   SET began = $2
 WHERE run_id = $1;

-- stop_run(run_id, stop_reason)
-- It is to stop; the first reason stays.
UPDATE runs
   SET stop_reason = $2
 WHERE run_id = $1
   AND stop_reason IS NULL;

-- end_run(run_id, end_reason, end_message, began, ended)
-- Its processes are dead.
UPDATE runs
   SET state = 'ended', end_reason = $2, end_message = $3, began = $4, ended = $5
 WHERE run_id = $1
   AND state = 'open';

-- change_ending(run_id, end_reason, end_message)
-- Its result could not be stored.
UPDATE runs
   SET end_reason = $2, end_message = $3
 WHERE run_id = $1
   AND state = 'ended';

-- close_run(run_id)
-- Nothing is left to do but to tell.
UPDATE runs
   SET state = 'closed'
 WHERE run_id = $1
   AND state = 'ended';

-- forget_run(run_id)
-- The allocator knows, or somebody else has the lease.
DELETE FROM runs
 WHERE run_id = $1;

-- stage(path, run_id, step, is_ordinary, is_best, is_final, is_resumable, is_last, eval_loss,
--       snapshot)
-- A checkpoint folder is complete.
INSERT INTO staged (path, run_id, step, is_ordinary, is_best, is_final, is_resumable, is_last,
                    eval_loss, snapshot)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
    ON CONFLICT (path) DO NOTHING;

-- staged(run_id)
-- What waits of a run, in the order in which it was saved.
SELECT path, run_id, step, is_ordinary, is_best, is_final, is_resumable, is_last, eval_loss,
       snapshot
  FROM staged
 WHERE run_id = $1
 ORDER BY snapshot, step;

-- unstage(path)
-- It is committed, or given up.
DELETE FROM staged
 WHERE path = $1;

-- note_commit(run_id, snapshot)
-- A checkpoint of a state as old as this is in the store.
UPDATE runs
   SET committed = MAX(COALESCE(committed, $2), $2)
 WHERE run_id = $1;
