"""Ask a base model and its tuned self the same question: ``python -m ...trainer.answer``.

Prints one JSON object with the answers ``base`` and ``tuned``.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any


def answers(model_dir: Path, adapter_dir: Path, question: str, *, max_new_tokens: int) -> Any:
    """Return what the model says without and with the adapter, word by most likely word."""
    # Imported here: it takes seconds, and the environment must be set before.
    import torch  # noqa: PLC0415
    from peft import PeftModel  # noqa: PLC0415
    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: PLC0415

    tokenizer = AutoTokenizer.from_pretrained(model_dir, local_files_only=True)
    base = AutoModelForCausalLM.from_pretrained(
        model_dir, dtype=torch.float32, local_files_only=True, use_safetensors=True
    )
    model = PeftModel.from_pretrained(base, adapter_dir).eval()
    chat = [{"role": "user", "content": question}]
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt")

    def answer() -> str:
        written = model.generate(**prompt, max_new_tokens=max_new_tokens, do_sample=False)
        new = written[0, prompt["input_ids"].shape[1] :]
        return str(tokenizer.decode(new, skip_special_tokens=True)).strip()

    with torch.no_grad(), model.disable_adapter():
        before = answer()
    with torch.no_grad():
        return {"base": before, "tuned": answer()}


if __name__ == "__main__":
    os.environ.update({"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"})
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    parser = argparse.ArgumentParser(prog="answer", description="Compare a base and a tuned model.")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--adapter", type=Path, required=True)
    parser.add_argument("--question", required=True)
    parser.add_argument("--max-new-tokens", type=int, default=60)
    given = parser.parse_args()
    told = answers(
        given.model,
        given.adapter,
        given.question,
        max_new_tokens=given.max_new_tokens,
    )
    sys.stdout.write(json.dumps(told) + "\n")
