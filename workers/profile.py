"""A profile: all that the bits of a worker's output depend on. Two workers of one profile may replace one another."""

from __future__ import annotations

import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from broker_schemas.codec import digest


def machine() -> dict[str, Any]:
    """What of this machine and its libraries decides how numbers are rounded."""
    return {
        "cpu": _cpu_model(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "numpy": version("numpy"),
        "diffusers": version("diffusers"),
        "onnxruntime": version("onnxruntime"),  # which reads words that a front end's lexicon does not have
        "songline": version("songline"),
        "threads": torch.get_num_threads(),
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    wanted = ("vendor_id", "cpu family", "model", "model name", "stepping")
    seen = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return " ".join(seen[name] for name in wanted if name in seen) or platform.processor()


def computed_with(options: dict[str, Any]) -> dict[str, Any]:
    """A stage's options with the device by its name: the bits are those of its kind, whichever of several it is."""
    device = torch.device(options.get("device", "cpu"))
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return {**options, "device": name}


def profile(role: str, **facts: Any) -> str:
    """The profile's digest: 64 hex digits."""
    return digest({"role": role, "machine": machine(), **facts})
