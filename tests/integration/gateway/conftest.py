"""A gateway before a catalog, with real Postgres, NATS and S3."""

from tests.integration.catalog.conftest import catalog, client, gateway, toy_model

__all__ = ["catalog", "client", "gateway", "toy_model"]
