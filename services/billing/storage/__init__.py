"""Rows to values and back; callers hold a transaction."""
