"""Rows of Postgres to values of the domain, and back."""
