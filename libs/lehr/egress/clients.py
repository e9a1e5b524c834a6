"""HTTP libraries that connect through a guard: httpx, httpx2, urllib3."""

from typing import Any, TypeVar

import urllib3

from lehr.egress.guard import Guard

T = TypeVar("T")


def guarded(transport: T, guard: Guard) -> T:
    """Have a transport of httpx or httpx2 connect to checked addresses only.

    The check is made at every new connection, so also after a redirect; TLS still verifies the
    name. A transport that goes through a proxy is none of this: the proxy would resolve.
    """
    # Neither library passes a network backend on, which their common base, httpcore, takes.
    pool: Any = transport._pool  # type: ignore[attr-defined]
    pool._network_backend = _Backend(guard, pool._network_backend)
    return transport


class _Backend:
    """A network backend of httpcore."""

    def __init__(self, guard: Guard, inner: Any) -> None:
        self._guard = guard
        self._inner = inner
        self.sleep = inner.sleep

    def connect_tcp(self, host: str, port: int, **options: Any) -> Any:
        """Connect to the first checked address that answers."""
        return self._guard.connect(
            host, port, lambda address: self._inner.connect_tcp(address, port, **options)
        )


def guarded_pool(guard: Guard, **options: Any) -> urllib3.PoolManager:
    """Return a pool of urllib3 that connects to checked addresses only, redirects included."""
    pool = urllib3.PoolManager(**options)
    pool.pool_classes_by_scheme = {
        scheme: type(base.__name__, (base,), {"ConnectionCls": _checked(base.ConnectionCls, guard)})
        for scheme, base in dict[str, Any](pool.pool_classes_by_scheme).items()
    }
    return pool


def _checked(base: Any, guard: Guard) -> type:
    def new_connection(self: Any) -> Any:
        name = self._dns_host

        def dial(address: str) -> Any:
            # TLS and the Host header go by the name, which is put back.
            self._dns_host = address
            try:
                return base._new_conn(self)
            finally:
                self._dns_host = name

        return guard.connect(name, self.port, dial)

    return type(base.__name__, (base,), {"_new_conn": new_connection})
