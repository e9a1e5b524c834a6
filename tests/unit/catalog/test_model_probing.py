"""A tokenizer that somebody brings can do no more than end the process that looks at it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from services.catalog.tokens.probing import probe
from tests.support.toy_model import PLAIN_TEMPLATE, write_toy_model

#: Every rendering stays below the limits of one, and each of many takes a second.
SLOW = "{% for a in range(99) %}{% for b in range(99) %}{{ 'x' * 20000 }}{% endfor %}{% endfor %}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A toy model."""
    return write_toy_model(tmp_path / "model")


def with_template(folder: Path, template: Any) -> None:
    """Give the model another chat template."""
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": template}))


def test_what_takes_too_long_is_refused(folder: Path) -> None:
    with_template(folder, SLOW + PLAIN_TEMPLATE)

    found = probe(folder, seconds=2)

    assert "more than 2 seconds" in found.refusal


def test_a_tokenizer_that_takes_all_memory_is_refused(folder: Path) -> None:
    with (folder / "tokenizer.json").open("w") as file:
        file.write("[" + "[]," * 30_000_000 + "[]]")

    assert "memory" in probe(folder).refusal


def test_the_words_of_a_template_are_kept_short_and_plain(folder: Path) -> None:
    with_template(folder, "{{ raise_exception('\\x00\\x1b' + 'x' * 5000) }}")

    found = probe(folder)

    assert found.chat_template == "refused"
    assert found.advice.isprintable()
    assert len(found.advice) < 1000


def test_only_templates_are_advised_that_the_tokenizer_can_follow(folder: Path) -> None:
    with_template(folder, None)

    advice = probe(folder).advice

    assert "plain" in advice
    assert "chatml" not in advice
