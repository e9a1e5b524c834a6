"""The files of a model folder that say how it reads text: tokenizer, chat template, limits."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from lehr.errors import InvalidArgument

_NAMED = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
#: Tokenizers without a limit write 1e30 or so; no model reads a billion tokens.
_NO_LIMIT = 1_000_000_000


@contextmanager
def tokenizer_faults() -> Iterator[None]:
    """Turn what a tokenizer's own code raises, panics of its Rust code included, into words.

    Raises:
        InvalidArgument: the tokenizer does not work (TOKENIZER_BROKEN).
    """
    try:
        yield
    except BaseException as error:
        # A panic is no Exception, so that nothing catches it by mistake; here it is the model's.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise InvalidArgument(
            f"the model's tokenizer does not work: {str(error)[:200]}; save it again, or use "
            "another model",
            reason="TOKENIZER_BROKEN",
        ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerFiles:
    """What training needs of a model folder, read but not yet interpreted."""

    tokenizer_json: Mapping[str, Any]
    special_tokens: Mapping[str, str]
    """Text of each named special token, such as ``eos_token``."""
    chat_templates: Mapping[str, str]
    """By name; a model with a single template calls it ``default``."""
    context: int | None
    """Most tokens that model and tokenizer take, or None where neither says."""
    config_eos_ids: frozenset[int]
    """End tokens that the model's configuration names; chat models often have several."""

    @classmethod
    def read(cls, model_dir: Path) -> TokenizerFiles:
        """Read a model folder.

        Raises:
            InvalidArgument: ``tokenizer.json`` is missing, or a file is not JSON.
        """
        if not (model_dir / "tokenizer.json").is_file():
            raise InvalidArgument(
                "the model has no tokenizer.json; save its tokenizer in the fast format",
                reason="NO_TOKENIZER",
            )
        config, settings = (
            _json(model_dir, "config.json"),
            _json(model_dir, "tokenizer_config.json"),
        )
        generation = _json(model_dir, "generation_config.json")
        named = {**_json(model_dir, "special_tokens_map.json"), **settings}
        return cls(
            tokenizer_json=_json(model_dir, "tokenizer.json"),
            special_tokens=_special_tokens(named),
            chat_templates=_chat_templates(model_dir, settings),
            context=_context(config, settings),
            config_eos_ids=_eos_ids(config) | _eos_ids(_text(config)) | _eos_ids(generation),
        )

    def tokenizer(self) -> Tokenizer:
        """Build the tokenizer, without the cutting and padding that its file may ask for."""
        exact = _keep_spaces_in_offsets(
            {**self.tokenizer_json, "truncation": None, "padding": None}
        )
        with tokenizer_faults():
            return Tokenizer.from_str(json.dumps(exact, ensure_ascii=False))

    def eos_token_id(self, tokenizer: Tokenizer) -> int | None:
        """Return the token that ends a document, or None."""
        token = self.special_tokens.get("eos_token")
        named: int | None = tokenizer.token_to_id(token) if token is not None else None
        return named if named is not None else min(self.config_eos_ids, default=None)

    def end_token_ids(self, tokenizer: Tokenizer) -> frozenset[int]:
        """Return every token that ends a turn."""
        eos = self.eos_token_id(tokenizer)
        return self.config_eos_ids | (frozenset() if eos is None else {eos})


def _json(model_dir: Path, name: str) -> dict[str, Any]:
    path = model_dir / name
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_bytes())
    except ValueError as error:
        raise InvalidArgument(
            f"the model's {name} is not JSON: {error}", reason="MODEL_FILE_INVALID", file=name
        ) from error
    if not isinstance(found, dict):
        raise InvalidArgument(
            f"the model's {name} is not an object", reason="MODEL_FILE_INVALID", file=name
        )
    return found


def _special_tokens(named: Mapping[str, Any]) -> dict[str, str]:
    extra = named.get("extra_special_tokens")
    found = {name: named.get(name) for name in _NAMED} | (extra if isinstance(extra, dict) else {})
    texts = {
        name: token.get("content") if isinstance(token, dict) else token
        for name, token in found.items()
    }
    return {name: text for name, text in texts.items() if isinstance(text, str)}


def _chat_templates(model_dir: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    """Return templates by name; files of their own outrank the tokenizer's settings."""
    templates: dict[str, str] = {}
    inline = settings.get("chat_template")
    if isinstance(inline, str):
        templates["default"] = inline
    elif isinstance(inline, list):
        templates.update({entry["name"]: entry["template"] for entry in inline})
    single = model_dir / "chat_template.jinja"
    if single.is_file():
        templates["default"] = single.read_text(encoding="utf-8")
    for path in sorted((model_dir / "additional_chat_templates").glob("*.jinja")):
        templates[path.stem] = path.read_text(encoding="utf-8")
    return templates


def _text(config: Mapping[str, Any]) -> Mapping[str, Any]:
    inner = config.get("text_config")
    return inner if isinstance(inner, dict) else config


def _context(config: Mapping[str, Any], settings: Mapping[str, Any]) -> int | None:
    limits = (_text(config).get("max_position_embeddings"), settings.get("model_max_length"))
    sane = [
        int(limit) for limit in limits if isinstance(limit, int | float) and 0 < limit < _NO_LIMIT
    ]
    return min(sane, default=None)


def _eos_ids(config: Mapping[str, Any]) -> frozenset[int]:
    eos = config.get("eos_token_id")
    return frozenset(
        token for token in (eos if isinstance(eos, list) else [eos]) if isinstance(token, int)
    )


def _keep_spaces_in_offsets(part: Any) -> Any:
    """Turn ``trim_offsets`` off, so that a token of spaces alone still lies somewhere."""
    if isinstance(part, dict):
        return {
            key: False if key == "trim_offsets" else _keep_spaces_in_offsets(value)
            for key, value in part.items()
            if key not in ("vocab", "merges")
        } | {key: part[key] for key in ("vocab", "merges") if key in part}
    if isinstance(part, list):
        return [_keep_spaces_in_offsets(inner) for inner in part]
    return part
