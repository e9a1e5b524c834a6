"""The SDK before a real gateway and catalog."""

from tests.integration.catalog.conftest import catalog, client, gateway, toy_model

__all__ = ["catalog", "client", "gateway", "toy_model"]
