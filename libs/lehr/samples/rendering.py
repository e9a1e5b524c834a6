"""What is tokenised of a row: its texts, and the spans of them that are trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from lehr.errors import InvalidArgument
from lehr.samples.answers import find_answers
from lehr.samples.chat import ChatTemplate, Message, Span
from lehr.samples.rows import (
    Chat,
    ChatRow,
    PreferenceRow,
    PromptAnswerRow,
    PromptCompletionRow,
    Row,
    Side,
    StepwiseRow,
    TextRow,
    Tools,
    UnpairedRow,
)
from lehr.samples.simple_chats import SimpleChats


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """One text of a row, and the spans of it that are trained."""

    text: str
    spans: tuple[Span, ...] = ()
    is_plain: bool
    """Text as it stands, to which the tokenizer adds its own marks; not a rendered chat."""
    needs_end: bool = False
    """An end token closes it, and is trained."""
    steps: tuple[str, ...] = ()
    """Steps that follow the text, each tokenised on its own."""
    images: tuple[str, ...] = ()
    """Names of the images that the text has marks for, in order."""
    hidden_answer_count: int = 0
    """Answers left out of the loss because the template hides part of what they say."""

    @property
    def prompt_end(self) -> int:
        """Where what is shown ends and the first answer begins."""
        return self.spans[0].start if self.spans else len(self.text)


class Renderer:
    """Renders rows of all kinds with a model's templates."""

    def __init__(self, templates: Mapping[str, ChatTemplate]) -> None:
        self._templates = templates
        self._simple = {name: SimpleChats(template) for name, template in templates.items()}

    def render(self, row: Row) -> tuple[Rendered, ...]:
        """Return the text of a row; of a preference, the chosen and the rejected one.

        Raises:
            InvalidArgument: the model has no chat template, or it refuses or hides the answers.
        """
        match row:
            case ChatRow():
                return (self._chat(row.messages, row.tools, row.images),)
            case PromptCompletionRow() | UnpairedRow():
                return (self._pair(row.prompt, row.completion, row.tools, row.images),)
            case TextRow():
                return (_plain("", row.text),)
            case PreferenceRow():
                return self._preference(row)
            case PromptAnswerRow():
                return (self._prompt(row),)
            case StepwiseRow():
                return (Rendered(text=row.prompt, is_plain=True, steps=row.completions),)

    def _preference(self, row: PreferenceRow) -> tuple[Rendered, Rendered]:
        shown, chosen = _image_count(row.prompt), _image_count(row.chosen)
        first, rest = row.images[: shown + chosen], row.images[shown + chosen :]
        sides = (
            self._pair(row.prompt, row.chosen, row.tools, first),
            self._pair(row.prompt, row.rejected, row.tools, (*row.images[:shown], *rest)),
        )
        shown_texts = [side.text[: side.prompt_end] for side in sides]
        if shown_texts[0] != shown_texts[1]:
            raise InvalidArgument(
                "the model's chat template renders the prompt differently before the chosen and "
                "the rejected answer, so the two cannot be compared; use another template",
                reason="CONTEXT_DIFFERS",
            )
        return sides

    def _prompt(self, row: PromptAnswerRow) -> Rendered:
        if isinstance(row.prompt, str):
            return Rendered(text=row.prompt, is_plain=True, images=row.images)
        text = self._template(row.tools).render(
            row.prompt, tools=row.tools, add_generation_prompt=True
        )
        return Rendered(text=text, is_plain=False, images=row.images)

    def _pair(
        self, prompt: Side, completion: Side, tools: Tools | None, images: tuple[str, ...]
    ) -> Rendered:
        if isinstance(prompt, str) and isinstance(completion, str):
            return replace(_plain(prompt, completion), images=images)
        before, after = _turns(prompt, "user"), _turns(completion, "assistant")
        return self._chat(before + after, tools, images, shown=len(before))

    def _chat(
        self, turns: Chat, tools: Tools | None, images: tuple[str, ...], *, shown: int = 0
    ) -> Rendered:
        name = self._name(tools)
        found = self._simple[name].find(turns, shown=shown) if tools is None else None
        found = found or find_answers(self._templates[name], turns, tools=tools, shown=shown)
        return Rendered(
            text=found.text,
            spans=found.spans,
            is_plain=False,
            images=images,
            hidden_answer_count=found.hidden_count,
        )

    def _template(self, tools: Sequence[Mapping[str, object]] | None) -> ChatTemplate:
        return self._templates[self._name(tools)]

    def _name(self, tools: Sequence[Mapping[str, object]] | None) -> str:
        wanted = "tool_use" if tools is not None else "default"
        for name in (wanted, "default"):
            if name in self._templates:
                return name
        raise InvalidArgument(
            "the model has no chat template, so it cannot read chats; "
            "choose a bundled one with data.chat_template, or use rows of text",
            reason="NO_CHAT_TEMPLATE",
        )


def _plain(shown: str, learnt: str) -> Rendered:
    text = shown + learnt
    return Rendered(text=text, spans=(Span(len(shown), len(text)),), is_plain=True, needs_end=True)


def _turns(side: Side, role: str) -> Chat:
    if not isinstance(side, str):
        return side
    return ({"role": role, "content": side},) if side else ()


def _image_count(side: Side) -> int:
    return 0 if isinstance(side, str) else sum(map(_images_of, side))


def _images_of(turn: Message) -> int:
    content = turn.get("content")
    if not isinstance(content, list):
        return 0
    return sum(isinstance(part, dict) and part.get("type") == "image" for part in content)
