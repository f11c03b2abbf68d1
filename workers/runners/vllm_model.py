"""The talker as a model of vLLM's: vLLM's own Qwen3 decoder, whose input is the talker's embeddings.

Registered by the `vllm.general_plugins` entry point, so that every process of an engine knows it. What a family adds
(the heads, the feedback, the draw) is loaded beside the decoder, and hangs on `VllmTalker`.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from vllm.config import VllmConfig
from vllm.model_executor.models.qwen3 import Qwen3Model
from vllm.model_executor.models.utils import AutoWeightsLoader, maybe_prefix

from workers.models.family import load_family
from workers.runners.vllm_config import ours
from workers.runners.vllm_talker import VllmTalker

ARCHITECTURE = "SonglineTalker"


def register() -> None:
    """Make the model known to vLLM; harmless when done twice."""
    from vllm import ModelRegistry

    if ARCHITECTURE not in ModelRegistry.get_supported_archs():
        ModelRegistry.register_model(ARCHITECTURE, SonglineTalker)


class SonglineTalker(nn.Module):
    """vLLM's side of a talker. `talker` is there once the weights are.

    Args:
        vllm_config: its additional_config["songline"] has `family`, `checkpoint`, `options` (the family's) and
            `max_jobs`, and `compile_draw`.
    """

    talker: VllmTalker

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        self._config = vllm_config
        self._ours = ours(vllm_config)
        self.model = Qwen3Model(vllm_config=vllm_config, prefix=maybe_prefix(prefix, "model"))

    @staticmethod
    def get_model_state_cls() -> type:
        """Model Runner V2's hook."""
        from workers.runners.vllm_v2 import TalkerState

        return TalkerState

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        return self.model.embed_input_ids(input_ids)

    def forward(
        self,
        input_ids: Tensor | None,
        positions: Tensor,
        intermediate_tensors: Any = None,
        inputs_embeds: Tensor | None = None,
        **_: Any,
    ) -> Tensor:
        """(tokens,) positions -> (tokens, hidden). The input is what `VllmTalker.compose` laid into its buffer."""
        return self.model(None, positions, None, self.talker.embeds[: positions.shape[0]])

    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        """The rows' hidden states themselves: the draw has heads of its own."""
        return hidden_states

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Load the decoder, then what the family adds. Raises the family's checkpoint errors."""
        backbone = load_family(self._ours["family"]).backbone(Path(self._ours["checkpoint"]))
        named = ((backbone.renamed(name), weight) for name, weight in weights)
        decoder = ((f"model.{name}", weight) for name, weight in named if name is not None)
        loaded = AutoWeightsLoader(self).load_weights(decoder)
        self.talker = self._load_talker()
        return loaded

    def _load_talker(self) -> VllmTalker:
        config, stated = self._config, self._ours
        device = self.model.norm.weight.device
        dtype = config.model_config.dtype
        assert isinstance(dtype, torch.dtype)  # which vLLM has made of its name
        options = {"device": str(device), "dtype": str(dtype).removeprefix("torch."), "max_jobs": stated["max_jobs"]}
        options |= stated["options"]
        family = load_family(stated["family"])
        return VllmTalker(
            family.talker(Path(stated["checkpoint"]), options, self.model.embed_tokens),
            max_jobs=stated["max_jobs"],
            max_tokens=config.scheduler_config.max_num_batched_tokens,
            max_draws=config.model_config.max_model_len,
            hidden_size=config.model_config.get_hidden_size(),
            dtype=dtype,
            device=device,
            graph=device.type == "cuda" and not config.model_config.enforce_eager,
            compiled=stated["compile_draw"],
        )
