"""The SDK before a real gateway and catalog."""

from tests.integration.catalog.conftest import (
    catalog,
    catalog_variables,
    client,
    gateway,
    store,
    toy_model,
)

__all__ = ["catalog", "catalog_variables", "client", "gateway", "store", "toy_model"]
