"""Imports from buckets, and addresses that are refused (SE-03)."""

import secrets
from pathlib import Path

import pytest

from lehr.api.catalog.v1 import catalog_pb2 as pb
from lehr.api.catalog.v1.hub_pb2 import S3Source
from lehr.client import AsyncClient
from lehr.egress import EgressRefused
from lehr.errors import PlatformError
from lehr.objects import ObjectStore
from tests.support.importing import (
    SECRET_KEY,
    a_name,
    rows,
    terms,
)
from tests.support.servers import NatsForTests, ObjectsForTests
from tests.support.stack import DatabaseForTests
from tests.support.targets import Target


@pytest.fixture
async def bucket(s3: ObjectsForTests) -> ObjectStore:
    """Somebody else's bucket, on the same server."""
    name = f"theirs-{secrets.token_hex(4)}"
    store = ObjectStore(s3.endpoint, s3.access_key, s3.secret_key, name, s3.region)
    await store.ensure_bucket()
    return store


async def test_the_objects_below_a_prefix_become_a_dataset(
    client: AsyncClient, bucket: ObjectStore, s3: ObjectsForTests, tmp_path: Path
) -> None:
    await bucket.put_bytes("data/a.jsonl", rows(10))
    await bucket.put_bytes("data/sub/b.jsonl", rows(5, "more"))
    await bucket.put_bytes("other/c.jsonl", rows(7, "other"))
    keys, name = a_name(), a_name()
    await client.credentials.put_s3_keys(keys, access_key=s3.access_key, secret_key=s3.secret_key)
    source = S3Source(endpoint=s3.endpoint, bucket=bucket.bucket, prefix="data/", credential=keys)
    found = await client.imports.dataset(source, terms=terms(name, license="mit"))
    assert found.state == pb.ENTRY_STATE_READY
    assert found.row_count == 15
    assert found.source.kind == "s3"
    assert found.source.origin == f"{s3.endpoint}/{bucket.bucket}/data/"
    await client.datasets.download(found.dataset_id, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.jsonl", "b.jsonl"]
    await bucket.put_bytes("data/a.jsonl", rows(11))
    changed = await client.imports.dataset(source, terms=terms(name, license="mit"))
    assert changed.row_count == 16
    assert changed.dataset_id != found.dataset_id


async def test_a_bucket_that_is_not_open_says_what_to_do(
    client: AsyncClient, bucket: ObjectStore, s3: ObjectsForTests
) -> None:
    await bucket.put_bytes("a.jsonl", rows(3))
    keys = a_name()
    await client.credentials.put_s3_keys(keys, access_key=s3.access_key, secret_key=SECRET_KEY)
    source = S3Source(endpoint=s3.endpoint, bucket=bucket.bucket, credential=keys)
    with pytest.raises(PlatformError) as refused:
        await client.imports.dataset(source, terms=terms(license="mit"))
    assert refused.value.reason == "CREDENTIAL_REFUSED"
    assert SECRET_KEY not in str(refused.value)


async def test_every_internal_address_is_refused_in_the_same_words(
    client: AsyncClient,
    internal: Target,
    database: DatabaseForTests,
    nats_server: NatsForTests,
) -> None:
    port = internal.port
    postgres = database.admin_url.rpartition("@")[2].partition("/")[0]
    endpoints = [
        "http://169.254.169.254/latest/meta-data/",
        "http://127.0.0.1:8222/",
        f"http://127.0.0.1:{port}/",
        f"http://localhost:{port}",
        f"http://[::1]:{port}/",
        "http://[::1]/",
        f"http://[::ffff:127.0.0.1]:{port}/",
        f"http://0x7f000001:{port}/",
        f"http://2130706433:{port}/",
        "http://0x7f000001/",
        "http://2130706433/",
        f"http://0:{port}/",
        f"http://{postgres}/",
        nats_server.url.replace("nats://", "http://"),
        "http://no-such-name.invalid/",
        "file:///etc/passwd",
        "gopher://127.0.0.1/",
        "ftp://127.0.0.1/",
        f"http://user:password@127.0.0.1:{port}/",
        "nonsense",
    ]
    told = set()
    for endpoint in endpoints:
        source = S3Source(endpoint=endpoint, bucket="bucket", prefix="p")
        with pytest.raises(PlatformError) as refused:
            await client.imports.dataset(source, terms=terms())
        assert refused.value.reason == "EGRESS_REFUSED", endpoint
        told.add(str(refused.value))
    assert told == {str(EgressRefused())}
    assert internal.connections == 0
