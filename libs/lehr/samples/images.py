"""Images of a row: from every way to write them to parts ``{"type": "image"}`` and stored names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from lehr.errors import InvalidArgument
from lehr.samples.chats import IMAGE_PARTS
from lehr.samples.checks import parsed, shown, type_name, wrong
from lehr.samples.rows import Chat

StoreImage = Callable[[Any], str]
"""Stores an image and returns its name in the dataset's archive.

It gets a path relative to the dataset's folder, a ``data:`` URL, bytes, or an object with ``bytes``
and ``path`` as parquet files have it, and raises InvalidArgument where that is no readable image.
"""

PLACEHOLDER = "<image>"
"""Stands for the next image in texts of ShareGPT and LLaVA files."""

_ADDRESS = re.compile(r"\s*(?!data:)(?:[a-z][a-z0-9+.-]*:)?//", re.IGNORECASE)
_PART = {"type": "image"}


def listed_images(value: object, field: str) -> list[Any]:
    """Return the images of a column: a list, a list as JSON text, or a single one."""
    found = parsed(value, field, begins="[")
    if found is None or found == "":
        return []
    return list(found) if isinstance(found, list | tuple) else [found]


def place_images(
    sides: Sequence[tuple[str, Chat]], column: Sequence[Any], store: StoreImage | None
) -> tuple[list[Chat], tuple[str, ...]]:
    """Return the sides with an empty part for each image, and the images' names in that order.

    Images of a column fill the parts that bring none of their own. Where a row has no parts, they
    fill the placeholders ``<image>`` of its texts, or else stand before the first user's text.

    Raises:
        InvalidArgument: there are more or fewer images than places for them, or one is not stored.
    """
    chats = [chat for _, chat in sides]
    if not any(map(_has_parts, chats)):
        if not column:
            return chats, ()
        chats = _with_parts(chats, len(column))
    values: list[tuple[str, Any]] = []
    rest = iter(enumerate(column))
    for (field, _), chat in zip(sides, chats, strict=True):
        for place, part in _image_parts(chat):
            at, value = -1, _own(part)
            if value is None:
                at, value = next(rest, (-1, None))
            values.append((f"images[{at}]" if at >= 0 else f"{field}{place}", value))
    _check_count(chats, values, column)
    return [_emptied(chat) for chat in chats], tuple(_name(*one, store) for one in values)


def _check_count(
    chats: Sequence[Chat], values: list[tuple[str, Any]], column: Sequence[Any]
) -> None:
    own = sum(_own(part) is not None for chat in chats for _, part in _image_parts(chat))
    if len(values) - own != len(column):
        raise wrong(
            "images",
            f"are {len(column)}, but the messages have places for {len(values) - own}; "
            "write one image for each place",
        )


def _has_parts(chat: Chat) -> bool:
    return any(type(turn.get("content")) is list and any(_image_parts((turn,))) for turn in chat)


def _image_parts(chat: Chat) -> Iterator[tuple[str, dict[str, Any]]]:
    for at, turn in enumerate(chat):
        if isinstance(turn.get("content"), list):
            for number, part in enumerate(turn["content"]):
                if part.get("type") in IMAGE_PARTS:
                    yield f"[{at}].content[{number}]", part


def _own(part: dict[str, Any]) -> Any:
    """Return the image that a part brings itself, or None."""
    value = part.get("image_url") if part["type"] == "image_url" else part.get("image")
    if part["type"] == "image_url" and isinstance(value, dict):
        return value.get("url")
    return value


def _name(field: str, value: Any, store: StoreImage | None) -> str:
    if isinstance(value, str) and _ADDRESS.match(value):
        raise wrong(
            field, f"is the address {shown(value)}; nothing is fetched, so put the image in a zip"
        )
    if not isinstance(value, str | bytes | dict) or not value:
        raise wrong(field, f"is {type_name(value)}; write the path of an image")
    if store is None:
        raise wrong(field, "is an image, but no images came with the file; add a zip of both")
    try:
        return store(value)
    except InvalidArgument as error:
        raise wrong(field, error.message) from error


def _emptied(chat: Chat) -> Chat:
    return tuple(
        turn if not isinstance(turn.get("content"), list) else turn | {"content": _parts(turn)}
        for turn in chat
    )


def _parts(turn: dict[str, Any]) -> list[dict[str, Any]]:
    return [dict(_PART) if one.get("type") in IMAGE_PARTS else one for one in turn["content"]]


def _with_parts(chats: Sequence[Chat], count: int) -> list[Chat]:
    places = sum(_text(turn).count(PLACEHOLDER) for chat in chats for turn in chat)
    if places == count:
        return [tuple(map(_split, chat)) for chat in chats]
    if places:
        raise wrong(
            "images",
            f"are {count}, but the messages have {places} {PLACEHOLDER}; "
            "write one image for each place",
        )
    return _before_first_question(chats, count)


def _text(turn: dict[str, Any]) -> str:
    """Return the text of a message that may hold placeholders: not an answer's."""
    content = turn.get("content")
    return content if isinstance(content, str) and turn["role"] != "assistant" else ""


def _split(turn: dict[str, Any]) -> dict[str, Any]:
    if PLACEHOLDER not in _text(turn):
        return turn
    parts: list[dict[str, Any]] = []
    for number, text in enumerate(turn["content"].split(PLACEHOLDER)):
        if number:
            parts.append(dict(_PART))
        if text:
            parts.append({"type": "text", "text": text})
    return turn | {"content": parts}


def _before_first_question(chats: Sequence[Chat], count: int) -> list[Chat]:
    placed = [list(chat) for chat in chats]
    for turns in placed:
        for at, turn in enumerate(turns):
            if turn["role"] == "user":
                content = turn["content"]
                told = [{"type": "text", "text": content}] if isinstance(content, str) else content
                turns[at] = turn | {"content": [dict(_PART) for _ in range(count)] + told}
                return [tuple(turns) for turns in placed]
    raise wrong("images", "have no user's message to stand in")
