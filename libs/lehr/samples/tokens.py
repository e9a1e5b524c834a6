"""Turn rows into token ids and a mask of what is trained: answers, and the token that ends each."""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from importlib.metadata import version
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer

from lehr.errors import InvalidArgument
from lehr.samples.chat import ChatTemplate, Span
from lehr.samples.files import TokenizerFiles, tokenizer_faults
from lehr.samples.rendering import Rendered, Renderer
from lehr.samples.rows import Row, StepwiseRow
from lehr.samples.selection import Sample
from lehr.samples.table import STEP_RIGHT, STEP_WRONG
from lehr.samples.templates import bundled
from lehr.samples.vision import ImageRule, UnknownRule, read_rule, sizes_in

Ids = NDArray[np.int32]
Mask = NDArray[np.uint8]

#: What closes a step (TRL, PRMConfig.step_separator); the last token of it bears the verdict.
STEP_SEPARATOR = "\n"
_DEFAULT = "default"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowTokens:
    """Tokens of one row; see ``lehr.samples.table`` for the segments of each kind."""

    token_ids: Ids
    trained: Mask
    segment_ends: tuple[int, ...]
    hidden_answer_count: int = 0

    @property
    def sample(self) -> Sample:
        """All segments as one sample, which they are but for preferences."""
        return Sample(self.token_ids, self.trained)


