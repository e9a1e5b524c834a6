"""A gateway before a catalog, with real Postgres, NATS and S3."""

from tests.integration.catalog.conftest import (
    catalog,
    catalog_variables,
    client,
    gateway,
    toy_model,
)

__all__ = ["catalog", "catalog_variables", "client", "gateway", "toy_model"]
