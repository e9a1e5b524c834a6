-- Statements of the scheduler; a tenant is part of every one that serves a user.

-- now()
-- The one clock of jobs, leases and money.
SELECT clock.now();

-- save_plan(tenant, project, plan_digest, body, create_time, expire_time)
-- Keep a plan; the same one made again lives longer.
INSERT INTO plans (tenant, project, plan_digest, body, create_time, expire_time)
VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (tenant, project, plan_digest) DO UPDATE
   SET body = EXCLUDED.body,
       create_time = EXCLUDED.create_time,
       expire_time = EXCLUDED.expire_time;

-- plan_of(tenant, project, plan_digest)
-- One plan, expired or not.
SELECT body, create_time, expire_time
  FROM plans
 WHERE tenant = $1 AND project = $2 AND plan_digest = $3;

-- forget_plans(before)
-- Drop plans that expired long ago; until then an answer can say that they expired.
DELETE FROM plans
 WHERE expire_time < $1;

-- reserve_key(tenant, scope, request_id, fingerprint)
-- Take a request key, or take it again for the same request; no row means that it is another's or done.
INSERT INTO request_keys AS known (tenant, scope, request_id, fingerprint, create_time)
VALUES ($1, $2, $3, $4, clock_timestamp())
ON CONFLICT (tenant, scope, request_id) DO UPDATE
   SET fingerprint = EXCLUDED.fingerprint,
       create_time = EXCLUDED.create_time
 WHERE known.job_id IS NULL
   AND (known.fingerprint = EXCLUDED.fingerprint
        OR known.create_time < EXCLUDED.create_time - interval '10 minutes')
RETURNING fingerprint;

-- complete_key(tenant, scope, request_id, fingerprint, job_id)
-- Bind a request key to its job; no row means that an equal request was faster, or that it is another's.
INSERT INTO request_keys AS known (tenant, scope, request_id, fingerprint, job_id, create_time)
VALUES ($1, $2, $3, $4, $5, clock_timestamp())
ON CONFLICT (tenant, scope, request_id) DO UPDATE
   SET job_id = EXCLUDED.job_id
 WHERE known.job_id IS NULL AND known.fingerprint = EXCLUDED.fingerprint
RETURNING fingerprint;

-- key_of(tenant, scope, request_id)
-- What a request key stands for.
SELECT fingerprint, job_id
  FROM request_keys
 WHERE tenant = $1 AND scope = $2 AND request_id = $3;

-- release_key(tenant, scope, request_id, fingerprint)
-- Give up the key of a request that was refused, so that a corrected one may use it.
DELETE FROM request_keys
 WHERE tenant = $1 AND scope = $2 AND request_id = $3 AND fingerprint = $4 AND job_id IS NULL;

-- insert_job(job_id, tenant, project, principal, name, spec, plan_digest, model_id, model_name,
--   model_revision, dataset_id, dataset_revision, validation_dataset_id, validation_revision,
--   total_steps, tiers, gpu_count, priority, backup_after, currency, max_cost_micros, max_duration,
--   state, state_message, version, run_ordinal, fault_count, hold_ordinal, create_time, update_time,
--   queue_time, wait_time)
-- Store a new job and wake whoever waits for jobs.
WITH added AS (
    INSERT INTO jobs (job_id, tenant, project, principal, name, spec, plan_digest, model_id,
        model_name, model_revision, dataset_id, dataset_revision, validation_dataset_id,
        validation_revision, total_steps, tiers, gpu_count, priority, backup_after, currency,
        max_cost_micros, max_duration, state, state_message, version, run_ordinal, fault_count,
        hold_ordinal, create_time, update_time, queue_time, wait_time)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19,
        $20, $21, $22, $23, $24, $25, $26, $27, $28, $29, $30, $31, $32)
    RETURNING job_id
)
SELECT pg_notify('job_changed', job_id)
  FROM added;

-- save_job(job_id, tenant, version, state, end_reason, state_message, run_ordinal, fault_count,
--   hold_ordinal, currency, max_cost_micros, max_duration, update_time, queue_time, wait_time,
--   not_before, start_time, stop_time, finish_time)
-- Store the next version of a job; no row means that someone was faster.
WITH saved AS (
    UPDATE jobs
       SET version = $3,
           state = $4,
           end_reason = $5,
           state_message = $6,
           run_ordinal = $7,
           fault_count = $8,
           hold_ordinal = $9,
           currency = $10,
           max_cost_micros = $11,
           max_duration = $12,
           update_time = $13,
           queue_time = $14,
           wait_time = $15,
           not_before = $16,
           start_time = $17,
           stop_time = $18,
           finish_time = $19,
           change_xid = pg_current_xact_id()
     WHERE job_id = $1 AND tenant = $2 AND version = $3 - 1
    RETURNING job_id
)
SELECT pg_notify('job_changed', job_id)
  FROM saved;

