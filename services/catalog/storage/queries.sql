-- add_model(model_id, tenant, project, name, revision, license, files)
-- Register a model whose files will be uploaded; one that was committed stays as it is, the upload
-- of another begins anew.
INSERT INTO catalog.models AS known (model_id, tenant, project, name, revision, license, files)
VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (tenant, project, name, revision) DO UPDATE
   SET license = EXCLUDED.license, files = EXCLUDED.files, create_time = clock.now()
 WHERE NOT known.is_committed;

-- model_by_id(tenant, project, model_id)
-- A model, committed or not.
SELECT model_id, tenant, project, name, revision, license, files, is_committed, model_type,
       parameter_count, context_length, create_time
  FROM catalog.models
 WHERE tenant = $1 AND project = $2 AND model_id = $3;

-- model_by_name(tenant, project, name, revision_prefix)
-- The newest committed revision of a name that begins so.
SELECT model_id, tenant, project, name, revision, license, files, is_committed, model_type,
       parameter_count, context_length, create_time
  FROM catalog.models
 WHERE tenant = $1 AND project = $2 AND name = $3 AND is_committed
   AND starts_with(revision, $4)
 ORDER BY create_time DESC, model_id DESC
 LIMIT 1;

-- models_named(tenant, project, name_contains, after_name, after_id, page_size)
-- Committed models whose name contains a text, after a place, by name.
SELECT model_id, tenant, project, name, revision, license, files, is_committed, model_type,
       parameter_count, context_length, create_time
  FROM catalog.models
 WHERE tenant = $1 AND project = $2 AND is_committed
   AND strpos(name, $3) > 0 AND (name, model_id) > ($4, $5)
 ORDER BY name, model_id
 LIMIT $6;

-- commit_model(tenant, model_id, model_type, parameter_count, context_length)
-- Make a verified model visible; no row means that it was so before.
UPDATE catalog.models
   SET is_committed = true, model_type = $3, parameter_count = $4, context_length = $5,
       create_time = clock.now()
 WHERE tenant = $1 AND model_id = $2 AND NOT is_committed
RETURNING model_id;

-- forget_model(tenant, model_id)
-- Remove a model that was never committed.
DELETE FROM catalog.models
 WHERE tenant = $1 AND model_id = $2 AND NOT is_committed
RETURNING model_id;

-- add_dataset(dataset_id, tenant, project, name, revision, file)
-- Register a dataset whose file will be uploaded; one that was committed stays as it is, the upload
-- of another begins anew.
INSERT INTO catalog.datasets AS known (dataset_id, tenant, project, name, revision, file)
VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (tenant, project, name, revision) DO UPDATE
   SET file = EXCLUDED.file, create_time = clock.now()
 WHERE NOT known.is_committed;

-- dataset_by_id(tenant, project, dataset_id)
-- A dataset, committed or not.
SELECT dataset_id, tenant, project, name, file, is_committed, row_kind, row_count,
       distinct_count, problems, create_time
  FROM catalog.datasets
 WHERE tenant = $1 AND project = $2 AND dataset_id = $3;

-- dataset_by_name(tenant, project, name, revision_prefix)
-- The newest committed revision of a name that begins so.
SELECT dataset_id, tenant, project, name, file, is_committed, row_kind, row_count,
       distinct_count, problems, create_time
  FROM catalog.datasets
 WHERE tenant = $1 AND project = $2 AND name = $3 AND is_committed
   AND starts_with(revision, $4)
 ORDER BY create_time DESC, dataset_id DESC
 LIMIT 1;

-- datasets_named(tenant, project, name_contains, after_name, after_id, page_size)
-- Committed datasets whose name contains a text, after a place, by name.
SELECT dataset_id, tenant, project, name, file, is_committed, row_kind, row_count,
       distinct_count, problems, create_time
  FROM catalog.datasets
 WHERE tenant = $1 AND project = $2 AND is_committed
   AND strpos(name, $3) > 0 AND (name, dataset_id) > ($4, $5)
 ORDER BY name, dataset_id
 LIMIT $6;

-- commit_dataset(tenant, dataset_id, row_kind, row_count, distinct_count, problems)
-- Make a checked dataset visible; no row means that it was so before.
UPDATE catalog.datasets
   SET is_committed = true, row_kind = $3, row_count = $4, distinct_count = $5, problems = $6,
       create_time = clock.now()
 WHERE tenant = $1 AND dataset_id = $2 AND NOT is_committed
RETURNING dataset_id;

-- forget_dataset(tenant, dataset_id)
-- Remove a dataset that was never committed.
DELETE FROM catalog.datasets
 WHERE tenant = $1 AND dataset_id = $2 AND NOT is_committed
RETURNING dataset_id;

-- abandoned_models(older_than)
-- Models whose upload began so long ago and never ended.
SELECT model_id, tenant, project, name, revision, license, files, is_committed, model_type,
       parameter_count, context_length, create_time
  FROM catalog.models
 WHERE NOT is_committed AND create_time < clock.now() - $1::interval;

-- abandoned_datasets(older_than)
-- Datasets whose upload began so long ago and never ended.
SELECT dataset_id, tenant, project, name, file, is_committed, row_kind, row_count,
       distinct_count, problems, create_time
  FROM catalog.datasets
 WHERE NOT is_committed AND create_time < clock.now() - $1::interval;

-- lengths_of(tenant, dataset_id, model_id)
-- Token lengths of every row, where they were counted before.
SELECT tokens
  FROM catalog.lengths
 WHERE tenant = $1 AND dataset_id = $2 AND model_id = $3;

-- save_lengths(tenant, dataset_id, model_id, tokens)
-- Keep token lengths; they never change.
INSERT INTO catalog.lengths (tenant, dataset_id, model_id, tokens)
VALUES ($1, $2, $3, $4)
ON CONFLICT (dataset_id, model_id) DO NOTHING;
