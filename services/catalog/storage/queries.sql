-- add_model(model_id, tenant, project, name, revision, state, license, files, source,
--           acknowledged_by)
-- Register a model whose files will come; the upload of one that is awaited or was refused begins
-- anew, any other stays as it is.
INSERT INTO catalog.models AS known (model_id, tenant, project, name, revision, state, license,
                                     files, source, acknowledged_by)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
ON CONFLICT (tenant, project, name, revision) DO UPDATE
   SET state = EXCLUDED.state, license = EXCLUDED.license, files = EXCLUDED.files,
       source = EXCLUDED.source, acknowledged_by = EXCLUDED.acknowledged_by, refusal = '',
       attempts = 0, change_time = clock.now()
 WHERE known.state IN ('UPLOADING', 'REFUSED');

-- model_by_id(tenant, project, model_id)
-- A model in any state.
SELECT model_id, tenant, project, name, revision, license, files, source, acknowledged_by, state,
       refusal, progress, model_type, parameter_count, context_length, facts, create_time,
       change_time
  FROM catalog.models
 WHERE tenant = $1 AND project = $2 AND model_id = $3;

-- model_by_name(tenant, project, name, revision_prefix)
-- The newest ready revision of a name that begins so.
SELECT model_id, tenant, project, name, revision, license, files, source, acknowledged_by, state,
       refusal, progress, model_type, parameter_count, context_length, facts, create_time,
       change_time
  FROM catalog.models
 WHERE tenant = $1 AND project = $2 AND name = $3 AND state = 'READY'
   AND starts_with(revision, $4)
 ORDER BY create_time DESC, model_id DESC
 LIMIT 1;

-- models_named(tenant, project, name_contains, after_name, after_id, page_size)
-- Ready models whose name contains a text, after a place, by name.
SELECT model_id, tenant, project, name, revision, license, files, source, acknowledged_by, state,
       refusal, progress, model_type, parameter_count, context_length, facts, create_time,
       change_time
  FROM catalog.models
 WHERE tenant = $1 AND project = $2 AND state = 'READY'
   AND strpos(name, $3) > 0 AND (name, model_id) > ($4, $5)
 ORDER BY name, model_id
 LIMIT $6;

-- begin_model(tenant, model_id)
-- Have a model validated whose files have arrived.
UPDATE catalog.models
   SET state = 'VALIDATING', refusal = '', attempts = 0, claimed_by = '',
       claimed_until = '-infinity', progress = DEFAULT, change_time = clock.now()
 WHERE tenant = $1 AND model_id = $2 AND state = 'UPLOADING';

-- import_model(tenant, model_id, worker, revision, files, license, source, acknowledged_by)
-- What was imported goes on to validation; no row means that the claim is lost.
UPDATE catalog.models
   SET state = 'VALIDATING', revision = $4, files = $5, license = $6, source = $7,
       acknowledged_by = $8, change_time = clock.now()
 WHERE tenant = $1 AND model_id = $2 AND state = 'IMPORTING' AND claimed_by = $3
RETURNING model_id;

-- ready_model(tenant, model_id, worker, model_type, parameter_count, context_length, facts)
-- Make a validated model visible; no row means that the claim is lost.
UPDATE catalog.models
   SET state = 'READY', model_type = $4, parameter_count = $5, context_length = $6, facts = $7,
       refusal = '', claimed_by = '', create_time = clock.now(), change_time = clock.now()
 WHERE tenant = $1 AND model_id = $2 AND state = 'VALIDATING' AND claimed_by = $3
RETURNING model_id;

-- refuse_model(tenant, model_id, worker, refusal, state)
-- Refuse a model, or await its files once more; no row means that the claim is lost.
UPDATE catalog.models
   SET state = $5, refusal = $4, claimed_by = '', change_time = clock.now()
 WHERE tenant = $1 AND model_id = $2 AND state IN ('IMPORTING', 'VALIDATING') AND claimed_by = $3
RETURNING model_id;

-- remove_model(tenant, model_id, change_time)
-- Remove a model; where a time is given, only if nothing has changed since.
DELETE FROM catalog.models
 WHERE tenant = $1 AND model_id = $2 AND ($3::timestamptz IS NULL OR change_time = $3)
RETURNING model_id;

-- stale_models(upload_lifetime, refused_lifetime)
-- Models whose upload began so long ago and never ended, and those refused so long ago.
SELECT model_id, tenant, project, name, revision, license, files, source, acknowledged_by, state,
       refusal, progress, model_type, parameter_count, context_length, facts, create_time,
       change_time
  FROM catalog.models
 WHERE (state = 'UPLOADING' AND change_time < clock.now() - $1::interval)
    OR (state = 'REFUSED' AND change_time < clock.now() - $2::interval);

