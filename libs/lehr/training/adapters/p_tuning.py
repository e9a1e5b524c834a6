"""P-tuning: embeddings before each row, learnt through a small network."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from lehr.training.adapters.base import Adapter, AdapterSpec
from lehr.training.adapters.prompt_tuning import VirtualTokens
from lehr.training.section import Fraction


class PTuningSpec(AdapterSpec):
    """Names and defaults of peft PromptEncoderConfig."""

    type: Literal["p_tuning"] = "p_tuning"
    num_virtual_tokens: VirtualTokens = 20
    """Positions that are learnt, as for prompt tuning."""
    encoder_reparameterization_type: Literal["MLP", "LSTM"] = "MLP"
    """The network (Liu et al. 2021)."""
    encoder_hidden_size: int | None = Field(default=None, ge=1, le=65_536)
    """Width of the network; None takes that of the model."""
    encoder_num_layers: int = Field(default=2, ge=1, le=8)
    """Layers of an LSTM; an MLP has two."""
    encoder_dropout: Fraction = 0.0
    """Dropout between the layers of an LSTM."""


ADAPTER = Adapter(
    adapter_id="p_tuning",
    title="P-tuning",
    source="Liu et al. 2021; peft PromptEncoderConfig",
    spec=PTuningSpec,
    mergeable=False,
    learns_prompt=True,
    trains_head=False,
)
