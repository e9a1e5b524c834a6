"""Adapters by peft: what they have in common, and all that those need that are told by their id."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from peft import (
    PeftConfig,
    PeftType,
    get_peft_model,
    get_peft_model_state_dict,
    set_peft_model_state_dict,
)
from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING
from peft.tuners.trainable_tokens import TrainableTokensLayer
from peft.tuners.tuners_utils import BaseTunerLayer
from safetensors.torch import load_file

from lehr.errors import InvalidArgument
from lehr.training.methods import METHODS
from lehr.training.plan import TrainingPlan
from services.trainer_runner.trainer.adapters.base import Making, does_not_fit, load_model

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
NAME = "default"
"""What peft calls an adapter that was given no name."""

_TASKS = {"causal_lm": "CAUSAL_LM", "sequence_classification": "SEQ_CLS"}
#: Sets in peft, whose order differs from process to process.
_SETS = ("target_modules", "feedforward_modules", "modules_to_save")


class TunerAdapter:
    """An adapter whose fields are all peft's, and all of whose state is in what peft saves."""

    peft_type: str | None = None
    """Name of peft's type; None where it is the id in capitals."""

    def build(self, making: Making) -> Any:
        """Return the base model with a new adapter, or with that of the checkpoint."""
        model = self.wrap(self.base_model(making), making)
        for parameter in model.parameters():
            if parameter.requires_grad:
                # An update is often too small to show in 16 bits.
                parameter.data = parameter.data.float()
        if making.resume_dir is not None:
            self.load(model, making.resume_dir)
        return model

    def base_model(self, making: Making) -> Any:
        """Return the model that the adapter is put on."""
        return load_model(making.plan.model_dir, dtype=making.dtype)

    def wrap(self, base: Any, making: Making) -> Any:
        """Return the base model with a new adapter.

        Raises:
            InvalidArgument: they do not fit each other.
        """
        try:
            model = get_peft_model(base, self.config(base, making))
        except (ValueError, TypeError, RuntimeError, AssertionError) as error:
            raise does_not_fit(error) from error
        _refuse_half_of_a_pair(model)
        return model

    def config(self, base: Any, making: Making) -> PeftConfig:
        """Return peft's configuration of a new adapter."""
        spec = making.plan.spec
        kind = PeftType[self.peft_type or spec.adapter.type.upper()]
        task = _TASKS[METHODS[spec.method].head]
        fields = {**self.fields(making), **self.more_fields(base, making)}
        return PEFT_TYPE_TO_CONFIG_MAPPING[kind](task_type=task, **fields)

    def fields(self, making: Making) -> dict[str, Any]:
        """Return the fields of the spec that peft knows, all of them unless overridden."""
        told = making.plan.spec.adapter.model_dump(exclude={"type"}, exclude_none=True)
        return {
            name: list(value) if isinstance(value, tuple) else value for name, value in told.items()
        }

    def more_fields(self, base: Any, making: Making) -> Mapping[str, Any]:
        """Return fields that the spec does not say."""
        if making.plan.spec.adapter.type == "shira":
            return {"random_seed": _shira_seed(making.plan)}
        return {}

    def load(self, model: Any, folder: Path) -> None:
        """Put the trained weights of a checkpoint into a model that was built alike."""
        stored = load_file(folder / WEIGHTS)
        wanted = get_peft_model_state_dict(model, save_embedding_layers=False)
        if stored.keys() != wanted.keys():
            raise InvalidArgument(
                "the checkpoint's adapter has other layers than this job's",
                reason="ADAPTER_DIFFERS",
            )
        set_peft_model_state_dict(model, stored)

    def join(self, trainer: Any, making: Making) -> None:
        """Take no part in the loop."""

    def save(self, model: Any, plan: TrainingPlan, folder: Path) -> None:
        """Write adapter and configuration, which names the base by catalog name and digest."""
        # Embeddings are saved where they are trained; asking peft to find out would ask a hub.
        model.save_pretrained(folder, save_embedding_layers=False)
        (folder / "README.md").unlink(missing_ok=True)
        self.rewrite_config(plan, folder, {})

    def rewrite_config(self, plan: TrainingPlan, folder: Path, changed: Mapping[str, Any]) -> None:
        """Write the configuration anew without anything of this machine."""
        config = {**json.loads((folder / CONFIG).read_bytes()), **changed}
        config["base_model_name_or_path"] = plan.model_name
        config["revision"] = plan.model_revision
        for name in _SETS:
            if isinstance(config.get(name), list):
                config[name].sort()
        (folder / CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def trained_parameters(model: Any) -> dict[str, torch.nn.Parameter]:
    """Return what is trained of a model, by name."""
    return {name: one for name, one in model.named_parameters() if one.requires_grad}


def _refuse_half_of_a_pair(model: Any) -> None:
    """Refuse an update of an embedding or a head that are one tensor.

    Merged, the update of the one would change the other too. New values of single tokens are
    handed on to both.
    """
    base = model.get_base_model()
    if not base.config.get_text_config().tie_word_embeddings:
        return
    for layer in (base.get_input_embeddings(), base.get_output_embeddings()):
        if isinstance(layer, BaseTunerLayer) and not isinstance(layer, TrainableTokensLayer):
            what = (
                "its embedding and its head are one tensor, and target_modules names one of them; "
                "use modules_to_save, or the adapter trainable_tokens"
            )
            raise does_not_fit(what, field="adapter.target_modules")


def _shira_seed(plan: TrainingPlan) -> int:
    given = plan.spec.adapter.model_dump()["random_seed"]
    return plan.spec.training.seed if given is None else int(given)
