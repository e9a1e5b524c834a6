-- Statements of billing. Money is micros, times are of the one clock.

-- now()
-- The one clock of leases and money.
SELECT clock.now();

-- lock_rates()
-- One publisher at a time; the rows themselves can be locked by nobody who may not change them.
SELECT pg_advisory_xact_lock(hashtextextended('lehr.billing.rates', 0));

-- share_rates()
-- Any number may lock prices at once, but none while somebody publishes.
SELECT pg_advisory_xact_lock_shared(hashtextextended('lehr.billing.rates', 0));

-- rates_in_force()
-- The newest published prices, one row a tier.
SELECT r.rate_version, v.currency, r.tier, r.micro_per_hour
  FROM rates AS r
  JOIN rate_versions AS v USING (rate_version)
 WHERE r.rate_version = (SELECT max(rate_version) FROM rate_versions)
 ORDER BY r.tier COLLATE "C";

-- add_rate_version(rate_version, currency, published_by)
-- A new price list.
INSERT INTO rate_versions (rate_version, currency, published_by)
VALUES ($1, $2, $3);

-- add_rates(rate_version, tiers, micros_per_hour)
-- The prices of a list.
INSERT INTO rates (rate_version, tier, micro_per_hour)
SELECT $1, r.tier, r.micro_per_hour
  FROM unnest($2::text[], $3::bigint[]) AS r (tier, micro_per_hour);

-- know_job(tenant, job_id, project)
-- Make the row of a job where there is none.
INSERT INTO jobs (tenant, job_id, project)
VALUES ($1, $2, $3)
ON CONFLICT (tenant, job_id) DO NOTHING;

-- lock_job(tenant, job_id)
-- Take the lock under which all money of a job moves.
SELECT tenant, job_id, project, version, open_ordinal, opening_count, held_micros, rest_version,
       is_resting, change_time
  FROM jobs
 WHERE tenant = $1 AND job_id = $2
   FOR NO KEY UPDATE;

-- job(tenant, job_id, project)
-- A job of its owner, without a lock; services ask without a project.
SELECT tenant, job_id, project, version, open_ordinal, opening_count, held_micros, rest_version,
       is_resting, change_time
  FROM jobs
 WHERE tenant = $1 AND job_id = $2 AND project = coalesce($3, project);

-- save_job(tenant, job_id, version, open_ordinal, opening_count, held_micros)
-- Store the next version of a job; no row means that somebody was faster.
UPDATE jobs
   SET version = $3, open_ordinal = $4, opening_count = $5, held_micros = $6
 WHERE tenant = $1 AND job_id = $2 AND version = $3 - 1
RETURNING version;

-- save_rest(tenant, job_id, rest_version, is_resting, change_time)
-- Remember what the scheduler said of a job, unless it said something newer.
UPDATE jobs
   SET rest_version = $3, is_resting = $4, change_time = $5
 WHERE tenant = $1 AND job_id = $2 AND rest_version < $3;

-- declare_rest(tenant, job_id)
-- The scheduler itself says that the job rests now.
UPDATE jobs
   SET is_resting = true, change_time = clock.now()
 WHERE tenant = $1 AND job_id = $2;

-- jobs_to_settle(give_up_after)
-- Jobs that came to rest after their last lease, or their money, was given; and those whose money was set aside longer
-- ago than is waited, if that is given, while nobody speaks of a run.
SELECT j.tenant, j.job_id, j.project, j.version, j.open_ordinal, j.opening_count, j.held_micros,
       j.rest_version, j.is_resting, j.change_time
  FROM jobs AS j
  JOIN holds AS h
    ON h.tenant = j.tenant AND h.job_id = j.job_id AND h.ordinal = j.open_ordinal
 WHERE (j.is_resting AND j.change_time >= coalesce(
           (SELECT max(u.grant_time)
              FROM usage_records AS u
             WHERE u.tenant = j.tenant AND u.job_id = j.job_id
               AND u.hold_ordinal = j.open_ordinal),
           h.open_time
       ))
    OR ((j.is_resting OR j.rest_version = 0) AND h.open_time <= clock.now() - $1::interval)
 ORDER BY j.tenant, j.job_id;

