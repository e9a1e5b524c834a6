"""Fixtures that every kind of test may ask for."""

import os

from hypothesis import HealthCheck, settings

from tests.support.stack import (
    _database_template,
    database,
    nats_server,
    postgres_server,
    s3,
    s3_server,
    stack,
    stack_factory,
)

__all__ = [
    "_database_template",
    "database",
    "nats_server",
    "postgres_server",
    "s3",
    "s3_server",
    "stack",
    "stack_factory",
]

# Tests fork servers while gRPC has threads; with its fork handlers on, such a child crashes now and
# then before it has become the server. Read when the first channel or server is made.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "false"

# A machine that is busy with something else makes an example slow, not wrong.
settings.register_profile("lehr", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("lehr")
