-- migrate:up
SET LOCAL lock_timeout = '5s';
SET LOCAL statement_timeout = '60s';

-- Who has ended the quarantine of a GPU, when and why; tenant-free like the GPUs.
CREATE TABLE gpu_releases (
    request_id text PRIMARY KEY,
    tenant text NOT NULL DEFAULT '' CHECK (tenant = ''),
    gpu_id text NOT NULL REFERENCES gpus,
    principal text NOT NULL CHECK (principal <> ''),
    reason text NOT NULL CHECK (reason <> ''),
    release_time timestamptz NOT NULL
);

-- What an operator vouched for is never rewritten.
REVOKE UPDATE, DELETE ON gpu_releases FROM gpu_allocator;
