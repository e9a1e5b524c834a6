"""What can be wrong with an event itself."""

from lehr.errors import InvalidArgument


class MalformedEvent(InvalidArgument):
    """The bytes are no event of the type that the reader expects; a retry would not help."""

    reason = "EVENT_MALFORMED"


class InvalidSubject(InvalidArgument):
    """The text is no subject of an event."""

    reason = "EVENT_SUBJECT_INVALID"
