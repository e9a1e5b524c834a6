"""CK-03 of the requirements: what is loaded in a fresh process says what was trained, to the digit.

Prompts are token ids, as the toy models' weights are random.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

from lehr.training.plan import TrainingPlan
from tests.support.canonical_rows import a_chat, write_canonical
from tests.support.toy_model import write_toy_model
from tests.support.trainers import Told, a_plan

pytestmark = [pytest.mark.train, pytest.mark.filterwarnings("ignore")]

Train = Callable[..., Told]
PROMPTS = ((0, 3, 79, 112, 1, 4), (0, 3, 55, 1, 4, 90, 91), (0,))
#: What a person runs who has only the folder.
FRESH = """
import json, sys, numpy, torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype="auto").eval()
said = [model(input_ids=torch.tensor([ids])).logits for ids in json.load(sys.stdin)]
numpy.savez(sys.argv[2], *[one.detach().numpy() for one in said])
"""


@pytest.fixture(params=[True, False], ids=["shared weights", "weights of their own"])
def is_tied(request: pytest.FixtureRequest) -> bool:
    """Whether input and output embeddings are one."""
    found: bool = request.param
    return found


@pytest.fixture
def plan(tmp_path: Path, is_tied: bool) -> Callable[[str], TrainingPlan]:
    """Plan a run of a few large steps."""
    toy = write_toy_model(tmp_path / "toy", tie_word_embeddings=is_tied)
    chats = [a_chat(("user", f"q{number}"), ("assistant", f"a{number}")) for number in range(20)]
    rows = write_canonical(tmp_path / "rows.jsonl.zst", chats)

    def build(adapter: str) -> TrainingPlan:
        training = {"max_steps": 4, "eval_steps": 4, "learning_rate": 0.01}
        spec = {"adapter": {"type": adapter}, "training": training}
        return a_plan(tmp_path / adapter, spec, model_dir=toy, dataset_file=rows)

    return build


@pytest.fixture
def before_saving(monkeypatch: pytest.MonkeyPatch) -> list[list[Any]]:
    """What the model says at each save, while it is still in memory."""
    from services.trainer_runner.trainer.methods.sft import AnswerTrainer  # noqa: PLC0415

    said: list[list[Any]] = []
    whole = AnswerTrainer.save_state

    def noted(self: Any, folder: Path) -> Any:
        said.append(logits(self.model))
        return whole(self, folder)

    monkeypatch.setattr(AnswerTrainer, "save_state", noted)
    return said


def logits(model: Any) -> list[Any]:
    """Return the logits of each prompt."""
    import torch  # noqa: PLC0415 - takes seconds

    was_training = model.training
    model.eval()
    with torch.no_grad():
        said = [model(input_ids=torch.tensor([ids])).logits.numpy() for ids in PROMPTS]
    model.train(was_training)
    return said


def in_a_fresh_process(folder: Path, result: Path) -> list[Any]:
    """Load a folder in a process of its own and return the logits of each prompt."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FRESH, str(folder), str(result)],
        input=json.dumps(PROMPTS),
        text=True,
        capture_output=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    with np.load(result) as read:
        return [read[name] for name in read.files]


def loaded(folder: Path) -> Any:
    """Load a model in this process."""
    from transformers import AutoModelForCausalLM  # noqa: PLC0415 - takes seconds

    return AutoModelForCausalLM.from_pretrained(folder, dtype="float32")


def differ(one: list[Any], other: list[Any]) -> float:
    """Return the largest difference between two sets of logits."""
    return max(float(np.abs(a - b).max()) for a, b in zip(one, other, strict=True))


def states_what_it_holds(folder: Path, *, is_tied: bool) -> None:
    """The saved settings say whether weights are shared, and the file agrees."""
    assert json.loads((folder / "config.json").read_text())["tie_word_embeddings"] is is_tied
    with safe_open(folder / "model.safetensors", framework="np") as file:
        names = set(file.keys())
    assert "model.embed_tokens.weight" in names
    assert ("lm_head.weight" in names) is not is_tied


def test_a_fully_tuned_model_says_the_same_in_a_fresh_process(
    plan: Callable[[str], TrainingPlan],
    train: Train,
    before_saving: list[list[Any]],
    tmp_path: Path,
    is_tied: bool,
) -> None:
    trained = plan("full")
    folder = train(trained).checkpoint_at(4)

    said = in_a_fresh_process(folder, tmp_path / "said.npz")

    assert differ(said, before_saving[-1]) < 1e-5
    assert differ(logits(loaded(trained.model_dir)), before_saving[-1]) > 0.01
    states_what_it_holds(folder, is_tied=is_tied)


def test_an_adapter_merged_into_its_base_says_the_same_in_a_fresh_process(
    plan: Callable[[str], TrainingPlan],
    train: Train,
    before_saving: list[list[Any]],
    tmp_path: Path,
    is_tied: bool,
) -> None:
    from peft import PeftModel  # noqa: PLC0415 - takes seconds

    trained = plan("lora")
    folder, merged = train(trained).checkpoint_at(4), tmp_path / "merged"

    tuned = PeftModel.from_pretrained(loaded(trained.model_dir), folder)
    tuned.merge_and_unload().save_pretrained(merged)
    said = in_a_fresh_process(merged, tmp_path / "said.npz")

    assert differ(said, before_saving[-1]) < 1e-4
    assert differ(logits(loaded(trained.model_dir)), before_saving[-1]) > 0.01
    states_what_it_holds(merged, is_tied=is_tied)


def test_a_tensor_that_was_not_saved_is_an_error_at_the_save(
    plan: Callable[[str], TrainingPlan], tmp_path: Path, is_tied: bool
) -> None:
    import torch  # noqa: PLC0415 - takes seconds

    from services.trainer_runner.trainer.adapters import full  # noqa: PLC0415 - loads torch
    from services.trainer_runner.trainer.adapters.base import load_model  # noqa: PLC0415

    trained = plan("full")
    model = load_model(trained.model_dir, dtype=torch.float32)
    lost = "model.layers.1.mlp.up_proj.weight"
    kept = {name: tensor for name, tensor in model.state_dict().items() if name != lost}
    model.save_pretrained = partial(model.save_pretrained, state_dict=kept)
    (tmp_path / "saved").mkdir()

    with pytest.raises(RuntimeError, match=f"weights were not saved: {lost}"):
        full.FullAdapter().save(model, trained, tmp_path / "saved")
