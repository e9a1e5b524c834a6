"""What may name an object.

``models/<tenant>/...``, ``datasets/<tenant>/...``, ``tokens/<tenant>/...``,
``uploads/<tenant>/<entry_id>/<file>/<part>``,
``checkpoints/<tenant>/<job_id>/<checkpoint_id>/<file>``.
"""

from lehr.errors import FieldViolation, InvalidArgument

LONGEST_BYTES = 1024


def check_key(key: str) -> str:
    """Return ``key`` if every S3 server takes it as it stands.

    Raises:
        InvalidArgument: too long, or a part is empty, ``.``, ``..`` or not printable.
    """
    parts = key.split("/")
    printable = all(part and part.isprintable() and "\\" not in part for part in parts)
    if not printable or {".", ".."} & set(parts) or len(key.encode()) > LONGEST_BYTES:
        rule = "must be parts between single slashes, none of them . or .., at most 1024 bytes"
        raise InvalidArgument(
            f"{key[:80]!r} cannot name an object: it {rule}",
            reason="OBJECT_KEY_MALFORMED",
            fields=[FieldViolation(field="key", description=rule)],
            key=key[:80],
        )
    return key
