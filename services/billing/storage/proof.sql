-- The proof that the ledger equals the leases: a path of its own, in SQL alone, that shares nothing
-- with the code that charges. Statements that end with _differences answer one in words a row.

-- lease_differences(tenant, leases)
-- Leases as their owner lists them against those that billing has.
WITH theirs AS (
    SELECT t.lease_id, t.job_id, t.tier, t.gpu_count, t.phase, t.close_reason, t.version,
           t.running_time, t.end_time, t.stop_time, t.funded_until, t.committed_time
      FROM jsonb_to_recordset($2::jsonb) AS t (
               lease_id text, job_id text, tier text, gpu_count integer, phase text,
               close_reason text, version bigint, running_time timestamptz, end_time timestamptz,
               stop_time timestamptz, funded_until timestamptz, committed_time timestamptz
           )
), ours AS (
    SELECT u.lease_id, u.job_id, u.tier, u.gpu_count, u.phase, u.close_reason, u.version,
           u.running_time, u.end_time, u.stop_time, u.funded_until, u.committed_time
      FROM usage_records AS u
     WHERE u.tenant = $1
)
SELECT CASE
       WHEN o.lease_id IS NULL
       THEN 'lease ' || lease_id || ' of job ' || t.job_id || ' is not known to billing'
       WHEN t.lease_id IS NULL
       THEN 'lease ' || lease_id || ' of job ' || o.job_id || ' is not known to the allocator'
       ELSE 'lease ' || lease_id || ' of job ' || t.job_id || ' is at version ' || t.version
            || ' with the allocator and ' || o.version || ' with billing, or their times differ'
       END
  FROM theirs AS t
  FULL JOIN ours AS o USING (lease_id)
 WHERE (t.job_id, t.tier, t.gpu_count, t.phase, t.close_reason, t.version, t.running_time,
        t.end_time, t.stop_time, t.funded_until, t.committed_time)
       IS DISTINCT FROM
       (o.job_id, o.tier, o.gpu_count, o.phase, o.close_reason, o.version, o.running_time,
        o.end_time, o.stop_time, o.funded_until, o.committed_time)
 ORDER BY lease_id;

