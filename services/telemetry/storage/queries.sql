-- raise_fence(tenant, project, job_id, epoch)
-- Raise the fence of a job, never lower it, and lock it; no row means another project's job.
INSERT INTO jobs (tenant, project, job_id, fence_epoch)
VALUES ($1, $2, $3, $4)
ON CONFLICT (tenant, job_id) DO UPDATE
   SET fence_epoch = greatest(jobs.fence_epoch, excluded.fence_epoch)
 WHERE jobs.project = excluded.project
RETURNING fence_epoch;

-- add_run(tenant, run_id, job_id, epoch, resume_step)
-- Make a run known; no row means that the run or its epoch is known already.
INSERT INTO runs (tenant, run_id, job_id, epoch, resume_step)
VALUES ($1, $2, $3, $4, $5)
ON CONFLICT DO NOTHING
RETURNING run_id;

-- run_at(tenant, job_id, epoch)
-- The run that holds an epoch of a job.
SELECT tenant, run_id, job_id, epoch, resume_step
  FROM runs
 WHERE tenant = $1
   AND job_id = $2
   AND epoch = $3;

-- supersede(tenant, job_id, epoch, resume_step)
-- What earlier runs said of steps that a run computes anew does not count any more.
UPDATE points
   SET is_superseded = true
 WHERE tenant = $1
   AND job_id = $2
   AND epoch < $3
   AND step > $4
   AND NOT is_superseded;

-- stored_step(tenant, job_id)
-- The step up to which the loss is stored without a gap.
SELECT coalesce(max(counted.step), 0)
  FROM (SELECT step, row_number() OVER (ORDER BY step) AS place
          FROM points
         WHERE tenant = $1
           AND job_id = $2
           AND name = 'loss'
           AND step >= 1
           AND NOT is_superseded) AS counted
 WHERE counted.step = counted.place;

-- received(tenant, run_id)
-- Which reports and lines of a run are stored.
SELECT reports_received, lines_received
  FROM runs
 WHERE tenant = $1
   AND run_id = $2;

-- lock_jobs(tenants, job_ids)
-- Lock the jobs of a batch, always in one order.
SELECT j.tenant, j.job_id
  FROM jobs AS j
  JOIN unnest($1::text[], $2::text[]) AS wanted (tenant, job_id)
    ON wanted.tenant = j.tenant AND wanted.job_id = j.job_id
 ORDER BY j.tenant, j.job_id
   FOR NO KEY UPDATE OF j;

-- runs_of_jobs(tenants, job_ids)
-- Every run of these jobs, with what is stored of each.
SELECT r.tenant, r.run_id, r.job_id, r.epoch, r.resume_step, r.reports_received, r.lines_received,
       r.lines_let_through
  FROM runs AS r
  JOIN unnest($1::text[], $2::text[]) AS wanted (tenant, job_id)
    ON wanted.tenant = r.tenant AND wanted.job_id = r.job_id;

-- points_that_count(tenant, job_id, first_step, last_step)
-- Who has the word about which step, and the row. A join with the keys of a batch would say it in
-- one statement, but without statistics of a young table it is planned in quadratic time.
SELECT step, name, epoch, ctid AS row_place
  FROM points
 WHERE tenant = $1
   AND job_id = $2
   AND step BETWEEN $3 AND $4
   AND NOT is_superseded;

-- give_way(tenant, row_places)
-- These rows do not count any more; their job has been locked since they were read.
UPDATE points
   SET is_superseded = true
 WHERE ctid = ANY ($2::tid[])
   AND tenant = $1
   AND NOT is_superseded;

-- add_points(tenant, job_ids, steps, names, epochs, run_ids, sequences, values, words, times, flags)
-- Store points; the same again changes nothing, a later report of the same run replaces. Arrivals
-- follow the order given.
INSERT INTO points (
    tenant, job_id, step, name, epoch, run_id, sequence, value, word, report_time, is_superseded,
    arrival
)
SELECT $1, given.job_id, given.step, given.name, given.epoch, given.run_id, given.sequence,
       given.value, given.word, given.report_time, given.is_superseded, nextval('arrivals')
  FROM (SELECT job_id, step, name, epoch, run_id, sequence, value, word, report_time,
               is_superseded
          FROM unnest(
                   $2::text[], $3::bigint[], $4::text[], $5::bigint[], $6::text[], $7::bigint[],
                   $8::double precision[], $9::text[], $10::timestamptz[], $11::boolean[]
               ) WITH ORDINALITY AS u (
                   job_id, step, name, epoch, run_id, sequence, value, word, report_time,
                   is_superseded, place
               )
         ORDER BY u.place) AS given
ON CONFLICT (tenant, job_id, step, name, epoch) DO UPDATE
   SET run_id = excluded.run_id,
       sequence = excluded.sequence,
       value = excluded.value,
       word = excluded.word,
       report_time = excluded.report_time,
       arrival = excluded.arrival
 WHERE points.sequence < excluded.sequence;

-- save_reports(tenant, run_id, received)
-- Remember which reports of a run are stored.
UPDATE runs
   SET reports_received = $3
 WHERE tenant = $1
   AND run_id = $2;

-- save_lines(tenant, run_id, received)
-- Remember which lines of a run are stored.
UPDATE runs
   SET lines_received = $3
 WHERE tenant = $1
   AND run_id = $2;

