"""What a person may set for the gateway; environment prefix ``GATEWAY_``."""

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from lehr.settings import Listen, ServiceSettings


class Settings(ServiceSettings):
    """Settings of the gateway."""

    model_config = SettingsConfigDict(env_prefix="GATEWAY_", frozen=True, hide_input_in_errors=True)

    internal_listen: Listen = "127.0.0.1:0"
    """Bind address of the gateway's own methods, forwarded to like those of any other service;
    ``listen`` is the address for outside callers."""

    rest_listen: Listen = "127.0.0.1:0"
    """Bind address of HTTP for outside callers; port 0 takes a free one, which the log tells."""

    body_idle_seconds: float = Field(default=30.0, ge=0.1, le=600.0)
    """How long the next bytes of a request's body are waited for."""

    bootstrap_key_sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    """SHA-256 of a first key; it becomes an operator of tenant and project ``default``."""

    key_cache_seconds: float = Field(default=2.0, ge=0.0, le=60.0)
    """How long a looked-up key is believed; a revoked one works so long at most, and a stream that
    it opened twice so long."""

    calls_per_key: int = Field(default=256, ge=1, le=100_000)
    """Calls of one key that may be in progress at once, streams not counted."""

    streams_per_key: int = Field(default=100, ge=1, le=100_000)
    """Streams of one key that may be open at once, such as watches of jobs and logs."""
