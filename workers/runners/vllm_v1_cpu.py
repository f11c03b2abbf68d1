"""Model Runner V1 on the CPU; apart, since importing vLLM's CPU worker changes torch's CUDA streams for good."""

from __future__ import annotations

from vllm.v1.worker.cpu_model_runner import CPUModelRunner
from vllm.v1.worker.cpu_worker import CPUWorker

from workers.runners.vllm_v1 import TalkerSteps


class CpuTalkerRunner(TalkerSteps, CPUModelRunner):
    """V1's CPU runner, for a talker."""


class CpuTalkerWorker(CPUWorker):
    """vLLM's CPU worker with that runner."""

    def init_device(self) -> None:
        super().init_device()  # type: ignore[no-untyped-call]
        assert self.device is not None  # from now on
        self.model_runner = CpuTalkerRunner(self.vllm_config, self.device)
