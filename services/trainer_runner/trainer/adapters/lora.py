"""LoRA: low-rank updates beside frozen weights (Hu et al. 2021, section 4.1), by peft."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from peft import EvaConfig, LoraConfig, PeftConfig, initialize_lora_eva_weights
from peft.optimizers import create_loraplus_optimizer
from safetensors.torch import load_file, save_file
from transformers import Trainer

from lehr.training.adapters.lora import LoraSpec, LowRankSpec
from lehr.training.plan import TrainingPlan
from services.trainer_runner.trainer.adapters.base import Making, does_not_fit
from services.trainer_runner.trainer.adapters.beginnings import Beginnings
from services.trainer_runner.trainer.adapters.tuners import NAME, WEIGHTS, TunerAdapter
from services.trainer_runner.trainer.data.batches import evaluation_batches

_TAKEN_OUT = frozenset({"pissa", "olora"})
_EVA_BATCHES, _EVA_ROWS = 64, 8
"""At most so many batches of so many rows are looked at for the directions of layers' inputs."""


class LowRankAdapter(TunerAdapter):
    """What LoRA does whatever the base model's precision is."""

    peft_type = "LORA"

    def fields(self, making: Making) -> dict[str, Any]:
        """Leave out what is not peft's."""
        told = super().fields(making)
        told.pop("loraplus_lr_ratio", None)
        return told

    def more_fields(self, base: Any, making: Making) -> Mapping[str, Any]:
        """Keep an embedding and a head that are one tensor one tensor."""
        spec = making.plan.spec.adapter_as(LowRankSpec)
        is_tied = base.config.get_text_config().tie_word_embeddings
        return {"ensure_weight_tying": bool(is_tied and spec.modules_to_save)}

    def join(self, trainer: Any, making: Making) -> None:
        """Give the trainer the optimizer of LoRA+ where that is asked for."""
        ratio = making.plan.spec.adapter_as(LowRankSpec).loraplus_lr_ratio
        if ratio is None:
            return
        kind, options = Trainer.get_optimizer_cls_and_kwargs(trainer.args, trainer.model)
        trainer.optimizer = create_loraplus_optimizer(
            trainer.model,
            kind,
            loraplus_lr_ratio=ratio,
            loraplus_weight_decay=trainer.args.weight_decay,
            **options,
        )


class LoraAdapter(LowRankAdapter):
    """LoRA beside weights that are not packed."""

    def __init__(self) -> None:
        self._beginnings: Beginnings | None = None

    def config(self, base: Any, making: Making) -> PeftConfig:
        """Return the configuration; ranks that data decided on are those of the checkpoint."""
        how = making.plan.spec.adapter_as(LoraSpec).init_lora_weights
        if how == "eva" and making.resume_dir is not None:
            config = LoraConfig.from_pretrained(str(making.resume_dir))
            config.inference_mode = False
            return config
        config = super().config(base, making)
        if how == "eva":
            config.eva_config = EvaConfig()
        elif how in _TAKEN_OUT and making.resume_dir is not None:
            config.init_lora_weights = True
        return config

    def wrap(self, base: Any, making: Making) -> Any:
        """Return the base model with a new adapter, its beginning computed."""
        how = making.plan.spec.adapter_as(LoraSpec).init_lora_weights
        model = super().wrap(base, making)
        if how == "eva" and making.resume_dir is None:
            _find_directions(model, making)
        elif how in _TAKEN_OUT:
            self._beginnings = Beginnings(model, is_new=making.resume_dir is None)
            model.disable_adapter = self._beginnings.restored
        # The beginning is done: no copy and no later load may begin like that again.
        config = model.peft_config[NAME]
        config.init_lora_weights, config.eva_config = True, None
        return model

    def load(self, model: Any, folder: Path) -> None:
        """Load an adapter; what was saved with its beginning is parted from it first."""
        if self._beginnings is None:
            super().load(model, folder)
        else:
            self._beginnings.part(load_file(folder / WEIGHTS))

    def save(self, model: Any, plan: TrainingPlan, folder: Path) -> None:
        """Write an update of the base model as everybody has it."""
        super().save(model, plan, folder)
        if self._beginnings is not None:
            file = folder / WEIGHTS
            save_file(self._beginnings.joined(load_file(file)), file, metadata={"format": "pt"})
            self.rewrite_config(plan, folder, self._beginnings.joined_ranks())


def _find_directions(model: Any, making: Making) -> None:
    """Begin with the main directions of each layer's input (Paischer et al. 2024, EVA)."""
    pad = model.config.get_text_config().pad_token_id or 0
    batches = evaluation_batches(making.data.train, batch_size=_EVA_ROWS, pad_id=pad)
    seen = list(islice(batches, _EVA_BATCHES))
    was_training = model.training
    try:
        initialize_lora_eva_weights(model, seen, show_progress_bar=False)
    except (ValueError, RuntimeError) as error:
        what = f"eva finds too few directions in the training rows ({error}); use a lower r"
        raise does_not_fit(what, field="adapter.init_lora_weights") from error
    model.train(was_training)
    torch.set_grad_enabled(True)