-- job_of(tenant, project, job_id)
-- One job of a tenant; a null project stands for all of them.
SELECT job_id, tenant, project, principal, spec, plan_digest, model_id, model_name, model_revision,
       dataset_id, dataset_revision, validation_dataset_id, validation_revision, total_steps,
       currency, max_cost_micros, max_duration, state, end_reason, state_message, version,
       run_ordinal, fault_count, hold_ordinal, create_time, update_time, queue_time, wait_time,
       not_before, start_time, stop_time, finish_time
  FROM jobs
 WHERE tenant = $1 AND ($2::text IS NULL OR project = $2) AND job_id = $3;

-- lock_job(tenant, project, job_id)
-- The same, and nobody else changes it until the end of the transaction.
SELECT job_id, tenant, project, principal, spec, plan_digest, model_id, model_name, model_revision,
       dataset_id, dataset_revision, validation_dataset_id, validation_revision, total_steps,
       currency, max_cost_micros, max_duration, state, end_reason, state_message, version,
       run_ordinal, fault_count, hold_ordinal, create_time, update_time, queue_time, wait_time,
       not_before, start_time, stop_time, finish_time
  FROM jobs
 WHERE tenant = $1 AND ($2::text IS NULL OR project = $2) AND job_id = $3
   FOR NO KEY UPDATE;

-- jobs_listed(tenant, project, states, name_contains, before_time, before_id, limit)
-- A page of jobs, newest first, after the last one of the page before.
SELECT job_id, tenant, project, principal, spec, plan_digest, model_id, model_name, model_revision,
       dataset_id, dataset_revision, validation_dataset_id, validation_revision, total_steps,
       currency, max_cost_micros, max_duration, state, end_reason, state_message, version,
       run_ordinal, fault_count, hold_ordinal, create_time, update_time, queue_time, wait_time,
       not_before, start_time, stop_time, finish_time
  FROM jobs
 WHERE tenant = $1
   AND project = $2
   AND (cardinality($3::text[]) = 0 OR state = ANY ($3))
   AND ($4::text = '' OR strpos(lower(name), lower($4)) > 0)
   AND ($5::timestamptz IS NULL OR (create_time, job_id) < ($5, $6::text))
 ORDER BY create_time DESC, job_id DESC
 LIMIT $7;

-- jobs_waiting(tenant)
-- The queue as placement sees it; a null tenant stands for all of them.
SELECT job_id, tenant, project, priority, queue_time, wait_time, not_before, tiers, backup_after,
       gpu_count, run_ordinal
  FROM jobs
 WHERE state = 'QUEUED' AND ($1::text IS NULL OR tenant = $1);

-- shares(tenant)
-- The GPUs that each project holds, and when a run of it last began in a day; a null tenant stands for all of them.
SELECT had.tenant, had.project, sum(had.gpu_count) AS gpu_count, max(had.turn_time) AS turn_time
  FROM (
           SELECT tenant, project, gpu_count, NULL::timestamptz AS turn_time
             FROM jobs
            WHERE state IN ('STARTING', 'RUNNING', 'STOPPING')
            UNION ALL
           SELECT tenant, project, 0, create_time
             FROM runs
            WHERE create_time > clock.now() - interval '1 day'
       ) AS had
 WHERE $1::text IS NULL OR had.tenant = $1
 GROUP BY had.tenant, had.project;

-- runs_to_stop()
-- Live runs of jobs that are stopping.
SELECT runs.lease_id, jobs.tenant, jobs.project, jobs.stop_time
  FROM jobs
  JOIN runs ON runs.job_id = jobs.job_id AND runs.end_reason IS NULL
 WHERE jobs.state = 'STOPPING'
 ORDER BY jobs.stop_time;

-- jobs_changed_since(after_xid, after_id, limit)
-- Jobs in the order of their last changes; one whose transaction may still be overtaken waits.
SELECT job_id, tenant, state, end_reason, version, update_time, change_xid::text AS change_xid
  FROM jobs
 WHERE (change_xid, job_id) > ($1::text::xid8, $2::text)
   AND change_xid < pg_snapshot_xmin(pg_current_snapshot())
 ORDER BY change_xid, job_id
 LIMIT $3;

-- insert_run(run_id, job_id, tenant, project, ordinal, lease_id, epoch, tier, lease_version,
--   create_time)
-- Store a run that has its lease; the one live run of its job.
INSERT INTO runs (run_id, job_id, tenant, project, ordinal, lease_id, epoch, tier, lease_version,
    end_message, create_time)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, '', $10);

