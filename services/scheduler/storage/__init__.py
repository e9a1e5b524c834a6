"""Rows of the scheduler's schema, and the values that they hold."""
