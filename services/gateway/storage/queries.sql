-- add_key(key_id, tenant, project, name, role, prefix, secret_sha256, expire_time)
-- Store a new key; a secret that is there already is left as it is.
INSERT INTO gateway.api_keys
       (key_id, tenant, project, name, role, prefix, secret_sha256, expire_time, create_time)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, clock.now())
ON CONFLICT (secret_sha256) DO NOTHING
RETURNING key_id, tenant, project, name, role, prefix, create_time, expire_time, revoke_time;

-- key_by_secret(secret_sha256)
-- The key whose secret has this digest, and the time at which it was asked.
SELECT key_id, tenant, project, name, role, prefix, create_time, expire_time, revoke_time,
       clock.now() AS now
  FROM gateway.api_keys
 WHERE secret_sha256 = $1;

-- keys_of(tenant)
-- Keys of a tenant, newest first.
SELECT key_id, tenant, project, name, role, prefix, create_time, expire_time, revoke_time
  FROM gateway.api_keys
 WHERE tenant = $1
 ORDER BY create_time DESC, key_id DESC;

-- revoke_key(tenant, key_id)
-- End a key; one that was ended before keeps its time.
UPDATE gateway.api_keys
   SET revoke_time = COALESCE(revoke_time, clock.now())
 WHERE tenant = $1 AND key_id = $2
RETURNING key_id, tenant, project, name, role, prefix, create_time, expire_time, revoke_time;
