"""What config and weight headers say of a model, for those who plan: nothing is loaded."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from services.catalog.domain.errors import ModelRefused
from services.catalog.domain.weights import Tensor

INDEX = "model.safetensors.index.json"
"""File that says which weights file holds which tensor."""

WORD_CHARACTERS_MAX = 200
MODULES_MAX = 1000

#: Kinds of parameters by the names that transformers gives their modules; the first match counts.
_KINDS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        (
            "vision",
            r"(^|\.)(vision_tower|vision_model|visual|image_encoder|multi_modal_projector"
            r"|connector|mm_projector)(\.|$)",
        ),
        ("head", r"(^|\.)(lm_head|embed_out|output_projection|score)(\.|$)|^output\.weight$"),
        (
            "embedding",
            r"(^|\.)(embed_tokens|embed_in|wte|wpe|word_embeddings|tok_embeddings"
            r"|embed_positions|embeddings?|shared)(\.|$)",
        ),
        ("norm", r"norm|(^|\.)ln_\w+(\.|$)|layernorm"),
        ("experts", r"(^|\.)(experts?|shared_experts?)(\.|_|$)"),
        (
            "attention",
            r"(^|\.)(self_attn|attn|attention|self_attention|linear_attn|cross_attn)(\.|$)",
        ),
        ("mlp", r"(^|\.)(mlp|feed_forward|ffn|fc1|fc2|c_fc|block_sparse_moe)(\.|$)"),
    )
)
_EXPERT = re.compile(r"\.experts\.")
_IN_LAYER = re.compile(r"(^|\.)(layers|h|blocks?|decoder|encoder)\.\d+\.")
_PACKED = re.compile(r"\.(qweight|weight_packed)$")
#: Companions of packed weights, which are no parameters of the model.
_COMPANIONS = re.compile(
    r"\.(qzeros|scales|g_idx|absmax|quant_map|nested_\w+|quant_state\.\S+|"
    r"weight_scale|weight_zero_point|weight_shape|input_scale)$"
)
#: safetensors' words (enum Dtype) in those of torch.
_DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "I32": "int32",
    "I8": "int8",
    "U8": "uint8",
    "F4": "float4_e2m1fn_x2",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """A model's shape; a number is 0 where neither config nor weights say it."""

    architecture: str = ""
    dtype: str = ""
    """That of most parameters."""
    parameter_counts: Mapping[str, int] = field(default_factory=dict)
    """By kind: embedding, attention, mlp, experts, norm, head, vision, other."""
    layer_count: int = 0
    hidden_size: int = 0
    intermediate_size: int = 0
    """Of one expert in a mixture."""
    attention_head_count: int = 0
    key_value_head_count: int = 0
    vocabulary_size: int = 0
    is_tied: bool = False
    """Input embeddings and head are one tensor."""
    expert_count: int = 0
    active_expert_count: int = 0
    has_vision: bool = False
    default_target_modules: tuple[str, ...] = ()
    """Linear layers of the language model, routers included: peft's ``all-linear``."""
    target_modules: tuple[str, ...] = ()
    """The same with those of the vision tower, embeddings and head."""
    chat_template: str = ""
    """none, generation_marks, differential or refused."""
    chat_template_advice: str = ""
    quantization: str = ""
    """Method of packed weights, empty for none."""

    @property
    def parameter_count(self) -> int:
        """Parameters of all kinds; of a mixture all experts, which is what memory holds."""
        return sum(self.parameter_counts.values())


def facts_of(config: Mapping[str, Any], tensors: Sequence[Tensor]) -> ModelFacts:
    """Return the shape of a model from its config and the headers of its weights.

    Raises:
        ModelRefused: the config asks for a head of its own, and no file holds it.
    """
    text = config.get("text_config")
    text = text if isinstance(text, Mapping) else config
    architectures = config.get("architectures")
    quantization = config.get("quantization_config")
    quantization = quantization if isinstance(quantization, Mapping) else {}
    counts = _count(tensors, _bits(quantization))
    default, every = _target_modules(tensors)
    expert_count = _number(text, "num_experts", "num_local_experts", "n_routed_experts")
    head_count = _number(text, "num_attention_heads", "n_head", "num_heads")
    return ModelFacts(
        architecture=_word(
            architectures[0] if isinstance(architectures, list) and architectures else ""
        ),
        dtype=_dtype(tensors),
        parameter_counts=counts,
        layer_count=_number(text, "num_hidden_layers", "n_layer", "num_layers"),
        hidden_size=_number(text, "hidden_size", "n_embd", "d_model"),
        intermediate_size=_number(
            text,
            *(("moe_intermediate_size",) if expert_count else ()),
            "intermediate_size",
            "n_inner",
            "ffn_dim",
        ),
        attention_head_count=head_count,
        key_value_head_count=_number(text, "num_key_value_heads", "num_kv_heads") or head_count,
        vocabulary_size=_number(text, "vocab_size") or _number(config, "vocab_size"),
        is_tied=_is_tied(config, text, tensors),
        expert_count=expert_count,
        active_expert_count=_number(
            text, "num_experts_per_tok", "num_experts_per_token", "moe_topk"
        ),
        has_vision=isinstance(config.get("vision_config"), Mapping) or "vision" in counts,
        default_target_modules=default,
        target_modules=every,
        quantization=_word(quantization.get("quant_method", "")),
    )


