"""Ask a base model and its tuned adapter the same question; prints one line of JSON.

Loads the adapter with plain transformers and peft, as anybody would.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

MAX_NEW_TOKENS = 60


def main(arguments: Sequence[str]) -> int:
    """Print ``{"base": ..., "tuned": ...}``, both answers greedy."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--adapter", type=Path, required=True)
    parser.add_argument("--question", required=True)
    asked = parser.parse_args(arguments)
    # Imported late, so that --help answers at once.
    from peft import PeftModel  # noqa: PLC0415
    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: PLC0415

    tokenizer = AutoTokenizer.from_pretrained(asked.model)
    base = AutoModelForCausalLM.from_pretrained(asked.model, use_safetensors=True)
    tuned = PeftModel.from_pretrained(base, asked.adapter)
    tuned.eval()
    with tuned.disable_adapter():
        plain = _answer(tuned, tokenizer, asked.question)
    print(json.dumps({"base": plain, "tuned": _answer(tuned, tokenizer, asked.question)}))
    return 0


def _answer(model: Any, tokenizer: Any, question: str) -> str:
    chat = [{"role": "user", "content": question}]
    inputs = tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    # Greedy: the same question gets the same answer.
    output = model.generate(**inputs, max_new_tokens=MAX_NEW_TOKENS, do_sample=False)
    generated = output[0][inputs["input_ids"].shape[1] :]
    text: str = tokenizer.decode(generated, skip_special_tokens=True)
    return text


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