class SampleTokenizer:
    """A model's tokenizer and chat template, as far as training needs them."""

    def __init__(
        self,
        files: TokenizerFiles,
        *,
        tokenizer: Tokenizer | None = None,
        now: datetime | None = None,
        rule: ImageRule | UnknownRule | None = None,
        images: Path | None = None,
    ) -> None:
        self._tokenizer: Tokenizer = tokenizer or files.tokenizer()
        self._renderer = Renderer(
            {
                name: ChatTemplate(source, special_tokens=files.special_tokens, now=now)
                for name, source in files.chat_templates.items()
            }
        )
        self.context = files.context
        """Most tokens that model and tokenizer take, or None where neither says."""
        self.eos_token_id = files.eos_token_id(self._tokenizer)
        """The token that ends a document, or None."""
        self.prints_dates = any("strftime_now" in text for text in files.chat_templates.values())
        """Whether the tokens may differ from day to day."""
        self.digest = _digest(files, rule)
        """SHA-256 in hex of all that the tokens of a row depend on, but for dates."""
        self._end_ids = frozenset(files.end_token_ids(self._tokenizer))
        self._bos_id = _token_id(self._tokenizer, files.special_tokens.get("bos_token"))
        self._added = _added_marks(self._tokenizer)
        self._rule = rule
        self._size_of = sizes_in(images)

    @classmethod
    def load(
        cls,
        model_dir: Path,
        *,
        now: datetime | None = None,
        chat_template: str | None = None,
        images: Path | None = None,
    ) -> SampleTokenizer:
        """Read the tokenizer of a model folder; ``now`` fixes dates that its template prints.

        ``chat_template`` is the source of a template instead of the model's own; ``images`` is the
        archive that holds the images of the rows.

        Raises:
            InvalidArgument: the folder has no usable tokenizer.
        """
        files = TokenizerFiles.read(model_dir)
        if chat_template is not None:
            files = _with_template(files, chat_template)
        return cls(files, now=now, rule=read_rule(model_dir), images=images)

    @classmethod
    def load_bundled(
        cls,
        model_dir: Path,
        template: str | None,
        *,
        now: datetime | None = None,
        images: Path | None = None,
    ) -> SampleTokenizer:
        """Read a tokenizer with the bundled template of a name; None keeps the model's own.

        Raises:
            InvalidArgument: the folder has no usable tokenizer, or it cannot follow the template.
        """
        source = None
        if template is not None:
            files = TokenizerFiles.read(model_dir)
            source = bundled(template, files.tokenizer(), files.special_tokens)
        return cls.load(model_dir, now=now, chat_template=source, images=images)

    def render(self, row: Row) -> tuple[Rendered, ...]:
        """Return the text of a row and what of it is trained; of a preference, both sides.

        Raises:
            InvalidArgument: the model has no chat template, it refuses or hides the answers, or
                the model does not read images.
        """
        texts = self._renderer.render(row)
        if row.has_images and self._rule is None:
            raise InvalidArgument(
                "the row has images, and the model reads text only; use a vision model, "
                "or rows without images",
                reason="IMAGES_NOT_READ",
            )
        return texts

    def encode(self, rows: Sequence[Row]) -> list[RowTokens]:
        """Return the tokens of each row, all worked through as one batch.

        Raises:
            InvalidArgument: as ``render``; facts name the number of the row among these, from 0.
        """
        texts = [self._render(row, number) for number, row in enumerate(rows)]
        samples = iter(self.encode_rendered([text for row_texts in texts for text in row_texts]))
        return [
            self._row_tokens(row, row_texts, [next(samples) for _ in row_texts])
            for row, row_texts in zip(rows, texts, strict=True)
        ]

    def encode_rendered(self, texts: Sequence[Rendered]) -> list[Sample]:
        """Return the sample of each text that ``render`` gave."""
        encodings: list[Encoding | None] = [None] * len(texts)
        for is_plain in (False, True):
            places = [at for at, text in enumerate(texts) if text.is_plain == is_plain]
            batch = self._encoded(
                [texts[at].text for at in places],
                # A row of steps begins with its own mark, as TRL's reward trainer writes it.
                marks=is_plain and not any(texts[at].steps for at in places),
            )
            for at, encoding in zip(places, batch, strict=True):
                encodings[at] = encoding
        return [
            self._sample(text, encoding)
            for text, encoding in zip(texts, encodings, strict=True)
            if encoding is not None
        ]

    def pieces(self, sample: Sample) -> list[str]:
        """Return the text of each token, for people to look at."""
        singles = [[token] for token in sample.token_ids.tolist()]
        with tokenizer_faults():
            return self._tokenizer.decode_batch(singles, skip_special_tokens=False)

    def _encoded(self, texts: Sequence[str], *, marks: bool = False) -> list[Encoding]:
        with tokenizer_faults():
            return self._tokenizer.encode_batch(texts, add_special_tokens=marks)

    def _render(self, row: Row, number: int) -> tuple[Rendered, ...]:
        try:
            return self.render(row)
        except InvalidArgument as error:
            error.facts = {**error.facts, "row": str(number)}
            raise

    def _row_tokens(
        self, row: Row, texts: Sequence[Rendered], samples: Sequence[Sample]
    ) -> RowTokens:
        hidden = sum(text.hidden_answer_count for text in texts)
        first = samples[0]
        if len(samples) == 2:
            return _compared(samples[0], samples[1], hidden)
        if isinstance(row, StepwiseRow):
            first = self._with_verdicts(first, row)
        ends: tuple[int, ...] = (len(first),)
        if row.kind == "unpaired_preference":
            ends = (_prompt_length(first), len(first))
        return RowTokens(
            token_ids=first.token_ids,
            trained=first.trained,
            segment_ends=ends,
            hidden_answer_count=hidden,
        )

    def _with_verdicts(self, prompt: Sample, row: StepwiseRow) -> Sample:
        """Append the steps, each closed by the separator, whose last token bears the verdict."""
        batch = self._encoded([*row.completions, STEP_SEPARATOR])
        closing = batch[-1].ids
        ids = [] if self._bos_id is None else [self._bos_id]
        ids += prompt.token_ids.tolist()
        verdicts: list[tuple[int, int]] = []
        for step, is_right in zip(batch[:-1], row.labels, strict=True):
            ids += step.ids + closing
            verdicts.append((len(ids) - 1, STEP_RIGHT if is_right else STEP_WRONG))
        trained = np.zeros(len(ids), dtype=np.uint8)
        for place, verdict in verdicts:
            trained[place] = verdict
        return Sample(np.array(ids, dtype=np.int32), trained)

    def _sample(self, text: Rendered, encoding: Encoding) -> Sample:
        ids: list[int] = encoding.ids
        trained = bytearray(len(ids))
        # The tokenizer's own marks have no place in the text; they lie at either end.
        low, high = 0, len(ids)
        if text.is_plain and not text.steps:
            low, high = self._added[0], len(ids) - self._added[1]
        for span in text.spans:
            first, after = _place(encoding, span, len(text.text), low, high)
            trained[first:after] = b"\1" * (after - first)
            self._train_end_mark(ids, trained, first, after)
        if text.needs_end:
            ids = self._end_document(ids, trained)
        with tokenizer_faults():
            token_ids = np.array(ids, dtype=np.int32)
        sample = Sample(token_ids, np.frombuffer(trained, dtype=np.uint8))
        return self._with_images(sample, text) if text.images else sample

    def _train_end_mark(
        self, ids: Sequence[int], trained: bytearray, first: int, after: int
    ) -> None:
        """Train the token that ends a turn where the template's marks stop short of it."""
        is_short = self._end_ids.isdisjoint(ids[first:after])
        if is_short and after < len(ids) and ids[after] in self._end_ids:
            trained[after] = 1

    def _end_document(self, ids: list[int], trained: bytearray) -> list[int]:
        """Make the last token the end token, once, and trained."""
        if self.eos_token_id is None:
            raise InvalidArgument(
                "the tokenizer names no end token, so a completion could never end; "
                "use a model whose tokenizer_config.json has eos_token",
                reason="NO_END_TOKEN",
            )
        # A text may end with it, and the tokenizer may add one of its own.
        length = len(ids)
        while length and ids[length - 1] == self.eos_token_id:
            length -= 1
        trained[length:] = b"\1"
        return [*ids[:length], self.eos_token_id]

    def _with_images(self, sample: Sample, text: Rendered) -> Sample:
        """Write each image's tokens in place of its mark; they are read, never trained."""
        if self._rule is None:
            return sample
        written = [self._rule.written(self._size_of(name)) for name in text.images]
        mark = self._tokenizer.token_to_id(self._rule.mark)
        places = np.flatnonzero(sample.token_ids == mark).tolist() if mark is not None else []
        if len(places) != len(written):
            raise InvalidArgument(
                f"the row has {len(written)} images, and the model's chat template writes "
                f"{len(places)} marks ({self._rule.mark}) for them; use a template that writes one "
                "mark for each image, and leave the mark out of the text",
                reason="IMAGE_MARKS_DIFFER",
                images=len(written),
                marks=len(places),
            )
        ids: list[Ids] = []
        trained: list[Mask] = []
        begin = 0
        for place, encoding in zip(places, self._encoded(written), strict=True):
            ids += [sample.token_ids[begin:place], np.array(encoding.ids, dtype=np.int32)]
            trained += [sample.trained[begin:place], np.zeros(len(encoding.ids), dtype=np.uint8)]
            begin = place + 1
        return Sample(
            np.concatenate([*ids, sample.token_ids[begin:]]),
            np.concatenate([*trained, sample.trained[begin:]]),
        )


