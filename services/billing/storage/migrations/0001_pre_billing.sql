-- migrate:up
SET LOCAL lock_timeout = '5s';
SET LOCAL statement_timeout = '60s';

-- Published price lists; the newest is in force. tenant is always '': prices are the platform's.
CREATE TABLE rate_versions (
    rate_version bigint PRIMARY KEY CHECK (rate_version > 0),
    tenant text NOT NULL DEFAULT '' CHECK (tenant = ''),
    currency text NOT NULL CHECK (currency ~ '^[A-Z]{3}$'),
    publish_time timestamptz NOT NULL DEFAULT clock.now(),
    published_by text NOT NULL
);

CREATE TABLE rates (
    rate_version bigint NOT NULL REFERENCES rate_versions (rate_version),
    tenant text NOT NULL DEFAULT '' CHECK (tenant = ''),
    tier text NOT NULL CHECK (tier <> ''),
    micro_per_hour bigint NOT NULL CHECK (micro_per_hour BETWEEN 0 AND 1000000000000),
    PRIMARY KEY (rate_version, tier),
    -- For price locks to point at: a locked price is a published one.
    UNIQUE (rate_version, tier, micro_per_hour)
);

-- What billing knows of a job. Every change of its money locks this row first.
CREATE TABLE jobs (
    tenant text NOT NULL CHECK (tenant <> ''),
    job_id text NOT NULL,
    project text NOT NULL,
    -- Grows with every event about the job.
    version bigint NOT NULL DEFAULT 0,
    -- Hold whose money is set aside; absent when nothing is.
    open_ordinal integer,
    -- How often money was set aside.
    opening_count integer NOT NULL DEFAULT 0,
    held_micros bigint NOT NULL DEFAULT 0 CHECK (held_micros >= 0),
    -- What the scheduler last said.
    rest_version bigint NOT NULL DEFAULT 0,
    is_resting boolean NOT NULL DEFAULT false,
    change_time timestamptz,
    create_time timestamptz NOT NULL DEFAULT clock.now(),
    PRIMARY KEY (tenant, job_id),
    CHECK (open_ordinal IS NOT NULL OR held_micros = 0)
);

CREATE INDEX jobs_with_hold ON jobs (tenant, job_id) WHERE open_ordinal IS NOT NULL;

-- Authorisations of a job.
CREATE TABLE holds (
    tenant text NOT NULL,
    job_id text NOT NULL,
    ordinal integer NOT NULL CHECK (ordinal > 0),
    currency text NOT NULL CHECK (currency ~ '^[A-Z]{3}$'),
    max_cost_micros bigint NOT NULL CHECK (max_cost_micros > 0),
    max_duration interval CHECK (max_duration > '0'),
    gpu_count integer NOT NULL CHECK (gpu_count > 0),
    tiers text[] NOT NULL CHECK (cardinality(tiers) > 0),
    rate_version bigint NOT NULL REFERENCES rate_versions (rate_version),
    place_time timestamptz NOT NULL,
    open_time timestamptz NOT NULL,
    PRIMARY KEY (tenant, job_id, ordinal),
    FOREIGN KEY (tenant, job_id) REFERENCES jobs (tenant, job_id),
    UNIQUE (tenant, job_id, ordinal, rate_version)
);

ALTER TABLE jobs ADD FOREIGN KEY (tenant, job_id, open_ordinal)
    REFERENCES holds (tenant, job_id, ordinal);

-- Prices that a hold locked; they stay whatever is published later.
CREATE TABLE hold_prices (
    tenant text NOT NULL,
    job_id text NOT NULL,
    ordinal integer NOT NULL,
    rate_version bigint NOT NULL,
    tier text NOT NULL,
    micro_per_hour bigint NOT NULL,
    PRIMARY KEY (tenant, job_id, ordinal, tier),
    FOREIGN KEY (tenant, job_id, ordinal, rate_version)
        REFERENCES holds (tenant, job_id, ordinal, rate_version),
    FOREIGN KEY (rate_version, tier, micro_per_hour)
        REFERENCES rates (rate_version, tier, micro_per_hour)
);

-- Leases as the allocator last told of them; one row a lease, however often it is told.
CREATE TABLE usage_records (
    lease_id text PRIMARY KEY,
    tenant text NOT NULL,
    project text NOT NULL,
    job_id text NOT NULL,
    attempt integer NOT NULL,
    epoch bigint NOT NULL CHECK (epoch > 0),
    tier text NOT NULL,
    gpu_count integer NOT NULL CHECK (gpu_count > 0),
    phase text NOT NULL
        CHECK (phase IN ('GRANTED', 'STARTING', 'RUNNING', 'DRAINING', 'LOST', 'CLOSED')),
    close_reason text NOT NULL,
    version bigint NOT NULL CHECK (version > 0),
    grant_time timestamptz NOT NULL,
    running_time timestamptz,
    end_time timestamptz CHECK (end_time >= running_time),
    alive_time timestamptz,
    stop_time timestamptz,
    funded_until timestamptz,
    committed_time timestamptz,
    -- Hold whose prices apply; 0 for none.
    hold_ordinal integer NOT NULL CHECK (hold_ordinal >= 0),
    FOREIGN KEY (tenant, job_id) REFERENCES jobs (tenant, job_id),
    CHECK (end_time IS NULL OR running_time IS NOT NULL)
);

