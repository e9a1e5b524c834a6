"""All adapters: one module each, with its fields, their defaults and sources."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Union

from pydantic import Discriminator, Tag

from lehr.training.adapters import (
    adalora,
    boft,
    fourierft,
    freeze,
    full,
    hra,
    ia3,
    ln_tuning,
    loha,
    lokr,
    lora,
    miss,
    oft,
    p_tuning,
    prefix_tuning,
    prompt_tuning,
    qlora,
    randlora,
    shira,
    trainable_tokens,
    vera,
)
from lehr.training.adapters.base import Adapter, AdapterSpec
from lehr.training.section import type_of

_ALL = (
    lora.ADAPTER,
    qlora.ADAPTER,
    full.ADAPTER,
    freeze.ADAPTER,
    adalora.ADAPTER,
    loha.ADAPTER,
    lokr.ADAPTER,
    oft.ADAPTER,
    boft.ADAPTER,
    hra.ADAPTER,
    vera.ADAPTER,
    randlora.ADAPTER,
    fourierft.ADAPTER,
    miss.ADAPTER,
    shira.ADAPTER,
    ia3.ADAPTER,
    ln_tuning.ADAPTER,
    trainable_tokens.ADAPTER,
    prompt_tuning.ADAPTER,
    prefix_tuning.ADAPTER,
    p_tuning.ADAPTER,
)

ADAPTERS: Mapping[str, Adapter] = {adapter.adapter_id: adapter for adapter in _ALL}

if TYPE_CHECKING:
    AnyAdapter = AdapterSpec
else:
    AnyAdapter = Annotated[
        Union[tuple(Annotated[one.spec, Tag(one.adapter_id)] for one in _ALL)],  # noqa: UP007
        Discriminator(type_of),
    ]
    """The fields of one adapter; ``type`` is its id."""
