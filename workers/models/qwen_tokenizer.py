"""Qwen's byte pairs as a tokenizer: read from a checkpoint's files, and written as a published folder would be.

A model family adds its own special tokens, or has a vocabulary of its own in the same files. Without transformers,
which an api process has no other use for.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from workers.checkpoints import CheckpointError

_MERGES = Path(__file__).parent / "assets" / "qwen-merges.txt.xz"
_MERGES_HEADER = "#version: 0.2"
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# Qwen's own special tokens, in order of id; families take over some and add theirs.
_FIRST_SPECIAL = 151_643
_QWEN_SPECIALS = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>",
    "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
    "<|image_pad|>", "<|video_pad|>", "<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>",
    "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>",
    "<think>", "</think>",
)  # fmt: skip
# In Qwen's files these are added tokens that a text may hold, and no special ones.
_NOT_SPECIAL = frozenset(
    {"<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>"}
    | {"<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>", "</think>"}
)


class TokenizerError(CheckpointError):
    """The tokenizer's files are missing, unreadable, or of another model. `str()` says which."""


def read_tokenizer(folder: Path, expected: Mapping[str, int]) -> Tokenizer:
    """The tokenizer in `folder`: tokenizer.json, or else vocab.json, merges.txt and tokenizer_config.json.

    Args:
        expected: special tokens and the ids that they must have.

    Raises:
        TokenizerError: a file is missing or unreadable, or a special token has another id.
    """
    try:
        if (folder / "tokenizer.json").is_file():
            tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        else:
            tokenizer = _from_vocabulary(folder)
    except TokenizerError:
        raise
    except Exception as error:  # tokenizers raises bare Exception for files that it cannot read
        raise TokenizerError(f"the tokenizer in {folder} cannot be read: {error}") from error
    for token, wanted in expected.items():
        found = tokenizer.token_to_id(token)
        if found != wanted:
            raise TokenizerError(f"the tokenizer in {folder} is another model's: {token} is {found}, not {wanted}")
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    """Token ids; special tokens in the text become theirs, and none is added."""
    return tokenizer.encode(text, add_special_tokens=False).ids


def write_tokenizer(folder: Path, tokens: Mapping[str, int], *, whole: bool = True) -> None:
    """Write a Hugging Face tokenizer folder: vocab.json, merges.txt, tokenizer_config.json, and tokenizer.json.

    Args:
        tokens: the family's special tokens by name; Qwen's own are there without.
        whole: tokenizer.json too, which not every family's published folder has.
    """
    _write(folder, _qwen_merges(), _special_tokens(tokens), whole=whole)


def write_character_tokenizer(folder: Path, characters: Iterable[str], tokens: Iterable[str]) -> dict[str, int]:
    """Write vocab.json, merges.txt and tokenizer_config.json of a vocabulary of bytes and a few characters.

    Args:
        characters: each is one token; any other of several bytes is as many.
        tokens: the special ones; their ids come last.

    Returns:
        The special tokens' ids, by name.
    """
    pairs = _character_merges(characters)
    ids = {token: id_ for id_, token in enumerate(tokens, start=len(_vocabulary(pairs)))}
    special = {id_: AddedToken(token, normalized=False, special=True) for token, id_ in ids.items()}
    _write(folder, pairs, special, whole=False)
    return ids


def _write(folder: Path, pairs: list[tuple[str, str]], special: dict[int, AddedToken], *, whole: bool) -> None:
    vocabulary = _vocabulary(pairs)
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / "vocab.json", vocabulary)
    lines = (f"{left} {right}" for left, right in pairs)
    (folder / "merges.txt").write_text("\n".join([_MERGES_HEADER, *lines, ""]), encoding="utf-8")
    if whole:
        _build(vocabulary, pairs, special).save(str(folder / "tokenizer.json"), pretty=False)
    _write_json(folder / "tokenizer_config.json", _tokenizer_config(special))


def _from_vocabulary(folder: Path) -> Tokenizer:
    for name in ("vocab.json", "merges.txt", "tokenizer_config.json"):
        if not (folder / name).is_file():
            raise TokenizerError(f"{folder} holds neither tokenizer.json nor {name}")
    vocabulary = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    lines = (folder / "merges.txt").read_text(encoding="utf-8").split("\n")
    pairs = [_pair(line) for line in lines if line and not line.startswith("#version")]
    added = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))["added_tokens_decoder"]
    special = {int(id_): AddedToken(**{"normalized": False} | _token_fields(token)) for id_, token in added.items()}
    return _build(vocabulary, pairs, special)


def _token_fields(token: dict[str, Any]) -> dict[str, Any]:
    names = ("content", "single_word", "lstrip", "rstrip", "normalized", "special")
    return {name: token[name] for name in names if name in token}


def _build(vocabulary: dict[str, int], pairs: list[tuple[str, str]], special: dict[int, AddedToken]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=pairs, fuse_unk=False, byte_fallback=False))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    for _, token in sorted(special.items()):
        tokenizer.add_tokens([token])  # one by one: ids are given in this order
    return tokenizer


def _qwen_merges() -> list[tuple[str, str]]:
    lines = lzma.decompress(_MERGES.read_bytes()).decode("utf-8").splitlines()
    return [_pair(line) for line in lines]


def _pair(line: str) -> tuple[str, str]:
    left, _, right = line.partition(" ")
    return left, right


def _character_merges(characters: Iterable[str]) -> list[tuple[str, str]]:
    """The pairs that make each character one token, byte by byte."""
    tokens = _byte_tokens()
    pairs: dict[tuple[str, str], None] = {}
    for character in sorted(characters):
        token, *rest = (tokens[byte] for byte in character.encode())
        for byte in rest:
            pairs[token, byte] = None
            token += byte
    return list(pairs)


def _byte_tokens() -> dict[int, str]:
    """What stands for each byte in the files: itself where it prints, and those come first."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(0x100 + i) for i, byte in enumerate(others)}


def _vocabulary(pairs: list[tuple[str, str]]) -> dict[str, int]:
    """Tokens by rank: the single bytes, then what each pair makes."""
    tokens = [*_byte_tokens().values(), *(left + right for left, right in pairs)]
    return {token: rank for rank, token in enumerate(tokens)}


def _special_tokens(tokens: Mapping[str, int]) -> dict[int, AddedToken]:
    ids = {_FIRST_SPECIAL + i: token for i, token in enumerate(_QWEN_SPECIALS)}
    ids |= {id_: token for token, id_ in tokens.items()}
    return {
        id_: AddedToken(token, normalized=False, special=token not in _NOT_SPECIAL)
        for id_, token in sorted(ids.items())
    }


def _tokenizer_config(special: dict[int, AddedToken]) -> dict[str, Any]:
    return {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": {
            str(id_): {
                "content": token.content, "lstrip": token.lstrip, "normalized": token.normalized,
                "rstrip": token.rstrip, "single_word": token.single_word, "special": token.special,
            }
            for id_, token in special.items()
        },
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": 131_072,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }  # fmt: skip


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")
