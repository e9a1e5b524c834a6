-- Statements with {table} and {key} are those of models and of datasets: ``entries.statement``.

-- add_entry(entry_id, tenant, project, name, revision, state, license, files, source,
--           acknowledged_by)
-- Register an entry whose files will come; one that is awaited or was refused begins anew, any other
-- stays as it is.
INSERT INTO catalog.{table} AS known ({key}, tenant, project, name, revision, state, license,
                                      files, source, acknowledged_by)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
ON CONFLICT ({key}) DO UPDATE
   SET state = EXCLUDED.state, license = EXCLUDED.license, files = EXCLUDED.files,
       source = EXCLUDED.source, acknowledged_by = EXCLUDED.acknowledged_by, refusal = '',
       attempts = 0, put_off_count = 0, put_off_until = NULL, change_time = clock.now()
 WHERE known.state IN ('UPLOADING', 'REFUSED');

-- begin_report(tenant, dataset_id, columns)
-- What a dataset that was just registered has beside other entries; nothing is found in it yet.
UPDATE catalog.datasets
   SET columns = $3, problems = '[]'
 WHERE tenant = $1 AND dataset_id = $2 AND state IN ('UPLOADING', 'IMPORTING');

-- entry_by_id(tenant, project, entry_id)
-- An entry in any state.
SELECT {columns}
  FROM catalog.{table}
 WHERE tenant = $1 AND project = $2 AND {key} = $3;

-- entry_by_name(tenant, project, name, revision_prefix)
-- The newest ready one of a name whose revision begins so.
SELECT {columns}
  FROM catalog.{table}
 WHERE tenant = $1 AND project = $2 AND name = $3 AND state = 'READY'
   AND starts_with(revision, $4)
 ORDER BY create_time DESC, {key} DESC
 LIMIT 1;

-- entries_named(tenant, project, name_contains, after_name, after_id, page_size)
-- Ready entries whose name contains a text, after a place, by name.
SELECT {columns}
  FROM catalog.{table}
 WHERE tenant = $1 AND project = $2 AND state = 'READY'
   AND strpos(name, $3) > 0 AND (name, {key}) > ($4, $5)
 ORDER BY name, {key}
 LIMIT $6;

-- begin_entry(tenant, entry_id)
-- Have an entry validated whose files have arrived.
UPDATE catalog.{table}
   SET state = 'VALIDATING', refusal = '', attempts = 0, claimed_by = '',
       claimed_until = '-infinity', progress = DEFAULT, change_time = clock.now()
 WHERE tenant = $1 AND {key} = $2 AND state = 'UPLOADING';

-- import_entry(tenant, entry_id, worker, revision, files)
-- What was imported goes on to validation; no row means that the claim is lost.
UPDATE catalog.{table}
   SET state = 'VALIDATING', revision = $4, files = $5, refusal = '', put_off_count = 0,
       put_off_until = NULL, change_time = clock.now()
 WHERE tenant = $1 AND {key} = $2 AND state = 'IMPORTING' AND claimed_by = $3
RETURNING {key};

-- describe_model(tenant, model_id, worker, model_type, parameter_count, context_length, facts)
-- Write what was found in a model.
UPDATE catalog.models
   SET model_type = $4, parameter_count = $5, context_length = $6, facts = $7
 WHERE tenant = $1 AND model_id = $2 AND claimed_by = $3;

-- report_dataset(tenant, dataset_id, worker, row_kind, row_count, distinct_count, image_row_count,
--                layouts, problems, rows_file, images_file, keys_file, row_files)
-- Write what was found in a dataset.
UPDATE catalog.datasets
   SET row_kind = $4, row_count = $5, distinct_count = $6, image_row_count = $7, layouts = $8,
       problems = $9, rows_file = $10, images_file = $11, keys_file = $12, row_files = $13
 WHERE tenant = $1 AND dataset_id = $2 AND claimed_by = $3;

-- end_work(tenant, entry_id, worker, state, refusal)
-- Make an entry ready, refuse it or await its files once more; no row means that the claim is lost.
UPDATE catalog.{table}
   SET state = $4, refusal = $5, claimed_by = '', put_off_count = 0, put_off_until = NULL,
       create_time = CASE WHEN $4 = 'READY' THEN clock.now() ELSE create_time END,
       change_time = clock.now()
 WHERE tenant = $1 AND {key} = $2 AND state IN ('IMPORTING', 'VALIDATING') AND claimed_by = $3
RETURNING {key};

-- remove_entry(tenant, entry_id, change_time)
-- Remove an entry; where a time is given, only if nothing has changed since.
DELETE FROM catalog.{table}
 WHERE tenant = $1 AND {key} = $2 AND ($3::timestamptz IS NULL OR change_time = $3)
RETURNING {key};

-- stale_entries(upload_lifetime, refused_lifetime, count)
-- Entries whose upload began so long ago and never ended, and those refused so long ago.
SELECT {columns}
  FROM catalog.{table}
 WHERE (state = 'UPLOADING' AND change_time < clock.now() - $1::interval)
    OR (state = 'REFUSED' AND change_time < clock.now() - $2::interval)
 LIMIT $3;

-- claim_entry(worker, lifetime)
-- Take the entry that has waited longest and that no living worker has.
UPDATE catalog.{table}
   SET claimed_by = $1, claimed_until = clock.now() + $2::interval, attempts = attempts + 1
 WHERE {key} = (SELECT {key}
                  FROM catalog.{table}
                 WHERE state IN ('IMPORTING', 'VALIDATING') AND claimed_until < clock.now()
                 ORDER BY change_time
                 LIMIT 1
                   FOR UPDATE SKIP LOCKED)
RETURNING {key} AS entry_id, tenant, project, attempts;

