"""On-policy distillation: a teacher corrects every token of what the model writes itself."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from lehr.training.methods.base import Method
from lehr.training.methods.online import OnlineHyperparameters
from lehr.training.section import Reference


class DistillHyperparameters(OnlineHyperparameters):
    """Names and defaults of trl DistillationConfig."""

    type: Literal["distill"] = "distill"
    teacher_model: Reference
    """Catalog name of the model that is imitated; it has the same vocabulary."""
    beta: Annotated[float, Field(ge=0.0, le=1.0)] = 1.0
    """Which divergence: 0 forward KL, 1 reverse KL, between them the generalised
    Jensen-Shannon divergence (Agarwal et al. 2023, section 3)."""

    @property
    def other_models(self) -> tuple[str, ...]:
        """The teacher."""
        return (self.teacher_model,)


METHOD = Method(
    method_id="distill",
    title="On-policy distillation",
    signal="prompts",
    source="Agarwal et al. 2023, arXiv 2306.13649, equation 2 with lambda 1; by trl",
    hyperparameters=DistillHyperparameters,
    # trl DistillationConfig has 1e-6 for all weights; adapters take about ten times that.
    defaults={"training": {"learning_rate": 1e-5}},
    full_defaults={"training": {"learning_rate": 1e-6}},
)
