"""Turn rows into token ids and a mask of what is trained: answers, and the token that ends each."""

from __future__ import annotations

import itertools
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import itemgetter
from pathlib import Path

from tokenizers import Encoding, Tokenizer

from lehr.errors import InvalidArgument
from lehr.samples.answers import answer_spans
from lehr.samples.chat import ChatTemplate, Span
from lehr.samples.files import TokenizerFiles
from lehr.samples.rows import Row

#: Rows that are tokenised at once; the tokenizer spreads a batch over all cores.
BATCH_ROWS = 256


@dataclass(frozen=True, slots=True)
class Sample:
    """Token ids of one row, and which of them are trained."""

    token_ids: array[int]
    trained: bytes
    """One byte a token: 1 where the token is trained, 0 where it is only read."""

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def trained_tokens(self) -> int:
        """Tokens that are trained."""
        return self.trained.count(1)

    @property
    def is_trainable(self) -> bool:
        """Whether the loss has a term; nothing predicts the first token."""
        return 1 in self.trained[1:]

    def labels(self, ignore: int = -100) -> list[int]:
        """Return the token ids with ``ignore`` in place of those that are not trained."""
        pairs = zip(self.token_ids, self.trained, strict=True)
        return [token if trained else ignore for token, trained in pairs]

    def last(self, count: int) -> Sample:
        """Return the sample cut to its last ``count`` tokens."""
        return Sample(self.token_ids[-count:], self.trained[-count:])


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """The text of a row, and the spans of it that are trained."""

    text: str
    spans: tuple[Span, ...]
    is_plain: bool
    """Text as it stands, to which the tokenizer adds its own marks; not a rendered chat."""


class SampleTokenizer:
    """A model's tokenizer and chat template, as far as training needs them."""

    def __init__(self, files: TokenizerFiles, *, now: datetime | None = None) -> None:
        self._tokenizer: Tokenizer = files.tokenizer()
        self._templates = {
            name: ChatTemplate(source, special_tokens=files.special_tokens, now=now)
            for name, source in files.chat_templates.items()
        }
        self.context = files.context
        """Most tokens that model and tokenizer take, or None where neither says."""
        self.eos_token_id = files.eos_token_id(self._tokenizer)
        """The token that ends a document, or None."""
        self._end_ids = frozenset(files.end_token_ids(self._tokenizer))

    @classmethod
    def load(cls, model_dir: Path, *, now: datetime | None = None) -> SampleTokenizer:
        """Read the tokenizer of a model folder; ``now`` fixes dates that its template prints.

        Raises:
            InvalidArgument: the folder has no usable tokenizer.
        """
        return cls(TokenizerFiles.read(model_dir), now=now)

    def render(self, row: Row) -> Rendered:
        """Return the text of a row and what of it is trained.

        Raises:
            InvalidArgument: the model has no chat template, or it refuses or hides the answers.
        """
        prompt, completion = row.prompt, row.completion
        if isinstance(prompt, str) and isinstance(completion, str) and not row.messages:
            text = prompt + completion
            return Rendered(text=text, spans=(Span(len(prompt), len(text)),), is_plain=True)
        text, spans = answer_spans(self._template(row), row)
        return Rendered(text=text, spans=tuple(spans), is_plain=False)

    def encode(self, rows: Iterable[Row]) -> Iterator[Sample]:
        """Yield the sample of each row, in order, working through them in batches.

        Raises:
            InvalidArgument: as ``render``; facts name the number of the row, from 1.
        """
        numbered = enumerate(rows, start=1)
        while batch := list(itertools.islice(numbered, BATCH_ROWS)):
            yield from self.encode_rendered([self._render(row, number) for number, row in batch])

    def encode_rendered(self, texts: Sequence[Rendered]) -> list[Sample]:
        """Return the sample of each text that ``render`` gave."""
        samples: list[Sample | None] = [None] * len(texts)
        for plain in (False, True):
            places = [at for at, text in enumerate(texts) if text.is_plain == plain]
            encodings = self._tokenizer.encode_batch(
                [texts[at].text for at in places], add_special_tokens=plain
            )
            for at, encoding in zip(places, encodings, strict=True):
                samples[at] = self._sample(texts[at], encoding)
        return [sample for sample in samples if sample is not None]

    def pieces(self, sample: Sample) -> list[str]:
        """Return the text of each token, for people to look at."""
        singles = [[token] for token in sample.token_ids]
        return self._tokenizer.decode_batch(singles, skip_special_tokens=False)

    def _render(self, row: Row, number: int) -> Rendered:
        try:
            return self.render(row)
        except InvalidArgument as error:
            located = InvalidArgument(f"row {number}: {error.message}", reason=error.reason)
            located.facts = {**error.facts, "row": str(number)}
            raise located from error

    def _template(self, row: Row) -> ChatTemplate:
        wanted = "tool_use" if row.tools is not None else "default"
        template = self._templates.get(wanted) or self._templates.get("default")
        if template is None:
            raise InvalidArgument(
                "the model has no chat template, so it cannot read chats; "
                "use rows with prompt and completion as text",
                reason="NO_CHAT_TEMPLATE",
            )
        return template

    def _sample(self, text: Rendered, encoding: Encoding) -> Sample:
        ids, trained = array("i", encoding.ids), bytearray(len(encoding.ids))
        offsets = encoding.offsets
        # The tokenizer's own marks have no place in the text; they lie at either end.
        added = bytes(encoding.special_tokens_mask)
        low, high = max(added.find(0), 0), added.rfind(0) + 1
        for span in text.spans:
            first = bisect_right(offsets, span.start, lo=low, hi=high, key=itemgetter(1))
            after = bisect_left(offsets, span.end, lo=first, hi=high, key=itemgetter(0))
            trained[first:after] = b"\1" * (after - first)
            self._train_end_mark(ids, trained, first, after)
        if text.is_plain:
            self._end_document(ids, trained)
        return Sample(ids, bytes(trained))

    def _train_end_mark(self, ids: array[int], trained: bytearray, first: int, after: int) -> None:
        """Train the token that ends a turn where the template's marks stop short of it."""
        has_end = any(token in self._end_ids for token in ids[first:after])
        if not has_end and after < len(ids) and ids[after] in self._end_ids:
            trained[after] = 1

    def _end_document(self, ids: array[int], trained: bytearray) -> None:
        """Make the last token the end token, once, and trained."""
        if self.eos_token_id is None:
            raise InvalidArgument(
                "the tokenizer names no end token, so a completion could never end; "
                "use a model whose tokenizer_config.json has eos_token",
                reason="NO_END_TOKEN",
            )
        if not ids or ids[-1] != self.eos_token_id:
            ids.append(self.eos_token_id)
            trained.append(1)
        trained[-1] = 1
