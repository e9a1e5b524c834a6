"""Use cases of stored secrets: they go in, and come out for the process that needs them alone."""

import re
from collections.abc import Mapping

from lehr.errors import InvalidArgument
from lehr.rpc.auth import Caller
from services.catalog.domain.entries import check_name
from services.catalog.domain.errors import UploadRefused
from services.catalog.domain.imports import CredentialNotFound
from services.catalog.handlers.shelves import Shelves
from services.catalog.storage import imports
from services.catalog.storage.imports import StoredCredential

_SECRET_CHARACTERS_MAX = 1000
_PRINTABLE = re.compile(r"[!-~]+\Z")

FIELDS: Mapping[str, tuple[str, ...]] = {"hub": ("token",), "s3": ("access_key", "secret_key")}
"""What a secret of each kind is made of."""


async def put_credential(
    shelves: Shelves, *, caller: Caller, name: str, kind: str, secret: Mapping[str, str]
) -> None:
    """Store a secret; one of the same name is replaced.

    Raises:
        InvalidArgument: the name is none, or the secret cannot be one.
        CredentialsOff: the installation has no key to keep it with.
    """
    check_name(name)
    for field in FIELDS[kind]:
        text = secret.get(field, "")
        if not _PRINTABLE.match(text) or len(text) > _SECRET_CHARACTERS_MAX:
            # The message holds nothing of what may be a secret with a slip in it.
            raise UploadRefused(
                field, f"must be 1 to {_SECRET_CHARACTERS_MAX} ASCII characters without spaces"
            )
    place = (caller.tenant, caller.project, name)
    sealed = shelves.sources.vault.seal(place, secret)
    async with shelves.db.transaction() as conn:
        await imports.put_credential(conn, caller.tenant, caller.project, (name, kind, sealed))


async def list_credentials(shelves: Shelves, *, caller: Caller) -> list[StoredCredential]:
    """Return the names of the project's secrets."""
    async with shelves.db.connection() as conn:
        return await imports.credentials_of(conn, caller.tenant, caller.project)


async def delete_credential(shelves: Shelves, *, caller: Caller, name: str) -> None:
    """Forget a secret; twice is the same as once.

    Raises:
        InvalidArgument: the name is none.
    """
    check_name(name)
    async with shelves.db.transaction() as conn:
        await imports.delete_credential(conn, caller.tenant, caller.project, name)


async def opened(
    shelves: Shelves, *, tenant: str, project: str, name: str, kind: str
) -> dict[str, str]:
    """Return a secret in clear, for a child process alone; empty where no name is given.

    Raises:
        CredentialNotFound: the project has none of that name.
        InvalidArgument: it is of another kind.
        CredentialUnreadable: the catalog's key was changed.
    """
    if not name:
        return {}
    check_name(name)
    async with shelves.db.connection() as conn:
        found = await imports.find_credential(conn, tenant, project, name)
    if found is None:
        raise CredentialNotFound(name)
    if found.kind != kind:
        raise InvalidArgument(
            f"the credential {name} is for {found.kind}, and this import needs one for {kind}",
            name=name,
        )
    return shelves.sources.vault.open((tenant, project, name), found.secret)
