"""Small trainings of each adapter, and the tuned model as plain peft and transformers load it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lehr.samples.prepare import PreparedData, prepare
from lehr.samples.tokens import SampleTokenizer
from lehr.training.adapters import ADAPTERS
from lehr.training.plan import TrainingPlan
from tests.support.canonical_rows import a_row, table_of, write_canonical
from tests.support.trainers import Told, a_plan
from tests.train.method_cases import chat_row


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterCase:
    """An adapter with some of its fields, and how fast it learns."""

    adapter: str
    label: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)
    learning_rate: float = 0.01

    @property
    def name(self) -> str:
        """What a test report calls it."""
        return f"{self.adapter} {self.label}".strip()


def lora(label: str, **fields: Any) -> AdapterCase:
    return AdapterCase(adapter="lora", label=label, fields=fields)


CASES: tuple[AdapterCase, ...] = (
    lora("", lora_dropout=0.1),
    lora("rslora", use_rslora=True),
    lora("dora", use_dora=True),
    lora("gaussian", init_lora_weights="gaussian"),
    lora("orthogonal", init_lora_weights="orthogonal"),
    lora("pissa", init_lora_weights="pissa"),
    lora("pissa patterns", init_lora_weights="pissa", use_rslora=True, rank_pattern={"q_proj": 4}),
    lora("olora", init_lora_weights="olora"),
    lora("eva", init_lora_weights="eva"),
    lora("patterns", rank_pattern={"q_proj": 4}, alpha_pattern={"v_proj": 8}),
    lora("plus", loraplus_lr_ratio=4.0),
    lora("embedding saved", modules_to_save=["embed_tokens"]),
    AdapterCase(adapter="qlora", fields={"lora_dropout": 0.1}),
    AdapterCase(adapter="qlora", label="8 bits", fields={"load_in_8bit": True}),
    AdapterCase(adapter="qlora", label="dora", fields={"use_dora": True}),
    AdapterCase(adapter="qlora", label="fp4", fields={"bnb_4bit_quant_type": "fp4"}),
    AdapterCase(
        adapter="qlora", label="fp4 dora", fields={"bnb_4bit_quant_type": "fp4", "use_dora": True}
    ),
    AdapterCase(adapter="full"),
    AdapterCase(adapter="freeze", fields={"trained_layers": 1}),
    AdapterCase(
        adapter="freeze",
        label="modules",
        fields={"trained_layers": 0, "trained_modules": ["lm_head", "norm"]},
    ),
    AdapterCase(
        adapter="adalora", fields={"deltaT": 2, "tinit": 1, "tfinal": 1}, learning_rate=0.05
    ),
    AdapterCase(adapter="loha", learning_rate=0.05, fields={"module_dropout": 0.2}),
    AdapterCase(adapter="lokr", learning_rate=0.05),
    AdapterCase(adapter="oft"),
    AdapterCase(adapter="boft"),
    AdapterCase(adapter="boft", label="factors", fields={"boft_n_butterfly_factor": 2}),
    AdapterCase(adapter="hra"),
    AdapterCase(adapter="vera", learning_rate=0.05),
    AdapterCase(adapter="randlora"),
    AdapterCase(adapter="randlora", label="sparse", fields={"sparse": True}),
    AdapterCase(adapter="fourierft", learning_rate=0.02),
    AdapterCase(adapter="miss"),
    AdapterCase(adapter="miss", label="bat", fields={"init_weights": "bat", "r": 16}),
    AdapterCase(adapter="miss", label="mini", fields={"init_weights": "mini", "mini_r": 8}),
    AdapterCase(adapter="shira", fields={"r": 8}),
    AdapterCase(adapter="ia3", learning_rate=0.05),
    AdapterCase(adapter="ln_tuning", learning_rate=0.05),
    AdapterCase(adapter="trainable_tokens", fields={"token_indices": list(range(60, 120))}),
    AdapterCase(adapter="prompt_tuning", learning_rate=0.3),
    AdapterCase(
        adapter="prompt_tuning",
        label="text",
        fields={
            "num_virtual_tokens": 5,
            "prompt_tuning_init": "TEXT",
            "prompt_tuning_init_text": "Say which number an item is.",
        },
        learning_rate=0.3,
    ),
    AdapterCase(adapter="prefix_tuning", learning_rate=0.1),
    AdapterCase(adapter="prefix_tuning", label="projected", fields={"prefix_projection": True}),
    AdapterCase(adapter="p_tuning"),
    AdapterCase(
        adapter="p_tuning",
        label="lstm",
        fields={"encoder_reparameterization_type": "LSTM", "encoder_dropout": 0.1},
    ),
)
ROWS = 40
PACKED = frozenset({"qlora"})


def plan_of(folder: Path, tiny: Path, case: AdapterCase, name: str, **more: Any) -> TrainingPlan:
    """Return a plan of six steps with two evaluations; ``more`` are its fields and the spec's."""
    rows = folder / "rows.jsonl.zst"
    if not rows.exists():
        write_canonical(rows, map(a_row, map(chat_row, range(ROWS))))
    training = {
        "max_steps": 6,
        "eval_steps": 3,
        "learning_rate": case.learning_rate,
        "per_device_train_batch_size": 8,
        "lr_scheduler_type": "cosine",
        **more.pop("training", {}),
    }
    spec = {
        "adapter": {"type": case.adapter, **case.fields},
        "data": {"max_length": 96},
        "training": training,
        **more.pop("spec", {}),
    }
    told = {"model_dir": tiny, "dataset_file": rows, **more}
    return a_plan(folder / name, spec, **told)


