"""QLoRA: low-rank updates beside frozen weights of 4 or 8 bits."""

from __future__ import annotations

from typing import Literal

from lehr.training.adapters.base import Adapter
from lehr.training.adapters.lora import LowRankSpec


class QloraSpec(LowRankSpec):
    """Names of peft LoraConfig and transformers BitsAndBytesConfig."""

    type: Literal["qlora"] = "qlora"
    init_lora_weights: Literal[True, "gaussian"] = True
    """How A begins; what is taken from the weights themselves needs them unpacked: see lora."""
    load_in_8bit: bool = False
    """8 bits a weight (LLM.int8, Dettmers et al. 2022) in place of 4."""
    bnb_4bit_quant_type: Literal["nf4", "fp4"] = "nf4"
    """The 16 values of 4 bits (Dettmers et al. 2023, section 3, which finds nf4 better)."""
    bnb_4bit_use_double_quant: bool = True
    """Pack the scales too, 0.37 bits a weight less (Dettmers et al. 2023, section 3)."""


ADAPTER = Adapter(
    adapter_id="qlora",
    title="Low-rank adaptation of a packed model",
    source="Dettmers et al. 2023, equation 5; peft LoraConfig, transformers BitsAndBytesConfig",
    spec=QloraSpec,
)
