"""What adapters share: what they are built from, and the base model in a folder.

Base models are safetensors only, have no code of their own, and nothing in them is left random.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM

from lehr.errors import FieldViolation, InvalidArgument
from lehr.samples.prepare import PreparedData
from lehr.training.plan import TrainingPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Making:
    """What a model to train is made from."""

    plan: TrainingPlan
    data: PreparedData
    total_steps: int
    resume_dir: Path | None = None
    """The checkpoint whose weights it begins with."""

    @property
    def dtype(self) -> torch.dtype:
        """That of weights which are not trained."""
        is_half = self.plan.spec.training.precision == "bf16"
        return torch.bfloat16 if is_half else torch.float32


def load_model(folder: Path, *, dtype: torch.dtype, quantization: Any = None) -> Any:
    """Return a causal language model with its weights in ``dtype``.

    ``quantization`` says how transformers packs the weights of its linear layers.

    Raises:
        InvalidArgument: the folder holds no model that can be loaded whole.
    """
    packed = {} if quantization is None else {"quantization_config": quantization}
    if packed and torch.cuda.is_available():
        # Packing is done there, and what is packed does not move.
        packed["device_map"] = {"": torch.cuda.current_device()}
    try:
        model, told = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
            **packed,
        )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        if is_out_of_memory(error):
            raise
        raise InvalidArgument(
            f"the model cannot be loaded: {_first_line(error)}", reason="MODEL_UNREADABLE"
        ) from error
    if told["missing_keys"] or told["mismatched_keys"]:
        lacking = sorted(map(str, [*told["missing_keys"], *told["mismatched_keys"]]))
        raise InvalidArgument(
            f"the model's weights are incomplete: {', '.join(lacking[:5])} would be random",
            reason="MODEL_INCOMPLETE",
            count=len(lacking),
        )
    return model


def does_not_fit(what: object, *, field: str = "adapter") -> InvalidArgument:
    """Return the refusal of an adapter whose fields do not suit the model or the run."""
    told = f"the adapter does not fit the model: {what}"
    return InvalidArgument(
        told,
        reason="ADAPTER_DOES_NOT_FIT",
        fields=[FieldViolation(field=field, description=told)],
    )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory of the device or of the machine is what was lacking."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
