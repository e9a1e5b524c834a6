"""The toy tokenizer of the requirements: one code point is one token, and so is each mark.

A chat is ``<s>``, then for each message the role mark, its text, ``</s>``. Trained: the text and
the ``</s>`` of assistant messages, nothing else.
"""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers

from lehr.demo.tiny import LlamaShape, write_llama

MARKS = ("<s>", "</s>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", "<pad>")
#: Code points with a token of their own; any other is the replacement character's.
_CODE_POINTS = range(0x500)
_UNKNOWN = "\N{REPLACEMENT CHARACTER}"

_TURNS = "{{{{ '<s>' }}}}{{% for message in messages %}}{turn}{{% endfor %}}"
_TURN = "{{ '<|' + message['role'] + '|>' + (message['content'] or '') + '</s>' }}"
_MARKED_TURN = (
    "{{ '<|' + message['role'] + '|>' }}"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + '</s>' }}{% endgeneration %}"
    "{% else %}{{ message['content'] + '</s>' }}{% endif %}"
)
_PROMPT = "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"

PLAIN_TEMPLATE = _TURNS.format(turn=_TURN) + _PROMPT
MARKED_TEMPLATE = _TURNS.format(turn=_MARKED_TURN) + _PROMPT
"""Renders the same text, and marks the answers."""
SHOUTING_TEMPLATE = _TURNS.format(turn=_TURN.replace("'] or ''", "'] | upper")) + _PROMPT
"""Upper-cases all text, so that no answer can be found again."""
SILENT_TEMPLATE = _TURNS.format(turn=_TURN)
"""Has no generation prompt."""


def write_toy_model(
    folder: Path,
    *,
    template: str = PLAIN_TEMPLATE,
    pad_token: str = "</s>",  # noqa: S107 - a mark, not a password
    context: int = 1024,
    tie_word_embeddings: bool = True,
) -> Path:
    """Write a tiny random Llama with the toy tokenizer into ``folder`` and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = toy_tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": pad_token,
        "chat_template": template,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    shape = LlamaShape(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=32,
        intermediate_size=64,
        max_position_embeddings=context,
        tie_word_embeddings=tie_word_embeddings,
    )
    ids = {"bos_token_id": "<s>", "eos_token_id": "</s>", "pad_token_id": pad_token}
    write_llama(
        folder, shape, special_ids={name: MARKS.index(token) for name, token in ids.items()}
    )
    return folder


def toy_tokenizer() -> Tokenizer:
    """Build the tokenizer; ``MARKS`` come first, then the code points in their order."""
    characters = [chr(code) for code in _CODE_POINTS] + [_UNKNOWN]
    vocabulary = {token: at for at, token in enumerate((*MARKS, *characters))}
    tokenizer = Tokenizer(models.WordLevel(vocab=vocabulary, unk_token=_UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.add_special_tokens([AddedToken(mark, normalized=False) for mark in MARKS])
    return tokenizer