-- claim_model(worker, lifetime)
-- Take the model that has waited longest and that no living worker has.
UPDATE catalog.models
   SET claimed_by = $1, claimed_until = clock.now() + $2::interval, attempts = attempts + 1
 WHERE model_id = (SELECT model_id
                     FROM catalog.models
                    WHERE state IN ('IMPORTING', 'VALIDATING') AND claimed_until < clock.now()
                    ORDER BY change_time
                    LIMIT 1
                      FOR UPDATE SKIP LOCKED)
RETURNING model_id, tenant, project, attempts;

-- renew_model(tenant, model_id, worker, lifetime, progress)
-- Keep a claim and say how far the work is; no row means that the claim is lost.
UPDATE catalog.models
   SET claimed_until = clock.now() + $4::interval, progress = $5
 WHERE tenant = $1 AND model_id = $2 AND state IN ('IMPORTING', 'VALIDATING') AND claimed_by = $3
RETURNING model_id;

-- release_model(tenant, model_id, worker, pause, counts)
-- Give a claim back, to be taken after a pause; the attempt counts or does not.
UPDATE catalog.models
   SET claimed_by = '', claimed_until = clock.now() + $4::interval,
       attempts = attempts - CASE WHEN $5 THEN 0 ELSE 1 END
 WHERE tenant = $1 AND model_id = $2 AND claimed_by = $3;

-- add_dataset(dataset_id, tenant, project, name, revision, state, license, files, source,
--             acknowledged_by, columns)
-- Register a dataset whose files will come; the upload of one that is awaited or was refused begins
-- anew, any other stays as it is.
INSERT INTO catalog.datasets AS known (dataset_id, tenant, project, name, revision, state, license,
                                       files, source, acknowledged_by, columns)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
ON CONFLICT (tenant, project, name, revision) DO UPDATE
   SET state = EXCLUDED.state, license = EXCLUDED.license, files = EXCLUDED.files,
       source = EXCLUDED.source, acknowledged_by = EXCLUDED.acknowledged_by,
       columns = EXCLUDED.columns, refusal = '', problems = '[]', attempts = 0,
       change_time = clock.now()
 WHERE known.state IN ('UPLOADING', 'REFUSED');

-- dataset_by_id(tenant, project, dataset_id)
-- A dataset in any state.
SELECT dataset_id, tenant, project, name, revision, license, files, source, acknowledged_by, state,
       refusal, progress, columns, row_kind, row_count, distinct_count, image_row_count, layouts,
       problems, row_files, rows_file, images_file, keys_file, create_time, change_time
  FROM catalog.datasets
 WHERE tenant = $1 AND project = $2 AND dataset_id = $3;

-- dataset_by_name(tenant, project, name, revision_prefix)
-- The newest ready revision of a name that begins so.
SELECT dataset_id, tenant, project, name, revision, license, files, source, acknowledged_by, state,
       refusal, progress, columns, row_kind, row_count, distinct_count, image_row_count, layouts,
       problems, row_files, rows_file, images_file, keys_file, create_time, change_time
  FROM catalog.datasets
 WHERE tenant = $1 AND project = $2 AND name = $3 AND state = 'READY'
   AND starts_with(revision, $4)
 ORDER BY create_time DESC, dataset_id DESC
 LIMIT 1;

-- datasets_named(tenant, project, name_contains, after_name, after_id, page_size)
-- Ready datasets whose name contains a text, after a place, by name.
SELECT dataset_id, tenant, project, name, revision, license, files, source, acknowledged_by, state,
       refusal, progress, columns, row_kind, row_count, distinct_count, image_row_count, layouts,
       problems, row_files, rows_file, images_file, keys_file, create_time, change_time
  FROM catalog.datasets
 WHERE tenant = $1 AND project = $2 AND state = 'READY'
   AND strpos(name, $3) > 0 AND (name, dataset_id) > ($4, $5)
 ORDER BY name, dataset_id
 LIMIT $6;

-- begin_dataset(tenant, dataset_id)
-- Have a dataset validated whose files have arrived.
UPDATE catalog.datasets
   SET state = 'VALIDATING', refusal = '', problems = '[]', attempts = 0, claimed_by = '',
       claimed_until = '-infinity', progress = DEFAULT, change_time = clock.now()
 WHERE tenant = $1 AND dataset_id = $2 AND state = 'UPLOADING';

