-- raise_fence(tenant, project, job_id, epoch)
-- Raise the fence of a job, never lower it; no row means that the job is another project's.
INSERT INTO jobs (tenant, project, job_id, fence_epoch)
VALUES ($1, $2, $3, $4)
ON CONFLICT (tenant, job_id) DO UPDATE
   SET fence_epoch = greatest(jobs.fence_epoch, excluded.fence_epoch)
 WHERE jobs.project = excluded.project
RETURNING tenant, project, job_id, fence_epoch, opened_epoch, resume_checkpoint_id, is_resuming,
          skipped, max_checkpoints, expected_best_epoch, expected_best_step;

-- lock_job(tenant, project, job_id)
-- Take the lock under which everything of a job changes.
SELECT tenant, project, job_id, fence_epoch, opened_epoch, resume_checkpoint_id, is_resuming,
       skipped, max_checkpoints, expected_best_epoch, expected_best_step
  FROM jobs
 WHERE tenant = $1
   AND project = $2
   AND job_id = $3
   FOR NO KEY UPDATE;

-- job_of_tenant(tenant, job_id)
-- A job that an event or the sweep speaks about, which know no project.
SELECT tenant, project, job_id, fence_epoch, opened_epoch, resume_checkpoint_id, is_resuming,
       skipped, max_checkpoints, expected_best_epoch, expected_best_step
  FROM jobs
 WHERE tenant = $1
   AND job_id = $2;

-- decide_resume(tenant, job_id, epoch, resume_checkpoint_id, skipped)
-- Remember what an epoch continues from; only while it is the fence.
UPDATE jobs
   SET opened_epoch = $3,
       resume_checkpoint_id = $4,
       is_resuming = $4::text IS NOT NULL,
       skipped = $5
 WHERE tenant = $1
   AND job_id = $2
   AND fence_epoch = $3;

-- end_resuming(tenant, job_id)
-- The run has what it needs of its resume point, or there is no run any more.
UPDATE jobs
   SET is_resuming = false
 WHERE tenant = $1
   AND job_id = $2
   AND is_resuming;

-- keep_newest(tenant, job_id, max_checkpoints)
-- How many ordinary checkpoints the job keeps.
UPDATE jobs
   SET max_checkpoints = $3
 WHERE tenant = $1
   AND job_id = $2
   AND max_checkpoints IS DISTINCT FROM $3;

-- expect_best(tenant, job_id, epoch, step)
-- Remember the newest Best that the runner of the present epoch announced.
UPDATE jobs
   SET expected_best_epoch = $3,
       expected_best_step = $4
 WHERE tenant = $1
   AND job_id = $2
   AND fence_epoch = $3
   AND (expected_best_epoch, expected_best_step) < ($3, $4);

-- add_checkpoint(checkpoint_id, tenant, project, job_id, epoch, step, is_final, is_resumable,
--                eval_loss, eval_loss_text, size_bytes)
-- Register an upload; no row means that it is registered already.
INSERT INTO checkpoints (
    checkpoint_id, tenant, project, job_id, epoch, step, state, is_final, is_resumable,
    eval_loss, eval_loss_text, size_bytes
)
VALUES ($1, $2, $3, $4, $5, $6, 'UPLOADING', $7, $8, $9, $10, $11)
ON CONFLICT (checkpoint_id) DO NOTHING
RETURNING checkpoint_id;

-- renew_upload(checkpoint_id)
-- Somebody is at it, so it is not abandoned.
UPDATE checkpoints
   SET begin_time = clock.now()
 WHERE checkpoint_id = $1
   AND state = 'UPLOADING';

-- replace_upload(checkpoint_id, version, is_final, is_resumable, eval_loss, eval_loss_text,
--                size_bytes)
-- The same step with other files or facts, before it was committed.
UPDATE checkpoints
   SET version = $2,
       is_final = $3,
       is_resumable = $4,
       eval_loss = $5,
       eval_loss_text = $6,
       size_bytes = $7,
       begin_time = clock.now()
 WHERE checkpoint_id = $1
   AND version = $2 - 1
   AND state = 'UPLOADING';