CREATE INDEX usage_records_of_job ON usage_records (tenant, job_id);

-- What the ledger has of each price line.
CREATE TABLE charge_lines (
    tenant text NOT NULL,
    job_id text NOT NULL,
    hold_ordinal integer NOT NULL,
    tier text NOT NULL,
    gpu_count integer NOT NULL CHECK (gpu_count > 0),
    micro_per_hour bigint NOT NULL,
    billed_seconds bigint NOT NULL CHECK (billed_seconds >= 0),
    amount_micros bigint NOT NULL CHECK (amount_micros >= 0),
    -- Bookings of the line so far.
    revision integer NOT NULL CHECK (revision > 0),
    PRIMARY KEY (tenant, job_id, hold_ordinal, tier, gpu_count),
    FOREIGN KEY (tenant, job_id, hold_ordinal, tier)
        REFERENCES hold_prices (tenant, job_id, ordinal, tier)
);

-- Balances; credits raise them, debits lower them. Locked in the order of their names.
CREATE TABLE accounts (
    tenant text NOT NULL CHECK (tenant <> ''),
    account text NOT NULL CHECK (account IN ('cash', 'credit', 'held', 'revenue')),
    currency text NOT NULL CHECK (currency ~ '^[A-Z]{3}$'),
    balance_micros bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant, account),
    CHECK (account = 'cash' OR balance_micros >= 0)
);

-- The ledger: written once, never changed.
CREATE TABLE ledger_transactions (
    transaction_id text PRIMARY KEY,
    ledger_number bigint GENERATED ALWAYS AS IDENTITY,
    tenant text NOT NULL,
    kind text NOT NULL CHECK (kind IN ('top_up', 'hold', 'charge', 'refund', 'release')),
    job_id text NOT NULL,
    -- The price line of a charge or refund.
    hold_ordinal integer,
    tier text,
    gpu_count integer,
    cause text NOT NULL,
    create_time timestamptz NOT NULL DEFAULT clock.now(),
    UNIQUE (transaction_id, tenant),
    CHECK ((job_id = '') = (kind = 'top_up')),
    CHECK ((kind IN ('charge', 'refund')) = (hold_ordinal IS NOT NULL)),
    CHECK ((hold_ordinal IS NULL) = (tier IS NULL)),
    CHECK ((hold_ordinal IS NULL) = (gpu_count IS NULL))
);

CREATE INDEX ledger_of_tenant ON ledger_transactions (tenant, ledger_number);
CREATE INDEX ledger_of_job ON ledger_transactions (tenant, job_id, ledger_number);

CREATE TABLE ledger_entries (
    transaction_id text NOT NULL,
    tenant text NOT NULL,
    account text NOT NULL,
    side text NOT NULL CHECK (side IN ('debit', 'credit')),
    micros bigint NOT NULL CHECK (micros > 0),
    PRIMARY KEY (transaction_id, account, side),
    FOREIGN KEY (transaction_id, tenant) REFERENCES ledger_transactions (transaction_id, tenant),
    FOREIGN KEY (tenant, account) REFERENCES accounts (tenant, account)
);

-- Places up to which other services' changes were looked at.
CREATE TABLE cursors (
    cursor_name text PRIMARY KEY,
    tenant text NOT NULL DEFAULT '',
    cursor_value text NOT NULL
);

-- Looked at when a transaction commits, for its sides are written one by one.
CREATE FUNCTION check_balance() RETURNS trigger
  LANGUAGE plpgsql
  SET search_path FROM CURRENT
  AS $$
BEGIN
    IF NOT EXISTS (
        SELECT
          FROM ledger_entries AS e
         WHERE e.transaction_id = NEW.transaction_id
        HAVING sum(CASE e.side WHEN 'credit' THEN e.micros ELSE -e.micros END) = 0
    ) THEN
        RAISE EXCEPTION 'ledger transaction % does not balance', NEW.transaction_id
            USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END
$$;
CREATE CONSTRAINT TRIGGER ledger_transactions_balance AFTER INSERT ON ledger_transactions
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION check_balance();
CREATE CONSTRAINT TRIGGER ledger_entries_balance AFTER INSERT ON ledger_entries
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION check_balance();

-- What was booked, published or locked stays as it is, whoever asks.
CREATE FUNCTION refuse_change() RETURNS trigger
  LANGUAGE plpgsql
  AS $$
BEGIN
    RAISE EXCEPTION '% is only ever added to', TG_TABLE_NAME
        USING ERRCODE = 'insufficient_privilege';
END
$$;
CREATE TRIGGER ledger_transactions_stay BEFORE UPDATE OR DELETE OR TRUNCATE ON ledger_transactions
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
CREATE TRIGGER ledger_entries_stay BEFORE UPDATE OR DELETE OR TRUNCATE ON ledger_entries
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
CREATE TRIGGER rate_versions_stay BEFORE UPDATE OR DELETE OR TRUNCATE ON rate_versions
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
CREATE TRIGGER rates_stay BEFORE UPDATE OR DELETE OR TRUNCATE ON rates
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

REVOKE UPDATE, DELETE, TRUNCATE ON ledger_transactions, ledger_entries, rate_versions, rates
  FROM billing;
REVOKE DELETE, TRUNCATE ON accounts, usage_records, charge_lines, holds, jobs FROM billing;
REVOKE UPDATE, TRUNCATE ON hold_prices FROM billing;
