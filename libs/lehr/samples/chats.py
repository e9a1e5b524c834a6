"""Read chats, in the spelling of OpenAI (role, content) or ShareGPT (from, value), and tools."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from lehr.samples.checks import (
    check_json,
    half_pair,
    parse_json,
    parsed,
    shown,
    text_of,
    type_name,
    wrong,
)
from lehr.samples.rows import Chat, Tools

ROLES: Mapping[str, str] = {
    "system": "system",
    "developer": "developer",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "function_call": "assistant",
    "tool": "tool",
    "observation": "tool",
}
"""Names that authors give a role, and the role: those of OpenAI, ShareGPT and LLaMA-Factory.

Names of single products (bing, bard, chatgpt, model) are left out: who writes them cannot be told
without a guess. A ``function_call`` is an assistant's message whose text is its calls as JSON.
"""

REASONING = ("reasoning_content", "thinking", "reasoning")
"""Keys under which an assistant's message may hold what it thought, as text."""

IMAGE_PARTS = ("image", "image_url")
_PLAIN = {"role", "content"}
_CANONICAL = tuple(sorted(set(ROLES.values())))


def read_chat(value: object, field: str) -> Chat:
    """Return the messages of a chat; a list, or a list as JSON text.

    Image parts are left as their author wrote them; ``lehr.samples.images`` reads those.

    Raises:
        InvalidArgument: a message is wrong; its place and the cure are named.
    """
    found = parsed(value, field, begins="[")
    if not isinstance(found, list | tuple):
        raise wrong(field, f"is {type_name(found)}; write a list of messages")
    return tuple(
        turn if _is_plain(turn) else _message(turn, f"{field}[{at}]")
        for at, turn in enumerate(found)
    )


def read_tools(value: object, field: str = "tools") -> Tools | None:
    """Return descriptions of tools as their author wrote them; None where there are none told."""
    found = parsed(value, field, begins="[")
    if found is None or found == "":
        return None
    if not isinstance(found, list | tuple):
        raise wrong(field, f"is {type_name(found)}; write a list of tools")
    for at, tool in enumerate(found):
        if not isinstance(tool, dict):
            raise wrong(f"{field}[{at}]", f"is {type_name(tool)}; write an object")
        check_json(tool, f"{field}[{at}]")
    return tuple(found)


def check_order(sides: Iterable[tuple[str, Chat]]) -> None:
    """Check that messages follow each other as they can: each side is a field and its chat.

    Raises:
        InvalidArgument: a system message comes late, or a tool answers that nobody can have called.
    """
    before = ""
    for field, chat in sides:
        for at, turn in enumerate(chat):
            role = turn["role"]
            if role in ("system", "developer") and before not in ("", "system", "developer"):
                raise wrong(
                    f"{field}[{at}].role", f"is {role!r} after others have spoken; put it first"
                )
            if role == "tool" and before not in ("assistant", "tool"):
                raise wrong(
                    f"{field}[{at}].role", "is 'tool', but no assistant's message comes before it"
                )
            before = role


def _is_plain(turn: Any) -> bool:
    """Return whether nothing of a message needs a closer look; most are so."""
    if type(turn) is not dict or len(turn) != 2 or turn.get("role") not in _CANONICAL:
        return False
    content = turn.get("content")
    return type(content) is str and half_pair(content) is None


def _message(value: object, field: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise wrong(field, f"is {type_name(value)}; write an object with role and content")
    role_key = "role" if value.get("role") is not None or "from" not in value else "from"
    has_content = value.get("content") is not None or "value" not in value
    content_key = "content" if has_content else "value"
    role, word = _role(value.get(role_key), f"{field}.{role_key}"), value.get(role_key)
    names = {role_key: "role", content_key: "content"}
    message: dict[str, Any] = {}
    for key, item in value.items():
        if key in names or key not in _PLAIN:
            message[names.get(key, str(key))] = item
    message["role"] = role
    if word == "function_call":
        message |= _spoken_calls(message.get("content"), f"{field}.{content_key}")
    _check_content(message, f"{field}.{content_key}")
    if message.get("tool_calls") is not None:
        message["tool_calls"] = _calls(message["tool_calls"], role, f"{field}.tool_calls")
    _check_rest(message, field)
    return message


def _role(word: object, field: str) -> str:
    role = ROLES.get(word) if isinstance(word, str) else None
    if role is None:
        raise wrong(field, f"is {shown(word)}; use one of {', '.join(ROLES)}")
    return role


def _check_rest(message: dict[str, Any], field: str) -> None:
    for key, item in message.items():
        if key in REASONING and item is not None:
            text_of(item, f"{field}.{key}")
        elif key != "content":
            check_json(item, f"{field}.{key}")


def _check_content(message: dict[str, Any], field: str) -> None:
    content = message.get("content")
    if content is None:
        if not message.get("tool_calls"):
            raise wrong(field, "is missing; write text")
    elif isinstance(content, list):
        for at, part in enumerate(content):
            _check_part(part, message["role"], f"{field}[{at}]")
    else:
        text_of(content, field)


def _check_part(part: object, role: str, field: str) -> None:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(part, dict) or kind not in ("text", *IMAGE_PARTS):
        raise wrong(field, 'is not {"type": "text", "text": ...} or {"type": "image"}')
    if kind == "text":
        if not isinstance(part.get("text"), str):
            raise wrong(f"{field}.text", "is missing; write text")
        check_json(part, field)
    elif role == "assistant":
        raise wrong(field, "is an image of the assistant's; a model answers with text")


def _spoken_calls(value: object, field: str) -> dict[str, Any]:
    """Return the message that a ShareGPT ``function_call`` stands for."""
    calls = parse_json(value, field) if isinstance(value, str) else value
    told = calls if isinstance(calls, list) else [calls]
    return {
        "content": None,
        "tool_calls": [{"type": "function", "function": call} for call in told],
    }


def _calls(value: object, role: str, field: str) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        raise wrong(field, f"is {type_name(value)}; write a list of calls")
    if value and role != "assistant":
        raise wrong(field, f"is in a message of {role}; only an assistant calls tools")
    return [_call(call, f"{field}[{at}]") for at, call in enumerate(value)]


def _call(value: object, field: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise wrong(field, f"is {type_name(value)}; write an object")
    inner = value.get("function")
    if inner is None:
        return _function(value, field)
    if not isinstance(inner, dict):
        raise wrong(f"{field}.function", f"is {type_name(inner)}; write an object")
    return {**value, "function": _function(inner, f"{field}.function")}


def _function(value: dict[str, Any], field: str) -> dict[str, Any]:
    if not isinstance(value.get("name"), str):
        raise wrong(f"{field}.name", "is missing; write the tool's name")
    arguments = value.get("arguments")
    if isinstance(arguments, str):
        # Text and object mean the same; templates print an object without backslashes.
        arguments = parse_json(arguments, f"{field}.arguments") if arguments.strip() else {}
    if arguments is not None and not isinstance(arguments, dict):
        raise wrong(f"{field}.arguments", f"is {type_name(arguments)}; write an object")
    return value if "arguments" not in value else {**value, "arguments": arguments}
