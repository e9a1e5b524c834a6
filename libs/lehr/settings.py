"""What a person may set, read from the environment once; all mistakes are told together."""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self
from urllib.parse import urlsplit

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict, SettingsError

from lehr.errors import FieldViolation, InvalidArgument

ADMIN_URL_ENV = "LEHR_POSTGRES_ADMIN_URL"
FAULTS_FILE_ENV = "LEHR_FAULTS_FILE"
TEST_HOOKS_ENV = "LEHR_TEST_HOOKS"
MODE_ENV = "LEHR_MODE"

_LISTEN = re.compile(r"(?:\[[0-9a-fA-F:]+\]|[^:\[\]\s/]+):(\d{1,5})")


class SettingsRefused(InvalidArgument):
    """The environment does not describe a process that may run."""

    reason = "SETTINGS_REFUSED"


def _host_and_port(value: str) -> str:
    match = _LISTEN.fullmatch(value)
    if match is None or int(match[1]) > 65535:
        raise ValueError("must be host:port, such as 127.0.0.1:7001")
    return value


def _url(*schemes: str) -> AfterValidator:
    def check(value: str) -> str:
        parts = urlsplit(value)
        if parts.scheme not in schemes or not parts.hostname:
            raise ValueError(f"must be a URL such as {schemes[0]}://host:port")
        return value

    return AfterValidator(check)


