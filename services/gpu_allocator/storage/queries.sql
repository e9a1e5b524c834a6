-- Statements of the allocator. Locks are taken in one order: node, lease, GPU, job fence before
-- GPU, and the change counter last.

-- lock_node(node_id)
-- Read a node under its lock, and the time at which the lock was had.
WITH locked AS MATERIALIZED (
  SELECT node_id, name, incarnation, boot_id, sync_sequence, sync_time, is_draining
    FROM nodes
   WHERE node_id = $1
     FOR NO KEY UPDATE
)
SELECT node_id, name, incarnation, boot_id, sync_sequence, sync_time, is_draining,
       clock.now() AS now
  FROM locked;

-- add_node(node_id, name)
-- A machine that was never heard.
INSERT INTO nodes (node_id, name, incarnation, boot_id, sync_sequence, is_draining)
VALUES ($1, $2, 0, '', 0, false)
ON CONFLICT (node_id) DO NOTHING;

-- save_sync(node_id, incarnation, boot_id, sync_sequence, sync_time, is_draining,
--   lease_ids, alive_times, progress_times, pids, are_offered)
-- Remember a sync, and the proof of life of leases of which nothing else has changed.
WITH alive AS (
  UPDATE leases AS l
     SET alive_time = r.alive_time,
         progress_time = r.progress_time,
         pids = r.pids::bigint[],
         is_offered = r.is_offered
    FROM unnest($7::text[], $8::timestamptz[], $9::timestamptz[], $10::text[], $11::boolean[])
      AS r (lease_id, alive_time, progress_time, pids, is_offered)
   WHERE l.lease_id = r.lease_id
)
UPDATE nodes
   SET incarnation = $2, boot_id = $3, sync_sequence = $4, sync_time = $5, is_draining = $6
 WHERE node_id = $1;

-- nodes()
-- All machines, by name.
SELECT node_id, name, incarnation, boot_id, sync_sequence, sync_time, is_draining
  FROM nodes
 ORDER BY name;

-- leases_of_node(node_id, lease_ids)
-- Leases of a node that are open, still have a GPU, or are asked for by id.
SELECT lease_id, tenant, project, job_id, attempt, run_id, epoch, node_id, tier, ordinals,
       funded_duration, deadline_duration, phase, version, is_offered, grant_time, running_time,
       progress_time, end_time, alive_time, stop_time, stop_reason, funded_until, committed_time,
       close_time, close_reason, close_message, pids
  FROM leases
 WHERE lease_id IN (
         SELECT lease_id FROM leases WHERE node_id = $1 AND phase <> 'CLOSED'
          UNION ALL
         SELECT lease_id FROM gpus WHERE node_id = $1 AND lease_id IS NOT NULL
          UNION ALL
         SELECT lease_id FROM leases WHERE lease_id = ANY($2::text[]) AND node_id = $1
       )
 ORDER BY epoch;

-- gpus_of_node(node_id)
-- The devices of a node, by ordinal.
SELECT gpu_id, node_id, ordinal, tier, memory_bytes, device_id, state, lease_id, epoch
  FROM gpus
 WHERE node_id = $1
 ORDER BY ordinal;

-- node_of_gpu(gpu_id)
-- Where a device is, to lock its node before the device.
SELECT node_id
  FROM gpus
 WHERE gpu_id = $1;

-- gpus()
-- All devices.
SELECT gpu_id, node_id, ordinal, tier, memory_bytes, device_id, state, lease_id, epoch
  FROM gpus
 ORDER BY node_id, ordinal;

-- lock_free_gpus(tiers)
-- Lock what can be granted, in one order for all; a GPU that was granted meanwhile falls out, for
-- its state is on the locked row.
SELECT gpu_id, node_id, ordinal, tier, memory_bytes, device_id, state, lease_id, epoch, state_time
  FROM gpus
 WHERE state = 'FREE' AND tier = ANY($1::text[])
 ORDER BY gpu_id
   FOR NO KEY UPDATE;

