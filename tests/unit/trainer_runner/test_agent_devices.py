"""Devices and their tiers."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from services.trainer_runner.agent import devices
from services.trainer_runner.agent.devices import Device, Kind, parse_pretend_gpus, tier_of

GIB = 1024**3


@pytest.mark.parametrize(
    ("product", "gibibytes", "tier"),
    [
        ("NVIDIA H100 80GB HBM3", 80, "h100-80gb"),
        ("NVIDIA H200", 140, "h200-141gb"),
        ("NVIDIA A100-SXM4-80GB", 80, "a100-80gb"),
        ("NVIDIA A100-PCIE-40GB", 40, "a100-40gb"),
        ("NVIDIA L40S", 45, "l40s-48gb"),
        ("NVIDIA L4", 22, "l4-24gb"),
        ("NVIDIA A10G", 22, "a10g-24gb"),
        ("Tesla T4", 15, "t4-16gb"),
        ("NVIDIA GeForce RTX 4090", 24, "rtx4090-24gb"),
        ("AMD Instinct MI300X OAM", 192, "mi300x-192gb"),
        ("NVIDIA RTX 6000 Ada Generation", 48, "nvidia-rtx-6000-ada-generation-48gb"),
    ],
)
def test_a_product_has_a_tier(product: str, gibibytes: int, tier: str) -> None:
    assert tier_of(product, gibibytes * GIB) == tier


def test_every_tier_that_is_named_here_is_one_of_the_installation() -> None:
    file = Path(__file__).parents[3] / "deploy" / "tiers.yaml"
    known = set(yaml.safe_load(file.read_text(encoding="utf-8"))["tiers"])

    assert {tier for _, tier in devices._TIERS} | {"cpu", "apple-silicon"} <= known


def test_pretended_gpus_read_as_tier_and_count() -> None:
    assert parse_pretend_gpus("h100-80gb:8, l40s-48gb:2") == (("h100-80gb", 8), ("l40s-48gb", 2))
    assert parse_pretend_gpus("") == ()


@pytest.mark.parametrize("value", ["h100", "h100:0", "h100:-1", "H100:1", "a:1;b:2"])
def test_pretended_gpus_that_cannot_be_are_refused(value: str) -> None:
    with pytest.raises(ValueError, match="must read tier:count"):
        parse_pretend_gpus(value)


def test_a_trainer_sees_its_own_devices_only() -> None:
    mine = [Device(device_id="GPU-1", kind=Kind.CUDA, tier="l4-24gb", memory_bytes=1)]
    slot = [Device(device_id="cpu-0", kind=Kind.CPU, tier="cpu", memory_bytes=1)]

    assert devices.visibility(mine, cpu_slots=1)["CUDA_VISIBLE_DEVICES"] == "GPU-1"
    assert devices.visibility(slot, cpu_slots=1)["CUDA_VISIBLE_DEVICES"] == ""
    assert "OMP_NUM_THREADS" in devices.visibility(slot, cpu_slots=2)


def test_the_cards_of_rocm_smi_are_read() -> None:
    cards = {
        "card0": {
            "Card Series": "AMD Instinct MI300X OAM",
            "Unique ID": "0xabc",
            "VRAM Total Memory (B)": str(192 * GIB),
        },
        "system": {"Driver version": "6.7"},
    }

    (found,) = devices._amd_devices(cards)

    assert (found.device_id, found.tier, found.index) == ("0xabc", "mi300x-192gb", 0)