-- tenants()
-- Everybody who has an account.
SELECT DISTINCT tenant
  FROM accounts
 ORDER BY tenant;

-- holds_of_job(tenant, job_id)
-- All holds of a job with the prices that they locked.
SELECT h.ordinal, h.currency, h.max_cost_micros, h.max_duration, h.gpu_count, h.tiers,
       h.rate_version, h.place_time, h.open_time,
       (SELECT jsonb_object_agg(p.tier, p.micro_per_hour)
          FROM hold_prices AS p
         WHERE p.tenant = h.tenant AND p.job_id = h.job_id AND p.ordinal = h.ordinal) AS prices
  FROM holds AS h
 WHERE h.tenant = $1 AND h.job_id = $2
 ORDER BY h.ordinal;

-- save_hold(tenant, job_id, ordinal, currency, max_cost_micros, max_duration, gpu_count, tiers,
--   rate_version, place_time, open_time)
-- A hold, new or with other terms.
INSERT INTO holds (tenant, job_id, ordinal, currency, max_cost_micros, max_duration, gpu_count,
                   tiers, rate_version, place_time, open_time)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
ON CONFLICT (tenant, job_id, ordinal) DO UPDATE
   SET currency = excluded.currency,
       max_cost_micros = excluded.max_cost_micros,
       max_duration = excluded.max_duration,
       gpu_count = excluded.gpu_count,
       tiers = excluded.tiers,
       rate_version = excluded.rate_version,
       place_time = excluded.place_time,
       open_time = excluded.open_time;

-- forget_prices(tenant, job_id, ordinal)
-- Drop the locked prices of a hold that nobody used, before it gets other terms.
DELETE FROM hold_prices
 WHERE tenant = $1 AND job_id = $2 AND ordinal = $3;

-- lock_prices(tenant, job_id, ordinal, rate_version, tiers)
-- Lock the prices of a published list; returns the locked ones.
INSERT INTO hold_prices (tenant, job_id, ordinal, rate_version, tier, micro_per_hour)
SELECT $1, $2, $3, r.rate_version, r.tier, r.micro_per_hour
  FROM rates AS r
 WHERE r.rate_version = $4 AND r.tier = ANY ($5::text[])
RETURNING tier, micro_per_hour;

-- usage_of_job(tenant, job_id)
-- All leases of a job, oldest first.
SELECT lease_id, tenant, project, job_id, attempt, epoch, tier, gpu_count, phase, close_reason,
       version, grant_time, running_time, end_time, alive_time, stop_time, funded_until,
       committed_time, hold_ordinal
  FROM usage_records
 WHERE tenant = $1 AND job_id = $2
 ORDER BY epoch;

-- save_usage(lease_id, tenant, project, job_id, attempt, epoch, tier, gpu_count, phase,
--   close_reason, version, grant_time, running_time, end_time, alive_time, stop_time, funded_until,
--   committed_time, hold_ordinal)
-- What is known of a lease now; never an older version. No row means that it is another job's.
INSERT INTO usage_records (lease_id, tenant, project, job_id, attempt, epoch, tier, gpu_count,
                           phase, close_reason, version, grant_time, running_time, end_time,
                           alive_time, stop_time, funded_until, committed_time, hold_ordinal)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19)
ON CONFLICT (lease_id) DO UPDATE
   SET phase = excluded.phase,
       close_reason = excluded.close_reason,
       version = excluded.version,
       running_time = excluded.running_time,
       end_time = excluded.end_time,
       alive_time = excluded.alive_time,
       stop_time = excluded.stop_time,
       funded_until = excluded.funded_until,
       committed_time = excluded.committed_time
 WHERE usage_records.tenant = excluded.tenant
   AND usage_records.job_id = excluded.job_id
   AND usage_records.version <= excluded.version
RETURNING lease_id;

-- lines_of_job(tenant, job_id)
-- What the ledger has of each price line.
SELECT hold_ordinal, tier, gpu_count, billed_seconds, amount_micros, revision
  FROM charge_lines
 WHERE tenant = $1 AND job_id = $2;

