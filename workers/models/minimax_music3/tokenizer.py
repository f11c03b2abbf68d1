"""The tokenizer: Qwen's byte pairs with the music model's special tokens, in a checkpoint's `tokenizer/` folder."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer

from workers.models import qwen_tokenizer
from workers.models.minimax_music3.config import SPECIAL_TOKENS, ConfigError
from workers.models.qwen_tokenizer import encode

__all__ = ["encode", "load_tokenizer", "write_tokenizer"]


def load_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer in `folder`: tokenizer.json, or else vocab.json and merges.txt.

    Raises:
        ConfigError: a file is missing or unreadable, or a special token has another id than this model's.
    """
    try:
        return qwen_tokenizer.read_tokenizer(folder, SPECIAL_TOKENS)
    except qwen_tokenizer.TokenizerError as error:
        raise ConfigError(str(error)) from error


def write_tokenizer(folder: Path) -> None:
    """Write a Hugging Face tokenizer folder: vocab.json, merges.txt, tokenizer.json, tokenizer_config.json."""
    qwen_tokenizer.write_tokenizer(folder, SPECIAL_TOKENS)
