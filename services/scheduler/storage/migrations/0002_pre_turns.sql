-- migrate:up
SET LOCAL lock_timeout = '5s';
SET LOCAL statement_timeout = '60s';

-- For what each project holds, and when its last run began, at every look at the queue.
CREATE INDEX jobs_live ON jobs (tenant, project)
    WHERE state IN ('STARTING', 'RUNNING', 'STOPPING');
CREATE INDEX runs_by_age ON runs (create_time);

-- The order of the queue depends on who has had what, so no index can keep it.
DROP INDEX jobs_queued;
CREATE INDEX jobs_queued ON jobs (tenant) WHERE state = 'QUEUED';