def _object(value: object) -> object:
    """Read a JSON object here and not in the source, which would stop at the first mistake."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except json.JSONDecodeError as error:
        raise ValueError(f"must be a JSON object: {error}") from error


def _pem(value: str) -> str:
    """Take a PEM whose line ends were written as ``\\n``, as env files need."""
    return value.replace("\\n", "\n")


def _private_key(value: SecretStr) -> SecretStr:
    text = _pem(value.get_secret_value())
    try:
        key = load_pem_private_key(text.encode(), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise ValueError("must be an Ed25519 private key in PEM, without a password")
    return SecretStr(text)


def _public_key(value: str) -> str:
    text = _pem(value)
    try:
        key = load_pem_public_key(text.encode())
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise ValueError("must be an Ed25519 public key in PEM")
    return text


def _postgres_url(value: SecretStr | None) -> SecretStr | None:
    if value is not None:
        parts = urlsplit(value.get_secret_value())
        if parts.scheme not in {"postgres", "postgresql"} or not parts.path.strip("/"):
            raise ValueError("must be a URL such as postgresql://role:password@host:port/database")
    return value


Listen = Annotated[str, AfterValidator(_host_and_port)]
Addresses = Annotated[Mapping[str, Listen], NoDecode, BeforeValidator(_object)]
PublicKey = Annotated[str, AfterValidator(_public_key)]
TrustedKeys = Annotated[Mapping[str, PublicKey], NoDecode, BeforeValidator(_object)]


class PlatformSettings(BaseSettings):
    """What every process of one installation shares; environment prefix ``LEHR_``."""

    model_config = SettingsConfigDict(env_prefix="LEHR_", frozen=True, hide_input_in_errors=True)

    mode: Literal["development", "production"] = "development"
    """Production refuses test hooks and switches off what only helps while building."""

    nats_url: Annotated[str, _url("nats", "tls")] = "nats://127.0.0.1:4222"
    """NATS server with JetStream."""

    nats_user: str | None = None
    """User name at NATS; None where the server asks for none."""

    nats_password: SecretStr | None = None
    """Password of that user."""

    s3_endpoint: Annotated[str, _url("http", "https")] = "http://127.0.0.1:9000"
    """Object store; must be reachable under this address by runners and clients too."""

    s3_access_key: SecretStr | None = None
    """Needed by services that read or sign objects."""

    s3_secret_key: SecretStr | None = None
    """Needed by services that read or sign objects."""

    s3_bucket: str = Field(default="lehr", pattern=r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$")
    """Bucket that holds models, datasets and checkpoints."""

    s3_region: str = Field(default="us-east-1", min_length=1)
    """Region that requests are signed for."""

    addresses: Addresses = Field(default_factory=dict)
    """gRPC address of each service, as a JSON object."""

    trusted_keys: TrustedKeys = Field(default_factory=dict)
    """Public key of each service that may sign a context, as a JSON object of PEM texts."""

    log_format: Literal["json", "console"] = "json"
    """JSON lines for machines, columns for a terminal."""

    test_hooks: bool = False
    """Allow fault points, a movable clock and scripted trainers; refused in production."""

    faults_file: Path | None = None
    """JSON file that arms fault points; needs test hooks."""

    otlp_endpoint: Annotated[str, _url("http", "https")] | None = None
    """Where traces go; None keeps them in the process."""

    @field_validator("test_hooks")
    @classmethod
    def _no_hooks_in_production(cls, value: bool, info: ValidationInfo) -> bool:
        if value and info.data.get("mode") == "production":
            raise ValueError(f"must be off when {MODE_ENV} is production")
        return value

    @field_validator("faults_file")
    @classmethod
    def _faults_need_hooks(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        # A refused value of test_hooks is absent here and has been reported already.
        if value is not None and info.data.get("test_hooks") is False:
            raise ValueError(f"needs {TEST_HOOKS_ENV}=true")
        return value


class ServiceSettings(BaseSettings):
    """What every service brings; a subclass sets its ``env_prefix`` and adds fields.

    Read it with ``Settings.load()`` in ``__main__``, and pass on plain values.
    """

    model_config = SettingsConfigDict(frozen=True, hide_input_in_errors=True)

    needs_database: ClassVar[bool] = True
    """Whether the process refuses to start without a database."""

    needs_objects: ClassVar[bool] = False
    """Whether the process refuses to start without keys of the object store."""

    database_url: Annotated[SecretStr | None, AfterValidator(_postgres_url)] = Field(
        default=None, validate_default=True
    )
    """Postgres, as the role of this service."""

    listen: Listen = "127.0.0.1:0"
    """Bind address of gRPC; port 0 takes a free one."""

    metrics_listen: Listen = "127.0.0.1:0"
    """Bind address of HTTP for /metrics, /livez and /readyz."""

    identity_key: Annotated[SecretStr, AfterValidator(_private_key)]
    """Ed25519 private key that signs what this service says in calls."""

    # The dict makes pydantic build PlatformSettings inside this validation, so that the mistakes
    # of both are told together; a default_factory would stop at the first.
    platform: PlatformSettings = Field(default={}, validate_default=True)
    """What every process shares."""

    @field_validator("database_url")
    @classmethod
    def _has_database(cls, value: SecretStr | None) -> SecretStr | None:
        if value is None and cls.needs_database:
            raise ValueError("must be set to the Postgres URL of this service's role")
        return value

    @field_validator("platform")
    @classmethod
    def _has_objects(cls, value: PlatformSettings) -> PlatformSettings:
        if cls.needs_objects and not (value.s3_access_key and value.s3_secret_key):
            raise ValueError("needs LEHR_S3_ACCESS_KEY and LEHR_S3_SECRET_KEY for the object store")
        return value

    @classmethod
    def load(cls) -> Self:
        """Read the environment.

        Raises:
            SettingsRefused: with every wrong variable by name, and never with its value.
        """
        try:
            return cls()
        except ValidationError as error:
            raise _refused(error, prefix=cls.model_config.get("env_prefix", "")) from None
        except SettingsError as error:
            # A list or object of a subclass that is not JSON stops the source by itself.
            raise SettingsRefused(f"a setting is not JSON: {error}") from None


def faults_file() -> Path | None:
    """Return the file of armed faults, where test hooks allow it.

    For processes without settings of their own, such as trainers; services have refused a wrong
    combination at start already.
    """
    path = os.environ.get(FAULTS_FILE_ENV)
    hooks = os.environ.get(TEST_HOOKS_ENV, "").lower() in {"1", "true", "yes", "on", "t", "y"}
    if path is None or not hooks or os.environ.get(MODE_ENV) == "production":
        return None
    return Path(path)


def postgres_admin_url() -> str | None:
    """Return the administrator's Postgres URL, where an external server is used."""
    return os.environ.get(ADMIN_URL_ENV)


def _refused(error: ValidationError, *, prefix: str) -> SettingsRefused:
    problems = [_violation(detail["loc"], detail, prefix=prefix) for detail in error.errors()]
    lines = "".join(f"\n  {problem.field}: {problem.description}" for problem in problems)
    return SettingsRefused(
        f"{len(problems)} settings are wrong or missing:{lines}",
        fields=problems,
        variables=" ".join(problem.field for problem in problems),
    )


def _violation(
    path: tuple[int | str, ...], detail: Mapping[str, Any], *, prefix: str
) -> FieldViolation:
    names = [str(part) for part in path]
    if names and names[0] == "platform":
        names, prefix = names[1:], str(PlatformSettings.model_config.get("env_prefix"))
    variable = f"{prefix}{names[0]}".upper() if names else prefix.upper() + "*"
    inside = f"{'.'.join(names[1:])}: " if len(names) > 1 else ""
    if detail["type"] == "missing":
        return FieldViolation(field=variable, description="must be set")
    description = detail["msg"].removeprefix("Value error, ")
    return FieldViolation(field=variable, description=inside + description)
