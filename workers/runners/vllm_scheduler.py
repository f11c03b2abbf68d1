"""Pairs as one: vLLM schedulers for which all rows of a job are a single thing.

A job of R rows comes as R requests, marked by `extra_args = {"songline": {"job": name, "row": r, "rows": R}}`. Its rows
are admitted, stepped, preempted and finished together, in equal chunks, so that all their counts agree at any moment.

How a prompt is cut into chunks is a function of the settings and the job, never of the load: a chunk is what fits
beside a decode in every other slot, or `long_prefill_token_threshold` if that is less. A prefill for which a step has
no such room left waits, so a long prompt never stalls the frames of others. With `exclusive_prefill` a step is either
one job's chunk or a decode of all, in turns: then no step's shape depends on the load, once decodes are padded. A
prompt's last position is computed among the decodes, so that its draw costs no step of its own.

Jobs run in the order in which they came; memory is short for the youngest first.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from vllm.config import VllmConfig
from vllm.utils.math_utils import cdiv
from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.output import NewRequestData, SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreEventType, EngineCoreOutput, EngineCoreOutputs
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from workers.runners.vllm_config import ours
from workers.runners.vllm_refusals import refuse_request, refuse_row, refuse_settings


@dataclass(slots=True, eq=False)
class Job:
    """The requests of one job.

    arrived: by row; None for a row that has not come yet. rows: the same once all have come, and none before that.
    """

    name: str
    arrived: list[Request | None]
    rows: list[Request] = field(default_factory=list)

    def add(self, row: int, request: Request) -> None:
        self.arrived[row] = request
        here = [request for request in self.arrived if request is not None]
        if len(here) == len(self.arrived):
            self.rows = here

    @property
    def first(self) -> Request:
        """Speaks for all rows: their counts agree."""
        return self.rows[0]


@dataclass(slots=True)
class Step:
    """What one step is to run."""

    spare: int  # tokens not yet given away
    jobs: list[Job] = field(default_factory=list)
    running: list[Request] = field(default_factory=list)
    new: list[Request] = field(default_factory=list)
    resumed: list[Request] = field(default_factory=list)
    tokens: dict[str, int] = field(default_factory=dict)  # by request
    blocks: dict[str, KVCacheBlocks] = field(default_factory=dict)  # newly given, by request


def mark_of(request: Request) -> dict[str, Any]:
    """What the request says of itself as a row; that it does, `refuse_request` has seen to."""
    params = request.sampling_params
    assert params is not None and params.extra_args is not None
    return params.extra_args["songline"]


def job_name(request: Request) -> str:
    return mark_of(request)["job"]


def prompt_tokens(request: Request) -> int:
    """Without the frames that a job may bring along from before, after its prompt."""
    return mark_of(request).get("prompt", request.num_prompt_tokens)


class PairScheduling(Scheduler):
    """Goes before one of vLLM's schedulers.

    `additional_config["songline"]` may have

        exclusive_prefill: bool, see above.
        replay_chunk: how many of a job's known frames are computed again at a time, where another number gives other
            bits: so many, and what is left over one by one. The prompt before them is cut as at the first time. As
            long as a prefill chunk if not set.

    A job that brings frames along has them after its prompt, whose own length is then in the mark as "prompt".

    Raises:
        ValueError: at start-up for a setting under which pairs do not work, with what to set.
    """

    preempted_jobs: int  # so far

    def __init__(self, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig, *args: Any, **kwargs: Any) -> None:
        stated = ours(vllm_config)
        refuse_settings(vllm_config, kv_cache_config, stated)
        super().__init__(vllm_config, kv_cache_config, *args, **kwargs)
        self.preempted_jobs = 0
        self._replay_chunk: int | None = stated.get("replay_chunk")
        self._exclusive: bool = stated.get("exclusive_prefill", False)
        self._prefilled = False  # in the step before
        self._jobs: dict[str, Job] = {}
        self._in_flight: deque[list[Job]] = deque()  # the jobs of each step whose output is not in yet
        self._hopeless: list[Job] = []  # too long for the whole cache

    # --- coming and going ---------------------------------------------------------------------------------------------

    def add_request(self, request: Request) -> None:
        """Raises ValueError for a request that is no row, or does not go with its job's other rows."""
        if request.request_id in self.requests:
            raise ValueError(f"{request.request_id} is here already")
        refuse_request(request, self.max_model_len, self.max_num_active_reqs)
        mark = mark_of(request)
        if (job := self._jobs.get(mark["job"])) is not None:
            refuse_row(request, mark, job.arrived)
        super().add_request(request)

    def _enqueue_waiting_request(self, request: Request) -> None:
        """A job waits for admission once all its rows are here; till then they are known, but in no queue."""
        mark = mark_of(request)
        job = self._jobs.setdefault(mark["job"], Job(mark["job"], [None] * mark["rows"]))
        job.add(mark["row"], request)
        for row in job.rows:
            self.waiting.add_request(row)

    def finish_requests(self, request_ids: str | Iterable[str] | None, finished_status: RequestStatus) -> list[Request]:
        """Finish whole jobs, whichever of their rows are named."""
        if request_ids is not None:
            named = {request_ids} if isinstance(request_ids, str) else set(request_ids)
            jobs = {job_name(self.requests[name]) for name in named if name in self.requests}
            request_ids = [row.request_id for job in jobs for row in self._jobs[job].arrived if row is not None]
        return super().finish_requests(request_ids, finished_status)

    def _free_request(
        self, request: Request, delay_free_blocks: bool = False
    ) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
        self._jobs.pop(job_name(request), None)
        return super()._free_request(request, delay_free_blocks)

    # --- a step -------------------------------------------------------------------------------------------------------

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        """The next step. `throttle_prefills` is for data parallel engines, which balance theirs; it changes nothing."""
        self.current_step += 1
        self.kv_cache_manager.new_step_starts()
        step = Step(spare=self.max_num_scheduled_tokens)
        if self._pause_state != PauseState.PAUSED_ALL:
            if self._exclusive:
                self._fill_exclusively(step)
            else:
                self._step_running(step, self._running_chunks())
                self._admit_waiting(step)
        output = self._output_of(step)
        self._in_flight.append(step.jobs)
        self._update_after_schedule(output)
        return output

    def _fill_exclusively(self, step: Step) -> None:
        """One job's prefill, or a decode of all: in turns where there is both."""
        chunks = self._running_chunks()
        decodes = {job: chunk for job, chunk in chunks.items() if chunk == 1}
        prefill = next((job for job, chunk in chunks.items() if chunk > 1), None)
        if not (self._prefilled and decodes):
            if prefill is not None:
                self._step_running(step, {prefill: chunks[prefill]})
            else:
                self._admit_waiting(step, at_most=1)
        self._prefilled = bool(step.jobs)
        if not step.jobs:
            self._step_running(step, decodes)

    def _running_chunks(self) -> dict[Job, int]:
        return {job: self._next_chunk(job) for job in self._running_jobs()}

    def _step_running(self, step: Step, chunks: dict[Job, int]) -> None:
        """Give each of these running jobs its chunk, oldest first.

        The tokens of the decodes are set aside before any prefill gets some. Who is preempted is younger than all that
        were given theirs, so nothing is taken back; and it held too little to fit in again in the same step.
        """
        step.spare -= sum(len(job.rows) for job, chunk in chunks.items() if chunk == 1)
        for job, chunk in chunks.items():
            if job.first.status != RequestStatus.RUNNING:
                break  # it made room, and so did all after it
            cost = chunk * len(job.rows) if chunk > 1 else 0
            if chunk and cost <= step.spare and self._make_room(job, chunk):
                step.spare -= cost
                step.running += job.rows
                self._give(step, job, chunk)

    def _admit_waiting(self, step: Step, at_most: int | None = None) -> None:
        """Admit jobs in their order, as long as the next one fits."""
        while self.waiting and self._pause_state == PauseState.UNPAUSED and len(step.jobs) != at_most:
            job = self._jobs[job_name(self.waiting.peek_request())]
            chunk = self._next_chunk(job)
            has_slots = len(self.running) + len(job.rows) <= self.max_num_active_reqs
            # What it drew last before it was preempted is still to come, with the output of a step in flight.
            is_behind = any(row.num_stale_output_tokens for row in job.rows)
            if not has_slots or is_behind or chunk * len(job.rows) > step.spare:
                return
            if self._blocks_for(job, job.first.num_tokens) + self._reserve(job) > self._blocks_left:
                if not self.running:
                    self._hopeless.append(job)
                return
            step.spare -= chunk * len(job.rows)
            self._admit(step, job)
            self._give(step, job, chunk)

    def _admit(self, step: Step, job: Job) -> None:
        now = time.monotonic()
        for row in job.rows:
            self.waiting.pop_request()
            self.running.append(row)
            (step.new if row.status == RequestStatus.WAITING else step.resumed).append(row)
            row.status = RequestStatus.RUNNING
            if row.prefill_stats is not None and not row.num_preemptions:
                row.prefill_stats.set(row.num_prompt_tokens, num_local_cached_tokens=0, num_external_cached_tokens=0)
            if self.log_stats:
                row.record_event(EngineCoreEventType.SCHEDULED, now)

    def _give(self, step: Step, job: Job, chunk: int) -> None:
        """The job's part in the step; its blocks are known to be there."""
        step.jobs.append(job)
        for row in job.rows:
            blocks = self.kv_cache_manager.allocate_slots(row, chunk)
            assert blocks is not None
            step.blocks[row.request_id] = blocks
            step.tokens[row.request_id] = chunk

    def _next_chunk(self, job: Job) -> int:
        """Tokens that each row is to compute next; 0 when its last ones are in flight."""
        row = job.first
        computed, in_flight = row.num_computed_tokens, row.num_output_placeholders
        if row.num_tokens + in_flight >= row.num_prompt_tokens + row.max_tokens:
            return 0
        left = min(row.num_tokens + in_flight - computed, self.max_model_len - 1 - computed)
        if self._replay_chunk and computed >= prompt_tokens(row):
            return self._replay_chunk if left >= self._replay_chunk else min(left, 1)
        if self._replay_chunk:
            left = min(left, prompt_tokens(row) - computed)
        if self._exclusive and left > 1:
            left -= 1  # a prompt's last position goes with the decodes: its draw then costs no step of its own
        return min(left, self._prefill_chunk(len(job.rows)))

    def _prefill_chunk(self, rows: int) -> int:
        """What each row of a job may compute at once."""
        beside = 0 if self._exclusive else self.max_num_active_reqs - rows
        share = (self.max_num_scheduled_tokens - beside) // rows
        return min(share, self.scheduler_config.long_prefill_token_threshold or share)

    # --- memory -------------------------------------------------------------------------------------------------------

    @property
    def _blocks_left(self) -> int:
        return self.kv_cache_manager.block_pool.get_num_free_blocks()

    def _blocks_for(self, job: Job, tokens: int) -> int:
        """Blocks that the job needs, over those it has, to hold `tokens` in each row."""
        held = cdiv(job.first.num_computed_tokens, self.block_size)
        return len(job.rows) * max(0, cdiv(tokens, self.block_size) - held)

    def _reserve(self, newcomer: Job) -> int:
        """Blocks that the running jobs will want while a newcomer catches up, at least one for each row.

        A newcomer that took these would be preempted before it drew a frame.
        """
        row, chunk = newcomer.first, self._prefill_chunk(len(newcomer.rows))
        steps = cdiv(row.num_prompt_tokens, chunk) + cdiv(row.num_output_tokens, self._replay_chunk or chunk)
        wanted = 0
        for job in self._running_jobs():
            now = max(job.first.num_tokens, job.first.num_computed_tokens)
            end = job.first.num_prompt_tokens + job.first.max_tokens
            wanted += max(len(job.rows), self._blocks_for(job, min(now + steps, end)))
        return wanted

    def _make_room(self, job: Job, chunk: int) -> bool:
        """Preempt the youngest jobs until there are blocks for the chunk; False if the job had to go itself."""
        while self._blocks_for(job, job.first.num_computed_tokens + chunk) > self._blocks_left:
            youngest = self._jobs[job_name(self.running[-1])]
            if youngest is job and len(self.running) == len(job.rows):
                self._hopeless.append(job)
                return False
            self._preempt(youngest)
            if youngest is job:
                return False
        return True

    def _preempt(self, job: Job) -> None:
        self.preempted_jobs += 1
        now = time.monotonic()
        for row in job.rows:  # each goes to the front of the queue
            self.running.remove(row)
            self._preempt_request(row, now)

    def _running_jobs(self) -> list[Job]:
        """Oldest first."""
        return [self._jobs[name] for name in dict.fromkeys(map(job_name, self.running))]

    # --- to the runner and back ---------------------------------------------------------------------------------------

    def _output_of(self, step: Step) -> SchedulerOutput:
        """What the model runners read; the rest of vLLM's fields belong to what is refused at start-up."""
        if self.use_v2_model_runner:  # it has dropped the preempted rows, and takes them back as new ones
            step.new += step.resumed
            step.resumed = []
        new = [
            NewRequestData.from_request(
                row,
                step.blocks[row.request_id].get_block_ids(),
                row._all_token_ids if self.use_v2_model_runner else None,
            )
            for row in step.new
        ]
        cached = self._make_cached_request_data(step.running, step.resumed, step.tokens, {}, step.blocks)
        if not self.use_v2_model_runner:
            self.prev_step_scheduled_req_ids.clear()
            self.prev_step_scheduled_req_ids.update(step.tokens)
        return SchedulerOutput(
            scheduled_new_reqs=new,
            scheduled_cached_reqs=cached,
            num_scheduled_tokens=step.tokens,
            total_num_scheduled_tokens=sum(step.tokens.values()),
            scheduled_spec_decode_tokens={},
            scheduled_encoder_inputs={},
            free_encoder_mm_hashes=[],
            finished_req_ids=self.finished_req_ids,
            preempted_req_ids=self.reset_preempted_req_ids,
            new_block_ids_to_zero=self._get_new_block_ids_to_zero(),
        )

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        """Raises RuntimeError if a runner gave the rows of a job different tokens."""
        # A job that was dropped and has come back under its name does not get what its former rows drew.
        jobs = [job for job in self._in_flight.popleft() if self._jobs.get(job.name) is job]
        tokens = scheduler_output.num_scheduled_tokens
        tokens = {row.request_id: tokens[row.request_id] for job in jobs for row in job.rows}
        outputs = super().update_from_output(
            replace(scheduler_output, num_scheduled_tokens=tokens), model_runner_output
        )
        for job in jobs:
            if len({(row.num_tokens, row.is_finished()) for row in job.rows}) > 1:
                raise RuntimeError(f"the rows of job {job.name} parted: a runner must give all of them the same token")
        self._fail_hopeless(outputs)
        return outputs

    def _fail_hopeless(self, outputs: dict[int, EngineCoreOutputs]) -> None:
        ids = [row.request_id for job in self._hopeless if self._jobs.get(job.name) is job for row in job.rows]
        self._hopeless.clear()
        for row in self.finish_requests(ids, RequestStatus.FINISHED_ERROR):
            output = EngineCoreOutput(row.request_id, new_token_ids=[], finish_reason=row.get_finished_reason())
            outputs.setdefault(row.client_index, EngineCoreOutputs()).outputs.append(output)


class PairScheduler(PairScheduling):
    """For engines that know a step's tokens before the next one begins."""


class AsyncPairScheduler(PairScheduling, AsyncScheduler):
    """For engines that begin a step before the tokens of the one before are known."""