def _compared(chosen: Sample, rejected: Sample, hidden: int) -> RowTokens:
    """Join two sides that begin with the same prompt; what they share of it is stored once.

    Where the tokenizer joins the prompt's end and an answer's beginning into one token, that token
    belongs to the answer.
    """
    shared = min(_prompt_length(chosen), _prompt_length(rejected))
    differ = np.flatnonzero(chosen.token_ids[:shared] != rejected.token_ids[:shared])
    shared = int(differ[0]) if len(differ) else shared
    chosen_end = len(chosen)
    return RowTokens(
        token_ids=np.concatenate((chosen.token_ids, rejected.token_ids[shared:])),
        trained=np.concatenate((chosen.trained, rejected.trained[shared:])),
        segment_ends=(shared, chosen_end, chosen_end + len(rejected) - shared),
        hidden_answer_count=hidden,
    )


def _prompt_length(sample: Sample) -> int:
    """Return the tokens before the first that is trained."""
    return int(np.argmax(sample.trained)) if sample.trained.any() else len(sample)


def _place(encoding: Encoding, span: Span, length: int, low: int, high: int) -> tuple[int, int]:
    """Return the first token that reaches into a span and the first that lies behind it."""
    first: int | None = encoding.char_to_token(span.start)
    after = high if span.end == length else _beginning_at(encoding, span.end)
    if first is not None and after is not None:
        return first, after
    # A character without a token of its own, such as a space that the tokenizer drops.
    offsets = encoding.offsets
    first = bisect_right(offsets, span.start, lo=low, hi=high, key=itemgetter(1))
    return first, bisect_left(offsets, span.end, lo=first, hi=high, key=itemgetter(0))


def _beginning_at(encoding: Encoding, place: int) -> int | None:
    """Return the token that begins at a character, or None."""
    token: int | None = encoding.char_to_token(place)
    if token is None:
        return None
    characters = encoding.token_to_chars(token)
    return token if characters is not None and characters[0] == place else None


def _added_marks(tokenizer: Tokenizer) -> tuple[int, int]:
    """Return how many tokens the tokenizer adds before and after a text."""
    with tokenizer_faults():
        mask = bytes(tokenizer.encode("a").special_tokens_mask)
    return max(mask.find(0), 0), len(mask) - 1 - mask.rfind(0)


def _token_id(tokenizer: Tokenizer, token: str | None) -> int | None:
    found: int | None = None if token is None else tokenizer.token_to_id(token)
    return found


def _with_template(files: TokenizerFiles, source: str) -> TokenizerFiles:
    names = TokenizerFiles.__dataclass_fields__
    return TokenizerFiles(
        **{**{name: getattr(files, name) for name in names}, "chat_templates": {_DEFAULT: source}}
    )


def _digest(files: TokenizerFiles, rule: ImageRule | UnknownRule | None) -> str:
    told: dict[str, Any] = {
        "tokenizer": files.tokenizer_json,
        "special_tokens": files.special_tokens,
        "chat_templates": files.chat_templates,
        "end_ids": sorted(files.config_eos_ids),
        "images": None if not isinstance(rule, ImageRule) else [rule.model_type, rule.settings],
        "code": _code_digest(),
    }
    text = json.dumps(told, sort_keys=True, separators=(",", ":"), default=dict)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


@lru_cache(maxsize=1)
def _code_digest() -> str:
    """Return the digest of this package and of the libraries that decide on tokens."""
    code = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        code.update(path.read_bytes())
    versions = [f"{name} {version(name)}" for name in ("jinja2", "tokenizers")]
    return f"{code.hexdigest()} {' '.join(versions)}"
