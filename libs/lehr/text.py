"""Text from outside, made fit for what keeps or carries it."""


def storable(text: str) -> str:
    r"""Return the text as Postgres, JSON and gRPC can hold it.

    A NUL, which Postgres cannot hold, is shown as ``\x00``, and half a surrogate pair, which is no
    UTF-8, as ``\ud800``. Everything else is kept to the character; text that spelled one of these
    out itself looks the same.
    """
    return text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode()


def shortened(text: str, *, bytes_max: int) -> str:
    """Return storable text of at most so many bytes in UTF-8; ``...`` marks what was cut."""
    data = storable(text).encode()
    if len(data) <= bytes_max:
        return data.decode()
    return data[: max(0, bytes_max - 3)].decode("utf-8", "ignore") + "..."
