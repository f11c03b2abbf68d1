"""The text tokenizer: Qwen's byte pairs with the speech model's special tokens, in the checkpoint's own folder."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer

from workers.models import qwen_tokenizer

# After Qwen's own, in order of id.
SPECIAL_TOKENS = {
    "<|im_start|>": 151_644,
    "<|im_end|>": 151_645,
    "<|audio_start|>": 151_669,
    "<|audio_end|>": 151_670,
    "<tts_pad>": 151_671,
    "<tts_text_bos>": 151_672,
    "<tts_text_eod>": 151_673,
    "<tts_text_bos_single>": 151_674,
    "<|audio_pad|>": 151_675,
}
# What a prompt is built around; other special tokens may be named otherwise in a later release.
_EXPECTED = {token: SPECIAL_TOKENS[token] for token in ("<|im_start|>", "<|im_end|>")}


def load_tokenizer(folder: Path) -> Tokenizer:
    """The checkpoint's tokenizer; raises TokenizerError."""
    return qwen_tokenizer.read_tokenizer(folder, _EXPECTED)


def write_tokenizer(folder: Path) -> None:
    """Write the tokenizer's files as published: vocab.json, merges.txt and tokenizer_config.json."""
    qwen_tokenizer.write_tokenizer(folder, SPECIAL_TOKENS, whole=False)
