"""A gateway before a catalog, with real Postgres, NATS and S3."""

from collections.abc import AsyncIterator

import httpx
import pytest

from tests.integration.catalog.conftest import (
    catalog,
    catalog_variables,
    client,
    gateway,
    store,
    toy_model,
)
from tests.support.doors import a_rest_client
from tests.support.one_service import OneService

__all__ = ["catalog", "catalog_variables", "client", "gateway", "store", "toy_model"]


@pytest.fixture
async def rest(gateway: OneService) -> AsyncIterator[httpx.AsyncClient]:
    """A plain HTTP client of tenant and project ``default``."""
    async with a_rest_client(gateway.rest) as http:
        yield http