-- drop_files(checkpoint_id)
-- Forget the files of an upload, to list others.
DELETE FROM checkpoint_files
 WHERE checkpoint_id = $1;

-- add_files(checkpoint_id, tenant, names, sizes, digests)
-- List the files of an upload.
INSERT INTO checkpoint_files (checkpoint_id, tenant, name, size_bytes, sha256)
SELECT $1, $2, file.name, file.size_bytes, file.sha256
  FROM unnest($3::text[], $4::bigint[], $5::text[]) AS file (name, size_bytes, sha256);

-- whole_checkpoint(tenant, project, checkpoint_id)
-- One checkpoint in whatever state.
SELECT checkpoint_id, tenant, project, job_id, epoch, step, state, is_final, is_pinned,
       is_resumable, is_superseded, eval_loss, eval_loss_text, size_bytes, manifest_sha256,
       commit_time, delete_cause, version, files
  FROM whole_checkpoints
 WHERE tenant = $1
   AND project = $2
   AND checkpoint_id = $3;

-- series_of_job(tenant, project, job_id)
-- Every visible checkpoint of a job, and the one with the lowest loss even if it was deleted.
SELECT checkpoint_id, tenant, project, job_id, epoch, step, state, is_final, is_pinned,
       is_resumable, is_superseded, eval_loss, eval_loss_text, size_bytes, manifest_sha256,
       commit_time, delete_cause, version, files
  FROM whole_checkpoints
 WHERE tenant = $1
   AND project = $2
   AND job_id = $3
   AND (state = 'COMMITTED'
        OR checkpoint_id = (SELECT bar.checkpoint_id
                              FROM checkpoints AS bar
                             WHERE bar.tenant = $1
                               AND bar.project = $2
                               AND bar.job_id = $3
                               AND bar.eval_loss IS NOT NULL
                               AND bar.commit_time IS NOT NULL
                               AND NOT bar.is_superseded
                             ORDER BY bar.eval_loss, bar.step, bar.epoch
                             LIMIT 1))
 ORDER BY step, epoch;

-- commit_checkpoint(checkpoint_id, version, manifest_sha256)
-- Make a verified upload visible; no row means that it changed since it was read.
UPDATE checkpoints
   SET state = 'COMMITTED',
       version = $2,
       manifest_sha256 = $3,
       commit_time = clock.now()
 WHERE checkpoint_id = $1
   AND version = $2 - 1
   AND state = 'UPLOADING'
RETURNING commit_time;

-- complete_facts(checkpoint_id, version, is_final, eval_loss, eval_loss_text)
-- Add what became known about a committed checkpoint.
UPDATE checkpoints
   SET version = $2,
       is_final = $3,
       eval_loss = $4,
       eval_loss_text = $5
 WHERE checkpoint_id = $1
   AND version = $2 - 1
   AND state = 'COMMITTED';

-- drop_final(tenant, job_id, checkpoint_id)
-- Only one checkpoint of a job is final: the one that is named.
UPDATE checkpoints
   SET is_final = false,
       version = version + 1
 WHERE tenant = $1
   AND job_id = $2
   AND checkpoint_id <> $3
   AND is_final
   AND state = 'COMMITTED';

-- next_version(checkpoint_id)
-- Count a change that is told of but stored elsewhere, such as becoming Best.
UPDATE checkpoints
   SET version = version + 1
 WHERE checkpoint_id = $1
RETURNING version;

-- pin_checkpoint(checkpoint_id, version, is_pinned)
-- Keep it, or not.
UPDATE checkpoints
   SET is_pinned = $3,
       version = $2
 WHERE checkpoint_id = $1
   AND version = $2 - 1
   AND state = 'COMMITTED';