-- renew_entry(tenant, entry_id, worker, lifetime, progress)
-- Keep a claim and say how far the work is; no row means that the claim is lost.
UPDATE catalog.{table}
   SET claimed_until = clock.now() + $4::interval, progress = $5
 WHERE tenant = $1 AND {key} = $2 AND state IN ('IMPORTING', 'VALIDATING') AND claimed_by = $3
RETURNING {key};

-- release_entry(tenant, entry_id, worker, pause, counts)
-- Give a claim back, to be taken after a pause; the attempt counts or does not.
UPDATE catalog.{table}
   SET claimed_by = '', claimed_until = clock.now() + $4::interval,
       attempts = attempts - CASE WHEN $5 THEN 0 ELSE 1 END
 WHERE tenant = $1 AND {key} = $2 AND claimed_by = $3;

-- put_off_entry(tenant, entry_id, worker, pause, refusal, counts)
-- Give a claim back because something is away, and say what; it is no attempt at the entry itself.
UPDATE catalog.{table}
   SET claimed_by = '', claimed_until = clock.now() + $4::interval, attempts = attempts - 1,
       refusal = $5, put_off_until = clock.now() + $4::interval,
       put_off_count = put_off_count + CASE WHEN $6 THEN 1 ELSE 0 END
 WHERE tenant = $1 AND {key} = $2 AND claimed_by = $3;

-- open_upload(entry_id, tenant)
-- Addresses for parts of an entry are about to be given, so that parts may come from now on.
INSERT INTO catalog.uploads (entry_id, tenant)
VALUES ($1, $2)
ON CONFLICT (entry_id) DO UPDATE SET open_time = clock.now();

-- decided_uploads(lifetime, count)
-- Uploads that were opened so long ago, and whose parts nobody awaits any more.
SELECT entry_id, tenant, open_time
  FROM catalog.uploads AS uploads
 WHERE open_time < clock.now() - $1::interval
   AND NOT EXISTS (SELECT FROM catalog.models
                    WHERE model_id = entry_id AND state IN ('UPLOADING', 'VALIDATING'))
   AND NOT EXISTS (SELECT FROM catalog.datasets
                    WHERE dataset_id = entry_id AND state IN ('UPLOADING', 'VALIDATING'))
 ORDER BY open_time
 LIMIT $2;

-- forget_upload(entry_id, open_time)
-- No part of an upload is left; one that was opened again meanwhile stays.
DELETE FROM catalog.uploads
 WHERE entry_id = $1 AND open_time = $2;

-- begin_removal(entry_id, tenant, prefixes, remover, lifetime)
-- Note that an entry is removed and its objects are not yet; the remover alone deletes them.
INSERT INTO catalog.removals (entry_id, tenant, prefixes, claimed_by, claimed_until)
VALUES ($1, $2, $3, $4, clock.now() + $5::interval);

-- has_removal(entry_id)
-- Whether objects of an entry that was removed may still be there.
SELECT EXISTS (SELECT FROM catalog.removals WHERE entry_id = $1);

-- claim_removals(entry_id, remover, lifetime, count)
-- Take removals that nobody goes on with: that of one entry, or where none is named any.
UPDATE catalog.removals
   SET claimed_by = $2, claimed_until = clock.now() + $3::interval
 WHERE entry_id IN (SELECT entry_id
                      FROM catalog.removals
                     WHERE ($1 = '' OR entry_id = $1) AND claimed_until < clock.now()
                     ORDER BY claimed_until
                     LIMIT $4
                       FOR UPDATE SKIP LOCKED)
RETURNING entry_id, prefixes, claimed_by;

-- end_removal(entry_id, remover)
-- Nothing of an entry is left.
DELETE FROM catalog.removals
 WHERE entry_id = $1 AND claimed_by = $2;

-- plan_import(tenant, model_id, dataset_id, plan)
-- Keep what an import has to fetch; one of the two ids is null.
INSERT INTO catalog.imports (tenant, model_id, dataset_id, plan)
VALUES ($1, $2, $3, $4)
ON CONFLICT (entry_id) DO UPDATE SET plan = EXCLUDED.plan, arrived = '[]';

-- import_of(tenant, entry_id)
-- What an import has to fetch, and what of it is in the object store.
SELECT plan, arrived
  FROM catalog.imports
 WHERE tenant = $1 AND entry_id = $2;

-- save_arrived(tenant, entry_id, file)
-- One more file of an import is in the object store.
UPDATE catalog.imports
   SET arrived = arrived || $3::jsonb
 WHERE tenant = $1 AND entry_id = $2;

-- went_on(tenant, entry_id)
-- An import gets something from its source again.
UPDATE catalog.{table}
   SET put_off_count = 0, put_off_until = NULL, refusal = ''
 WHERE tenant = $1 AND {key} = $2 AND state = 'IMPORTING' AND put_off_until IS NOT NULL;

-- put_credential(tenant, project, name, kind, secret)
-- Keep an encrypted secret; a name that is there gets the new one.
INSERT INTO catalog.credentials (tenant, project, name, kind, secret)
VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (tenant, project, name) DO UPDATE
   SET kind = EXCLUDED.kind, secret = EXCLUDED.secret, create_time = clock.now();

-- credential(tenant, project, name)
-- An encrypted secret.
SELECT name, kind, secret, create_time
  FROM catalog.credentials
 WHERE tenant = $1 AND project = $2 AND name = $3;

-- credentials_of(tenant, project)
-- Names of secrets.
SELECT name, kind, create_time
  FROM catalog.credentials
 WHERE tenant = $1 AND project = $2
 ORDER BY name;

-- delete_credential(tenant, project, name)
-- Forget a secret; one that is not there is no error.
DELETE FROM catalog.credentials
 WHERE tenant = $1 AND project = $2 AND name = $3;
