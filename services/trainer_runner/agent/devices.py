"""What a node computes with: GPUs found by their vendors' tools, processors as slots."""

from __future__ import annotations

import asyncio
import csv
import json
import os
import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum

import psutil

from lehr.logs import get_logger

_GIB = 1024**3
_MIB = 1024**2
_TOOL_SECONDS = 20.0
_PRETENDED = re.compile(r"([a-z0-9][a-z0-9._-]{0,62}):([1-9][0-9]{0,2})")

PretendGpus = tuple[tuple[str, int], ...]

#: Words of a product's name, all of which must be there, and its tier in deploy/tiers.yaml; the
#: first that fits.
_TIERS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("b200",), "b200-192gb"),
    (("h200",), "h200-141gb"),
    (("h100",), "h100-80gb"),
    (("a100", "small"), "a100-40gb"),
    (("a100",), "a100-80gb"),
    (("l40s",), "l40s-48gb"),
    (("l4",), "l4-24gb"),
    (("a10g",), "a10g-24gb"),
    (("t4",), "t4-16gb"),
    (("4090",), "rtx4090-24gb"),
    (("5090",), "rtx5090-32gb"),
    (("mi300x",), "mi300x-192gb"),
)
_SMALL_GIB = 48
"""An A100 below this is the smaller of the two."""


class Kind(StrEnum):
    """Whose device it is."""

    CUDA = "cuda"
    ROCM = "rocm"
    MPS = "mps"
    CPU = "cpu"
    PRETEND = "pretend"


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One thing that a lease can hold."""

    device_id: str
    """Stable name: serial number, or kind and number."""
    kind: Kind
    tier: str
    memory_bytes: int
    index: int = 0
    """Number among the devices of its vendor's tool."""


def parse_pretend_gpus(value: str) -> PretendGpus:
    """Read ``h100-80gb:8,l40s:2``.

    Raises:
        ValueError: it does not read so.
    """
    found: list[tuple[str, int]] = []
    for part in filter(None, (part.strip() for part in value.split(","))):
        match = _PRETENDED.fullmatch(part)
        if match is None:
            raise ValueError(f"{part!r} must read tier:count, such as h100-80gb:8")
        found.append((match[1], int(match[2])))
    return tuple(found)


def tier_of(product: str, memory_bytes: int) -> str:
    """Return the tier id of a product name, such as ``NVIDIA H100 80GB HBM3``.

    A product that is not known gets a name of its own, which an operator may add to the tiers.
    """
    words = set(re.findall(r"[a-z0-9]+", product.lower()))
    if memory_bytes < _SMALL_GIB * _GIB:
        words.add("small")
    for wanted, tier in _TIERS:
        if set(wanted) <= words:
            return tier
    name = "-".join(re.findall(r"[a-z0-9]+", product.lower())) or "gpu"
    return f"{name[:50]}-{round(memory_bytes / _GIB)}gb"


async def discover(*, cpu_slots: int, pretended: PretendGpus) -> list[Device]:
    """Return the devices of this machine; real GPUs are left out where some are pretended."""
    real = [] if pretended else [*await _nvidia(), *await _amd(), *_apple()]
    return [*real, *_pretend(pretended), *_slots(cpu_slots)]


async def computing_pids(device: Device) -> frozenset[int]:
    """Return the processes that the driver lists on a device; empty where it cannot tell."""
    if device.kind is not Kind.CUDA:
        return frozenset()
    command = ["nvidia-smi", "--query-compute-apps=gpu_uuid,pid", "--format=csv,noheader"]
    rows = _csv(await _output(command))
    mine = (row[1] for row in rows if len(row) == 2 and row[0] == device.device_id)
    return frozenset(int(pid) for pid in mine if pid.isdigit())


