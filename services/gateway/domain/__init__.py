"""Decisions of the gateway."""