-- charge_differences(tenant)
-- What leases cost, computed again from scratch, against the ledger and what billing shows.
WITH RECURSIVE spans AS (
    SELECT u.job_id, u.epoch, u.hold_ordinal, u.tier, u.gpu_count,
           tstzrange(u.running_time, greatest(u.running_time, least(
               CASE
               WHEN u.end_time IS NULL THEN coalesce(u.alive_time, u.running_time)
               WHEN u.phase = 'LOST' THEN least(u.end_time, u.alive_time)
               ELSE u.end_time
               END,
               u.stop_time,
               u.funded_until,
               CASE
               WHEN u.phase IN ('LOST', 'CLOSED') AND u.close_reason NOT IN (
                   'COMPLETED', 'EARLY_STOPPED', 'USER_STOPPED', 'BUDGET_EXHAUSTED',
                   'DEADLINE_REACHED', 'OUT_OF_MEMORY', 'USER_ERROR'
               )
               THEN coalesce(u.committed_time, u.running_time)
               END
           ))) AS span
      FROM usage_records AS u
      JOIN hold_prices AS p
        ON p.tenant = u.tenant AND p.job_id = u.job_id AND p.ordinal = u.hold_ordinal
       AND p.tier = u.tier
     WHERE u.tenant = $1 AND u.running_time IS NOT NULL
), own AS (
    -- An instant that two leases have is the newer one's.
    SELECT s.job_id, s.hold_ordinal, s.tier, s.gpu_count,
           tstzmultirange(s.span) - coalesce(
               (SELECT range_agg(n.span) FROM spans AS n
                 WHERE n.job_id = s.job_id AND n.epoch > s.epoch),
               '{}'::tstzmultirange
           ) AS spans
      FROM spans AS s
), timed AS (
    SELECT o.job_id, o.hold_ordinal, o.tier, o.gpu_count,
           coalesce(sum(extract(epoch FROM upper(r.span) - lower(r.span))), 0) AS seconds
      FROM own AS o
      LEFT JOIN LATERAL unnest(o.spans) AS r (span) ON true
     GROUP BY o.job_id, o.hold_ordinal, o.tier, o.gpu_count
), caps AS (
    -- A later, lower authorisation counts for what was charged before too, not for what ran before.
    SELECT h.job_id, h.ordinal,
           min(h.max_cost_micros) OVER later AS micros,
           extract(epoch FROM h.max_duration) AS seconds
      FROM holds AS h
     WHERE h.tenant = $1
    WINDOW later AS (PARTITION BY h.job_id ORDER BY h.ordinal DESC)
), numbered AS (
    SELECT t.job_id, t.hold_ordinal, t.tier, t.gpu_count, t.seconds, c.seconds AS seconds_cap,
           c.micros AS micros_cap, p.micro_per_hour,
           row_number() OVER (PARTITION BY t.job_id
                              ORDER BY t.hold_ordinal, t.tier COLLATE "C", t.gpu_count) AS place
      FROM timed AS t
      JOIN caps AS c ON c.job_id = t.job_id AND c.ordinal = t.hold_ordinal
      JOIN hold_prices AS p
        ON p.tenant = $1 AND p.job_id = t.job_id AND p.ordinal = t.hold_ordinal
       AND p.tier = t.tier
), allowed AS (
    -- Line by line: no more than what the line's own hold leaves after the lines before it.
    SELECT n.job_id, n.place, a.seconds, a.seconds AS seconds_sum
      FROM numbered AS n
     CROSS JOIN LATERAL (SELECT least(n.seconds, n.seconds_cap) AS seconds) AS a
     WHERE n.place = 1
     UNION ALL
    SELECT n.job_id, n.place, a.seconds, before.seconds_sum + a.seconds
      FROM allowed AS before
      JOIN numbered AS n ON n.job_id = before.job_id AND n.place = before.place + 1
     CROSS JOIN LATERAL (
               SELECT greatest(0, least(n.seconds, n.seconds_cap - before.seconds_sum)) AS seconds
           ) AS a
), priced AS (
    -- Rounded down once a price, over all holds that locked it.
    SELECT n.job_id, n.hold_ordinal, n.tier, n.gpu_count, n.micros_cap, n.micro_per_hour,
           floor(sum(a.seconds) OVER price) AS last_second,
           floor(sum(a.seconds) OVER price - a.seconds) AS first_second
      FROM numbered AS n
      JOIN allowed AS a USING (job_id, place)
    WINDOW price AS (PARTITION BY n.job_id, n.tier, n.gpu_count, n.micro_per_hour
                     ORDER BY n.hold_ordinal)
), summed AS (
    SELECT p.job_id, p.hold_ordinal, p.tier, p.gpu_count, p.micros_cap,
           p.last_second - p.first_second AS billed_seconds,
           sum(div(p.last_second * p.gpu_count * p.micro_per_hour, 3600)
               - div(p.first_second * p.gpu_count * p.micro_per_hour, 3600)) OVER line
               AS micros_sum
      FROM priced AS p
    WINDOW line AS (PARTITION BY p.job_id
                    ORDER BY p.hold_ordinal, p.tier COLLATE "C", p.gpu_count)
), spent AS (
    -- min(sum so far, cap) line by line, in closed form, for caps of money never fall.
    SELECT s.job_id, s.hold_ordinal, s.tier, s.gpu_count, s.billed_seconds,
           s.micros_sum + least(0, min(s.micros_cap - s.micros_sum) OVER line) AS micros_reached
      FROM summed AS s
    WINDOW line AS (PARTITION BY s.job_id
                    ORDER BY s.hold_ordinal, s.tier COLLATE "C", s.gpu_count)
), owed AS (
    SELECT s.job_id, s.hold_ordinal, s.tier, s.gpu_count, s.billed_seconds,
           s.micros_reached - lag(s.micros_reached, 1, 0) OVER line AS micros
      FROM spent AS s
    WINDOW line AS (PARTITION BY s.job_id
                    ORDER BY s.hold_ordinal, s.tier COLLATE "C", s.gpu_count)
), booked AS (
    SELECT t.job_id, t.hold_ordinal, t.tier, t.gpu_count,
           sum(CASE e.side WHEN 'credit' THEN e.micros ELSE -e.micros END) AS micros
      FROM ledger_transactions AS t
      JOIN ledger_entries AS e USING (transaction_id)
     WHERE t.tenant = $1 AND t.kind IN ('charge', 'refund') AND e.account = 'revenue'
     GROUP BY t.job_id, t.hold_ordinal, t.tier, t.gpu_count
), shown AS (
    SELECT c.job_id, c.hold_ordinal, c.tier, c.gpu_count, c.billed_seconds,
           c.amount_micros AS micros
      FROM charge_lines AS c
     WHERE c.tenant = $1
)
SELECT 'job ' || job_id || ' hold ' || hold_ordinal || ' on ' || gpu_count || ' x ' || tier
       || ': its leases cost ' || coalesce(o.micros, 0) || ' micros for '
       || coalesce(o.billed_seconds, 0) || ' s, the ledger has ' || coalesce(b.micros, 0)
       || ', billing shows ' || coalesce(s.micros, 0) || ' for ' || coalesce(s.billed_seconds, 0)
       || ' s'
  FROM owed AS o
  FULL JOIN booked AS b USING (job_id, hold_ordinal, tier, gpu_count)
  FULL JOIN shown AS s USING (job_id, hold_ordinal, tier, gpu_count)
 WHERE coalesce(o.micros, 0) <> coalesce(b.micros, 0)
    OR coalesce(o.micros, 0) <> coalesce(s.micros, 0)
    OR coalesce(o.billed_seconds, 0) <> coalesce(s.billed_seconds, 0)
 ORDER BY job_id, hold_ordinal, tier;

