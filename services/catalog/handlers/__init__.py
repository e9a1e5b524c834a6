"""Use cases of the catalog, by noun."""
