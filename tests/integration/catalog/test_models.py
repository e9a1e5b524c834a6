"""What the catalog reads from a model's files, and what of them it never runs."""

import json
import pickle
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from lehr.client import AsyncClient
from lehr.errors import InvalidArgument
from tests.integration.catalog.test_datasets import chat, write
from tests.support.toy_model import (
    MARKED_TEMPLATE,
    PLAIN_TEMPLATE,
    SHOUTING_TEMPLATE,
    write_toy_model,
)

INDEX = "model.safetensors.index.json"
NO_SYSTEM = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no') }}{% endif %}"


def tensors_of(path: Path) -> dict[str, tuple[dict[str, Any], bytes]]:
    """Read a safetensors file: entry and bytes of each tensor."""
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    body = raw[8 + length :]
    return {
        name: (entry, body[slice(*entry["data_offsets"])])
        for name, entry in header.items()
        if name != "__metadata__"
    }


def write_tensors(path: Path, tensors: Mapping[str, tuple[dict[str, Any], bytes]]) -> None:
    """Write a safetensors file."""
    header, at = {}, 0
    for name, (entry, content) in tensors.items():
        header[name] = {**entry, "data_offsets": [at, at + len(content)]}
        at += len(content)
    told = json.dumps(header).encode()
    path.write_bytes(
        struct.pack("<Q", len(told)) + told + b"".join(content for _, content in tensors.values())
    )


def in_two_shards(folder: Path) -> dict[str, str]:
    """Split the weights of a model folder; return its weight map."""
    whole = folder / "model.safetensors"
    tensors = list(tensors_of(whole).items())
    whole.unlink()
    weight_map: dict[str, str] = {}
    for number, some in enumerate((tensors[:5], tensors[5:]), start=1):
        name = f"model-0000{number}-of-00002.safetensors"
        write_tensors(folder / name, dict(some))
        weight_map |= {tensor: name for tensor, _ in some}
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return weight_map


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A toy model of its own."""
    return write_toy_model(tmp_path / "model")


async def test_facts_come_from_config_and_headers(client: AsyncClient, folder: Path) -> None:
    elements = sum(
        len(content) // 2 for _, content in tensors_of(folder / "model.safetensors").values()
    )

    await client.models.add(folder, name="facts", license="MIT")
    found = await client.models.get("facts")

    assert found.parameter_count == elements == sum(found.facts.parameter_counts.values())
    assert found.facts.architecture == "LlamaForCausalLM"
    assert (found.facts.dtype, found.facts.is_tied) == ("bfloat16", True)
    assert (found.facts.layer_count, found.facts.hidden_size) == (2, 32)
    assert (found.facts.attention_head_count, found.facts.key_value_head_count) == (4, 2)
    assert found.facts.default_target_modules == [
        "down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj",
    ]  # fmt: skip


async def test_shards_count_as_one_model(client: AsyncClient, folder: Path) -> None:
    whole = await client.models.add(folder, name="whole", license="MIT")
    in_two_shards(folder)

    shards = await client.models.add(folder, name="shards", license="MIT")

    assert shards.parameter_count == whole.parameter_count
    assert shards.facts == whole.facts


def misplace(weight_map: dict[str, str]) -> None:
    """Let the index say that a tensor lies in the other shard."""
    first, last = next(iter(weight_map)), list(weight_map)[-1]
    weight_map[first] = weight_map[last]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (misplace, "lies in"),
        (lambda found: found.popitem(), "does not name"),
        (lambda found: found.update({"a\0b": "model-00003-of-00003.safetensors"}), "00003"),
        (lambda found: found.update({"a\0b": "model-00001-of-00002.safetensors"}), "no file"),
    ],
    ids=["misplaced", "unnamed", "missing shard", "missing tensor"],
)
async def test_an_index_that_is_not_true_is_refused(
    client: AsyncClient, folder: Path, change: Any, words: str
) -> None:
    weight_map = in_two_shards(folder)
    change(weight_map)
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))

    with pytest.raises(InvalidArgument, match=words) as refusal:
        await client.models.add(folder, name="index", license="MIT")

    assert INDEX in str(refusal.value)


async def test_a_tensor_that_lies_in_two_shards_is_refused(
    client: AsyncClient, folder: Path
) -> None:
    weight_map = in_two_shards(folder)
    first, second = sorted(set(weight_map.values()))
    shared = next(name for name in weight_map if weight_map[name] == first)
    tensors = tensors_of(folder / second)
    tensors[shared] = tensors_of(folder / first)[shared]
    write_tensors(folder / second, tensors)

    with pytest.raises(InvalidArgument, match=f"{shared} lies in {first} and in {second}"):
        await client.models.add(folder, name="twice", license="MIT")


@pytest.mark.parametrize(
    ("template", "state", "advice"),
    [
        (MARKED_TEMPLATE, "generation_marks", ""),
        (PLAIN_TEMPLATE, "differential", ""),
        (NO_SYSTEM + PLAIN_TEMPLATE, "differential", "not for system turns"),
        (SHOUTING_TEMPLATE, "refused", "data.chat_template: plain"),
        ("{% generation %}{% endgeneration %}" + PLAIN_TEMPLATE, "refused", "generation marks"),
        (None, "none", "data.chat_template: plain"),
    ],
    ids=["marked", "plain", "no system turns", "shouting", "wrong marks", "none"],
)
async def test_it_is_known_how_answers_are_found(
    client: AsyncClient, folder: Path, template: str | None, state: str, advice: str
) -> None:
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    path.write_text(json.dumps({**settings, "chat_template": template}))

    found = await client.models.add(folder, name="templates", license="MIT")

    assert found.facts.chat_template == state
    assert advice in found.facts.chat_template_advice


async def test_chats_are_refused_before_a_gpu_is_held_where_the_template_hides_answers(
    client: AsyncClient, tmp_path: Path
) -> None:
    folder = write_toy_model(tmp_path / "shouting", template=SHOUTING_TEMPLATE)
    await client.models.add(folder, name="shouting", license="MIT")
    await client.datasets.upload(write(tmp_path, chat("q", "a")), name="quiet")

    with pytest.raises(InvalidArgument) as refusal:
        await client.datasets.inspect("quiet", model="shouting")
    chosen = await client.datasets.inspect("quiet", model="shouting", chat_template="plain")

    assert refusal.value.reason == "TEMPLATE_HIDES_ANSWERS"
    assert chosen.lengths.row_count == 1


class _Marks:
    """Leaves a marker when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self._marker = marker

    def __reduce__(self) -> Any:
        return Path.touch, (self._marker,)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("modeling_evil.py", "is code"),
        ("tokenization_evil.py", "is code"),
        ("evil.so", "is code"),
        ("pytorch_model.bin", "is a pickle"),
        ("PYTORCH_MODEL.BIN", "is a pickle"),
        ("training_args.bin", "is a pickle"),
        ("model.pt", "is a pickle"),
        ("model.ckpt", "is a pickle"),
        ("model.onnx", "another framework"),
        ("model.gguf", "lehr models add FILE.gguf"),
        ("adapter_model.safetensors", "merge it"),
        ("more.safetensors", "would not be loaded"),
        ("model.zip", "one by one"),
    ],
)
async def test_what_could_run_is_refused_by_name_with_what_to_do(
    client: AsyncClient, folder: Path, name: str, words: str
) -> None:
    marker = folder / "marker"
    content = pickle.dumps(_Marks(marker))
    if name.endswith(".py"):
        content = f"open({str(marker)!r}, 'w')".encode()
    (folder / name).write_bytes(content)

    with pytest.raises(InvalidArgument) as refusal:
        await client.models.add(folder, name="runs", license="MIT")

    assert name in str(refusal.value)
    assert words in str(refusal.value)
    assert not marker.exists()