-- unpriced_differences(tenant)
-- Leases that ran without a hold, or on a tier whose price was not locked.
SELECT 'lease ' || u.lease_id || ' of job ' || u.job_id || ' ran on ' || u.tier
       || ' without a locked price'
  FROM usage_records AS u
  LEFT JOIN hold_prices AS p
    ON p.tenant = u.tenant AND p.job_id = u.job_id AND p.ordinal = u.hold_ordinal
   AND p.tier = u.tier
 WHERE u.tenant = $1 AND u.running_time IS NOT NULL AND p.tier IS NULL
 ORDER BY u.lease_id;

-- orphan_differences(tenant)
-- Charges that name no lease of this tenant.
SELECT 'booking ' || t.transaction_id || ' charges job ' || t.job_id || ' for ' || t.gpu_count
       || ' x ' || t.tier || ', and no lease of it had that'
  FROM ledger_transactions AS t
 WHERE t.tenant = $1
   AND t.kind IN ('charge', 'refund')
   AND NOT EXISTS (
           SELECT
             FROM usage_records AS u
            WHERE u.tenant = t.tenant AND u.job_id = t.job_id AND u.tier = t.tier
              AND u.gpu_count = t.gpu_count AND u.hold_ordinal = t.hold_ordinal
              AND u.running_time IS NOT NULL
       )
 ORDER BY t.ledger_number;

-- price_differences(tenant)
-- Prices that were not those published when they were locked, and lines charged at another price.
SELECT 'job ' || p.job_id || ' hold ' || p.ordinal || ': the price of ' || p.tier || ' is '
       || p.micro_per_hour || ' micros an hour, and version ' || p.rate_version || ' says '
       || coalesce(r.micro_per_hour::text, 'nothing')
  FROM hold_prices AS p
  LEFT JOIN rates AS r ON r.rate_version = p.rate_version AND r.tier = p.tier
 WHERE p.tenant = $1 AND r.micro_per_hour IS DISTINCT FROM p.micro_per_hour
 UNION ALL
SELECT 'job ' || h.job_id || ' hold ' || h.ordinal || ' locked version ' || h.rate_version
       || ', which was not in force at ' || h.place_time
  FROM holds AS h
 WHERE h.tenant = $1
   AND h.rate_version IS DISTINCT FROM (
           SELECT max(v.rate_version) FROM rate_versions AS v WHERE v.publish_time <= h.place_time
       )
 UNION ALL
SELECT 'job ' || c.job_id || ' hold ' || c.hold_ordinal || ' is charged ' || c.micro_per_hour
       || ' micros an hour on ' || c.tier || ', and ' || p.micro_per_hour || ' is locked'
  FROM charge_lines AS c
  JOIN hold_prices AS p
    ON p.tenant = c.tenant AND p.job_id = c.job_id AND p.ordinal = c.hold_ordinal
   AND p.tier = c.tier
 WHERE c.tenant = $1 AND c.micro_per_hour <> p.micro_per_hour;