-- save_gpu(gpu_id, node_id, ordinal, tier, memory_bytes, device_id, state, lease_id, epoch,
--   state_time)
-- Store a device, new or known.
INSERT INTO gpus (gpu_id, node_id, ordinal, tier, memory_bytes, device_id, state, lease_id, epoch,
                  state_time)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
ON CONFLICT (gpu_id) DO UPDATE
   SET tier = $4, memory_bytes = $5, device_id = $6, state = $7, lease_id = $8, epoch = $9,
       state_time = greatest($10, gpus.state_time);

-- release_of_request(request_id)
-- What an operator's request has released before.
SELECT request_id, gpu_id, principal, reason
  FROM gpu_releases
 WHERE request_id = $1;

-- add_release(request_id, gpu_id, principal, reason, release_time)
-- An operator has ended a quarantine.
INSERT INTO gpu_releases (request_id, gpu_id, principal, reason, release_time)
VALUES ($1, $2, $3, $4, $5);

-- hold_gpu(gpu_id, lease_id, tenant, hold_time)
-- The lease has the GPU from now on.
INSERT INTO gpu_holds (gpu_id, lease_id, tenant, held)
VALUES ($1, $2, $3, tstzrange($4, NULL));

-- release_gpu(gpu_id, release_time)
-- Nobody has the GPU any more.
UPDATE gpu_holds
   SET held = tstzrange(lower(held), greatest(lower(held), $2))
 WHERE gpu_id = $1 AND upper_inf(held);

-- holds()
-- What leases hold now.
SELECT gpu_id, lease_id
  FROM gpu_holds
 WHERE upper_inf(held);

-- lock_job(tenant, job_id)
-- Lock a job, so that its leases are granted one after the other; answer the newest attempt.
INSERT INTO job_fences AS f (tenant, job_id, attempt, epoch)
VALUES ($1, $2, 0, 0)
ON CONFLICT (tenant, job_id) DO UPDATE SET attempt = f.attempt
RETURNING attempt;

-- raise_job_fence(tenant, job_id, attempt, epoch)
-- The job has a newer lease.
UPDATE job_fences
   SET attempt = $3, epoch = $4
 WHERE tenant = $1 AND job_id = $2 AND attempt < $3 AND epoch < $4
RETURNING epoch;

-- next_epoch()
-- Draw a fencing number; the locks of the job and its GPUs are had.
SELECT nextval('lease_epoch') AS epoch;

-- now()
-- The clock of leases and money.
SELECT clock.now() AS now;

-- lease_of_attempt(tenant, job_id, attempt)
-- The lease that an Acquire has had before.
SELECT lease_id, tenant, project, job_id, attempt, run_id, epoch, node_id, tier, ordinals,
       funded_duration, deadline_duration, phase, version, is_offered, grant_time, running_time,
       progress_time, end_time, alive_time, stop_time, stop_reason, funded_until, committed_time,
       close_time, close_reason, close_message, pids
  FROM leases
 WHERE tenant = $1 AND job_id = $2 AND attempt = $3;

-- live_lease_of_job(tenant, job_id)
-- The lease for which a node works, if there is one.
SELECT lease_id, tenant, project, job_id, attempt, run_id, epoch, node_id, tier, ordinals,
       funded_duration, deadline_duration, phase, version, is_offered, grant_time, running_time,
       progress_time, end_time, alive_time, stop_time, stop_reason, funded_until, committed_time,
       close_time, close_reason, close_message, pids
  FROM leases
 WHERE tenant = $1 AND job_id = $2 AND phase IN ('GRANTED', 'STARTING', 'RUNNING', 'DRAINING');

-- lease(lease_id, tenant)
-- One lease of a tenant; the platform itself, tenant '', sees all.
SELECT lease_id, tenant, project, job_id, attempt, run_id, epoch, node_id, tier, ordinals,
       funded_duration, deadline_duration, phase, version, is_offered, grant_time, running_time,
       progress_time, end_time, alive_time, stop_time, stop_reason, funded_until, committed_time,
       close_time, close_reason, close_message, pids
  FROM leases
 WHERE lease_id = $1 AND (tenant = $2 OR $2 = '');