def losses(*told: Told) -> dict[int, list[float]]:
    return {
        report.step: [report.values["loss"], report.values["grad_norm"]]
        for one in told
        for report in one.steps
    }


def base_of(folder: Path, case: AdapterCase) -> Any:
    """Return the base model as plain transformers loads it, packed where the adapter wants it."""
    import torch  # noqa: PLC0415 - takes seconds
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig  # noqa: PLC0415

    packing = {}
    if case.adapter in PACKED:
        is_8bit = bool(case.fields.get("load_in_8bit"))
        packing["quantization_config"] = BitsAndBytesConfig(
            load_in_8bit=is_8bit,
            load_in_4bit=not is_8bit,
            bnb_4bit_quant_type=case.fields.get("bnb_4bit_quant_type", "nf4"),
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=torch.float32,
        )
    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **packing)
    for module in base.modules():
        # On some CPUs bitsandbytes repacks weights for evaluation, and peft's DoRA reads them as
        # if it had not.
        module.support_avx512bf16_for_cpu = False
    return base


def tuned_of(folder: Path, model_dir: Path, case: AdapterCase) -> Any:
    """Return the tuned model as plain peft or transformers load it."""
    from peft import PeftModel  # noqa: PLC0415 - takes seconds

    if ADAPTERS[case.adapter].trains_base_weights:
        return base_of(folder, case).eval()
    return PeftModel.from_pretrained(base_of(model_dir, case), folder).eval()


def scores(model: Any) -> Any:
    """Return the scores of a few tokens, those of learnt positions left out."""
    import torch  # noqa: PLC0415 - takes seconds

    ids = torch.arange(60, 100).reshape(2, 20)
    with torch.no_grad():
        return model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[:, -20:].float()


def data_of(plan: TrainingPlan) -> PreparedData:
    """Return the rows as the trainer prepares them."""
    tokenizer = SampleTokenizer.load(plan.model_dir)
    table = table_of(map(a_row, map(chat_row, range(ROWS))), tokenizer)
    return prepare(table, data=plan.spec.data, context=tokenizer.context)


def evaluation_loss(model: Any, plan: TrainingPlan) -> float:
    """Return the loss of the validation rows, from labels and plain transformers."""
    import torch  # noqa: PLC0415 - takes seconds
    from torch.nn.functional import cross_entropy  # noqa: PLC0415

    from services.trainer_runner.trainer.data.batches import evaluation_batches  # noqa: PLC0415

    rows = data_of(plan).validation
    total, count = 0.0, 0
    for batch in evaluation_batches(rows, batch_size=4, pad_id=0):
        labels = batch["labels"][:, 1:]
        with torch.no_grad():
            told = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
        logits = told.logits[:, -labels.shape[1] - 1 : -1].float()
        total += cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum").item()
        count += int((labels != -100).sum())
    return total / count


def assert_merges(folder: Path, model_dir: Path, merged_dir: Path) -> None:
    """Assert that a merged model is the tuned one, in memory and as a file."""
    plain = lora("")
    tuned = tuned_of(folder, model_dir, plain)
    apart = scores(tuned)
    assert not apart.allclose(scores(base_of(model_dir, plain).eval()), atol=1e-4)
    merged = tuned.merge_and_unload()
    assert scores(merged).allclose(apart, atol=1e-5)
    merged.save_pretrained(merged_dir)
    assert scores(base_of(merged_dir, plain).eval()).allclose(apart, atol=1e-5)
