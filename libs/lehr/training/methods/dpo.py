"""Direct preference optimisation and its variants: answers compared against a reference model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field, model_validator

from lehr.training.methods.base import Hyperparameters, Method
from lehr.training.section import Fraction, Positive

DpoLoss = Literal[
    "sigmoid",
    "hinge",
    "ipo",
    "exo_pair",
    "nca_pair",
    "robust",
    "bco_pair",
    "sppo_hard",
    "aot",
    "aot_unpaired",
    "apo_zero",
    "apo_down",
    "discopop",
    "sft",
    "sigmoid_norm",
]
"""Names of trl DPOConfig; ``sigmoid`` is the paper's."""


FDivergence = Literal["reverse_kl", "forward_kl", "js_divergence", "alpha_divergence"]
"""Names of trl DPOConfig; ``reverse_kl`` is that of DPO itself."""

_ALPHA = 0.5
#: Which losses an option has a meaning for.
_DIVERGING = frozenset(
    {"sigmoid", "sigmoid_norm", "hinge", "ipo", "exo_pair", "robust", "discopop", "sft"}
)
_SMOOTHED = frozenset({"robust", "exo_pair", "aot", "aot_unpaired"})
_NOT_WEIGHTED = frozenset({"aot", "aot_unpaired", "sft"})


class DpoHyperparameters(Hyperparameters):
    """Names and defaults of trl DPOConfig."""

    type: Literal["dpo"] = "dpo"
    beta: Positive = 0.1
    """How strongly the model is held to the reference (Rafailov et al. 2023, section 6)."""
    loss_type: tuple[DpoLoss, ...] = ("sigmoid",)
    """One loss, or several that are added; ``("sigmoid", "sft")`` is RPO, and ``("sigmoid",
    "bco_pair", "sft")`` with weights 0.8, 0.2 and 1 MPO (Wang et al. 2024, section 3.2)."""
    loss_weights: tuple[Positive, ...] | None = None
    """Weight of each of ``loss_type``; 1 by default."""
    label_smoothing: Fraction = 0.0
    """Share of preferences that are taken to be wrong; ``robust`` (Chowdhury et al. 2024: 0.1) and
    ``exo_pair`` (Ji et al. 2024: 1e-3) need one, ``aot`` and ``aot_unpaired`` may have one."""
    f_divergence_type: FDivergence = "reverse_kl"
    """What measures the distance to the reference (Wang et al. 2023, table 1)."""
    f_alpha_divergence_coef: Annotated[float, Field(gt=0.0, lt=1.0)] = _ALPHA
    """Alpha of ``alpha_divergence`` (Wang et al. 2023, table 1; default of trl)."""
    ld_alpha: Annotated[float, Field(ge=0.0, le=1.0)] | None = None
    """Weight of tokens beyond the length of the shorter answer (Liu et al. 2024, LD-DPO); None
    and 1 count all of them alike."""
    use_weighting: bool = False
    """Weigh pairs by how likely the model writes them itself (Zhou et al. 2024, equation 2)."""
    discopop_tau: Positive = 0.05
    """Temperature of ``discopop`` (Lu et al. 2024, section 4)."""

    @model_validator(mode="after")
    def _a_weight_for_each(self) -> DpoHyperparameters:
        if not self.loss_type or len(set(self.loss_type)) != len(self.loss_type):
            raise ValueError("names no loss, or one twice; give each loss_type once")
        weights = self.loss_weights
        if weights is not None and len(weights) != len(self.loss_type):
            raise ValueError("has another number of loss_weights than of loss_type; give as many")
        return self

    @model_validator(mode="after")
    def _smoothing_that_counts(self) -> DpoHyperparameters:
        told = set(self.loss_type)
        smoothed = sorted({"robust", "exo_pair"} & told)
        if smoothed and not 0 < self.label_smoothing < 0.5:
            raise ValueError(
                f"has loss_type {smoothed[0]}; set label_smoothing above 0 and below 0.5"
            )
        if self.label_smoothing and not told & _SMOOTHED:
            raise ValueError(
                f"has label_smoothing, which no loss_type of it uses; set it to 0, or use "
                f"{_or(_SMOOTHED)}"
            )
        return self

    @model_validator(mode="after")
    def _options_of_its_losses(self) -> DpoHyperparameters:
        told = set(self.loss_type)
        other = sorted(told - _DIVERGING)
        if self.f_divergence_type != "reverse_kl" and other:
            raise ValueError(
                f"has f_divergence_type {self.f_divergence_type}, which has no meaning for "
                f"loss_type {other[0]}; set it to reverse_kl, or use {_or(_DIVERGING)}"
            )
        alpha = self.f_alpha_divergence_coef
        if alpha != _ALPHA and self.f_divergence_type != "alpha_divergence":
            raise ValueError(
                "has f_alpha_divergence_coef, which only f_divergence_type alpha_divergence uses; "
                "leave it out, or set that"
            )
        unweighted = sorted(told & _NOT_WEIGHTED)
        if self.use_weighting and unweighted:
            raise ValueError(
                f"has use_weighting, which weighs pair by pair, and loss_type {unweighted[0]}, "
                "which is no loss of single pairs; leave one of them out"
            )
        if self.discopop_tau != 0.05 and "discopop" not in told:
            raise ValueError(
                "has discopop_tau, which only loss_type discopop uses; leave it out, or add that"
            )
        if self.ld_alpha is not None and told == {"sft"}:
            raise ValueError("has ld_alpha, which loss_type sft does not use; leave it out")
        return self


def _or(names: Iterable[str]) -> str:
    *others, last = sorted(names)
    return f"{', '.join(others)} or {last}"


METHOD = Method(
    method_id="dpo",
    title="Direct preference optimisation",
    signal="preference",
    source="Rafailov et al. 2023, equation 7; variants as in trl DPOTrainer",
    hyperparameters=DpoHyperparameters,
    # trl DPOConfig has 1e-6 for all weights; adapters take about ten times that.
    defaults={"training": {"learning_rate": 1e-5}},
    full_defaults={"training": {"learning_rate": 1e-6}},
)
