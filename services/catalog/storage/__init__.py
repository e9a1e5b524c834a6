"""Rows of the catalog."""
