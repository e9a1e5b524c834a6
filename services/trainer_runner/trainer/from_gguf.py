"""Unpack a GGUF file into a model folder: ``python -m ...trainer.from_gguf FILE FOLDER``.

Weights are those that transformers reads from the file, bit by bit. It rebuilds the tokenizer
without the file's word for how text is split before merging (``tokenizer.ggml.pre``), which matters
where spaces and digits meet; so that word is printed, and the original tokenizer is the better one.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

#: Number types of files that are not quantised (gguf.LlamaFileType); all others become bfloat16.
_PLAIN = {0: "float32", 1: "float16"}


def unpack(file: Path, folder: Path) -> str:
    """Write config, weights, tokenizer and chat template; return how the file splits text."""
    # Imported here: it takes seconds, and the environment must be set before.
    import gguf  # noqa: PLC0415
    import torch  # noqa: PLC0415
    from transformers import (  # noqa: PLC0415
        AutoModelForCausalLM,
        AutoTokenizer,
        GgufConfig,
    )

    fields = gguf.GGUFReader(file).fields

    def told(name: str) -> Any:
        return fields[name].contents() if name in fields else None

    dtype = getattr(torch, _PLAIN.get(told("general.file_type"), "bfloat16"))
    where = {"gguf_file": file.name, "local_files_only": True}
    model = AutoModelForCausalLM.from_pretrained(
        file.parent, dtype=dtype, quantization_config=GgufConfig(dequantize=True), **where
    )
    # How it was packed is no trait of what was unpacked.
    model.config.__dict__.pop("quantization_config", None)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(file.parent, **where).save_pretrained(folder)
    return str(told("tokenizer.ggml.pre") or "unknown")


if __name__ == "__main__":
    os.environ.update({"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"})
    os.environ["TQDM_DISABLE"] = "1"
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    parser = argparse.ArgumentParser(prog="from_gguf", description="Unpack a GGUF file.")
    parser.add_argument("file", type=Path)
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    sys.stdout.write(f"{unpack(given.file.absolute(), given.folder)}\n")
