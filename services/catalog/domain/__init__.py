"""Decisions of the catalog."""
