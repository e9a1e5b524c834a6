"""Makes an external Postgres ready: ``python -m lehr.postgres --passwords FILE``."""

import argparse
import asyncio
import json
import sys
from pathlib import Path

from lehr.errors import PlatformError
from lehr.logs import configure
from lehr.postgres.bootstrap import bootstrap
from lehr.postgres.migrate import STAGES
from lehr.settings import ADMIN_URL_ENV, postgres_admin_url


def main() -> int:
    """Run the command and return the exit code."""
    arguments = _parser().parse_args()
    configure("postgres", "console")
    admin_url = arguments.admin_url or postgres_admin_url()
    if not admin_url:
        print(f"give --admin-url, or set {ADMIN_URL_ENV}", file=sys.stderr)
        return 2
    try:
        applied = asyncio.run(
            bootstrap(
                admin_url,
                passwords=_passwords(arguments.passwords, only=arguments.service),
                test_hooks=arguments.test_hooks,
                stages=frozenset(arguments.stage) if arguments.stage else STAGES,
            )
        )
    except (PlatformError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    for service, names in applied.items():
        print(f"{service}: {', '.join(names) or 'up to date'}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m lehr.postgres",
        description="Make roles, schemas and tables of every service; may be repeated.",
    )
    parser.add_argument(
        "--admin-url",
        metavar="URL",
        help=f"administrator's Postgres URL; better in {ADMIN_URL_ENV}, where no ps shows it",
    )
    parser.add_argument(
        "--passwords",
        type=Path,
        required=True,
        metavar="FILE",
        help='JSON file of each service\'s password: {"scheduler": "..."}',
    )
    parser.add_argument(
        "--service", action="append", metavar="NAME", help="only this one; may be repeated"
    )
    parser.add_argument(
        "--stage",
        action="append",
        choices=sorted(STAGES),
        help="only these migrations: pre before the new code, post after the old; default both",
    )
    parser.add_argument("--test-hooks", action="store_true", help="a clock that tests can move")
    return parser


def _passwords(file: Path, *, only: list[str] | None) -> dict[str, str]:
    try:
        passwords = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        raise ValueError(f"cannot read the passwords from {file}: {error}") from None
    well_formed = isinstance(passwords, dict) and all(
        isinstance(password, str) for password in passwords.values()
    )
    if not well_formed:
        raise ValueError(f"{file} must hold one JSON object of service names and passwords")
    missing = sorted(set(only or ()) - set(passwords))
    if missing:
        raise ValueError(f"{file} has no password for {', '.join(missing)}")
    return {name: passwords[name] for name in only or passwords}


if __name__ == "__main__":
    sys.exit(main())