def check_index(weight_map: Mapping[str, Any], by_file: Mapping[str, Iterable[str]]) -> None:
    """Compare an index of shards with the shards.

    ``by_file`` are the tensors of each weights file.

    Raises:
        ModelRefused: a shard or tensor is missing, lies elsewhere, or is not in the index.
    """
    name, found = INDEX, dict[str, str]()
    for file, tensors in by_file.items():
        for tensor in tensors:
            if tensor in found:
                raise ModelRefused(name, f"{tensor} lies in {found[tensor]} and in {file}")
            found[tensor] = file
    missing_files = sorted({str(file) for file in weight_map.values()} - set(by_file))
    if missing_files:
        raise ModelRefused(name, f"names {_shown(missing_files[0])}, which is not among the files")
    for tensor, file in weight_map.items():
        if found.get(tensor) != file:
            where = found.get(tensor, "no file")
            raise ModelRefused(
                name, f"says that {_shown(tensor)} lies in {_shown(file)}; it lies in {where}"
            )
    extra = sorted(set(found) - set(weight_map))
    if extra:
        raise ModelRefused(name, f"does not name {extra[0]}, which {found[extra[0]]} holds")


def _count(tensors: Sequence[Tensor], bits: int) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for tensor in tensors:
        if _COMPANIONS.search(tensor.name):
            continue
        packed = _PACKED.search(tensor.name) or (bits == 4 and tensor.dtype == "U8")
        factor = tensor.bits // bits if packed and bits else 1
        counts[_kind(tensor.name)] += tensor.count * factor
    return dict(counts)


def _kind(name: str) -> str:
    return next((kind for kind, pattern in _KINDS if pattern.search(name)), "other")


def _bits(quantization: Mapping[str, Any]) -> int:
    if quantization.get("load_in_4bit") or quantization.get("quant_method") in ("awq",):
        return 4
    bits = quantization.get("bits")
    return bits if isinstance(bits, int) and 1 <= bits <= 8 else 0


def _target_modules(tensors: Sequence[Tensor]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    default: set[str] = set()
    every: set[str] = set()
    for tensor in tensors:
        if _EXPERT.search(tensor.name):
            # Stored one by one or together, peft adapts them as one module.
            default.add("experts")
            every.add("experts")
            continue
        module = _PACKED.sub("", tensor.name).removesuffix(".weight")
        is_matrix = len(tensor.shape) == 2 and module != tensor.name
        kind = _kind(tensor.name)
        if not is_matrix or kind == "norm":
            continue
        leaf = module.rpartition(".")[2]
        if kind in ("embedding", "head"):
            every.add(leaf)
        elif _IN_LAYER.search(tensor.name):
            every.add(leaf)
            if kind != "vision":
                default.add(leaf)
    if len(every) > MODULES_MAX:
        raise ModelRefused("weights", f"hold more than {MODULES_MAX} kinds of linear layers")
    return tuple(sorted(default)), tuple(sorted(every))


def _is_tied(config: Mapping[str, Any], text: Mapping[str, Any], tensors: Sequence[Tensor]) -> bool:
    has_head = any(_kind(tensor.name) == "head" for tensor in tensors)
    says = text.get("tie_word_embeddings", config.get("tie_word_embeddings"))
    architectures = config.get("architectures")
    generates = isinstance(architectures, list) and any(
        str(one).endswith(("ForCausalLM", "ForConditionalGeneration")) for one in architectures
    )
    if says is False and generates and not has_head:
        raise ModelRefused(
            "config.json",
            "has tie_word_embeddings false, and no file holds the head (lm_head.weight); "
            "save the model again with save_pretrained",
        )
    return bool(says) if says is not None else not has_head


def _dtype(tensors: Sequence[Tensor]) -> str:
    elements: Counter[str] = Counter()
    for tensor in tensors:
        elements[tensor.dtype] += tensor.count
    common = elements.most_common(1)
    return _DTYPES.get(common[0][0], common[0][0].lower()) if common else ""


def _word(value: object) -> str:
    """Return a word of a config, or nothing where it is none that can be shown."""
    is_word = isinstance(value, str) and len(value) <= WORD_CHARACTERS_MAX and value.isprintable()
    return str(value) if is_word else ""


def _shown(name: object) -> str:
    """Return a name of an index as a message may hold it."""
    text = str(name)[:WORD_CHARACTERS_MAX]
    return text if text.isprintable() else ascii(text)


def _number(config: Mapping[str, Any], *names: str) -> int:
    """Return the first of these entries that is a whole number, or 0."""
    for name in names:
        value = config.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**32:
            return value
    return 0
