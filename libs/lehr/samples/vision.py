"""How many tokens an image takes, for models whose rule is known; no image is decoded for it."""

from __future__ import annotations

import functools
import json
import math
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from lehr.errors import InvalidArgument

Size = tuple[int, int]
"""Width and height in pixels, as a person sees the image."""
SizeOf = Callable[[str], Size]

_ORIENTATION = 0x0112
#: Values of that EXIF tag with which an image lies on its side.
_LYING = frozenset({5, 6, 7, 8})
#: Longest edge that Idefics3 scales up to, in pixels.
_IDEFICS3_EDGE_MAX = 4096
#: Most that one side of an image may be of the other (Qwen2-VL).
_QWEN_RATIO_MAX = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRule:
    """What a processor writes in place of an image's mark."""

    model_type: str
    mark: str
    """The token by which the chat template names an image."""
    settings: Mapping[str, Any]
    """What the rule depends on; equal settings give equal tokens."""

    def written(self, size: Size) -> str:
        """Return the text, all of it special tokens and line breaks, for one image."""
        return _RULES[self.model_type](self, size)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownRule:
    """A vision model whose images cannot be counted."""

    model_type: str
    mark: str = ""

    def written(self, size: Size) -> str:
        """Refuse: a wrong count would cut images in half."""
        known = ", ".join(sorted(_RULES))
        raise InvalidArgument(
            f"how many tokens an image takes is not known for models of type {self.model_type}; "
            f"use a model of type {known}, or rows without images",
            reason="IMAGE_TOKENS_UNKNOWN",
            model_type=self.model_type,
        )


def read_rule(model_dir: Path) -> ImageRule | UnknownRule | None:
    """Return the rule of a model folder; None for a model that reads text only."""
    config = _json(model_dir, "config.json")
    if "vision_config" not in config:
        return None
    model_type = str(config.get("model_type"))
    image = {
        **_json(model_dir, "preprocessor_config.json"),
        **_inner(_json(model_dir, "processor_config.json"), "image_processor"),
    }
    processor = _json(model_dir, "processor_config.json")
    try:
        mark, settings = _SETTINGS[model_type](image, processor)
    except (KeyError, TypeError):
        return UnknownRule(model_type=model_type)
    return ImageRule(model_type=model_type, mark=mark, settings=settings)


def sizes_in(images: Path | None) -> SizeOf:
    """Return what tells the size of an image by its name in a zip archive."""

    @functools.lru_cache(maxsize=100_000)
    def size_of(name: str) -> Size:
        if images is None:
            raise InvalidArgument("the images of the rows are not here", reason="IMAGES_MISSING")
        with zipfile.ZipFile(images) as archive, archive.open(name) as file:
            image = Image.open(file)
            width, height = image.size
            is_lying = image.getexif().get(_ORIENTATION) in _LYING
        return (height, width) if is_lying else (width, height)

    return size_of


def _qwen2_vl(rule: ImageRule, size: Size) -> str:
    """Both sides become multiples of patch x merge, and their product lies between two bounds.

    Wang et al. 2024, Qwen2-VL, section 2.1 (naive dynamic resolution).
    """
    width, height = size
    settings = rule.settings
    unit = settings["patch_size"] * settings["merge_size"]
    if max(size) > _QWEN_RATIO_MAX * min(size):
        raise InvalidArgument(
            f"an image of {width} x {height} pixels is too narrow for the model; its longer side "
            f"may be {_QWEN_RATIO_MAX} times the shorter",
            reason="IMAGE_TOO_NARROW",
        )
    units = [round(side / unit) for side in (height, width)]
    pixels = units[0] * units[1] * unit**2
    if pixels > settings["pixels_max"]:
        shrink = math.sqrt(height * width / settings["pixels_max"])
        units = [max(1, math.floor(side / shrink / unit)) for side in (height, width)]
    elif pixels < settings["pixels_min"]:
        grow = math.sqrt(settings["pixels_min"] / (height * width))
        units = [math.ceil(side * grow / unit) for side in (height, width)]
    return rule.mark * int(units[0] * units[1])


def _llava(rule: ImageRule, size: Size) -> str:
    """Every image is brought to one size (Liu et al. 2023, LLaVA-1.5)."""
    del size
    return rule.mark * int(rule.settings["tokens"])


