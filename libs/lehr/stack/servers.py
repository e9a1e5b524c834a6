"""The three servers of a stack: embedded ones, or those that somebody runs already."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Self

from lehr.settings import ADMIN_URL_ENV
from lehr.stack.layout import Layout
from lehr.stack.nats import USER, NatsServer
from lehr.stack.postgres import DATABASE, PostgresServer
from lehr.stack.s3 import REGION, ObjectServer
from lehr.stack.secrets import Secrets
from lehr.stack.settings import Options

BUCKET = "lehr"


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """Where the platform finds Postgres, NATS and S3."""

    postgres: PostgresServer | None
    """Ours; None where an external one is used."""

    nats: NatsServer | None
    """Ours; None where an external one is used."""

    s3: ObjectServer | None
    """Ours; None where an external one is used."""

    postgres_admin_url: str = field(repr=False)
    """The administrator's address, with the platform's database."""

    variables: Mapping[str, str] = field(repr=False)
    """``LEHR_NATS_`` and ``LEHR_S3_`` variables, as the services read them."""

    @classmethod
    def choose(
        cls, layout: Layout, options: Options, secrets: Secrets, port: Callable[[str], int]
    ) -> Self:
        """Take external servers where they are given; ``port`` gives one for a purpose."""
        external = options.external
        postgres = nats = s3 = None
        admin_url = external.postgres_admin_url
        if admin_url is None:
            postgres = PostgresServer(
                place=layout.postgres, port=port("postgres"), password=secrets.postgres_admin
            )
            admin_url = postgres.url(DATABASE)
        if external.nats_url is None:
            nats = NatsServer(
                folder=layout.nats,
                port=port("nats"),
                monitor_port=port("nats_monitor"),
                password=secrets.nats,
            )
        if external.s3_endpoint is None:
            s3 = ObjectServer(
                folder=layout.objects,
                port=port("s3"),
                access_key=secrets.s3_access_key,
                secret_key=secrets.s3_secret_key,
            )
        return cls(
            postgres=postgres,
            nats=nats,
            s3=s3,
            postgres_admin_url=admin_url,
            variables=_nats_variables(nats, options) | _s3_variables(s3, options),
        )

    @property
    def all_variables(self) -> dict[str, str]:
        """The variables, with the administrator's address, which no service is told."""
        return {**self.variables, ADMIN_URL_ENV: self.postgres_admin_url}


def _nats_variables(nats: NatsServer | None, options: Options) -> dict[str, str]:
    external = options.external
    if nats is not None:
        given = {"URL": nats.url, "USER": USER, "PASSWORD": nats.password}
    else:
        given = _given(
            URL=external.nats_url, USER=external.nats_user, PASSWORD=external.nats_password
        )
    return {f"LEHR_NATS_{name}": value for name, value in given.items()}


def _s3_variables(s3: ObjectServer | None, options: Options) -> dict[str, str]:
    external = options.external
    if s3 is not None:
        given = {
            "ENDPOINT": s3.endpoint,
            "ACCESS_KEY": s3.access_key,
            "SECRET_KEY": s3.secret_key,
            "BUCKET": BUCKET,
            "REGION": REGION,
        }
    else:
        given = _given(
            ENDPOINT=external.s3_endpoint,
            ACCESS_KEY=external.s3_access_key,
            SECRET_KEY=external.s3_secret_key,
            BUCKET=external.s3_bucket,
            REGION=external.s3_region,
        )
    return {f"LEHR_S3_{name}": value for name, value in given.items()}


def _given(**values: str | None) -> dict[str, str]:
    return {name: value for name, value in values.items() if value is not None}