def visibility(devices: Iterable[Device], *, cpu_slots: int) -> dict[str, str]:
    """Return the variables that show a trainer these devices and no others."""
    chosen = list(devices)
    cuda = [one.device_id for one in chosen if one.kind is Kind.CUDA]
    rocm = [str(one.index) for one in chosen if one.kind is Kind.ROCM]
    shown = {
        "CUDA_VISIBLE_DEVICES": ",".join(cuda),
        "HIP_VISIBLE_DEVICES": ",".join(rocm),
        "ROCR_VISIBLE_DEVICES": ",".join(rocm),
    }
    slots = sum(one.kind is Kind.CPU for one in chosen)
    if slots:
        threads = max(1, (os.cpu_count() or 1) * slots // max(cpu_slots, slots))
        shown |= {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    return shown


def _pretend(pretended: PretendGpus) -> list[Device]:
    found: list[Device] = []
    for tier, count in pretended:
        gigabytes = re.search(r"(\d+)gb", tier)
        memory = int(gigabytes[1]) if gigabytes else 48
        for number in range(count):
            found.append(
                Device(
                    device_id=f"pretend-{tier}-{number}",
                    kind=Kind.PRETEND,
                    tier=tier,
                    memory_bytes=memory * _GIB,
                    index=len(found),
                )
            )
    return found


def _slots(count: int) -> list[Device]:
    memory = psutil.virtual_memory().total // max(count, 1)
    return [
        Device(
            device_id=f"cpu-{number}",
            kind=Kind.CPU,
            tier="cpu",
            memory_bytes=memory,
            index=number,
        )
        for number in range(count)
    ]


async def _nvidia() -> list[Device]:
    query = "index,uuid,name,memory.total"
    rows = _csv(await _output(["nvidia-smi", f"--query-gpu={query}", *_NVIDIA_FORMAT]))
    return [
        Device(
            device_id=uuid,
            kind=Kind.CUDA,
            tier=tier_of(name, int(mebibytes) * _MIB),
            memory_bytes=int(mebibytes) * _MIB,
            index=int(index),
        )
        for index, uuid, name, mebibytes in (row for row in rows if len(row) == 4)
        if index.isdigit() and mebibytes.isdigit()
    ]


_NVIDIA_FORMAT = ("--format=csv,noheader,nounits",)


def _csv(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in row] for row in csv.reader(text.splitlines()) if row]


async def _amd() -> list[Device]:
    flags = ["--showproductname", "--showuniqueid", "--showmeminfo", "vram", "--json"]
    text = await _output(["rocm-smi", *flags])
    with suppress(ValueError):
        return _amd_devices(json.loads(text or "{}"))
    get_logger().warning("gpu_tool_unreadable", tool="rocm-smi")
    return []


def _amd_devices(cards: Mapping[str, Mapping[str, str]]) -> list[Device]:
    found: list[Device] = []
    for card, facts in sorted(cards.items()):
        number = card.removeprefix("card")
        memory = facts.get("VRAM Total Memory (B)", "")
        if not number.isdigit() or not memory.isdigit():
            continue
        name = facts.get("Card Series") or facts.get("Card series") or "AMD GPU"
        found.append(
            Device(
                device_id=facts.get("Unique ID") or f"rocm-{number}",
                kind=Kind.ROCM,
                tier=tier_of(name, int(memory)),
                memory_bytes=int(memory),
                index=int(number),
            )
        )
    return found


def _apple() -> list[Device]:
    if (platform.system(), platform.machine()) != ("Darwin", "arm64"):
        return []
    memory = psutil.virtual_memory().total
    return [Device(device_id="mps-0", kind=Kind.MPS, tier="apple-silicon", memory_bytes=memory)]


async def _output(command: Sequence[str]) -> str:
    """Return what a vendor's tool prints; nothing if it is not there, fails or hangs."""
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
        )
    except (FileNotFoundError, PermissionError):
        return ""
    try:
        output, _ = await asyncio.wait_for(process.communicate(), timeout=_TOOL_SECONDS)
    except TimeoutError:
        process.kill()
        get_logger().warning("gpu_tool_hangs", tool=command[0])
        return ""
    if process.returncode != 0:
        get_logger().warning("gpu_tool_failed", tool=command[0], status=process.returncode)
        return ""
    return output.decode(errors="replace")
