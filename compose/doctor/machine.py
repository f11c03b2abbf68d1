"""What this machine has: processor, GPUs, disk, the port."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import httpx

from compose.doctor.finding import Finding, note, ok, wrong
from compose.port import listening_socket
from compose.trouble import PORT_TAKEN, Trouble

_GIB = 1 << 30
_LEAST_FREE = _GIB  # of a disk that files are made on


def processor(threads: int | None) -> Finding:
    """`threads`: what both stages take together; None where that is not known."""
    import torch

    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    instructions = torch.backends.cpu.get_cpu_capability()
    said = f"{usable} threads, {instructions}"
    if threads is not None and threads > usable:
        advice = f"the two stages take {threads} on one machine: lower --threads, or start them on two"
        return note("processor", said, advice)
    if instructions == "DEFAULT":
        return note("processor", said, "without AVX2 or the like products are slow: serve on another machine or a GPU")
    return ok("processor", said)


def gpus(platform: str | None, needed: Sequence[str]) -> Finding:
    """`platform`: as the flag says, if it does. `needed`: devices that the deploy file names."""
    import torch

    seen = [torch.cuda.get_device_properties(place) for place in range(torch.cuda.device_count())]
    wanted = max((int(device.partition(":")[2] or 0) + 1 for device in needed if device.startswith("cuda")), default=0)
    if len(seen) < wanted or (platform == "cuda" and not seen):
        advice = "install the GPU's driver and a torch build for CUDA, or give --platform cpu"
        return wrong("gpu", f"torch sees {len(seen)}, and {max(wanted, 1)} of them are to be served on", advice)
    if seen:
        named = ", ".join(f"{gpu.name} ({gpu.total_memory / _GIB:.0f} GiB)" for gpu in seen)
        return ok("gpu", f"{named}; torch for CUDA {torch.version.cuda}")
    if Path("/dev/nvidia0").exists():
        return note("gpu", "there is one, and torch does not see it", "install a torch build for CUDA to serve on it")
    return ok("gpu", "none; models are served on the CPU")


def disks(folders: Iterable[Path | None]) -> Iterator[Finding]:
    """Room where checkpoints and temporary files are made."""
    there = [_existing(folder) for folder in (*folders, Path(tempfile.gettempdir())) if folder]
    one_of_each = {folder.stat().st_dev: folder for folder in reversed(there)}
    for folder in reversed(one_of_each.values()):
        free = shutil.disk_usage(folder).free
        said = f"{free / _GIB:.1f} GiB free at {folder}"
        yield ok("disk", said) if free >= _LEAST_FREE else wrong("disk", said, "make room, or name another folder")


def _existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that there is."""
    folder = folder.expanduser().absolute()
    return next(path for path in (folder, *folder.parents) if path.is_dir())


def port(host: str, number: int) -> Finding:
    """Whether the api can listen there, or does already."""
    try:
        listening_socket(host, number).close()
    except Trouble as trouble:
        if trouble.code != PORT_TAKEN:
            return wrong("port", str(trouble), "give --host an address of this machine")
        return _whose(host, number)
    return ok("port", f"{number} at {host} is free")


def _whose(host: str, number: int) -> Finding:
    reached = "127.0.0.1" if host in ("", "0.0.0.0") else host
    try:
        answer = httpx.get(f"http://{reached}:{number}/ready", timeout=5)
        told = answer.json()
        status, missing = told["status"], ", ".join(told["missing"])
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return wrong("port", f"{number} at {host} is in use by another program", "choose another with --port")
    said = f"{number} at {host}: a Songline api, {status}"
    return ok("port", said) if not missing else wrong("port", f"{said}: {missing}", "start what is missing")
