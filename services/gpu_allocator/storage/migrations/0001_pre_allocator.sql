-- migrate:up
SET LOCAL lock_timeout = '5s';
SET LOCAL statement_timeout = '60s';

-- The fencing number of leases. Drawn while the job and the GPUs are locked, so that it grows for
-- each of them.
CREATE SEQUENCE lease_epoch AS bigint;

-- Machines with GPUs; they belong to no tenant.
CREATE TABLE nodes (
    node_id text PRIMARY KEY,
    tenant text NOT NULL DEFAULT '' CHECK (tenant = ''),
    name text NOT NULL UNIQUE,
    incarnation bigint NOT NULL CHECK (incarnation >= 0),
    boot_id text NOT NULL,
    sync_sequence bigint NOT NULL CHECK (sync_sequence >= 0),
    sync_time timestamptz,
    is_draining boolean NOT NULL
);
-- Rewritten every two seconds; room for the next version on the same page.
ALTER TABLE nodes SET (fillfactor = 50, autovacuum_vacuum_threshold = 500);

-- The legal moves of a lease, the same as MOVES in domain/lease.py.
CREATE TABLE lease_moves (
    tenant text NOT NULL DEFAULT '' CHECK (tenant = ''),
    from_phase text NOT NULL,
    to_phase text NOT NULL,
    PRIMARY KEY (from_phase, to_phase)
);
INSERT INTO lease_moves (from_phase, to_phase)
VALUES ('GRANTED', 'STARTING'),
       ('GRANTED', 'RUNNING'),
       ('GRANTED', 'DRAINING'),
       ('GRANTED', 'CLOSED'),
       ('STARTING', 'RUNNING'),
       ('STARTING', 'DRAINING'),
       ('STARTING', 'LOST'),
       ('STARTING', 'CLOSED'),
       ('RUNNING', 'DRAINING'),
       ('RUNNING', 'LOST'),
       ('RUNNING', 'CLOSED'),
       ('DRAINING', 'LOST'),
       ('DRAINING', 'CLOSED'),
       ('LOST', 'CLOSED');

-- GPUs promised to one attempt of a job.
CREATE TABLE leases (
    lease_id text PRIMARY KEY,
    tenant text NOT NULL CHECK (tenant <> ''),
    project text NOT NULL,
    job_id text NOT NULL,
    attempt integer NOT NULL CHECK (attempt >= 1),
    run_id text NOT NULL,
    epoch bigint NOT NULL UNIQUE CHECK (epoch >= 1),
    node_id text NOT NULL REFERENCES nodes,
    tier text NOT NULL,
    ordinals integer[] NOT NULL CHECK (cardinality(ordinals) >= 1),
    funded_duration interval NOT NULL,
    deadline_duration interval,
    phase text NOT NULL
        CHECK (phase IN ('GRANTED', 'STARTING', 'RUNNING', 'DRAINING', 'LOST', 'CLOSED')),
    version bigint NOT NULL CHECK (version >= 1),
    is_offered boolean NOT NULL,
    grant_time timestamptz NOT NULL,
    running_time timestamptz CHECK (running_time >= grant_time),
    progress_time timestamptz CHECK (progress_time >= running_time),
    end_time timestamptz CHECK (end_time >= running_time),
    alive_time timestamptz CHECK (alive_time >= grant_time),
    stop_time timestamptz,
    stop_reason text NOT NULL,
    funded_until timestamptz,
    committed_time timestamptz CHECK (committed_time >= running_time),
    close_time timestamptz CHECK (close_time >= grant_time),
    close_reason text NOT NULL,
    close_message text NOT NULL,
    pids bigint[] NOT NULL,
    -- Order in which changes were committed; the cursor of ListLeaseIntervals.
    change_number bigint NOT NULL UNIQUE,
    UNIQUE (tenant, job_id, attempt),
    CHECK ((phase = 'CLOSED') = (close_time IS NOT NULL)),
    CHECK ((phase IN ('LOST', 'CLOSED')) = (close_reason <> '')),
    CHECK ((stop_time IS NOT NULL) = (stop_reason <> '')),
    CHECK ((running_time IS NOT NULL) = (funded_until IS NOT NULL)),
    CHECK (running_time IS NOT NULL OR (end_time IS NULL AND committed_time IS NULL))
);
-- A job has at most one lease for which a node works.
CREATE UNIQUE INDEX one_live_lease_per_job ON leases (tenant, job_id)
 WHERE phase IN ('GRANTED', 'STARTING', 'RUNNING', 'DRAINING');
CREATE INDEX leases_open_of_node ON leases (node_id) WHERE phase <> 'CLOSED';
ALTER TABLE leases SET (fillfactor = 70, autovacuum_vacuum_threshold = 500);

