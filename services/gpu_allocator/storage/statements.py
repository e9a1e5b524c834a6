"""The named statements of this service."""

from pathlib import Path

from lehr.postgres import Queries

SQL = Queries.load(Path(__file__).with_name("queries.sql"))
