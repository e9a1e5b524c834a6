"""Chat templates for base models that have none, chosen by name and never by guess.

All mark what an assistant generates, its end mark included.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from lehr.errors import FieldViolation, InvalidArgument

FIELD = "data.chat_template"


@dataclass(frozen=True, slots=True, kw_only=True)
class BundledTemplate:
    """A template of ours and what a tokenizer must know for it."""

    name: str
    title: str
    needs: tuple[str, ...]
    """Tokens that must be in the vocabulary: split into pieces, a mark would end nothing."""

    def source(self) -> str:
        """Return the Jinja source."""
        return Path(__file__).with_name(f"{self.name}.jinja").read_text(encoding="utf-8")


TEMPLATES: Mapping[str, BundledTemplate] = {
    one.name: one
    for one in (
        BundledTemplate(
            name="plain",
            title="User: ... Assistant: ..., ended by the end token; for any model",
            needs=(),
        ),
        BundledTemplate(
            name="alpaca",
            title="### Instruction and ### Response, as in Stanford Alpaca; for any model",
            needs=(),
        ),
        BundledTemplate(
            name="zephyr",
            title="<|user|> and <|assistant|> in plain letters; for any model",
            needs=(),
        ),
        BundledTemplate(
            name="mistral", title="[INST] and [/INST]; base models of Mistral", needs=()
        ),
        BundledTemplate(
            name="chatml",
            title="<|im_start|> and <|im_end|>; base models of Qwen, SmolLM2 and others",
            needs=("<|im_start|>", "<|im_end|>"),
        ),
        BundledTemplate(
            name="llama3",
            title="<|start_header_id|> and <|eot_id|>; base models of Llama 3",
            needs=("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        ),
        BundledTemplate(
            name="gemma",
            title="<start_of_turn> and <end_of_turn>; base models of Gemma 2 and 3",
            needs=("<start_of_turn>", "<end_of_turn>"),
        ),
    )
}


def bundled(name: str, tokenizer: Tokenizer, special_tokens: Mapping[str, str]) -> str:
    """Return the source of a bundled template that a model's tokenizer can follow.

    Raises:
        InvalidArgument: there is no such template (TEMPLATE_UNKNOWN), or the tokenizer does not
            know its marks (TEMPLATE_DOES_NOT_FIT).
    """
    template = TEMPLATES.get(name)
    if template is None:
        known = ", ".join(TEMPLATES)
        raise _refused(f"is {name!r}; use one of {known}", reason="TEMPLATE_UNKNOWN")
    missing = [token for token in template.needs if tokenizer.token_to_id(token) is None]
    if missing:
        raise _refused(
            f"{name} needs the tokens {', '.join(missing)}, which this model does not know; "
            "use plain",
            reason="TEMPLATE_DOES_NOT_FIT",
        )
    if "eos_token" not in special_tokens:
        raise _refused(
            f"{name} ends answers with the end token, and this tokenizer names none; "
            "use a model whose tokenizer_config.json has eos_token",
            reason="TEMPLATE_DOES_NOT_FIT",
        )
    return template.source()


def _refused(what: str, *, reason: str) -> InvalidArgument:
    return InvalidArgument(
        f"{FIELD}: {what}",
        reason=reason,
        fields=[FieldViolation(field=FIELD, description=what)],
    )
