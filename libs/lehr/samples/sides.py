"""What is shown and what is answered: read from a row's columns and brought into one form."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import takewhile
from typing import Any

from lehr.samples.chats import check_order, read_chat, read_tools
from lehr.samples.checks import check_json, text_of, wrong
from lehr.samples.images import StoreImage, listed_images, place_images
from lehr.samples.rows import Chat, Side, Tools

#: Columns that only a chat can show, whose presence turns a row of text into one.
_CHAT_COLUMNS = ("system", "tools", "images", "image")


class Given:
    """The columns of a row, and what stores its images."""

    def __init__(
        self,
        columns: Mapping[str, Any],
        store: StoreImage | None,
        others: Mapping[str, Any] | None = None,
    ) -> None:
        self.columns = columns
        self._store = store
        self._others = others

    def first(self, names: Sequence[str]) -> str:
        """Return the first of ``names`` that is a column with a value, or an empty name."""
        return next((name for name in names if self.columns.get(name) is not None), "")

    def side(self, field: str) -> Side:
        """Return a column that is text or messages; a single message stands for a list of one."""
        value = self.columns[field]
        if isinstance(value, str):
            return text_of(value, field)
        return read_chat([value] if isinstance(value, dict) else value, field)

    def others(self, used: Collection[str]) -> dict[str, Any]:
        """Return all columns that are not ``used``, each checked to be JSON."""
        if self._others is not None:
            others = dict(self._others)
        else:
            others = {name: it for name, it in self.columns.items() if name not in used}
        for name, value in others.items():
            check_json(value, text_of(name, ""))
        return others

    def finish(self, *sides: tuple[str, Side]) -> tuple[list[Any], Tools | None, tuple[str, ...]]:
        """Return the sides ready for a row, its tools and its images.

        The first side is what is shown, or a whole chat; any others are answers to it. Text
        becomes a chat where the row has a column that only a chat can show.

        Raises:
            InvalidArgument: the sides do not go together, or their messages have a wrong order.
        """
        tools = read_tools(self.columns.get("tools"))
        if all(isinstance(side, str) for _, side in sides):
            if not any(name in self.columns for name in _CHAT_COLUMNS):
                return [side for _, side in sides], tools, ()
            chats = _as_chats(sides)
        else:
            chats = _all_chats(sides)
        (field, shown), *answers = chats
        shown = self._with_system(field, shown)
        if not answers:
            check_order([(field, shown)])
        for answer in answers:
            check_order([(field, shown), answer])
        placed, names = place_images([(field, shown), *answers], self._images(), self._store)
        return placed, tools, names

    def _with_system(self, field: str, chat: Chat) -> Chat:
        system = self.columns.get("system")
        if system is None or system == "":
            return chat
        text_of(system, "system")
        if not chat or chat[0]["role"] not in ("system", "developer"):
            return ({"role": "system", "content": system}, *chat)
        if chat[0].get("content") != system:
            raise wrong("system", f"differs from the system message of {field}; keep one of them")
        return chat

    def _images(self) -> list[Any]:
        several = listed_images(self.columns.get("images"), "images")
        return several or listed_images(self.columns.get("image"), "image")


def common_prompt(chosen: Side, rejected: Side) -> tuple[Side, Side, Side]:
    """Split off what two answers begin with; each keeps at least its last message or character.

    Raises:
        InvalidArgument: they begin differently.
    """
    pairs = zip(chosen[:-1], rejected[:-1], strict=False)
    length = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    if isinstance(chosen, str) and chosen[:length].endswith(" "):
        # The space before a word belongs to its token, so to the answers.
        length -= 1
    if not length:
        raise wrong("prompt", "is missing, and chosen and rejected share no beginning; add one")
    return chosen[:length], chosen[length:], rejected[length:]


def check_answer(field: str, side: Side, *, may_be_empty: bool = False) -> None:
    """Check that a side is what a model can write.

    Raises:
        InvalidArgument: it is empty, or begins with another's message.
    """
    if not side and not (may_be_empty and isinstance(side, str)):
        raise wrong(field, "is empty; there is nothing to learn from")
    if not isinstance(side, str) and side[0]["role"] != "assistant":
        raise wrong(
            f"{field}[0].role", f"is {side[0]['role']!r}; an answer begins with the assistant"
        )


def _as_chats(sides: Sequence[tuple[str, Side]]) -> list[tuple[str, Chat]]:
    roles = ["user", *["assistant"] * (len(sides) - 1)]
    return [
        (field, ({"role": role, "content": side},) if side or role == "assistant" else ())
        for role, (field, side) in zip(roles, sides, strict=True)
    ]


def _all_chats(sides: Sequence[tuple[str, Side]]) -> list[tuple[str, Chat]]:
    first, shown = sides[0]
    chats: list[tuple[str, Chat]] = []
    for field, side in sides:
        if isinstance(side, str) != isinstance(shown, str):
            raise wrong(field, f"must be text or messages, whichever {first} is")
        if not isinstance(side, str):
            chats.append((field, side))
    return chats
