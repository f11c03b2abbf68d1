"""Our part of vLLM's config."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm.config import VllmConfig

CONFIG = "songline"  # its name in vLLM's additional_config


def ours(vllm_config: VllmConfig) -> dict[str, Any]:
    """Our settings; {} where there are none."""
    additional = vllm_config.additional_config
    return additional.get(CONFIG, {}) if isinstance(additional, dict) else {}
