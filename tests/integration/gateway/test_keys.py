"""Keys: who gets in, how far, and for how long."""

from datetime import UTC, datetime, timedelta

import grpc.aio
import pytest

from lehr.api.catalog.v1 import catalog_pb2, catalog_pb2_grpc
from lehr.api.gateway.v1 import gateway_pb2, gateway_pb2_grpc
from lehr.client import AsyncClient, Client
from lehr.client.connection import Connection, Endpoint
from lehr.errors import InvalidArgument, NotFound, PermissionDenied, Unauthenticated
from lehr.rpc.translate import raises_platform_errors
from lehr.stack.ports import LOOPBACK
from tests.support.doors import FIRST_KEY, a_client
from tests.support.one_service import OneService


async def test_the_first_key_is_an_operator_of_the_default_tenant(client: AsyncClient) -> None:
    who = await client.keys.whoami()

    assert (who.tenant, who.project, who.role) == ("default", "default", "operator")


@pytest.mark.parametrize("key", ["", "lehr_sk_wrong", "x" * 1000])
async def test_without_a_key_that_works_nobody_gets_in(gateway: OneService, key: str) -> None:
    async with a_client(gateway, key or "none") as stranger:
        with pytest.raises(Unauthenticated):
            await stranger.models.list()


async def test_a_call_without_any_header_is_refused(gateway: OneService) -> None:
    async with grpc.aio.insecure_channel(f"{LOOPBACK}:{gateway.port}") as channel:
        stub = gateway_pb2_grpc.GatewayServiceStub(channel)
        with pytest.raises(Unauthenticated, match="Bearer"), raises_platform_errors():
            await stub.WhoAmI(gateway_pb2.WhoAmIRequest(), timeout=5)


async def test_a_context_of_ones_own_making_is_not_passed_on(gateway: OneService) -> None:
    async with grpc.aio.insecure_channel(f"{LOOPBACK}:{gateway.port}") as channel:
        stub = gateway_pb2_grpc.GatewayServiceStub(channel)
        metadata = (("authorization", f"Bearer {FIRST_KEY}"), ("x-lehr-context", "forged"))
        who = await stub.WhoAmI(gateway_pb2.WhoAmIRequest(), timeout=5, metadata=metadata)

    assert who.tenant == "default"


async def test_a_revoked_key_stops_working(gateway: OneService, client: AsyncClient) -> None:
    made = await client.keys.create("short-lived")
    async with a_client(gateway, made.secret) as holder:
        before = await holder.keys.whoami()

        await client.keys.revoke(made.key.key_id)

        assert before.principal == made.key.key_id
        with pytest.raises(Unauthenticated, match="revoked"):
            await holder.keys.whoami()


async def test_an_expired_key_does_not_work(gateway: OneService) -> None:
    connection = Connection(Endpoint(address=f"{LOOPBACK}:{gateway.port}", api_key=FIRST_KEY))
    stub = gateway_pb2_grpc.GatewayServiceStub(connection.channel)
    request = gateway_pb2.CreateApiKeyRequest(name="late")
    request.expire_time.FromDatetime(datetime.now(UTC) - timedelta(seconds=1))
    made = await connection.call(stub.CreateApiKey, request)
    await connection.close()

    async with a_client(gateway, made.secret) as holder:
        with pytest.raises(Unauthenticated):
            await holder.keys.whoami()


async def test_a_member_makes_no_keys(gateway: OneService, client: AsyncClient) -> None:
    made = await client.keys.create("member")

    async with a_client(gateway, made.secret) as member:
        with pytest.raises(PermissionDenied):
            await member.keys.create("another")
        with pytest.raises(PermissionDenied):
            await member.keys.list()