-- add_lines(tenant, job_id, run_id, sequences, times, levels, bodies, placed_up_to)
-- Store lines, in the order of their numbers; up to one of them they get their place in the log at
-- once. The same again changes nothing.
INSERT INTO log_lines (tenant, job_id, run_id, sequence, line_time, level, body, cursor)
SELECT $1, $2, $3, given.sequence, given.line_time, given.level, given.body,
       CASE WHEN given.sequence <= $8 THEN nextval('arrivals') END
  FROM (SELECT u.sequence, u.line_time, u.level, u.body
          FROM unnest($4::bigint[], $5::timestamptz[], $6::text[], $7::text[])
               AS u (sequence, line_time, level, body)
         ORDER BY u.sequence) AS given
ON CONFLICT (tenant, run_id, sequence) DO NOTHING;

-- place_lines(tenant, run_id, watermark)
-- Give every waiting line of a run that misses none before it its place in the log, in order.
UPDATE log_lines AS l
   SET cursor = placed.cursor
  FROM (SELECT ready.row_place, nextval('arrivals') AS cursor
          FROM (SELECT ctid AS row_place
                  FROM log_lines
                 WHERE tenant = $1
                   AND run_id = $2
                   AND sequence <= $3
                   AND cursor IS NULL
                 ORDER BY sequence) AS ready) AS placed
 WHERE l.ctid = placed.row_place;

-- runs_with_stuck_lines(patience, limit)
-- Runs with lines that have waited for a missing one for too long.
SELECT DISTINCT tenant, job_id, run_id
  FROM log_lines
 WHERE cursor IS NULL
   AND receive_time < clock.now() - $1::interval
 LIMIT $2;

-- let_lines_through(tenant, run_id)
-- Wait no longer for what is missing before the last line that has come.
UPDATE runs
   SET lines_let_through = (SELECT max(l.sequence)
                              FROM log_lines AS l
                             WHERE l.tenant = $1
                               AND l.run_id = $2)
 WHERE tenant = $1
   AND run_id = $2;

-- ring(job_id)
-- Wake whoever watches the job, at commit.
SELECT pg_notify('telemetry_jobs', $1);

-- points_page(tenant, project, job_id, after_step, names, with_superseded, limit)
-- Points by step.
SELECT p.step, p.name, p.value, p.word, p.report_time, p.epoch
  FROM points AS p
  JOIN jobs AS j ON j.tenant = p.tenant AND j.job_id = p.job_id
 WHERE p.tenant = $1
   AND j.project = $2
   AND p.job_id = $3
   AND p.step > $4
   AND (cardinality($5::text[]) = 0 OR p.name = ANY ($5::text[]))
   AND ($6 OR NOT p.is_superseded)
 ORDER BY p.step, p.name, p.epoch
 LIMIT $7;

-- points_at(tenant, project, job_id, step, names, with_superseded)
-- All points of one step.
SELECT p.step, p.name, p.value, p.word, p.report_time, p.epoch
  FROM points AS p
  JOIN jobs AS j ON j.tenant = p.tenant AND j.job_id = p.job_id
 WHERE p.tenant = $1
   AND j.project = $2
   AND p.job_id = $3
   AND p.step = $4
   AND (cardinality($5::text[]) = 0 OR p.name = ANY ($5::text[]))
   AND ($6 OR NOT p.is_superseded)
 ORDER BY p.name, p.epoch;

-- points_arrived(tenant, project, job_id, after_step, names, after_arrival, limit)
-- Points that count, in the order in which they came.
SELECT p.step, p.name, p.value, p.word, p.report_time, p.epoch, p.arrival
  FROM points AS p
  JOIN jobs AS j ON j.tenant = p.tenant AND j.job_id = p.job_id
 WHERE p.tenant = $1
   AND j.project = $2
   AND p.job_id = $3
   AND p.step > $4
   AND (cardinality($5::text[]) = 0 OR p.name = ANY ($5::text[]))
   AND p.arrival > $6
   AND NOT p.is_superseded
 ORDER BY p.arrival
 LIMIT $7;

-- lines_page(tenant, project, job_id, after_cursor, from_time, to_time, levels, limit, bytes)
-- Lines by place: at most so many, and those that begin within so many bytes. found_count says how
-- many there were before the cut by bytes.
SELECT page.cursor, page.run_id, page.line_time, page.level, page.body, page.found_count
  FROM (SELECT found.cursor, found.run_id, found.line_time, found.level, found.body,
               count(*) OVER () AS found_count,
               sum(octet_length(found.body)) OVER (ORDER BY found.cursor)
                   - octet_length(found.body) AS bytes_before
          FROM (SELECT l.cursor, l.run_id, l.line_time, l.level, l.body
                  FROM log_lines AS l
                  JOIN jobs AS j ON j.tenant = l.tenant AND j.job_id = l.job_id
                 WHERE l.tenant = $1
                   AND j.project = $2
                   AND l.job_id = $3
                   AND l.cursor > $4
                   AND ($5::timestamptz IS NULL OR l.line_time >= $5)
                   AND ($6::timestamptz IS NULL OR l.line_time < $6)
                   AND (cardinality($7::text[]) = 0 OR l.level = ANY ($7::text[]))
                 ORDER BY l.cursor
                 LIMIT $8) AS found) AS page
 WHERE page.bytes_before < $9::bigint
 ORDER BY page.cursor;
