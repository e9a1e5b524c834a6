"""Full fine-tuning: every weight of the base model is trained."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import GenerationConfig

from lehr.training.plan import TrainingPlan
from services.trainer_runner.trainer.adapters.base import Making, load_model

WEIGHTS, CONFIG = "model.safetensors", "config.json"
#: What is handed on byte by byte: training changes weights, not how text is read or written.
_HANDED_ON = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "generation_config.json",
)


class FullAdapter:
    """Trains and saves the whole model."""

    def build(self, making: Making) -> Any:
        """Return the model with its weights in float32, which bf16 training keeps as masters."""
        return load_model(making.resume_dir or making.plan.model_dir, dtype=torch.float32)

    def join(self, trainer: Any, making: Making) -> None:
        """Take no part in the loop."""

    def save(self, model: Any, plan: TrainingPlan, folder: Path) -> None:
        """Write weights, configuration and tokenizer; shared weights are stored once."""
        # The base model's own is handed on below; saving it would refuse what it calls
        # inconsistent.
        model.generation_config = GenerationConfig()
        model.save_pretrained(folder, max_shard_size="1TB")
        (folder / "generation_config.json").unlink(missing_ok=True)
        _refuse_missing(model, folder)
        # What training switches off, such as the cache, is not a trait of the result.
        config = json.loads((plan.model_dir / CONFIG).read_bytes())
        config.pop("torch_dtype", None)
        (folder / CONFIG).write_text(json.dumps({**config, "dtype": "float32"}, indent=2) + "\n")
        for name in _HANDED_ON:
            if (plan.model_dir / name).is_file():
                shutil.copyfile(plan.model_dir / name, folder / name)


def _refuse_missing(model: Any, folder: Path) -> None:
    """Make sure that each tensor of the model is in the file, or shares memory with one that is."""
    with safe_open(folder / WEIGHTS, framework="pt") as file:
        stored = set(file.keys())
    tensors: dict[str, torch.Tensor] = model.state_dict()
    kept = {tensor.data_ptr() for name, tensor in tensors.items() if name in stored}
    lost = [name for name, tensor in tensors.items() if tensor.data_ptr() not in kept]
    if lost:
        raise RuntimeError(f"weights were not saved: {', '.join(sorted(lost)[:5])}")
