"""Model Runner V1 on CUDA: a worker whose runner calls the talker before each forward, and in place of the sampler."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from vllm.compilation.cuda_graph import CUDAGraphStat
from vllm.config import CUDAGraphMode
from vllm.forward_context import BatchDescriptor
from vllm.v1.outputs import SamplerOutput
from vllm.v1.worker.gpu_model_runner import GPUModelRunner
from vllm.v1.worker.gpu_worker import Worker

from workers.runners.vllm_config import ours
from workers.runners.vllm_model import SonglineTalker
from workers.runners.vllm_talker import StepRows, VllmTalker


class TalkerSteps(GPUModelRunner):
    """What a V1 runner does otherwise for a talker; goes before one of vLLM's."""

    @property
    def talker(self) -> VllmTalker:
        model = self.get_model()
        assert isinstance(model, SonglineTalker)
        return model.talker

    def _step_rows(self) -> StepRows:
        batch = self.input_batch
        rows = batch.num_reqs
        return StepRows(
            requests=batch.req_ids,
            computed=batch.num_computed_tokens_cpu[:rows],
            scheduled=self.query_start_loc.np[1 : rows + 1] - self.query_start_loc.np[:rows],
            samples=~self.discard_request_mask.np[:rows],
        )

    def _determine_batch_execution_and_padding(
        self, *args: Any, **kwargs: Any
    ) -> tuple[CUDAGraphMode, BatchDescriptor, bool, Tensor | None, CUDAGraphStat | None]:
        """Pad a step outside of CUDA graphs, as one inside is: bits may depend on the number of tokens."""
        mode, batch, ubatches, across, stat = super()._determine_batch_execution_and_padding(*args, **kwargs)
        if mode == CUDAGraphMode.NONE:
            least = ours(self.vllm_config)["least_tokens"]
            batch = replace(batch, num_tokens=max(batch.num_tokens, least))
        return mode, batch, ubatches, across, stat

    def _model_forward(self, input_ids: Tensor | None = None, *args: Any, **kwargs: Any) -> Any:
        self.talker.compose(self._step_rows())
        return super()._model_forward(input_ids, *args, **kwargs)

    def _sample(self, logits: Tensor | None, spec_decode_metadata: Any) -> SamplerOutput:
        assert logits is not None  # there is no pipeline of ranks, of which the last alone has them
        self.input_batch.update_async_output_token_ids()
        signals = self.talker.post_sample(logits, self._step_rows())
        return SamplerOutput(signals[:, None].to(torch.int32), logprobs_tensors=None)


class TalkerRunner(TalkerSteps):
    """V1's runner, for a talker."""


class TalkerWorker(Worker):
    """vLLM's worker with that runner."""

    def init_device(self) -> None:
        super().init_device()
        self.model_runner = TalkerRunner(self.vllm_config, self.device)
