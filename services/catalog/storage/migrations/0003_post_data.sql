-- migrate:up
SET LOCAL lock_timeout = '5s';
SET LOCAL statement_timeout = '60s';

-- What `state` and `files` say now.
ALTER TABLE models DROP COLUMN is_committed;
ALTER TABLE datasets DROP COLUMN is_committed, DROP COLUMN file;

-- Token tables in the object store say it, and more.
DROP TABLE lengths;
