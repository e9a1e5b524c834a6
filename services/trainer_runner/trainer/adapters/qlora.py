"""QLoRA: low-rank updates beside weights of 4 or 8 bits (Dettmers et al. 2023), by peft."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch
from peft import prepare_model_for_kbit_training
from transformers import BitsAndBytesConfig

from lehr.errors import FieldViolation, InvalidArgument
from lehr.training.adapters.qlora import QloraSpec
from services.trainer_runner.trainer.adapters.base import Making, load_model
from services.trainer_runner.trainer.adapters.lora import LowRankAdapter
from services.trainer_runner.trainer.adapters.tuners import trained_parameters

_NOT_PEFTS = ("load_in_8bit", "bnb_4bit_quant_type", "bnb_4bit_use_double_quant")


class QloraAdapter(LowRankAdapter):
    """LoRA beside packed weights; the update itself is trained in float32."""

    def __init__(self) -> None:
        self._exact: dict[str, torch.Tensor] = {}

    def fields(self, making: Making) -> dict[str, Any]:
        """Leave out how weights are packed."""
        told = super().fields(making)
        return {name: value for name, value in told.items() if name not in _NOT_PEFTS}

    def base_model(self, making: Making) -> Any:
        """Return the packed base model.

        Raises:
            InvalidArgument: this installation cannot pack weights.
        """
        if find_spec("bitsandbytes") is None:
            what = "qlora needs the package bitsandbytes on the node; install it, or use lora"
            field = FieldViolation(field="adapter.type", description=what)
            raise InvalidArgument(what, reason="QUANTIZATION_MISSING", fields=[field])
        own = making.plan.spec.adapter_as(QloraSpec)
        packing = BitsAndBytesConfig(
            load_in_8bit=own.load_in_8bit,
            load_in_4bit=not own.load_in_8bit,
            bnb_4bit_quant_type=own.bnb_4bit_quant_type,
            bnb_4bit_use_double_quant=own.bnb_4bit_use_double_quant,
            bnb_4bit_compute_dtype=making.dtype,
        )
        base = load_model(making.plan.model_dir, dtype=making.dtype, quantization=packing)
        for module in base.modules():
            if hasattr(module, "support_avx512bf16_for_cpu"):
                # Else evaluation on some CPUs would repack weights, which DoRA then reads as if
                # they were not, and compute otherwise than training does.
                module.support_avx512bf16_for_cpu = False
        # Recomputing layers is switched on by the loop where it is asked for.
        return prepare_model_for_kbit_training(base, use_gradient_checkpointing=False)

    def build(self, making: Making) -> Any:
        """Return the model, and remember its update."""
        model = super().build(making)
        self._exact = {name: one.data for name, one in trained_parameters(model).items()}
        return model

    def join(self, trainer: Any, making: Making) -> None:
        """Undo trl's rounding of the update to 16 bits, in which small steps would be lost."""
        for name, parameter in trained_parameters(trainer.model).items():
            parameter.data = self._exact[name].to(parameter.device)
        self._exact = {}
        super().join(trainer, making)
