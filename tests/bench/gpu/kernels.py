"""Where a step's time goes on the card: the profiler's kernels, by the CUDA graph that launched them."""

from __future__ import annotations

import json
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

_ON_CARD = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_PAGED = "reshape_and_cache"  # the kernel that writes keys and values to pages: only the backbone has it
_PRODUCTS = ("gemm", "gemv", "nvjet", "cutlass", "matmul", "splitk", "dot_kernel")
_TOP = 12


def parts(step: Callable[[], object], steps: int) -> dict[str, Any]:
    """Milliseconds a step on the card, after a warm-up outside.

    Returns:
        `busy_ms` (any kernel running), `backbone_ms`, `draw_ms` (graphs other than the backbone's), `draw_products_ms`
        (of which matrix products: the depth decoder's), `other_ms` (launched one by one), `launches` (of graphs, a
        step) and `top` (the kernels that take longest, by name). {} where there is no CUDA.
    """
    if not torch.cuda.is_available():
        return {}
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        torch.cuda.synchronize()
        with torch.profiler.profile(activities=activities, acc_events=True) as profiler:
            for _ in range(steps):
                step()
            torch.cuda.synchronize()
        profiler.export_chrome_trace(str(trace))
        return by_launch(json.loads(trace.read_text())["traceEvents"], steps)


def by_launch(events: Iterable[dict[str, Any]], steps: int) -> dict[str, Any]:
    """`parts` of a Chrome trace's events."""
    events = [event for event in events if event.get("ph") == "X"]
    graphs = {_launch(event) for event in events if "GraphLaunch" in event.get("name", "")}
    kernels = [event for event in events if event.get("cat") in _ON_CARD]
    launched: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for kernel in kernels:
        launched[_launch(kernel) if _launch(kernel) in graphs else None].append(kernel)
    alone = launched.pop(None, [])
    backbone = [graph for graph in launched.values() if any(_PAGED in kernel["name"] for kernel in graph)]
    draws = [graph for graph in launched.values() if graph not in backbone]
    products = [kernel for graph in draws for kernel in graph if _is_product(kernel["name"])]
    total = Counter()
    for kernel in kernels:
        total[kernel["name"][:80]] += kernel["dur"]
    return {
        "busy_ms": _union(kernels) / 1000 / steps,
        "backbone_ms": sum(_union(graph) for graph in backbone) / 1000 / steps,
        "draw_ms": sum(_union(graph) for graph in draws) / 1000 / steps,
        "draw_products_ms": _union(products) / 1000 / steps,
        "other_ms": _union(alone) / 1000 / steps,
        "launches": len(launched) / steps,
        "top": [{"kernel": name, "ms": took / 1000 / steps} for name, took in total.most_common(_TOP)],
    }


def _launch(event: dict[str, Any]) -> Any:
    return event.get("args", {}).get("correlation")


def _is_product(name: str) -> bool:
    return any(word in name.lower() for word in _PRODUCTS)


def _union(kernels: Iterable[dict[str, Any]]) -> float:
    """Microseconds in which at least one of them runs."""
    total, until = 0.0, float("-inf")
    for begin, end in sorted((kernel["ts"], kernel["ts"] + kernel["dur"]) for kernel in kernels):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total
