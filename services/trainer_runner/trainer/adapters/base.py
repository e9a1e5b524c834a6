"""Load a base model from a folder: safetensors only, no code of its own, nothing left random."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM

from lehr.errors import InvalidArgument


def load_model(folder: Path, *, dtype: torch.dtype) -> Any:
    """Return a causal language model with its weights in ``dtype``.

    Raises:
        InvalidArgument: the folder holds no model that can be loaded whole.
    """
    try:
        model, told = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
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


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory of the device or of the machine is what was lacking."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
