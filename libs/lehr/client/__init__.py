"""The SDK: ``Client`` for scripts, ``AsyncClient`` for services; both talk to the gateway alone.

Answers are the messages of ``lehr.api``; failures are the typed errors of ``lehr.errors``.
"""

from lehr.client.aio import AsyncClient
from lehr.client.sync import Client

__all__ = ["AsyncClient", "Client"]
