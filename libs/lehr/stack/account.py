"""The account without rights that Postgres runs as when we are root, and what it can reach."""

import os
import pwd
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from lehr.stack.errors import FolderRefused
from lehr.stack.part import User
from lehr.stack.processes import die_with_parent

_ACCOUNT = "nobody"
# First /var/lib: below /tmp and /var/tmp many systems delete what was not read for a month.
_FOREIGN_PLACES = (Path("/var/lib"), Path(tempfile.gettempdir()))


def unprivileged_user() -> User | None:
    """Return whom to become; None for an ordinary user, who stays.

    Raises:
        FolderRefused: we are root and the system has no such account.
    """
    if os.geteuid() != 0:
        return None
    try:
        entry = pwd.getpwnam(_ACCOUNT)
    except KeyError:
        raise FolderRefused(
            f"Postgres refuses to run as root, and there is no account {_ACCOUNT} to run it as:"
            " add one, or start the stack as an ordinary user"
        ) from None
    return User(uid=entry.pw_uid, gid=entry.pw_gid)


def run_as(
    user: User | None, command: Sequence[str], *, folder: Path, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end as somebody; the caller looks at the exit code."""
    return subprocess.run(
        command,
        cwd=folder,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        user=None if user is None else user.uid,
        group=None if user is None else user.gid,
        extra_groups=None if user is None else [],
        preexec_fn=die_with_parent(),
    )


def can_run(program: Path, user: User) -> bool:
    """Say whether somebody can start a program, with the libraries beside it."""
    try:
        shown = run_as(user, [str(program), "--version"], folder=Path("/"), environment={})
    except OSError:
        return False
    return shown.returncode == 0


def can_reach(folder: Path, user: User) -> bool:
    """Say whether somebody can pass through a folder and all above it."""
    return all(_can_pass(step, user) for step in (folder, *folder.parents))


def give(path: Path, user: User | None) -> None:
    """Make somebody the owner."""
    if user is not None:
        os.chown(path, user.uid, user.gid)


def make_place(place: Path, user: User | None) -> None:
    """Make a folder that somebody owns; may be called again.

    Where the user cannot reach it, the folder is made elsewhere and ``place`` is a link to it.

    Raises:
        FolderRefused: what the link names is gone, or the user can no longer reach it.
    """
    if not place.is_symlink() and not place.exists():
        if user is None or can_reach(place.parent, user):
            place.mkdir(mode=0o700)
        else:
            place.symlink_to(_foreign_place(user))
    target = place.resolve()
    if not target.is_dir():
        raise FolderRefused(
            f"the database of this stack was in {target}, which is gone: restore it, or delete"
            f" the link {place} to begin with an empty one",
            folder=target,
        )
    give(target, user)
    if user is not None and not can_reach(target, user):
        raise FolderRefused(
            f"{_ACCOUNT} cannot reach {target}, and Postgres refuses to run as root: give all"
            " folders above it permission x for others (chmod o+x)",
            folder=target,
        )


def _foreign_place(user: User) -> Path:
    for base in _FOREIGN_PLACES:
        if can_reach(base, user) and os.access(base, os.W_OK):
            return Path(tempfile.mkdtemp(prefix="lehr-postgres-", dir=base))
    raise FolderRefused(f"no folder of {_FOREIGN_PLACES} can be used for the database")


def _can_pass(folder: Path, user: User) -> bool:
    found = folder.stat()
    if found.st_uid == user.uid:
        return bool(found.st_mode & 0o100)
    if found.st_gid == user.gid:
        return bool(found.st_mode & 0o010)
    return bool(found.st_mode & 0o001)
