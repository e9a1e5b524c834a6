-- migrate:up
CREATE TABLE api_keys (
    key_id        text PRIMARY KEY,
    tenant        text NOT NULL CHECK (tenant <> ''),
    project       text NOT NULL CHECK (project <> ''),
    name          text NOT NULL,
    role          text NOT NULL CHECK (role IN ('member', 'admin', 'operator')),
    prefix        text NOT NULL,
    secret_sha256 text NOT NULL UNIQUE CHECK (secret_sha256 ~ '^[0-9a-f]{64}$'),
    create_time   timestamptz NOT NULL,
    expire_time   timestamptz,
    revoke_time   timestamptz
);
CREATE INDEX api_keys_by_tenant ON api_keys (tenant, create_time DESC);