-- hold_differences(tenant)
-- Money set aside against the ledger; nothing may be left for a settled job, none above its limit.
WITH booked AS (
    SELECT t.job_id,
           sum(CASE WHEN e.account <> 'held' THEN 0 WHEN e.side = 'credit' THEN e.micros
                    ELSE -e.micros END) AS held_micros,
           sum(CASE WHEN e.account <> 'revenue' THEN 0 WHEN e.side = 'credit' THEN e.micros
                    ELSE -e.micros END) AS charged_micros
      FROM ledger_transactions AS t
      JOIN ledger_entries AS e USING (transaction_id)
     WHERE t.tenant = $1 AND t.job_id <> ''
     GROUP BY t.job_id
), limits AS (
    SELECT DISTINCT ON (h.job_id) h.job_id, h.max_cost_micros
      FROM holds AS h
     WHERE h.tenant = $1
     ORDER BY h.job_id, h.ordinal DESC
)
SELECT 'job ' || job_id || ' has ' || coalesce(j.held_micros, 0) || ' micros set aside, and '
       || coalesce(b.held_micros, 0) || ' in the ledger'
  FROM jobs AS j
  FULL JOIN booked AS b USING (job_id)
 WHERE (j.tenant = $1 OR j.tenant IS NULL)
   AND coalesce(j.held_micros, 0) <> coalesce(b.held_micros, 0)
 UNION ALL
SELECT 'job ' || j.job_id || ' is settled and ' || b.held_micros || ' micros are still held'
  FROM jobs AS j
  JOIN booked AS b USING (job_id)
 WHERE j.tenant = $1 AND j.open_ordinal IS NULL AND b.held_micros <> 0
 UNION ALL
SELECT 'job ' || b.job_id || ' is charged ' || b.charged_micros || ' micros, more than the '
       || coalesce(l.max_cost_micros, 0) || ' authorised'
  FROM booked AS b
  LEFT JOIN limits AS l USING (job_id)
 WHERE b.charged_micros > coalesce(l.max_cost_micros, 0)
 UNION ALL
SELECT 'job ' || j.job_id || ' is settled and its lease ' || u.lease_id || ' is ' || u.phase
  FROM jobs AS j
  JOIN usage_records AS u ON u.tenant = j.tenant AND u.job_id = j.job_id
 WHERE j.tenant = $1 AND j.open_ordinal IS NULL AND u.phase <> 'CLOSED';

-- balance_differences(tenant)
-- Bookings that do not balance, and accounts that are not the sum of their entries.
SELECT 'booking ' || t.transaction_id || ' does not balance'
  FROM ledger_transactions AS t
  LEFT JOIN ledger_entries AS e USING (transaction_id)
 WHERE t.tenant = $1
 GROUP BY t.transaction_id
HAVING sum(CASE e.side WHEN 'credit' THEN e.micros ELSE -e.micros END) IS DISTINCT FROM 0
 UNION ALL
SELECT 'account ' || a.account || ' has ' || a.balance_micros || ' micros, and its entries sum up to '
       || coalesce(s.micros, 0)
  FROM accounts AS a
  LEFT JOIN (
           SELECT e.account,
                  sum(CASE e.side WHEN 'credit' THEN e.micros ELSE -e.micros END) AS micros
             FROM ledger_entries AS e
            WHERE e.tenant = $1
            GROUP BY e.account
       ) AS s USING (account)
 WHERE a.tenant = $1 AND a.balance_micros <> coalesce(s.micros, 0);

-- proven(tenant)
-- How much was compared.
SELECT (SELECT count(*) FROM jobs WHERE tenant = $1) AS job_count,
       (SELECT count(*) FROM usage_records WHERE tenant = $1) AS lease_count,
       (SELECT coalesce(sum(billed_seconds), 0)::bigint FROM charge_lines WHERE tenant = $1)
           AS billed_seconds,
       (SELECT coalesce(sum(CASE side WHEN 'credit' THEN micros ELSE -micros END), 0)::bigint
          FROM ledger_entries WHERE tenant = $1 AND account = 'revenue') AS charged_micros;
