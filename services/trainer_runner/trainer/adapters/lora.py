"""LoRA: low-rank updates beside frozen weights (Hu et al. 2021, section 4.1), by peft."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import load_file

from lehr.errors import FieldViolation, InvalidArgument
from lehr.training.plan import TrainingPlan
from lehr.training.spec import AdapterSpec
from services.trainer_runner.trainer.adapters.base import load_model

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"


def build(plan: TrainingPlan, resume_dir: Path | None) -> Any:
    """Return the base model with a new adapter, or with that of ``resume_dir``."""
    is_half = plan.spec.training.precision == "bf16"
    base = load_model(plan.model_dir, dtype=torch.bfloat16 if is_half else torch.float32)
    try:
        model = get_peft_model(base, _config(plan.spec.adapter))
    except ValueError as error:
        what = f"the adapter does not fit the model: {error}"
        raise InvalidArgument(
            what,
            reason="ADAPTER_DOES_NOT_FIT",
            fields=[FieldViolation(field="adapter.target_modules", description=what)],
        ) from error
    if resume_dir is not None:
        _load(model, resume_dir)
    return model


def save(model: Any, plan: TrainingPlan, folder: Path) -> None:
    """Write adapter and configuration, which names the base by catalog name and digest."""
    # Embeddings are never trained here; asking peft to find out would ask a hub.
    model.save_pretrained(folder, save_embedding_layers=False)
    (folder / "README.md").unlink(missing_ok=True)
    config = json.loads((folder / CONFIG).read_bytes())
    config["base_model_name_or_path"] = plan.model_name
    config["revision"] = plan.model_revision
    if isinstance(config["target_modules"], list):
        # A set, whose order differs from process to process.
        config["target_modules"].sort()
    (folder / CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def _config(spec: AdapterSpec) -> LoraConfig:
    target = spec.target_modules
    return LoraConfig(
        task_type="CAUSAL_LM",
        r=spec.r,
        lora_alpha=spec.lora_alpha,
        lora_dropout=spec.lora_dropout,
        target_modules=target if isinstance(target, str) else list(target),
        bias="none",
    )


def _load(model: Any, folder: Path) -> None:
    stored = load_file(folder / WEIGHTS)
    wanted = get_peft_model_state_dict(model, save_embedding_layers=False)
    if stored.keys() != wanted.keys():
        raise InvalidArgument(
            "the checkpoint's adapter has other layers than this job's", reason="ADAPTER_DIFFERS"
        )
    set_peft_model_state_dict(model, stored)