def _idefics3(rule: ImageRule, size: Size) -> str:
    """Tiles in rows and columns, then the whole image once more, small.

    Laurencon et al. 2024, Idefics3, section 4.1; SmolVLM (Marafioti et al. 2025) does the same.
    """
    seen = rule.mark * int(rule.settings["tile_tokens"])
    rows, columns = _tiles(size, rule.settings)
    tiles = "".join(
        "".join(f"{_AROUND}<row_{row}_col_{column}>{seen}" for column in range(1, columns + 1))
        + "\n"
        for row in range(1, rows + 1)
    )
    whole = f"{_AROUND}<global-img>{seen}{_AROUND}"
    return f"{tiles}\n{whole}" if tiles else whole


_AROUND = "<fake_token_around_image>"


def _tiles(size: Size, settings: Mapping[str, Any]) -> tuple[int, int]:
    """Return rows and columns of tiles; none of an image that fits into one."""
    if not settings["do_image_splitting"]:
        return 0, 0
    width, height = _with_longest_edge(size, settings["longest_edge"])
    tile = settings["tile_edge"]
    rows, columns = math.ceil(height / tile), math.ceil(width / tile)
    return (rows, columns) if rows > 1 or columns > 1 else (0, 0)


def _with_longest_edge(size: Size, edge: int) -> Size:
    """Scale to a longest edge; the other becomes even, until the model's own bound cuts in."""
    width, height = size
    ratio = width / height
    if width >= height:
        scaled = int(edge / ratio)
        width, height = edge, max(scaled + scaled % 2, 1)
    else:
        scaled = int(edge * ratio)
        width, height = max(scaled + scaled % 2, 1), edge
    if max(width, height) <= _IDEFICS3_EDGE_MAX:
        return width, height
    ratio = width / height
    if width >= height:
        return _IDEFICS3_EDGE_MAX, max(int(_IDEFICS3_EDGE_MAX / ratio), 1)
    return max(int(_IDEFICS3_EDGE_MAX * ratio), 1), _IDEFICS3_EDGE_MAX


def _qwen2_vl_settings(
    image: Mapping[str, Any], processor: Mapping[str, Any]
) -> tuple[str, dict[str, Any]]:
    size = image.get("size") or {}
    return "<|image_pad|>", {
        "patch_size": int(image.get("patch_size", 14)),
        "merge_size": int(image.get("merge_size", 2)),
        "pixels_min": int(image.get("min_pixels") or size.get("shortest_edge", 56 * 56)),
        "pixels_max": int(image.get("max_pixels") or size.get("longest_edge", 28 * 28 * 1280)),
    }


def _llava_settings(
    image: Mapping[str, Any], processor: Mapping[str, Any]
) -> tuple[str, dict[str, Any]]:
    crop = image.get("crop_size", {"height": 224, "width": 224})
    height, width = (crop, crop) if isinstance(crop, int) else (crop["height"], crop["width"])
    patch = processor["patch_size"]
    tokens = (height // patch) * (width // patch)
    tokens += processor.get("num_additional_image_tokens", 0)
    tokens -= processor.get("vision_feature_select_strategy") == "default"
    return processor.get("image_token", "<image>"), {"tokens": tokens}


def _idefics3_settings(
    image: Mapping[str, Any], processor: Mapping[str, Any]
) -> tuple[str, dict[str, Any]]:
    return "<image>", {
        "tile_tokens": int(processor.get("image_seq_len", 169)),
        "do_image_splitting": bool(image.get("do_image_splitting", True)),
        "longest_edge": int((image.get("size") or {}).get("longest_edge", 4 * 364)),
        "tile_edge": int((image.get("max_image_size") or {}).get("longest_edge", 364)),
    }


_RULES: Mapping[str, Callable[[ImageRule, Size], str]] = {
    "qwen2_vl": _qwen2_vl,
    "qwen2_5_vl": _qwen2_vl,
    "llava": _llava,
    "idefics3": _idefics3,
    "smolvlm": _idefics3,
}
_SETTINGS: Mapping[
    str, Callable[[Mapping[str, Any], Mapping[str, Any]], tuple[str, dict[str, Any]]]
] = {
    "qwen2_vl": _qwen2_vl_settings,
    "qwen2_5_vl": _qwen2_vl_settings,
    "llava": _llava_settings,
    "idefics3": _idefics3_settings,
    "smolvlm": _idefics3_settings,
}


def _json(model_dir: Path, name: str) -> dict[str, Any]:
    path = model_dir / name
    found = json.loads(path.read_bytes()) if path.is_file() else {}
    return found if isinstance(found, dict) else {}


def _inner(values: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = values.get(key)
    return found if isinstance(found, dict) else {}
