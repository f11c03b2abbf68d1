"""What vLLM reads from the environment, and must find there before it is first imported."""

from __future__ import annotations

import os
import sys

from workers.settings import BadSettings

_BROKEN_GRAPHS = "VLLM_USE_BREAKABLE_CUDAGRAPH"
_READS_IT = "vllm.model_executor.layers.attention.attention"  # as it is imported: a graph is broken there, or never


def prepare_environment(model_runner: str, *, batch_invariant: bool, prefill_graphs: bool) -> None:
    """Set what this process's engine needs; what an operator has set otherwise stays, where nothing depends on it.

    Raises:
        BadSettings: this process has had an engine without prefill graphs.
    """
    if prefill_graphs and _READS_IT in sys.modules and os.environ.get(_BROKEN_GRAPHS) != "1":
        raise BadSettings("talker.prefill_graphs needs a process that has had no engine without: start a new one")
    os.environ[_BROKEN_GRAPHS] = "1" if prefill_graphs else "0"
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1" if model_runner == "v2" else "0"
    os.environ["VLLM_BATCH_INVARIANT"] = "1" if batch_invariant else "0"
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    os.environ["VLLM_CPU_ATTN_SPLIT_KV"] = "0"  # how keys are split depends on who else is in the batch
