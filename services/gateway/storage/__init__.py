"""Rows of the gateway."""
