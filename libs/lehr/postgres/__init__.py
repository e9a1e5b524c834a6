"""Postgres for a service: a pool that says what failed, named SQL, migrations."""

from lehr.postgres.bootstrap import bootstrap
from lehr.postgres.database import Connection, Database, Isolation
from lehr.postgres.queries import Queries

__all__ = ["Connection", "Database", "Isolation", "Queries", "bootstrap"]
