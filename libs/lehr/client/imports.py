"""Imports from a hub or a bucket, and the secrets that open them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from lehr.api.catalog.v1 import catalog_pb2, catalog_pb2_grpc
from lehr.api.catalog.v1 import hub_pb2 as pb
from lehr.client.catalog import Datasets, Models
from lehr.client.connection import LONG_CALL_SECONDS, Connection


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How an import is named in the catalog, and under which licence it comes."""

    name: str
    license: str = ""
    """SPDX id, where the source names none."""
    acknowledge_license: bool = False
    """You may use it although its licence is unknown or non-commercial, and answer for it."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Canonical field to column, for datasets; empty to recognise the layout."""


class Imports:
    """Copies of what others publish, at a fixed version."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._stub = catalog_pb2_grpc.CatalogServiceStub(connection.channel)

    async def dataset(
        self,
        source: pb.HubSource | pb.S3Source,
        *,
        terms: Terms,
        checking: Callable[[catalog_pb2.Dataset], None] | None = None,
    ) -> catalog_pb2.Dataset:
        """Import a dataset and wait for the end; READY, or REFUSED with problems.

        Raises:
            PlatformError: the source is not there, not open, not public, or holds no rows.
        """
        request = pb.ImportDatasetRequest(
            name=terms.name,
            hub=source if isinstance(source, pb.HubSource) else None,
            s3=source if isinstance(source, pb.S3Source) else None,
            columns=terms.columns,
            license=terms.license,
            acknowledge_license=terms.acknowledge_license,
        )
        added = await self._connection.call(
            self._stub.ImportDataset, request, seconds=LONG_CALL_SECONDS
        )
        return await Datasets(self._connection).settled(added.dataset_id, checking=checking)

    async def model(
        self,
        source: pb.HubSource,
        *,
        terms: Terms,
        checking: Callable[[catalog_pb2.Model], None] | None = None,
    ) -> catalog_pb2.Model:
        """Import a model and wait until it is ready.

        Raises:
            PlatformError: the source is not there, not open, or no model that is safe to use.
        """
        request = pb.ImportModelRequest(
            name=terms.name,
            hub=source,
            license=terms.license,
            acknowledge_license=terms.acknowledge_license,
        )
        added = await self._connection.call(
            self._stub.ImportModel, request, seconds=LONG_CALL_SECONDS
        )
        return await Models(self._connection).settled(added.model_id, checking=checking)

    async def search(
        self, text: str, *, kind: str = "model", limit: int = 20, credential: str = ""
    ) -> list[pb.HubEntry]:
        """Return models or datasets of the hub whose name holds a text."""
        request = pb.SearchHubRequest(text=text, kind=kind, limit=limit, credential=credential)
        answer = await self._connection.call(
            self._stub.SearchHub, request, seconds=LONG_CALL_SECONDS
        )
        return list(answer.entries)


class Credentials:
    """Secrets for imports; they go in and are never answered."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._stub = catalog_pb2_grpc.CatalogServiceStub(connection.channel)

    async def put_hub_token(self, name: str, token: str) -> None:
        """Store an access token of the hub; one of the same name is replaced."""
        request = pb.PutCredentialRequest(name=name, hub_token=token)
        await self._connection.call(self._stub.PutCredential, request)

    async def put_s3_keys(self, name: str, *, access_key: str, secret_key: str) -> None:
        """Store keys of an S3 server; those of the same name are replaced."""
        keys = pb.S3Keys(access_key=access_key, secret_key=secret_key)
        request = pb.PutCredentialRequest(name=name, s3_keys=keys)
        await self._connection.call(self._stub.PutCredential, request)

    async def list(self) -> list[pb.Credential]:
        """Return the names of what is stored."""
        answer = await self._connection.call(
            self._stub.ListCredentials, pb.ListCredentialsRequest()
        )
        return list(answer.credentials)

    async def delete(self, name: str) -> None:
        """Forget a secret; twice is the same as once."""
        request = pb.DeleteCredentialRequest(name=name)
        await self._connection.call(self._stub.DeleteCredential, request)
