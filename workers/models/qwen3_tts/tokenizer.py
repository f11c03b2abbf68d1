"""The text tokenizer, in the checkpoint's own folder: Qwen's byte pairs with the speech model's special tokens.

Or bytes and phonemes, for a small model of its own alphabet.
"""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer

from workers.models import qwen_tokenizer
from workers.models.qwen3_tts import config, phonemes
from workers.models.qwen_tokenizer import TokenizerError

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
# Of a vocabulary of phonemes, by what config.json calls their ids.
_PHONEME_SPECIALS = {
    "im_start_token_id": "<|im_start|>",
    "im_end_token_id": "<|im_end|>",
    "tts_pad_token_id": "<tts_pad>",
    "tts_bos_token_id": "<tts_text_bos>",
    "tts_eos_token_id": "<tts_text_eod>",
}
PHONEME_VOCABULARY = 512  # tokens that it has at most: `text_vocab_size`


def load_tokenizer(folder: Path) -> Tokenizer:
    """The checkpoint's tokenizer.

    Raises:
        TokenizerError: it is not the one that the checkpoint's config.json has ids of.
        ConfigError: the front end whose readings it encodes is not installed; says what to install.
    """
    stated = config.load_config(folder)
    if stated.front_end is not None:
        phonemes.check_installed(stated.front_end)
        phonemes.load()
    # What a prompt is built around; other special tokens may be named otherwise in a later release.
    expected = {"<|im_start|>": stated.im_start, "<|im_end|>": stated.im_end}
    if stated.assistant is not None:
        expected["assistant"] = stated.assistant
    tokenizer = qwen_tokenizer.read_tokenizer(folder, expected)
    most, rows = max(tokenizer.get_vocab().values()), stated.talker.text_vocab_size
    if most >= rows:
        raise TokenizerError(f"the tokenizer in {folder} is another model's: it has token {most}, of {rows} at most")
    return tokenizer


def write_tokenizer(folder: Path) -> None:
    """Write the tokenizer's files as published: vocab.json, merges.txt and tokenizer_config.json."""
    qwen_tokenizer.write_tokenizer(folder, SPECIAL_TOKENS, whole=False)


def write_phoneme_tokenizer(folder: Path) -> dict[str, int]:
    """Write the tokenizer's files for a vocabulary of bytes and the front end's phonemes, each of which is one token.

    Returns:
        The ids of the special tokens under their names in config.json: `im_start_token_id`, `im_end_token_id`,
        `tts_pad_token_id`, `tts_bos_token_id` and `tts_eos_token_id`. All ids are below PHONEME_VOCABULARY.
    """
    tokens = ("<|endoftext|>", *_PHONEME_SPECIALS.values())
    ids = qwen_tokenizer.write_character_tokenizer(folder, phonemes.alphabet(), tokens)
    return {name: ids[token] for name, token in _PHONEME_SPECIALS.items()}