-- Devices; tenant-free like their nodes.
CREATE TABLE gpus (
    gpu_id text PRIMARY KEY,
    tenant text NOT NULL DEFAULT '' CHECK (tenant = ''),
    node_id text NOT NULL REFERENCES nodes,
    ordinal integer NOT NULL CHECK (ordinal >= 0),
    tier text NOT NULL,
    memory_bytes bigint NOT NULL CHECK (memory_bytes >= 0),
    device_id text NOT NULL,
    state text NOT NULL CHECK (state IN ('FREE', 'HELD', 'CLEARING', 'QUARANTINED', 'ABSENT')),
    lease_id text REFERENCES leases,
    epoch bigint NOT NULL CHECK (epoch >= 0),
    state_time timestamptz NOT NULL,
    UNIQUE (node_id, ordinal),
    CHECK (state <> 'HELD' OR lease_id IS NOT NULL),
    CHECK (state NOT IN ('FREE', 'QUARANTINED', 'ABSENT') OR lease_id IS NULL)
);
CREATE INDEX gpus_free ON gpus (tier) WHERE state = 'FREE';

-- Which lease had which GPU when, until its processes were proven dead. The constraint is the last
-- line of defence; the state on the locked row of gpus is the first.
CREATE TABLE gpu_holds (
    gpu_id text NOT NULL REFERENCES gpus,
    lease_id text NOT NULL REFERENCES leases,
    tenant text NOT NULL CHECK (tenant <> ''),
    held tstzrange NOT NULL,
    PRIMARY KEY (lease_id, gpu_id),
    CONSTRAINT one_lease_per_gpu EXCLUDE USING gist (gpu_id WITH =, held WITH &&)
);
CREATE INDEX gpu_holds_open ON gpu_holds (gpu_id) WHERE upper_inf(held);

-- The newest attempt and epoch of a job; locked while a lease is granted to it.
CREATE TABLE job_fences (
    tenant text NOT NULL CHECK (tenant <> ''),
    job_id text NOT NULL,
    attempt integer NOT NULL CHECK (attempt >= 0),
    epoch bigint NOT NULL CHECK (epoch >= 0),
    PRIMARY KEY (tenant, job_id)
);

-- When a replica last could write, and when none could.
CREATE TABLE heartbeat (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    tenant text NOT NULL DEFAULT '' CHECK (tenant = ''),
    beat_time timestamptz NOT NULL
);
ALTER TABLE heartbeat SET (fillfactor = 10);
CREATE TABLE outages (
    begin_time timestamptz PRIMARY KEY,
    tenant text NOT NULL DEFAULT '' CHECK (tenant = ''),
    end_time timestamptz NOT NULL,
    CHECK (end_time > begin_time)
);

-- The last change number given. Its row stays locked until the change is committed, so that
-- numbers appear in their order and a cursor never passes one that is still to come.
CREATE TABLE lease_changes (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    tenant text NOT NULL DEFAULT '' CHECK (tenant = ''),
    last_number bigint NOT NULL
);
ALTER TABLE lease_changes SET (fillfactor = 10);
INSERT INTO lease_changes (last_number) VALUES (0);

CREATE FUNCTION check_lease_change() RETURNS trigger
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    IF OLD.phase = 'CLOSED' THEN
        RAISE EXCEPTION 'lease % is closed', OLD.lease_id USING ERRCODE = 'check_violation';
    END IF;
    IF NEW.phase <> OLD.phase AND NOT EXISTS (
        SELECT FROM lease_moves WHERE from_phase = OLD.phase AND to_phase = NEW.phase
    ) THEN
        RAISE EXCEPTION 'lease %: % -> %', OLD.lease_id, OLD.phase, NEW.phase
            USING ERRCODE = 'check_violation';
    END IF;
    IF NEW.stop_time > OLD.stop_time
        OR (OLD.stop_time IS NOT NULL AND NEW.stop_time IS NULL)
        OR (OLD.running_time IS NOT NULL AND NEW.running_time IS DISTINCT FROM OLD.running_time)
        OR (OLD.end_time IS NOT NULL AND NEW.end_time IS DISTINCT FROM OLD.end_time)
        OR NEW.alive_time < OLD.alive_time
        OR (NEW.tenant, NEW.job_id, NEW.attempt, NEW.epoch, NEW.node_id, NEW.grant_time)
            IS DISTINCT FROM
           (OLD.tenant, OLD.job_id, OLD.attempt, OLD.epoch, OLD.node_id, OLD.grant_time)
    THEN
        RAISE EXCEPTION 'lease %: a billed instant or the identity was rewritten', OLD.lease_id
            USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END
$$;
CREATE TRIGGER check_lease_change BEFORE UPDATE ON leases
FOR EACH ROW EXECUTE FUNCTION check_lease_change();

-- An epoch only grows, per GPU and per job.
CREATE FUNCTION check_epoch_grows() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.epoch < OLD.epoch THEN
        RAISE EXCEPTION 'epoch % after %', NEW.epoch, OLD.epoch USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END
$$;
CREATE TRIGGER check_epoch_grows BEFORE UPDATE ON gpus
FOR EACH ROW EXECUTE FUNCTION check_epoch_grows();
CREATE TRIGGER check_epoch_grows BEFORE UPDATE ON job_fences
FOR EACH ROW EXECUTE FUNCTION check_epoch_grows();

-- The table of moves is part of the schema, not of the data.
REVOKE INSERT, UPDATE, DELETE ON lease_moves FROM gpu_allocator;
