"""Model Runner V2: a model state that calls the talker before each forward, and in place of the sampler."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from vllm.v1.worker.gpu.input_batch import InputBatch, get_num_sampled_and_rejected
from vllm.v1.worker.gpu.model_states.default import DefaultModelState
from vllm.v1.worker.gpu.sample.output import SamplerOutput
from vllm.v1.worker.gpu.states import RequestState

from workers.runners.vllm_model import SonglineTalker
from workers.runners.vllm_talker import StepRows, VllmTalker


def _step_rows(batch: InputBatch) -> StepRows:
    reached = batch.num_computed_tokens_np + batch.num_scheduled_tokens
    return StepRows(
        requests=batch.req_ids,
        computed=batch.num_computed_tokens_np,
        scheduled=batch.num_scheduled_tokens,
        samples=reached >= batch.prefill_len_np,
    )


class TalkerState(DefaultModelState):
    """The hooks of a step: `prepare_inputs` before the forward, also before a graph's replay; then the sampler."""

    model: SonglineTalker

    def prepare_inputs(self, input_batch: InputBatch, req_states: RequestState) -> dict[str, Any]:
        self.model.talker.compose(_step_rows(input_batch))
        return super().prepare_inputs(input_batch, req_states)

    def custom_sampler(self, sampler: Any) -> tuple[Any, None]:
        return FrameSampler(sampler, self.model.talker), None


class FrameSampler:
    """Draws frames in the place of vLLM's sampler, whose per-request state the runner goes on to keep."""

    def __init__(self, sampler: Any, talker: VllmTalker) -> None:
        self._sampler = sampler
        self._talker = talker

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)

    def __call__(self, logits: Tensor, input_batch: InputBatch) -> SamplerOutput:
        """`logits` are the rows' hidden states: see `SonglineTalker.compute_logits`."""
        signals = self._talker.post_sample(logits, _step_rows(input_batch))
        sampled, rejected = get_num_sampled_and_rejected(
            input_batch.seq_lens.new_ones(input_batch.num_reqs),
            input_batch.seq_lens,
            input_batch.cu_num_logits,
            input_batch.idx_mapping,
            self._sampler.req_states.prefill_len.gpu,
        )
        return SamplerOutput(
            sampled_token_ids=signals[:, None],
            logprobs_tensors=None,
            num_nans=None,
            num_sampled=sampled,
            num_rejected=rejected,
        )
