"""The SDK for asyncio: one attribute a kind of thing."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

from lehr.client.catalog import Datasets, Models
from lehr.client.checkpoints import Checkpoints
from lehr.client.connection import Connection, Endpoint
from lehr.client.imports import Credentials, Imports
from lehr.client.jobs import Jobs
from lehr.client.platform import Billing, Events, Gpus, Keys


class AsyncClient:
    """A connection to the gateway.

    ``AsyncClient()`` takes address and key from LEHR_API_ADDRESS and LEHR_API_KEY, else from the
    state folder of a local stack.
    """

    def __init__(
        self,
        address: str | None = None,
        api_key: str | None = None,
        *,
        state_dir: Path | None = None,
    ) -> None:
        """Prepare; connects at the first call.

        Raises:
            NotConnected: address and key are neither given nor found.
        """
        endpoint = Endpoint.find(state_dir, address=address, api_key=api_key)
        self._connection = Connection(endpoint)
        self.jobs = Jobs(self._connection)
        self.checkpoints = Checkpoints(self._connection)
        self.datasets = Datasets(self._connection)
        self.models = Models(self._connection)
        self.imports = Imports(self._connection)
        self.credentials = Credentials(self._connection)
        self.gpus = Gpus(self._connection)
        self.billing = Billing(self._connection)
        self.events = Events(self._connection)
        self.keys = Keys(self._connection)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection."""
        await self._connection.close()
