-- Statements of an administrator. {schema} and {role} are names that bootstrap has checked, for
-- Postgres takes no parameter there.

-- try_lock(key)
-- Take the lock of this database without waiting: a statement that waits would hold a snapshot,
-- and an index that is built concurrently waits for those.
SELECT pg_try_advisory_lock($1);

-- role_exists(role)
-- Whether the server knows the role; roles belong to all its databases.
SELECT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = $1);

-- create_role()
-- A role that may log in and nothing else.
CREATE ROLE {role} LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION;

-- set_password()
-- Store a verifier; the password itself never reaches the server.
ALTER ROLE {role} PASSWORD '{verifier}';

-- set_role_limits()
-- A statement, a lock and an idle transaction that last longer are a fault.
ALTER ROLE {role} SET statement_timeout = '60s';
ALTER ROLE {role} SET lock_timeout = '10s';
ALTER ROLE {role} SET idle_in_transaction_session_timeout = '300s';

-- quoted_database()
-- The name of this database as statements need it.
SELECT quote_ident(current_database());

-- close_database()
-- Nobody enters this database or leaves tables in it without being named.
REVOKE ALL ON DATABASE {database} FROM PUBLIC;
REVOKE CREATE ON SCHEMA public FROM PUBLIC;

-- create_clock()
-- The one clock of leases and money.
CREATE EXTENSION IF NOT EXISTS btree_gist;
CREATE SCHEMA IF NOT EXISTS clock;
CREATE OR REPLACE FUNCTION clock.now() RETURNS timestamptz
  LANGUAGE sql VOLATILE PARALLEL SAFE
  AS 'SELECT pg_catalog.clock_timestamp()';
DROP TABLE IF EXISTS clock.shift;

-- create_movable_clock()
-- The clock of tests: UPDATE clock.shift SET amount = '90 minutes'.
CREATE EXTENSION IF NOT EXISTS btree_gist;
CREATE SCHEMA IF NOT EXISTS clock;
CREATE TABLE IF NOT EXISTS clock.shift (
  only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
  amount interval NOT NULL DEFAULT '0'
);
INSERT INTO clock.shift DEFAULT VALUES ON CONFLICT DO NOTHING;
CREATE OR REPLACE FUNCTION clock.now() RETURNS timestamptz
  LANGUAGE sql VOLATILE PARALLEL SAFE
  AS 'SELECT pg_catalog.clock_timestamp() + (SELECT amount FROM clock.shift)';

-- create_schema()
-- The schema of one service, its owner the administrator, and the record of its migrations.
CREATE SCHEMA IF NOT EXISTS {schema};
CREATE TABLE IF NOT EXISTS {schema}.schema_migrations (
  source text NOT NULL,
  name text NOT NULL,
  digest text NOT NULL,
  apply_time timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (source, name)
);

-- grant_schema()
-- Rows of tables to come, never their shape; before the migrations, so that one may take back.
GRANT CONNECT ON DATABASE {database} TO {role};
ALTER ROLE {role} IN DATABASE {database} SET search_path = {schema};
GRANT USAGE ON SCHEMA {schema} TO {role};
GRANT SELECT ON {schema}.schema_migrations TO {role};
ALTER DEFAULT PRIVILEGES IN SCHEMA {schema} GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO {role};
ALTER DEFAULT PRIVILEGES IN SCHEMA {schema} GRANT USAGE, SELECT ON SEQUENCES TO {role};
GRANT USAGE ON SCHEMA clock TO {role};
GRANT EXECUTE ON FUNCTION clock.now() TO {role};

-- grant_shift()
-- The movable clock is read with the rights of who asks.
GRANT SELECT ON clock.shift TO {role};

-- applied_migrations(source)
-- What this schema has applied of one source of files.
SELECT name, digest
  FROM {schema}.schema_migrations
 WHERE source = $1
 ORDER BY name;

-- record_migration(source, name, digest)
-- Remember a file and what it said.
INSERT INTO {schema}.schema_migrations (source, name, digest)
VALUES ($1, $2, $3);

-- use_schema(schema)
-- Names without a schema mean this one, for the session.
SELECT set_config('search_path', $1, false);

-- forget_settings()
-- Back to what the session began with.
RESET ALL;