-- open_leases()
-- Every lease that is not closed.
SELECT lease_id, tenant, project, job_id, attempt, run_id, epoch, node_id, tier, ordinals,
       funded_duration, deadline_duration, phase, version, is_offered, grant_time, running_time,
       progress_time, end_time, alive_time, stop_time, stop_reason, funded_until, committed_time,
       close_time, close_reason, close_message, pids
  FROM leases
 WHERE phase <> 'CLOSED'
 ORDER BY epoch;

-- leases_changed(after_number, tenant, job_id, open_only, limit)
-- A page of leases in the order in which their changes were committed.
SELECT lease_id, tenant, project, job_id, attempt, run_id, epoch, node_id, tier, ordinals,
       funded_duration, deadline_duration, phase, version, is_offered, grant_time, running_time,
       progress_time, end_time, alive_time, stop_time, stop_reason, funded_until, committed_time,
       close_time, close_reason, close_message, pids, change_number
  FROM leases
 WHERE change_number > $1
   AND (tenant = $2 OR $2 = '')
   AND (job_id = $3 OR $3 = '')
   AND (phase <> 'CLOSED' OR NOT $4)
 ORDER BY change_number
 LIMIT $5;

-- next_change()
-- Take the next change number; others wait here until this change is committed.
UPDATE lease_changes
   SET last_number = last_number + 1
RETURNING last_number;

-- add_lease(lease_id, tenant, project, job_id, attempt, run_id, epoch, node_id, tier, ordinals,
--   funded_duration, deadline_duration, phase, version, is_offered, grant_time, change_number)
-- A lease that was just granted.
INSERT INTO leases (lease_id, tenant, project, job_id, attempt, run_id, epoch, node_id, tier,
                    ordinals, funded_duration, deadline_duration, phase, version, is_offered,
                    grant_time, change_number, stop_reason, close_reason, close_message, pids)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17,
        '', '', '', '{}');

-- save_lease(lease_id, phase, version, is_offered, running_time, progress_time, end_time,
--   alive_time, stop_time, stop_reason, funded_until, committed_time, close_time, close_reason,
--   close_message, pids, change_number, version_before)
-- Store a later version of a lease; no row means that somebody was faster.
UPDATE leases
   SET phase = $2, version = $3, is_offered = $4, running_time = $5, progress_time = $6,
       end_time = $7, alive_time = $8, stop_time = $9, stop_reason = $10, funded_until = $11,
       committed_time = $12, close_time = $13, close_reason = $14, close_message = $15, pids = $16,
       change_number = $17
 WHERE lease_id = $1 AND version = $18
RETURNING lease_id;

-- lock_heartbeat()
-- Read the newest heartbeat under its lock, and the time at which the lock was had.
WITH locked AS MATERIALIZED (
  SELECT beat_time FROM heartbeat FOR NO KEY UPDATE
)
SELECT beat_time, clock.now() AS now
  FROM locked;

-- first_heartbeat()
-- Begin to count outages; a new installation has had none.
INSERT INTO heartbeat (beat_time) VALUES (clock.now())
ON CONFLICT (only_row) DO NOTHING;

-- save_heartbeat(beat_time)
-- A replica can write.
UPDATE heartbeat SET beat_time = $1;

-- add_outage(begin_time, end_time)
-- None could for a while.
INSERT INTO outages (begin_time, end_time)
VALUES ($1, $2)
ON CONFLICT (begin_time) DO UPDATE SET end_time = greatest($2, outages.end_time);

-- forget_outages(end_time)
-- Outages that nobody's silence reaches back to.
DELETE FROM outages WHERE end_time < $1;

-- heartbeat()
-- The newest heartbeat, and the time.
SELECT beat_time, clock.now() AS now
  FROM heartbeat;

-- outages()
-- All outages that are remembered.
SELECT begin_time, end_time
  FROM outages
 ORDER BY begin_time;

-- pending_event_count()
-- Events that wait for the relay.
SELECT count(*) AS pending_event_count
  FROM outbox
 WHERE sent_time IS NULL;