-- save_line(tenant, job_id, hold_ordinal, tier, gpu_count, micro_per_hour, billed_seconds,
--   amount_micros, revision)
-- The next revision of a price line; no row means that somebody was faster.
INSERT INTO charge_lines (tenant, job_id, hold_ordinal, tier, gpu_count, micro_per_hour,
                          billed_seconds, amount_micros, revision)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
ON CONFLICT (tenant, job_id, hold_ordinal, tier, gpu_count) DO UPDATE
   SET billed_seconds = excluded.billed_seconds,
       amount_micros = excluded.amount_micros,
       revision = excluded.revision
 WHERE charge_lines.revision = excluded.revision - 1
RETURNING revision;

-- open_accounts(tenant, currency)
-- Make the accounts of a tenant; returns those that are new.
INSERT INTO accounts (tenant, account, currency)
SELECT $1, a.account, $2
  FROM unnest(ARRAY['cash', 'credit', 'held', 'revenue']) WITH ORDINALITY AS a (account, place)
 ORDER BY a.place
ON CONFLICT (tenant, account) DO NOTHING
RETURNING account;

-- lock_accounts(tenant)
-- Take the lock under which a tenant's money moves.
SELECT account, balance_micros
  FROM accounts
 WHERE tenant = $1
 ORDER BY account COLLATE "C"
   FOR NO KEY UPDATE;

-- balances(tenant)
-- What a tenant has.
SELECT account, balance_micros
  FROM accounts
 WHERE tenant = $1;

-- add_transaction(transaction_id, tenant, kind, job_id, hold_ordinal, tier, gpu_count, cause)
-- Book; no row means that it is booked already.
INSERT INTO ledger_transactions (transaction_id, tenant, kind, job_id, hold_ordinal, tier,
                                 gpu_count, cause)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
ON CONFLICT (transaction_id) DO NOTHING
RETURNING transaction_id;

-- add_entry(transaction_id, tenant, account, side, micros)
-- One side of a booking.
INSERT INTO ledger_entries (transaction_id, tenant, account, side, micros)
VALUES ($1, $2, $3, $4, $5);

-- change_balance(tenant, account, change_micros)
-- Let a balance follow its entries.
UPDATE accounts
   SET balance_micros = balance_micros + $3
 WHERE tenant = $1 AND account = $2;

-- booked_micros(transaction_id, tenant)
-- The amount of a booking.
SELECT sum(micros)::bigint
  FROM ledger_entries
 WHERE transaction_id = $1 AND tenant = $2 AND side = 'credit';

-- ledger(tenant, job_id, before_number, limit, project)
-- A page of a tenant's bookings, newest first; of one project, and what is no job's, where it is given.
SELECT t.ledger_number, t.transaction_id, t.kind, t.job_id, t.cause, t.create_time,
       (SELECT jsonb_agg(
                   jsonb_build_array(e.account, e.side, e.micros) ORDER BY e.side DESC, e.account
               )
          FROM ledger_entries AS e
         WHERE e.transaction_id = t.transaction_id) AS entries
  FROM ledger_transactions AS t
 WHERE t.tenant = $1
   AND (t.job_id = $2 OR $2 = '')
   AND t.ledger_number < $3
   AND ($5::text IS NULL
        OR t.job_id = ''
        OR EXISTS (SELECT FROM jobs AS j
                    WHERE j.tenant = t.tenant AND j.job_id = t.job_id AND j.project = $5))
 ORDER BY t.ledger_number DESC
 LIMIT $4;

-- cursor_of(cursor_name)
-- Where a sweep goes on.
SELECT cursor_value
  FROM cursors
 WHERE cursor_name = $1;

-- move_cursor(cursor_name, cursor_value)
-- Remember how far a sweep has come.
INSERT INTO cursors (cursor_name, cursor_value)
VALUES ($1, $2)
ON CONFLICT (cursor_name) DO UPDATE
   SET cursor_value = excluded.cursor_value;
