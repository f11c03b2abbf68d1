"""What pairs cannot work with, refused by name: settings at start-up, requests when they come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vllm.config import VllmConfig
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig
from vllm.v1.request import Request


def refuse_settings(vllm_config: VllmConfig, kv_cache_config: KVCacheConfig, ours: dict[str, Any]) -> None:
    """Raises ValueError for a setting under which pairs do not work, saying what to set.

    Args:
        ours: what `additional_config` has for the scheduler.
    """
    scheduling, parallel = vllm_config.scheduler_config, vllm_config.parallel_config
    groups = kv_cache_config.kv_cache_groups
    budget = scheduling.max_num_scheduled_tokens or scheduling.max_num_batched_tokens
    replay_chunk = ours.get("replay_chunk")
    for is_wrong, remedy in (
        (vllm_config.cache_config.enable_prefix_caching, "enable_prefix_caching=False: block hashes see no frames"),
        (vllm_config.speculative_config is not None, "no speculative_config: a frame is drawn, never guessed"),
        (vllm_config.kv_transfer_config is not None, "no kv_transfer_config: rows are rebuilt from the log"),
        (vllm_config.ec_transfer_config is not None, "no ec_transfer_config: there is no encoder"),
        (vllm_config.lora_config is not None, "enable_lora=False"),
        (vllm_config.aux_output_config.enabled, "enable_return_routed_experts=False"),
        (parallel.pipeline_parallel_size > 1, "pipeline_parallel_size=1"),
        (parallel.decode_context_parallel_size > 1, "decode_context_parallel_size=1"),
        (parallel.prefill_context_parallel_size > 1, "prefill_context_parallel_size=1"),
        (scheduling.policy != "fcfs", "policy='fcfs'"),
        (not scheduling.enable_chunked_prefill, "enable_chunked_prefill=True"),
        (scheduling.long_prefill_token_threshold_adaptive, "long_prefill_token_threshold_adaptive=False"),
        (budget < scheduling.max_num_seqs, f"max_num_scheduled_tokens={scheduling.max_num_seqs} or more"),
        (vllm_config.model_config.runner_type != "generate", "runner='generate'"),
        (len(groups) != 1 or not isinstance(groups[0].kv_cache_spec, FullAttentionSpec), "a model of full attention"),
        (replay_chunk is not None and not is_count(replay_chunk), "a replay_chunk of 1 token or more"),
    ):
        if is_wrong:
            raise ValueError(f"pairs need {remedy}")


def refuse_request(request: Request, max_model_len: int, slots: int) -> None:
    """Raises ValueError for a request that is no row of a job, or asks for what a talker does not do."""
    name, params = request.request_id, request.sampling_params
    if params is None:
        raise ValueError(f"{name}: pooling is not for a talker")
    mark = (params.extra_args or {}).get("songline")
    if not isinstance(mark, dict) or not {"job", "row", "rows"} <= mark.keys():
        raise ValueError(f'{name}: sampling_params.extra_args["songline"] must say job, row and rows')
    if not (is_count(mark["rows"]) and mark["row"] in range(mark["rows"])):
        raise ValueError(f"{name}: row {mark['row']!r} is none of {mark['rows']!r} rows")
    if mark["rows"] > slots:
        raise ValueError(f"{name}: {mark['rows']} rows do not fit in max_num_seqs={slots}")
    if request.num_prompt_tokens >= max_model_len:
        raise ValueError(f"{name}: a prompt of {request.num_prompt_tokens} tokens leaves no room in {max_model_len=}")
    for is_wrong, what in (
        (request.use_structured_output, "structured output"),
        (request.lora_request is not None, "LoRA"),
        (request.has_encoder_inputs, "multimodal input"),
        (request.resumable, "streamed input"),
    ):
        if is_wrong:
            raise ValueError(f"{name}: {what} is not for a talker's rows")


def refuse_row(request: Request, mark: dict[str, Any], rows: Sequence[Request | None]) -> None:
    """Raises ValueError for a row that does not go with those of its job that are here."""
    name, job = request.request_id, mark["job"]
    other = next(row for row in rows if row is not None)
    if mark["rows"] != len(rows):
        raise ValueError(f"{name}: job {job} has {len(rows)} rows, not {mark['rows']}")
    if rows[mark["row"]] is not None:
        raise ValueError(f"{name}: job {job} has its row {mark['row']} already")
    if request.num_prompt_tokens != other.num_prompt_tokens:
        raise ValueError(f"{name}: the rows of a job need prompts of one length")
    if request.max_tokens != other.max_tokens:
        raise ValueError(f"{name}: the rows of a job need the same max_tokens")


def is_count(value: object) -> bool:
    return isinstance(value, int) and value >= 1
