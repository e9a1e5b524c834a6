"""What can go wrong with an embedded stack, for a person at a terminal."""

from lehr.errors import AlreadyExists, FailedPrecondition, InvalidArgument, NotFound, Unavailable


class StackRuns(AlreadyExists):
    """A supervisor holds the state folder already."""

    reason = "STACK_RUNS"


class StackDown(FailedPrecondition):
    """No supervisor holds the state folder."""

    reason = "STACK_DOWN"


class StartFailed(Unavailable):
    """A part did not become ready; the message ends with the last lines of its log."""

    reason = "STACK_START_FAILED"


class StopFailed(Unavailable):
    """A process of the stack outlived its kill."""

    reason = "STACK_STOP_FAILED"


class OptionsRefused(InvalidArgument):
    """The stack was asked for in a way that contradicts itself or production."""

    reason = "STACK_OPTIONS_REFUSED"


class FolderRefused(FailedPrecondition):
    """The state folder cannot be used by this user."""

    reason = "STACK_FOLDER_REFUSED"


class OtherMajorVersion(FailedPrecondition):
    """The data folder was written by another major version of Postgres."""

    reason = "POSTGRES_MAJOR_VERSION"


class UnsafeServer(FailedPrecondition):
    """A server runs with settings under which an acknowledged write could be lost."""

    reason = "SERVER_UNSAFE"


class ProgramMissing(FailedPrecondition):
    """A server's program is not installed."""

    reason = "PROGRAM_MISSING"


class NoPortFree(Unavailable):
    """Every block of ports on the loopback address is taken."""

    reason = "NO_PORT_FREE"


class UnknownPart(NotFound):
    """The stack has no part of that name."""

    reason = "UNKNOWN_PART"
