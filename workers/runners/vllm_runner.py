"""vLLM as a talker's engine: paged keys and values, continuous batching, CUDA graphs; Model Runner V1 or V2.

The engine runs in this process. A job is as many of its requests as the model has rows; what they draw never passes
through it, but comes from `VllmTalker`.
"""

from __future__ import annotations

import logging
import math
import time
from pathlib import Path
from typing import Any

import torch

from workers.models.family import Family, TalkerModel
from workers.runners.vllm_checkpoint import check_backbone, engine_folder
from workers.runners.vllm_config import CONFIG
from workers.runners.vllm_environment import prepare_environment
from workers.settings import BadSettings, TalkerSettings, step_tokens
from workers.talker.frames import FrameHistory
from workers.talker.rows import fit

logger = logging.getLogger(__name__)

_NO_MEMORY = (
    "the talker has no memory for so many frames: lower max_new_tokens or shorten input, or have the operator give the "
    "talker a larger key-value cache"
)
_BLOCK = 32  # positions that keys and values are kept by; the least on the CPU


class VllmRunner:
    """Implements `workers.talker.worker.Runner`.

    Args:
        checkpoint: its folder; the engine reads the family's backbone in it.

    Raises:
        BadSettings: the settings cannot be served; says what to change.
        CheckpointError: nor can the checkpoint.
    """

    def __init__(self, family: Family, checkpoint: Path, settings: TalkerSettings) -> None:
        self.steps = 0
        self._rows = family.rows
        self._settings = settings
        self._device = settings.options.get("device", "cpu")
        self._threads = torch.get_num_threads()
        if self._cuda and not torch.cuda.is_available():
            raise BadSettings(f"talker.options.device is {self._device}, and torch finds no GPU: set it to cpu")
        backbone = family.backbone(checkpoint)
        self._positions = min(settings.max_model_len, check_backbone(backbone))
        self._family = family
        try:
            with engine_folder(backbone) as folder:
                self._config = self._engine_config(family, checkpoint, folder)
                self._check_graph()
                self._check_cache()
                self._choose_replay()
                if settings.num_gpu_blocks is not None:
                    self._check_room(settings.num_gpu_blocks)
                self._client = self._start()
                self._check_graph()  # again: an engine takes another mode where its attention knows no such graph
        except (ValueError, NotImplementedError) as error:
            raise BadSettings(_told(error)) from error
        self._core = self._client.engine_core
        [model] = self._core.model_executor.collective_rpc(lambda worker: worker.get_model())
        self.talker = model.talker
        self._stream = torch.cuda.current_stream() if self._cuda else None
        try:
            self._check_room(self._config.cache_config.num_gpu_blocks)
        except BadSettings:
            self.close()
            raise

    # --- starting -----------------------------------------------------------------------------------------------------

    def _engine_config(self, family: Family, checkpoint: Path, folder: Path) -> Any:
        settings, cuda = self._settings, self._cuda
        prepare_environment(
            settings.model_runner, batch_invariant=settings.batch_invariant, prefill_graphs=self._prefill_graphs
        )
        from vllm.engine.arg_utils import EngineArgs

        from workers.runners import vllm_model

        vllm_model.register()
        scheduler = "AsyncPairScheduler" if cuda else "PairScheduler"
        arguments: dict[str, Any] = {
            "model": str(folder),
            "skip_tokenizer_init": True,
            "hf_overrides": {"architectures": [vllm_model.ARCHITECTURE]},
            "dtype": settings.options.get("dtype", "auto" if cuda else "float32"),
            "max_model_len": self._positions,
            "max_num_seqs": self._decode_rows,
            "max_num_batched_tokens": self._step_tokens,
            "long_prefill_token_threshold": settings.prefill_chunk,
            "block_size": _BLOCK,
            "enable_prefix_caching": False,
            "enable_chunked_prefill": True,
            "async_scheduling": cuda,
            "scheduler_cls": f"workers.runners.vllm_scheduler.{scheduler}",
            "num_gpu_blocks_override": settings.num_gpu_blocks,
            "gpu_memory_utilization": settings.gpu_memory_utilization,
            "disable_log_stats": True,
            "compilation_config": self._compilation(),
            "additional_config": {
                CONFIG: {
                    "family": family.name,
                    "checkpoint": str(checkpoint),
                    "options": settings.options,
                    "max_jobs": settings.max_jobs,
                    "least_tokens": self._least_tokens,
                    "replay_chunk": settings.max_jobs if settings.replay == "chunks" else 1,
                    "exclusive_prefill": settings.exclusive_prefill,
                    "compile_draw": settings.compile_draw and cuda,
                }
            },
        }
        if cuda:
            # One split of the keys in any batch: how many there are would change the bits.
            arguments["attention_config"] = {"backend": "FLASH_ATTN", "flash_attn_max_num_splits_for_cuda_graph": 1}
        if settings.kv_cache_gib or not cuda:
            arguments["kv_cache_memory_bytes"] = int((settings.kv_cache_gib or 1.0) * 2**30)
        if settings.model_runner == "v1":
            worker = "vllm_v1.TalkerWorker" if cuda else "vllm_v1_cpu.CpuTalkerWorker"
            arguments["worker_cls"] = f"workers.runners.{worker}"
        return EngineArgs(**arguments).create_engine_config()

    @property
    def _cuda(self) -> bool:
        return self._device.startswith("cuda")

    @property
    def _decode_rows(self) -> int:
        return self._rows * self._settings.max_jobs

    @property
    def _step_tokens(self) -> int:
        """The budget of a step."""
        return self._settings.max_num_batched_tokens or step_tokens(self._settings, self._family)

    @property
    def _least_tokens(self) -> int:
        """Of a step, where no graph has its shape. A prefill's that is alone is its own affair."""
        if self._cuda:
            return 0
        return self._decode_rows if self._settings.exclusive_prefill else self._step_tokens

    @property
    def _prefill_graphs(self) -> bool:
        return self._cuda and self._settings.prefill_graphs

    def _compilation(self) -> dict[str, Any]:
        """No compiler, vLLM's own kernels, and one graph: every decode step is padded to all rows.

        With prefill graphs, a prefill's step is padded too, to the next size; sizes above a decode's are its alone.
        """
        stated = self._settings.compilation
        if not self._cuda:
            return {"mode": 0, "cudagraph_mode": "NONE", "custom_ops": ["none"], **stated}
        graph = {"cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": [self._decode_rows]}
        if self._prefill_graphs:
            sizes = prefill_sizes(self._decode_rows, self._rows * self._settings.prefill_chunk)
            graph = {"cudagraph_mode": "FULL_AND_PIECEWISE", "cudagraph_capture_sizes": sizes}
        return {"mode": 0, "custom_ops": ["all"], **graph, **stated}

    def _start(self) -> Any:
        from vllm.v1.engine.core_client import InprocClient
        from vllm.v1.executor.uniproc_executor import UniProcExecutor

        set_num_threads = torch.set_num_threads
        try:
            return InprocClient(self._config, UniProcExecutor, log_stats=False)
        finally:
            torch.set_num_threads = set_num_threads  # vLLM's CPU worker takes it from the whole process

    def _check_graph(self) -> None:
        """On CUDA a graph alone gives every decode step the same shape."""
        from vllm.config import CUDAGraphMode

        stated, settings = self._config.compilation_config, self._settings
        if not self._cuda or settings.batch_invariant:
            return
        modes: tuple[CUDAGraphMode, ...] = (CUDAGraphMode.FULL, CUDAGraphMode.FULL_DECODE_ONLY)
        sizes = stated.cudagraph_capture_sizes
        if self._prefill_graphs and stated.cudagraph_mode is CUDAGraphMode.FULL_AND_PIECEWISE:
            modes, sizes = (CUDAGraphMode.FULL_AND_PIECEWISE,), sizes[:1]  # the least; greater ones are of prefills
        if stated.cudagraph_mode not in modes or sizes != [self._decode_rows]:
            raise BadSettings(
                f"talker.compilation has cudagraph_mode {stated.cudagraph_mode.name} of sizes "
                f"{stated.cudagraph_capture_sizes}: a song's bits need {' or '.join(mode.name for mode in modes)}, of "
                f"the one size {self._decode_rows}. Leave both out, or set talker.batch_invariant"
            )

    def _choose_replay(self) -> None:
        """Known frames are computed again in chunks where that is shown to give the bits of the steps they had."""
        if not self._cuda or self._settings.replay != "chunks":
            return
        from workers.runners.vllm_replay import chunks_have_the_bits_of_steps

        model, parallel = self._config.model_config, self._config.parallel_config
        if not chunks_have_the_bits_of_steps(
            heads=model.get_num_attention_heads(parallel), kv_heads=model.get_num_kv_heads(parallel),
            head_dim=model.get_head_size(), dtype=model.dtype, rows=self._rows, chunk=self._settings.max_jobs,
            block=_BLOCK, positions=self._positions,
        ):  # fmt: skip
            logger.info("attention gives several positions at once other bits here: frames are replayed one by one")
            self._config.additional_config[CONFIG]["replay_chunk"] = 1

    @property
    def _song_blocks(self) -> int:
        """Blocks of the longest song."""
        return self._rows * -(-self._positions // _BLOCK)

    def _check_cache(self) -> None:
        """Before the weights are loaded, where the cache's size is stated."""
        stated, model = self._settings.kv_cache_gib, self._config.model_config
        heads = model.get_total_num_kv_heads() * model.get_num_layers(self._config.parallel_config)
        block = 2 * heads * model.get_head_size() * model.dtype.itemsize * _BLOCK
        needed = (self._song_blocks + 1) * block / 2**30  # the engine keeps one for itself
        if stated and stated < needed:
            raise BadSettings(
                f"talker.kv_cache_gib is {stated:g}, and a song of talker.max_model_len {self._positions} positions in "
                f"{self._rows} rows needs {_rounded_up(needed):g}: set it to that or more, or lower max_model_len"
            )

    def _check_room(self, blocks: int) -> None:
        """Where they are stated, before the weights are loaded: the engine's own word names no number of blocks."""
        blocks -= 1  # the engine keeps one for itself
        needed = self._song_blocks
        if blocks < needed:
            fits = blocks // self._rows * _BLOCK
            raise BadSettings(
                f"the key-value cache has {blocks} blocks of {_BLOCK} positions, and a song of talker.max_model_len "
                f"{self._positions} positions in {self._rows} rows needs {needed}: give the talker more "
                f"memory (gpu_memory_utilization, kv_cache_gib, num_gpu_blocks), or set max_model_len to at most {fits}"
            )

    # --- the Runner protocol ------------------------------------------------------------------------------------------

    @property
    def model(self) -> TalkerModel:
        """The family's part of the talker; the backbone is the engine's."""
        return self.talker.model

    @property
    def free_jobs(self) -> int:
        return self.talker.free_jobs

    @property
    def idle(self) -> bool:
        return self.talker.idle

    @property
    def preemptions(self) -> int:
        """How many times a song lost its memory to an older one, so far."""
        return self._core.scheduler.preempted_jobs

    def admit(self, history: FrameHistory, prompts: list[list[int]]) -> None:
        """Bind rows to a job; its prefill begins with the next step.

        Raises: see `TorchRunner.admit`.
        """
        fit(history, prompts, self._rows, self._positions)
        with torch.cuda.stream(self._stream):
            known = self.talker.bind(history, prompts)
        try:
            for row, prompt in enumerate(prompts):
                self._client.add_request(self._request(history, row, prompt, known))
        except BaseException:
            self.free(history.job)
            raise

    def _request(self, history: FrameHistory, row: int, prompt: list[int], known: int) -> Any:
        """A row as the engine's; so many known draws follow its prompt."""
        from vllm import SamplingParams
        from vllm.v1.engine import EngineCoreRequest

        from workers.runners.vllm_talker import END, FRAME, request_id

        return EngineCoreRequest(
            request_id=request_id(history.job, row),
            prompt_token_ids=prompt + [FRAME] * known,
            mm_features=None,
            sampling_params=SamplingParams(
                max_tokens=history.max_frames + history.lead - known,
                ignore_eos=True,
                stop_token_ids=[END],
                detokenize=False,
                extra_args={"songline": {"job": history.job, "row": row, "rows": self._rows, "prompt": len(prompt)}},
            ),
            pooling_params=None,
            arrival_time=time.time(),
            lora_request=None,
            cache_salt=None,
            data_parallel_rank=None,
        )

    def free(self, job: str) -> int:
        """Give the job's rows back, all at once; how many there were."""
        from workers.runners.vllm_talker import request_id

        self._client.abort_requests([request_id(job, row) for row in range(self._rows)])
        return self.talker.release(job)

    def step(self) -> list[FrameHistory]:
        """One step of the engine; the jobs whose draws have reached the host since the last, or that it gave up."""
        self.steps += 1
        self._keep_threads()
        with torch.cuda.stream(self._stream):
            outputs = self._client.get_output().outputs
            given_up = [
                self.talker.refuse(output.request_id, _NO_MEMORY)
                for output in outputs
                if output.finish_reason is not None and str(output.finish_reason) == "error"
            ]
            grown = [*self.talker.arrived(), *(history for history in given_up if history is not None)]
            return list({history.job: history for history in grown}.values())

    def _keep_threads(self) -> None:
        """Bits depend on how many threads compute. It is set for each thread anew; vLLM's kernels end at another."""
        if torch.get_num_threads() != self._threads:
            torch.set_num_threads(self._threads)

    def profile(self) -> dict[str, Any]:
        """All that the bits of its output depend on, besides the weights and the machine."""
        import vllm

        settings, config = self._settings, self._config
        return {
            "runner": f"vllm-{settings.model_runner}",
            "vllm": vllm.__version__,
            "dtype": str(config.model_config.dtype),
            "device": torch.cuda.get_device_name() if self._cuda else self._device,
            "max_jobs": settings.max_jobs,
            "max_model_len": self._positions,
            "prefill_chunk": settings.prefill_chunk,
            "max_num_batched_tokens": config.scheduler_config.max_num_batched_tokens,
            "block_size": _BLOCK,
            "compilation": self._compilation(),
            "batch_invariant": settings.batch_invariant,
            "exclusive_prefill": settings.exclusive_prefill,
            "compile_draw": settings.compile_draw,
            "replay": settings.replay,
        }

    def close(self) -> None:
        """Give the engine's memory back."""
        self._client.shutdown()


def prefill_sizes(decode_tokens: int, prefill_tokens: int) -> list[int]:
    """Tokens of the steps that have a graph: a decode's, doubled until a prefill of so many fits, ascending.

    A decode never takes a greater one than its own, so none may be less.
    """
    sizes = [decode_tokens]
    while sizes[-1] < prefill_tokens:
        sizes.append(min(2 * sizes[-1], prefill_tokens))
    return sizes


def _told(error: Exception) -> str:
    """What vLLM has against the settings, in a line."""
    if isinstance(error, BadSettings):
        return str(error)
    parts: list[dict[str, Any]] = [{"loc": (), "msg": str(error)}]
    if hasattr(error, "errors"):  # pydantic's say where
        parts = error.errors()
    said = {": ".join([*map(str, part["loc"][:1]), part["msg"].removeprefix("Value error, ")]) for part in parts}
    return "vLLM cannot serve this: " + " ".join("; ".join(sorted(said)).split())


def _rounded_up(gib: float) -> float:
    """To three digits, so that the number told is enough."""
    step = 10 ** (math.floor(math.log10(gib)) - 2)
    return math.ceil(gib / step) * step