-- supersede_past(tenant, job_id, step)
-- Take everything past a step out of the series that counts, deleted ones included: one of them may
-- be the bar of the Best.
UPDATE checkpoints
   SET is_superseded = true,
       version = version + 1
 WHERE tenant = $1
   AND job_id = $2
   AND step > $3
   AND NOT is_superseded;

-- supersede(checkpoint_ids)
-- Take checkpoints out of the series that counts.
UPDATE checkpoints
   SET is_superseded = true,
       version = version + 1
 WHERE checkpoint_id = ANY ($1::text[])
   AND NOT is_superseded;

-- begin_delete(checkpoint_ids, cause)
-- Hide checkpoints; their objects go once nobody can be reading them any more.
UPDATE checkpoints
   SET state = 'DELETING',
       delete_cause = $2,
       version = version + 1,
       remove_time = greatest(clock.now(), read_until)
 WHERE checkpoint_id = ANY ($1::text[])
   AND state = 'COMMITTED';

-- give_up_upload(checkpoint_id, lifetime)
-- Abort an upload; its objects go once no signed address can be used to write any more.
UPDATE checkpoints
   SET state = 'DELETING',
       delete_cause = 'abandoned',
       version = version + 1,
       remove_time = begin_time + $2::interval
 WHERE checkpoint_id = $1
   AND state = 'UPLOADING';

-- give_up_old_uploads(age, lifetime)
-- Abort uploads that nobody will finish: too old, or of a run that was replaced.
UPDATE checkpoints AS c
   SET state = 'DELETING',
       delete_cause = 'abandoned',
       version = c.version + 1,
       remove_time = c.begin_time + $2::interval
  FROM jobs AS j
 WHERE j.tenant = c.tenant
   AND j.job_id = c.job_id
   AND c.state = 'UPLOADING'
   AND (c.begin_time < clock.now() - $1::interval OR c.epoch < j.fence_epoch)
RETURNING c.checkpoint_id;

-- give_up_uploads_of(tenant, job_id, epoch, lifetime)
-- Abort the uploads of a job up to an epoch, whose run is over.
UPDATE checkpoints
   SET state = 'DELETING',
       delete_cause = 'abandoned',
       version = version + 1,
       remove_time = begin_time + $4::interval
 WHERE tenant = $1
   AND job_id = $2
   AND epoch <= $3
   AND state = 'UPLOADING';

-- removable(limit)
-- Hidden checkpoints whose objects may go now.
SELECT checkpoint_id, tenant, project, job_id, epoch, step, state, is_final, is_pinned,
       is_resumable, is_superseded, eval_loss, eval_loss_text, size_bytes, manifest_sha256,
       commit_time, delete_cause, version, files
  FROM whole_checkpoints
 WHERE checkpoint_id IN (SELECT c.checkpoint_id
                           FROM checkpoints AS c
                          WHERE c.state = 'DELETING'
                            AND c.remove_time <= clock.now()
                          ORDER BY c.remove_time
                          LIMIT $1);

-- end_delete(checkpoint_id)
-- The objects are gone; no row means that somebody else has said so already.
UPDATE checkpoints
   SET state = 'DELETED',
       version = version + 1
 WHERE checkpoint_id = $1
   AND state = 'DELETING'
RETURNING version;

-- read_until(tenant, project, checkpoint_id, lifetime)
-- Remember that signed addresses to read are handed out; no row means that it is not visible.
UPDATE checkpoints
   SET read_until = greatest(read_until, clock.now() + $4::interval)
 WHERE tenant = $1
   AND project = $2
   AND checkpoint_id = $3
   AND state = 'COMMITTED'
RETURNING checkpoint_id;

-- cursor_of(cursor_name)
-- Where a sweep goes on.
SELECT cursor_value
  FROM cursors
 WHERE cursor_name = $1;

-- move_cursor(cursor_name, cursor_value)
-- A sweep has come so far.
INSERT INTO cursors (cursor_name, cursor_value)
VALUES ($1, $2)
ON CONFLICT (cursor_name) DO UPDATE
   SET cursor_value = excluded.cursor_value;
