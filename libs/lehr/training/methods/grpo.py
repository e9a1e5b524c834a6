"""Group relative policy optimisation and its variants: groups of answers, compared by rewards."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from lehr.training.methods.base import Method
from lehr.training.methods.online import GroupedHyperparameters
from lehr.training.section import NotNegative, Positive

GrpoLoss = Literal["grpo", "dr_grpo", "dapo", "bnpo", "cispo", "sapo", "luspo", "vespo"]
"""Names of trl GRPOConfig; ``grpo`` is the paper's, ``dapo`` trl's default. GSPO is ``grpo`` with
``importance_sampling_level`` sequence."""

#: Options that one loss alone has, with their defaults.
_OPTIONS = {
    "sapo": ("sapo_temperature_neg", "sapo_temperature_pos"),
    "vespo": ("vespo_k_pos", "vespo_lambda_pos", "vespo_k_neg", "vespo_lambda_neg"),
}
#: Losses that add tokens up, in which a ratio of whole sequences would count once a token.
_OF_TOKENS = frozenset({"bnpo", "dr_grpo", "dapo", "cispo", "vespo"})
#: Losses that clip no ratio, or not from below.
_UNCLIPPED = frozenset({"sapo", "vespo"})


class GrpoHyperparameters(GroupedHyperparameters):
    """Names and defaults of trl GRPOConfig."""

    type: Literal["grpo"] = "grpo"
    loss_type: GrpoLoss = "dapo"
    beta: NotNegative = 0.0
    """Weight of the divergence from the base model (Shao et al. 2024: 0.04; trl: none)."""
    importance_sampling_level: Literal["token", "sequence"] = "token"
    """What ratios of probabilities are of (``sequence``: GSPO, Zheng et al. 2025)."""
    delta: Positive | None = None
    """Largest ratio that counts where the advantage is negative (INTELLECT-2, section 4.2)."""
    scale_rewards: Literal["group", "batch", "none"] = "group"
    """Whose standard deviation advantages are divided by (``none``: Dr. GRPO, Liu et al. 2025)."""
    mask_truncated_completions: bool = False
    """Learn nothing from completions that were cut off (DAPO, section 3.4)."""
    sapo_temperature_neg: Positive = 1.05
    sapo_temperature_pos: Positive = 1.0
    vespo_k_pos: Positive = 2.0
    vespo_lambda_pos: Positive = 3.0
    vespo_k_neg: Positive = 3.0
    vespo_lambda_neg: Positive = 2.0

    @model_validator(mode="after")
    def _ratios_that_fit_the_loss(self) -> GrpoHyperparameters:
        if self.importance_sampling_level == "sequence" and self.loss_type in _OF_TOKENS:
            raise ValueError(
                f"has importance_sampling_level sequence, and loss_type {self.loss_type} adds up "
                "tokens; set loss_type to grpo, sapo or luspo"
            )
        if self.importance_sampling_level == "token" and self.loss_type == "luspo":
            raise ValueError("has loss_type luspo; set importance_sampling_level to sequence")
        return self

    @model_validator(mode="after")
    def _options_of_its_loss(self) -> GrpoHyperparameters:
        fields = type(self).model_fields
        for loss, names in _OPTIONS.items():
            given = [name for name in names if getattr(self, name) != fields[name].default]
            if given and self.loss_type != loss:
                raise ValueError(
                    f"has {given[0]}, which only loss_type {loss} uses; leave it out, or set that"
                )
        if self.epsilon_high is not None and self.loss_type in _UNCLIPPED:
            raise ValueError(
                f"has epsilon_high, and loss_type {self.loss_type} clips no ratio; leave it out"
            )
        if self.delta is not None:
            if self.loss_type in _UNCLIPPED | {"cispo"}:
                raise ValueError(f"has delta, which loss_type {self.loss_type} does not use")
            if self.delta <= 1 + (self.epsilon_high or self.epsilon):
                raise ValueError("has a delta within the clipped range; set it above 1 + epsilon")
        return self


METHOD = Method(
    method_id="grpo",
    title="Group relative policy optimisation",
    signal="reward_based",
    source="Shao et al. 2024, arXiv 2402.03300, equation 3; variants as in trl GRPOTrainer",
    hyperparameters=GrpoHyperparameters,
    # trl GRPOConfig has 1e-6 for all weights; adapters take about ten times that. A group fills
    # a pass.
    defaults={"training": {"learning_rate": 1e-5, "per_device_train_batch_size": 8}},
    full_defaults={"training": {"learning_rate": 1e-6}},
)
