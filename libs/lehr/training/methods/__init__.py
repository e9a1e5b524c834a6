"""All training methods: one module each, with its hyperparameters, their defaults and sources."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Discriminator, Tag

from lehr.training.methods import (
    bco,
    continued_pretraining,
    cpo,
    distill,
    dpo,
    grpo,
    kto,
    online_dpo,
    orpo,
    rloo,
    sft,
    sft_dft,
    sft_neftune,
    simpo,
)
from lehr.training.methods.base import Method
from lehr.training.section import type_of

_ALL = (
    sft.METHOD,
    sft_dft.METHOD,
    sft_neftune.METHOD,
    continued_pretraining.METHOD,
    dpo.METHOD,
    kto.METHOD,
    orpo.METHOD,
    simpo.METHOD,
    cpo.METHOD,
    bco.METHOD,
    grpo.METHOD,
    rloo.METHOD,
    online_dpo.METHOD,
    distill.METHOD,
)

METHODS: Mapping[str, Method] = {method.method_id: method for method in _ALL}

AnyHyperparameters = Annotated[
    Annotated[sft.SftHyperparameters, Tag("sft")]
    | Annotated[sft_dft.SftDftHyperparameters, Tag("sft_dft")]
    | Annotated[sft_neftune.SftNeftuneHyperparameters, Tag("sft_neftune")]
    | Annotated[
        continued_pretraining.ContinuedPretrainingHyperparameters, Tag("continued_pretraining")
    ]
    | Annotated[dpo.DpoHyperparameters, Tag("dpo")]
    | Annotated[kto.KtoHyperparameters, Tag("kto")]
    | Annotated[orpo.OrpoHyperparameters, Tag("orpo")]
    | Annotated[simpo.SimpoHyperparameters, Tag("simpo")]
    | Annotated[cpo.CpoHyperparameters, Tag("cpo")]
    | Annotated[bco.BcoHyperparameters, Tag("bco")]
    | Annotated[grpo.GrpoHyperparameters, Tag("grpo")]
    | Annotated[rloo.RlooHyperparameters, Tag("rloo")]
    | Annotated[online_dpo.OnlineDpoHyperparameters, Tag("online_dpo")]
    | Annotated[distill.DistillHyperparameters, Tag("distill")],
    Discriminator(type_of),
]
"""Those of one method; ``type`` is its id."""