@pytest.mark.parametrize(
    "name", ["config", "tokenizer_config", "preprocessor_config", "generation_config"]
)
async def test_a_config_that_asks_to_run_code_is_refused_by_name(
    client: AsyncClient, folder: Path, name: str
) -> None:
    path = folder / f"{name}.json"
    settings = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps({**settings, "auto_map": {"AutoModel": "evil.Model"}}))

    with pytest.raises(InvalidArgument, match=rf"{name}\.json.*auto_map"):
        await client.models.add(folder, name="mapped", license="MIT")


async def test_a_pickle_under_the_name_of_safe_weights_is_refused_and_not_loaded(
    client: AsyncClient, folder: Path
) -> None:
    marker = folder.parent / "marker"
    (folder / "model.safetensors").write_bytes(pickle.dumps(_Marks(marker)))

    with pytest.raises(InvalidArgument, match="no safetensors file"):
        await client.models.add(folder, name="disguised", license="MIT")

    assert not marker.exists()


@pytest.mark.parametrize(
    "attack",
    [
        "{{ cycler.__init__.__globals__.os.system('touch MARKER') }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ namespace.__init__.__globals__['__builtins__'].open('MARKER', 'w') }}",
        "{{ messages.__class__.__base__.__subclasses__() }}",
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
        "{{ 'x' * 10**10 }}",
        "{% include '/etc/passwd' %}",
    ],
)
async def test_a_template_that_calls_functions_or_never_ends_is_refused_and_does_nothing(
    client: AsyncClient, folder: Path, attack: str
) -> None:
    marker = folder.parent / "marker"
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    template = attack.replace("MARKER", str(marker)) + PLAIN_TEMPLATE
    path.write_text(json.dumps({**settings, "chat_template": template}))

    found = await client.models.add(folder, name="attack", license="MIT")

    assert found.facts.chat_template == "refused"
    assert "chat template" in found.facts.chat_template_advice
    assert not marker.exists()