async def test_an_admin_makes_no_operator_and_no_key_of_another_tenant(
    gateway: OneService, client: AsyncClient
) -> None:
    made = await client.keys.create("admin", role="admin")

    async with a_client(gateway, made.secret) as admin:
        with pytest.raises(PermissionDenied):
            await admin.keys.create("operator", role="operator")
        with pytest.raises(PermissionDenied):
            await admin.keys.create("elsewhere", tenant="acme")
        with pytest.raises(InvalidArgument, match="no role"):
            await admin.keys.create("odd", role="king")


async def test_an_admin_ends_no_operators_key(gateway: OneService, client: AsyncClient) -> None:
    made = await client.keys.create("admin", role="admin")
    operator = await client.keys.create("operator", role="operator")

    async with a_client(gateway, made.secret) as admin:
        with pytest.raises(PermissionDenied, match="role operator"):
            await admin.keys.revoke(operator.key.key_id)
    async with a_client(gateway, operator.secret) as holder:
        who = await holder.keys.whoami()

    assert who.principal == operator.key.key_id


@pytest.mark.parametrize("scope", ["*", ">", "a.b", "_", "a\0"])
async def test_a_tenant_or_project_that_is_a_wildcard_is_refused(
    client: AsyncClient, scope: str
) -> None:
    with pytest.raises(InvalidArgument, match="lower-case"):
        await client.keys.create("wild", tenant=scope)
    with pytest.raises(InvalidArgument, match="lower-case"):
        await client.keys.create("wild", project=scope)


async def test_a_nul_in_a_key_is_refused(client: AsyncClient) -> None:
    with pytest.raises(InvalidArgument, match="printable"):
        await client.keys.create("a\0b")
    with pytest.raises(NotFound):
        await client.keys.revoke("key_\0")


async def test_keys_of_another_tenant_look_as_if_they_were_not_there(
    gateway: OneService, client: AsyncClient
) -> None:
    mine = await client.keys.create("mine")
    acme = await client.keys.create("acme", tenant="acme", role="admin")

    async with a_client(gateway, acme.secret) as stranger:
        with pytest.raises(NotFound) as foreign:
            await stranger.keys.revoke(mine.key.key_id)
        with pytest.raises(NotFound) as unknown:
            await stranger.keys.revoke("key_unknown")
        seen = [key.name for key in await stranger.keys.list()]

    assert foreign.value.reason == unknown.value.reason
    assert seen == ["acme"]


async def test_the_secret_is_stored_nowhere(client: AsyncClient) -> None:
    made = await client.keys.create("secret")

    listed = await client.keys.list()

    assert made.secret.startswith(made.key.prefix)
    assert made.secret not in str(listed)


async def test_methods_for_services_are_closed_to_every_key(gateway: OneService) -> None:
    connection = Connection(Endpoint(address=f"{LOOPBACK}:{gateway.port}", api_key=FIRST_KEY))
    stub = catalog_pb2_grpc.CatalogServiceStub(connection.channel)

    with pytest.raises(PermissionDenied, match="may not call ResolveTraining"):
        await connection.call(stub.ResolveTraining, catalog_pb2.ResolveTrainingRequest())

    await connection.close()


async def test_an_unknown_service_is_named(gateway: OneService) -> None:
    async with grpc.aio.insecure_channel(f"{LOOPBACK}:{gateway.port}") as channel:
        method = channel.unary_unary("/lehr.api.secret.v1.Secret/Get")
        metadata = (("authorization", f"Bearer {FIRST_KEY}"),)
        wrong = pytest.raises(InvalidArgument, match=r"no service lehr\.api\.secret")
        with wrong, raises_platform_errors():
            await method(b"", timeout=5, metadata=metadata)


async def test_fields_that_are_wrong_reach_the_caller_through_the_gateway(
    client: AsyncClient,
) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        await client.datasets.inspect("Not A Name")

    assert [one.field for one in refusal.value.fields] == ["dataset"]


def test_the_plain_client_does_what_the_asyncio_client_does(gateway: OneService) -> None:
    with Client(f"{LOOPBACK}:{gateway.port}", FIRST_KEY) as plain:
        who = plain.keys.whoami()

    assert who.role == "operator"