-- save_run(run_id, lease_version, end_reason, end_message, finish_time)
-- Store what a newer version of its lease said; an ended run changes no more.
UPDATE runs
   SET lease_version = $2,
       end_reason = $3,
       end_message = $4,
       finish_time = $5
 WHERE run_id = $1 AND lease_version < $2 AND end_reason IS NULL
RETURNING run_id;

-- run_of_lease(tenant, lease_id)
-- The run that has a lease.
SELECT run_id, job_id, tenant, project, ordinal, lease_id, epoch, tier, lease_version, end_reason,
       end_message, create_time, finish_time
  FROM runs
 WHERE tenant = $1 AND lease_id = $2;

-- runs_of(tenant, job_id)
-- All runs of a job, newest last.
SELECT run_id, job_id, tenant, project, ordinal, lease_id, epoch, tier, lease_version, end_reason,
       end_message, create_time, finish_time
  FROM runs
 WHERE tenant = $1 AND job_id = $2
 ORDER BY ordinal;

-- runs_live(older_than)
-- Runs without an end that were created before an instant.
SELECT run_id, job_id, tenant, project, ordinal, lease_id, epoch, tier, lease_version, end_reason,
       end_message, create_time, finish_time
  FROM runs
 WHERE end_reason IS NULL AND create_time < $1
 ORDER BY create_time;

-- save_steps(run_id, tenant, epoch, sequence, step, total_steps, remaining_seconds, step_values)
-- Note how far the newest run of a job is; older epochs and older reports change nothing.
INSERT INTO job_progress AS known (job_id, tenant, step_epoch, step_sequence, step, total_steps,
    remaining_seconds, step_values)
SELECT runs.job_id, runs.tenant, $3, $4, $5, $6, $7, $8
  FROM runs
 WHERE runs.run_id = $1 AND runs.tenant = $2 AND runs.epoch = $3
   AND NOT EXISTS (
       SELECT FROM runs AS newer
        WHERE newer.job_id = runs.job_id AND newer.ordinal > runs.ordinal)
ON CONFLICT (job_id) DO UPDATE
   SET step_epoch = EXCLUDED.step_epoch,
       step_sequence = EXCLUDED.step_sequence,
       step = EXCLUDED.step,
       total_steps = EXCLUDED.total_steps,
       remaining_seconds = EXCLUDED.remaining_seconds,
       step_values = EXCLUDED.step_values
 WHERE (known.step_epoch, known.step_sequence) < (EXCLUDED.step_epoch, EXCLUDED.step_sequence);

-- save_evaluation(run_id, tenant, epoch, sequence, best_step, best_loss, baseline_loss, eval_loss)
-- Note the last evaluation of the newest run of a job; a baseline once known stays.
INSERT INTO job_progress AS known (job_id, tenant, evaluation_epoch, evaluation_sequence, best_step,
    best_loss, baseline_loss, eval_loss)
SELECT runs.job_id, runs.tenant, $3, $4, $5, $6, $7, $8
  FROM runs
 WHERE runs.run_id = $1 AND runs.tenant = $2 AND runs.epoch = $3
   AND NOT EXISTS (
       SELECT FROM runs AS newer
        WHERE newer.job_id = runs.job_id AND newer.ordinal > runs.ordinal)
ON CONFLICT (job_id) DO UPDATE
   SET evaluation_epoch = EXCLUDED.evaluation_epoch,
       evaluation_sequence = EXCLUDED.evaluation_sequence,
       best_step = EXCLUDED.best_step,
       best_loss = EXCLUDED.best_loss,
       baseline_loss = coalesce(EXCLUDED.baseline_loss, known.baseline_loss),
       eval_loss = EXCLUDED.eval_loss
 WHERE (known.evaluation_epoch, known.evaluation_sequence)
       < (EXCLUDED.evaluation_epoch, EXCLUDED.evaluation_sequence);

-- save_baseline(run_id, tenant, epoch, baseline_loss)
-- Note the base model's loss where a later evaluation overtook it.
UPDATE job_progress
   SET baseline_loss = coalesce(job_progress.baseline_loss, $4)
  FROM runs
 WHERE runs.run_id = $1 AND runs.tenant = $2 AND runs.epoch = $3
   AND job_progress.job_id = runs.job_id;

-- progress_of(tenant, job_ids)
-- How far jobs are.
SELECT job_id, step, total_steps, remaining_seconds, step_values, best_step, best_loss,
       baseline_loss, eval_loss
  FROM job_progress
 WHERE tenant = $1 AND job_id = ANY ($2::text[]);
