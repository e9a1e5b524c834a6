-- migrate:up
SET LOCAL lock_timeout = '5s';
SET LOCAL statement_timeout = '60s';

-- Two commits of a repository may hold the same bytes: each is an entry that names its commit.
ALTER TABLE models DROP CONSTRAINT models_tenant_project_name_revision_key;
ALTER TABLE datasets DROP CONSTRAINT datasets_tenant_project_name_revision_key;