-- import_dataset(tenant, dataset_id, worker, revision, files, license, source, acknowledged_by)
-- What was imported goes on to validation; no row means that the claim is lost.
UPDATE catalog.datasets
   SET state = 'VALIDATING', revision = $4, files = $5, license = $6, source = $7,
       acknowledged_by = $8, change_time = clock.now()
 WHERE tenant = $1 AND dataset_id = $2 AND state = 'IMPORTING' AND claimed_by = $3
RETURNING dataset_id;

-- ready_dataset(tenant, dataset_id, worker, row_kind, row_count, distinct_count, image_row_count,
--               layouts, problems, rows_file, images_file, keys_file, row_files)
-- Make a validated dataset visible; no row means that the claim is lost.
UPDATE catalog.datasets
   SET state = 'READY', row_kind = $4, row_count = $5, distinct_count = $6, image_row_count = $7,
       layouts = $8, problems = $9, rows_file = $10, images_file = $11, keys_file = $12,
       row_files = $13, refusal = '', claimed_by = '', create_time = clock.now(), change_time = clock.now()
 WHERE tenant = $1 AND dataset_id = $2 AND state = 'VALIDATING' AND claimed_by = $3
RETURNING dataset_id;

-- refuse_dataset(tenant, dataset_id, worker, refusal, state, row_kind, row_count, distinct_count,
--                image_row_count, layouts, problems)
-- Refuse a dataset with its report, or await its files once more; no row: the claim is lost.
UPDATE catalog.datasets
   SET state = $5, refusal = $4, row_kind = $6, row_count = $7, distinct_count = $8,
       image_row_count = $9, layouts = $10, problems = $11, claimed_by = '',
       change_time = clock.now()
 WHERE tenant = $1 AND dataset_id = $2 AND state IN ('IMPORTING', 'VALIDATING')
   AND claimed_by = $3
RETURNING dataset_id;

-- remove_dataset(tenant, dataset_id, change_time)
-- Remove a dataset; where a time is given, only if nothing has changed since.
DELETE FROM catalog.datasets
 WHERE tenant = $1 AND dataset_id = $2 AND ($3::timestamptz IS NULL OR change_time = $3)
RETURNING dataset_id;

-- stale_datasets(upload_lifetime, refused_lifetime)
-- Datasets whose upload began so long ago and never ended, and those refused so long ago.
SELECT dataset_id, tenant, project, name, revision, license, files, source, acknowledged_by, state,
       refusal, progress, columns, row_kind, row_count, distinct_count, image_row_count, layouts,
       problems, row_files, rows_file, images_file, keys_file, create_time, change_time
  FROM catalog.datasets
 WHERE (state = 'UPLOADING' AND change_time < clock.now() - $1::interval)
    OR (state = 'REFUSED' AND change_time < clock.now() - $2::interval);

-- claim_dataset(worker, lifetime)
-- Take the dataset that has waited longest and that no living worker has.
UPDATE catalog.datasets
   SET claimed_by = $1, claimed_until = clock.now() + $2::interval, attempts = attempts + 1
 WHERE dataset_id = (SELECT dataset_id
                       FROM catalog.datasets
                      WHERE state IN ('IMPORTING', 'VALIDATING') AND claimed_until < clock.now()
                      ORDER BY change_time
                      LIMIT 1
                        FOR UPDATE SKIP LOCKED)
RETURNING dataset_id, tenant, project, attempts;

-- renew_dataset(tenant, dataset_id, worker, lifetime, progress)
-- Keep a claim and say how far the work is; no row means that the claim is lost.
UPDATE catalog.datasets
   SET claimed_until = clock.now() + $4::interval, progress = $5
 WHERE tenant = $1 AND dataset_id = $2 AND state IN ('IMPORTING', 'VALIDATING')
   AND claimed_by = $3
RETURNING dataset_id;

-- release_dataset(tenant, dataset_id, worker, pause, counts)
-- Give a claim back, to be taken after a pause; the attempt counts or does not.
UPDATE catalog.datasets
   SET claimed_by = '', claimed_until = clock.now() + $4::interval,
       attempts = attempts - CASE WHEN $5 THEN 0 ELSE 1 END
 WHERE tenant = $1 AND dataset_id = $2 AND claimed_by = $3;

-- awaiting_parts(entry_ids)
-- Which of these entries may still need their uploaded parts.
SELECT model_id AS entry_id
  FROM catalog.models
 WHERE model_id = ANY ($1) AND state IN ('UPLOADING', 'VALIDATING')
UNION ALL
SELECT dataset_id
  FROM catalog.datasets
 WHERE dataset_id = ANY ($1) AND state IN ('UPLOADING', 'VALIDATING');

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
